"""The MQTT client of `rest-bridge status` and `replay`: reads statuses, failures; publishes. Main thread, own loop."""

import asyncio
import contextlib
import json
import logging
import re
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote, urlsplit, urlunsplit

from amqtt.client import MQTTClient
from amqtt.errors import AMQTTError, ClientError, ConnectError, MQTTError, NoDataError
from amqtt.session import ApplicationMessage

from amqtt_rest_bridge.broker import amqtt_broker
from amqtt_rest_bridge.errors import BridgeError, ConfigurationError, reason
from amqtt_rest_bridge.model import Publication
from amqtt_rest_bridge.routing.status import reload_topic, status_topic
from amqtt_rest_bridge.times import rfc3339
from amqtt_rest_bridge.topics import filter_matches

CONNECT_SECONDS: Final = 10.0
_ACKNOWLEDGED_SECONDS: Final = 10.0
RELOAD_TOPIC: Final = reload_topic()
TOPIC_FILTER: Final = status_topic("+")
_NOTHING: Final = TOPIC_FILTER.removesuffix("/+/status")
_QUIET_SECONDS: Final = 0.3  # after which no more retained messages are on their way
_REFRESH_SECONDS: Final = 1.0  # the table is drawn this often when nothing changes, for its clock ...
_PAUSE_SECONDS: Final = 0.2  # ... and at most this often when much does
_REFUSED: Final = 0x80  # MQTT 3.1.1 section 3.9.3
_PORTS: Final = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
_REASONS: Final = {  # MQTT 3.1.1 section 3.2.2.3
    1: "it does not speak MQTT 3.1.1",
    2: "it does not accept the client id",
    3: "it is not available",
    4: "wrong user name or password",
    5: "not authorized: check user name (mqtt://USER@HOST) and password (REST_BRIDGE_BROKER_PASSWORD)",
}
_GROUP_TOPIC: Final = re.compile(r"bridge/[^/]+/(\d{1,4})/")
_AWAY_AFTER: Final = 3  # intervals of the status without one
_USUAL_SECONDS: Final = 30.0  # between two statuses

Status = dict[str, Any]
AWAY: Final = "away"
"""The health of the routes of a worker that is away."""


@dataclass(frozen=True, slots=True)
class Overview:
    """What a broker reports: the status of each route, and its last reload if that failed (time, errors, message)."""

    statuses: list[Status]
    reload_failure: dict[str, Any] | None = None


class BrokerUnavailableError(BridgeError):
    """The broker cannot be asked; the message says why and holds no credentials."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files for TLS: authorities, and this client's certificate and key."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Where a broker is; `url` may hold credentials, `shown` does not."""

    url: str = field(repr=False)
    shown: str
    tls: TlsFiles = TlsFiles()


def parse_address(url: str, password: str | None = None, tls: TlsFiles | None = None) -> BrokerAddress:
    """Parse a broker's URL.

    Args:
        url: The URL.
        password: That of the user in the URL; one in the URL wins.
        tls: Files, which are read.

    Raises:
        ConfigurationError: It is not one, or a file cannot be used; the message does not repeat the URL, since it may
            hold a password.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    if parts.scheme not in _PORTS or not host:
        raise ConfigurationError(
            f"--broker is not the address of a broker; write mqtt://[USER:PASSWORD@]HOST[:PORT], "
            f"or {', '.join(_PORTS)[6:]}"
        )
    host = f"[{host}]" if ":" in host else host
    if parts.username and parts.password is None and password:
        location = parts.netloc.rpartition("@")[2]
        url = urlunsplit(parts._replace(netloc=f"{parts.username}:{quote(password, safe='')}@{location}"))
    files = tls or TlsFiles()
    _check_tls(files, is_secure=parts.scheme in ("mqtts", "wss"))
    return BrokerAddress(url, f"{parts.scheme}://{host}:{port if port is not None else _PORTS[parts.scheme]}", files)


def _check_tls(files: TlsFiles, *, is_secure: bool) -> None:
    values = {f"--{each.name.replace('_', '-')}": getattr(files, each.name) for each in fields(files)}
    given = {name: value for name, value in values.items() if value is not None}
    if given and not is_secure:
        raise ConfigurationError(f"{next(iter(given))} needs TLS: write --broker mqtts://... or wss://...")
    if (files.cert_file is None) != (files.key_file is None):
        raise ConfigurationError("--cert-file and --key-file belong together: give both, or none")
    try:
        context = ssl.create_default_context(cafile=files.ca_file)
        if files.cert_file is not None:
            context.load_cert_chain(files.cert_file, files.key_file, password=_no_password)
    except (OSError, ValueError) as error:
        named = ", ".join(f"{name} {value}" for name, value in given.items())
        why = (error.strerror if isinstance(error, OSError) else None) or reason(error)
        raise ConfigurationError(f"the TLS files cannot be used ({named}): {why}") from error


def _no_password() -> str:
    raise ValueError("the key is encrypted; store it without a password")


def parse_status(payload: bytes) -> Status | None:
    """Parse a status payload; None when it is not one: anything may be published on these topics."""
    status = _parse(payload)
    return status if status is not None and isinstance(status.get("name"), str) else None


def _parse(payload: bytes) -> dict[str, Any] | None:
    try:
        members = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    return members if isinstance(members, dict) else None


def snapshot(address: BrokerAddress, seconds: float | None = None, topic_filter: str = TOPIC_FILTER) -> Overview:
    """Return the status of every route, and the failed reload, that the broker has retained; blocks.

    Args:
        address: The broker.
        seconds: How long to listen; None: until what is retained has come.
        topic_filter: The topics of the statuses; with a `+` for the slot, each status has the member `slot`.

    Raises:
        BrokerUnavailableError: It cannot be reached, refuses us, or closes the connection.
    """
    return asyncio.run(_snapshot(address, topic_filter, seconds))


def follow(
    address: BrokerAddress,
    seconds: float | None,
    show: Callable[[Overview], None],
    topic_filter: str = TOPIC_FILTER,
) -> None:
    """Call `show` with the status of all routes at each change and every second; blocks.

    Args:
        address: The broker.
        seconds: When to end; None: when interrupted.
        show: Called on the event loop's thread.
        topic_filter: As in `snapshot`.

    Raises:
        BrokerUnavailableError: As `snapshot`.
        KeyboardInterrupt: Ctrl-C.
    """
    asyncio.run(_follow(address, topic_filter, seconds, show))


class _Feed:
    """A connected client and the statuses it has received."""

    def __init__(self, client: MQTTClient, address: BrokerAddress) -> None:
        self._client = client
        self._address = address
        self._statuses: dict[str, Status] = {}
        self._heard: dict[str, float] = {}  # when a status came that was not retained, by topic (Unix time)
        self._gone: dict[int, float | None] = {}  # slots whose record says so; since when, if that was seen
        self._reload_failure: dict[str, Any] | None = None

    @property
    def overview(self) -> Overview:
        now = time.time()
        return Overview([self._judged(topic, now) for topic in self._statuses], self._reload_failure)

    def _judged(self, topic: str, now: float) -> Status:
        """Return a status; one of a worker that is away with health `away`, and since when."""
        status = self._statuses[topic]
        slot = status.get("slot")
        if slot is None:
            return status
        last = max(self._heard.get(topic, 0.0), _timestamp(status.get("timestamp")) or 0.0)
        interval = status.get("status_seconds")
        seconds = interval if isinstance(interval, int | float) and interval > 0 else _USUAL_SECONDS
        silent = now - last > _AWAY_AFTER * seconds
        if slot not in self._gone and not silent:
            return status
        return status | {"health": AWAY, "away_since": rfc3339(self._gone.get(slot) or last)}

    async def receive_retained(self) -> None:
        """Receive until nothing retained has come for a while, however many messages are published meanwhile."""
        quiet = time.monotonic() + _QUIET_SECONDS
        while (left := quiet - time.monotonic()) > 0 and (message := await self._next(left)):
            if message.retain:
                quiet = time.monotonic() + _QUIET_SECONDS

    async def receive(self, seconds: float) -> bool:
        """Wait for one message; False when none came in time."""
        return await self._next(seconds) is not None

    async def _next(self, seconds: float) -> ApplicationMessage | None:
        message = await receive(self._client, self._address, seconds)
        if message is not None:
            self._update(message.topic, bytes(message.data or b""), retained=bool(message.retain))
        return message

    def _update(self, topic: str, payload: bytes, *, retained: bool) -> None:
        if topic == RELOAD_TOPIC:
            self._reload_failure = _parse(payload)
            return
        found = _GROUP_TOPIC.match(topic)
        slot = None if found is None else int(found[1])
        if slot is not None and topic.endswith("/online"):
            record = _parse(payload)
            if record is None or record.get("online"):
                self._gone.pop(slot, None)
            else:
                self._gone.setdefault(slot, None if retained else time.time())
            return
        status = parse_status(payload)
        if status is not None:
            self._statuses[topic] = status | ({} if slot is None else {"slot": slot})
            if not retained:
                self._heard[topic] = time.time()
        elif not payload:  # the route is gone
            self._statuses.pop(topic, None)


def _timestamp(text: Any) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError):
        return None


async def receive(client: MQTTClient, address: BrokerAddress, seconds: float) -> ApplicationMessage | None:
    """Wait for one message; None when none came in time. Raises `BrokerUnavailableError` when the connection ends."""
    session = client.session
    try:
        if session is None or not session.transitions.is_connected():
            raise BrokerUnavailableError(f"{address.shown} closed the connection")
        return await client.deliver_message(max(0.0, seconds))
    except TimeoutError:
        return None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # amqtt 0.12.1 cancels what waits for a message when the connection ends
        raise BrokerUnavailableError(f"{address.shown} closed the connection") from None


def _filters(topic_filter: str) -> list[str]:
    """Return what is subscribed: workers do not retain a reload that failed, but records of who is there."""
    if topic_filter == TOPIC_FILTER:
        return [topic_filter, RELOAD_TOPIC]
    group = topic_filter.split("/")[1]
    return [topic_filter, f"bridge/{group}/+/online"]


async def _snapshot(address: BrokerAddress, topic_filter: str, seconds: float | None) -> Overview:
    async with connected(address, _filters(topic_filter)) as client:
        feed = _Feed(client, address)
        if seconds is None:
            await feed.receive_retained()
        else:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                await feed.receive(end - time.monotonic())
        return feed.overview


async def _follow(
    address: BrokerAddress, topic_filter: str, seconds: float | None, show: Callable[[Overview], None]
) -> None:
    end = None if seconds is None else time.monotonic() + seconds
    async with connected(address, _filters(topic_filter)) as client:
        feed = _Feed(client, address)
        await feed.receive_retained()
        while True:
            show(feed.overview)
            left = _REFRESH_SECONDS if end is None else min(_REFRESH_SECONDS, end - time.monotonic())
            if left <= 0:
                return
            if await feed.receive(left):
                settled = time.monotonic() + _PAUSE_SECONDS
                while await feed.receive(settled - time.monotonic()):
                    pass


@contextlib.asynccontextmanager
async def connected(address: BrokerAddress, filters: Sequence[str], qos: int = 0) -> AsyncIterator[MQTTClient]:
    """Connect a client with subscriptions, and disconnect it at the end of the block.

    Raises:
        BrokerUnavailableError: The broker cannot be reached, or refuses us.
    """
    logging.getLogger("amqtt").setLevel(logging.CRITICAL + 1)  # what goes wrong becomes one BrokerUnavailableError
    files = address.tls
    own = {} if files.cert_file is None else {"certfile": files.cert_file, "keyfile": files.key_file}
    client = MQTTClient(config={"auto_reconnect": False, "plugins": {}, "connection": own})
    try:
        await _connect(client, address, [(topic_filter, qos) for topic_filter in filters])
        yield client
    finally:
        with contextlib.suppress(Exception):
            await client.disconnect()
        with contextlib.suppress(Exception):
            await amqtt_broker.close_connection(client)


async def _connect(client: MQTTClient, address: BrokerAddress, filters: list[tuple[str, int]]) -> None:
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await client.connect(address.url, cafile=address.tls.ca_file)
            granted = await client.subscribe(filters) if filters else []
            # amqtt answers a second subscription after what was retained for the first one has been sent.
            await client.subscribe([(_NOTHING, 0)])
    except (ClientError, AMQTTError, MQTTError, NoDataError, OSError, TimeoutError) as error:
        _raise_if_interrupted()
        raise BrokerUnavailableError(f"cannot connect to {address.shown}: {_why(error)}") from error
    if _REFUSED in granted[:1]:  # without the others there is less to show
        raise BrokerUnavailableError(f"{address.shown} does not allow a subscription to {filters[0][0]}")


def _raise_if_interrupted() -> None:
    """Undo what amqtt 0.12.1 makes of Ctrl-C while it connects: an error like any other."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _why(error: BaseException) -> str:
    if isinstance(error, ConnectError) and error.return_code is not None:
        return _REASONS.get(error.return_code, f"it answers with code {error.return_code}")
    cause = error.__cause__ if isinstance(error, ConnectError) and error.__cause__ is not None else error
    match cause:
        case TimeoutError() | asyncio.CancelledError():  # the latter is our time limit, as amqtt passes it on
            return f"no answer within {CONNECT_SECONDS:.0f} s; is it an MQTT port, and mqtt or mqtts as it should be?"
        case ssl.SSLCertVerificationError():
            return f"its certificate is refused: {cause.verify_message}; --ca-file names the authorities to trust"
        case ssl.SSLError() | socket.gaierror():
            return str(cause.strerror or cause)
        case ConnectionRefusedError():
            return "connection refused; is the broker running?"
        case ConnectionError():
            return "it closed the connection; is it an MQTT broker?"
        case _:
            return reason(cause)


def collect(address: BrokerAddress, topic_filter: str, seconds: float) -> list[bytes]:
    """Return the payloads that come on a topic filter within `seconds`, retained ones too; blocks.

    Raises:
        BrokerUnavailableError: The broker cannot be reached, refuses us, or closes the connection.
    """
    return asyncio.run(_collect(address, topic_filter, seconds))


def publish(address: BrokerAddress, publications: Sequence[Publication], seconds: float) -> None:
    """Publish with QoS 1, `seconds` apart, each once the broker has acknowledged the one before; blocks.

    Raises:
        BrokerUnavailableError: As `collect`; the message says how many were published.
    """
    asyncio.run(_publish(address, publications, seconds))


async def _collect(address: BrokerAddress, topic_filter: str, seconds: float) -> list[bytes]:
    payloads: list[bytes] = []
    async with connected(address, [topic_filter], qos=1) as client:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            message = await receive(client, address, left)
            # amqtt 0.12 sends a client that connects retained messages of other clients' subscriptions too
            if message is not None and filter_matches(topic_filter, message.topic):
                payloads.append(bytes(message.data or b""))
    return payloads


async def _publish(address: BrokerAddress, publications: Sequence[Publication], seconds: float) -> None:
    done = 0
    async with connected(address, []) as client:
        try:
            for publication in publications:
                started = time.monotonic()
                async with asyncio.timeout(_ACKNOWLEDGED_SECONDS):
                    await client.publish(publication.topic, publication.payload, qos=1)
                done += 1
                await asyncio.sleep(max(0.0, started + seconds - time.monotonic()))
        except (OSError, TimeoutError) as error:
            raise BrokerUnavailableError(
                f"{address.shown} did not acknowledge a message; {done} of {len(publications)} were published"
            ) from error

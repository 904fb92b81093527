"""The MQTT client of `rest-bridge status` and `replay`. Main thread, its own event loop."""

import asyncio
import contextlib
import json
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from amqtt.client import MQTTClient
from amqtt.errors import AMQTTError, ClientError, ConnectError, MQTTError, NoDataError
from amqtt.session import ApplicationMessage

from amqtt_rest_bridge.broker import amqtt_broker
from amqtt_rest_bridge.errors import BridgeError, ConfigurationError, reason
from amqtt_rest_bridge.routing.status import reload_topic, status_topic

CONNECT_SECONDS: Final = 10.0
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
    5: "not authorized: check user name and password: mqtt://USER:PASSWORD@HOST",
}

Status = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Overview:
    """What a broker reports: the status of each route, and its last reload if that failed (time, errors, message)."""

    statuses: list[Status]
    reload_failure: dict[str, Any] | None = None


class BrokerUnavailableError(BridgeError):
    """The broker cannot be asked; the message says why and holds no credentials."""


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Where a broker is; `url` may hold credentials, `shown` does not."""

    url: str = field(repr=False)
    shown: str


def parse_address(url: str) -> BrokerAddress:
    """Parse a broker's URL.

    Raises:
        ConfigurationError: It is not one; the message does not repeat it, since it may hold a password.
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
    return BrokerAddress(url, f"{parts.scheme}://{host}:{port if port is not None else _PORTS[parts.scheme]}")


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
        self._reload_failure: dict[str, Any] | None = None

    @property
    def overview(self) -> Overview:
        return Overview(list(self._statuses.values()), self._reload_failure)

    async def receive(self, seconds: float) -> bool:
        """Wait for one message; False when none came in time."""
        message = await receive(self._client, self._address, seconds)
        if message is not None:
            self._update(message.topic, bytes(message.data or b""))
        return message is not None

    def _update(self, topic: str, payload: bytes) -> None:
        if topic == RELOAD_TOPIC:
            self._reload_failure = _parse(payload)
            return
        status = parse_status(payload)
        if status is not None:
            slot = topic.split("/")[2]
            self._statuses[topic] = status | ({"slot": int(slot)} if slot.isdigit() else {})
        elif not payload:  # the route is gone
            self._statuses.pop(topic, None)


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
    """Return what is subscribed: workers do not retain a reload that failed."""
    return [topic_filter, RELOAD_TOPIC] if topic_filter == TOPIC_FILTER else [topic_filter]


async def _snapshot(address: BrokerAddress, topic_filter: str, seconds: float | None) -> Overview:
    async with connected(address, _filters(topic_filter)) as client:
        feed = _Feed(client, address)
        if seconds is None:
            while await feed.receive(_QUIET_SECONDS):
                pass
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
        while await feed.receive(_QUIET_SECONDS):
            pass
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
    client = MQTTClient(config={"auto_reconnect": False, "plugins": {}})
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
            await client.connect(address.url)
            granted = await client.subscribe(filters) if filters else []
            # amqtt answers a second subscription after what was retained for the first one has been sent.
            await client.subscribe([(_NOTHING, 0)])
    except (ClientError, AMQTTError, MQTTError, NoDataError, OSError, TimeoutError) as error:
        _raise_if_interrupted()
        raise BrokerUnavailableError(f"cannot connect to {address.shown}: {_why(error)}") from error
    if _REFUSED in granted:
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
        case ssl.SSLError() | socket.gaierror():
            return str(cause.strerror or cause)
        case ConnectionRefusedError():
            return "connection refused; is the broker running?"
        case ConnectionError():
            return "it closed the connection; is it an MQTT broker?"
        case _:
            return reason(cause)

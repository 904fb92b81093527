"""The MQTT client of the commands `status` and `replay`, for any broker. Main thread.

It speaks MQTT 3.1.1, which every broker understands. `publish` speaks MQTT 5 if the broker does.
"""

import asyncio
import contextlib
import os
import socket
import ssl
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final

import typer

from amqtt_rest_bridge.cli import CommandError, certificate_refused
from amqtt_rest_bridge.engine.status_reporter import status_topic
from amqtt_rest_bridge.errors import ConfigurationError, reason
from amqtt_rest_bridge.lot.model import Pairs, Publication
from amqtt_rest_bridge.mqtt import connection as mqtt
from amqtt_rest_bridge.mqtt.connection import MqttConnection
from amqtt_rest_bridge.mqtt.packets import Publish
from amqtt_rest_bridge.mqtt.private import TIME, replaying_client_id
from amqtt_rest_bridge.mqtt.standard import MQTT_3_1_1, MQTT_5, Code, Properties, Property
from amqtt_rest_bridge.mqtt.values import (
    PORTS,
    Address,
    BrokerError,
    ClientSession,
    NoAnswerError,
    Subscription,
    load_tls,
    parse_url,
)
from amqtt_rest_bridge.settings import PASSWORD_VARIABLE
from amqtt_rest_bridge.topics import filter_matches

_ACKNOWLEDGED_SECONDS: Final = 10.0
_EMPTY_TOPIC: Final = status_topic("+").removesuffix("/+/status")  # nothing is published on it
_MOST_UNREAD: Final = 1000  # messages in the queue, at which the connection pauses
_BAD_LOGIN: Final = "wrong user name or password"
_NOT_AUTHORIZED: Final = f"not authorized: check user name (mqtt://USER@HOST) and password ({PASSWORD_VARIABLE})"
_CLOSED: Final = "it closed the connection; is it an MQTT broker?"
_REASONS: Final[dict[int, str]] = {  # MQTT 3.1.1 section 3.2.2.3, MQTT 5 section 3.2.2.2
    1: "it does not speak MQTT 3.1.1",
    2: "it does not accept the client id",
    3: "it is not available",
    4: _BAD_LOGIN,
    5: _NOT_AUTHORIZED,
    Code.BAD_USER_NAME_OR_PASSWORD: _BAD_LOGIN,
    Code.NOT_AUTHORIZED: _NOT_AUTHORIZED,
}


DEFAULT_BROKER: Final = "mqtt://127.0.0.1:1883"
BROKER_HELP: Final = f"""\
Name the user in the URL, and put the password into the environment variable {PASSWORD_VARIABLE}: URLs
are visible to other users of the machine. With mqtts:// and wss:// the broker's certificate is verified against the
system's authorities, or those of --ca-file.
"""

Broker = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="mqtt://, mqtts://, ws:// or wss://[USER[:PASSWORD]@]HOST[:PORT]; "
        "%XX in user name and password is decoded",
    ),
]


class BrokerUnavailableError(CommandError):
    """The broker cannot be asked; the message says why and holds no credentials."""


def broker_address(
    url: str, ca_file: str | None = None, cert_file: str | None = None, key_file: str | None = None
) -> Address:
    """Return the address of a broker's URL, with what is needed to connect; reads the PEM files and the password.

    A password in the URL wins over that of the environment, which belongs to the user in the URL.

    Raises:
        ConfigurationError: It is not an address, or a file cannot be used; the message does not repeat the URL, since
            it may hold a password.
    """
    parsed = parse_url(url)
    if parsed is None:
        raise ConfigurationError(
            f"--broker is not the address of a broker; write mqtt://[USER:PASSWORD@]HOST[:PORT], "
            f"or {', '.join(PORTS)[6:]}"
        )
    password = os.environ.get(PASSWORD_VARIABLE) if parsed.password is None else parsed.password
    files = {"--ca-file": ca_file, "--cert-file": cert_file, "--key-file": key_file}
    tls = load_tls(parsed.is_secure, files, "--broker mqtts://... or wss://...")
    return replace(parsed, password=None if parsed.username is None else password, tls=tls)


async def collect(address: Address, topic_filter: str, seconds: float) -> list[bytes]:
    """Return the payloads that come on a topic filter within `seconds`, retained ones too.

    Raises:
        BrokerUnavailableError: The broker cannot be reached, refuses us, or closes the connection.
    """
    payloads: list[bytes] = []
    async with connected(address, [topic_filter], qos=1) as subscriber:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            message = await subscriber.receive(left)
            # amqtt 0.12 also sends a new client the retained messages of other clients' subscriptions.
            if message is not None and filter_matches(topic_filter, message.topic):
                payloads.append(message.payload)
    return payloads


async def publish(address: Address, publications: Sequence[Publication], seconds: float) -> None:
    """Publish with QoS 1, `seconds` apart, each message after the broker has acknowledged the one before.

    The time of an original message (`private.TIME`) is sent too. A broker that speaks MQTT 5 gets it as a user
    property. Any other one gets it in the client id, so each message has a connection of its own.

    Raises:
        BrokerUnavailableError: As `collect`; the message says how many were published.
    """
    published = 0
    if await _is_mqtt_5(address):
        level, by_connection = MQTT_5, [publications]
    else:
        level, by_connection = MQTT_3_1_1, [[one] for one in publications]
    for of_connection in by_connection:
        client_id = None if level == MQTT_5 else _client_id_with_time(of_connection[0])
        async with connected(address, [], level=level, client_id=client_id) as subscriber:
            for publication in of_connection:
                started = time.monotonic()
                if not await subscriber.publish(publication):
                    were = f"{published} of {len(publications)} were published"
                    raise BrokerUnavailableError(f"{address.shown} did not acknowledge a message; {were}")
                published += 1
                await asyncio.sleep(max(0.0, started + seconds - time.monotonic()))


async def _is_mqtt_5(address: Address) -> bool:
    """Return whether a broker speaks MQTT 5; False too if it cannot be reached."""
    # A broker with the status of a route is amqtt. It is not asked: it logs a warning for each client of MQTT 5.
    with contextlib.suppress(BrokerUnavailableError):  # it may not allow the subscription
        async with connected(address, [status_topic("+")]) as subscriber:
            if await subscriber.receive(0) is not None:
                return False
    # Credentials and properties are left out: amqtt 0.12 takes a CONNECT of MQTT 5 that has any for the beginning of a
    # longer packet, and does not answer. A broker that refuses the client for it answers in its version of MQTT.
    session = ClientSession(f"rest-bridge-{uuid.uuid4().hex[:8]}", expiry=0, receive_maximum=65_535)
    connection = MqttConnection(replace(address, username=None, password=None), session, lambda *_: None)
    try:
        await connection.open()
    except BrokerError as error:
        return error.code not in (None, Code.UNSUPPORTED_PROTOCOL_VERSION)
    await connection.disconnect()
    return True


def _client_id_with_time(publication: Publication) -> str | None:
    """Return a client id that carries the time of the original message, None if the time is unknown."""
    time_sent = next((float(value) for name, value in _user_properties(publication) if name == TIME), None)
    return None if time_sent is None else replaying_client_id(time_sent)


def _user_properties(publication: Publication) -> Pairs:
    return () if publication.properties is None else publication.properties.user


@contextlib.asynccontextmanager
async def connected(
    address: Address, filters: Sequence[str], qos: int = 0, *, level: int = MQTT_3_1_1, client_id: str | None = None
) -> "AsyncIterator[Subscriber]":
    """Connect a client with subscriptions, and disconnect it at the end of the block.

    Raises:
        BrokerUnavailableError: The broker cannot be reached, or refuses us.
    """
    subscriber = Subscriber(address, level, client_id)
    try:
        try:
            await subscriber.open(filters, qos)
        except BrokerError as error:
            if subscriber.connection.is_open and error.code is not None:
                says = f"{address.shown} does not allow a subscription to {filters[0]}"
                raise BrokerUnavailableError(says) from error
            raise BrokerUnavailableError(f"cannot connect to {address.shown}: {_explain(error)}") from error
        yield subscriber
    finally:
        await subscriber.connection.disconnect()


def _explain(error: BrokerError) -> str:
    """Return why a broker cannot be connected to: what its answer means, or why there was no answer."""
    if error.code is not None:
        return _REASONS.get(error.code, f"it answers with code {error.code}")
    match error.__cause__:
        case TimeoutError():
            seconds = f"{mqtt.CONNECT_SECONDS:.0f} s"
            return f"no answer within {seconds}; is it an MQTT port, and mqtt or mqtts as it should be?"
        case ssl.SSLCertVerificationError() as cause:
            return "; ".join(certificate_refused(cause))
        case ssl.SSLError() | socket.gaierror() as cause:
            return str(cause.strerror or cause)
        case ConnectionRefusedError():
            return "connection refused; is the broker running?"
        case ConnectionError():
            return _CLOSED
        case None if isinstance(error, NoAnswerError):
            return _CLOSED
        case cause:
            return reason(cause or error)


class Subscriber:
    """A connection with subscriptions, and the messages that have come and are not read yet."""

    def __init__(self, address: Address, level: int = MQTT_3_1_1, client_id: str | None = None) -> None:
        session = ClientSession(client_id or f"rest-bridge-{uuid.uuid4().hex[:8]}", 0, _MOST_UNREAD, level=level)
        self.connection = MqttConnection(address, session, self._queue_message)
        self.shown = address.shown
        self._messages: asyncio.Queue[Publish | None] = asyncio.Queue()  # None: the connection has ended
        self._ending: asyncio.Task[str] | None = None

    async def open(self, filters: Sequence[str], qos: int) -> None:
        """Connect and subscribe; raises `BrokerError` when the broker refuses the first filter."""
        await self.connection.open()
        self._ending = asyncio.ensure_future(self.connection.ended())
        self._ending.add_done_callback(lambda _: self._messages.put_nowait(None))
        for topic_filter in filters[:1]:
            await self.connection.subscribe([Subscription(topic_filter, qos=qos)])
        # amqtt acknowledges a subscription once it has sent the retained messages of the one before. So one more
        # subscription, of an empty topic, is made: once it is acknowledged, all retained messages are here.
        for topic_filter in (*filters[1:], _EMPTY_TOPIC):
            with contextlib.suppress(BrokerError):  # refused: there is less to show
                await self.connection.subscribe([Subscription(topic_filter, qos=0)])

    async def receive(self, seconds: float) -> Publish | None:
        """Wait for one message; None when none came in time.

        Raises:
            BrokerUnavailableError: The connection has ended.
        """
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                message = await self._messages.get()
        except TimeoutError:
            return None
        if message is None:
            self._messages.put_nowait(None)
            raise BrokerUnavailableError(f"{self.shown} closed the connection")
        if self._messages.qsize() < _MOST_UNREAD:
            self.connection.resume()
        return message

    async def publish(self, publication: Publication) -> bool:
        """Publish with QoS 1; return False when the broker has not acknowledged it in time."""
        done: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        properties: Properties = {Property.USER_PROPERTY: _user_properties(publication)}
        self.connection.publish(publication.topic, publication.payload, done.set_result, properties=properties)
        waiting: list[asyncio.Future[Any]] = [done] if self._ending is None else [done, self._ending]
        await asyncio.wait(waiting, timeout=_ACKNOWLEDGED_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        return done.done()

    def _queue_message(self, connection: MqttConnection, message: Publish) -> None:
        """Queue a message that has come; the connection pauses when too many are not read."""
        if message.packet_id is not None:
            connection.acknowledge(message.packet_id)
        self._messages.put_nowait(message)
        if self._messages.qsize() >= _MOST_UNREAD:
            connection.pause()

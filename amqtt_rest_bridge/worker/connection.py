"""One MQTT 5 connection, and the paho-mqtt client under it. The event loop only; a thread opens the socket.

A `MqttConnection` is used once: it is opened, it ends, and the next one is another object with a client of its own. So
whatever belongs to a connection (packet ids, acknowledgements, what was sent) ends with it, and an acknowledgement of
an old connection cannot hit a message of a new one.

What paho-mqtt (2.1, 2.2) leaves to its user, and is done here: reading and writing on the loop, keep-alive,
TCP_NODELAY; the broker's Receive Maximum, which `receive_maximum` returns; PUBACK (`manual_ack`); messages that come in
one segment with CONNACK, for which the handler is in place before CONNECT is sent; TLS records that are not read
although the socket is empty.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from amqtt_rest_bridge.errors import reason
from amqtt_rest_bridge.worker.values import Address, BrokerError, Received, Session, Subscription, UnusableBrokerError

CONNECT_SECONDS: Final = 10.0  # from the first packet to CONNACK, and for SUBACK
KEEP_ALIVE_SECONDS: Final = 15  # a broker publishes the will of a client that was silent for half as long again
_LARGEST_PACKET: Final = 268_435_455  # MQTT 5 section 2.1.4
_RECEIVE_MAXIMUM: Final = 65_535  # MQTT 5 section 3.2.2.3.3: the default
_MQTT_5: Final = "it lacks MQTT 5, which a worker needs; amqtt speaks MQTT 3.1.1: load the routes there with the plugin"
_FAILURE: Final = 0x80  # reason codes from here on are failures
_UNSUPPORTED_VERSION: Final = (0x84, 0x01)  # the second is MQTT 3.1.1's, from a broker that knows no other
_MOST_PACKETS: Final = 32  # read in one iteration of the loop
_TICK_SECONDS: Final = 1.0

Published = Callable[[str | None], None]
"""Called with None once the broker has acknowledged a publication, or with why it refuses it."""

OnMessage = Callable[["MqttConnection", Received], None]


class LoopClient(paho.Client):
    """An MQTT 5 client that acknowledges nothing by itself, and may leave what comes unread.

    Args:
        client_id: Its client id.
        loop: The loop.
        ping_seconds: How often PINGREQ is sent while nothing is read.
    """

    def __init__(self, client_id: str, loop: asyncio.AbstractEventLoop, ping_seconds: int) -> None:
        super().__init__(
            CallbackAPIVersion.VERSION2, client_id, protocol=paho.MQTTv5, reconnect_on_failure=False, manual_ack=True
        )
        self._asyncio = loop
        self._ping_seconds = ping_seconds
        self._open: socket.socket | None = None
        self._paused = self._reading = self._writing = self._write_due = False
        self._ticks = 0
        self.on_socket_register_write = self._want_write
        self.on_socket_close = self._detach

    def attach(self) -> bool:
        """Read and write on the loop from now on; return False when the socket is closed already."""
        sock: Any = self.socket()
        if sock is None:
            return False
        self._open = sock
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._watch_reading()
        self._write()
        self._asyncio.call_later(_TICK_SECONDS, self._tick)
        return True

    def pause(self) -> None:
        """Leave what comes unread."""
        self._paused = True
        self._watch_reading()

    def resume(self) -> None:
        """Read again."""
        if self._paused:
            self._paused = False
            self._ping_t = 0.0  # the answer to a ping may be behind much that was not read
            self._watch_reading()
            self._asyncio.call_soon(self._read_rest)

    def close(self) -> None:
        """Close the socket, without a word to the broker."""
        sock = self._open
        self._detach()
        if sock is not None:
            sock.close()

    def _detach(self, *_: Any) -> None:
        """Forget the socket, which is about to be closed."""
        sock, self._open = self._open, None
        if sock is not None and self._reading:
            self._asyncio.remove_reader(sock)
        if sock is not None and self._writing:
            self._asyncio.remove_writer(sock)
        self._reading = self._writing = False

    def _watch_reading(self) -> None:
        sock = self._open
        wanted = not self._paused and sock is not None
        if sock is not None and wanted and not self._reading:
            self._asyncio.add_reader(sock, self._read)
        elif sock is not None and self._reading and not wanted:
            self._asyncio.remove_reader(sock)
        self._reading = wanted

    def _read(self) -> None:
        for _ in range(_MOST_PACKETS):
            self.loop_read()
            if self._paused or self._open is None or not _has_more(self._open):
                return
        self._asyncio.call_soon(self._read_rest)

    def _read_rest(self) -> None:
        """Read what no selector reports: bytes that TLS has decrypted, and the end of what uvloop polls no more."""
        if self._reading and self._open is not None and _has_more(self._open):
            self._read()

    def _want_write(self, *_: Any) -> None:
        if not self._write_due and self._open is not None:  # on the thread that connects there is none yet
            self._write_due = True
            self._asyncio.call_soon(self._write)

    def _write(self) -> None:
        self._write_due = False
        if self._open is None:
            return
        self.loop_write()
        sock = self._open
        wanted = sock is not None and self.want_write()
        if sock is not None and wanted != self._writing:
            self._writing = wanted
            if wanted:
                self._asyncio.add_writer(sock, self._write)
            else:
                self._asyncio.remove_writer(sock)

    def _tick(self) -> None:
        """Send PINGREQ when it is due, and end a connection whose broker does not answer it."""
        if self._open is None:
            return
        if not self._paused:
            self.loop_misc()
        elif self._ticks % self._ping_seconds == 0:
            self._send_pingreq()  # whose answer is not awaited, as `loop_misc` would
        self._ticks += 1
        self._asyncio.call_later(_TICK_SECONDS, self._tick)


def _has_more(sock: socket.socket) -> bool:
    """Return whether a read would get something, or the end of the connection.

    uvloop (0.23) stops to poll a socket with an error, as of a broker that was killed, after it has reported it once.
    """
    if isinstance(sock, ssl.SSLSocket) and sock.pending():
        return True
    try:
        socket.socket.recv(sock, 1, socket.MSG_PEEK)  # of an SSLSocket too: what has not been decrypted
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


class MqttConnection:
    """A connection, from its CONNECT to its end.

    Args:
        address: The broker.
        session: Which client connects.
        on_message: Called with each message; those of QoS 1 wait for `acknowledge`.
    """

    def __init__(self, address: Address, session: Session, on_message: OnMessage) -> None:
        self.session_present = False
        """Whether the broker had kept the session."""
        self.receive_maximum = _RECEIVE_MAXIMUM
        """How many publications the broker takes before it has acknowledged one."""
        self.session_expiry = session.expiry
        """Seconds for which the broker keeps the session: as asked for, or less."""
        self.maximum_packet_size = _LARGEST_PACKET
        """Bytes of the largest packet that the broker takes; it ends the connection at a larger one."""
        self._address = address
        self._session = session
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._connected: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[str] = self._loop.create_future()
        self._published: dict[int, Published] = {}
        self._answers: dict[int, asyncio.Future[Sequence[ReasonCode]]] = {}
        self._client = self._make_client()

    @property
    def is_open(self) -> bool:
        """Return whether packets can be sent."""
        return self._connected.done() and not self._ended.done()

    async def open(self) -> None:
        """Connect, and wait for CONNACK.

        Raises:
            BrokerError: The broker cannot be reached or refuses the client.
            UnusableBrokerError: It lacks MQTT 5, shared subscriptions or subscription identifiers.
        """
        opening = self._loop.run_in_executor(None, self._connect)
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:  # the thread goes on
            opening.add_done_callback(self._opened_too_late)
            raise
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else reason(error)
            raise BrokerError(f"cannot reach the broker {self._address.shown}: {why}") from error
        if not self._client.attach():
            raise BrokerError(f"the broker {self._address.shown} closed the connection")
        try:
            await asyncio.wait_for(self._connected, CONNECT_SECONDS)
        except TimeoutError as error:
            self.abort()
            says = f"the broker {self._address.shown} does not answer CONNECT"
            raise BrokerError(f"{says}: {_MQTT_5}") from error

    async def ended(self) -> str:
        """Wait for the end of the connection, and return why it ended."""
        return await asyncio.shield(self._ended)

    async def subscribe(self, subscriptions: Iterable[Subscription]) -> None:
        """Subscribe, and wait for the broker's answer; raises `BrokerError` when it refuses a filter."""
        for wanted in subscriptions:  # one packet each: an identifier belongs to a packet
            properties = _properties(PacketTypes.SUBSCRIBE)
            properties.SubscriptionIdentifier = wanted.identifier
            options = SubscribeOptions(qos=1, retainHandling=0 if wanted.retained else 2)
            codes = await self._asked(self._client.subscribe([(wanted.topic_filter, options)], properties=properties))
            for code in codes:
                if code.value >= _FAILURE:
                    raise BrokerError(f"the broker refuses to subscribe {wanted.topic_filter}: {code.getName()}")

    async def unsubscribe(self, topic_filters: Iterable[str]) -> None:
        """Unsubscribe, and wait for the broker's answer."""
        for topic_filter in topic_filters:
            await self._asked(self._client.unsubscribe(topic_filter))

    def publish(self, topic: str, payload: bytes, *, retain: bool, hops: tuple[str, str], published: Published) -> None:
        """Publish with QoS 1; the caller keeps to `receive_maximum`. `hops` is a user property."""
        properties = _properties(PacketTypes.PUBLISH)
        properties.UserProperty = hops
        info = self._client.publish(topic, payload, qos=1, retain=retain, properties=properties)
        self._published[info.mid] = published

    def acknowledge(self, packet_id: int) -> None:
        """Send PUBACK; nothing when the connection has ended, since the broker sends the message again."""
        if self.is_open:
            self._client.ack(packet_id, 1)

    def pause(self) -> None:
        """Leave what comes unread, so that the broker cannot send more; PUBACK is sent all the same."""
        self._client.pause()

    def resume(self) -> None:
        """Read again."""
        self._client.resume()

    async def disconnect(self) -> None:
        """Send DISCONNECT, so that no will is published, and wait for the end of the connection."""
        if self.is_open:
            self._client.disconnect()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._ended), 1.0)
        self.abort()

    def abort(self, why: str = "closed") -> None:
        """Close the socket; the broker publishes the will."""
        self._client.close()
        self._end(why)

    def _make_client(self) -> LoopClient:
        session = self._session
        client = LoopClient(session.client_id, self._loop, KEEP_ALIVE_SECONDS // 2)
        client.max_inflight_messages = 0  # ours to bound: paho looks through all it has sent at each PUBACK
        if self._address.username is not None:
            client.username_pw_set(self._address.username, self._address.password)
        if self._address.tls is not None:
            client.tls_set_context(self._address.tls)
        if session.will is not None:
            client.will_set(session.will.topic, session.will.payload, qos=1, retain=True)
        client.on_connect = self._on_connack
        client.on_message = self._on_publish_packet
        client.on_publish = self._on_puback
        client.on_subscribe = client.on_unsubscribe = self._on_answer
        client.on_disconnect = self._on_disconnect
        return client

    def _connect(self) -> None:
        properties = _properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = self._session.expiry
        properties.ReceiveMaximum = self._session.receive_maximum
        self._client.connect(
            self._address.host, self._address.port, KEEP_ALIVE_SECONDS,
            clean_start=self._session.expiry == 0, properties=properties,
        )  # fmt: skip

    # On the loop.

    def _opened_too_late(self, opening: asyncio.Future[None]) -> None:
        if opening.exception() is None:
            self._client.attach()
            self._client.close()

    def _on_connack(self, _client: Any, _data: Any, flags: Any, code: ReasonCode, properties: Any) -> None:
        if self._connected.done():
            return
        if code.value in _UNSUPPORTED_VERSION:
            self._refused(UnusableBrokerError(f"the broker {self._address.shown} does not support MQTT 5"))
        elif code.value:
            self._refused(BrokerError(f"the broker {self._address.shown} refuses the client: {code.getName()}"))
        elif (lacking := _lacking(properties)) is not None:
            self._refused(UnusableBrokerError(f"the broker {self._address.shown} does not support {lacking}"))
        else:
            self.session_present = flags.session_present
            self.receive_maximum = getattr(properties, "ReceiveMaximum", _RECEIVE_MAXIMUM)
            self.session_expiry = getattr(properties, "SessionExpiryInterval", self._session.expiry)
            self.maximum_packet_size = getattr(properties, "MaximumPacketSize", _LARGEST_PACKET)
            self._connected.set_result(None)

    def _refused(self, error: BrokerError) -> None:
        self._connected.set_exception(error)
        self._loop.call_soon(self.abort, str(error))

    def _on_publish_packet(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        properties = message.properties
        try:
            topic = message.topic
        except UnicodeDecodeError:  # which MQTT 5 section 1.5.4 forbids: nothing can listen to it
            self.acknowledge(message.mid)
            return
        known = vars(properties) if properties is not None else {}
        received = Received(
            topic,
            bytes(message.payload),
            message.mid if message.qos else None,
            message.dup,
            message.retain,
            tuple(known.get("SubscriptionIdentifier", ())),
            known.get("UserProperty", ()),
            known.get("CorrelationData"),
        )
        self._on_message(self, received)

    def _on_puback(self, _client: Any, _data: Any, packet_id: int, code: ReasonCode, _properties: Any) -> None:
        published = self._published.pop(packet_id, None)
        if published is not None:
            published(code.getName() if code.value >= _FAILURE else None)

    async def _asked(self, sent: tuple[Any, int | None]) -> Sequence[ReasonCode]:
        status, packet_id = sent
        if status or packet_id is None or self._ended.done():
            raise BrokerError("the connection to the broker was lost")
        answer = self._answers[packet_id] = self._loop.create_future()
        try:
            return await asyncio.wait_for(answer, CONNECT_SECONDS)
        except TimeoutError as error:
            raise BrokerError(f"the broker {self._address.shown} does not answer SUBSCRIBE") from error

    def _on_answer(self, _client: Any, _data: Any, packet_id: int, codes: Any, _properties: Any) -> None:
        answer = self._answers.pop(packet_id, None)
        if answer is not None and not answer.done():
            answer.set_result(codes)

    def _on_disconnect(self, _client: Any, _data: Any, flags: Any, code: ReasonCode, _properties: Any) -> None:
        why = code.getName() if flags.is_disconnect_packet_from_server else "the connection was lost"
        self._end(why)

    def _end(self, why: str) -> None:
        if self._ended.done():
            return
        self._ended.set_result(why)
        if not self._connected.done():
            says = f"the broker {self._address.shown} closed the connection without an answer to CONNECT"
            self._connected.set_exception(BrokerError(f"{says}: it expects TLS, or {_MQTT_5} ({why})"))
            self._connected.exception()  # nothing may be waiting for it any more
        self._published.clear()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(BrokerError("the connection to the broker was lost"))


def _properties(packet: int) -> Properties:
    return Properties(packet)  # type: ignore[no-untyped-call]


def _lacking(properties: Any) -> str | None:
    if not getattr(properties, "SharedSubscriptionAvailable", 1):
        return "shared subscriptions"
    if not getattr(properties, "SubscriptionIdentifierAvailable", 1):
        return "subscription identifiers"
    if getattr(properties, "MaximumQoS", 1) < 1:
        return "QoS 1"
    return None



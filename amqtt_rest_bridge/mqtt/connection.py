"""One connection to a broker, from CONNECT to its end: it receives messages and publishes. One event loop only.

`reconnecting` opens a `MqttConnection`, and another one when it has ended. So packet ids, acknowledgements and unsent
packets end with their connection, and an acknowledgement for an old connection cannot reach a message of a new one.
Messages go to `intake` or `event_intake`; publications come from `publisher`.

`packets` translates between bytes and packets; this module acts on the packets. Sections named here are those of
MQTT 5.0. Packets to send are gathered for one write, until an iteration of the loop adds none.

Memory is bounded: for messages by `pause` and Receive Maximum, for publications by `can_publish`, which is False while
too many are unacknowledged or the socket's buffer is full.
"""

import asyncio
import itertools
import logging
import socket
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, cast

from amqtt_rest_bridge.errors import on_one_line
from amqtt_rest_bridge.mqtt import packets, standard, values
from amqtt_rest_bridge.mqtt.packets import PacketError, Publish, protocol_error
from amqtt_rest_bridge.mqtt.standard import MQTT_5, REASONS, Code, Properties, Property
from amqtt_rest_bridge.mqtt.values import Address, BrokerError, ClientSession, NoAnswerError, Subscription
from amqtt_rest_bridge.topics import loggable

log = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 10.0  # for the socket, for CONNACK, and for SUBACK
KEEP_ALIVE_SECONDS: Final = 15  # a broker publishes the will of a client that was silent for 1.5 times as long
_SLOWEST: Final = 1024  # bytes a second: a large packet that comes slower does not count as a sign of life
_RECEIVE_MAXIMUM: Final = 65_535  # section 3.2.2.3.3: the default
_MOST_PUBLISHED: Final = 1024  # unacknowledged publications, even if the broker takes more
_QUICK_ACK: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)  # Linux has it
_PUBACK: Final = b"\x40\x02"
_MOST_TOGETHER: Final = 64  # SUBSCRIBE or UNSUBSCRIBE whose answers are awaited together
_MOST_GATHERED: Final = 16  # packets that wait for others to be written with
_MOST_PACKETS: Final = 64  # handled in one iteration of the loop, which has others to serve

Published = Callable[[str | None], None]
"""Called with None once the broker has acknowledged a publication, or with why it refuses it."""

OnMessage = Callable[["MqttConnection", Publish], None]


@dataclass(frozen=True, slots=True)
class Granted:
    """What a broker has granted a connection with CONNACK, section 3.2. The defaults are those of MQTT.

    Args:
        session_present: Whether it had kept the session.
        session_expiry: Seconds for which it keeps the session: as asked for, or less.
        receive_maximum: How many publications may be unacknowledged at a time.
        maximum_qos: The highest QoS of a publication.
        maximum_packet_size: Bytes of the largest packet that it takes; it ends the connection at a larger one.
        keep_alive: Seconds; after 1.5 times as long without a packet it publishes the will (section 3.1.2.10).
        properties: All of CONNACK.
    """

    session_present: bool = False
    session_expiry: int = 0
    receive_maximum: int = _RECEIVE_MAXIMUM
    maximum_qos: int = 2
    maximum_packet_size: int = standard.LARGEST_PACKET
    keep_alive: int = KEEP_ALIVE_SECONDS
    properties: Properties = field(default_factory=dict)


class KeepAlive(Enum):
    """What is to be done to keep a connection alive."""

    NOTHING = auto()
    """Packets have gone both ways."""
    PING = auto()
    """Send PINGREQ: one direction was silent."""
    END = auto()
    """End the connection: the last PINGREQ has no answer."""


class Liveness:
    """Whether the broker of a connection is alive, by the bytes and packets that have come.

    A broker is alive if a whole packet has come, or a part of one at 1 KiB a second: on a slow link PINGRESP may come
    minutes later, behind a large packet. Slower bytes do not count, since such a packet might never end.

    Args:
        decoder: Has the part of a packet that has come.
    """

    def __init__(self, decoder: packets.Decoder) -> None:
        self.bytes_received = 0
        """Since the beginning."""
        self.has_sent = self.has_received = False
        """Whether a packet has left, or a whole one has come, since the last `check`."""
        self.awaits_pong = False
        """Whether a PINGREQ has no answer."""
        self._decoder = decoder
        self._bytes_at_check = 0

    def is_large_packet_coming(self, before: int, seconds: float) -> bool:
        """Return whether a part of a packet has come, and bytes came fast enough in the last `seconds`.

        `before`: the value of `bytes_received` when these seconds began.
        """
        return self._decoder.is_within and self.bytes_received - before >= _SLOWEST * seconds

    def check(self, seconds: float, *, can_read: bool) -> KeepAlive:
        """Return what is to be done, after `seconds` since the last check.

        Without `can_read` answers are not read, so a missing one does not end the connection.
        """
        is_alive = self.has_received or self.is_large_packet_coming(self._bytes_at_check, seconds)
        if is_alive or not can_read:
            self.awaits_pong = False
        if self.awaits_pong:
            return KeepAlive.END
        must_ping = not (self.has_sent and is_alive)
        self.awaits_pong = must_ping and can_read
        self.has_sent = self.has_received = False
        self._bytes_at_check = self.bytes_received
        return KeepAlive.PING if must_ping else KeepAlive.NOTHING


class MqttConnection(asyncio.Protocol):
    """A connection, from its CONNECT to its end.

    Args:
        address: The broker.
        session: Which client connects.
        on_message: Called with each message; those of QoS 1 and 2 wait for `acknowledge`.
        on_writable: Called when `can_publish` may be true again although nothing was acknowledged.
    """

    def __init__(
        self,
        address: Address,
        session: ClientSession,
        on_message: OnMessage,
        on_writable: Callable[[], None] = lambda: None,
    ) -> None:
        self.granted = Granted()
        """What the broker has granted, once `open` has returned."""
        self.has_refused_packet = False
        """Whether the broker has ended the connection because it refuses a packet. It does not say which packet."""
        self._address = address
        self._session = session
        self._on_message = on_message
        self._on_writable = on_writable
        self._decoder = packets.Decoder(session.level, any_topic=address.is_private)
        self._is_5 = session.level == MQTT_5
        self._loop = asyncio.get_running_loop()
        self._connected: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[str] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._paused = False  # `pause` was called
        self._processing_is_due = False  # `_process_packets` runs in the next iteration
        self._is_full = False  # the socket's buffer
        self._is_leaving = False  # DISCONNECT was sent
        self._unsent: list[bytes] = []
        self._last_id = 0
        self._most_published = _MOST_PUBLISHED
        # Publications that are not acknowledged, by packet id, with the kind of the next answer.
        self._in_flight: dict[int, tuple[int, Published]] = {}
        self._awaited_answers: dict[int, tuple[int, asyncio.Future[bytes]]] = {}
        self._unacknowledged: dict[int, int] = {}  # QoS of the messages that came, by packet id; 0 once PUBREC was sent
        self._liveness = Liveness(self._decoder)
        self._liveness_timer: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """Return whether packets can be sent."""
        return self._connected.done() and not self._ended.done() and not self._is_leaving

    @property
    def silence_seconds(self) -> float:
        """Return the least seconds without a packet after which the broker publishes the will (section 3.1.2.10)."""
        return 1.5 * self.granted.keep_alive

    @property
    def can_publish(self) -> bool:
        """Return whether one more publication is allowed.

        None is allowed while the socket's buffer is full, or while as many publications are unacknowledged as the
        broker's Receive Maximum, or 1,024.
        """
        return not self._is_full and len(self._in_flight) < self._most_published

    async def open(self) -> None:
        """Connect, and wait for CONNACK.

        Raises:
            BrokerError: The broker cannot be reached or refuses the client.
            NoAnswerError: It can be reached, but does not answer as a broker of this version.
        """
        address, session, shown = self._address, self._session, self._address.shown
        properties: dict[Property, Any] = {}
        if session.receive_maximum != _RECEIVE_MAXIMUM:
            properties[Property.RECEIVE_MAXIMUM] = session.receive_maximum
        if session.expiry:
            properties[Property.SESSION_EXPIRY_INTERVAL] = session.expiry
        try:
            connect = packets.connect(
                session.client_id, keep_alive=KEEP_ALIVE_SECONDS, clean=not session.expiry, username=address.username,
                password=address.password, will=session.will, properties=properties if self._is_5 else None,
            )  # fmt: skip
        except ValueError:  # its text may contain the password
            why = "a user name, password or client id is not UTF-8, or longer than MQTT can write"
            raise BrokerError(f"cannot connect to the broker {shown}: {why}") from None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._connect_socket()
        except TimeoutError as error:
            raise BrokerError(f"cannot reach the broker {shown}: no answer within {CONNECT_SECONDS:.0f} s") from error
        except (OSError, ValueError) as error:
            raise BrokerError(f"cannot reach the broker {shown}: {values.why_not_connected(error)}") from error
        self._write(connect)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._connected
        except TimeoutError as error:
            self.abort()
            raise NoAnswerError(f"the broker {shown} does not answer CONNECT") from error
        except BaseException:
            self.abort()
            raise
        self._liveness_timer = self._loop.call_later(self.granted.keep_alive / 2, self._check_liveness)

    async def ended(self) -> str:
        """Wait for the end of the connection, and return why it ended."""
        return await asyncio.shield(self._ended)

    async def subscribe(self, subscriptions: Iterable[Subscription]) -> None:
        """Subscribe, and wait for the broker's answers. Up to 64 packets are sent together.

        Raises:
            BrokerError: It refuses a filter, or with MQTT 5 grants less than QoS 1 to one that needs it.
        """
        await _run_together(self._subscribe(wanted) for wanted in subscriptions)

    async def unsubscribe(self, subscriptions: Iterable[Subscription]) -> None:
        """Unsubscribe, and wait for the broker's answers. Up to 64 packets are sent together."""

        async def unsubscribe(unwanted: Subscription) -> None:
            packet_id = self._free_id()
            packet = packets.unsubscribe(packet_id, unwanted.topic_filter, self._properties_of(unwanted))
            await self._ask(packet_id, standard.UNSUBACK, packet)

        await _run_together(unsubscribe(unwanted) for unwanted in subscriptions)

    def publish(
        self, topic: str, payload: bytes, published: Published, *, qos: int = 1, retain: bool = False,
        properties: Properties | bytes = standard.NO_PROPERTIES,
    ) -> None:  # fmt: skip
        """Publish, only while `can_publish`. With MQTT 3.1.1 the properties are not sent.

        `qos` is lowered to what the broker takes. With QoS 0 `published` is called once the packet is written.

        Raises:
            BrokerError: The packet is larger than the broker takes, or MQTT cannot represent it.
        """
        packet_id = self._free_id()  # with QoS 0 too: it counts until it is written
        qos = min(qos, self.granted.maximum_qos)
        try:
            packet = packets.publish(
                topic, payload, packet_id if qos else None, qos=qos, retain=retain,
                properties=properties if self._is_5 else None,
            )  # fmt: skip
        except ValueError as error:
            raise BrokerError(str(error)) from error
        if len(packet) > (most := self.granted.maximum_packet_size):
            raise BrokerError(f"a packet of {len(packet)} bytes; the broker takes {most} at most")
        self._in_flight[packet_id] = standard.PUBREC if qos == 2 else standard.PUBACK, published
        self._write(packet)
        if not qos:
            self._loop.call_soon(self._flush)
            self._loop.call_soon(self._on_published, standard.PUBACK, packet_id, 0)

    def acknowledge(self, packet_id: int) -> None:
        """Send PUBACK, or PUBREC for QoS 2. If the connection has ended, do nothing: the message comes again."""
        qos = self._unacknowledged.get(packet_id)
        if qos == 1:
            del self._unacknowledged[packet_id]
            self._write(_PUBACK + packet_id.to_bytes(2, "big"))
        elif qos == 2:  # counts for Receive Maximum until PUBCOMP (sections 4.3.3 and 4.9)
            self._unacknowledged[packet_id] = 0
            self._write(packets.acknowledgement(standard.PUBREC, packet_id))

    def pause(self) -> None:
        """Stop reading, so that the broker cannot send more. PUBACK is still sent."""
        self._paused = True
        self._set_reading(False)

    def resume(self) -> None:
        """Read again."""
        if self._paused:
            self._paused = False
            self._liveness.awaits_pong = False  # PINGRESP may come after many unread messages
            self._process_soon()

    async def disconnect(self) -> None:
        """Send DISCONNECT, so that no will is published, and wait until the broker closes the connection.

        Bytes that still come are read and dropped. A socket that is closed with unread bytes resets the connection, and
        the broker would lose the last acknowledgements.
        """
        if self.is_open and self._transport is not None:
            self._write(packets.disconnect())
            self._flush()
            self._is_leaving = True
            self._paused = False
            self._set_reading(True)
            await asyncio.wait([self._ended], timeout=1.0)
        self.abort()

    def abort(self, why: str = "closed") -> None:
        """Close the socket at once, so that the broker publishes the will."""
        if self._transport is not None:
            self._transport.abort()
        self._end(why)

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Use this transport."""
        self._transport = cast("asyncio.Transport", transport)
        if self._socket is None and self._address.path is not None:
            self._socket = transport.get_extra_info("socket")

    def data_received(self, data: bytes) -> None:
        """Decode the bytes, and act on their packets."""
        self._liveness.bytes_received += len(data)
        if _QUICK_ACK is not None and self._socket is not None and not self._unsent:
            # Brokers leave Nagle's algorithm on: their next PUBACK waits until the system acknowledges these bytes. It
            # would do so 40 ms later. Packets that are about to be sent carry the acknowledgement with them.
            self._socket.setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)
        if self._is_leaving:
            return
        self._decoder.feed(data)
        if not self._processing_is_due:
            self._process_packets()

    def pause_writing(self) -> None:
        """Publish no more until the socket's buffer has room."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Publish again."""
        self._is_full = False
        self._on_writable()

    def connection_lost(self, _error: Exception | None) -> None:
        """End the connection."""
        self._end("the connection was lost")

    # Opening.

    async def _connect_socket(self) -> None:
        """Connect to the Unix socket, the WebSocket, or the first address of the host that answers."""
        address = self._address
        if address.socket is not None:
            await self._loop.create_unix_connection(lambda: self, address.socket)
            return
        if address.path is not None:
            from amqtt_rest_bridge.mqtt.websocket import open_websocket  # which takes 50 ms to import

            await open_websocket(address, self)
            return
        failure: OSError = OSError("its name has no address")
        for family, kind, number, _, where in await self._loop.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM
        ):
            sock = socket.socket(family, kind, number)
            sock.setblocking(False)
            self._socket = sock  # uvloop's transport makes another one for each call of `setsockopt`
            try:
                await self._loop.sock_connect(sock, where)
                await self._loop.create_connection(
                    lambda: self, sock=sock, ssl=address.tls, server_hostname=address.host if address.tls else None
                )
                return
            except OSError as error:
                sock.close()
                failure = error
            except BaseException:
                sock.close()
                raise
        raise failure

    # Subscribing: one packet for each topic filter, since identifier and user properties belong to a packet.

    async def _subscribe(self, wanted: Subscription) -> None:
        """Subscribe one topic filter, and check the QoS that the broker grants."""
        options, properties = wanted.qos, self._properties_of(wanted)
        if properties is not None:
            options |= 0 if wanted.retained else 2 << 4  # section 3.8.3.1
            if wanted.identifier is not None:
                properties[Property.SUBSCRIPTION_IDENTIFIER] = (wanted.identifier,)
        packet_id = self._free_id()
        packet = packets.subscribe(packet_id, wanted.topic_filter, options, properties)
        code = (await self._ask(packet_id, standard.SUBACK, packet))[0]
        if code >= standard.FAILURE:
            raise BrokerError(f"the broker refuses to subscribe {wanted.topic_filter}: {REASONS[code]}", code)
        if self._is_5 and code < wanted.qos:  # messages would be lost, and nothing would say so
            raise BrokerError(
                f"the broker grants QoS {code} to the subscription of {wanted.topic_filter}, "
                f"which needs QoS {wanted.qos}"
            )

    def _properties_of(self, subscription: Subscription) -> dict[Property, Any] | None:
        """Return the properties of a packet with the user properties of a subscription; None with MQTT 3.1.1."""
        if not self._is_5:
            return None
        return {Property.USER_PROPERTY: subscription.user} if subscription.user else {}

    # Sending.

    def _write(self, packet: bytes) -> None:
        """Send a packet, together with those of the next iterations of the loop, since each write wakes the broker."""
        if not self._unsent:
            self._loop.call_soon(self._gather, 0)
        self._unsent.append(packet)

    def _gather(self, before: int) -> None:
        """Write the packets that wait, unless the last iteration has added one. `before` is how many waited before."""
        count = len(self._unsent)
        if before < count < _MOST_GATHERED:
            self._loop.call_soon(self._gather, count)
        else:
            self._flush()

    def _flush(self) -> None:
        """Write the packets that wait."""
        if self._unsent and self._transport is not None and not self._ended.done():
            self._liveness.has_sent = True
            self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def _free_id(self) -> int:
        """Return a packet identifier that is not in use."""
        while True:
            self._last_id = self._last_id % 65_535 + 1
            if self._last_id not in self._in_flight and self._last_id not in self._awaited_answers:
                return self._last_id

    async def _ask(self, packet_id: int, kind: int, packet: bytes) -> bytes:
        """Send a packet, wait for its answer, and return the reason codes."""
        if self._ended.done():
            raise BrokerError("the connection to the broker was lost")
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._awaited_answers[packet_id] = kind, answer
        self._write(packet)
        while True:
            before = self._liveness.bytes_received
            await asyncio.wait([answer], timeout=CONNECT_SECONDS)
            if answer.done():
                return answer.result()
            # If a large packet is coming, the answer may come after it.
            if not self._liveness.is_large_packet_coming(before, CONNECT_SECONDS):
                # The identifier stays in use, as a late answer must not be taken for another one (section 2.2.1).
                asked = standard.NAMES[kind - 1]  # SUBSCRIBE or UNSUBSCRIBE
                raise BrokerError(f"the broker {self._address.shown} does not answer {asked}")

    def _check_liveness(self) -> None:
        """Send PINGREQ if half of the keep-alive was silent; end the connection if the last PINGREQ has no answer."""
        seconds = self.granted.keep_alive / 2
        action = self._liveness.check(seconds, can_read=not self._paused)
        if action is KeepAlive.END:
            self.abort("the broker does not answer PINGREQ")
            return
        if action is KeepAlive.PING:
            self._write(packets.pingreq())
        self._liveness_timer = self._loop.call_later(seconds, self._check_liveness)

    # Receiving.

    def _process_packets(self) -> None:
        """Act on received packets, at most 64 in one iteration of the loop, until reading is paused."""
        self._processing_is_due = False
        left = _MOST_PACKETS
        try:
            while left and not (self._paused or self._is_leaving or self._ended.done()):
                if (packet := self._decoder.next()) is None:
                    break
                left -= 1
                if type(packet) is Publish:
                    self._on_publish(packet)
                elif type(packet) is packets.Acknowledged and packet.kind == standard.PUBACK:
                    self._on_published(standard.PUBACK, packet.packet_id, packet.code)
                else:
                    self._on_other(packet)
        except PacketError as error:  # section 4.13.1
            if self.is_open and self._is_5:
                self._write(packets.disconnect(error.code))
                self._flush()
            self._close(f"the broker sends what MQTT does not allow: {error}")
        if left < _MOST_PACKETS:
            self._liveness.has_received = True
        if not self._paused:
            self._set_reading(left > 0)
            if not left:
                self._process_soon()

    def _process_soon(self) -> None:
        """Act on further packets in the next iteration of the loop."""
        if not self._processing_is_due:
            self._processing_is_due = True
            self._loop.call_soon(self._process_packets)

    def _set_reading(self, wanted: bool) -> None:
        """Start or stop reading from the socket."""
        if self._transport is None or self._ended.done():
            return
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _on_publish(self, packet: Publish) -> None:
        """Pass a message on. Refuse one that breaks the protocol, which ends the connection."""
        packet_id = packet.packet_id
        if not self._connected.done():
            raise protocol_error("PUBLISH before CONNACK")
        if packet_id is not None:
            if self._is_5:  # MQTT 3.1.1 lets a server send again, and has no Receive Maximum
                if packet_id in self._unacknowledged:
                    raise protocol_error(f"PUBLISH with packet identifier {packet_id}, which is in use")
                # A kept session may exceed it: Mosquitto 2.0 sends all again that was under way, even if the maximum is
                # smaller now. If that ended the connection, each next connection would end in the same way.
                if len(self._unacknowledged) >= self._session.receive_maximum and not self.granted.session_present:
                    raise PacketError(Code.RECEIVE_MAXIMUM_EXCEEDED, "PUBLISH beyond Receive Maximum")  # section 3.3.4
            self._unacknowledged[packet_id] = packet.qos
        try:
            self._on_message(self, packet)
        except Exception:  # the next message is taken all the same
            log.exception("a message on %s was not looked at", loggable(packet.topic))

    def _on_other(self, packet: packets.Packet) -> None:
        """Act on a packet that is neither PUBLISH nor PUBACK, the two most frequent kinds."""
        if isinstance(packet, packets.Connack) == self._connected.done():
            raise protocol_error("CONNACK twice" if self._connected.done() else "another packet before CONNACK")
        match packet:
            case packets.Acknowledged(kind=standard.PUBREL):
                self._unacknowledged.pop(packet.packet_id, None)
                self._write(packets.acknowledgement(standard.PUBCOMP, packet.packet_id))
            case packets.Acknowledged():
                self._on_published(packet.kind, packet.packet_id, packet.code)
            case packets.Answered():
                kind, answer = self._awaited_answers.pop(packet.packet_id, (0, None))
                if answer is None or kind != packet.kind or len(packet.codes) > 1:
                    raise protocol_error(f"an answer to nothing that was asked, packet identifier {packet.packet_id}")
                if not answer.done():
                    answer.set_result(packet.codes)
            case packets.Connack():
                self._on_connack(packet)
            case packets.Disconnect():
                self.has_refused_packet = packet.code in standard.REFUSES_PACKET
                why = packet.properties.get(Property.REASON_STRING)
                self._close(REASONS[packet.code] + (f": {on_one_line(why)}" if why else ""))

    def _on_published(self, kind: int, packet_id: int, code: int) -> None:
        """Act on the answer to a publication: PUBACK, or with QoS 2 PUBREC and then PUBCOMP (section 4.3.3)."""
        awaited, published = self._in_flight.get(packet_id, (standard.PUBACK, None))
        if kind != awaited:
            raise protocol_error(
                f"{standard.NAMES[kind]} without a publication of QoS {1 if kind == standard.PUBACK else 2}"
            )
        if published is None or self._ended.done():
            return
        if kind == standard.PUBREC and code < standard.FAILURE:
            self._in_flight[packet_id] = standard.PUBCOMP, published
            self._write(packets.acknowledgement(standard.PUBREL, packet_id))
            return
        del self._in_flight[packet_id]
        published(REASONS[code] if code >= standard.FAILURE else None)

    def _on_connack(self, packet: packets.Connack) -> None:
        """End the connection if the broker refuses the client, else set what it has granted."""
        shown, code = self._address.shown, packet.code
        if code:
            known = REASONS if self._is_5 else standard.REFUSALS_3_1_1
            says = f"the broker {shown} refuses the client: {known.get(code, f'code {code}')}"
            if self._is_5 and code == Code.UNSUPPORTED_PROTOCOL_VERSION:
                says = f"the broker {shown} does not support MQTT 5"
            self._connected.set_exception(BrokerError(says, code))
            self._end(says)
            return
        if packet.session_present and not self._session.expiry:
            raise protocol_error("CONNACK has a session that was not asked for")  # [MQTT-3.2.2-2]
        found = packet.properties
        self.granted = Granted(
            packet.session_present,
            found.get(Property.SESSION_EXPIRY_INTERVAL, self._session.expiry),
            found.get(Property.RECEIVE_MAXIMUM, _RECEIVE_MAXIMUM),
            found.get(Property.MAXIMUM_QOS, 2),  # section 3.2.2.3.4
            found.get(Property.MAXIMUM_PACKET_SIZE, standard.LARGEST_PACKET),
            # [MQTT-3.2.2-21]. 0 means no limit; pings are sent all the same, to notice a broker that has gone.
            min(found.get(Property.SERVER_KEEP_ALIVE, 0) or KEEP_ALIVE_SECONDS, KEEP_ALIVE_SECONDS),
            found,
        )
        self._most_published = min(self.granted.receive_maximum, _MOST_PUBLISHED)
        self._connected.set_result(None)

    def _close(self, why: str) -> None:
        """End the connection, and close the socket once all bytes are sent."""
        self._end(why)
        if self._transport is not None:
            self._transport.close()

    def _end(self, why: str) -> None:
        """Note the end of the connection, and wake all that wait for an answer. Further calls do nothing."""
        if self._ended.done():
            return
        self._ended.set_result(why)
        if self._liveness_timer is not None:
            self._liveness_timer.cancel()
        lost = BrokerError("the connection to the broker was lost")
        if not self._connected.done():
            says = f"the broker {self._address.shown} closed the connection without an answer to CONNECT ({why})"
            self._connected.set_exception(NoAnswerError(says))
            self._connected.exception()  # so that asyncio does not warn if nothing awaits it
        self._in_flight.clear()
        for _, answer in self._awaited_answers.values():
            if not answer.done():
                answer.set_exception(lost)
                answer.exception()
        self._awaited_answers.clear()


async def _run_together(asked: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines, 64 at the same time: 1,000 subscriptions take 16 round trips. Raise the first error."""
    rest = iter(asked)
    while part := list(itertools.islice(rest, _MOST_TOGETHER)):
        for answer in await asyncio.gather(*part, return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer

"""Sessions of the bridge at the `endpoint` of its broker, and their connections. The broker's loop only.

A session holds subscriptions, the messages that wait, and those in flight, which were sent and not acknowledged. A kept
session outlives its connection: messages in flight are sent again, with DUP, on the next one. The messages of lossless
events are on disk (`lossless`): a session holds their keys in order, and reads each message when it is sent.

A connection reads and writes packets; `endpoint` acts on them. Packets are written together in a lull of the loop.
While the bridge publishes faster than amqtt takes messages, the socket is not read. While the socket's buffer is full,
messages wait in their session.
"""

import asyncio
import json
import logging
from collections import deque
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from msgspec import Struct
from msgspec.structs import replace

from amqtt_rest_bridge.broker.lossless import Lossless
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.lot.model import EventName, Message
from amqtt_rest_bridge.mqtt import packets, private
from amqtt_rest_bridge.mqtt.packets import Disconnect, PacketError, write_properties
from amqtt_rest_bridge.mqtt.private import AGAIN, KEY, REFUSED, TIME
from amqtt_rest_bridge.mqtt.publisher import HOPS
from amqtt_rest_bridge.mqtt.standard import Property
from amqtt_rest_bridge.times import in_lull

if TYPE_CHECKING:
    from amqtt_rest_bridge.broker.endpoint import PrivateEndpoint

log = logging.getLogger(__name__)

_ENTRY_BYTES: Final = 300  # memory of a message that waits, beside its topic and payload
_MOST_WAITING: Final = 10_000  # messages that wait in a session that is not kept
_MOST_WAITING_BYTES: Final = 8 << 20  # of such messages; `least_bytes` may raise this bound
_UNSENT_BYTES: Final = 1 << 20  # in the buffer of the socket; beyond it messages wait in their session
_MOST_WRITTEN: Final = 64  # packets written in one iteration of the loop
_MOST_WRITTEN_BYTES: Final = 64 << 10  # of such packets; the last one may exceed them
_MOST_PACKETS: Final = 32  # read in one iteration of the loop, which has clients to serve


class EventSubscription(Struct, eq=False):
    """A subscription of a session.

    Args:
        session: The session that has it.
        topic_filter: Its topic filter.
        identifier: The Subscription Identifier that is sent with its messages.
        name: The client event that its messages are for, None for other subscriptions.
        lossless: Bounds of a lossless event, as in `private.LOSSLESS`; None for other subscriptions.
    """

    session: "BridgeSession"
    topic_filter: str
    identifier: int
    name: EventName | None = None
    lossless: str | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """Return its key in `BridgeSession.subscriptions`: its event, or else its session and filter."""
        return (self.session.client_id, self.topic_filter) if self.name is None else ("event", *self.name)

    def is_like(self, other: "EventSubscription") -> bool:
        """Return whether all its fields equal those of another subscription."""
        mine, its = ((one.session, one.topic_filter, one.identifier, one.name, one.lossless) for one in (self, other))
        return mine == its


class Receiver(NamedTuple):
    """A session that receives the messages of a topic, and the subscriptions by which it does."""

    session: "BridgeSession"
    subscriptions: tuple[EventSubscription, ...]


class Entry(Struct, eq=False):
    """A message for a session.

    Args:
        message: None for a message on disk, which is read when it is sent.
        subscriptions: The subscriptions that it is sent for.
        hops: How many routes it has passed through.
        key: The key of a message on disk, None for others.
        failure: The failure of a refused message: code, sentence and hint as JSON. None for others.
        retain: Whether it is sent as a retained message.
        is_late: Whether it has waited. Then the time of its arrival is sent with it.
        was_sent: Whether it was sent on an earlier connection. Then it is sent with DUP.
    """

    message: Message | None
    subscriptions: tuple[EventSubscription, ...]
    hops: int = 0
    key: str | None = None
    failure: str | None = None
    retain: bool = False
    is_late: bool = False
    was_sent: bool = False

    @property
    def size(self) -> int:
        """Return the bytes that it takes in memory."""
        message = self.message
        return _ENTRY_BYTES + (0 if message is None else len(message.topic) + len(message.payload))


class BridgeSession:
    """A session of the bridge.

    Args:
        endpoint: Counts the messages that are dropped because too many wait.
        client_id: Its client id.
        is_kept: Whether it outlives its connection.
        lossless: Has the messages on disk; None without a spool.
        keys: Keys of the messages on disk that are in flight, shared by all sessions.
        least_bytes: If the session is not kept, it has room for so many waiting bytes, and for 8 MiB at least.
    """

    def __init__(
        self, endpoint: "PrivateEndpoint", client_id: str, is_kept: bool, lossless: Lossless | None, keys: set[str],
        least_bytes: int = 0,
    ) -> None:  # fmt: skip
        self.client_id = client_id
        self.is_kept = is_kept
        self.connection: BridgeConnection | None = None
        """The present connection, None while there is none."""
        self.subscriptions: dict[tuple[str, ...], EventSubscription] = {}
        """Its subscriptions, by `EventSubscription.key`."""
        self.waiting: deque[Entry] = deque()
        """Messages that were not sent yet, in order."""
        self.waiting_bytes = 0
        """Memory of `waiting`, in bytes."""
        self.in_flight: dict[int, Entry] = {}
        """Messages that were sent and not acknowledged, by packet identifier, in order."""
        self._lossless = lossless
        self._keys_in_flight = keys
        self._endpoint = endpoint
        self._refused: deque[Entry] = deque()  # messages to be sent with the failures that end them
        self._refused_bytes = 0
        self._to_resend: deque[int] = deque()  # packet ids to send again, before `waiting`
        self._last_id = 0
        self._most_in_flight = 0
        self._most_waiting_bytes = max(_MOST_WAITING_BYTES, least_bytes)

    # Its connection.

    def connected(self, connection: "BridgeConnection", receive_maximum: int) -> None:
        """Use this connection, with at most `receive_maximum` messages in flight, and send what waits."""
        self.connection, self._most_in_flight = connection, receive_maximum
        self.resume()

    def disconnected(self) -> None:
        """Note that the connection has ended. The next one sends unacknowledged messages again, with their packet ids.

        If the event of a message on disk has moved to another session meanwhile, that session sends the message.
        """
        self.connection = None
        moved = []
        for packet_id, entry in list(self.in_flight.items()):
            entry.was_sent = entry.is_late = True
            if entry.key is not None and entry.subscriptions[0].key not in self.subscriptions:
                del self.in_flight[packet_id]
                self._keys_in_flight.discard(entry.key)
                moved.append(entry.key)
        self._to_resend = deque(self.in_flight)
        if self._lossless is not None:
            self._lossless.queue_rows(moved)

    # Messages.

    @property
    def takes_at_once(self) -> bool:
        """Return whether a new message can be sent at once, since no other one waits."""
        return not (self.waiting or self._to_resend) and self._may_send

    @property
    def _may_send(self) -> bool:
        """Return whether Receive Maximum and the connection allow one more message."""
        connection = self.connection
        return connection is not None and len(self.in_flight) < self._most_in_flight and connection.takes_more

    def send(self, entry: Entry) -> None:
        """Send a message now."""
        packet_id = self._last_id % 65_535 + 1
        while packet_id in self.in_flight:
            packet_id = packet_id % 65_535 + 1
        self._last_id = packet_id
        self.in_flight[packet_id] = entry
        if entry.key is not None:
            self._keys_in_flight.add(entry.key)
        self._write(packet_id, entry)

    def enqueue(self, entry: Entry) -> None:
        """Queue a message. If the session is not kept and its queue becomes too large, drop its oldest messages."""
        entry.is_late = True
        self.waiting.append(entry)
        self.waiting_bytes += entry.size
        while not self.is_kept and (len(self.waiting) > _MOST_WAITING or self.waiting_bytes > self._most_waiting_bytes):
            dropped = self.waiting.popleft()
            self.waiting_bytes -= dropped.size
            self._endpoint.note_dropped(dropped)

    def resume(self) -> None:
        """Send refused messages, then those to be sent again, then `waiting`, until the connection is full."""
        while self._refused and self.connection is not None and self.connection.takes_more:
            entry = self._refused.popleft()
            self._refused_bytes -= entry.size
            self._write(None, entry)
        while self._to_resend and self.connection is not None and self.connection.takes_more:
            packet_id = self._to_resend.popleft()
            again = self.in_flight.get(packet_id)  # it may have been acknowledged meanwhile
            if again is not None and again.subscriptions:
                self._write(packet_id, again)
            elif again is not None:
                del self.in_flight[packet_id]
        while self.waiting and not self._to_resend and self._may_send:
            entry = self.waiting.popleft()
            self.waiting_bytes -= entry.size
            self.send(entry)

    def _write(self, packet_id: int | None, entry: Entry) -> None:
        """Write a message to the connection, with QoS 0 if there is no packet id.

        A message on disk is read first; one that cannot be read is left out.
        """
        message, connection = entry.message, self.connection
        if message is None and entry.key is not None and self._lossless is not None:
            kept = self._lossless.read(entry.key)
            if kept is None:
                self.in_flight.pop(packet_id or 0, None)
                self._keys_in_flight.discard(entry.key)
                return
            message, entry.hops = kept.message, kept.hops
        if message is None or connection is None:
            raise AssertionError("a message was sent without a connection")
        identifiers = tuple([one.identifier for one in entry.subscriptions])
        pairs: list[tuple[str, str]] = []  # user properties
        if entry.is_late or entry.key is not None or message.sent_again is not None:
            pairs.append((TIME, repr(message.timestamp)))
        if message.sent_again is not None:
            pairs.append((AGAIN, repr(message.sent_again)))
        if entry.key is not None:
            pairs.append((KEY, entry.key))
            entry.message = None  # if it has to be sent again, it is read from disk
        if entry.failure is not None:
            pairs.append((REFUSED, entry.failure))
        hops = entry.hops
        properties = _properties(identifiers, hops, pairs) if pairs else _cached_properties(identifiers, hops)
        connection.write(packets.publish(
            message.topic, message.payload, packet_id, qos=0 if packet_id is None else 1, retain=entry.retain,
            duplicate=entry.was_sent, properties=properties,
        ))  # fmt: skip

    def end_for_event(self, packet_id: int, identifier: int) -> None:
        """Note that one event of a message has its result, so that the message is not sent again for that event."""
        entry = self.in_flight.get(packet_id)
        if entry is not None:
            entry.subscriptions = tuple([one for one in entry.subscriptions if one.identifier != identifier])

    def acknowledged(self, packet_id: int) -> None:
        """Forget a message that the bridge has acknowledged, and send the next one."""
        entry = self.in_flight.pop(packet_id, None)
        if entry is not None and entry.key is not None and self._lossless is not None:
            self._keys_in_flight.discard(entry.key)
            self._lossless.forget_row(entry.key)
        if self.waiting:
            self.resume()

    def send_with_failure(self, entry: Entry, failure: CallError) -> None:
        """Send a message with the failure that ends it, before those that wait; drop it if too many such ones wait."""
        entry.failure, entry.is_late = failure_property(failure), True
        if self._refused_bytes + entry.size > _MOST_WAITING_BYTES:
            self._endpoint.note_dropped(entry)
            return
        self._refused.append(entry)
        self._refused_bytes += entry.size
        self.resume()

    # Messages on disk: the session is what `Lossless` calls a `RowQueue`.

    def put(self, name: EventName, key: str, message: Message | None, hops: int) -> None:
        """Send a message of a lossless event, or queue its key. Without `message` it is read from disk when sent."""
        if key in self._keys_in_flight:
            return
        entry = Entry(message, (self.subscriptions["event", *name],), hops, key)
        if self.takes_at_once:
            self.send(entry)
        else:
            entry.message = None
            self.enqueue(entry)

    def refuse(self, name: EventName, message: Message, hops: int, failure: CallError) -> None:
        """Send a message that was refused, with the failure that ends it.

        It is sent with QoS 0, which Receive Maximum does not bound, so it does not wait behind messages in flight.
        """
        self.send_with_failure(Entry(message, (self.subscriptions["event", *name],), hops), failure)

    # Subscriptions that end or move to another session.

    def forget_rows(self, subscription: EventSubscription) -> None:
        """Forget the messages on disk that wait for a subscription."""
        self._set_waiting(one for one in self.waiting if one.key is None or subscription not in one.subscriptions)

    def hand_over(self, subscription: EventSubscription, replacement: EventSubscription) -> None:
        """Move the messages that wait for a subscription to the session of its replacement.

        Messages on disk are only forgotten: `Lossless` puts them into the other session.
        """
        self.subscriptions.pop(subscription.key, None)
        self.forget_rows(subscription)
        for entry in self.waiting:
            if subscription in entry.subscriptions:
                replacement.session.enqueue(replace(entry, subscriptions=(replacement,)))
                left = [one for one in entry.subscriptions if one is not subscription]
                entry.subscriptions = tuple(left)
        self._set_waiting(one for one in self.waiting if one.subscriptions)
        replacement.session.resume()

    def _set_waiting(self, entries: Iterable[Entry]) -> None:
        self.waiting = deque(list(entries))
        self.waiting_bytes = sum(one.size for one in self.waiting)


def failure_property(failure: CallError) -> str:
    """Write a failure as the property `rest-bridge-refused`."""
    return json.dumps([failure.code.value, failure.message, failure.hint])


def _properties(identifiers: tuple[int, ...], hops: int, pairs: list[tuple[str, str]]) -> bytes:
    user = [(HOPS, str(hops)), *pairs] if hops else pairs
    return write_properties({Property.SUBSCRIPTION_IDENTIFIER: identifiers, Property.USER_PROPERTY: user})


@lru_cache(maxsize=1024)
def _cached_properties(identifiers: tuple[int, ...], hops: int) -> bytes:
    """Return the properties of a message that has not waited; cached, since most messages have the same."""
    return _properties(identifiers, hops, [])


class BridgeConnection(asyncio.Protocol):
    """A connection that the bridge has opened.

    Args:
        endpoint: Takes its packets.
    """

    def __init__(self, endpoint: "PrivateEndpoint") -> None:
        self.session: BridgeSession | None = None
        """The session that CONNECT has named, None before CONNECT."""
        self.is_leaving = False
        """Whether the bridge has sent DISCONNECT."""
        self._endpoint = endpoint
        self._decoder = private.decoder()
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._flush_is_due = False  # `_flush` runs at the end of this iteration
        self._is_full = False  # the socket's buffer
        self._processing_is_due = False  # `process_packets` runs in the next iteration

    @property
    def takes_more(self) -> bool:
        """Return whether a message may be written now. If not, `session.resume` is called once it may."""
        is_room = len(self._unsent) < _MOST_WRITTEN and self._unsent_bytes < _MOST_WRITTEN_BYTES
        return is_room and not self._is_full

    @property
    def is_reading(self) -> bool:
        """Return whether the socket is read."""
        return self._transport.is_reading()

    def write(self, packet: bytes) -> None:
        """Send a packet in the next lull of the loop."""
        if not self._unsent:
            in_lull(self._flush)
        self._unsent.append(packet)
        self._unsent_bytes += len(packet)
        if not (self._flush_is_due or self.takes_more):
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def process_packets(self) -> None:
        """Pass received packets to the endpoint while the bridge may publish, at most 32 in one iteration."""
        self._processing_is_due = False
        left = _MOST_PACKETS
        try:
            while left and not self._transport.is_closing() and self._endpoint.has_room():
                if (packet := self._decoder.next()) is None:
                    break
                left -= 1
                self.is_leaving = self.is_leaving or isinstance(packet, Disconnect)
                self._endpoint.act_on(self, packet)
        except PacketError as error:
            log.error("the bridge sent its broker what MQTT does not allow: %s", error)  # noqa: TRY400  # the fact is enough
            self.write(packets.disconnect(error.code))
            self._flush()
            self._transport.close()
            return
        if self.is_leaving:
            self._flush()
            self._transport.close()
            return
        if not left:
            self._process_soon()
        if self._transport.is_closing():
            return
        if left and self._endpoint.has_room():
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Take packets again: the bridge may publish."""
        if not self.is_reading:
            self._process_soon()

    def abort(self) -> None:
        """End the connection at once."""
        self._transport.abort()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Use this transport, and report the connection to the endpoint."""
        self._loop = asyncio.get_running_loop()
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(_UNSENT_BYTES)
        self._endpoint.connection_opened(self)

    def data_received(self, data: bytes) -> None:
        """Decode the bytes, and take their packets."""
        self._decoder.feed(data)
        if not self._processing_is_due:
            self.process_packets()

    def pause_writing(self) -> None:
        """Write no more: messages wait in their session."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Send the messages that wait."""
        self._is_full = False
        if self.session is not None:
            self.session.resume()

    def connection_lost(self, _error: Exception | None) -> None:
        """Report the end to the endpoint."""
        self._endpoint.connection_ended(self)

    def _flush(self) -> None:
        unsent, self._unsent, self._unsent_bytes, self._flush_is_due = self._unsent, [], 0, False
        if unsent and not self._transport.is_closing():
            self._transport.write(b"".join(unsent))
            if not (self._is_full or self.is_leaving or self.session is None):
                self.session.resume()

    def _process_soon(self) -> None:
        if not self._processing_is_due:
            self._processing_is_due = True
            self._loop.call_soon(self.process_packets)

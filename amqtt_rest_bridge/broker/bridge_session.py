"""A session of the bridge at the endpoint of its broker: what it subscribes, what waits for it, what is under way.

A kept session outlives its connection: what was not acknowledged is sent again, with DUP, on the next one. The messages
of lossless events lie on disk (`lossless`): a session has their keys in order, and reads a message when its turn comes.
The broker's loop only.
"""

import json
from collections import deque
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from amqtt_rest_bridge.broker.bridge_connection import BridgeConnection
from amqtt_rest_bridge.broker.lossless import Lossless
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.lot.model import EventName, Message
from amqtt_rest_bridge.mqtt import packets
from amqtt_rest_bridge.mqtt.private import KEY, REFUSED, TIME
from amqtt_rest_bridge.mqtt.publisher import HOPS
from amqtt_rest_bridge.mqtt.wire import Property, write_properties

_ENTRY_BYTES: Final = 300  # of a message that waits, beside its topic and payload
_MANY_IN_FLIGHT: Final = 32  # messages; beyond it the bridge is busy, and the next one may wait for others
_MOST_UNKEPT: Final = 10_000  # messages that wait for a session that ends with its connection ...
_MOST_UNKEPT_BYTES: Final = 8 << 20  # ... and their bytes, or two of the largest


class Subscription(Struct, eq=False):
    """What a session wants.

    Args:
        session: It.
        topic_filter: Of the messages.
        identifier: The Subscription Identifier that comes with them.
        name: The client event that they are for; None for all else.
        lossless: For messages on disk; see `private.LOSSLESS`.
    """

    session: "BridgeSession"
    topic_filter: str
    identifier: int
    name: EventName | None = None
    lossless: str | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """Return what it is known by: its event, or else its session and filter."""
        return (self.session.client_id, self.topic_filter) if self.name is None else ("event", *self.name)

    def is_like(self, other: "Subscription") -> bool:
        """Return whether it asks for nothing else than another one."""
        mine, its = ((one.session, one.topic_filter, one.identifier, one.name, one.lossless) for one in (self, other))
        return mine == its


class Receiver(NamedTuple):
    """A session that receives the messages of a topic, and the subscriptions by which it does."""

    session: "BridgeSession"
    subscriptions: tuple[Subscription, ...]


class Entry(Struct, eq=False):
    """A message for a session.

    Args:
        message: None for one on disk that is read when its turn comes.
        subscriptions: By which it is sent.
        hops: Routes that it has passed through.
        key: Of a message on disk.
        refused: Code, sentence and hint of why it was not kept, as JSON.
        retain: Whether it is sent as a retained message.
        is_late: Whether it did not go on at once, so that its time is sent with it.
        was_sent: Whether it was sent on an earlier connection.
    """

    message: Message | None
    subscriptions: tuple[Subscription, ...]
    hops: int = 0
    key: str | None = None
    refused: str | None = None
    retain: bool = False
    is_late: bool = False
    was_sent: bool = False

    @property
    def size(self) -> int:
        """Return the bytes that the message takes in memory."""
        message = self.message
        return _ENTRY_BYTES + (0 if message is None else len(message.topic) + len(message.payload))


class BridgeSession:
    """A session.

    Args:
        client_id: Its name.
        is_kept: Whether it outlives its connection.
        lossless: Has the messages on disk; None without a spool.
        keys: Of messages on disk that are in flight, in whichever session.
        least_bytes: So many may wait in a session that is not kept, at least.
    """

    def __init__(
        self, client_id: str, is_kept: bool, lossless: Lossless | None, keys: set[str], least_bytes: int = 0
    ) -> None:
        self.client_id = client_id
        self.is_kept = is_kept
        self.connection: BridgeConnection | None = None
        """The present connection."""
        self.subscriptions: dict[tuple[str, ...], Subscription] = {}
        """What it has subscribed, by `Subscription.key`."""
        self.waiting: deque[Entry] = deque()
        """Messages that are to be sent, in order."""
        self.waiting_bytes = 0
        """What these take in memory."""
        self.in_flight: dict[int, Entry] = {}
        """Messages that were sent and not acknowledged, by packet identifier, in order."""
        self._lossless = lossless
        self._keys = keys
        self._refused: deque[Entry] = deque()  # messages that were not kept
        self._refused_bytes = 0
        self._again: deque[int] = deque()  # what is to be sent again, by packet identifier, before all else
        self._last_id = 0
        self._most_in_flight = 0
        self._most_bytes = max(_MOST_UNKEPT_BYTES, least_bytes)

    # Its connection.

    def connected(self, connection: BridgeConnection, receive_maximum: int) -> None:
        """Send on this connection from now on, so many messages before one is acknowledged."""
        self.connection, self._most_in_flight = connection, receive_maximum
        connection.on_writable = self.resume
        self.resume()

    def disconnected(self) -> None:
        """Send what was not acknowledged again on the next connection, with the same packet identifiers."""
        self.connection = None
        elsewhere = []
        for packet_id, entry in list(self.in_flight.items()):
            entry.was_sent = entry.is_late = True
            if entry.key is not None and entry.subscriptions[0].key not in self.subscriptions:
                del self.in_flight[packet_id]
                self._keys.discard(entry.key)
                elsewhere.append(entry.key)
        self._again = deque(self.in_flight)
        if self._lossless is not None:
            self._lossless.put_again(elsewhere)

    # Messages.

    @property
    def takes_at_once(self) -> bool:
        """Return whether the next message can be sent at once."""
        return not (self.waiting or self._again) and self._may_send

    def send(self, entry: Entry) -> None:
        """Send a message now."""
        packet_id = self._free_id()
        self.in_flight[packet_id] = entry
        if entry.key is not None:
            self._keys.add(entry.key)
        self._write(packet_id, entry)

    def _write(self, packet_id: int | None, entry: Entry) -> None:
        message, connection = entry.message, self.connection
        if message is None and entry.key is not None and self._lossless is not None:
            kept = self._lossless.read(entry.key)
            if kept is None:  # it cannot be read
                self.in_flight.pop(packet_id or 0, None)
                self._keys.discard(entry.key)
                return
            message, entry.hops = kept.message, kept.hops
        if message is None or connection is None:
            raise AssertionError("a message is sent on a connection")
        identifiers = tuple([one.identifier for one in entry.subscriptions])
        more: list[tuple[str, str]] = []
        if entry.is_late or entry.key is not None:
            more.append((TIME, repr(message.timestamp)))
        if entry.key is not None:
            more.append((KEY, entry.key))
            entry.message = None  # it is read again, should it be sent again
        if entry.refused is not None:
            more.append((REFUSED, entry.refused))
        connection.write(packets.publish(
            message.topic, message.payload, packet_id, qos=0 if packet_id is None else 1, retain=entry.retain,
            duplicate=entry.was_sent,
            properties=_properties(identifiers, entry.hops, more) if more else _usual(identifiers, entry.hops),
        ), is_urgent=len(self.in_flight) < _MANY_IN_FLIGHT)  # fmt: skip

    def wait(self, entry: Entry) -> list[Entry]:
        """Queue a message; return those that were dropped for it: the oldest of a session that is not kept."""
        entry.is_late = True
        self.waiting.append(entry)
        self.waiting_bytes += entry.size
        dropped = []
        while not self.is_kept and (len(self.waiting) > _MOST_UNKEPT or self.waiting_bytes > self._most_bytes):
            dropped.append(self.waiting.popleft())
            self.waiting_bytes -= dropped[-1].size
        return dropped

    def resume(self) -> None:
        """Send what waits, as far as the bridge takes it."""
        while self._refused and self.connection is not None and self.connection.takes_more:
            entry = self._refused.popleft()
            self._refused_bytes -= entry.size
            self._write(None, entry)
        while self._again and self.connection is not None and self.connection.takes_more:
            packet_id = self._again.popleft()
            again = self.in_flight.get(packet_id)  # it may have been acknowledged meanwhile
            if again is not None and again.subscriptions:
                self._write(packet_id, again)
            elif again is not None:
                del self.in_flight[packet_id]
        while self.waiting and not self._again and self._may_send:
            entry = self.waiting.popleft()
            self.waiting_bytes -= entry.size
            self.send(entry)

    def ended(self, packet_id: int, identifier: int) -> None:
        """Note that the result of a message has come, for one of its events: for that one it is not sent again."""
        entry = self.in_flight.get(packet_id)
        if entry is not None:
            entry.subscriptions = tuple([one for one in entry.subscriptions if one.identifier != identifier])

    def acknowledged(self, packet_id: int) -> None:
        """Forget a message that the bridge has done with, and send the next one."""
        entry = self.in_flight.pop(packet_id, None)
        if entry is not None and entry.key is not None and self._lossless is not None:
            self._keys.discard(entry.key)
            self._lossless.acknowledged(entry.key)
        if self.waiting:
            self.resume()

    def refuse_entry(self, entry: Entry, failure: CallError) -> bool:
        """Send a message with the failure that ends it, before those that wait; return False where too many are."""
        entry.refused, entry.is_late = written(failure), True
        if self._refused_bytes + entry.size > _MOST_UNKEPT_BYTES:
            return False
        self._refused.append(entry)
        self._refused_bytes += entry.size
        self.resume()
        return True

    # Messages on disk: the session is what `Lossless` calls a `RowQueue`.

    def put(self, name: EventName, key: str, message: Message | None, hops: int) -> None:
        """Send a message of a lossless event, or let it wait on disk; None: it is read when its turn comes."""
        if key in self._keys:
            return
        entry = Entry(message, (self.subscriptions["event", *name],), hops, key)
        if self.takes_at_once:
            self.send(entry)
        else:
            entry.message = None
            self.wait(entry)

    def refuse(self, name: EventName, message: Message, hops: int, failure: CallError) -> None:
        """Send a message that was not kept, with the failure that ends it.

        It is sent with QoS 0: a full route would keep it behind its other messages for as long as its target is away.
        """
        self.refuse_entry(Entry(message, (self.subscriptions["event", *name],), hops), failure)

    # Other subscriptions.

    def forget(self, subscription: Subscription) -> None:
        """Forget the messages on disk that wait for a subscription."""
        self._keep(one for one in self.waiting if one.key is None or subscription not in one.subscriptions)

    def hand_over(self, subscription: Subscription, wanted: Subscription) -> None:
        """Move the messages that wait for a subscription to the one, of another session, that takes its place.

        Those on disk are forgotten here: `Lossless` puts them there.
        """
        self.subscriptions.pop(subscription.key, None)
        self.forget(subscription)
        for entry in self.waiting:
            if subscription in entry.subscriptions:
                wanted.session.wait(replace(entry, subscriptions=(wanted,)))
                left = [one for one in entry.subscriptions if one is not subscription]
                entry.subscriptions = tuple(left)
        self._keep(one for one in self.waiting if one.subscriptions)
        wanted.session.resume()

    def _keep(self, entries: Iterable[Entry]) -> None:
        self.waiting = deque(list(entries))
        self.waiting_bytes = sum(one.size for one in self.waiting)

    @property
    def _may_send(self) -> bool:
        connection = self.connection
        return connection is not None and len(self.in_flight) < self._most_in_flight and connection.takes_more

    def _free_id(self) -> int:
        while True:
            self._last_id = self._last_id % 65_535 + 1
            if self._last_id not in self.in_flight:
                return self._last_id


def written(failure: CallError) -> str:
    """Write a failure as the property `rest-bridge-refused`."""
    return json.dumps([failure.code.value, failure.message, failure.hint])


def _properties(identifiers: tuple[int, ...], hops: int, more: list[tuple[str, str]]) -> bytes:
    pairs = [(HOPS, str(hops)), *more] if hops else more
    return write_properties({Property.SUBSCRIPTION_IDENTIFIER: identifiers, Property.USER_PROPERTY: pairs})


@lru_cache(maxsize=1024)
def _usual(identifiers: tuple[int, ...], hops: int) -> bytes:
    """Return the properties of a message that goes on at once; cached, since most messages have the same."""
    return _properties(identifiers, hops, [])

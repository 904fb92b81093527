"""The messages of one session of a worker on their way to the engine, and the acknowledgement of each.

A message is acknowledged as soon as all its calls have ended, so PUBACKs do not keep the order of the messages. MQTT 5
section 4.6 asks for that order. But with it one call that is retried for an hour would hold back all later PUBACKs, and
the broker would stop sending. Brokers accept PUBACKs in any order.

`event_intake` has the sessions of the plugin's bridge. The event loop only.
"""

import asyncio
import logging
import math
import time
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol
from zlib import crc32

from msgspec.structs import replace

from amqtt_rest_bridge.lot.model import EventName, Message, MessageProperties
from amqtt_rest_bridge.mqtt.connection import MqttConnection
from amqtt_rest_bridge.mqtt.packets import Publish
from amqtt_rest_bridge.mqtt.private import KEY, TIME
from amqtt_rest_bridge.mqtt.publisher import HOPS
from amqtt_rest_bridge.mqtt.reconnecting import ReconnectingClient
from amqtt_rest_bridge.mqtt.standard import MOST_USER_BYTES, Properties, Property
from amqtt_rest_bridge.mqtt.values import Address, ClientSession, Subscription
from amqtt_rest_bridge.times import LineLimit
from amqtt_rest_bridge.topics import filter_matches, loggable

MOST_PROPERTIES: Final = 32
"""User properties of a message that are carried."""
_LONGEST_CORRELATION: Final = 64
_LONGEST_KEY: Final = 255
_KEYS: Final = uuid.UUID("6f2f9f0a-5d0b-5b0e-9a3c-7d2f1d2b8c11")  # the namespace of keys made here

log = logging.getLogger(__name__)

_MOST_KNOWN: Final = 4096  # combinations of subscriptions
_WARN_SECONDS: Final = 60.0  # between two warnings of a session
_MOST_AT_ONCE: Final = 64  # messages that are offered in one iteration of the loop


@dataclass(slots=True, eq=False)
class MqttDelivery:
    """A message that its session holds. The last `release` acknowledges it, on the connection on which it came last.

    It is an `engine.needs.Delivery`.
    """

    session: "MessageSession"
    connection: MqttConnection
    received: Publish
    is_bounded: bool = True
    has_key: bool = False
    at_once: bool = False  # it is acknowledged on arrival
    is_shared: bool = False  # calls of several events came of it
    has_ended: bool = False
    came_again: bool = False  # the broker has sent it again since it was dropped
    is_dropped: bool = False  # calls of it must not begin any more
    is_abandoned: bool = False  # a call of it was dropped, so that it must not be acknowledged
    size: int = field(init=False)  # its properties take memory, too
    _holds: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        """Note the size: the message may come again with other properties."""
        self.size = self.received.size

    def move(self, connection: MqttConnection, received: Publish) -> bool:
        """Go over to the connection on which the message came again; return False when it is another message."""
        before = self.received
        if (before.topic, before.payload) != (received.topic, received.payload):
            return False
        self.connection, self.received, self.came_again = connection, received, self.is_dropped
        return True

    def note_calls(self) -> None:
        """Note whether several calls hold the message; its session holds it once, too."""
        self.is_shared = self.is_shared or self._holds > 2

    def hold(self) -> None:
        """Note that one more call or publication depends on it."""
        self._holds += 1

    def release(self) -> None:
        """Note that a call or publication has ended; the last one acknowledges the message."""
        self._holds -= 1
        if not self._holds:
            self.has_ended = True
            self.session.end_message(self)

    def abandon(self) -> None:
        """Note that a call was given up before it began: the message is not acknowledged, and comes again."""
        self.is_abandoned = True
        self.release()

    def key(self, event: EventName) -> str:
        """Return the Idempotency-Key of the message for an event."""
        return idempotency_key(self.session.client.client_id, self.received, event)

    def mark(self, event: EventName) -> str:
        """Return what tells the broker that a publication ends the message for an event."""
        return self.session.mark(self, event)


class MessageSession(ABC):
    """A session, and the messages of it that have come and were not acknowledged, by packet id.

    Args:
        broker: Returns the broker's address; called before each connection.
        session: The client; its Receive Maximum bounds what the broker sends before it is acknowledged.
        gate: Awaited before each connection.
    """

    def __init__(
        self, broker: Callable[[], Address], session: ClientSession, gate: Callable[[], Awaitable[object]] | None = None
    ) -> None:
        self.held = 0  # messages that have come and not ended
        self.redelivered = 0  # messages that have come and that the broker had sent before
        self.is_paused = False
        self.unacknowledged: dict[int, MqttDelivery] = {}
        self.client = ReconnectingClient(broker, session, self.take, self.connected, gate=gate)

    @abstractmethod
    def take(self, connection: MqttConnection, received: Publish) -> None:
        """Take a message that a connection has read."""

    @abstractmethod
    def accept(self, connection: MqttConnection, received: Publish) -> None:
        """Begin the calls of a message."""

    @abstractmethod
    async def connected(self, connection: MqttConnection) -> None:
        """Subscribe on a new connection."""

    def mark(self, delivery: MqttDelivery, event: EventName) -> str:  # noqa: ARG002
        """Return the mark of a publication that ends a message for an event, empty without one: see `Delivery.mark`."""
        return ""

    def pause(self) -> None:
        """Take no more messages, for good; acknowledgements are sent all the same."""
        self.is_paused = True
        if self.client.connection is not None:
            self.client.connection.pause()

    def add(self, delivery: MqttDelivery) -> None:
        """Hold a message that has come."""
        self.held += 1
        if delivery.received.packet_id is not None:
            self.unacknowledged[delivery.received.packet_id] = delivery

    def remove(self, delivery: MqttDelivery) -> None:
        """Remove a message: it is acknowledged, or comes again as another one."""
        packet_id = delivery.received.packet_id
        if packet_id is not None and self.unacknowledged.get(packet_id) is delivery:
            del self.unacknowledged[packet_id]

    def goes_on(self, connection: MqttConnection, received: Publish) -> bool:
        """Return whether a message came on an earlier connection, and its calls go on or have ended."""
        if not received.duplicate:
            return False
        self.redelivered += 1
        known = None if received.packet_id is None else self.unacknowledged.get(received.packet_id)
        if known is None or known.is_abandoned or not known.move(connection, received):
            return False
        if known.has_ended:
            self._acknowledge(known)
        return True

    def end_message(self, delivery: MqttDelivery) -> None:
        """Acknowledge a message whose calls have ended. An abandoned message is not acknowledged: it comes again."""
        self.held -= 1
        if not delivery.is_abandoned:
            self._acknowledge(delivery)
        elif delivery.came_again and delivery.connection.is_open:
            self.accept(delivery.connection, delivery.received)

    def _acknowledge(self, delivery: MqttDelivery) -> None:
        """Send PUBACK; without a connection, once the broker has sent the message again on the next one."""
        if delivery.received.packet_id is not None and delivery.connection.is_open:
            self.remove(delivery)
            delivery.connection.acknowledge(delivery.received.packet_id)


# What is carried of a message's properties.


def carried(properties: Properties) -> MessageProperties | None:
    """Return the properties of a message that the bridge carries, None without any.

    It carries the first 32 user properties, and 8 KiB of them at most.
    """
    pairs, correlation = properties.get(Property.USER_PROPERTY), properties.get(Property.CORRELATION_DATA)
    if pairs is None and correlation is None:
        return None
    kept: list[tuple[str, str]] = []
    room = MOST_USER_BYTES
    for name, value in pairs or ():
        room -= len(name.encode()) + len(value.encode())
        if room < 0 or len(kept) == MOST_PROPERTIES:
            break
        if name not in (HOPS, TIME):
            kept.append((name, value))
    if correlation is not None:  # ours are shorter: one that is cut equals none of them
        return MessageProperties(tuple(kept), correlation[:_LONGEST_CORRELATION])
    return MessageProperties(tuple(kept)) if kept else None


def size_of(received: Publish) -> int:
    """Return the bytes that `max_message_bytes` limits: of the payload, or all others if these are more."""
    return max(len(received.payload), received.size - len(received.payload))


def time_of(text: str | None, now: float) -> float:
    """Return the Unix time in a user property; `now` if it is missing or not a time of the past."""
    try:
        at = now if text is None else float(text)
    except ValueError:
        return now
    return at if 0 <= at < now else now


def hops_of(properties: Properties) -> int:
    """Return how many routes a message has passed through, 0 where the property is not a number."""
    for name, value in properties.get(Property.USER_PROPERTY, ()):
        if name == HOPS and value.isascii() and value.isdigit():
            return min(int(value[:4]), 1000)
    return 0


def idempotency_key(client_id: str, message: Publish, event: EventName) -> str:
    """Return the Idempotency-Key of a message for an event: the publisher's, or one made of the message.

    The key is the same whenever the broker sends the message again. With QoS 0, which is sent once, it is new.
    """
    pairs = message.properties.get(Property.USER_PROPERTY, ())
    given = next((value for name, value in pairs if name.lower() == KEY), None)
    if given is None and (correlation := message.properties.get(Property.CORRELATION_DATA)):
        given = correlation.decode("latin-1")
    if given is not None:
        fits = len(given) <= _LONGEST_KEY and given.isascii() and given.isprintable()
        return given if fits and given == given.strip() != "" else str(uuid.uuid5(_KEYS, given))
    if message.packet_id is None:
        return str(uuid.uuid4())
    name = "\0".join([client_id, str(message.packet_id), *event, message.topic, ""])
    return str(uuid.uuid5(_KEYS, (name.encode() + message.payload).decode("latin-1")))


class Offer(Protocol):
    """`ClientMode.offer`."""

    def __call__(
        self, message: Message, *, hops: int, elsewhere: Collection[EventName], delivery: "MqttDelivery | None",
        size: int,
    ) -> None:  # fmt: skip
        """Take a message for its events but those that receive it elsewhere. Does not await."""


@dataclass(frozen=True, slots=True)
class Feed:
    """A subscription, and the events that its messages are for.

    `by_slot`: the subscription is not shared; each slot takes the messages of its own topics.
    `at_once`: messages are acknowledged on arrival.
    """

    topic_filter: str
    events: frozenset[EventName]
    by_slot: bool = False
    at_once: bool = False

    @property
    def identifier(self) -> int:
        """Return the subscription identifier: the same after a restart, when the session has messages from before."""
        return 1 + crc32(self.topic_filter.encode()) % 268_435_454

    def matches(self, topic: str) -> bool:
        """Return whether the subscription is for a topic."""
        shared = self.topic_filter.startswith("$share/")
        return filter_matches(self.topic_filter.split("/", 2)[2] if shared else self.topic_filter, topic)


class Capacity:
    """How many messages and bytes are held, and how many may be. Several capacities may share the bytes of `within`."""

    __slots__ = ("held", "held_bytes", "most", "most_bytes", "within")

    def __init__(self, most: float = math.inf, most_bytes: float = math.inf, within: "Capacity | None" = None) -> None:
        self.most = most
        self.most_bytes = most_bytes
        self.within = within
        self.held = self.held_bytes = 0

    @property
    def is_left(self) -> bool:
        """Return whether one more message may be held."""
        within = self.within
        is_left = self.held < self.most and self.held_bytes < self.most_bytes
        return is_left and (within is None or within.held_bytes < within.most_bytes)

    def count(self, messages: int, size: int) -> None:
        """Count messages that are held from now on; negative numbers are released."""
        self.held += messages
        self.held_bytes += size
        if self.within is not None:
            self.within.held_bytes += size


class _Delayed(NamedTuple):
    """A message for ORDERED events that has to wait."""

    message: Message
    hops: int
    elsewhere: frozenset[EventName]
    delivery: MqttDelivery


class Intake(MessageSession):
    """The messages of one session.

    The session sets no Maximum Packet Size, since brokers silently drop larger messages.

    Args:
        broker, session, gate: As of `MessageSession`.
        offer: Takes the messages.
        slot, slots: The slot that the session is of, and how many there are, for feeds by slot.
        capacity: Bounds what the sessions of the route hold. When it is full, a session that holds a message reads no
            other.
        keeps_unserved: Returns whether to hold messages that no event here takes, since another worker may have the
            event.
    """

    def __init__(
        self, broker: Callable[[], Address], session: ClientSession, offer: Offer, slot: int, slots: int,
        capacity: Capacity | None = None, gate: Callable[[], Awaitable[object]] | None = None,
        keeps_unserved: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        super().__init__(broker, session, gate)
        self.ordered_from = -math.inf
        """Calls of ORDERED events begin at this time of the loop: until then calls of a crashed worker may run."""
        self._capacity = capacity or Capacity()
        self._offer = offer
        self._slot, self._slots = slot, slots
        self._feeds: dict[int, Feed] = {}
        self._wanted: list[Subscription] = []
        self._gone: set[str] = set()  # topic filters to unsubscribe
        self._all: frozenset[EventName] = frozenset()
        self._ordered: frozenset[EventName] = frozenset()
        self._known: dict[tuple[tuple[int, ...], bool], frozenset[EventName]] = {}  # what `_elsewhere` returns
        self._waiting: deque[_Delayed] = deque()
        self._connection: MqttConnection | None = None  # the latest
        self._keeps_unserved = keeps_unserved
        self._unserved: list[MqttDelivery] = []
        self._warnings = LineLimit(_WARN_SECONDS)
        self._subscribing = 0
        self._missed = False  # messages came without room while the broker's answer was awaited
        self._has_subscribed = False  # on the last connection, which was closed for missed messages

    def prepare(self, feeds: Iterable[Feed], events: frozenset[EventName]) -> list[str]:
        """Use these feeds for messages from now on; return the topic filters that are gone.

        `events` are the client events of all routes.
        """
        before, feeds = self._feeds, list(feeds)
        self._feeds = {feed.identifier: feed for feed in feeds}
        self._wanted = [Subscription(feed.topic_filter, feed.identifier) for feed in feeds]
        self._all = events
        self._ordered = frozenset[EventName]().union(*(feed.events for feed in self._feeds.values() if feed.by_slot))
        self._known = {}
        self.look_again()
        return [feed.topic_filter for number, feed in before.items() if number not in self._feeds]

    async def subscribe(self, gone: Iterable[str] = ()) -> None:
        """Subscribe all feeds, then unsubscribe the `gone` topic filters; without a connection, on the next one."""
        self._gone.update(gone)
        if self.client.connection is not None:
            await self._subscribe(self.client.connection)

    def drop(self, *, shared: bool) -> None:
        """Drop messages whose calls have not begun: the broker sends them on the session's next connection.

        Messages that wait here are dropped at once; `MqttDelivery.is_dropped` tells the engine not to begin the others.
        A message for several events is dropped only with `shared`: one of its calls may have ended, and would be
        repeated.
        """
        for delivery in self.unacknowledged.values():
            delivery.is_dropped = not delivery.has_ended and (shared or not delivery.is_shared)
        waiting, self._waiting = self._waiting, deque[_Delayed]()
        self._waiting.extend(one for one in waiting if not (shared or one.delivery.is_dropped))
        for one in waiting:
            if shared or one.delivery.is_dropped:
                one.delivery.abandon()
        while self._unserved:
            self._unserved.pop().abandon()

    def look_again(self) -> None:
        """Offer the messages that no event took again, by the present routes."""
        unserved, self._unserved = self._unserved, []
        for delivery in unserved:
            self._distribute(delivery)
            delivery.release()

    async def connected(self, connection: MqttConnection) -> None:
        """Subscribe, unless only missed messages were the reason for the new connection."""
        self._connection = connection
        has_subscribed, self._has_subscribed = self._has_subscribed, False
        if not connection.session_present:  # then no message of before comes again
            self.unacknowledged.clear()
            self._gone = set()
        elif has_subscribed:
            return
        await self._subscribe(connection)

    async def _subscribe(self, connection: MqttConnection) -> None:
        """Subscribe. The broker's answers come behind messages, so these are read even without room.

        Messages without room are not taken. Once subscribed, the session connects again, and the broker repeats them.
        """
        self._subscribing += 1
        connection.resume()
        try:
            wanted = list(self._wanted)
            await connection.subscribe(wanted)
            gone = self._gone - {one.topic_filter for one in wanted}
            await connection.unsubscribe(map(Subscription, gone))
            self._gone -= gone
        finally:
            self._subscribing -= 1
            if not self._has_room():
                connection.pause()
        if self._missed and not self._subscribing:
            self._missed, self._has_subscribed = False, True
            await self.client.connect_again(connection)

    def take(self, connection: MqttConnection, received: Publish) -> None:
        """Accept a message, while there is room for one."""
        if not self.goes_on(connection, received):
            if self._missed or (self._subscribing and not self._has_room()):
                self._missed = True  # so are all that follow, as they would be called before it
                return
            self.accept(connection, received)
        if not self._subscribing and not self._has_room():
            connection.pause()

    def accept(self, connection: MqttConnection, received: Publish) -> None:
        """Offer a message to its events."""
        delivery = MqttDelivery(self, connection, received)
        self.add(delivery)
        self._capacity.count(1, received.size)
        self._distribute(delivery)

    def _distribute(self, delivery: MqttDelivery) -> None:
        """Offer a message to its events; to ORDERED ones from `ordered_from` on."""
        received = delivery.received
        identifiers = tuple(received.properties.get(Property.SUBSCRIPTION_IDENTIFIER, ()))
        feeds = [self._feeds[number] for number in identifiers if number in self._feeds]
        elsewhere = frozenset[EventName]()
        if feeds and len(feeds) == len(identifiers):
            elsewhere = self._elsewhere(identifiers, crc32(received.topic.encode()) % self._slots == self._slot)
            delivery.at_once = all(feed.at_once for feed in feeds)
        elif not any(feed.matches(received.topic) for feed in self._feeds.values()):
            self._take_unserved(delivery)
            return
        delivery.hold()
        if not received.retain and elsewhere != self._all:
            hops, properties = hops_of(received.properties), carried(received.properties)
            now = time.time()
            message = Message(received.topic, received.payload, now, properties)
            user = received.properties.get(Property.USER_PROPERTY)
            if user is not None and (first := dict(user).get(TIME)) is not None:
                message = replace(message, timestamp=time_of(first, now), sent_again=now)
            if self._ordered and (self._waiting or self._seconds_left > 0) and (ordered := self._ordered - elsewhere):
                if not self._waiting:
                    asyncio.get_running_loop().call_later(max(0.0, self._seconds_left), self._offer_waiting)
                delivery.hold()
                self._waiting.append(_Delayed(message, hops, self._all - ordered, delivery))
                elsewhere |= ordered
            self._offer_now(message, hops, elsewhere, delivery)
        delivery.release()

    def _elsewhere(self, identifiers: tuple[int, ...], is_own: bool) -> frozenset[EventName]:
        """Return the events that receive a message by another subscription, or in another slot if it is not `is_own`.

        All other events take the message: so does one that a reload adds before `prepare` knows it, and misses none.
        """
        known = self._known.get((identifiers, is_own))
        if known is None:
            feeds = [self._feeds[number] for number in identifiers]
            known = self._all - frozenset().union(*(feed.events for feed in feeds if is_own or not feed.by_slot))
            if len(self._known) < _MOST_KNOWN:
                self._known[identifiers, is_own] = known
        return known

    def _take_unserved(self, delivery: MqttDelivery) -> None:
        """Hold a message that no event here takes while another worker may have one; else acknowledge it.

        Such a message comes by a subscription of other routes: those of another worker that had the slot, or those
        before a reload.
        """
        delivery.hold()
        is_kept = self._keeps_unserved()
        if self._warnings.count():
            what = "it waits for a worker that has one" if is_kept else "no other worker has one: it is acknowledged"
            topic = loggable(delivery.received.topic)
            log.warning("%s: no event here takes a message on %s; %s", self.client.client_id, topic, what)
        if is_kept:
            self._unserved.append(delivery)
        else:
            delivery.release()

    @property
    def _seconds_left(self) -> float:
        return self.ordered_from - asyncio.get_running_loop().time()

    def _offer_waiting(self) -> None:
        for _ in range(min(_MOST_AT_ONCE, len(self._waiting))):
            waiting = self._waiting.popleft()
            self._offer_now(*waiting)
            waiting.delivery.release()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._offer_waiting)

    def _offer_now(self, message: Message, hops: int, elsewhere: frozenset[EventName], delivery: MqttDelivery) -> None:
        try:
            holding, size = None if delivery.at_once else delivery, size_of(delivery.received)
            self._offer(message, hops=hops, elsewhere=elsewhere, delivery=holding, size=size)
        except Exception:  # no message keeps the next one from being read
            log.exception("a message on %s was not looked at", loggable(message.topic))
        delivery.note_calls()

    def _has_room(self) -> bool:
        """Return whether one more message may be read: the broker keeps the others.

        Messages beyond the room come with QoS 0, or if the broker exceeds Receive Maximum.
        """
        return not self.is_paused and (not self.held or self._capacity.is_left)

    def end_message(self, delivery: MqttDelivery) -> None:
        """Acknowledge a message, and read the next ones if there is room now."""
        self._capacity.count(-1, -delivery.size)
        super().end_message(delivery)
        if self._has_room() and self._connection is not None:  # which may be a later one than the message came on
            self._connection.resume()

"""Offers the messages of one session of a worker to the engine, and acknowledges each when its calls have ended.

`Intake` is such a session: `connection` reads its messages, and `engine.client_mode` makes calls of them. `Feeds` says
for which events a message is, `Capacity` whether there is room for it. `MessageSession` and `MqttDelivery` are shared
with `event_intake`, which does the same for the plugin's bridge. The event loop only.

A message is acknowledged as soon as all its calls have ended, so PUBACKs do not keep the order of the messages. MQTT 5
section 4.6 asks for that order. But with it one call that is retried for an hour would hold back all later PUBACKs, and
the broker would stop sending. Brokers accept PUBACKs in any order.
"""

import asyncio
import logging
import math
import time
import uuid
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol
from zlib import crc32

from msgspec.structs import replace

from amqtt_rest_bridge.lot.model import EventName, Message, MessageProperties
from amqtt_rest_bridge.mqtt.connection import MqttConnection
from amqtt_rest_bridge.mqtt.packets import Publish
from amqtt_rest_bridge.mqtt.private import KEY, TIME
from amqtt_rest_bridge.mqtt.publisher import HOPS
from amqtt_rest_bridge.mqtt.reconnecting import ConnectionUser, ReconnectingClient
from amqtt_rest_bridge.mqtt.standard import MOST_USER_BYTES, Properties, Property
from amqtt_rest_bridge.mqtt.values import Broker, ClientSession, Subscription
from amqtt_rest_bridge.times import LineLimit
from amqtt_rest_bridge.topics import filter_matches, loggable

MOST_PROPERTIES: Final = 32
"""User properties of a message that the bridge passes on."""
_LONGEST_CORRELATION: Final = 64
_LONGEST_KEY: Final = 255
_KEYS: Final = uuid.UUID("6f2f9f0a-5d0b-5b0e-9a3c-7d2f1d2b8c11")  # the namespace of keys made here

log = logging.getLogger(__name__)

_MOST_CACHED: Final = 4096  # combinations of subscriptions whose events are cached
_WARN_SECONDS: Final = 60.0  # between two warnings of a session
_MOST_AT_ONCE: Final = 64  # delayed messages that are offered in one iteration of the loop


@dataclass(slots=True, eq=False)
class MqttDelivery:
    """A message that its session holds: an `engine.needs.Delivery`.

    It counts the calls and publications that depend on the message. When the last one ends, the message is acknowledged
    on the connection on which it came last.
    """

    session: "MessageSession"
    connection: MqttConnection
    received: Publish
    is_bounded: bool = True  # its source sends no more messages than there is room for
    has_key: bool = False  # it was kept for a lossless route
    is_realtime: bool = False  # it is acknowledged on arrival, even if its calls fail
    has_several_calls: bool = False  # of several events
    has_ended: bool = False  # its last call or publication has ended
    is_dropped: bool = False  # no call of it may begin any more
    came_after_drop: bool = False  # the broker has sent it again since it was dropped
    is_abandoned: bool = False  # a call of it was given up, so it must not be acknowledged
    size: int = field(init=False)  # bytes, with its properties
    _holds: int = field(init=False, default=0)  # how many times `hold` was called without `release`

    def __post_init__(self) -> None:
        """Keep the size of the first delivery: the message may come again with other properties."""
        self.size = self.received.size

    def note_calls(self) -> None:
        """Set `has_several_calls` if several calls hold the message. One more hold is that of its session."""
        self.has_several_calls = self.has_several_calls or self._holds > 2

    def hold(self) -> None:
        """Count one more call or publication that depends on the message."""
        self._holds += 1

    def release(self) -> None:
        """Note that a call or publication has ended; the last one acknowledges the message."""
        self._holds -= 1
        if not self._holds:
            self.has_ended = True
            self.session.end_message(self)

    def abandon(self) -> None:
        """Release the message for a call that was given up before it began. It comes again, as no PUBACK is sent."""
        self.is_abandoned = True
        self.release()

    def key(self, event: EventName) -> str:
        """Return the Idempotency-Key of the message for an event."""
        return idempotency_key(self.session.client_id, self.received, event)

    def mark(self, event: EventName) -> str:
        """Return the mark of a publication that ends the message for an event; see `MessageSession.mark`."""
        return self.session.mark(self, event)


class MessageSession(ConnectionUser):
    """A session, and its messages that were not acknowledged, by packet id.

    Args:
        broker: Where to connect.
        session: The client; its Receive Maximum bounds what the broker sends before it is acknowledged.
        gate: Has to be set before a connection is opened.
    """

    def __init__(self, broker: Broker, session: ClientSession, gate: asyncio.Event | None = None) -> None:
        self.client_id = session.client_id
        self.held = 0  # messages whose calls have not all ended
        self.redelivered = 0  # messages that came with DUP
        self.is_paused = False
        self.unacknowledged: dict[int, MqttDelivery] = {}
        self.client = ReconnectingClient(broker, session, self, gate)

    @abstractmethod
    def accept(self, connection: MqttConnection, received: Publish) -> None:
        """Hold a message that has come, and begin its calls."""

    def mark(self, delivery: MqttDelivery, event: EventName) -> str:  # noqa: ARG002
        """Return the mark of a publication that ends a message for an event, empty without one: see `Delivery.mark`."""
        return ""

    def pause(self) -> None:
        """Read no more messages from now on. Acknowledgements are still sent."""
        self.is_paused = True
        if self.client.connection is not None:
            self.client.connection.pause()

    def add(self, delivery: MqttDelivery) -> None:
        """Hold a message that has come."""
        self.held += 1
        if delivery.received.packet_id is not None:
            self.unacknowledged[delivery.received.packet_id] = delivery

    def remove(self, delivery: MqttDelivery) -> None:
        """Forget a message that is acknowledged, or that will come again as a new one."""
        packet_id = delivery.received.packet_id
        if packet_id is not None and self.unacknowledged.get(packet_id) is delivery:
            del self.unacknowledged[packet_id]

    def note_redelivery(self, connection: MqttConnection, received: Publish) -> bool:
        """Return whether a message came before and is still known. If its calls have ended, acknowledge it now."""
        if not received.duplicate:
            return False
        self.redelivered += 1
        known = None if received.packet_id is None else self.unacknowledged.get(received.packet_id)
        if known is None or known.is_abandoned:
            return False
        if (known.received.topic, known.received.payload) != (received.topic, received.payload):  # another message
            return False
        known.connection, known.received = connection, received
        known.came_after_drop = known.is_dropped
        if known.has_ended:
            self._acknowledge(known)
        return True

    def end_message(self, delivery: MqttDelivery) -> None:
        """Acknowledge a message whose calls have ended; do not acknowledge an abandoned one, so that it comes again."""
        self.held -= 1
        if not delivery.is_abandoned:
            self._acknowledge(delivery)
        elif delivery.came_after_drop and delivery.connection.is_open:
            self.accept(delivery.connection, delivery.received)

    def _acknowledge(self, delivery: MqttDelivery) -> None:
        """Send PUBACK. If the connection has ended, `note_redelivery` sends it when the message comes again."""
        if delivery.received.packet_id is not None and delivery.connection.is_open:
            self.remove(delivery)
            delivery.connection.acknowledge(delivery.received.packet_id)


class Offer(Protocol):
    """`ClientMode.offer`."""

    def __call__(
        self, message: Message, *, hops: int, excluded: Collection[EventName], delivery: "MqttDelivery | None",
        size: int,
    ) -> None:  # fmt: skip
        """Offer a message to its events, except the `excluded` ones. Does not await."""


@dataclass(frozen=True, slots=True)
class Feed:
    """A subscription, and the events that its messages are for.

    Usually workers share the subscription: the broker sends each message to one slot. With `by_slot`, for ORDERED
    events, it is not shared: all slots receive each message, and the slot of its topic takes it. With `is_realtime`
    messages are acknowledged on arrival.
    """

    topic_filter: str
    events: frozenset[EventName]
    by_slot: bool = False
    is_realtime: bool = False

    @property
    def identifier(self) -> int:
        """Return the subscription identifier. It depends on the filter only: messages of kept sessions have it too."""
        return 1 + crc32(self.topic_filter.encode()) % 268_435_454

    def matches(self, topic: str) -> bool:
        """Return whether the subscription is for a topic."""
        shared = self.topic_filter.startswith("$share/")
        return filter_matches(self.topic_filter.split("/", 2)[2] if shared else self.topic_filter, topic)


class Feeds:
    """The feeds of a session, and the events that receive a message through other subscriptions.

    Args:
        slot, slots: The slot of the session, and how many slots there are.
    """

    def __init__(self, slot: int, slots: int) -> None:
        self.by_identifier: dict[int, Feed] = {}
        self.events: frozenset[EventName] = frozenset()
        """The client events of all routes."""
        self.ordered_events: frozenset[EventName] = frozenset()
        """The events of feeds by slot."""
        self._slot, self._slots = slot, slots
        self._other_events: dict[tuple[tuple[int, ...], bool], frozenset[EventName]] = {}  # cached

    def replace(self, feeds: Iterable[Feed], events: frozenset[EventName]) -> list[str]:
        """Set the feeds, and the client events of all routes; return the topic filters of feeds that are gone."""
        before, self.by_identifier = self.by_identifier, {feed.identifier: feed for feed in feeds}
        by_slot = [feed.events for feed in self.by_identifier.values() if feed.by_slot]
        self.events, self.ordered_events, self._other_events = events, frozenset[EventName]().union(*by_slot), {}
        return [feed.topic_filter for number, feed in before.items() if number not in self.by_identifier]

    def match(self, topic: str) -> bool:
        """Return whether a feed is for a topic."""
        return any(feed.matches(topic) for feed in self.by_identifier.values())

    def other_events(self, identifiers: tuple[int, ...], topic: str) -> frozenset[EventName]:
        """Return the events that do not take this message: those that are not of the subscriptions it came through.

        They receive it through subscriptions of their own. Events of feeds by slot are among them if another slot takes
        the messages of the topic. Events that a reload has just added are not, since `replace` does not know them yet:
        they take the message.
        """
        is_own = crc32(topic.encode()) % self._slots == self._slot
        known = self._other_events.get((identifiers, is_own))
        if known is None:
            feeds = [self.by_identifier[number] for number in identifiers]
            known = self.events - frozenset().union(*(feed.events for feed in feeds if is_own or not feed.by_slot))
            if len(self._other_events) < _MOST_CACHED:
                self._other_events[identifiers, is_own] = known
        return known


class Capacity:
    """How many messages and bytes are held, and may be held. Capacities with the same `within` share its bytes."""

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
        """Add to the messages and bytes that are held; negative numbers release them."""
        self.held += messages
        self.held_bytes += size
        if self.within is not None:
            self.within.held_bytes += size


class _Delayed(NamedTuple):
    """A message for ORDERED events that waits until `ordered_from`: the arguments of `_offer_now`."""

    message: Message
    hops: int
    excluded: frozenset[EventName]
    delivery: MqttDelivery


class Intake(MessageSession):
    """A session of a worker, and its messages.

    It subscribes its feeds, offers each message to its events, and stops reading while there is no room. A message goes
    through `receive`, `accept` (it is held), `_distribute` (its events are found) and `_offer_now`. Messages that have
    to wait are in `_delayed` or `_unserved`. No Maximum Packet Size is set, as brokers silently drop larger messages.

    Args:
        broker, session, gate: As of `MessageSession`.
        offer: Offers a message to the events of the engine.
        slot, slots: The slot of the session, and how many slots there are, for feeds by slot.
        capacity: Bounds what the sessions of the route hold together. While it is full, a session reads only if it
            holds no message itself.
        keeps_unserved: Returns whether to hold messages without an event here, since another worker may have one.
    """

    def __init__(
        self, broker: Broker, session: ClientSession, offer: Offer, slot: int, slots: int,
        capacity: Capacity | None = None, gate: asyncio.Event | None = None,
        keeps_unserved: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        super().__init__(broker, session, gate)
        self.ordered_from = -math.inf
        """Time of the loop when calls of ORDERED events may begin. Until then, calls of a crashed worker may run."""
        self._capacity = capacity or Capacity()
        self._offer = offer
        self._feeds = Feeds(slot, slots)
        self._gone_filters: set[str] = set()  # topic filters to unsubscribe
        self._delayed: deque[_Delayed] = deque()
        self._connection: MqttConnection | None = None  # the latest
        self._keeps_unserved = keeps_unserved
        self._unserved: list[MqttDelivery] = []  # messages without an event here, which another worker may have
        self._warnings = LineLimit(_WARN_SECONDS)
        self._subscribing = 0  # how many runs of `_subscribe` await the broker's answers
        self._has_missed = False  # messages came while `_subscribe` ran, and there was no room for them
        self._is_reconnecting = False  # the connection was closed because of missed messages, after subscribing

    def prepare(self, feeds: Iterable[Feed], events: frozenset[EventName]) -> list[str]:
        """Use these feeds for messages from now on; return the topic filters of former feeds that are gone.

        `events` are the client events of all routes.
        """
        gone = self._feeds.replace(feeds, events)
        self.offer_unserved()
        return gone

    async def subscribe(self, gone: Iterable[str] = ()) -> None:
        """Subscribe all feeds, then unsubscribe the `gone` topic filters: now, or once there is a connection."""
        self._gone_filters.update(gone)
        if self.client.connection is not None:
            await self._subscribe(self.client.connection)

    def drop(self, *, may_repeat_calls: bool) -> None:
        """Drop messages whose calls have not begun. The broker sends them on the session's next connection.

        Delayed and unserved messages are abandoned here. For the others `MqttDelivery.is_dropped` is set, so that the
        engine begins no call of them. If a message with several calls is dropped, those that have ended are repeated
        later; this happens only if `may_repeat_calls`.
        """
        for delivery in self.unacknowledged.values():
            delivery.is_dropped = not delivery.has_ended and (may_repeat_calls or not delivery.has_several_calls)
        waiting, self._delayed = self._delayed, deque[_Delayed]()
        self._delayed.extend(one for one in waiting if not (may_repeat_calls or one.delivery.is_dropped))
        for one in waiting:
            if may_repeat_calls or one.delivery.is_dropped:
                one.delivery.abandon()
        while self._unserved:
            self._unserved.pop().abandon()

    def offer_unserved(self) -> None:
        """Offer the unserved messages again, since routes have changed."""
        unserved, self._unserved = self._unserved, []
        for delivery in unserved:
            self._distribute(delivery)
            delivery.release()

    async def connected(self, connection: MqttConnection) -> None:
        """Subscribe, unless the session has connected again only to receive missed messages."""
        self._connection = connection
        is_reconnecting, self._is_reconnecting = self._is_reconnecting, False
        if not connection.granted.session_present:  # the broker has forgotten the session: no message comes again
            self.unacknowledged.clear()
            self._gone_filters = set()
        elif is_reconnecting:
            return
        await self._subscribe(connection)

    async def _subscribe(self, connection: MqttConnection) -> None:
        """Subscribe the feeds, and unsubscribe the filters that are gone.

        The broker's answers come after messages, so these are read even if there is no room for them. Such messages are
        missed: they are not taken, and after the answers the session connects again, so that the broker repeats them.
        """
        self._subscribing += 1
        connection.resume()
        try:
            feeds = self._feeds.by_identifier.items()
            wanted = [Subscription(feed.topic_filter, number) for number, feed in feeds]
            await connection.subscribe(wanted)
            gone = self._gone_filters - {one.topic_filter for one in wanted}
            await connection.unsubscribe(map(Subscription, gone))
            self._gone_filters -= gone
        finally:
            self._subscribing -= 1
            if not self._has_room():
                connection.pause()
        if self._has_missed and not self._subscribing:
            self._has_missed, self._is_reconnecting = False, True
            await self.client.connect_again(connection)

    def receive(self, connection: MqttConnection, received: Publish) -> None:
        """Accept a message that has come. While `_subscribe` runs, it is missed if there is no room for it."""
        if not self.note_redelivery(connection, received):
            if self._has_missed or (self._subscribing and not self._has_room()):
                self._has_missed = True  # so all later messages are missed too, and the order stays
                return
            self.accept(connection, received)
        if not self._subscribing and not self._has_room():
            connection.pause()

    def accept(self, connection: MqttConnection, received: Publish) -> None:
        """Hold a message, and offer it to its events."""
        delivery = MqttDelivery(self, connection, received)
        self.add(delivery)
        self._capacity.count(1, received.size)
        self._distribute(delivery)

    def _distribute(self, delivery: MqttDelivery) -> None:
        """Offer a message to its events, but a retained message to none, and to ORDERED ones only at `ordered_from`.

        Its events depend on the feeds through which it came:

        - Present feeds: the events of these feeds. This is the usual case.
        - A feed that is gone, while another one is for its topic: all events that listen to the topic.
        - A feed that is gone, and no other one is for its topic: it has no event here (`_hold_unserved`).
        """
        received = delivery.received
        identifiers = tuple(received.properties.get(Property.SUBSCRIPTION_IDENTIFIER, ()))
        known = self._feeds.by_identifier
        feeds = [known[number] for number in identifiers if number in known]
        excluded = frozenset[EventName]()
        if feeds and len(feeds) == len(identifiers):
            excluded = self._feeds.other_events(identifiers, received.topic)
            delivery.is_realtime = all(feed.is_realtime for feed in feeds)
        elif not self._feeds.match(received.topic):
            self._hold_unserved(delivery)
            return
        delivery.hold()
        if not received.retain and excluded != self._feeds.events:
            hops, properties = hops_of(received.properties), carried(received.properties)
            now = time.time()
            message = Message(received.topic, received.payload, now, properties)
            user = received.properties.get(Property.USER_PROPERTY)
            if user is not None and (first := dict(user).get(TIME)) is not None:
                message = replace(message, timestamp=time_of(first, now), sent_again=now)
            if (
                self._feeds.ordered_events
                and (self._delayed or self._seconds_left > 0)
                and (ordered := self._feeds.ordered_events - excluded)
            ):
                if not self._delayed:
                    asyncio.get_running_loop().call_later(max(0.0, self._seconds_left), self._offer_delayed)
                delivery.hold()
                self._delayed.append(_Delayed(message, hops, self._feeds.events - ordered, delivery))
                excluded |= ordered
            self._offer_now(message, hops, excluded, delivery)
        delivery.release()

    def _hold_unserved(self, delivery: MqttDelivery) -> None:
        """Hold a message that has no event here if another worker may have one; else acknowledge it.

        Such a message comes through a subscription for other routes: those of the last worker that had the slot, or
        those before a reload.
        """
        delivery.hold()
        is_kept = self._keeps_unserved()
        if self._warnings.count():
            what = "it waits for a worker that has one" if is_kept else "no other worker has one: it is acknowledged"
            topic = loggable(delivery.received.topic)
            log.warning("%s: no event here takes a message on %s; %s", self.client_id, topic, what)
        if is_kept:
            self._unserved.append(delivery)
        else:
            delivery.release()

    @property
    def _seconds_left(self) -> float:
        return self.ordered_from - asyncio.get_running_loop().time()

    def _offer_delayed(self) -> None:
        """Offer the delayed messages, at most 64 in one iteration of the loop."""
        for _ in range(min(_MOST_AT_ONCE, len(self._delayed))):
            waiting = self._delayed.popleft()
            self._offer_now(*waiting)
            waiting.delivery.release()
        if self._delayed:
            asyncio.get_running_loop().call_soon(self._offer_delayed)

    def _offer_now(self, message: Message, hops: int, excluded: frozenset[EventName], delivery: MqttDelivery) -> None:
        try:
            held, size = None if delivery.is_realtime else delivery, size_of(delivery.received)
            self._offer(message, hops=hops, excluded=excluded, delivery=held, size=size)
        except Exception:  # the next message is read all the same
            log.exception("a message on %s was not looked at", loggable(message.topic))
        delivery.note_calls()

    def _has_room(self) -> bool:
        """Return whether one more message may be read.

        Receive Maximum keeps most messages at the broker, but not those of QoS 0, nor if the broker exceeds it.
        """
        return not self.is_paused and (not self.held or self._capacity.is_left)

    def end_message(self, delivery: MqttDelivery) -> None:
        """Acknowledge a message whose calls have ended, and read further ones if there is room."""
        self._capacity.count(-1, -delivery.size)
        super().end_message(delivery)
        if self._has_room() and self._connection is not None:  # perhaps a later connection than that of the message
            self._connection.resume()


# The properties of a message.


def carried(properties: Properties) -> MessageProperties | None:
    """Return the properties of a message that the bridge passes on, None if it has none of them.

    These are its correlation data, and the first 32 user properties, 8 KiB at most.
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
    if correlation is not None:  # the bridge's own correlation data is shorter than 64, so a cut value never equals it
        return MessageProperties(tuple(kept), correlation[:_LONGEST_CORRELATION])
    return MessageProperties(tuple(kept)) if kept else None


def size_of(received: Publish) -> int:
    """Return the size that `max_message_bytes` limits: bytes of the payload or of the rest, whichever is larger."""
    return max(len(received.payload), received.size - len(received.payload))


def time_of(text: str | None, now: float) -> float:
    """Return the Unix time in a user property; `now` if it is missing or not a time of the past."""
    try:
        at = now if text is None else float(text)
    except ValueError:
        return now
    return at if 0 <= at < now else now


def hops_of(properties: Properties) -> int:
    """Return how many routes a message has passed through, 0 if the property is missing or not a number."""
    for name, value in properties.get(Property.USER_PROPERTY, ()):
        if name == HOPS and value.isascii() and value.isdigit():
            return min(int(value[:4]), 1000)
    return 0


def idempotency_key(client_id: str, message: Publish, event: EventName) -> str:
    """Return the Idempotency-Key of a message for an event: the publisher's, or else one derived from the message.

    The key stays the same if the broker sends the message again. A message of QoS 0 is sent once: its key is random.
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

"""Lossless routes: a message is written to disk before amqtt acknowledges it, and stays there until its call has ended.

`Lossless.on_packet` is amqtt's hook `mqtt_packet_received`. amqtt starts it before the task that acts on the packet. So
what the hook does before its first `await` is done before the PUBACK (PUBREC), and before amqtt asks the ACL:

1. The message is written to disk (`store.spool`), a *row* for each lossless event that subscribes to it.
2. If there is an ACL, it is asked (`acl`). The rows of a forbidden message are removed.
3. The row is put into the `RowQueue` of its event: a session of the bridge (`bridge_session`). Rows of an event without
   a queue stay on disk until the bridge subscribes to the event.
4. When the call has ended, `forget_row` removes the row.

Everything but the constructor runs on the broker's loop.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Protocol

from amqtt.mqtt.publish import PublishPacket
from amqtt.session import Session

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.broker.acl import AclQueue, AclTimes, Undecided, publisher_of
from amqtt_rest_bridge.broker.amqtt_broker import Acl
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.lot.model import EventName, Message
from amqtt_rest_bridge.mqtt.private import replayed_time
from amqtt_rest_bridge.sizes import size_text
from amqtt_rest_bridge.store import BatchNumbers, Kept, Spool, SpoolFullError, Unreadable
from amqtt_rest_bridge.topics import TopicIndex, loggable

log = logging.getLogger(__name__)

_EXACTLY_ONCE: Final = 2
_FLUSH_SECONDS: Final = 0.01  # how long the rows of ended calls may stay on disk
_FLUSHES: Final = 100  # between two checkpoints of the spool
_MOST_UNDECIDED: Final = 16 << 20  # bytes of payloads in memory that wait for the ACL; others are read from disk later


@dataclass(frozen=True, slots=True)
class LosslessEvent:
    """A lossless event, as the bridge subscribes to it.

    All events of its route together may have `most` messages and `most_bytes` of payloads on disk (OVERLOAD_CAPACITY,
    OVERLOAD_BYTES). `batch_size` is 0 without BATCH_SIZE.
    """

    route: str
    event: str
    topic_filter: str
    most: int
    most_bytes: int
    batch_size: int = 0
    batch_seconds: float = 0.0

    @property
    def name(self) -> EventName:
        """Return the names of route and event."""
        return self.route, self.event


class RowQueue(Protocol):
    """The rows that go to one session of the bridge, in the order in which they are put."""

    def put(self, name: EventName, key: str, message: Message | None, hops: int) -> None:
        """Queue a row whose publisher may publish it; do nothing while a session of the bridge has it in flight.

        `message` is None, and `hops` 0, for a row on disk alone: `Lossless.read` returns it when its turn comes.
        """

    def refuse(self, name: EventName, message: Message, hops: int, failure: CallError) -> None:
        """Send the bridge a message that was not kept, with the failure that its event publishes."""


class TakenPayload(bytes):
    """The payload of a message on `topic` that lossless `events` took from its packet.

    amqtt hands this object on from the packet to the broadcast of the message. There `taken_by` reads which events
    already have the message, even if a reload came in between. If amqtt drops the message, nothing has to be undone.
    """

    topic: str
    events: frozenset[EventName]


def message_at(topic: str, payload: bytes, now: float, first_received: float | None) -> Message:
    """Return a message received `now`; `first_received` is when a broker first received one that is published again."""
    if first_received is None:
        return Message(topic, payload, now)
    return Message(topic, payload, min(first_received, now), None, sent_again=now)


def taken_by(session: Session | None, topic: str, payload: bytes) -> Collection[EventName]:
    """Return the events that took a message of this session before its PUBACK.

    Empty if a plugin publishes the same payload again, on another topic or without a session.
    """
    if session is None or not isinstance(payload, TakenPayload) or payload.topic != topic:
        return ()
    return payload.events


@dataclass(slots=True, eq=False)
class _Subscription:
    """A lossless event in use. Compared by identity, so that a tuple of them can be the key of a cache."""

    event: LosslessEvent
    queue: RowQueue
    batch: BatchNumbers | None


class Lossless:
    """Writes the messages of lossless routes to disk, asks the ACL about them, and sends them to the bridge.

    The constructor blocks while it reads the rows of an earlier run. It asks the ACL about those without a decision,
    also of events that are gone.

    Args:
        spool: The open file; its owner closes it.
        acl: Decides who may publish what.
        clock: Returns Unix time.
        report_error: Called with a route, a code and a sentence for each error that is not the result of a call.
        max_message_bytes: A larger payload is refused.
        acl_times: How long the ACL may take.
    """

    def __init__(
        self,
        spool: Spool,
        acl: Acl,
        clock: Callable[[], float],
        report_error: Callable[[str, str, str], None],
        max_message_bytes: int,
        acl_times: AclTimes | None = None,
    ) -> None:
        self._spool = spool
        self._clock = clock
        self._report_error = report_error
        self._max_message_bytes = max_message_bytes
        self._acl = acl
        self._acl_queue = AclQueue(self, acl, acl_times or AclTimes())
        self._subscriptions: dict[EventName, _Subscription] = {}
        self._queues: dict[EventName, RowQueue] = {}  # also of events that were lossless and still have rows
        self._index: TopicIndex[_Subscription] | None = None  # of `_subscriptions`; None: to be built again
        self._rows = RowIndex()
        self._undecided: set[str] = set()  # keys of rows that wait for the ACL
        self._undecided_bytes = 0
        self._unreadable: list[Unreadable] = []  # to be reported once the bridge is there
        for row in spool.left_over():
            if isinstance(row, Unreadable):  # it stays in the file, and each start reports it again
                self._unreadable.append(row)
                continue
            self._rows.add(row.key, (row.route, row.event), len(row.message.payload))
            if row.client_id is not None:  # the ACL has not decided about it
                publisher = publisher_of(row.client_id, row.username)
                self._ask_acl(Undecided(publisher, row.username, row.message.topic, None, (row.key,)))

    @property
    def has_events(self) -> bool:
        """Return whether the bridge has lossless events."""
        return bool(self._subscriptions)

    @property
    def rows(self) -> Mapping[str, int]:
        """Return how many rows each route has on disk, without those that cannot be read."""
        return self._rows.by_route()

    @property
    def refusing(self) -> str | None:
        """Return why the disk takes no more messages, None while it takes them."""
        return self._spool.refusing

    @property
    def trouble(self) -> str | None:
        """Return why the last write to the disk failed, None if it succeeded."""
        return self._spool.trouble

    # Events and their queues.

    def subscribe(self, wanted: LosslessEvent, queue: RowQueue) -> None:
        """Keep the messages of an event from now on.

        A new `queue` gets the rows that the event has on disk, the oldest first.
        """
        batch = BatchNumbers(wanted.batch_size, wanted.batch_seconds) if wanted.batch_size else None
        self._subscriptions[wanted.name] = _Subscription(wanted, queue, batch)
        self._index = None
        self._set_queue(wanted.name, queue)

    def stop_keeping(self, name: EventName, queue: RowQueue) -> None:
        """Keep no more messages of an event that is not lossless, or no longer; `queue` gets the rows that it has."""
        if self._subscriptions.pop(name, None) is not None:
            self._index = None
        self._set_queue(name, queue)

    def unsubscribe(self, name: EventName) -> None:
        """Keep no more messages of an event that has ended; its rows stay on disk until it has a queue again."""
        if self._subscriptions.pop(name, None) is not None:
            self._index = None
        self._queues.pop(name, None)
        self._rows.exclude_event(name)

    def _set_queue(self, name: EventName, queue: RowQueue) -> None:
        """Set the queue of an event. A new queue gets those of the event's rows that the ACL has permitted."""
        self._rows.include_event(name)
        before, self._queues[name] = self._queues.get(name), queue
        if before is queue:
            return
        keys = [key for key in self._rows.keys(name) if key not in self._undecided]
        if keys:
            log.info("route %s, event %s: sending %d message(s) that the spool holds", *name, len(keys))
        for key in keys:
            queue.put(name, key, None, 0)

    # Messages are kept, or refused.

    async def on_packet(self, *, packet: Any, session: Session | None = None) -> None:
        """Keep the message of a packet that was read from a client: amqtt's hook `on_mqtt_packet_received`."""
        if session is None or not isinstance(packet, PublishPacket):
            return
        topic, data = packet.topic_name, packet.data
        subscriptions = self._subscriptions_for(topic) if topic else ()
        if not subscriptions or topic is None or topic.startswith("$") or "+" in topic or "#" in topic:
            return  # nothing to keep, or a topic that amqtt refuses
        if _is_repeated(packet, session):
            first: Any = session.inflight_in[packet.packet_id or 0]
            packet.data = first.data  # with its `TakenPayload`: amqtt delivers this packet in place of the first one
            return
        message = message_at(topic, bytes(data or b""), self._clock(), replayed_time(session.client_id))
        if self._acl.is_there:
            publisher = (session.client_id or "", session.username)
            keys = [key for one in subscriptions if (key := self._keep_row(one, message, 0, publisher)) is not None]
            if keys:
                in_memory = message if self._undecided_bytes < _MOST_UNDECIDED else None
                self._ask_acl(Undecided(session, session.username, topic, in_memory, tuple(keys)))
        else:
            self._keep_and_queue(subscriptions, message, 0)
        if data is not None:
            packet.data = taken = TakenPayload(data)
            taken.topic, taken.events = topic, _names_of(subscriptions)

    def offer(
        self, topic: str, payload: bytes, hops: int, taken: Collection[EventName], first_received: float | None = None
    ) -> None:
        """Keep a message that amqtt broadcasts, for the events that have not `taken` it from its packet.

        These are wills, results of routes and publications of plugins. amqtt has already asked the ACL.
        """
        subscriptions = [one for one in self._subscriptions_for(topic) if one.event.name not in taken]
        if subscriptions:
            self._keep_and_queue(subscriptions, message_at(topic, bytes(payload), self._clock(), first_received), hops)

    def _subscriptions_for(self, topic: str) -> tuple[_Subscription, ...]:
        if self._index is None:
            self._index = TopicIndex((one.event.topic_filter, one) for one in self._subscriptions.values())
        return self._index[topic]

    def _keep_and_queue(self, found: Iterable[_Subscription], message: Message, hops: int) -> None:
        for subscription in found:
            key = self._keep_row(subscription, message, hops, None)
            if key is not None:
                subscription.queue.put(subscription.event.name, key, message, hops)

    def _keep_row(
        self, subscription: _Subscription, message: Message, hops: int, publisher: tuple[str, str | None] | None
    ) -> str | None:
        """Write a row and return its key, or refuse the message and return None."""
        name, size = subscription.event.name, len(message.payload)
        failure = self._refusal(subscription.event, size)
        if failure is None:
            try:
                key = self._spool.keep(*name, message, hops, publisher, subscription.batch)
            except SpoolFullError as error:
                failure = catalogue.DISK_FULL.error(f"the message could not be written to the spool: {error}")
            else:
                self._rows.add(key, name, size)
                return key
        subscription.queue.refuse(name, message, hops, failure)
        return None

    def _refusal(self, event: LosslessEvent, size: int) -> CallError | None:
        """Return why a payload of `size` bytes is not kept, None if it is.

        A route without rows takes one message, even if it is larger than OVERLOAD_BYTES.
        """
        if size > self._max_message_bytes:
            what = f"the message has {size} bytes, max_message_bytes allows {self._max_message_bytes}"
            return catalogue.MESSAGE_TOO_LARGE.error(what)
        rows = self._rows.of_route(event.route)
        if not rows.count:
            return None
        if rows.count >= event.most:
            used_up = f"its OVERLOAD_CAPACITY of {event.most} messages is used up"
            return catalogue.ROUTE_FULL.error(f"the route is overloaded: {used_up}")
        if rows.size + size > event.most_bytes:
            bound = f"its OVERLOAD_BYTES of {size_text(event.most_bytes)} have no room"
            what = f"the route is overloaded: {bound} for a payload of {size_text(size)}"
            return catalogue.ROUTE_BYTES_FULL.error(what)
        return None

    # The ACL. `AclQueue` calls `permitted`, `forbidden` and `report_acl`.

    def _ask_acl(self, undecided: Undecided) -> None:
        self._undecided.update(undecided.keys)
        if undecided.message is not None:
            self._undecided_bytes += len(undecided.message.payload)
        self._acl_queue.add(undecided)

    def permitted(self, undecided: Undecided) -> None:
        """Send the rows of a message; those of events without a queue stay on disk."""
        self._note_decided(undecided)
        for key in undecided.keys:
            self._spool.permit(key)
            self._queue_row(key, undecided.message)

    def forbidden(self, undecided: Undecided) -> None:
        """Remove the rows of a message."""
        self._note_decided(undecided)
        for key in undecided.keys:
            self.forget_row(key)

    def report_acl(self, undecided: Undecided, code: str, what: str) -> None:
        """Report, for each route of a message, that the ACL does not answer."""
        names = map(self._rows.name_of, undecided.keys)
        for route in {name[0] for name in names if name is not None}:
            self._report_error(route, code, what)

    def _note_decided(self, undecided: Undecided) -> None:
        self._undecided.difference_update(undecided.keys)
        if undecided.message is not None:
            self._undecided_bytes -= len(undecided.message.payload)

    # Rows are queued, read when their turn comes, and removed.

    def queue_rows(self, keys: Iterable[str]) -> None:
        """Put rows into the queues that their events have now, after their session has ended before their calls."""
        for key in keys:
            self._queue_row(key, None)

    def _queue_row(self, key: str, message: Message | None) -> None:
        """Put a row into the queue of its event; do nothing if the row is gone or its event has no queue."""
        name = self._rows.name_of(key)
        queue = None if name is None else self._queues.get(name)
        if name is not None and queue is not None:
            queue.put(name, key, message, 0)

    def read(self, key: str) -> Kept | None:
        """Return a row whose turn has come, None if it is gone. Blocks while it is read from disk.

        A row that cannot be read is reported and counts no longer, and None is returned. It stays in the file.
        """
        row = self._spool.read(key)
        if isinstance(row, Unreadable):
            name = self._rows.remove(key)
            if name is not None:
                self._report_unreadable(row, *name)
            return None
        return row

    def forget_row(self, key: str) -> None:
        """Forget a row whose call has ended; `tidy` removes it from disk."""
        if self._rows.remove(key) is not None:
            self._spool.forget(key)

    # Tasks and reports.

    async def run(self) -> None:
        """Ask the ACL about the messages that wait for it, until cancelled; may be run again."""
        await self._acl_queue.run()

    async def tidy(self) -> None:
        """Remove the rows of ended calls from disk, and keep the spool's files small, until cancelled."""
        while True:
            for _ in range(_FLUSHES):
                await asyncio.sleep(_FLUSH_SECONDS)
                self._spool.flush()
            await asyncio.to_thread(self._spool.checkpoint)
            self._spool.finish_checkpoint()

    def report_rows_left(self) -> None:
        """Report rows that cannot be sent: those of events without a queue and, once, those that cannot be read."""
        for name, count in self._rows.by_event():
            if name not in self._queues:
                gone = "the spool holds %d message(s) for route %s, event %s, which does not exist; sent once it does"
                log.warning(gone, count, *name)
        unreadable, self._unreadable = self._unreadable, []
        for row in unreadable:
            self._report_unreadable(row, row.route, row.event)

    def _report_unreadable(self, row: Unreadable, route: str | None, event: str | None) -> None:
        shown_route, shown_event = (loggable(name) if name else "?" for name in (route, event))
        message = f"row {row.id} of the spool (event {shown_event}) cannot be read and stays there: {row.reason}"
        log.error("route %s: %s", shown_route, message)
        if route is not None:
            self._report_error(route, "unreadable_row", message)


@lru_cache(maxsize=128)  # messages of a topic share one set, so that garbage collection has fewer objects
def _names_of(found: tuple[_Subscription, ...]) -> frozenset[EventName]:
    return frozenset(one.event.name for one in found)


def _is_repeated(packet: PublishPacket, session: Session) -> bool:
    """Return whether a QoS 2 PUBLISH is sent again before its PUBREL (MQTT 3.1.1 section 4.3.3): it is on disk already.

    DUP, topic and payload are compared, too: a publisher that has lost its state uses packet id 1 for a new message
    while the session still waits for the PUBREL of an older 1. amqtt then delivers the new message in place of the old.
    """
    header = packet.variable_header
    if packet.qos != _EXACTLY_ONCE or header is None or header.packet_id is None or not packet.dup_flag:
        return False
    known = session.inflight_in.get(header.packet_id)
    return known is not None and (known.topic, known.data) == (packet.topic_name, packet.data)


@dataclass(slots=True)
class RouteRows:
    """How much the present events of a route have on disk together: rows, and bytes of their payloads."""

    count: int = 0
    size: int = 0


class RowIndex:
    """The rows by event, in order of arrival, and by key, with the totals of each route.

    Rows of an event that is gone are not in the totals, so they take no room from the other events of the route.
    """

    def __init__(self) -> None:
        self._sizes: dict[EventName, dict[str, int]] = {}  # bytes by key, the oldest row first
        self._names: dict[str, EventName] = {}
        self._present: set[EventName] = set()
        self._routes: dict[str, RouteRows] = {}  # of present events

    def include_event(self, name: EventName) -> None:
        """Count the rows of an event in its route's totals from now on."""
        if name not in self._present:
            self._present.add(name)
            self._count(name, +1)

    def exclude_event(self, name: EventName) -> None:
        """Leave the rows of an event that is gone out of its route's totals."""
        if name in self._present:
            self._present.remove(name)
            self._count(name, -1)

    def _count(self, name: EventName, sign: int) -> None:
        rows, sizes = self._routes.setdefault(name[0], RouteRows()), self._sizes.get(name, {})
        rows.count += sign * len(sizes)
        rows.size += sign * sum(sizes.values())

    def add(self, key: str, name: EventName, size: int) -> None:
        """Add the newest row of an event; `size` is that of its payload, in bytes."""
        self._sizes.setdefault(name, {})[key] = size
        self._names[key] = name
        if name in self._present:
            route = self._routes[name[0]]
            route.count += 1
            route.size += size

    def remove(self, key: str) -> EventName | None:
        """Remove a row and return the name of its event, None if there is no such row."""
        name = self._names.pop(key, None)
        if name is not None:
            size = self._sizes[name].pop(key)
            if name in self._present:
                route = self._routes[name[0]]
                route.count -= 1
                route.size -= size
        return name

    def name_of(self, key: str) -> EventName | None:
        """Return the name of the event of a row, None if there is no such row."""
        return self._names.get(key)

    def keys(self, name: EventName) -> list[str]:
        """Return the keys of an event's rows, the oldest first."""
        return list(self._sizes.get(name, ()))

    def of_route(self, route: str) -> RouteRows:
        """Return how much the present events of a route have."""
        return self._routes.get(route) or RouteRows()

    def by_route(self) -> dict[str, int]:
        """Return how many rows each route has, also of events that are gone; routes without rows are left out."""
        rows = Counter[str]()
        for (route, _), count in self.by_event():
            rows[route] += count
        return dict(rows)

    def by_event(self) -> Iterator[tuple[EventName, int]]:
        """Yield the name of each event that has rows, and how many."""
        return ((name, len(sizes)) for name, sizes in self._sizes.items() if sizes)

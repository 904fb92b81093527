"""Lossless routes on the broker's side: a client's message is on disk before amqtt answers it.

amqtt reads a packet, fires `mqtt_packet_received`, and starts the task that handles the packet after that of the hook:
what the hook does before its first `await` is done before the PUBACK (PUBREC), and before the ACL. So the message is
kept first; then the ACL is asked, as amqtt would, and the call goes its way, or is removed.
"""

import asyncio
import functools
import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

from amqtt.mqtt.publish import PublishPacket
from amqtt.session import Session

from amqtt_rest_bridge.broker.acl import AclQueue, AclTimes, Undecided, publisher_of
from amqtt_rest_bridge.broker.amqtt_broker import MayPublish
from amqtt_rest_bridge.failures import disk_full
from amqtt_rest_bridge.model import EventName, Message
from amqtt_rest_bridge.routing.calls import Listening
from amqtt_rest_bridge.routing.dispatcher import Dispatcher
from amqtt_rest_bridge.spool import Kept, Spool, SpoolFullError, Unreadable
from amqtt_rest_bridge.topics import loggable

log = logging.getLogger(__name__)

_EXACTLY_ONCE: Final = 2
_FLUSH_SECONDS: Final = 0.01  # how long ended calls may stay on disk
_LATER_SECONDS: Final = 0.01  # how often what waits on disk is looked at
_FLUSHES: Final = 100  # between two checkpoints of the spool


class Taken(bytes):
    """The payload of a client's message that lossless `events` took on its `topic` before its PUBACK.

    amqtt carries it from the packet to the broadcast, where it names the events that have the message, independent of
    reloads in between. So nothing has to be remembered of messages that amqtt drops before.
    """

    topic: str
    events: frozenset[EventName]


def taken_by(session: Session | None, topic: str, payload: Taken) -> Collection[EventName]:
    """Return the events that took a message of this session before its PUBACK.

    What a plugin publishes again, elsewhere or without a session, no event has taken.
    """
    return () if session is None or payload.topic != topic else payload.events


class Lossless:
    """Stores messages, has the ACL decide, dispatches, and replays what an earlier run of the broker left."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        spool: Spool,
        may_publish: MayPublish,
        clock: Callable[[], float],
        is_asked: Callable[[], bool] = lambda: True,
        acl_times: AclTimes | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._spool = spool
        self._clock = clock
        # What an earlier run left and has no room in memory, in order, by route: event, key and size.
        self._later: dict[str, deque[tuple[str, str, int]]] = {}
        self._has_later = asyncio.Event()
        self._acl = AclQueue(dispatcher, spool, may_publish, is_asked, acl_times or AclTimes())

    async def on_packet(self, *, packet: Any, session: Session | None = None) -> None:
        """Take a packet that was read from a client: amqtt's hook `on_mqtt_packet_received`."""
        if session is None or not isinstance(packet, PublishPacket):
            return
        topic = packet.topic_name
        lossless = self._dispatcher.table.lossless
        listenings = lossless[topic] if topic and lossless is not None else ()
        if not listenings or topic is None or topic.startswith("$") or "+" in topic or "#" in topic:
            return  # amqtt refuses such topics
        if _is_repeated(packet, session):
            first: Any = session.inflight_in[packet.packet_id or 0]
            packet.data = first.data  # amqtt delivers the last one that came
            return
        data = packet.data
        message = Message(topic, bytes(data or b""), self._clock())
        keys = tuple([self._keep(listening, message, session) for listening in listenings])
        self._acl.add(Undecided(session, session.username, message, listenings, keys))
        if data is not None:
            packet.data = taken = Taken(data)
            taken.topic, taken.events = topic, _names_of(listenings)

    @property
    def backlog(self) -> int:
        """Return how many messages are on disk and not yet dispatched."""
        return len(self._acl)

    async def run(self) -> None:
        """Replay what an earlier run left on disk, then dispatch, until cancelled; may be run again after an error."""
        try:
            count = await self._replay_all(self._spool.left_over())
            if count:
                log.info("replaying %d message(s) of lossless routes from the spool", count)
            await self._acl.run()
        finally:
            self._acl.cancel()

    async def replay_later(self) -> None:
        """Dispatch what had no room in memory when it was replayed, as it gets room, until cancelled."""
        while True:
            await self._has_later.wait()
            for route in list(self._later):
                await self._replay_waiting(route, self._later[route])
            if not self._later:
                self._has_later.clear()
            await asyncio.sleep(_LATER_SECONDS)

    async def _replay_waiting(self, route: str, waiting: deque[tuple[str, str, int]]) -> None:
        while waiting:
            event, key, size = waiting[0]
            listening = self._dispatcher.table.by_name.get((route, event))
            if listening is not None and not listening.statistics.admission.has_bytes(size):
                return
            waiting.popleft()
            self._dispatcher.defer(route, len(waiting))
            if listening is None:
                self._dispatcher.orphans.append(key)
                continue
            for kept in self._spool.find([key]):
                if isinstance(kept, Unreadable):
                    self._set_aside(kept)
                else:
                    await self._replay(kept, listening)
        del self._later[route]

    async def adopt(self) -> None:
        """Dispatch what stayed on disk because its route was gone, if a reload has brought it back."""
        orphans, self._dispatcher.orphans = deque(self._dispatcher.orphans), []
        try:
            count = await self._replay_all(self._spool.find(orphans.popleft() for _ in range(len(orphans))))
            if count:
                log.info("replaying %d message(s) from the spool: their routes exist again", count)
        finally:  # what is left is for the next time
            self._dispatcher.orphans[:0] = orphans

    async def _replay_all(self, calls: Iterable[Kept | Unreadable]) -> int:
        count = 0
        gone: Counter[EventName] = Counter()
        for kept in calls:
            await asyncio.sleep(0)
            if isinstance(kept, Unreadable):
                self._set_aside(kept)
                continue
            listening = self._dispatcher.table.by_name.get((kept.route, kept.event))
            if listening is None:
                self._dispatcher.orphans.append(kept.key)
                gone[kept.route, kept.event] += 1
            elif self._has_no_room(kept, listening):
                count += 1
            else:
                count += await self._replay(kept, listening)
        for (route, event), number in gone.items():
            log.warning(
                "the spool holds %d message(s) for route %s, event %s, which does not exist; sent once it does",
                number,
                route,
                event,
            )
        return count

    def _has_no_room(self, kept: Kept, listening: Listening) -> bool:
        """Return whether a call stays on disk until its route has room for its payload, behind those before it."""
        statistics, size = listening.statistics, len(kept.message.payload)
        waiting = self._later.get(kept.route)
        if waiting is None and statistics.admission.has_bytes(size):
            return False
        if waiting is None:
            waiting = self._later[kept.route] = deque()
        waiting.append((kept.event, kept.key, size))
        self._dispatcher.defer(kept.route, len(waiting))
        self._has_later.set()
        return True

    async def _replay(self, kept: Kept, listening: Listening) -> bool:
        """Dispatch a call from disk; return False when its publisher may not publish, or not yet."""
        listening.statistics.admission.take(len(kept.message.payload))
        if kept.client_id is not None:
            publisher = publisher_of(kept.client_id, kept.username)
            undecided = Undecided(publisher, publisher.username, kept.message, (listening,), (kept.key,), kept.hops)
            return await self._acl.decide(undecided)
        self._dispatcher.dispatch_stored(listening, kept.message, kept.hops, kept.key)
        return True

    def _set_aside(self, row: Unreadable) -> None:
        """Report a row. Decision: it stays in the file as it is, and each start reports it again."""
        route, event = (loggable(name) if name else "?" for name in (row.route, row.event))
        message = f"row {row.id} of the spool (event {event}) cannot be read and stays there: {row.reason}"
        log.error("route %s: %s", route, message)
        if row.route is not None:
            self._dispatcher.report_error(row.route, "unreadable_row", message)

    async def tidy(self) -> None:
        """Remove ended calls from disk, and keep the spool's files small, until cancelled."""
        while True:
            for _ in range(_FLUSHES):
                await asyncio.sleep(_FLUSH_SECONDS)
                self._spool.flush()
            await asyncio.to_thread(self._spool.checkpoint)
            self._spool.settle()

    def _keep(self, listening: Listening, message: Message, session: Session) -> str | None:
        size = len(message.payload)
        statistics = listening.statistics
        refusal = self._dispatcher.too_large(size) or statistics.admission.admit(size)
        if refusal is None:
            try:
                client = (session.client_id or "", session.username)
                event, numbering = listening.event.name, listening.numbering
                return self._spool.keep(listening.route, event, message, 0, client, numbering)
            except SpoolFullError as error:
                listening.statistics.admission.undo(size)
                refusal = disk_full(error)
        self._dispatcher.refuse(self._dispatcher.call_of(listening, message), refusal)
        return None


@functools.lru_cache(maxsize=128)  # one set for all messages of a topic: each of its own is an object to collect
def _names_of(listenings: tuple[Listening, ...]) -> frozenset[EventName]:
    return frozenset(listening.name for listening in listenings)


def _is_repeated(packet: PublishPacket, session: Session) -> bool:
    """Return whether a QoS 2 PUBLISH is sent again before its PUBREL (MQTT 3.1.1 section 4.3.3): it is on disk already.

    Decision: DUP, topic and payload decide. The packet id alone does not: a publisher that has lost its state begins
    again at 1 while the session still waits for the PUBREL of an earlier 1. amqtt then delivers the new message in
    place of that one.
    """
    header = packet.variable_header
    if packet.qos != _EXACTLY_ONCE or header is None or header.packet_id is None or not packet.dup_flag:
        return False
    known = session.inflight_in.get(header.packet_id)
    return known is not None and (known.topic, known.data) == (packet.topic_name, packet.data)

"""Lossless routes on the broker's side: a client's message is on disk before amqtt answers it.

amqtt reads a packet, fires `mqtt_packet_received`, and starts the task that handles the packet after that of the hook:
what the hook does before its first `await` is done before the PUBACK (PUBREC), before the ACL, and even for messages
that amqtt drops because the client disconnects. So the message is kept first; then the ACL is asked, as amqtt would,
and the call goes its way, or is removed.
"""

import asyncio
import functools
import logging
import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from amqtt.mqtt.publish import PublishPacket
from amqtt.session import Session

from amqtt_rest_bridge.broker.disk.spool import Spool
from amqtt_rest_bridge.broker.disk.spool_rows import Kept, Unreadable
from amqtt_rest_bridge.failures import disk_full
from amqtt_rest_bridge.model import Message
from amqtt_rest_bridge.routing.calls import EventName, Listening, StoreFullError
from amqtt_rest_bridge.routing.dispatcher import Dispatcher
from amqtt_rest_bridge.topics import loggable

log = logging.getLogger(__name__)

_EXACTLY_ONCE: Final = 2
_FIRST_DELAY: Final = 0.5  # before an ACL that failed is asked again, doubled each time
_LONGEST_DELAY: Final = 30.0
_QUIET_SECONDS: Final = 1.0  # an ACL that fails is logged at most this often

# The ACL may answer for one publisher slowly, or never: what it has not answered by then waits in a queue of that
# publisher's own, so that the messages of others go on. A task for every message would cost a tenth of the throughput.
_PROMPT_SECONDS: Final = 0.05
_SLOW_SECONDS: Final = 5.0  # an answer that takes longer is reported

MayPublish = Callable[[Session, str], Awaitable[bool]]
"""Ask the broker's ACL."""

Publisher = tuple[str | None, str | None]
"""Client id and user name."""


class Taken(bytes):
    """The payload of a client's message that lossless events took before its PUBACK.

    amqtt carries it from the packet to the broadcast, where it says which events have the message, whatever a reload
    has made of them meanwhile. Nothing is to be remembered of messages that amqtt drops in between.
    """

    topic: str
    events: frozenset[EventName]


def taken_by(session: Session | None, topic: str, payload: bytes) -> Collection[EventName]:
    """Return the events that took a message of this session before its PUBACK."""
    if session is None or not isinstance(payload, Taken) or payload.topic != topic:
        return ()  # also what a plugin publishes again, elsewhere
    return payload.events


@dataclass(slots=True, eq=False)
class _Undecided:
    """An admitted message on disk, until the ACL has said whether its publisher may; `calls` are events and keys.

    `username` is that of the publisher: the session may be another user's by the time the ACL is asked.
    """

    session: Session
    username: str | None
    message: Message
    calls: list[tuple[Listening, str]]
    hops: int = 0
    delay: float = field(default_factory=lambda: _FIRST_DELAY)  # seconds before the ACL is asked once more


class Lossless:
    """Keep, ask, deal, and take up what an earlier run of the broker left."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        spool: Spool,
        may_publish: MayPublish,
        clock: Callable[[], float],
        is_asked: Callable[[], bool] = lambda: True,
    ) -> None:
        self._dispatcher = dispatcher
        self._spool = spool
        self._may_publish = may_publish
        self._clock = clock
        self._is_asked = is_asked  # whether there is an ACL
        # On disk, not yet dealt; bounded by what the routes admit. Only the disk stands between a publisher and his
        # PUBACK: what follows is done one message an iteration of the loop, as amqtt does it with its own part.
        self._kept: deque[_Undecided] = deque()
        self._filled = asyncio.Event()
        self._complained = -math.inf
        # Behind a message that the ACL has not answered: those of the same publisher, in order of arrival.
        self._behind: dict[Publisher, deque[_Undecided]] = {}
        self._slow: set[asyncio.Task[None]] = set()

    async def take_hook(self, *, packet: Any, session: Session | None = None) -> None:
        """Take a packet that was read from a client: amqtt's hook `on_mqtt_packet_received`."""
        if session is None or not isinstance(packet, PublishPacket):
            return
        topic = packet.topic_name
        listenings = self._dispatcher.table.find_lossless(topic) if topic else ()
        if not listenings or topic is None or _is_refused(topic):
            return
        if _is_repeated(packet, session):
            first: Any = session.inflight_in[packet.packet_id or 0]
            packet.data = first.data  # amqtt delivers the last one that came
            return
        data = packet.data
        message = Message(topic, bytes(data or b""), self._clock())
        calls = []
        for listening in listenings:
            key = self._keep(listening, message, session)
            if key is not None:
                calls.append((listening, key))
        self._kept.append(_Undecided(session, session.username, message, calls))
        self._filled.set()
        if data is not None:
            packet.data = taken = Taken(data)
            taken.topic, taken.events = topic, _names_of(listenings)

    @property
    def backlog(self) -> int:
        """Return how many messages are on disk and not yet dispatched."""
        return len(self._kept) + sum(map(len, self._behind.values()))

    async def run(self) -> None:
        """Deal what an earlier run left on disk, then what comes, until cancelled; may be run again after an error."""
        try:
            count = await self._take_up(self._spool.left_over())
            if count:
                log.info("%d message(s) of lossless routes taken up from the spool", count)
            self._filled.set()
            while True:
                await self._filled.wait()
                self._filled.clear()
                while self._kept:
                    await self._decide_promptly(self._kept.popleft())
                    await asyncio.sleep(0)
        finally:
            for task in self._slow:
                task.cancel()

    async def adopt(self) -> int:
        """Deal what stayed on disk because its route was gone, if a reload has brought it back; give how many."""
        orphans, self._dispatcher.orphans = deque(self._dispatcher.orphans), []
        try:
            return await self._take_up(self._spool.find(orphans.popleft() for _ in range(len(orphans))))
        finally:  # what is left is for the next time
            self._dispatcher.orphans[:0] = orphans

    async def _take_up(self, calls: Iterable[Kept | Unreadable]) -> int:
        count = 0
        gone: Counter[EventName] = Counter()
        for kept in calls:
            await asyncio.sleep(0)
            if isinstance(kept, Unreadable):
                self._set_aside(kept)
                continue
            listening = self._dispatcher.table.named((kept.route, kept.event))
            if listening is None:
                self._dispatcher.orphans.append(kept.key)
                gone[kept.route, kept.event] += 1
            else:
                count += await self._replay(kept, listening)
        for (route, event), number in gone.items():
            log.warning(
                "the spool holds %d message(s) for route %s, event %s, which is gone; they are sent when it is back",
                number,
                route,
                event,
            )
        return count

    async def _replay(self, kept: Kept, listening: Listening) -> bool:
        """Deal a call that was kept before; False when its publisher may not, or not yet."""
        listening.statistics.admit_again()
        if kept.client_id is not None:
            calls, publisher = [(listening, kept.key)], _publisher(kept.client_id, kept.username)
            undecided = _Undecided(publisher, publisher.username, kept.message, calls, kept.hops)
            return await self._decide_promptly(undecided)
        self._dispatcher.take_spooled(listening, kept.message, kept.hops, kept.key)
        return True

    def _set_aside(self, row: Unreadable) -> None:
        """Report a row. Decision: it stays in the file as it is, and each start reports it again."""
        route, event = (loggable(name) if name else "?" for name in (row.route, row.event))
        message = f"row {row.id} of the spool (event {event}) cannot be read and stays there: {row.reason}"
        log.error("route %s: %s", route, message)
        if row.route is not None:
            self._dispatcher.trouble(row.route, "unreadable_row", message)

    def flush(self) -> None:
        """Remove ended calls from disk."""
        self._spool.flush()

    async def checkpoint(self) -> None:
        """Keep the spool's files small."""
        await asyncio.to_thread(self._spool.checkpoint)
        self._spool.settle()

    async def _decide_promptly(self, undecided: _Undecided) -> bool:
        """Decide a message, or move it aside when the ACL does not answer soon; False when it is not dispatched."""
        if not self._is_asked():
            return await self._decide(undecided)
        publisher = (undecided.session.client_id, undecided.username)
        if publisher in self._behind:
            self._behind[publisher].append(undecided)
            return False
        deciding = asyncio.ensure_future(self._decide(undecided))
        try:
            await asyncio.wait((deciding,), timeout=_PROMPT_SECONDS)
        except asyncio.CancelledError:
            self._interrupt(undecided, deciding)
            raise
        if deciding.done():
            return deciding.result()
        self._behind[publisher] = deque()
        slow = asyncio.create_task(self._await_slowly(publisher, undecided, deciding))
        self._slow.add(slow)
        slow.add_done_callback(self._slow.discard)
        return False

    async def _await_slowly(self, publisher: Publisher, undecided: _Undecided, deciding: "asyncio.Task[bool]") -> None:
        """Await the answer about a message, then decide what came behind it; the rest of the messages go on."""
        try:
            await asyncio.wait((deciding,), timeout=_SLOW_SECONDS)
            if not deciding.done():
                self._report(undecided, "acl_slow", "has not said for 5 s", "its messages wait for the answer")
            await deciding
            while behind := self._behind[publisher]:
                undecided = behind.popleft()
                await self._decide(undecided)
        except asyncio.CancelledError:
            self._interrupt(undecided, deciding)
            raise
        except Exception as error:  # noqa: BLE001  # an error of ours must not keep an acknowledged message from its route
            self._ask_later(undecided, error)
        finally:
            self._kept.extend(self._behind.pop(publisher))
            self._filled.set()

    def _interrupt(self, undecided: _Undecided, deciding: "asyncio.Task[bool]") -> None:
        """Keep an undecided message for the next `run`."""
        if not deciding.done():
            deciding.cancel()
            self._kept.appendleft(undecided)

    async def _decide(self, undecided: _Undecided) -> bool:
        """Ask the ACL, and deal or remove a message; False when it is not dealt. An ACL that fails is asked again."""
        session, message = undecided.session, undecided.message
        if session.username != undecided.username:
            session = _publisher(session.client_id, undecided.username)
        try:
            permitted = await self._may_publish(session, message.topic)
        except Exception as error:  # noqa: BLE001  # that is no refusal, and the message has been acknowledged
            self._ask_later(undecided, error)
            return False
        for listening, key in undecided.calls:
            if permitted:
                self._spool.permit(key)
                self._dispatcher.take_spooled(listening, message, undecided.hops, key)
            else:
                self._dispatcher.take_back(listening, key)
        return permitted

    def _ask_later(self, undecided: _Undecided, error: Exception) -> None:
        """Put a message back after a while, longer from time to time.

        Decision: others overtake it, ORDERED or not, since an ACL may fail for one publisher alone.
        """
        self._report(undecided, "acl_failed", "did not say", "it is asked again", error)
        asyncio.get_running_loop().call_later(undecided.delay, self._put_back, undecided)
        undecided.delay = min(_LONGEST_DELAY, undecided.delay * 2)

    def _report(
        self, undecided: _Undecided, code: str, what: str, then: str, error: Exception | None = None
    ) -> None:
        """Report an ACL without an answer in the status of the routes concerned, and in the log once a second."""
        client, topic = loggable(str(undecided.session.client_id)), loggable(undecided.message.topic)
        complaint = f"the ACL {what} whether {client} may publish on {topic}; {then}"
        for route in {listening.route for listening, _ in undecided.calls}:
            self._dispatcher.trouble(route, code, complaint)
        now = asyncio.get_running_loop().time()
        if now - self._complained >= _QUIET_SECONDS:
            self._complained = now
            log.error("%s", complaint, exc_info=error)

    def _put_back(self, undecided: _Undecided) -> None:
        self._kept.append(undecided)
        self._filled.set()

    def _keep(self, listening: Listening, message: Message, session: Session) -> str | None:
        refusal = listening.statistics.admit()
        if refusal is None:
            try:
                client = (session.client_id or "", session.username)
                return self._spool.keep(listening.route, listening.event.name, message, 0, client)
            except StoreFullError as error:
                listening.statistics.take_back()
                refusal = disk_full(error)
        self._dispatcher.refuse(listening, message, refusal, 0)
        return None


@functools.lru_cache(maxsize=128)  # one set for all messages of a topic: each of its own is an object to collect
def _names_of(listenings: tuple[Listening, ...]) -> frozenset[EventName]:
    return frozenset(listening.name for listening in listenings)


def _is_refused(topic: str) -> bool:
    """Tell a topic that amqtt lets no client publish to."""
    return topic.startswith("$") or "+" in topic or "#" in topic


def _is_repeated(packet: PublishPacket, session: Session) -> bool:
    """Tell a QoS 2 PUBLISH that is sent again before its PUBREL (MQTT 3.1.1 section 4.3.3): it is on disk already.

    Decision: DUP, topic and payload tell it. The packet id alone does not: a publisher that has lost its state begins
    anew at 1 while the session still waits for the PUBREL of an earlier 1. amqtt then delivers the new message in place
    of that one.
    """
    header = packet.variable_header
    if packet.qos != _EXACTLY_ONCE or header is None or header.packet_id is None or not packet.dup_flag:
        return False
    known = session.inflight_in.get(header.packet_id)
    return known is not None and (known.topic, known.data) == (packet.topic_name, packet.data)


def _publisher(client_id: str | None, username: str | None) -> Session:
    """Rebuild as much of a publisher as an ACL asks for."""
    session = Session()
    session.client_id, session.username = client_id, username
    return session

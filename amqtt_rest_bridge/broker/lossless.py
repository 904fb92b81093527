"""Lossless routes on the broker's side: a client's message is on disk before amqtt answers it.

amqtt reads a packet, fires `mqtt_packet_received`, and starts the task that handles the packet after that of the hook:
what the hook does before its first `await` is done before the PUBACK (PUBREC), before the ACL, and even for messages
that amqtt drops because the client disconnects. So the message is kept first; then the ACL is asked, as amqtt would,
and the call goes its way, or is removed.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from amqtt.mqtt.publish import PublishPacket
from amqtt.session import Session

from amqtt_rest_bridge.broker.calls import Listening
from amqtt_rest_bridge.broker.dispatch import Dispatcher
from amqtt_rest_bridge.broker.spool import Kept, Spool, SpoolFull
from amqtt_rest_bridge.failures import disk_full
from amqtt_rest_bridge.model import Message

log = logging.getLogger(__name__)

_EXACTLY_ONCE: Final = 2

MayPublish = Callable[[Session, str], Awaitable[bool]]
"""Ask the broker's ACL."""


class Lossless:
    """Keep, ask, deal, and take up what an earlier run of the broker left."""

    def __init__(
        self, dispatcher: Dispatcher, spool: Spool, may_publish: MayPublish, clock: Callable[[], float]
    ) -> None:
        self._dispatcher = dispatcher
        self._spool = spool
        self._may_publish = may_publish
        self._clock = clock
        # On disk, not yet dealt; bounded by what the routes admit. Only the disk stands between a publisher and his
        # PUBACK: what follows is done one message an iteration of the loop, as amqtt does it with its own part.
        self._kept: deque[tuple[Session, Message, list[tuple[Listening, str]]]] = deque()
        self._filled = asyncio.Event()

    async def take_hook(self, *, packet: Any, session: Session | None = None) -> None:
        """Take a packet that was read from a client: amqtt's hook `on_mqtt_packet_received`."""
        if session is None or not isinstance(packet, PublishPacket):
            return
        topic = packet.topic_name
        listenings = self._dispatcher.lossless(topic) if topic else ()
        if not listenings or topic is None or _is_refused(topic) or _is_repeated(packet, session):
            return
        message = Message(topic, bytes(packet.data or b""), self._clock())
        kept = [(listening, self._keep(listening, message, session)) for listening in listenings]
        self._kept.append((session, message, [(listening, key) for listening, key in kept if key is not None]))
        self._filled.set()

    @property
    def backlog(self) -> int:
        """Say how many messages are on disk and not yet dealt."""
        return len(self._kept)

    async def run(self) -> None:
        """Deal what an earlier run left on disk, then what comes, until cancelled."""
        count = await self._take_up(self._spool.left_over())
        if count:
            log.info("%d message(s) of lossless routes taken up from the spool", count)
        while True:
            await self._filled.wait()
            self._filled.clear()
            while self._kept:
                await self._decide(*self._kept.popleft())
                await asyncio.sleep(0)

    async def adopt(self) -> int:
        """Deal what stayed on disk because its route was gone, if a reload has brought it back; give how many."""
        orphans, self._dispatcher.orphans = self._dispatcher.orphans, []
        return await self._take_up(self._spool.find(orphans))

    async def _take_up(self, calls: Iterable[Kept]) -> int:
        count = 0
        gone: Counter[tuple[str, str]] = Counter()
        for kept in calls:
            await asyncio.sleep(0)
            listening = self._dispatcher.named(kept.route, kept.event)
            if listening is None:
                self._dispatcher.orphans.append(kept.key)
                gone[kept.route, kept.event] += 1
            elif kept.client_id is not None and not await self._permitted(_publisher(kept), kept.message.topic):
                self._spool.forget(kept.key)
            else:
                listening.account.admit_again()
                self._dispatcher.take_spooled(listening, kept.message, kept.hops, kept.key)
                count += 1
        for (route, event), number in gone.items():
            log.warning(
                "the spool holds %d message(s) for route %s, event %s, which is gone; they are sent when it is back",
                number,
                route,
                event,
            )
        return count

    def flush(self) -> None:
        """Remove ended calls from disk."""
        self._spool.flush()

    async def checkpoint(self) -> None:
        """Keep the spool's files small."""
        await asyncio.to_thread(self._spool.checkpoint)
        self._spool.shorten()

    async def _decide(self, session: Session, message: Message, kept: list[tuple[Listening, str]]) -> None:
        permitted = await self._permitted(session, message.topic)
        for listening, key in kept:
            if permitted:
                self._spool.permit(key)
                self._dispatcher.take_spooled(listening, message, 0, key)
            else:
                self._dispatcher.take_back(listening, key)

    async def _permitted(self, session: Session, topic: str) -> bool:
        try:
            return await self._may_publish(session, topic)
        except Exception:  # amqtt does not publish then either
            log.exception("the ACL did not say whether %s may publish on %s", session.client_id, topic)
            return False

    def _keep(self, listening: Listening, message: Message, session: Session) -> str | None:
        refusal = listening.account.admit()
        if refusal is None:
            try:
                client = (session.client_id or "", session.username)
                return self._spool.keep(listening.route, listening.event.name, message, 0, client)
            except SpoolFull as error:
                listening.account.take_back()
                refusal = disk_full(error)
        self._dispatcher.refuse(listening, message, refusal, 0)
        return None


def _is_refused(topic: str) -> bool:
    """Tell a topic that amqtt lets no client publish to."""
    return topic.startswith("$") or "+" in topic or "#" in topic


def _is_repeated(packet: PublishPacket, session: Session) -> bool:
    """Tell a QoS 2 PUBLISH that is sent again before its PUBREL (MQTT 3.1.1 section 4.3.3): it is on disk already.

    The packet id alone does not tell: a publisher that has lost its state begins anew at 1 while the session still
    waits for the PUBREL of an earlier 1. amqtt then delivers the new message in place of that one.
    """
    header = packet.variable_header
    if packet.qos != _EXACTLY_ONCE or header is None or header.packet_id is None or not packet.dup_flag:
        return False
    known = session.inflight_in.get(header.packet_id)
    return known is not None and (known.topic, known.data) == (packet.topic_name, packet.data)


def _publisher(kept: Kept) -> Session:
    """Rebuild as much of a publisher as an ACL asks for."""
    session = Session()
    session.client_id, session.username = kept.client_id, kept.username
    return session

"""`IncomingMessages` and `Publisher`: where the plugin sees what amqtt passes on, and where it publishes in amqtt.

Each is offered to the dispatcher on its way to amqtt's subscribers. Results are published at the broker's pace, by one
task that feeds amqtt's unbounded queue and never fills it.

Status topics are guarded on that way: the bridge alone publishes there. The broker's loop alone.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

from amqtt.session import ApplicationMessage, Session

from amqtt_rest_bridge.broker import amqtt_broker
from amqtt_rest_bridge.broker.amqtt_broker import Steps
from amqtt_rest_bridge.broker.lossless import Lossless, Taken, taken_by
from amqtt_rest_bridge.engine.status import STATUS_TOPICS
from amqtt_rest_bridge.link.frames import credits_for
from amqtt_rest_bridge.model import Message, Publication
from amqtt_rest_bridge.routing.calls import Confirm, ReleaseCredits, has_room
from amqtt_rest_bridge.routing.dispatcher import Dispatcher
from amqtt_rest_bridge.times import LineLimit
from amqtt_rest_bridge.topics import check_topic_name, loggable

log = logging.getLogger(__name__)

# Iterations of the loop between two publications. In the first a publication is forwarded, in the second it is written
# to its subscribers, and the third is left to others. So the bridge is as fast as a client that sends without a pause:
# amqtt needs about three iterations from a client's packet to its message in the queue.
_ITERATIONS: Final = 3
_QUIET_SECONDS: Final = 1.0
_LOOKED_AT: Final = 100  # retained messages, in one iteration of the loop

Delivered = Callable[[Callable[[], int], float], Awaitable[int]]
"""Wait for so many seconds at most until what waits, and what the broker was given, is delivered.

Takes the function that counts what waits; returns how many messages are not delivered.
"""


class Publisher:
    """A bounded queue and the task that empties it.

    Args:
        broadcast: Sends a payload to the subscribers of a topic with a QoS at most (amqtt's `broadcast_message`).
        retain: Keeps a payload for later subscribers (amqtt's `retain_message`, which does not deliver).
        delivered: Waits until they have arrived.
    """

    def __init__(
        self,
        broadcast: Callable[[str, bytes, int | None], Awaitable[None]],
        retain: Callable[[str, bytes, int | None], Awaitable[None]],
        delivered: Delivered,
    ) -> None:
        self._broadcast = broadcast
        self._retain = retain
        self._delivered = delivered
        self._queue: deque[tuple[Publication, int, ReleaseCredits | None, bool]] = deque()
        self.waiting_bytes = 0
        """Payloads that wait."""
        self._filled = asyncio.Event()
        self.hops = 0
        """How many routes the message that is being broadcast right now has passed through."""
        self.is_status = False
        """Whether what is being broadcast or retained right now is the status of a route."""

    def __len__(self) -> int:
        """Return how many publications wait."""
        return len(self._queue)

    def put(
        self,
        publication: Publication,
        hops: int,
        release_credits: ReleaseCredits | None = None,
        confirm: Confirm | None = None,
        *,
        route: str = "",  # noqa: ARG002  # of brokers that may refuse: amqtt takes what the bridge publishes
        status: bool = False,
    ) -> bool:
        """Queue a publication; return False, and queue nothing, when there is no room.

        `release_credits` is called with the credits of the publication once it is published; what has credits always
        has room. `confirm` is for brokers that acknowledge: amqtt in the same process has what it was given.
        """
        size = len(publication.payload)
        if release_credits is None and not has_room(len(self._queue), self.waiting_bytes, size):
            return False
        if confirm is not None:
            confirm(True)
        self.waiting_bytes += size
        self._queue.append((publication, hops, release_credits, status))
        self._filled.set()
        return True

    def put_status(self, publication: Publication) -> bool:
        """Queue a route's status, the only publication that may go to its topic; False when there is no room."""
        return self.put(publication, 1, status=True)

    async def settled(self, seconds: float) -> int:
        """Wait until all that is queued has reached its subscribers; return how many messages have not in time."""
        return await self._delivered(self.__len__, seconds)

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            while self._queue:
                publication, hops, release_credits, status = self._queue.popleft()
                self.waiting_bytes -= len(publication.payload)
                await self._publish(publication, hops, status=status)
                for _ in range(_ITERATIONS):
                    await asyncio.sleep(0)
                if release_credits is not None:
                    release_credits(credits_for(publication.payload))
            self._filled.clear()
            await self._filled.wait()

    async def _publish(self, publication: Publication, hops: int, *, status: bool) -> None:
        fault = check_topic_name(publication.topic)
        if fault is not None:  # amqtt would take it and fail later, or send it
            log.error("not published: the topic %s", fault)
            return
        self.hops, self.is_status = hops, status
        try:
            await self._broadcast(publication.topic, publication.payload, publication.qos)
            if publication.retain:
                qos = amqtt_broker.RETAINED_QOS_0 if publication.qos == 0 else publication.qos
                await self._retain(publication.topic, publication.payload, qos)
        except Exception:
            log.exception("not published on %s", loggable(publication.topic))
        finally:
            self.hops, self.is_status = 0, False


class IncomingMessages:
    """Offer a broker's messages to the dispatcher, from the constructor on.

    amqtt 0.12.1 has no hook for last wills, `$SYS` and what plugins publish, and one task a message for the rest.
    All of them pass one step, after the ACL; retained messages sent on subscription do not.

    Args:
        broker: An amqtt broker whose constructor runs, or has run.
        plugin: What amqtt fires its hooks at.
        dispatcher: Is offered every message.
        publisher: The bridge's own, whose status may pass.
        lossless: Receives the packets of lossless routes; None without a spool.
    """

    def __init__(
        self, broker: Any, plugin: Any, dispatcher: Dispatcher, publisher: Publisher, lossless: Lossless | None
    ) -> None:
        self._broker = broker
        self._plugin = plugin
        self._dispatcher = dispatcher
        self._lossless = lossless
        self._publisher = publisher
        self._forged = LineLimit(_QUIET_SECONDS)
        self.own_topics: tuple[str, ...] = (STATUS_TOPICS,)
        """What the topics begin with on which the bridge alone publishes."""
        amqtt_broker.replace(broker, Steps.BROADCAST, self._observed)
        amqtt_broker.replace(broker, Steps.RETAIN, self._guarded)

    def use_packet_hook(self) -> None:
        """Look at packets before their PUBACK exactly while a route is lossless."""
        if self._lossless is not None:
            wanted = self._dispatcher.table.lossless is not None
            amqtt_broker.use_packet_hook(self._broker, self._plugin, self._lossless.on_packet, wanted=wanted)

    def remember(self, retained: ApplicationMessage) -> None:
        """Store a message that has just been retained, for read events to answer with."""
        if retained.data:
            self._dispatcher.remember(retained.topic, bytes(retained.data))

    async def remember_retained(self) -> None:
        """Store what the broker has retained, for read events that are new, or had too many.

        A part in each iteration of the loop: 20,000 messages at once kept it for a second. What is published, or
        removed, meanwhile is seen on its way, and newer than what is looked at here.
        """
        with self._dispatcher.asking_again():
            for number, (topic, message) in enumerate(list(self._broker.retained_messages.items()), start=1):
                self._dispatcher.remember(topic, bytes(message.data), only_new=True)
                if not number % _LOOKED_AT:
                    await asyncio.sleep(0)

    def _observed(self, forward: amqtt_broker.Step) -> amqtt_broker.Step:
        offer, publisher, is_forged = self._dispatcher.offer, self._publisher, self._is_forged

        async def broadcast(session: Session | None, topic: str, data: bytes, force_qos: int | None = None) -> None:
            # No client gets as far with a `$` topic, nor does its will.
            if session is None and topic.startswith(self.own_topics) and is_forged(topic):
                return
            if topic and data is not None:
                try:
                    message = Message(topic, bytes(data), time.time())
                    taken = taken_by(session, topic, data) if isinstance(data, Taken) else ()
                    offer(message, hops=publisher.hops, elsewhere=taken)
                except Exception:  # nothing of ours keeps a message from its subscribers
                    log.exception("a message on %s was not looked at", loggable(topic))
            if force_qos is None:
                await forward(session, topic, data)
            else:  # amqtt would use it for those that have subscribed with less too, of wills as well [MQTT-3.8.4-6]
                amqtt_broker.broadcast_at_most(self._broker, session, topic, data, force_qos)

        return broadcast

    def _guarded(self, retain: amqtt_broker.Step) -> amqtt_broker.Step:
        async def guarded(
            source_session: Session | None, topic_name: str, data: bytes | None, qos: int | None = None
        ) -> None:
            if not (topic_name and topic_name.startswith(self.own_topics) and self._is_forged(topic_name)):
                await retain(source_session, topic_name, data, qos)

        return guarded

    def _is_forged(self, topic: str) -> bool:
        """Return whether another than the bridge sends on this topic, which is one of its own."""
        if self._publisher.is_status:
            return False
        if self._forged.count():
            log.warning("not published on %s: this is published by the bridge alone", loggable(topic))
        return True

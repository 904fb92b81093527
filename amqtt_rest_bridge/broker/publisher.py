"""Publishes in amqtt what the bridge publishes, in a fair turn with other clients. The broker's loop only."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from amqtt_rest_bridge.broker import amqtt_broker
from amqtt_rest_bridge.lot.model import Publication
from amqtt_rest_bridge.topics import check_topic_name, loggable

log = logging.getLogger(__name__)

# Between two publications, in iterations of the loop: one is forwarded in the first of them, and written to its
# subscribers in the second. A client, too, gets one message into the queue in two (`repairs.connections`).
_ITERATIONS: Final = 2

Delivered = Callable[[Callable[[], int], float], Awaitable[int]]
"""Wait for so many seconds at most until what waits, and what the broker was given, is delivered.

Takes the function that counts what waits; returns how many messages are not delivered.
"""


class Publisher:
    """Publishes in amqtt what the bridge publishes, at a pace that delays no other client.

    amqtt's own queue has no bound, and a message waits there for all that came before it. So one task hands a
    publication to amqtt and waits for two iterations of the loop before it takes the next one. The bridge is sent the
    acknowledgement of a publication then, and has only so many unacknowledged.

    The queue is bounded by the endpoint, which reads no more of the bridge's publications while many wait here.

    Args:
        broadcast: Sends a payload to the subscribers of a topic with a QoS at most (amqtt's `broadcast_message`).
        retain: Keeps a payload for later subscribers (amqtt's `retain_message`, which does not deliver).
        delivered: Waits until all has arrived.
        amended: Returns what is published in the place of a publication that is `own`.
    """

    def __init__(
        self,
        broadcast: Callable[[str, bytes, int | None], Awaitable[None]],
        retain: Callable[[str, bytes, int | None], Awaitable[None]],
        delivered: Delivered,
        amended: Callable[[Publication], Publication] = lambda publication: publication,
    ) -> None:
        self._broadcast = broadcast
        self._retain = retain
        self._delivered = delivered
        self._amended = amended
        self._queue: deque[tuple[Publication, int, bool, Callable[[], None]]] = deque()
        self._filled = asyncio.Event()
        self.waiting_bytes = 0
        """Payloads that wait."""
        self.hops = 0
        """How many routes the message that is being broadcast right now has passed through."""
        self.is_own = False
        """Whether what is being broadcast or retained right now may go to the topics of the bridge alone."""

    def __len__(self) -> int:
        """Return how many publications wait."""
        return len(self._queue)

    def put(self, publication: Publication, hops: int, *, own: bool, done: Callable[[], None]) -> None:
        """Queue a publication.

        Args:
            publication: What is published.
            hops: Routes that its message has passed through.
            own: Whether it is the status of a route or the answer to a command.
            done: Called after its turn, also where it could not be published, which is in the log.
        """
        self.waiting_bytes += len(publication.payload)
        self._queue.append((publication, hops, own, done))
        self._filled.set()

    async def settled(self, seconds: float) -> int:
        """Wait until all that is queued has reached its subscribers; return how many messages have not in time."""
        return await self._delivered(self.__len__, seconds)

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            while self._queue:
                publication, hops, own, done = self._queue.popleft()
                self.waiting_bytes -= len(publication.payload)
                try:
                    await self._publish(self._amended(publication) if own else publication, hops, own=own)
                    for _ in range(_ITERATIONS):
                        await asyncio.sleep(0)
                finally:
                    done()
            self._filled.clear()
            await self._filled.wait()

    async def _publish(self, publication: Publication, hops: int, *, own: bool) -> None:
        fault = check_topic_name(publication.topic)
        if fault is not None:  # amqtt would take it and fail later, or send it
            log.error("not published: the topic %s", fault)
            return
        self.hops, self.is_own = hops, own
        try:
            await self._broadcast(publication.topic, publication.payload, publication.qos)
            if publication.retain:
                qos = amqtt_broker.RETAINED_QOS_0 if publication.qos == 0 else publication.qos
                await self._retain(publication.topic, publication.payload, qos)
        except Exception:
            log.exception("not published on %s", loggable(publication.topic))
        finally:
            self.hops, self.is_own = 0, False

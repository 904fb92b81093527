"""Publishes in amqtt what the bridge publishes, in turn with other clients. The broker's loop only.

`endpoint` has read a publication, and acknowledges it after its turn.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from amqtt.broker import BrokerContext

from amqtt_rest_bridge.broker import amqtt_broker
from amqtt_rest_bridge.broker.repairs.shutdown import Draining
from amqtt_rest_bridge.broker.statuses import Statuses
from amqtt_rest_bridge.lot.model import Publication
from amqtt_rest_bridge.topics import check_topic_name, loggable

log = logging.getLogger(__name__)

# Between two publications, in iterations of the loop: one is forwarded in the first of them, and written to its
# subscribers in the second. A client, too, gets one message into the queue in two (`repairs.connections`).
_ITERATIONS: Final = 2


class Publisher:
    """Publishes in amqtt what the bridge publishes, at a pace that delays no other client.

    amqtt's own queue has no bound, and a message waits there for all that came before it. So one task hands a
    publication to amqtt, and waits for two iterations of the loop before it takes the next one. Only then is the
    publication acknowledged, and the bridge may have only so many that are not.

    The queue is bounded by the endpoint, which reads no more of the bridge's publications while many wait here.

    Args:
        context: The broker, for plugins. Its `retain_message` does not deliver.
        draining: Waits until messages are delivered.
        statuses: Amends the statuses of routes.
    """

    def __init__(self, context: BrokerContext, draining: Draining, statuses: Statuses) -> None:
        self._context = context
        self._draining = draining
        self._statuses = statuses
        self._queue: deque[tuple[Publication, int, bool, Callable[[], None] | None]] = deque()
        self._filled = asyncio.Event()
        self.waiting_bytes = 0
        """Payloads that wait."""
        self.hops = 0
        """How many routes the message that is being broadcast has passed through."""
        self.is_own = False
        """Whether the message that is being broadcast or retained may have a topic of the bridge."""

    def __len__(self) -> int:
        """Return how many publications wait."""
        return len(self._queue)

    def put(self, publication: Publication, hops: int, *, own: bool, done: Callable[[], None] | None = None) -> None:
        """Queue a publication.

        Args:
            publication: What is published.
            hops: Routes that its message has passed through.
            own: Whether it is the status of a route or the answer to a command.
            done: Called after its turn, also if it could not be published. The log says so then.
        """
        self.waiting_bytes += len(publication.payload)
        self._queue.append((publication, hops, own, done))
        self._filled.set()

    async def settled(self, seconds: float) -> int:
        """Wait until all that is queued has reached its subscribers; return how many messages have not in time."""
        return await self._draining.delivered(self, seconds)

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            while self._queue:
                publication, hops, own, done = self._queue.popleft()
                self.waiting_bytes -= len(publication.payload)
                try:
                    amended = self._statuses.amended(publication) if own else publication
                    await self._publish(amended, hops, own=own)
                    for _ in range(_ITERATIONS):
                        await asyncio.sleep(0)
                finally:
                    if done is not None:
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
            await self._context.broadcast_message(publication.topic, publication.payload, publication.qos)
            if publication.retain:
                qos = amqtt_broker.RETAINED_QOS_0 if publication.qos == 0 else publication.qos
                await self._context.retain_message(publication.topic, publication.payload, qos)
        except Exception:
            log.exception("not published on %s", loggable(publication.topic))
        finally:
            self.hops, self.is_own = 0, False

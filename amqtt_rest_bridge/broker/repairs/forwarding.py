"""Defects, amqtt 0.12.1, on the way of a message to its subscribers.

- The broker takes three iterations of the loop, and a task, to forward one message. Each client can queue a message in
  three iterations too. So with two clients that send without a pause the queue grows, and every other message waits
  behind it. Mended: queued messages are forwarded one after the other in one iteration, for a millisecond at most.
- A delivery, a task, is started for each subscriber of a message, and ended deliveries are dropped only from the front
  of their list. So while one client does not read, amqtt keeps every message that is sent to any client. Mended: ended
  deliveries are dropped wherever they are in the list.
- amqtt awaits the ACL, and the delivery of retained messages, inside loops over the subscriptions. When a client
  subscribes or leaves meanwhile they fail with "dictionary changed size during iteration": a message does not reach its
  subscribers, or the connection of a newcomer ends. Mended: a loop goes over a copy, which is used until they change.

Upstream: no issue is known.
"""

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import Any, Final

from amqtt.session import Session

from amqtt_rest_bridge.broker import amqtt_broker
from amqtt_rest_bridge.errors import reason
from amqtt_rest_bridge.times import LineLimit

log = logging.getLogger(__name__)

_FORWARDING_SECONDS: Final = 0.001  # in one iteration of the loop; the next one runs the deliveries
_QUIET_SECONDS: Final = 1.0


def mend(broker: Any) -> None:
    """Replace the task that forwards messages, and the mapping of subscriptions by `CopiedWhenRead`."""

    def directly(own: amqtt_broker.Step) -> amqtt_broker.Step:
        async def forward_until_shutdown() -> None:
            forwarding = asyncio.create_task(_Forwarding(broker).run())
            try:
                shutdown = amqtt_broker.forwarding_shutdown(broker)
                await asyncio.wait((forwarding, shutdown), return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                log.error("forwarding was cancelled")  # noqa: TRY400  # `serve` ends, and refers to the log for the reason
                raise
            finally:
                forwarding.cancel()
                await asyncio.gather(forwarding, return_exceptions=True)
            await own()  # as the shutdown has begun, amqtt's step only cancels the deliveries

        return forward_until_shutdown

    amqtt_broker.replace(broker, amqtt_broker.Steps.FORWARD, directly)
    amqtt_broker.replace_subscriptions(broker, CopiedWhenRead)


class _Forwarding:
    """Forwards the queued messages of a broker to its subscribers."""

    def __init__(self, broker: Any) -> None:
        self._forward = amqtt_broker.forward_next(broker)
        self._queued = amqtt_broker.queue_length(broker)
        self._deliveries = amqtt_broker.deliveries(broker)
        self._failed = LineLimit(_QUIET_SECONDS)
        self._undelivered = LineLimit(_QUIET_SECONDS)

    async def run(self) -> None:
        """Forward messages until cancelled."""
        while True:
            await self._forward_next()
            end = time.perf_counter() + _FORWARDING_SECONDS
            while self._queued() and time.perf_counter() < end:
                await self._forward_next()
            await asyncio.sleep(0)

    async def _forward_next(self) -> None:
        """Wait for a message, and start a delivery to each of its subscribers."""
        before = len(self._deliveries)
        try:
            await self._forward()
        except (Exception, asyncio.CancelledError) as error:  # of a topic plugin
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            if count := self._failed.count():
                log.exception("%d message(s) did not reach all subscribers; the last one failed so", count)
        self._drop_ended(2 * (len(self._deliveries) - before) + 1)

    def _drop_ended(self, looks: int) -> None:
        """Look at the first `looks` deliveries: drop those that have ended, and move the others to the end.

        With two looks for each new delivery, at most half of the deliveries in the list have ended.
        """
        for _ in range(min(looks, len(self._deliveries))):
            delivery = self._deliveries.popleft()
            if not delivery.done():
                self._deliveries.append(delivery)
                continue
            error = None if delivery.cancelled() else delivery.exception()
            if error is not None and (count := self._undelivered.count()):
                log.warning("%d message(s) did not reach a client, the last one: %s", count, reason(error))


class CopiedWhenRead(dict[str, list[tuple[Session, int]]]):
    """Subscribers by filter; a loop over them sees those that there were when it began.

    amqtt calls `items` for each message, so the copy is kept for the next one. amqtt changes the list of a filter right
    after it has looked it up, so each look-up drops the copy.
    """

    def __iter__(self) -> Iterator[str]:
        return iter(list(self.keys()))

    def items(self) -> Any:
        """Return each filter and its subscribers."""
        copy = [(topic_filter, subscribers[:]) for topic_filter, subscribers in super().items()]
        self.items = copy.__iter__  # type: ignore[method-assign]  # in place of this method, until `vars(self).clear()`
        return iter(copy)

    def __getitem__(self, topic_filter: str) -> list[tuple[Session, int]]:
        vars(self).clear()
        return super().__getitem__(topic_filter)

    def __setitem__(self, topic_filter: str, subscribers: list[tuple[Session, int]]) -> None:
        vars(self).clear()
        super().__setitem__(topic_filter, subscribers)

    def __delitem__(self, topic_filter: str) -> None:
        vars(self).clear()
        super().__delitem__(topic_filter)

    def clear(self) -> None:
        """Remove all: the broker starts again."""
        vars(self).clear()
        super().clear()

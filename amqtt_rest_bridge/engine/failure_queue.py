"""The failures of calls that have no place of their route: published some at a time, in the background.

The queue is bounded in number and bytes. A failure beyond the bound is not published; log and status have it.
"""

import asyncio
import logging
from collections import deque
from typing import Final

from amqtt_rest_bridge.engine.event import Call
from amqtt_rest_bridge.engine.failures import failure_publication
from amqtt_rest_bridge.engine.needs import Delivery, Publishes
from amqtt_rest_bridge.engine.outcome import Outcomes
from amqtt_rest_bridge.errors import CallError, FailureCode, PublicationRefusedError
from amqtt_rest_bridge.lot.model import EventName, Publication

log = logging.getLogger(__name__)

_MOST_FAILURES: Final = 10_000  # that wait to be published ...
_MOST_BYTES: Final = 16 << 20  # ... and their payloads
_MOST_TASKS: Final = 16  # each publishes one failure at a time


class FailureQueue:
    """Publishes failures, and releases the message of each after it.

    Args:
        publisher: Publishes.
        outcomes: Note what the broker refuses.
    """

    def __init__(self, publisher: Publishes, outcomes: Outcomes) -> None:
        self._publisher = publisher
        self._outcomes = outcomes
        self._waiting: deque[tuple[Publication, int, EventName, Delivery | None]] = deque()
        self._bytes = 0
        self.tasks: set[asyncio.Task[None]] = set()
        """The tasks that publish now."""

    def put_refusal(self, call: Call, failure: CallError) -> None:
        """Queue the failure of a message that was not admitted, or release the message if there is nothing to publish.

        If the queue has no room for the payload, the failure is published without it, or not at all. A message that is
        too large for a call is too large for its failure, too.
        """
        event = call.event
        for has_payload in (failure.code is not FailureCode.PAYLOAD_TOO_LARGE, False):  # with it, then without it
            publication = failure_publication(
                event.run_id(call), event.name, event.event, call.message, failure, has_payload=has_payload
            )
            if publication is None:  # the event publishes no failures
                break
            if len(self._waiting) < _MOST_FAILURES and self._bytes + len(publication.payload) <= _MOST_BYTES:
                self.put(call, publication)
                return
        if call.delivery is not None:
            call.delivery.release()

    def put(self, call: Call, publication: Publication) -> None:
        """Queue the failure of a call; its message is released once the failure is published."""
        self._waiting.append((publication, call.hops + 1, call.name, call.delivery))
        self._bytes += len(publication.payload)
        if len(self.tasks) < _MOST_TASKS:
            task = asyncio.create_task(self._publish_waiting())
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _publish_waiting(self) -> None:
        while self._waiting:
            publication, hops, name, delivery = self._waiting.popleft()
            try:
                mark = "" if delivery is None else delivery.mark(name)
                await self._publisher.publish(publication, hops=hops, route=name[0], mark=mark)
            except PublicationRefusedError as refused:
                self._outcomes.note_unpublished(name, refused)
            except Exception:
                log.exception("route %s: a failure was not published", name[0])
            self._bytes -= len(publication.payload)
            if delivery is not None:
                delivery.release()

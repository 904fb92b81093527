"""Sends the messages of kept failures again, each through its event only. The broker's loop alone.

A retry is a new call by the definition in use now, admitted like any other: it takes its place in the route's queue,
keeps to its RATE_LIMIT, and is on disk first where the route is lossless. What a request of server mode has published,
or would have, is published. While a retry has not ended its failure is not retried once more.

Decision: that a failure was sent again is in the file of failures once its retry has ended, or is in the spool: what a
stop or a kill leaves unsent can be retried after the next start, and what was being sent may be sent twice.
"""

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from amqtt_rest_bridge.errors import BridgeError
from amqtt_rest_bridge.link.admin_frames import BROKER_FULL, NOT_KEPT, RETRY_RUNS, ROUTE_GONE, Retried, WantRetry
from amqtt_rest_bridge.model import EventName, Message, RunIds
from amqtt_rest_bridge.records.broker_records import BrokerRecords
from amqtt_rest_bridge.records.kept_runs import KeptRun
from amqtt_rest_bridge.records.runs import is_request
from amqtt_rest_bridge.records.values import MOST_RUNS
from amqtt_rest_bridge.routing.calls import LocalDelivery, RunEvent
from amqtt_rest_bridge.routing.server_reports import BrokerFullError

_AT_ONCE: Final = 10  # in one iteration of the loop: each may be written to disk
_MOST_UNDER_WAY: Final = MOST_RUNS

PublishAgain = Callable[[KeptRun, Callable[[], None]], str | None]
"""Publish the message of a kept request; see `ServerReports.publish_again`."""


class _RefusedError(BridgeError):
    """A failure is not retried; the message says why."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code


@dataclass(slots=True, eq=False)
class _Retry(LocalDelivery):
    """What ends a retry, as a `Delivery`: the last release."""

    ended: Callable[[], None]
    is_stored: bool = True  # as soon as its call has a key

    def release(self) -> None:
        self.holds -= 1
        if not self.holds:
            self.ended()

    def key(self, _: EventName) -> str:
        """Return the Idempotency-Key of a lossless call: a new one, as a server may answer a known one from memory."""
        self.is_stored = False  # there is no store to give it one
        return str(uuid.uuid4())


class FailureRetries:
    """Retry.

    Args:
        records: Keeps the failures.
        run: Dispatches a message to one event.
        publish: Publishes the message of a kept request.
        runs: Makes the ids of calls.
        loop: The broker's.
    """

    def __init__(
        self,
        records: BrokerRecords,
        run: RunEvent,
        publish: PublishAgain,
        runs: RunIds,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._records = records
        self._run = run
        self._publish = publish
        self._runs = runs
        self._loop = loop
        self._under_way: set[str] = set()  # ids of failures

    def take(self, wanted: WantRetry, answer: Callable[[Retried], None]) -> None:
        """Begin the retries that are asked for; `answer` is called once all have begun, or been refused."""
        is_search, kept = wanted.ids is None, self._records.kept
        ids = self._matching(wanted) if wanted.ids is None else list(dict.fromkeys(wanted.ids))[:MOST_RUNS]
        # What is named is held: those that fail again at once may take its place before its turn comes.
        left = deque((name, None if is_search else kept.get(name)) for name in ids)
        self._begin(left, Retried(wanted.number, [], []), answer, is_search)

    def _matching(self, wanted: WantRetry) -> list[str]:
        """Return the failures that are asked for, the oldest first, without those that have been sent again."""
        found = [
            kept.record.id
            for kept in self._records.kept.newest(wanted.route)
            if kept.record.id is not None
            and kept.is_failure
            and kept.record.retried_as is None
            and (wanted.code is None or kept.record.code == wanted.code)
        ]
        return found[:MOST_RUNS][::-1]

    def _begin(
        self, left: deque[tuple[str, KeptRun | None]], done: Retried, answer: Callable[[Retried], None], is_search: bool
    ) -> None:
        for _ in range(min(_AT_ONCE, len(left))):
            name, held = left.popleft()
            kept = self._records.kept.get(name) or held
            if is_search and kept is not None and kept.record.retried_as is not None:  # meanwhile, by another one
                continue
            try:
                done.started.append((self._retry(name, kept), name))
            except _RefusedError as refused:
                done.refused.append((name, refused.code, str(refused)))
            except BrokerFullError as error:
                done.refused.append((name, BROKER_FULL, str(error)))
        if left:
            self._loop.call_soon(self._begin, left, done, answer, is_search)
        else:
            answer(done)

    def _retry(self, name: str, kept: KeptRun | None) -> str:
        """Send a message again and return the id of the new run; raises `_RefusedError` or `BrokerFullError`."""
        if kept is None or not kept.is_failure:
            raise _RefusedError(NOT_KEPT, "no failure of a message is kept with this id")
        if kept.payload is None and not kept.topic:
            raise _RefusedError(NOT_KEPT, "the request of this run failed before it had a message")
        if kept.payload is None:
            raise _RefusedError(NOT_KEPT, "the message of this run is not kept: see the setting capture")
        if name in self._under_way:
            raise _RefusedError(RETRY_RUNS, "a retry of this failure has not ended yet")
        if len(self._under_way) >= _MOST_UNDER_WAY:
            raise _RefusedError(RETRY_RUNS, f"{_MOST_UNDER_WAY} retries have not ended yet")
        record = kept.record
        retry = self._retry_request if is_request(record.kind, record.status) else self._retry_call
        if (started := retry(name, kept)) is None:
            raise _RefusedError(ROUTE_GONE, f"route {record.route} has no event {record.event} any more")
        return started

    def _retry_call(self, name: str, kept: KeptRun) -> str | None:
        event = kept.record.route or "", kept.record.event or ""
        message = Message(kept.topic, kept.payload or b"", time.time(), kept.properties)

        def ended() -> None:
            self._ended(name)
            self._records.retries.pop(id(message), None)

        retry = _Retry(ended)
        self._under_way.add(name)
        self._records.retries[id(message)] = name
        retry.hold()
        try:
            call = self._run(event, message, retry)
            started = None if call is None else self._runs.of(call.run, *event)
            if started is not None:
                self._records.kept.retried(name, started)
            if call is not None and call.key is not None and retry.is_stored:
                self._records.kept.retry_ended(name)
        finally:
            retry.release()
        return started

    def _retry_request(self, name: str, kept: KeptRun) -> str | None:
        self._under_way.add(name)
        started = None
        try:
            started = self._publish(kept, lambda: self._ended(name))
            if started is not None:
                self._records.kept.retried(name, started)
        finally:
            if started is None:
                self._under_way.discard(name)
        return started

    def _ended(self, name: str) -> None:
        self._under_way.discard(name)
        self._records.kept.retry_ended(name)

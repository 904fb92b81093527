"""What the broker process counts of every event, and the runs that it keeps. The broker's loop alone.

It keeps failures, whatever process ran or answered them, and messages that were refused or lost with one; messages
that matched no route are records for those that follow. There are records only where there is an admin port, or a file
for failures.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from amqtt_rest_bridge.admin.numbers import BUCKETS, Durations, EventCounts
from amqtt_rest_bridge.catalogue import ANSWERS, FAILURES
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.link.admin_frames import MOST_LIVE, EndedRequest, LiveRecords
from amqtt_rest_bridge.link.frames import SKIPPED, CallResult, FailedTry, RequestCount, RequestTimes
from amqtt_rest_bridge.model import Capture, ClientEvent, EventName, Message, Publication, Route, RunIds, RunKey
from amqtt_rest_bridge.records.kept_runs import KeptRun, KeptRuns
from amqtt_rest_bridge.records.problems import Problems
from amqtt_rest_bridge.records.values import Evidence, Record
from amqtt_rest_bridge.route_set import event_names, with_bound_ports
from amqtt_rest_bridge.topics import loggable

SUCCEEDED: Final = "succeeded"
_COUNTED_TOGETHER: Final = 64  # calls: one by one, when its code is not in cache, counting one takes 2 us more


class BrokerRecords:
    """Count, and keep runs of each route.

    Args:
        runs: Makes the ids of calls.
        capture: What is kept with its message.
        kept: Keeps them.
        bound_ports: Returns the bound port for each SERVER_PORT.
    """

    def __init__(
        self,
        runs: RunIds,
        capture: Capture = Capture.FAILURES,
        kept: KeptRuns | None = None,
        bound_ports: Callable[[], Mapping[int, int]] = dict,
    ) -> None:
        self._bound_ports = bound_ports
        self._runs = runs
        self._has_payloads = capture is not Capture.NONE
        self.kept = KeptRuns() if kept is None else kept
        self.problems = Problems()
        self.retries: dict[int, str] = {}
        """Ids of the runs whose messages are being sent again, by the identity of the new message."""
        self.following = False
        """Whether every message is recorded for those that follow; see `take_live`."""
        self._counts: dict[EventName, EventCounts] = {}
        self._noted: list[tuple[EventName, float, float]] = []  # good calls that are not yet counted
        self._live: list[Record] = []
        self._dropped = 0

    def keep(self, routes: Sequence[Route]) -> None:
        """Count the events of these routes from now on, and no others; kept runs of others stay."""
        self._counts = {
            name: self._counts.get(name) or EventCounts({}, Durations(), Durations([0]), statuses={})
            for name in event_names(routes)
        }
        self.problems.use(with_bound_ports(routes, self._bound_ports()))

    def counts(self) -> dict[str, dict[str, EventCounts]]:
        """Return what was counted, by route and event."""
        self._add_up()
        by_route: dict[str, dict[str, EventCounts]] = {}
        for (route, event), counts in self._counts.items():
            by_route.setdefault(route, {})[event] = counts
        return by_route

    def ended(self, name: EventName, event: ClientEvent, run: RunKey, message: Message, result: CallResult) -> None:
        """Count a call that has ended, and keep what is to be kept: the bridge process that recorded it may die."""
        evidence, code = result.evidence, result.code
        if code is None and evidence is None and not self.retries:  # as of most calls
            self._noted.append((name, result.waited, result.took))
            if len(self._noted) >= _COUNTED_TOGETHER:
                self._add_up()
            return
        self._count(name, code or SUCCEEDED, result.waited, result.took)
        is_failure = code is not None and code != SKIPPED
        retry_of = self.retries.get(id(message))
        if name not in self._counts or not (is_failure or evidence is not None or retry_of is not None):
            return
        hint = FAILURES[code].hint if is_failure and code is not None else None
        record = Record(
            time.time(), "skipped" if code == SKIPPED else "call", self._runs.of(run, *name), *name,
            loggable(message.topic), event.method.value, None if evidence is None else evidence.url, result.status,
            code if is_failure else None, result.message or None, hint if evidence is None else evidence.hint,
            None if evidence is None else evidence.tries, round(1000 * result.took, 1), round(1000 * result.waited, 1),
            [] if evidence is None else evidence.attempts, retry_of,
        )  # fmt: skip
        if is_failure:
            self.problems.call(record)
        self._keep(record, message, evidence)

    def try_failed(
        self, call: int, name: EventName, event: ClientEvent, run: RunKey, message: Message, failed: FailedTry
    ) -> None:
        """Note a failed try of a call, by its number, that is followed by another one."""
        record = Record(
            time.time(), "retry", self._runs.of(run, *name), *name, loggable(message.topic), event.method.value,
            None, failed.status, failed.code, failed.message, failed.hint, retry_of=self.retries.get(id(message)),
        )  # fmt: skip
        self.problems.try_failed(call, record)

    def lost(self, name: EventName, event: ClientEvent, run: RunKey, message: Message, failure: CallError) -> None:
        """Count and record a call whose bridge process died."""
        waited = max(0.0, time.time() - message.timestamp)  # and what its requests took, which is not known
        self._count(name, failure.code.value, waited, 0.0)
        self._record("call", name, event, run, message, failure, round(1000 * waited, 1))

    def refused(self, name: EventName, event: ClientEvent, run: RunKey, message: Message, failure: CallError) -> None:
        """Count and record a message that was not admitted."""
        counts = self._counts.get(name)
        if counts is not None:
            counts.refused += 1
        self._record("refused", name, event, run, message, failure)

    def unmatched(self, message: Message) -> None:
        """Record a message that concerns no route, while that is followed; not the broker's own on `$SYS`."""
        if not message.topic.startswith("$SYS/"):
            self._follow(Record(message.timestamp, "message", topic=loggable(message.topic)))

    def served(self, requests: Iterable[RequestCount], times: Iterable[RequestTimes]) -> None:
        """Count requests of server mode, and how long they took."""
        for request in requests:
            counts = self._counts.get((request.route, request.event))
            if counts is not None:
                counts.statuses[request.status] = counts.statuses.get(request.status, 0) + request.count
            if request.code is not None:
                about = int(request.status), request.message, request.run, time.time(), request.count
                self.problems.request((request.route, request.event), request.code, *about)
        for own in times:
            counts = self._counts.get((own.route, own.event))
            if counts is not None:
                counts.took.buckets = [sum(pair) for pair in zip(counts.took.buckets, own.took.buckets, strict=True)]
                counts.took.seconds += own.took.seconds

    def request(self, ended: EndedRequest) -> None:
        """Keep a request; `served` has counted it, or will."""
        record, publication = ended.record, ended.publication or Publication("", b"")
        if (record.route, record.event) in self._counts:
            payload = None if ended.publication is None else publication.payload
            one = record, publication.topic, ended.timestamp, payload, ended.evidence, publication.properties
            self.kept.add(KeptRun(*one))

    def sent_again(self, kept: KeptRun, count: RequestCount) -> None:
        """Keep the run that has published the message of a kept request once more."""
        old, evidence, now = kept.record, kept.evidence, time.time()
        hint = None if count.code is None else ANSWERS[count.code].hint
        record = Record(
            now, "request", count.run, old.route, old.event, old.topic, old.method, old.url, int(count.status),
            count.code, count.message, hint, ms=0.0, retry_of=old.id,
        )  # fmt: skip
        shown = Evidence(hint, None, 1, [], None if evidence is None else evidence.payload, carries=True)
        self.kept.add(KeptRun(record, kept.topic, now, kept.payload, shown, kept.properties))
        self._follow(record)

    def take_live(self) -> LiveRecords | None:
        """Return what was recorded since the last time, None without any."""
        if not self._live:
            return None
        records, self._live = self._live, []
        dropped, self._dropped = self._dropped, 0
        return LiveRecords(records, dropped)

    def _add_up(self) -> None:
        for name, waited, took in self._noted:
            self._count(name, SUCCEEDED, waited, took)
        self._noted.clear()

    def _count(self, name: EventName, outcome: str, waited: float, took: float) -> None:
        counts = self._counts.get(name)
        if counts is None:  # the end of a call whose event is gone counts nowhere
            return
        counts.outcomes[outcome] = counts.outcomes.get(outcome, 0) + 1
        if outcome != SKIPPED:
            counts.waited.buckets[0] += 1
            counts.waited.seconds += waited
            if took:  # else nothing was sent, which would make the server look fast
                counts.took.add(took, BUCKETS)

    def _record(
        self,
        kind: str,
        name: EventName,
        event: ClientEvent,
        run: RunKey,
        message: Message,
        failure: CallError,
        waited_ms: float | None = None,
    ) -> None:
        record = Record(
            time.time(), kind, self._runs.of(run, *name), *name, loggable(message.topic), event.method.value,
            code=failure.code.value, message=failure.message, hint=failure.hint, waited_ms=waited_ms,
            retry_of=self.retries.get(id(message)),
        )  # fmt: skip
        self.problems.call(record)
        self._keep(record, message, None)
        self._follow(record)

    def _keep(self, record: Record, message: Message, evidence: Evidence | None) -> None:
        payload = message.payload if self._has_payloads else None
        self.kept.add(KeptRun(record, message.topic, message.timestamp, payload, evidence, message.properties))

    def _follow(self, record: Record) -> None:
        if not self.following:
            return
        if len(self._live) < MOST_LIVE:
            self._live.append(record)
        else:
            self._dropped += 1

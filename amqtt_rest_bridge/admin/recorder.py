"""The recorder counts calls and requests as they end, and remembers the last ones of each route. Event loop only.

`engine.outcome` notes them here; pages, the API and followers read them. A *run* is what is recorded of a call or
request. Each run is noted; some runs are remembered or kept too:

- noted: it has ended, and is counted;
- remembered: it is one of the last 50 runs of its route, or of the last 20 failures. Recording has to be cheap, so its
  secrets are masked only when it is read (`UnmaskedRun`);
- kept: it is held with its message, request and response (`KeptRuns`), masked. By default failures are kept.
"""

import asyncio
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from heapq import nlargest
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from amqtt_rest_bridge.admin.evidence import call_evidence, request_evidence
from amqtt_rest_bridge.admin.kept_runs import KeepsCopies, KeptRun, KeptRuns
from amqtt_rest_bridge.admin.live import Followers
from amqtt_rest_bridge.admin.problems import Problems, hint_of
from amqtt_rest_bridge.admin.runs import (
    LONGEST_URL,
    NOT_SERVED_CODES,
    OPEN,
    SHOWN_FAILURES,
    SHOWN_RUNS,
    Reason,
    Run,
    RunQuery,
    UnmaskedRun,
)
from amqtt_rest_bridge.engine.needs import CallRun, Outcome, RequestRun
from amqtt_rest_bridge.http.exchange import path_of
from amqtt_rest_bridge.lot.masking import NO_SECRETS, masked_path, masker_of
from amqtt_rest_bridge.lot.model import Capture, EventName, Message, Publication, Route, RunIds
from amqtt_rest_bridge.lot.route_set import event_names
from amqtt_rest_bridge.topics import loggable

_STEPS: Final = (1000, 1250, 1550, 1900, 2350, 2900, 3600, 4500, 5600, 7000, 8500)
BUCKETS: Final[tuple[float, ...]] = (
    0.0008,
    *(step * 10**power / 1e6 for power in range(5) for step in _STEPS if step * 10**power < 40_000_000),
)
"""The upper bounds of the histogram of what servers take, 0.8 ms to 36 s; one more counts what took longer.

Each bound is at most a quarter above the one before, which limits the error of a quantile.
"""
SUCCEEDED: Final = "succeeded"
_SKIPPED: Final = "skipped"
_LONGEST_METHOD: Final = 16  # characters; a method that no endpoint takes may be as long as all headers
_KEEP_SECONDS: Final = 0.2
"""Requests are kept at most once in this time, so that a flood of them costs little.

The first request is kept at once. Those that follow within this time are pending, and are kept together at its end.
"""
_MOST_PENDING: Final = 100  # pending requests: the newest ones
_MOST_PENDING_BYTES: Final = 8 << 20  # of their bodies
_KINDS: Final = {Outcome.SKIPPED: "skipped", Outcome.RETRYING: "retry", Outcome.REFUSED: "refused"}


class EventCounts(Struct):
    """Counts of an event since the start."""

    outcomes: dict[str, int]  # calls by failure code, or as "succeeded" or "skipped"
    took: "Durations"  # of the requests of calls; of a server event, of the requests that succeeded or failed
    waits: int = 0  # calls that were not skipped
    waited_seconds: float = 0.0  # sum of their waiting times
    refused: int = 0  # messages that were not admitted
    statuses: dict[str, int] = {}  # requests of server mode by the status of the answer
    skipped: dict[str, int] = {}  # messages and requests by the code of the reason

    def add_call(self, run: CallRun) -> None:
        """Count a call that has ended."""
        if run.outcome is Outcome.REFUSED:
            self.refused += 1
            return
        outcome = SUCCEEDED if run.failure is None else run.failure.code.value
        if run.skipped is not None:
            outcome = _SKIPPED
            self.skipped[run.skipped[0]] = self.skipped.get(run.skipped[0], 0) + 1
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        if outcome != _SKIPPED:
            self.waits += 1
            self.waited_seconds += run.waited
            if run.took:  # else nothing was sent, which would make the server look fast
                self.took.add(run.took)

    def add_request(self, run: RequestRun) -> None:
        """Count a request that has been answered."""
        status = run.answer.status[:3]
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if run.skipped is not None:
            self.skipped[run.skipped[0]] = self.skipped.get(run.skipped[0], 0) + 1
        if run.outcome in (Outcome.SUCCEEDED, Outcome.FAILED):
            self.took.add(run.took)


class Durations(Struct):
    """A histogram of durations: the number in each of `BUCKETS`, one number for longer ones, and the sum in seconds."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one more."""
        self.buckets[bisect_left(BUCKETS, seconds)] += 1
        self.seconds += seconds


class RunRecorder:
    """Records the runs of all routes; fulfils `engine.needs.Records`.

    Args:
        runs: Makes the ids of calls.
        capture: Which runs are kept with message, request and response.
        copies: Keeps copies of the kept runs, over a restart.
        restored: The runs that were kept before the start, the oldest first.
    """

    def __init__(
        self,
        runs: RunIds,
        capture: Capture = Capture.FAILURES,
        copies: KeepsCopies | None = None,
        restored: Iterable[KeptRun] = (),
    ) -> None:
        self.started = time.time()
        """When the bridge started, in Unix time."""
        self._ids = runs
        self._capture = capture
        self.problems = Problems()
        """What is wrong now."""
        self.kept = KeptRuns(self.problems, copies, restored)
        """Runs with their messages."""
        self.followers = Followers(self._without_secrets)
        """Who follows what happens."""
        self._counts: dict[EventName, EventCounts] = {}
        self._recent: dict[str, deque[UnmaskedRun]] = {}  # the last runs of each route
        self._failures: dict[str, deque[UnmaskedRun]] = {}  # its last failures
        self._secrets: frozenset[str] = frozenset()  # of all routes
        self._pending: deque[tuple[UnmaskedRun, RequestRun]] = deque()  # requests that the timer keeps
        self._pending_bytes = 0
        self._has_timer = False

    def use_routes(self, routes: Sequence[Route]) -> None:
        """Record the events of these routes, with their bound ports, from now on; kept runs of other routes stay."""
        self._counts = {name: self._counts.get(name) or EventCounts({}, Durations()) for name in event_names(routes)}
        names = [route.name for route in routes]
        self._recent = {name: self._recent.get(name, deque(maxlen=SHOWN_RUNS)) for name in names}
        self._failures = {name: self._failures.get(name, deque(maxlen=SHOWN_FAILURES)) for name in names}
        self._secrets = frozenset[str]().union(*(route.secrets for route in routes))
        self.problems.use_routes(routes)

    def count_earlier_failures(self) -> list[KeptRun]:
        """Count the unresolved failures of the start in their problems, and return them, the oldest first."""
        found = self.kept.unresolved()
        for one in found:
            self._count_failure(one.run)
        return found

    def counts(self) -> dict[str, dict[str, EventCounts]]:
        """Return what was counted, by route and event."""
        by_route: dict[str, dict[str, EventCounts]] = {}
        for (route, event), counts in self._counts.items():
            by_route.setdefault(route, {})[event] = counts
        return by_route

    # What the engine notes.

    def note_call(self, run: CallRun) -> None:
        """Note a call that has ended, or a failed attempt that another one follows."""
        noted = self._noted_call(run)
        self._remember(noted)
        counts = self._counts.get((run.route.name, run.event.name))
        if counts is None:  # a reload has removed the event
            return
        if run.outcome is Outcome.RETRYING:
            self.problems.add_failed_try(run.number, self._without_secrets(noted))
            return
        counts.add_call(run)
        if run.retry_of is None:
            if run.failure is not None or self._capture is Capture.ALL:
                self._keep_call(noted, run)
        else:
            self.kept.begin_retry(run.retry_of, noted.run.id or "")  # for a replay; that of a retry has begun already
            self._keep_call(noted, run)
            self._note_retry(run.retry_of, run.outcome, run.time)
            self.kept.end_retry(run.retry_of)
        self.forget_call(run.number)

    def _noted_call(self, run: CallRun) -> UnmaskedRun:
        """Return what is remembered of a call."""
        name, is_refused = (run.route.name, run.event.name), run.outcome is Outcome.REFUSED
        failure, url = run.failure, run.url
        if url is not None and len(url) > LONGEST_URL:  # masked first, so that no part of a secret is left
            url = masker_of(run.route).address(url)[:LONGEST_URL]
        return UnmaskedRun(run.route, Run(
            run.time, _KINDS.get(run.outcome, "call"), self._ids.of(run.key, *name), *name,
            loggable(run.message.topic), run.event.method.value, url, run.status,
            None if failure is None else failure.code.value,
            None if failure is None else failure.message,
            None if failure is None else failure.hint,
            None if is_refused else run.attempted,
            None if is_refused else _milliseconds(run.took),
            None if is_refused else max(0.0, _milliseconds(run.waited)),
            run.attempts, run.retry_of, reason=None if run.skipped is None else Reason(*run.skipped),
            batch=run.together if run.together > 1 else None,
        ))  # fmt: skip

    def _remember(self, noted: UnmaskedRun) -> None:
        """Remember a run as one of the last of its route, and pass it on to followers."""
        run = noted.run
        if run.kind != "retry" and (recent := self._recent.get(run.route or "")) is not None:
            recent.append(noted)
            if run.code is not None:
                self._failures[run.route or ""].append(noted)
        if self.followers.are_any:
            self.followers.note(noted)

    def _keep_call(self, noted: UnmaskedRun, run: CallRun) -> None:
        """Keep a call with its message, and with request and response if these are captured; count its failure."""
        shown, message, evidence = self._without_secrets(noted), run.message, None
        is_captured = self._capture is Capture.ALL or (run.failure is not None and self._capture is not Capture.NONE)
        if is_captured and run.outcome is not Outcome.REFUSED:
            evidence = call_evidence(run)
            if evidence is not None:
                shown = replace(shown, url=evidence.url)  # secrets of the message are masked in it too
        if run.failure is not None:
            self._count_failure(shown)
        payload = None if self._capture is Capture.NONE else message.payload
        self.kept.add(KeptRun(shown, message.topic, message.timestamp, payload, evidence, message.properties))

    def _count_failure(self, run: Run) -> None:
        """Count a failure in its problem. That of a retry replaces the failure before it: a message counts once."""
        self.problems.add_failure(run)
        failures = [] if run.retry_of is None else self.kept.failures_of(run.retry_of)
        before = [one for one in failures if one.time <= run.time and one.id != run.id]
        if before:
            self.problems.remove_failure(before[-1])

    def _note_retry(self, name: str, outcome: Outcome, now: float) -> None:
        """Note how the retry of a failure has ended. A success is counted in the problem of that failure."""
        if (failure := self.kept.note_retry_outcome(name, outcome.value)) is not None:
            self.problems.add_success(failure, now)

    def replayed_run(self, event: EventName, message: Message) -> str | None:
        """Return the id of the newest kept failure of an event with the message that was replayed."""
        return self.kept.replayed_failure(*event, message)

    def forget_call(self, number: int) -> None:
        """Note that a call is not retried any more: it has ended, or was given up."""
        if self.problems.retrying:
            self.problems.end_tries(number)

    def note_request(self, run: RequestRun) -> None:
        """Note a request that has been answered."""
        noted, refusal = self._noted_request(run), run.refusal
        self._remember(noted)
        route, event = run.route, run.event
        if route is None or event is None or (counts := self._counts.get((route.name, event.name))) is None:
            return
        counts.add_request(run)
        if refusal is not None:
            self._count_failure(replace(noted.run, hint=hint_of(refusal.code, noted.run.status)))
        if run.retry_of is not None:
            self._keep_request(noted, run)
            self._note_retry(run.retry_of, run.outcome, run.time)
            return
        is_kept = self._capture is Capture.ALL if refusal is None else refusal.code in NOT_SERVED_CODES
        if is_kept and self._capture is not Capture.NONE:
            self._keep_request_soon(noted, run)

    def _noted_request(self, run: RequestRun) -> UnmaskedRun:
        """Return what is remembered of a request."""
        route, event, refusal = run.route, run.event, run.refusal
        url = path_of(run.request.target)
        if len(url) > LONGEST_URL:
            url = self._masked_url(route, url)[:LONGEST_URL]
        return UnmaskedRun(route, Run(
            run.time, "skipped" if run.outcome is Outcome.SKIPPED else "request", run.request.id,
            None if route is None else route.name,
            None if event is None else event.name,
            None if run.publication is None else loggable(run.publication.topic),
            run.request.method[:_LONGEST_METHOD], url, int(run.answer.status[:3]),
            None if refusal is None else refusal.code,
            None if refusal is None else refusal.message,
            None if refusal is None else refusal.hint,
            ms=_milliseconds(run.took), retry_of=run.retry_of,
            reason=None if run.skipped is None else Reason(*run.skipped),
        ))  # fmt: skip

    def _keep_request_soon(self, noted: UnmaskedRun, run: RequestRun) -> None:
        """Keep a request at once, or with those that are pending; see `_KEEP_SECONDS`."""
        if not self._has_timer:
            self._has_timer = True
            asyncio.get_running_loop().call_later(_KEEP_SECONDS, self._on_timer)
            self._keep_request(noted, run)
            return
        self._pending.append((noted, run))
        self._pending_bytes += _body_bytes(run)
        while len(self._pending) > _MOST_PENDING or (
            self._pending_bytes > _MOST_PENDING_BYTES and len(self._pending) > 1
        ):
            self._pending_bytes -= _body_bytes(self._pending.popleft()[1])

    def _on_timer(self) -> None:
        """Keep the pending requests, and start the timer again; stop it if there are none."""
        self._has_timer = bool(self._pending)
        if self._has_timer:
            asyncio.get_running_loop().call_later(_KEEP_SECONDS, self._on_timer)
            self.keep_pending()

    def _keep_request(self, noted: UnmaskedRun, run: RequestRun) -> None:
        """Keep a request with the message that it has published, or would have published."""
        publication = run.publication or Publication("", b"")
        payload = None if run.publication is None else publication.payload
        original = self.kept.get(run.retry_of or "")
        evidence = request_evidence(run, None if original is None else original.evidence)
        shown = self._without_secrets(noted)
        self.kept.add(KeptRun(shown, publication.topic, run.time - run.took, payload, evidence, publication.properties))

    def put_away(self, name: str) -> list[Run]:
        """Forget the failures of a message that is not to be sent again, and return them."""
        failures = self.kept.put_away(name)
        gone = {run.id for run in failures}
        for route in {run.route or "" for run in failures}:
            for last in (self._recent.get(route, deque()), self._failures.get(route, deque())):
                for one in [one for one in last if one.run.id in gone]:
                    last.remove(one)
        return failures

    def note_unmatched(self, message: Message) -> None:
        """Show followers a message that concerns no event. The broker's own messages on `$SYS` are left out."""
        if self.followers.are_any and not message.topic.startswith("$SYS/"):
            self.followers.note(UnmaskedRun(None, Run(message.timestamp, "message", topic=loggable(message.topic))))

    def note_error(self, route: str, code: str, message: str, now: float) -> None:
        """Note an error of a route that ended no message."""
        self.problems.add_error(route, code, message, now)

    # Queries.

    def keep_pending(self) -> None:
        """Keep the pending requests now; called before kept runs are searched."""
        waiting, self._pending, self._pending_bytes = self._pending, deque(), 0
        for noted, run in waiting:
            self._keep_request(noted, run)

    def find(self, query: RunQuery) -> list[Run]:
        """Return the newest runs that a query wants: remembered and kept ones, and calls that are being retried."""
        self.keep_pending()
        if query.outcome == OPEN:
            waiting = (one.run for one in self.kept.open(query.route))
            return nlargest(query.limit, filter(query.wants, waiting), key=lambda run: run.time)
        remembered = {
            one.run.id: one
            for route in (self._recent if query.route is None else (query.route,))
            for one in (*self._recent.get(route, ()), *self._failures.get(route, ()))
            if query.wants(one.run)
        }
        newest = nlargest(query.limit, remembered.values(), key=lambda one: one.run.time)
        found = {one.run.id: self._without_secrets(one) for one in newest}
        tried = self.problems.open_tries() if query.tries or query.outcome == Outcome.RETRYING else ()
        kept = [one.run for one in self.kept.newest(query.route)]
        found |= {run.id: run for run in (*kept, *tried) if query.wants(run)}
        return nlargest(query.limit, found.values(), key=lambda run: run.time)

    def is_known(self, name: str, routes: Iterable[str]) -> bool:
        """Return whether there is still a run with this id, of one of these routes."""
        return (
            self.kept.get(name) is not None
            or self.is_retrying(name)
            or any(
                one.run.id == name
                for route in routes
                for one in (*self._recent.get(route, ()), *self._failures.get(route, ()))
            )
        )

    def is_retrying(self, name: str) -> bool:
        """Return whether the run with this id is a call that is tried again."""
        return any(run.id == name for run in self.problems.open_tries())

    def _masked_url(self, route: Route | None, url: str) -> str:
        return masked_path(url, self._secrets) if route is None else masker_of(route).address(url)

    def _without_secrets(self, noted: UnmaskedRun) -> Run:
        """Return a run as it is shown."""
        run, reason = noted.run, noted.run.reason
        address = (NO_SECRETS if noted.route is None else masker_of(noted.route)).address
        return replace(
            run,
            url=None if run.url is None else self._masked_url(noted.route, run.url),
            message=None if run.message is None else address(run.message),
            reason=None if reason is None else Reason(reason.code, address(reason.message)),
        )


def _milliseconds(seconds: float) -> float:
    return round(1000 * seconds, 1)


def _body_bytes(run: RequestRun) -> int:
    return len(run.request.body) + (0 if run.publication is None else len(run.publication.payload))

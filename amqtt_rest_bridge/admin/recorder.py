"""Records the calls and requests of the bridge: counts them, and keeps the last ones of each route. The loop alone.

Each route has its last 50 calls and requests, and its last 20 failures, which successes do not push out; failures are
also kept with their message, request and response (`KeptRuns`). Recording has to be cheap: of most runs one small value
goes into a bounded queue, and its secrets are masked when it is read. Runs that are kept with their messages are masked
before.
"""

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import nlargest
from operator import attrgetter
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from amqtt_rest_bridge.admin.kept_runs import KeptRun, KeptRuns
from amqtt_rest_bridge.admin.live import Followers
from amqtt_rest_bridge.admin.problems import Problems
from amqtt_rest_bridge.admin.runs import (
    NOT_SERVED_CODES,
    SHOWN_BYTES,
    SHOWN_FAILURES,
    SHOWN_RUNS,
    Evidence,
    Reason,
    Run,
    RunQuery,
    ShownResponse,
    is_wanted,
    shown_body,
)
from amqtt_rest_bridge.engine.failures import masker_for
from amqtt_rest_bridge.engine.needs import CallRun, Outcome, RequestRun
from amqtt_rest_bridge.engine.requests import scheme_of_sender
from amqtt_rest_bridge.http.exchange import path_of
from amqtt_rest_bridge.lot.masking import NO_SECRETS, Masker, credentials_of, masked_path, masker_of
from amqtt_rest_bridge.lot.model import (
    Capture,
    ClientEvent,
    EventName,
    Message,
    Publication,
    Route,
    RunIds,
    ServerEvent,
    Try,
)
from amqtt_rest_bridge.lot.route_set import event_names, with_bound_ports
from amqtt_rest_bridge.secret_search import MASK
from amqtt_rest_bridge.topics import loggable

_STEPS: Final = (1000, 1250, 1550, 1900, 2350, 2900, 3600, 4500, 5600, 7000, 8500)
BUCKETS: Final[tuple[float, ...]] = (
    0.0008,
    *(step * 10**power / 1e6 for power in range(5) for step in _STEPS if step * 10**power < 40_000_000),
)
"""The upper bounds of the histogram of what servers take, 0.8 ms to 36 s; one more counts what took longer.

Each is at most a quarter above the one before, so that no quantile is further off.
"""
SUCCEEDED: Final = "succeeded"
_SKIPPED: Final = "skipped"
_LONGEST: Final = 1000  # characters of a URL; masked before it is cut, so that no part of a secret is left
_LONGEST_METHOD: Final = 16  # of one that no endpoint takes, which may be as long as all headers
_KEEP_SECONDS: Final = 0.2  # from a request that is kept at once to those after it, so that a flood costs little
_MOST_WAITING: Final = 100  # requests, the last ones, that wait to be kept ...
_MOST_WAITING_BYTES: Final = 8 << 20  # ... and their bodies
_KINDS: Final = {Outcome.SKIPPED: "skipped", Outcome.RETRYING: "retry", Outcome.REFUSED: "refused"}


class EventCounts(Struct):
    """What has been counted of an event since the start.

    `outcomes` are calls by failure code ("succeeded" without one), `took` how long their requests took; `waits` of them
    waited `waited_seconds` together. `statuses` are requests of server mode by the status of the answer; of a server
    event `took` is the time until the answer, without callers that were refused and what was skipped. `skipped` are
    messages and requests by the code of their reason.
    """

    outcomes: dict[str, int]
    took: "Durations"
    waits: int = 0
    waited_seconds: float = 0.0
    refused: int = 0
    statuses: dict[str, int] = {}
    skipped: dict[str, int] = {}


class Durations(Struct):
    """Durations: their number by upper bounds (`BUCKETS`), not cumulated, and their sum in seconds."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one more."""
        self.buckets[bisect_left(BUCKETS, seconds)] += 1
        self.seconds += seconds


class _NotedRun(Struct, gc=False):
    """A call, an attempt of one, or a request, before it is shown: the fields of `Run`, with secrets."""

    time: float
    kind: str
    id: str
    route: Route | None
    event: ClientEvent | ServerEvent | None
    topic: str | None
    method: str
    url: str | None
    status: int | None
    failure: tuple[str, str, str] | None
    tries: int | None
    took: float
    waited: float | None
    attempts: Sequence[Try] = ()
    retry_of: str | None = None
    reason: tuple[str, str] | None = None


class RunRecorder:
    """Records the runs of all routes; fulfils `engine.needs.Records`.

    Args:
        runs: Makes the ids of calls.
        capture: Which runs are kept with message, request and response.
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
        self._ids = runs
        self._capture = capture
        self._bound_ports = bound_ports
        self.kept = KeptRuns() if kept is None else kept
        """Runs with their messages."""
        self.problems = Problems()
        """What is wrong now."""
        self.kept.on_superseded = self.problems.superseded
        self.followers = Followers(self._shown)
        """Who follows what happens."""
        self._counts: dict[EventName, EventCounts] = {}
        self._recent: dict[str, deque[_NotedRun]] = {}
        self._failures: dict[str, deque[_NotedRun]] = {}
        self._secrets: frozenset[str] = frozenset()  # of all routes
        self._waiting: deque[tuple[_NotedRun, RequestRun]] = deque()  # requests that are to be kept
        self._waiting_bytes = 0
        self._is_due = False

    def use_routes(self, routes: Sequence[Route]) -> None:
        """Record the events of these routes from now on, and no others; kept runs of others stay."""
        self._counts = {name: self._counts.get(name) or EventCounts({}, Durations()) for name in event_names(routes)}
        names = [route.name for route in routes]
        self._recent = {name: self._recent.get(name, deque(maxlen=SHOWN_RUNS)) for name in names}
        self._failures = {name: self._failures.get(name, deque(maxlen=SHOWN_FAILURES)) for name in names}
        self._secrets = frozenset[str]().union(*(route.secrets for route in routes))
        self.problems.use(with_bound_ports(routes, self._bound_ports()))

    def counts(self) -> dict[str, dict[str, EventCounts]]:
        """Return what was counted, by route and event."""
        by_route: dict[str, dict[str, EventCounts]] = {}
        for (route, event), counts in self._counts.items():
            by_route.setdefault(route, {})[event] = counts
        return by_route

    # What the engine notes.

    def note_call(self, run: CallRun) -> None:
        """Note a call that has ended, or an attempt of it that is followed by another one."""
        name = run.route.name, run.event.name
        self._count_call(name, run)
        failure = None if run.failure is None else (run.failure.code.value, run.failure.message, run.failure.hint)
        url = run.url
        if url is not None and len(url) > _LONGEST:
            url = masker_of(run.route).address(url)[:_LONGEST]
        noted = _NotedRun(
            run.time, _KINDS.get(run.outcome, "call"), self._ids.of(run.key, *name), run.route, run.event,
            run.message.topic[:_LONGEST], run.event.method.value, url, run.status, failure,
            run.attempted, run.took, run.waited, run.attempts, run.retry_of, run.skipped,
        )  # fmt: skip
        self._note(noted)
        if name not in self._counts:
            return
        if run.outcome is Outcome.RETRYING:
            self.problems.try_failed(run.number, self._shown(noted))
            return
        is_kept = self._keeps(run.outcome)
        if is_kept or run.retry_of is not None:
            shown, message = self._shown(noted), run.message
            payload = None if self._capture is Capture.NONE else message.payload
            evidence = self._evidence(run) if is_kept else None
            if evidence is not None:
                shown = replace(shown, url=evidence.url)  # without what the message brought, too
            if failure is not None:
                self.problems.call(shown)
            self.kept.add(KeptRun(shown, message.topic, message.timestamp, payload, evidence, message.properties))
        if run.retry_of is not None:
            self._note_retry(run.retry_of, run.outcome, run.time)
        self.forget_call(run.number)

    def _note_retry(self, name: str, outcome: Outcome, now: float) -> None:
        """Note how the retry of a failure has ended. If it has succeeded, its problem has a message less."""
        for shown in self.kept.note_retry(name, outcome.value):
            self.problems.sent_again(shown, now)

    def forget_call(self, number: int) -> None:
        """Note that a call is tried no more: it has ended, or was given up."""
        if self.problems.retrying:
            self.problems.no_more_tries(number)

    def note_request(self, run: RequestRun) -> None:
        """Note a request that has been answered."""
        route, event, refusal = run.route, run.event, run.refusal
        status, url = int(run.answer.status[:3]), path_of(run.request.target)
        if len(url) > _LONGEST:
            url = self._masked(route, url)[:_LONGEST]
        topic = None if run.publication is None else run.publication.topic[:_LONGEST]
        failure = None if refusal is None else (refusal.code, refusal.message, refusal.hint)
        kind = "skipped" if run.outcome is Outcome.SKIPPED else "request"
        noted = _NotedRun(
            run.time, kind, run.request.id, route, event, topic, run.request.method[:_LONGEST_METHOD], url, status,
            failure, None, run.took, None, (), run.retry_of, run.skipped,
        )  # fmt: skip
        self._note(noted)
        if route is None or event is None or (counts := self._counts.get((route.name, event.name))) is None:
            return
        counts.statuses[run.answer.status[:3]] = counts.statuses.get(run.answer.status[:3], 0) + 1
        if run.skipped is not None:
            counts.skipped[run.skipped[0]] = counts.skipped.get(run.skipped[0], 0) + 1
        if run.outcome in (Outcome.SUCCEEDED, Outcome.FAILED):
            counts.took.add(run.took)
        if failure is not None:
            code, message, _ = failure
            self.problems.request((route.name, event.name), code, status, message, run.request.id, run.time)
        is_kept = failure[0] in NOT_SERVED_CODES if failure is not None else self._capture is Capture.ALL
        if run.retry_of is not None:
            self._keep_request(noted, run)
            self._note_retry(run.retry_of, run.outcome, run.time)
        elif is_kept and self._capture is not Capture.NONE:
            self._keep_soon(noted, run)

    def note_unmatched(self, message: Message) -> None:
        """Note a message that concerns no route, for those that follow; not the broker's own on `$SYS`."""
        if self.followers.are_any and not message.topic.startswith("$SYS/"):
            self.followers.note(Run(message.timestamp, "message", topic=loggable(message.topic)))

    def note_error(self, route: str, code: str, message: str, now: float) -> None:
        """Note an error of a route that ended no message."""
        self.problems.error(route, code, message, now)

    # What is asked for.

    def keep_waiting(self) -> None:
        """Keep the requests that wait to be kept, before they are looked for."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, deque(), 0
        for noted, run in waiting:
            self._keep_request(noted, run)

    def find(self, query: RunQuery) -> list[Run]:
        """Return the newest runs that a query asks for, remembered or kept, and calls that are tried again."""
        self.keep_waiting()
        remembered: dict[str, _NotedRun] = {}
        for route in self._recent if query.route is None else (query.route,):
            for run in (*self._recent.get(route, ()), *self._failures.get(route, ())):
                code = None if run.failure is None else run.failure[0]
                if query.id in (None, run.id) and is_wanted(query, run.time, run.kind, code, run.topic):
                    remembered[run.id] = run
        newest = nlargest(query.limit, remembered.values(), key=attrgetter("time"))
        found: dict[str | None, Run] = {run.id: self._shown(run) for run in newest}
        tried = self.problems.open_tries() if query.tries or query.outcome == Outcome.RETRYING else ()
        for shown in (*(kept.run for kept in self.kept.newest(query.route)), *tried):
            if (
                query.id in (None, shown.id)
                and query.route in (None, shown.route)
                and is_wanted(query, shown.time, shown.kind, shown.code, shown.topic)
            ):
                found[shown.id] = shown
        return nlargest(query.limit, found.values(), key=attrgetter("time"))

    # How it is done.

    def _note(self, run: _NotedRun) -> None:
        recent = None if run.route is None or run.kind == "retry" else self._recent.get(run.route.name)
        if run.route is not None and recent is not None:
            recent.append(run)
            if run.failure is not None:
                self._failures[run.route.name].append(run)
        if self.followers.are_any:
            self.followers.note(run)

    def _keep_soon(self, noted: _NotedRun, run: RequestRun) -> None:
        """Keep a request: the first one at once, those of the next 0.2 s together."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(_KEEP_SECONDS, self._keep_due)
            self._keep_request(noted, run)
            return
        self._waiting.append((noted, run))
        self._waiting_bytes += _body_bytes(run)
        while len(self._waiting) > _MOST_WAITING or (
            self._waiting_bytes > _MOST_WAITING_BYTES and len(self._waiting) > 1
        ):
            self._waiting_bytes -= _body_bytes(self._waiting.popleft()[1])

    def _keep_due(self) -> None:
        self._is_due = bool(self._waiting)
        if self._is_due:
            asyncio.get_running_loop().call_later(_KEEP_SECONDS, self._keep_due)
            self.keep_waiting()

    def _keep_request(self, noted: _NotedRun, run: RequestRun) -> None:
        publication = run.publication or Publication("", b"")
        payload = None if run.publication is None else publication.payload
        self.kept.add(KeptRun(
            self._shown(noted), publication.topic, run.time - run.took, payload, self._request_evidence(run),
            publication.properties,
        ))  # fmt: skip

    def _count_call(self, name: EventName, run: CallRun) -> None:
        counts = self._counts.get(name)
        if counts is None or run.outcome is Outcome.RETRYING:
            return
        if run.outcome is Outcome.REFUSED:
            counts.refused += 1
            return
        if run.skipped is not None:
            counts.skipped[run.skipped[0]] = counts.skipped.get(run.skipped[0], 0) + 1
        outcome = _SKIPPED if run.outcome is Outcome.SKIPPED else SUCCEEDED
        if run.failure is not None:
            outcome = run.failure.code.value
        counts.outcomes[outcome] = counts.outcomes.get(outcome, 0) + 1
        if outcome != _SKIPPED:
            counts.waits += 1
            counts.waited_seconds += run.waited
            if run.took:  # else nothing was sent, which would make the server look fast
                counts.took.add(run.took)

    def _keeps(self, outcome: Outcome) -> bool:
        if outcome in (Outcome.FAILED, Outcome.REFUSED):
            return True
        return outcome in (Outcome.SUCCEEDED, Outcome.SKIPPED) and self._capture is Capture.ALL

    def _evidence(self, run: CallRun) -> Evidence | None:
        """Return what is kept of a call beside its message, without secrets; None for one that was refused."""
        if run.outcome is Outcome.REFUSED or self._capture is Capture.NONE:
            return None
        own, request, response = masker_of(run.route), run.request, run.response
        masker = masker_for(own, request, response)
        carried = frozenset() if request is None else credentials_of(request.headers, request.url)
        carries = any(own.text(one) == one for one in carried)
        url, headers, body, received = None, [], None, None
        if request is not None:
            url = masker.address(request.url)[:_LONGEST]
            headers = _shown_headers(masker, request.headers)
            if scheme := scheme_of_sender(run.route.config, request):
                headers.append(("Authorization", f"{scheme} {MASK}"))
            body = None if request.body is None else shown_body(masker, request.body)
        if response is not None:
            shown = _shown_headers(masker, response.headers)
            reason = masker.text(response.reason)[:_LONGEST]
            received = ShownResponse(response.status, reason, shown, shown_body(masker, response.body))
        hint = None if run.failure is None else run.failure.hint
        payload = shown_body(masker, run.message.payload)
        return Evidence(
            hint, url, run.attempted, list(run.attempts), payload, carries, headers, body, received,
            run.together if run.event.batch_size is not None else 0,
        )  # fmt: skip

    def _request_evidence(self, run: RequestRun) -> Evidence:
        if run.retry_of is not None:  # the first run has what the request brought
            first = self.kept.get(run.retry_of)
            shown = None if first is None or first.evidence is None else first.evidence.payload
            return Evidence(None if run.refusal is None else run.refusal.hint, None, 1, [], shown, carries=True)
        request, answer, publication, event = run.request, run.answer, run.publication, run.event
        headers = list(request.headers.items())
        carried = credentials_of(headers, request.target)
        if event is not None and event.signature is not None:
            carried |= {request.headers.get(event.signature.header.lower(), "")}
        masker = (NO_SECRETS if run.route is None else masker_of(run.route)).including(carried)
        status, _, reason = answer.status.partition(" ")
        return Evidence(
            None if run.refusal is None else run.refusal.hint,
            masker.address(path_of(request.target)),
            1,
            [],
            None if publication is None else shown_body(masker, publication.payload),
            False,
            _shown_headers(masker, headers),
            shown_body(masker, request.body) if request.body else None,
            ShownResponse(int(status), reason, _shown_headers(masker, answer.headers), shown_body(masker, answer.body)),
        )

    def _masked(self, route: Route | None, url: str) -> str:
        return masked_path(url, self._secrets) if route is None else masker_of(route).address(url)

    def _shown(self, run: "_NotedRun | Run") -> Run:
        if isinstance(run, Run):
            return run
        masker = NO_SECRETS if run.route is None else masker_of(run.route)
        code, message, hint = run.failure or (None, None, None)
        is_refused = run.kind == "refused"
        return Run(
            run.time, run.kind, run.id,
            None if run.route is None else run.route.name,
            None if run.event is None else run.event.name,
            None if run.topic is None else loggable(run.topic),
            run.method,
            None if run.url is None else self._masked(run.route, run.url),
            run.status, code,
            None if message is None else masker.address(message),
            hint, None if is_refused else run.tries,
            None if is_refused else round(1000 * run.took, 1),
            None if run.waited is None or is_refused else max(0.0, round(1000 * run.waited, 1)),
            list(run.attempts), run.retry_of,
            reason=None if run.reason is None else Reason(run.reason[0], masker.address(run.reason[1])),
        )  # fmt: skip


def _body_bytes(run: RequestRun) -> int:
    return len(run.request.body) + (0 if run.publication is None else len(run.publication.payload))


def _shown_headers(masker: Masker, headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return headers as they are shown, up to `SHOWN_BYTES` together."""
    shown: list[tuple[str, str]] = []
    left = SHOWN_BYTES
    for name, value in headers:
        left -= len(name) + len(value)
        if left < 0:
            break
        shown.append((masker.text(name), masker.header(name, value)))
    return shown

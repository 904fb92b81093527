"""The last calls and requests of each route in a bridge process; there are records only where there is an admin port.

The workers and the ports' threads record, which has to be cheap: one value into a bounded queue, nothing formatted, no
lock. Secrets are masked when they are read. The broker asks on the link's readers; live records, and requests that the
broker process keeps, leave on the timers' thread. Any thread may call.

Decision: a route keeps its last 50 calls and requests, and its last 20 failures, which successes do not push out.

Decision: of requests the broker process keeps those that the route or the broker failed, not those that are their
caller's fault: anyone may send these, and their sender repeats them. The first one leaves at once, those of the fifth
of a second after it together, and of more than 100 the last ones: a flood costs no more.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import nlargest
from operator import attrgetter
from typing import Final

from msgspec import Struct

from amqtt_rest_bridge.calls.call import OpenCall, Step, Verdict, masker_for
from amqtt_rest_bridge.engine.requests import scheme_of_sender
from amqtt_rest_bridge.http_server import Request, Response
from amqtt_rest_bridge.link.admin_frames import (
    LIVE_SECONDS,
    MOST_LIVE,
    EndedRequest,
    FoundRuns,
    FromAdmin,
    LiveRecords,
    WantLive,
    WantRuns,
)
from amqtt_rest_bridge.link.frames import CREDIT_BYTES, SKIPPED
from amqtt_rest_bridge.masking import NO_SECRETS, Masker, credentials_of, masked_path, masker_of
from amqtt_rest_bridge.model import Capture, ClientEvent, Publication, Route, RunIds, RunKey, ServerEvent, Try
from amqtt_rest_bridge.records.runs import NOT_SERVED_CODES, is_wanted, shown_body
from amqtt_rest_bridge.records.values import (
    SHOWN_BYTES,
    SHOWN_FAILURES,
    SHOWN_RUNS,
    Evidence,
    Record,
    RunQuery,
    ShownResponse,
)
from amqtt_rest_bridge.secret_search import MASK
from amqtt_rest_bridge.topics import loggable

_MOST_ATTEMPTS: Final = 20  # tries of a call; one of a lossless route has no end
LONGEST: Final = 1000  # characters of a URL; masked before the rest is cut off, lest a part of a secret is left
LONGEST_METHOD: Final = 16  # of one that no endpoint takes, which may be as long as all headers

_KEEP_SECONDS: Final = 0.2  # from requests that leave to be kept to those after them
_MOST_KEPT: Final = 100  # requests that wait to leave
_MOST_KEPT_BYTES: Final = 8 << 20  # in their bodies

_DONE: Final = Step.DONE  # a member of an enumeration takes 70 ns to look up, which a call pays here
_KINDS: Final = {Step.SKIPPED: "skipped", Step.AGAIN: "retry", Step.SPLIT: "retry"}

Failure = tuple[str, str, str]
"""Code, message and hint."""
Matched = tuple[Route, ServerEvent] | tuple[None, None]
"""What a request led to: the same tuple for every request of an event, so that a record refers to what is in cache."""
_UNMATCHED: Final = None, None


@dataclass(frozen=True, slots=True, eq=False)
class ServedEvent:
    """The server event that a request led to; `request` is its METHOD and ENDPOINT as the log shows them."""

    route: str
    event: str
    request: str


_NOT_SERVED: Final = ServedEvent("", "", "")


class RawCall(Struct, gc=False):
    """The record of a call or of a failed try, before it is looked at.

    A Struct is made in a third of the time of a named tuple; without `gc` the collector never looks at one.
    """

    time: float
    kind: str
    of: tuple[Route, ClientEvent]
    run: RunKey
    topic: str
    url: str | None
    status: int | None
    failure: Failure | None
    tries: int
    received: float
    seconds: float
    attempts: Sequence[Try] = ()


class RawRequest(Struct, gc=False):
    """The record of an answered request, before it is looked at; `status` is its status line, `url` its target."""

    time: float
    kind: str
    of: Matched
    served: ServedEvent
    run: str
    topic: str | None
    method: str
    url: str
    status: str
    failure: Failure | None
    seconds: float


_Raw = RawCall | RawRequest


class _Ended(Struct, gc=False):
    """A request that is to be kept, before it is looked at."""

    raw: RawRequest
    request: Request
    answer: Response
    publication: Publication | None
    timestamp: float

    @property
    def size(self) -> int:
        """Return the bytes of its bodies."""
        return len(self.request.body) + (0 if self.publication is None else len(self.publication.payload))


class BridgeRecords:
    """Record, and answer for what is recorded.

    Args:
        runs: Makes the ids of calls.
        captures: Which calls the broker process keeps.
        after: Calls a function once, so many seconds from now.
        send: Sends a frame to the broker.
        offer: Sends one that costs so many credits; returns False where there is no room for it now.
        show: Takes live records; None sends them to the broker.
    """

    def __init__(
        self,
        runs: RunIds,
        captures: Capture,
        after: Callable[[float, Callable[[], None]], None],
        send: Callable[[FromAdmin], None],
        offer: Callable[[EndedRequest, int], bool],
        show: Callable[[LiveRecords], None] | None = None,
    ) -> None:
        self._runs = runs
        self._captures = captures
        self.keeps_all = captures is Capture.ALL
        """Whether the broker process keeps what has succeeded, too."""
        self.takes_all = self.keeps_all
        """Whether good answers are recorded by `request`, too, rather than by `recent`: some are kept, or followed."""
        self._after = after
        self._send = send
        self._offer = offer
        self._show = show or send
        self._recent: dict[str, deque[_Raw]] = {}
        self._failures: dict[str, deque[_Raw]] = {}
        self._secrets: frozenset[str] = frozenset()  # of all routes
        self._live: deque[_Raw] | None = None  # while there are followers
        self._followed = 0  # records since the last look
        self._is_due = False
        self._lock = threading.Lock()
        self._ended: deque[_Ended] = deque()  # to be kept; under the lock, as are their bytes
        self._ended_bytes = 0
        self._is_leaving = False

    def keep(self, routes: Iterable[Route]) -> None:
        """Record the calls of these routes from now on, and forget the others."""
        secrets = {route.name: route.secrets for route in routes}
        self._recent = {name: self._recent.get(name, deque(maxlen=SHOWN_RUNS)) for name in secrets}
        self._failures = {name: self._failures.get(name, deque(maxlen=SHOWN_FAILURES)) for name in secrets}
        self._secrets = frozenset[str]().union(*secrets.values())

    def recent(self, route: str) -> deque[_Raw]:
        """Return the place for good answers of a route, as long as not `takes_all`.

        What is counted of an answer is added here, without another call of a function: what takes .5 us in a loop takes
        2 us between requests, when its code and data are not in cache, which is 3 % of a bridge process.
        """
        return self._recent[route]

    def recorder(self, route: str) -> Callable[[OpenCall, Verdict], None]:
        """Return what records the end of a call of a route, or a try that failed.

        Of a success, which most calls are, nothing is made but the record; see `recent`.
        """
        recent = self._recent[route]

        def record(call: OpenCall, verdict: Verdict) -> None:
            url, message, key = call.url, call.message, call.idempotency_key
            if (
                verdict.step is not _DONE or self.takes_all or call.attempts is not None
                or url is None or len(url) > LONGEST
            ):  # fmt: skip
                self._call(call, verdict)
                return
            recent.append(RawCall(
                time.time(), "call", call.event.of, call.id if key is None else key, message.topic[:LONGEST], url,
                verdict.status, None, call.tries, message.timestamp, call.took,
            ))  # fmt: skip

        return record

    def _call(self, call: OpenCall, verdict: Verdict) -> None:
        now, of, url, message, error = time.time(), call.event.of, call.url, call.message, verdict.failure
        if url is not None and len(url) > LONGEST:
            url = masker_of(of[0]).address(url)[:LONGEST]
        failure = None if error is None else (error.code.value, error.message, error.hint)
        attempts: Sequence[Try] = ()
        if call.attempts is not None or verdict.step in (Step.AGAIN, Step.SPLIT):
            attempts = self._attempted(call, verdict, now)
        self._add(RawCall(
            now, _KINDS.get(verdict.step, "call"), of, call.run, message.topic[:LONGEST], url, verdict.status, failure,
            call.tries, message.timestamp, call.took, attempts,
        ))  # fmt: skip

    def evidence(self, call: OpenCall, verdict: Verdict) -> Evidence | None:
        """Return what the broker process keeps of a call that has ended, without secrets; None for other calls."""
        is_kept = verdict.failure is not None if self._captures is Capture.FAILURES else self.keeps_all
        if not is_kept or verdict.step is Step.SKIPPED:
            return None
        (route, _), request, response = call.event.of, verdict.request, verdict.response
        masker = masker_for(masker_of(route), request, response)
        carried = frozenset() if request is None else credentials_of(request.headers, request.url)
        carries = any(masker_of(route).text(one) == one for one in carried)
        url, headers, body, received = None, [], None, None
        if request is not None:
            url = masker.address(request.url)[:LONGEST]
            headers = _shown_headers(masker, request.headers)
            if scheme := scheme_of_sender(route.config, request):
                headers.append(("Authorization", f"{scheme} {MASK}"))
            body = None if request.body is None else shown_body(masker, request.body)
        if response is not None:
            shown = _shown_headers(masker, response.headers)
            received = ShownResponse(
                response.status, masker.text(response.reason)[:LONGEST], shown, shown_body(masker, response.body)
            )
        payload = shown_body(masker, call.message.payload) if call.has_payload else None
        hint = None if verdict.failure is None else verdict.failure.hint
        attempts = list(call.attempts or ())
        return Evidence(hint, url, call.tries, attempts, payload, carries, headers, body, received, call.together)

    def _attempted(self, call: OpenCall, verdict: Verdict, now: float) -> tuple[Try, ...]:
        """Note a try of a call that has more than one; return the last ones."""
        if call.attempts is None:
            call.attempts = deque(maxlen=_MOST_ATTEMPTS)
        code = None if verdict.failure is None else verdict.failure.code.value
        call.attempts.append(Try(now, verdict.status, code, round(1000 * call.stopwatch.seconds, 1)))
        return tuple(call.attempts)

    def request(
        self, raw: RawRequest, request: Request, answer: Response, publication: Publication | None, began: float
    ) -> None:
        """Record an answered request that is not one of those that go to `recent`; `began` is Unix time."""
        self._add(raw)
        if self._is_kept(raw):
            self._keep(_Ended(raw, request, answer, publication, began))

    def unmatched(self, request: Request, answer: Response, failure: Failure) -> None:
        """Record a request that led to no endpoint."""
        now, target = time.time(), request.target
        if len(target) > LONGEST:
            target = masked_path(_path(target), self._secrets)[:LONGEST]
        raw = RawRequest(
            now, "request", _UNMATCHED, _NOT_SERVED, request.id, None, request.method[:LONGEST_METHOD], target,
            answer.status, failure, 0.0,
        )  # fmt: skip
        self.request(raw, request, answer, None, now)

    def _is_kept(self, raw: RawRequest) -> bool:
        if self._captures is Capture.NONE or raw.kind == SKIPPED:
            return False
        return self.keeps_all if raw.failure is None else raw.failure[0] in NOT_SERVED_CODES

    def _keep(self, ended: _Ended) -> None:
        """Queue a request to be kept by the broker process."""
        with self._lock:
            self._ended.append(ended)
            self._ended_bytes += ended.size
            while len(self._ended) > _MOST_KEPT or (self._ended_bytes > _MOST_KEPT_BYTES and len(self._ended) > 1):
                self._ended_bytes -= self._ended.popleft().size
            if self._is_leaving:
                return
            self._is_leaving = True
        self._after(0.0, self._leave)

    def _leave(self) -> None:
        with self._lock:
            self._is_leaving = bool(self._ended)
        if self._is_leaving:
            self._after(_KEEP_SECONDS, self._leave)  # before the others: an error ends this round only
            self.flush()

    def flush(self) -> None:
        """Send the requests that are to be kept, as far as there is room."""
        with self._lock:
            ended, self._ended, self._ended_bytes = self._ended, deque(), 0
        while ended and self._offer_kept(ended[0]):
            ended.popleft()
        if ended:
            with self._lock:
                self._ended.extendleft(reversed(ended))
                self._ended_bytes += sum(one.size for one in ended)

    def _offer_kept(self, ended: _Ended) -> bool:
        raw, request, answer, publication = ended.raw, ended.request, ended.answer, ended.publication
        route, event = raw.of
        headers = list(request.headers.items())
        carried = credentials_of(headers, request.target)
        if isinstance(event, ServerEvent) and event.signature is not None:
            carried |= {request.headers.get(event.signature.header.lower(), "")}
        masker = (NO_SECRETS if route is None else masker_of(route)).including(carried)
        status, _, reason = answer.status.partition(" ")
        shown = _shown_headers(masker, answer.headers)
        evidence = Evidence(
            None if raw.failure is None else raw.failure[2],
            masker.address(_path(request.target)),
            1,
            [],
            None if publication is None else shown_body(masker, publication.payload),
            False,
            _shown_headers(masker, headers),
            shown_body(masker, request.body) if request.body else None,
            ShownResponse(int(status), reason, shown, shown_body(masker, answer.body)),
        )
        cost = 1 + ended.size // CREDIT_BYTES
        return self._offer(EndedRequest(cost, self._shown(raw), ended.timestamp, publication, evidence), cost)

    def find(self, query: RunQuery) -> list[Record]:
        """Return the newest runs that are asked for, and with `tries` the last failed tries, the newest first."""
        routes = tuple(self._recent) if query.route is None else (query.route,)
        found: dict[int, _Raw] = {}
        for route in routes:
            for raw in (*tuple(self._recent.get(route, ())), *tuple(self._failures.get(route, ()))):
                code = None if raw.failure is None else raw.failure[0]
                if is_wanted(query, raw.time, raw.kind, code, raw.topic) and self._is_of(raw, query.id):
                    found[id(raw)] = raw
        return [self._shown(raw) for raw in nlargest(query.limit, found.values(), key=attrgetter("time"))]

    def _is_of(self, raw: _Raw, name: str | None) -> bool:
        route, event = raw.of
        if name is None or isinstance(raw, RawRequest) or route is None or event is None:
            return name is None or raw.run == name
        return self._runs.is_of(name, raw.run, route.name, event.name)

    def handle(self, frame: WantRuns | WantLive) -> None:
        """Do what the broker asks for."""
        if isinstance(frame, WantRuns):
            self._send(FoundRuns(frame.number, self.find(frame.query)))
            return
        with self._lock:
            if frame.on is not (self._live is not None):
                self._live, self._followed = (deque(maxlen=MOST_LIVE) if frame.on else None), 0
                self.takes_all = self.keeps_all or frame.on
            begins = frame.on and not self._is_due
            self._is_due = self._is_due or frame.on
        if begins:
            self._after(LIVE_SECONDS, self._look)

    def _look(self) -> None:
        """Show what was recorded in the last moment to those that follow."""
        with self._lock:  # `handle` runs on another thread
            live, count = self._live, self._followed
            self._is_due = live is not None
            if live:
                self._live, self._followed = deque(maxlen=MOST_LIVE), 0
        if live is None:
            return
        self._after(LIVE_SECONDS, self._look)
        if live:
            records = [self._shown(raw) for raw in live]
            self._show(LiveRecords(records, max(0, count - len(records))))

    def _add(self, raw: _Raw) -> None:
        route = raw.of[0]
        if route is not None:
            recent = self._recent.get(route.name)
            if recent is None:  # a call of a route that is gone
                return
            if raw.kind != "retry":
                recent.append(raw)
            if raw.failure is not None and (failures := self._failures.get(route.name)) is not None:
                failures.append(raw)
        live = self._live
        if live is not None:
            live.append(raw)
            self._followed += 1

    def _masked(self, route: Route | None, url: str) -> str:
        return masked_path(url, self._secrets) if route is None else masker_of(route).address(url)

    def _shown(self, raw: _Raw) -> Record:
        route, event = raw.of
        masker = NO_SECRETS if route is None else masker_of(route)
        took = round(1000 * raw.seconds, 1)
        times: tuple[int | None, float, float | None, list[Try]]
        if isinstance(raw, RawCall):
            run, url, status = self._runs.of(raw.run, raw.of[0].name, raw.of[1].name), raw.url, raw.status
            waited = max(0.0, round(1000 * (raw.time - raw.received - raw.seconds), 1))  # the clock may have been set
            times, method = (raw.tries, took, waited, list(raw.attempts)), raw.of[1].method.value
        else:
            run, url, status = raw.run, _path(raw.url), int(raw.status[:3])
            times, method = (None, took, None, []), raw.method
        code, message, hint = raw.failure or (None, None, None)
        return Record(
            raw.time,
            raw.kind,
            run,
            None if route is None else route.name,
            None if event is None else event.name,
            None if raw.topic is None else loggable(raw.topic),
            method,
            None if url is None else self._masked(route, url),
            status,
            code,
            None if message is None else masker.address(message),
            hint,
            *times,
        )


def _shown_headers(masker: Masker, headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return headers as they are shown; beyond `SHOWN_BYTES` together the others are left out."""
    shown: list[tuple[str, str]] = []
    left = SHOWN_BYTES
    for name, value in headers:
        left -= len(name) + len(value)
        if left < 0:
            break
        shown.append((masker.text(name), masker.header(name, value)))
    return shown


def _path(target: str) -> str:
    """Leave out the query, as the access log does: callers put credentials there."""
    return target.partition("?")[0]

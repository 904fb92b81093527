"""The admin port: finds out what a path asks for, waits for the numbers, and answers. `Guard` says who may use it.

Requests are answered on the port's thread; nothing blocks. What the broker or another process has to answer first is a
pending answer.
"""

import gzip
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qs, quote, unquote

import msgspec
from msgspec.structs import replace

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.admin import metrics
from amqtt_rest_bridge.admin.guard import Guard
from amqtt_rest_bridge.admin.history import RANGES, History, step_seconds
from amqtt_rest_bridge.admin.numbers import SAMPLE_SECONDS, Numbers
from amqtt_rest_bridge.admin.pages import FIRST_ROUTE, SAFE, StatusPages
from amqtt_rest_bridge.admin.queries import (
    BadQueryError,
    RetryQuery,
    focus_of,
    page_query_of,
    query_of,
    retry_form_of,
    retry_of,
)
from amqtt_rest_bridge.admin.runs import Runs
from amqtt_rest_bridge.admin.shown import csv_text, problem_members, shown, unmatched_members, whole_run
from amqtt_rest_bridge.bridge.live import Changes, Followers
from amqtt_rest_bridge.bridge.questions import REMIND_SECONDS, NumbersCache, RunQuestions
from amqtt_rest_bridge.http.exchange import refuse, too_large
from amqtt_rest_bridge.http_server import HttpServer, Limits, Pending, Refusal, Request, Response, Stream, takes_gzip
from amqtt_rest_bridge.http_server.exchange import refused
from amqtt_rest_bridge.http_server.wrong_credentials import MOST_LATE, WrongCredentials
from amqtt_rest_bridge.link.admin_frames import (
    BROKER_FULL,
    NOT_KEPT,
    RETRY_RUNS,
    ROUTE_GONE,
    ForAdmin,
    FoundRuns,
    FromAdmin,
    LiveRecords,
    NumbersPart,
    Retried,
)
from amqtt_rest_bridge.model import Route
from amqtt_rest_bridge.records.bridge_records import BridgeRecords
from amqtt_rest_bridge.records.runs import run_members
from amqtt_rest_bridge.records.values import RunQuery
from amqtt_rest_bridge.settings import BridgeSettings
from amqtt_rest_bridge.site.playground import WALL_SECONDS, Playground, Trial, Tried, trial_of
from amqtt_rest_bridge.topics import check_topic_filter

WAIT_SECONDS: Final = 2.0  # for the broker and the other bridge processes
_FOR_PROGRAMS: Final = ("/metrics", "/readyz", "/healthz")
_JSON: Final = ("Content-Type", "application/json")
_NO_ANSWER: Final = refuse(catalogue.UNAVAILABLE, "The broker does not answer", (("Retry-After", "1"),))
_NOT_FOUND: Final = refuse(catalogue.NO_PAGE, "There is nothing here")
_NO_ROUTE: Final = refuse(catalogue.NO_ROUTE, "There is no route of this name")
_NOT_RETRIED: Final = {
    NOT_KEPT: catalogue.NO_RUN,
    ROUTE_GONE: catalogue.CANNOT_RETRY,
    RETRY_RUNS: catalogue.RETRY_RUNS,
    BROKER_FULL: catalogue.BROKER_FULL,
}
_NO_RUN: Final = refuse(catalogue.NO_RUN, "There is no run with this id, or it has not ended, or is no longer known")
_TOO_MANY: Final = refuse(catalogue.TOO_MANY_FOLLOW, "Too many follow already", (("Retry-After", "5"),))
_LIMITS: Final = Limits(waiting=64 + 2 * MOST_LATE, connections=64 + 2 * MOST_LATE)
_BODY_BYTES: Final = 65_536  # of 1,000 ids
_FORM_BYTES: Final = 1 << 20  # of a playground
_COMPRESSED_FROM: Final = 1024  # bytes; below, one packet carries the answer anyway
_LEVEL: Final = 7  # of gzip

Wake = Callable[[], None]


class AdminServer:
    """Serve the admin port. Any thread may call.

    Args:
        sock: The listening socket.
        settings: Of the plugin.
        records: Of this process.
        after: Calls a function once, so many seconds from now.
        send: Sends a frame to the broker.
        wrong_credentials: Answers wrong tokens.
    """

    def __init__(
        self,
        sock: socket.socket,
        settings: BridgeSettings,
        records: BridgeRecords,
        after: Callable[[float, Callable[[], None]], None],
        send: Callable[[FromAdmin], None],
        *,
        wrong_credentials: WrongCredentials,
    ) -> None:
        self._sock = sock
        self._port: int = sock.getsockname()[1]
        self._after = after
        self._guard = Guard(settings.admin_token)
        self._wrong_credentials = wrong_credentials
        self._numbers = NumbersCache(send)
        self._runs = RunQuestions(records, send)
        self._followers = Followers(send)
        self._samples = History()
        self._playground = Playground()
        self._pages = StatusPages(
            self._samples,
            ", ".join(settings.route_paths),
            settings.secrets_dir,
            may_retry=self._guard.may_retry,
        )
        self._server = HttpServer(sock, self, max_body_bytes=_FORM_BYTES, limits=_LIMITS)
        self._server.start()
        self._after(REMIND_SECONDS, self._sample)

    def use_routes(self, routes: Sequence[Route]) -> None:
        """Show these routes from now on."""
        self._pages.routes = {route.name: route for route in routes}

    def take(self, frame: ForAdmin) -> None:
        """Take an answer of the broker, or of another bridge process."""
        match frame:
            case NumbersPart():
                self._numbers.take(frame)
            case LiveRecords():
                self._followers.take(frame)
            case FoundRuns() | Retried():
                self._runs.take(frame)

    def stop(self, grace: float) -> None:
        """Close the port; blocks."""
        self._sock.close()
        self._server.stop(grace)

    def _sample(self) -> None:
        self._after(SAMPLE_SECONDS, self._sample)
        self._numbers.ask(self._add_sample, statuses=False)

    def _add_sample(self) -> None:
        numbers = self._numbers.newest
        if numbers is not None:
            self._samples.add(numbers)

    # Requests, on the port's thread.

    def answer(self, request: Request, wake: Wake) -> Response | Pending:
        """Answer a request, or begin to; see `Application.answer`."""
        path = request.target.partition("?")[0]
        if path == "/healthz":  # open to all: it tells nothing, and what asks seldom has a token
            return Response("200 OK", (*SAFE, ("Content-Type", "text/plain; charset=utf-8")), b"ok\n")
        wants_retry = path == "/retry" or (path.startswith(("/api/", "/runs/")) and path.endswith("/retry"))
        is_trial = path == "/playground" and request.method == "POST"
        finish = partial(self._finished, path, request)
        refusal = request.refusal or self._guard.check(request, is_retry=wants_retry, is_trial=is_trial)
        if refusal is None and not is_trial and len(request.body) > _BODY_BYTES:
            refusal = too_large(_BODY_BYTES)
        if refusal is None:
            act = self._retry if wants_retry else self._try if is_trial else self._find
            answer: Response | Pending
            try:
                answer = act(path, request, wake)
            except BadQueryError as error:
                row = catalogue.NOT_A_RETRY if wants_retry else catalogue.NOT_A_QUERY
                answer = refused(refuse(row, str(error)), SAFE)
            if isinstance(answer, Response):
                return finish(answer)
            if isinstance(answer, _Waiting):
                answer.finish = finish
            return answer
        if refusal.code == catalogue.UNAUTHORIZED.code and request.headers.get("authorization"):
            return self._wrong_credentials.refuse(
                request.remote, self._port, lambda other: refused(other or refusal, SAFE)
            )
        return finish(refused(refusal, SAFE))

    def _finished(self, path: str, request: Request, response: Response) -> Response:
        """Return an answer as its caller takes it: an error as a page where a person sees it, and compressed."""
        is_page = path not in _FOR_PROGRAMS and not path.startswith("/api/")
        if is_page and response.code is not None and "text/html" in request.headers.get("accept", ""):
            response = self._pages.error(response)
        return compressed(response) if takes_gzip(request.headers.get("accept-encoding")) else response

    def _find(self, path: str, request: Request, wake: Wake) -> Response | Pending:
        match path.split("/")[1:]:
            case ["metrics"]:
                return self._with_numbers(wake, _metrics)
            case ["readyz"]:
                return self._with_numbers(
                    wake,
                    lambda numbers: _readiness(numbers.bridge.reasons),
                    lambda: _readiness(["the broker does not answer"]),
                )
            case ["api", *rest]:
                return self._find_api(rest, request, wake)
        return self._find_page(path, request, wake)

    def _find_page(self, path: str, request: Request, wake: Wake) -> Response | Pending:
        match path.split("/")[1:]:
            case [""]:
                query, _ = page_query_of(_query(request), time.time())
                return self._with_numbers(wake, lambda numbers: self._pages.overview(numbers, query), statuses=True)
            case ["flow"]:
                focus = focus_of(_query(request))
                return self._with_numbers(wake, lambda numbers: self._pages.flow(numbers, focus), statuses=True)
            case ["routes", name]:
                return self._page_of(unquote(name), request, wake)
            case ["routes", name, "chart"] if unquote(name) in self._pages.routes:
                query, _ = page_query_of(_query(request), time.time())
                return self._pages.chart(unquote(name), query.range)
            case ["runs"]:
                asked, wanted = page_query_of(_query(request), time.time())
                return self._with_runs(wanted, wake, lambda runs: self._pages.runs(runs, asked))
            case ["runs", run]:
                is_refused = "refused" in _query(request)
                return self._with_run(run, wake, lambda runs: self._pages.run(runs, is_refused=is_refused), tries=True)
            case ["playground"]:
                return self._pages.playground(Trial(FIRST_ROUTE), None)
        return self._pages.asset(path, request.query) or refused(_NOT_FOUND, SAFE)

    def _find_api(self, path: list[str], request: Request, wake: Wake) -> Response | Pending:
        match path:
            case ["routes" | "routes.csv" as name]:
                return self._with_numbers(
                    wake,
                    lambda numbers: _listed(name, [route.status or {} for route in numbers.routes.values()]),
                    statuses=True,
                )
            case ["routes", name, "calls"]:
                return self._with_route(
                    unquote(name), wake, lambda runs: json_answer({"calls": [shown(one) for one in runs.recent()]})
                )
            case ["runs" | "runs.csv" as name]:
                query = query_of(_query(request), time.time())
                return self._with_runs(
                    query, wake, lambda runs: _listed(name, [run_members(one) for one in runs.newest()])
                )
            case ["runs", run]:
                return self._with_run(run, wake, lambda runs: json_answer(whole_run(runs, self._pages.routes)))
            case ["problems" | "problems.csv" as name]:
                return self._with_numbers(wake, lambda numbers: _listed(name, problem_members(numbers)))
            case ["unmatched"]:
                return self._with_numbers(wake, lambda numbers: json_answer(unmatched_members(numbers)))
            case ["history"]:
                return self._history(request)
            case ["live"]:
                return self._follow(request, wake)
            case ["changes"]:
                routes = frozenset(_query(request).get("route", ()))
                return _stream(request, lambda: self._changes(wake, routes))
        return refused(_NOT_FOUND, SAFE)

    def _changes(self, wake: Wake, routes: frozenset[str]) -> Stream | None:
        follower = self._followers.follow("pages", wake, routes)
        if follower is None:
            return None
        return Changes(self._numbers, self._samples, self._pages.sections, wake, follower)

    def _with_numbers(
        self,
        wake: Wake,
        finish: Callable[[Numbers], Response],
        without: Callable[[], Response] | None = None,
        *,
        statuses: bool = False,
    ) -> Response | Pending:
        since = time.monotonic()
        numbers = self._numbers.fresh(since, statuses=statuses)
        if numbers is not None:
            return finish(numbers)
        self._numbers.ask(wake, statuses=statuses)

        def look() -> Response | None:
            late = self._numbers.fresh(since, statuses=statuses)
            if late is None:
                self._numbers.remind()
            return None if late is None else finish(late)

        return _Waiting(look, late=without or _no_answer)

    def _with_runs(self, query: RunQuery, wake: Wake, finish: Callable[[Runs], Response | None]) -> Response | Pending:
        number, runs = self._runs.begin(query, wake)
        return _Waiting(lambda: finish(runs) if runs.is_complete else None, end=lambda: self._runs.end(number))

    def _with_route(self, name: str, wake: Wake, finish: Callable[[Runs], Response | None]) -> Response | Pending:
        if name not in self._pages.routes:
            return refused(_NO_ROUTE, SAFE)
        return self._with_runs(RunQuery(route=name), wake, finish)

    def _with_run(
        self, name: str, wake: Wake, finish: Callable[[Runs], Response], *, tries: bool = False
    ) -> Response | Pending:
        query = RunQuery(id=name, limit=1, tries=tries)
        return self._with_runs(query, wake, lambda runs: finish(runs) if runs.newest() else refused(_NO_RUN, SAFE))

    def _page_of(self, name: str, request: Request, wake: Wake) -> Response | Pending:
        if name not in self._pages.routes:
            return refused(_NO_ROUTE, SAFE)
        query, wanted = page_query_of(_query(request), time.time(), name)
        since = time.monotonic()
        self._numbers.ask(wake, statuses=True)

        def finish(runs: Runs) -> Response | None:
            numbers = self._numbers.fresh(since, statuses=True)
            if numbers is None:  # those of many routes come in parts, after the runs
                self._numbers.remind()
                return None
            return self._pages.route(name, numbers, runs, query) if name in numbers.routes else _no_answer()

        return self._with_runs(wanted, wake, finish)

    def _try(self, _path: str, request: Request, wake: Wake) -> Pending:
        """Begin to try a definition, in a process that a thread waits for."""
        trial, found = trial_of(request.body), list[Tried]()

        def judge() -> None:
            found.append(self._playground.run(trial))
            wake()

        threading.Thread(target=judge, name="playground", daemon=True).start()
        return _Waiting(lambda: self._pages.playground(trial, found[0]) if found else None, WALL_SECONDS + WAIT_SECONDS)

    def _history(self, request: Request) -> Response:
        query = _query(request)
        route, span = query.get("route", [""])[-1], query.get("range", ["10m"])[-1]
        if span not in RANGES:
            raise BadQueryError(f"range is one of {', '.join(RANGES)}")
        if route not in self._pages.routes:
            return refused(_NO_ROUTE, SAFE)
        values = self._samples.of(route, span)
        series: dict[str, list[int] | list[float | None]] = {
            "succeeded": [one.succeeded for one in values],
            "failed": [one.failed for one in values],
        }
        if latencies := self._samples.latencies(route, span):
            series["p50_ms"] = [one and one.p50 for one in latencies]
            series["p99_ms"] = [one and one.p99 for one in latencies]
        return json_answer({"route": route, "range": span, "step_seconds": step_seconds(span), "series": series})

    def _follow(self, request: Request, wake: Wake) -> Response:
        query = _query(request)
        route, topic_filter = (query.get(name, [None])[-1] for name in ("route", "topic"))
        if topic_filter is not None and (fault := check_topic_filter(topic_filter)) is not None:
            return refused(refuse(catalogue.NOT_A_FILTER, f"topic {fault}"), SAFE)
        routes = None if route is None else frozenset((route,))
        return _stream(request, lambda: self._followers.follow("caller", wake, routes, topic_filter))

    # Retries.

    def _retry(self, path: str, request: Request, wake: Wake) -> Response | Pending:
        match path.split("/")[1:-1]:
            case []:
                alike = retry_form_of(request.body)
                page = f"/routes/{quote(alike.route or '', safe='')}"
                return self._with_retries(
                    alike,
                    wake,
                    lambda answer: _see_other(f"{page}?started={len(answer.started)}&refused={len(answer.refused)}"),
                )
            case ["api", "failures"]:
                return self._with_retries(retry_of(request.body), wake, _retried)
            case ["api", "runs", run]:
                return self._with_retries(RetryQuery([run]), wake, _retried_one)
            case ["runs", run]:
                page = f"/runs/{quote(run)}"
                return self._with_retries(
                    RetryQuery([run]), wake, lambda answer: _see_other(page if answer.started else f"{page}?refused")
                )
        return refused(_NOT_FOUND, SAFE)

    def _with_retries(
        self, wanted: RetryQuery, wake: Wake, finish: Callable[[Retried], Response]
    ) -> Response | Pending:
        number, answer = self._runs.retry(wanted, wake)
        return _Waiting(lambda: finish(answer[0]) if answer else None, end=lambda: self._runs.end(number))


def _no_answer() -> Response:
    return refused(_NO_ANSWER, SAFE)


class _Waiting:
    """An answer that waits for that of another request, so many seconds at most; see `http_server.Pending`."""

    def __init__(
        self,
        look: Callable[[], Response | None],
        seconds: float = WAIT_SECONDS,
        *,
        late: Callable[[], Response] = _no_answer,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self._look = look
        self._late = late
        self._deadline = time.monotonic() + seconds
        self._end = end
        self.finish: Callable[[Response], Response] = lambda response: response

    def resume(self) -> Response | float:
        response = self._look()
        remaining = self._deadline - time.monotonic()
        if response is None and remaining > 0:
            return min(remaining, REMIND_SECONDS)
        self._end()
        return self.finish(response or self._late())

    def refuse(self, refusal: Refusal) -> Response:
        self._end()
        return self.finish(refused(refusal, SAFE))

    def caller_left(self) -> None:
        """Answer all the same: it costs nothing more."""

    def cancel(self) -> None:
        self._end()


def _retried(answer: Retried) -> Response:
    return json_answer(
        {
            "started": [{"id": run, "retry_of": of} for run, of in answer.started],
            "refused": [{"id": run, "code": code, "message": message} for run, code, message in answer.refused],
        },
        "202 Accepted",
    )


def _retried_one(answer: Retried) -> Response:
    if answer.started:
        run, of = answer.started[0]
        return json_answer({"id": run, "retry_of": of}, "202 Accepted")
    _, code, message = answer.refused[0]
    row = _NOT_RETRIED[code]
    return refused(refuse(row, message[0].upper() + message[1:]), SAFE)


def _see_other(location: str) -> Response:
    return Response("303 See Other", (*SAFE, ("Location", location)))


def _metrics(numbers: Numbers) -> Response:
    return Response("200 OK", (*SAFE, ("Content-Type", metrics.CONTENT_TYPE)), metrics.exposition(numbers))


def _readiness(reasons: list[str]) -> Response:
    status = "503 Service Unavailable" if reasons else "200 OK"
    return json_answer({"ready": not reasons, "reasons": reasons}, status)


def compressed(response: Response) -> Response:
    """Return an answer with its body in gzip format; a small one, and a stream, as it is."""
    if len(response.body) < _COMPRESSED_FROM:
        return response
    headers = (*response.headers, ("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding"))
    return replace(response, headers=headers, body=gzip.compress(response.body, _LEVEL, mtime=0))


def json_answer(value: Mapping[str, Any], status: str = "200 OK") -> Response:
    """Return an answer in JSON."""
    return Response(status, (*SAFE, _JSON), msgspec.json.encode(value))


def _listed(name: str, rows: Sequence[Mapping[str, Any]]) -> Response:
    """Return rows as JSON, or as a CSV file where the name of the list ends so."""
    of, _, form = name.partition(".")
    if not form:
        return json_answer({of: rows})
    kind = (("Content-Type", "text/csv; charset=utf-8"), ("Content-Disposition", f'attachment; filename="{name}"'))
    return Response("200 OK", (*SAFE, *kind), csv_text(rows).encode("utf-8", "replace"))


def _stream(request: Request, begin: Callable[[], Stream | None]) -> Response:
    """Return server-sent events; refuse when there are too many already."""
    is_head = request.method == "HEAD"
    stream = None if is_head else begin()
    if stream is None and not is_head:
        return refused(_TOO_MANY, SAFE)
    return Response("200 OK", (*SAFE, ("Content-Type", "text/event-stream")), stream=stream)


def _query(request: Request) -> dict[str, list[str]]:
    return parse_qs(request.query.encode("latin-1").decode("utf-8", "replace"), keep_blank_values=True)

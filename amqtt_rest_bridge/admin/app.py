"""The admin port: answers requests by their path. `Guard` checks who may use it.

What takes longer than a moment is done elsewhere: a trial of the playground in a process of its own.
"""

import asyncio
import gzip
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qs, quote, unquote

import msgspec
from msgspec.structs import replace

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.admin import metrics
from amqtt_rest_bridge.admin.charts import RANGES, History, step_seconds
from amqtt_rest_bridge.admin.figures import SAMPLE_SECONDS, Figures, Numbers
from amqtt_rest_bridge.admin.guard import Guard
from amqtt_rest_bridge.admin.pages import FIRST_ROUTE, SAFE, Changes, StatusPages
from amqtt_rest_bridge.admin.queries import (
    BadQueryError,
    RetryQuery,
    focus_of,
    page_query_of,
    query_of,
    retry_form_of,
    retry_of,
)
from amqtt_rest_bridge.admin.recorder import RunRecords
from amqtt_rest_bridge.admin.retries import NOT_KEPT, RETRY_RUNS, ROUTE_GONE, Retried, Retries
from amqtt_rest_bridge.admin.runs import RunQuery, Runs, live_members, run_members
from amqtt_rest_bridge.admin.shown import csv_text, problem_members, unmatched_members, whole_run
from amqtt_rest_bridge.engine.server.callers import MOST_LATE, WrongCredentials
from amqtt_rest_bridge.http.connection import PortLimits
from amqtt_rest_bridge.http.exchange import (
    Answer,
    Request,
    Response,
    ResponseStream,
    refuse,
    refused,
    takes_gzip,
    too_large,
)
from amqtt_rest_bridge.http.server import HttpServer
from amqtt_rest_bridge.lot.model import Route
from amqtt_rest_bridge.settings import Settings
from amqtt_rest_bridge.site.playground import Playground, Trial, trial_of
from amqtt_rest_bridge.topics import check_topic_filter

NOT_FOUND: Final = refuse(catalogue.NO_PAGE, "There is nothing here")
NO_ROUTE: Final = refuse(catalogue.NO_ROUTE, "There is no route of this name")
NO_RUN: Final = refuse(catalogue.NO_RUN, "There is no run with this id, or it has not ended, or is no longer known")
TOO_MANY: Final = refuse(catalogue.TOO_MANY_FOLLOW, "Too many follow already", (("Retry-After", "5"),))
_NOT_RETRIED: Final = {
    NOT_KEPT: catalogue.NO_RUN,
    ROUTE_GONE: catalogue.CANNOT_RETRY,
    RETRY_RUNS: catalogue.RETRY_RUNS,
}
_JSON: Final = ("Content-Type", "application/json")
_COMPRESSED_FROM: Final = 1024  # bytes; below, one packet carries the answer anyway
_LEVEL: Final = 7  # of gzip


def json_answer(value: Mapping[str, Any], status: str = "200 OK") -> Response:
    """Return an answer in JSON."""
    return Response(status, (*SAFE, _JSON), msgspec.json.encode(value))


def metrics_answer(numbers: Numbers) -> Response:
    """Return the figures as Prometheus reads them."""
    return Response("200 OK", (*SAFE, ("Content-Type", metrics.CONTENT_TYPE)), metrics.exposition(numbers))


def readiness(reasons: list[str]) -> Response:
    """Return whether the bridge is ready, and why not."""
    status = "503 Service Unavailable" if reasons else "200 OK"
    return json_answer({"ready": not reasons, "reasons": reasons}, status)


def listed(name: str, rows: Sequence[Mapping[str, Any]]) -> Response:
    """Return rows as JSON, or as a CSV file where the name of the list ends so."""
    of, _, form = name.partition(".")
    if not form:
        return json_answer({of: rows})
    kind = (("Content-Type", "text/csv; charset=utf-8"), ("Content-Disposition", f'attachment; filename="{name}"'))
    return Response("200 OK", (*SAFE, *kind), csv_text(rows).encode("utf-8", "replace"))


def history_answer(query: Mapping[str, Sequence[str]], routes: Collection[str], samples: History) -> Response:
    """Return the history of a route; raises `BadQueryError`."""
    route, span = query.get("route", [""])[-1], query.get("range", ["10m"])[-1]
    if span not in RANGES:
        raise BadQueryError(f"range is one of {', '.join(RANGES)}")
    if route not in routes:
        return refused(NO_ROUTE, SAFE)
    values = samples.of(route, span)
    series: dict[str, list[int] | list[float | None]] = {
        "succeeded": [one.succeeded for one in values],
        "failed": [one.failed for one in values],
    }
    if latencies := samples.latencies(route, span):
        series["p50_ms"] = [one and one.p50 for one in latencies]
        series["p99_ms"] = [one and one.p99 for one in latencies]
    return json_answer({"route": route, "range": span, "step_seconds": step_seconds(span), "series": series})


def retried(answer: Retried) -> Response:
    """Return which retries have begun, and which were refused."""
    return json_answer(
        {
            "started": [{"id": run, "retry_of": of} for run, of in answer.started],
            "refused": [{"id": run, "code": code, "message": message} for run, code, message in answer.refused],
        },
        "202 Accepted",
    )


def retried_one(answer: Retried) -> Response:
    """Return the retry of one run, or why it was refused."""
    if answer.started:
        run, of = answer.started[0]
        return json_answer({"id": run, "retry_of": of}, "202 Accepted")
    _, code, message = answer.refused[0]
    return refused(refuse(_NOT_RETRIED[code], message[0].upper() + message[1:]), SAFE)


def see_other(location: str) -> Response:
    """Return a redirection after a form was sent."""
    return Response("303 See Other", (*SAFE, ("Location", location)))


def compressed(response: Response) -> Response:
    """Return an answer with its body in gzip format; a small one, and a stream, as it is."""
    if len(response.body) < _COMPRESSED_FROM:
        return response
    headers = (*response.headers, ("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding"))
    return replace(response, headers=headers, body=gzip.compress(response.body, _LEVEL, mtime=0))


def query_members(request: Request) -> dict[str, list[str]]:
    """Return the query of a request by names."""
    return parse_qs(request.query.encode("latin-1").decode("utf-8", "replace"), keep_blank_values=True)


_FOR_PROGRAMS: Final = ("/metrics", "/readyz", "/healthz")
_LIMITS: Final = PortLimits(waiting=64 + 2 * MOST_LATE, connections=64 + 2 * MOST_LATE)
_BODY_BYTES: Final = 65_536  # of 1,000 ids
_FORM_BYTES: Final = 1 << 20  # of a playground


class AdminPort:
    """Serve the admin port.

    Args:
        sock: The listening socket.
        settings: Have its token, and what pages name.
        records: Of all routes.
        figures: Of all routes.
        retries: Send messages of failures again.
        wrong_credentials: Delays answers to wrong tokens; shared with the ports of routes.
    """

    def __init__(
        self,
        sock: socket.socket,
        settings: Settings,
        records: RunRecords,
        figures: Figures,
        retries: Retries,
        wrong_credentials: WrongCredentials,
    ) -> None:
        self._guard = Guard(settings.admin_token)
        self._records = records
        self._figures = figures
        self._retries = retries
        self._wrong_credentials = wrong_credentials
        self._samples = History()
        self._playground = Playground()
        self._pages = StatusPages(
            self._samples, ", ".join(settings.route_paths), settings.secrets_dir, may_retry=self._guard.may_retry
        )
        self._server = HttpServer(sock, self, max_body_bytes=_FORM_BYTES, limits=_LIMITS)

    @property
    def bound_port(self) -> int:
        """Return the port that callers connect to."""
        return self._server.bound_port

    def start(self) -> None:
        """Begin to accept."""
        self._server.start()

    def use_routes(self, routes: Sequence[Route]) -> None:
        """Show these routes from now on."""
        self._pages.routes = {route.name: route for route in routes}

    async def sample(self) -> None:
        """Sample the figures for the charts until cancelled."""
        while True:
            self._samples.add(await self._figures.now(statuses=False))
            await asyncio.sleep(SAMPLE_SECONDS)

    async def stop(self, grace: float) -> None:
        """Close the port."""
        await self._server.stop(grace)

    # Requests.

    def answer(self, request: Request) -> Answer:
        """Answer a request; see `http.exchange.Application`."""
        if request.target.partition("?")[0] == "/healthz":  # open to all: health checks have no token
            return Response("200 OK", (*SAFE, ("Content-Type", "text/plain; charset=utf-8")), b"ok\n")
        return self._answer(request)

    async def _answer(self, request: Request) -> Response:
        path = request.target.partition("?")[0]
        is_retry = path == "/retry" or (path.startswith(("/api/", "/runs/")) and path.endswith("/retry"))
        is_trial = path == "/playground" and request.method == "POST"
        refusal = request.refusal or self._guard.check(request, is_retry=is_retry, is_trial=is_trial)
        if refusal is None and not is_trial and len(request.body) > _BODY_BYTES:
            refusal = too_large(_BODY_BYTES)
        if refusal is not None:
            if refusal.code == catalogue.UNAUTHORIZED.code and request.headers.get("authorization"):
                delay = self._wrong_credentials.delay(request.remote, self.bound_port, request.caller)
                refusal = await delay or refusal
            return self._finished(path, request, refused(refusal, SAFE))
        act = self._retry if is_retry else self._try if is_trial else self._find
        try:
            answer = await act(path, request)
        except BadQueryError as error:
            row = catalogue.NOT_A_RETRY if is_retry else catalogue.NOT_A_QUERY
            answer = refused(refuse(row, str(error)), SAFE)
        return self._finished(path, request, answer)

    def _finished(self, path: str, request: Request, response: Response) -> Response:
        """Return an answer in the form its caller accepts: compressed, and for browsers an error as a page."""
        is_page = path not in _FOR_PROGRAMS and not path.startswith("/api/")
        if is_page and response.code is not None and "text/html" in request.headers.get("accept", ""):
            response = self._pages.error(response)
        return compressed(response) if takes_gzip(request.headers.get("accept-encoding")) else response

    async def _find(self, path: str, request: Request) -> Response:
        match path.split("/")[1:]:
            case ["metrics"]:
                return metrics_answer(await self._figures.now(statuses=False))
            case ["readyz"]:
                return readiness((await self._figures.now(statuses=False)).bridge.reasons)
            case ["api", *rest]:
                return await self._find_api(rest, request)
        return await self._find_page(path, request)

    async def _find_page(self, path: str, request: Request) -> Response:
        query, pages = query_members(request), self._pages
        match path.split("/")[1:]:
            case [""]:
                asked, _ = page_query_of(query, time.time())
                return pages.overview(await self._figures.now(statuses=True), asked)
            case ["flow"]:
                focus = focus_of(query)
                return pages.flow(await self._figures.now(statuses=True), focus)
            case ["routes", name]:
                return await self._page_of(unquote(name), request)
            case ["routes", name, "chart"] if unquote(name) in pages.routes:
                asked, _ = page_query_of(query, time.time())
                return pages.chart(unquote(name), asked.range)
            case ["runs"]:
                asked, wanted = page_query_of(query, time.time())
                return pages.runs(self._records.find(wanted), asked)
            case ["runs", run]:
                return self._of_run(
                    run, lambda runs: self._page_of_run(runs, is_refused="refused" in query), tries=True
                )
            case ["playground"]:
                return pages.playground(Trial(FIRST_ROUTE), None)
        return pages.asset(path, request.query) or refused(NOT_FOUND, SAFE)

    async def _find_api(self, path: list[str], request: Request) -> Response:
        query, now = query_members(request), self._figures.now
        match path:
            case ["routes" | "routes.csv" as name]:
                numbers = await now(statuses=True)
                return listed(name, [route.status or {} for route in numbers.routes.values()])
            case ["problems" | "problems.csv" as name]:
                return listed(name, problem_members(await now(statuses=False)))
            case ["unmatched"]:
                return json_answer(unmatched_members(await now(statuses=False)))
            case ["history"]:
                return history_answer(query, self._pages.routes, self._samples)
            case ["live"]:
                return self._follow(request)
            case ["changes"]:
                return self._follow_changes(request)
        return self._find_runs(path, query)

    def _find_runs(self, path: list[str], query: Mapping[str, Sequence[str]]) -> Response:
        match path:
            case ["routes", name, "calls"] if unquote(name) in self._pages.routes:
                runs = self._records.find(RunQuery(route=unquote(name)))
                return json_answer({"calls": [live_members(one) for one in runs.newest()]})
            case ["routes", _, "calls"]:
                return refused(NO_ROUTE, SAFE)
            case ["runs" | "runs.csv" as name]:
                found = self._records.find(query_of(query, time.time())).newest()
                return listed(name, [run_members(one) for one in found])
            case ["runs", run]:
                return self._of_run(run, lambda runs: json_answer(whole_run(runs, self._pages.routes)))
        return refused(NOT_FOUND, SAFE)

    def _of_run(self, name: str, finish: Callable[[Runs], Response], *, tries: bool = False) -> Response:
        runs = self._records.find(RunQuery(id=name, limit=1, tries=tries))
        return finish(runs) if runs.newest() else refused(NO_RUN, SAFE)

    async def _page_of(self, name: str, request: Request) -> Response:
        if name not in self._pages.routes:
            return refused(NO_ROUTE, SAFE)
        query, wanted = page_query_of(query_members(request), time.time(), name)
        numbers = await self._figures.now(statuses=True)
        if name not in numbers.routes:
            return refused(NO_ROUTE, SAFE)
        runs = self._records.find(wanted)
        return self._pages.route(name, numbers, runs, query, self._records.kept.unsent_by_code(name))

    def _page_of_run(self, runs: Runs, *, is_refused: bool) -> Response:
        run = runs.newest()[0]
        alike = {} if run.route is None else self._records.kept.unsent_by_code(run.route)
        return self._pages.run(runs, alike.get(run.code or "", 0), is_refused=is_refused)

    async def _try(self, _path: str, request: Request) -> Response:
        """Try a definition, in a process that a thread waits for."""
        trial = trial_of(request.body)
        return self._pages.playground(trial, await asyncio.to_thread(self._playground.run, trial))

    # Those who follow.

    def _follow(self, request: Request) -> Response:
        query = query_members(request)
        route, topic_filter = (query.get(name, [None])[-1] for name in ("route", "topic"))
        if topic_filter is not None and (fault := check_topic_filter(topic_filter)) is not None:
            return refused(refuse(catalogue.NOT_A_FILTER, f"topic {fault}"), SAFE)
        routes = None if route is None else frozenset((route,))
        return _stream(request, lambda: self._records.followers.follow("caller", routes, topic_filter))

    def _follow_changes(self, request: Request) -> Response:
        routes = frozenset(query_members(request).get("route", ()))

        def begin() -> ResponseStream | None:
            follower = self._records.followers.follow("pages", routes)
            if follower is None:
                return None
            return Changes(self._figures, self._samples, self._pages.sections, follower)

        return _stream(request, begin)

    # Retries.

    async def _retry(self, path: str, request: Request) -> Response:
        match path.split("/")[1:-1]:
            case []:
                alike = retry_form_of(request.body)
                answer = await self._retries.retry(alike)
                page = f"/routes/{quote(alike.route or '', safe='')}"
                return see_other(f"{page}?started={len(answer.started)}&refused={len(answer.refused)}")
            case ["api", "failures"]:
                return retried(await self._retries.retry(retry_of(request.body)))
            case ["api", "runs", run]:
                return retried_one(await self._retries.retry(RetryQuery([run])))
            case ["runs", run]:
                answer = await self._retries.retry(RetryQuery([run]))
                page = f"/runs/{quote(run)}"
                return see_other(page if answer.started else f"{page}?refused")
        return refused(NOT_FOUND, SAFE)


def _stream(request: Request, begin: Callable[[], ResponseStream | None]) -> Response:
    """Return server-sent events; refuse when there are too many already."""
    is_head = request.method == "HEAD"
    stream = None if is_head else begin()
    if stream is None and not is_head:
        return refused(TOO_MANY, SAFE)
    return Response("200 OK", (*SAFE, ("Content-Type", "text/event-stream")), stream=stream)

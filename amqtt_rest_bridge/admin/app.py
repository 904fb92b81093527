"""The admin port: an HTTP server whose requests are answered by their path. Event loop only.

`Guard` checks who may use it. `_answer` finds what a request asks for: `pages` renders the pages, `json_objects` makes
the answers of the API, `metrics` those of `/metrics`. A trial of the playground runs in a process of its own, since it
would block the loop.
"""

import asyncio
import gzip
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qs, quote, unquote

import msgspec
from msgspec.structs import replace

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.admin import metrics
from amqtt_rest_bridge.admin.figures import SAMPLE_SECONDS, Figures
from amqtt_rest_bridge.admin.guard import Guard
from amqtt_rest_bridge.admin.history import RANGES, History, step_seconds
from amqtt_rest_bridge.admin.json_objects import (
    csv_text,
    problem_objects,
    run_object,
    unmatched_object,
    whole_run_object,
)
from amqtt_rest_bridge.admin.live import Kind, live_object
from amqtt_rest_bridge.admin.pages import SAFE, Changes, StatusPages
from amqtt_rest_bridge.admin.queries import (
    BadQueryError,
    RetryQuery,
    focus_of,
    ids_of,
    page_query_of,
    query_of,
    retry_form_of,
    retry_of,
)
from amqtt_rest_bridge.admin.recorder import RunRecorder
from amqtt_rest_bridge.admin.retries import NOT_KEPT, RETRY_RUNS, ROUTE_GONE, Retries
from amqtt_rest_bridge.admin.runs import Run, RunQuery
from amqtt_rest_bridge.engine.server.credentials import MOST_LATE, WrongCredentials
from amqtt_rest_bridge.http.exchange import (
    Answer,
    Request,
    Response,
    overloaded,
    refuse,
    refused,
    takes_gzip,
    too_large,
)
from amqtt_rest_bridge.http.server import HttpServer, PortLimits
from amqtt_rest_bridge.lot.model import Route
from amqtt_rest_bridge.settings import Settings
from amqtt_rest_bridge.site.playground import FIRST_ROUTE, Playground, Trial, trial_of
from amqtt_rest_bridge.topics import check_topic_filter

NOT_FOUND: Final = refuse(catalogue.NO_PAGE, "There is nothing here")
NO_ROUTE: Final = refuse(catalogue.NO_ROUTE, "There is no route of this name")
NO_RUN: Final = refuse(catalogue.NO_RUN, "There is no run with this id, or it has not ended, or is no longer known")
_STILL_RETRIED: Final = refuse(catalogue.STILL_RETRIED, "This message is still being retried")
TOO_MANY: Final = refuse(catalogue.TOO_MANY_FOLLOW, "Too many follow already", (("Retry-After", "5"),))
_NOT_RETRIED: Final = {
    NOT_KEPT: catalogue.NO_RUN,
    ROUTE_GONE: catalogue.CANNOT_RETRY,
    RETRY_RUNS: catalogue.RETRY_RUNS,
}
_COMPRESSED_FROM: Final = 1024  # bytes; below, one packet carries the answer anyway
_GZIP_LEVEL: Final = 7
_FOR_PROGRAMS: Final = ("/metrics", "/readyz", "/healthz")
_LIMITS: Final = PortLimits(waiting=64 + 2 * MOST_LATE, connections=64 + 2 * MOST_LATE)
_BODY_BYTES: Final = 65_536  # of 1,000 ids
_FORM_BYTES: Final = 1 << 20  # of a playground


class AdminPort:
    """The HTTP server of the admin port.

    Args:
        sock: The listening socket.
        settings: The settings of the bridge, with the token of the port.
        recorder: The runs of all routes.
        figures: The figures of all routes.
        retries: Sends messages of failures again.
        wrong_credentials: Delays answers to wrong tokens; shared with the ports of routes.
    """

    def __init__(
        self,
        sock: socket.socket,
        settings: Settings,
        recorder: RunRecorder,
        figures: Figures,
        retries: Retries,
        wrong_credentials: WrongCredentials,
    ) -> None:
        self._guard = Guard(settings.admin_token)
        self._recorder = recorder
        self._figures = figures
        self._retries = retries
        self._wrong_credentials = wrong_credentials
        self._history = History()
        self._playground = Playground()
        self._pages = StatusPages(
            self._history,
            ", ".join(settings.route_paths),
            settings.secrets_dir,
            recorder.started,
            may_retry=self._guard.may_retry,
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
        self._retries.routes = routes

    async def sample(self) -> None:
        """Sample the figures for the charts until cancelled."""
        while True:
            self._history.add(await self._figures.now(statuses=False))
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
        """Check who asks, then retry, try a definition, or return what is at the path."""
        path = request.target.partition("?")[0]
        is_retry = path == "/retry" or (path.startswith(("/api/", "/runs/")) and path.endswith(("/retry", "/drop")))
        is_trial = path == "/playground" and request.method == "POST"
        overload = None if request.may_wait else overloaded("The admin port answers as many requests as it can")
        refusal = request.refusal or overload or self._guard.check(request, is_retry=is_retry, is_trial=is_trial)
        if refusal is None and not is_trial and len(request.body) > _BODY_BYTES:
            refusal = too_large(_BODY_BYTES)
        if refusal is not None:
            if refusal.code == catalogue.UNAUTHORIZED.code and request.headers.get("authorization"):
                delay = self._wrong_credentials.delay(request.remote, self.bound_port, request.caller)
                refusal = await delay or refusal
            return self._adapt(path, request, refused(refusal, SAFE))
        try:
            if is_retry:
                answer = await self._retry(path, request)
            elif is_trial:
                trial = trial_of(request.body)
                answer = self._pages.playground(trial, await asyncio.to_thread(self._playground.run, trial))
            elif path.startswith("/api/"):
                answer = await self._answer_api(path.split("/")[2:], request)
            else:
                answer = await self._answer_page(path, request)
        except BadQueryError as error:
            row = catalogue.NOT_A_RETRY if is_retry else catalogue.NOT_A_QUERY
            answer = refused(refuse(row, str(error)), SAFE)
        return self._adapt(path, request, answer)

    def _adapt(self, path: str, request: Request, response: Response) -> Response:
        """Return an answer in the form that its caller accepts: compressed, and for browsers errors as pages."""
        is_page = path not in _FOR_PROGRAMS and not path.startswith("/api/")
        if is_page and response.code is not None and "text/html" in request.headers.get("accept", ""):
            response = self._pages.error(response)
        return compressed(response) if takes_gzip(request.headers.get("accept-encoding")) else response

    async def _answer_page(self, path: str, request: Request) -> Response:
        """Return a page, a file that pages use, or what programs ask for outside of the API."""
        query, pages = _query(request), self._pages
        match path.split("/")[1:]:
            case ["metrics"]:
                text = metrics.exposition(await self._figures.now(statuses=False))
                return Response("200 OK", (*SAFE, ("Content-Type", metrics.CONTENT_TYPE)), text)
            case ["readyz"]:
                reasons = (await self._figures.now(statuses=False)).bridge.reasons
                status = "503 Service Unavailable" if reasons else "200 OK"
                return _json({"ready": not reasons, "reasons": reasons}, status)
            case [""]:
                asked, _ = page_query_of(query, time.time())
                return pages.overview(await self._figures.now(statuses=True), asked)
            case ["flow"]:
                focus = focus_of(query)
                return pages.flow(await self._figures.now(statuses=True), focus)
            case ["routes", name]:
                return await self._show_route(unquote(name), request)
            case ["routes", name, "chart"] if unquote(name) in pages.routes:
                asked, _ = page_query_of(query, time.time())
                return pages.chart(unquote(name), asked.range)
            case ["runs"]:
                asked, wanted = page_query_of(query, time.time())
                waiting = [one.run for one in self._recorder.kept.open(wanted.route)]
                count, ends = sum(map(wanted.wants, waiting)), self._retries.ends(asked.first)
                return pages.runs(self._recorder.find(wanted), asked, count, ends)
            case ["runs", run]:
                return self._show_run(run, is_refused="refused" in query)
            case ["playground"]:
                return pages.playground(Trial(FIRST_ROUTE), None)
        return pages.asset(path, request.query) or refused(NOT_FOUND, SAFE)

    async def _answer_api(self, path: list[str], request: Request) -> Response:
        """Return what the API has at a path below `/api/`."""
        query, now = _query(request), self._figures.now
        match path:
            case ["routes" | "routes.csv" as name]:
                numbers = await now(statuses=True)
                return _listed(name, [route.status or {} for route in numbers.routes.values()])
            case ["problems" | "problems.csv" as name]:
                return _listed(name, problem_objects(await now(statuses=False)))
            case ["unmatched"]:
                return _json(unmatched_object(await now(statuses=False)))
            case ["history"]:
                return self._answer_history(query)
            case ["live"]:
                return self._follow(request, "caller")
            case ["changes"]:
                return self._follow(request, "pages")
            case ["routes", name, "calls"] if unquote(name) in self._pages.routes:
                runs = self._recorder.find(RunQuery(route=unquote(name)))
                return _json({"calls": [live_object(one) for one in runs]})
            case ["routes", _, "calls"]:
                return refused(NO_ROUTE, SAFE)
            case ["runs" | "runs.csv" as name]:
                found = self._recorder.find(query_of(query, time.time()))
                return _listed(name, [run_object(one) for one in found])
            case ["runs", run]:
                found = self._recorder.find(RunQuery(id=run, limit=1))
                if found:
                    return _json(self._whole(found[0]))
                return refused(_STILL_RETRIED if self._recorder.is_retrying(run) else NO_RUN, SAFE)
        return refused(NOT_FOUND, SAFE)

    def _whole(self, run: Run) -> dict[str, Any]:
        """Return the JSON object of a run with what is kept of it."""
        return whole_run_object(run, self._recorder.kept.get(run.id or ""), self._pages.routes)

    def _answer_history(self, query: Mapping[str, Sequence[str]]) -> Response:
        """Return the history of a route within a range, the oldest values first."""
        route, span = query.get("route", [""])[-1], query.get("range", ["10m"])[-1]
        if span not in RANGES:
            raise BadQueryError(f"range is one of {', '.join(RANGES)}")
        if route not in self._pages.routes:
            return refused(NO_ROUTE, SAFE)
        values = self._history.samples(route, span)
        series: dict[str, list[int] | list[float | None]] = {
            "succeeded": [one.succeeded for one in values],
            "failed": [one.failed for one in values],
        }
        if latencies := self._history.latencies(route, span):
            series["p50_ms"] = [one and one.p50 for one in latencies]
            series["p99_ms"] = [one and one.p99 for one in latencies]
        return _json({"route": route, "range": span, "step_seconds": step_seconds(span), "series": series})

    async def _show_route(self, name: str, request: Request) -> Response:
        """Return the page of a route."""
        if name not in self._pages.routes:
            return refused(NO_ROUTE, SAFE)
        query, wanted = page_query_of(_query(request), time.time(), name)
        numbers = await self._figures.now(statuses=True)
        if name not in numbers.routes:
            return refused(NO_ROUTE, SAFE)
        runs = self._recorder.find(wanted)
        alike, ends = self._recorder.kept.open_alike(name), self._retries.ends(query.first)
        return self._pages.route(name, numbers, runs, query, alike, ends)

    def _show_run(self, name: str, *, is_refused: bool) -> Response:
        """Return the page of a run."""
        found, kept = self._recorder.find(RunQuery(id=name, limit=1, tries=True)), self._recorder.kept
        if not found:
            return refused(NO_RUN, SAFE)
        (run,) = found
        last_retry = kept.get(run.retried_as or "")
        alike = kept.open_alike(run.route or "")
        return self._pages.run(
            self._whole(run), None if last_retry is None else last_retry.run, alike[run.status, run.code or ""],
            is_refused=is_refused,
        )  # fmt: skip

    def _follow(self, request: Request, kind: Kind) -> Response:
        """Return a stream of runs as they are noted, for pages of the parts that change; refuse one stream too many."""
        query, topic_filter = _query(request), None
        if kind == "pages":
            routes: frozenset[str] | None = frozenset(query.get("route", ()))
        else:
            route, topic_filter = (query.get(name, [None])[-1] for name in ("route", "topic"))
            routes = None if route is None else frozenset((route,))
        if topic_filter is not None and (fault := check_topic_filter(topic_filter)) is not None:
            return refused(refuse(catalogue.NOT_A_FILTER, f"topic {fault}"), SAFE)
        headers = (*SAFE, ("Content-Type", "text/event-stream"))
        if request.method == "HEAD":
            return Response("200 OK", headers)
        follower = self._recorder.followers.follow(kind, routes, topic_filter)
        if follower is None:
            return refused(TOO_MANY, SAFE)
        is_page = kind == "pages"
        stream = Changes(self._figures, self._history, self._pages, follower) if is_page else follower
        return Response("200 OK", headers, stream=stream)

    async def _retry(self, path: str, request: Request) -> Response:
        """Retry, or put away, what the form of a page or a caller of the API names."""
        retry = self._retries.retry
        match path.split("/")[1:]:
            case ["runs", run, "drop"]:
                done, _ = self._retries.put_away([run])
                return _see_other("/runs?outcome=open" if done else f"/runs/{quote(run)}?refused")
            case ["api", "failures", "drop"]:
                done, left = self._retries.put_away(ids_of(request.body))
                return _json({"dropped": done, "refused": _refused_objects(left)})
            case ["retry"]:
                wanted = retry_form_of(request.body)
                answer = await retry(wanted)
                page = "/runs?outcome=open&" if wanted.route is None else f"/routes/{quote(wanted.route, safe='')}?"
                first = f"&first={answer.started[0][0]}" if answer.started else ""
                return _see_other(f"{page}started={len(answer.started)}&refused={len(answer.refused)}{first}")
            case ["runs", run, "retry"]:
                answer = await retry(RetryQuery([run]))
                return _see_other(f"/runs/{quote(run)}{'' if answer.started else '?refused'}")
            case ["api", "failures", "retry"]:
                answer = await retry(retry_of(request.body))
                started = [{"id": run, "retry_of": of} for run, of in answer.started]
                return _json({"started": started, "refused": _refused_objects(answer.refused)}, "202 Accepted")
            case ["api", "runs", run, "retry"]:
                answer = await retry(RetryQuery([run]))
                for new, of in answer.started:
                    return _json({"id": new, "retry_of": of}, "202 Accepted")
                _, code, why = answer.refused[0]
                return refused(refuse(_NOT_RETRIED[code], why[0].upper() + why[1:]), SAFE)
        return refused(NOT_FOUND, SAFE)


def _json(value: Mapping[str, Any], status: str = "200 OK") -> Response:
    return Response(status, (*SAFE, ("Content-Type", "application/json")), msgspec.json.encode(value))


def _listed(name: str, rows: Sequence[Mapping[str, Any]]) -> Response:
    """Return rows as JSON, or as a CSV file if `name` ends in `.csv`."""
    of, _, form = name.partition(".")
    if not form:
        return _json({of: rows})
    kind = (("Content-Type", "text/csv; charset=utf-8"), ("Content-Disposition", f'attachment; filename="{name}"'))
    return Response("200 OK", (*SAFE, *kind), csv_text(rows).encode("utf-8", "replace"))


def _refused_objects(refused: Sequence[tuple[str, str, str]]) -> list[dict[str, str]]:
    return [{"id": run, "code": code, "message": why} for run, code, why in refused]


def _see_other(location: str) -> Response:
    return Response("303 See Other", (*SAFE, ("Location", location)))


def compressed(response: Response) -> Response:
    """Return an answer with its body in gzip format; a small one, and a stream, as it is."""
    if len(response.body) < _COMPRESSED_FROM:
        return response
    headers = (*response.headers, ("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding"))
    return replace(response, headers=headers, body=gzip.compress(response.body, _GZIP_LEVEL, mtime=0))


def _query(request: Request) -> dict[str, list[str]]:
    """Return the parameters of a request, each with all its values."""
    return parse_qs(request.query.encode("latin-1").decode("utf-8", "replace"), keep_blank_values=True)

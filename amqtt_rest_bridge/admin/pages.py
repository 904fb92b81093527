"""The pages of the admin port: rendered here, readable without JavaScript, live with it. Event loop only.

jinja2 (templates beside this module) escapes everything that is inserted; the Content-Security-Policy lets nothing run
and nothing load but our own scripts and style sheet. What pages show is shaped in `route_rows`, `charts`, `flow`,
`json_objects` and `run_page`.
"""

import asyncio
import hashlib
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any, Final

import msgspec
from jinja2 import ChoiceLoader, Environment, FunctionLoader, PackageLoader, StrictUndefined, Template
from markupsafe import Markup, escape
from msgspec.structs import replace

from amqtt_rest_bridge.admin import charts, flow
from amqtt_rest_bridge.admin.figures import Figures, Numbers
from amqtt_rest_bridge.admin.history import RANGES, History, step_seconds
from amqtt_rest_bridge.admin.json_objects import page_problems, run_object, unmatched_object
from amqtt_rest_bridge.admin.live import Follower, event
from amqtt_rest_bridge.admin.queries import OUTCOMES, PageQuery
from amqtt_rest_bridge.admin.route_rows import Row, groups, row, rows, sort_rows, summary
from amqtt_rest_bridge.admin.run_page import curl_line, json_lines, time_line, tries_text, try_line
from amqtt_rest_bridge.admin.runs import Run
from amqtt_rest_bridge.http.exchange import Headers, Response
from amqtt_rest_bridge.lot.model import Route
from amqtt_rest_bridge.site import SCRIPT, SITE_FILES, site_file, site_template
from amqtt_rest_bridge.site.playground import FIRST_ROUTE, Trial, TrialResult

CHANGE_SECONDS: Final = 2.0
_CODE: Final = re.compile(r"`([^`]+)`")
_WORD: Final = re.compile("[a-z]+ ")
_OPTION: Final = re.compile(r"(?<= )--?[A-Za-z][a-z-]{0,30}(?= )")
_POLICY: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; worker-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
SAFE: Final[Headers] = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "same-origin"),
)
"""The headers of every answer of the admin port."""
_SAFE_PAGE: Final[Headers] = (*SAFE, ("Content-Security-Policy", _POLICY), ("X-Frame-Options", "DENY"))
_KEPT: Final[Headers] = (("Cache-Control", "private, max-age=31536000, immutable"), *_SAFE_PAGE[1:])
_PAGES: Final = ("overview", "attention", "unmatched", "flow", "route", "chart", "run", "runs", "playground", "error")
_ASSETS: Final = {"script.js": SCRIPT, "live.js": SCRIPT, **SITE_FILES}


class StatusPages:
    """Renders the pages from the present figures and the history of the routes.

    Args:
        history: Of the routes.
        folder: Where the route files are.
        secrets_dir: What `GET SECRET` reads.
        started: When the bridge started, in Unix time.
        may_retry: Whether the port has a token, without which nothing is sent again.
    """

    def __init__(self, history: History, folder: str, secrets_dir: str, started: float, *, may_retry: bool) -> None:
        self.routes: Mapping[str, Route] = {}
        """The present routes, by name; replaced, never changed."""
        self._history = history
        self._folder = folder
        self._secrets_dir = secrets_dir
        self._started = started
        self._may_retry = may_retry
        self._templates = compiled()

    def overview(self, numbers: Numbers, query: PageQuery) -> Response:
        """Return the page of all routes, those that need attention first."""
        every = rows(numbers, self._history)
        wanted = query.text.lower()
        found = [one for one in every if wanted in one["name"].lower()]
        return self._page(
            "overview",
            groups=groups(sort_rows(found, query.sort)),
            summary=summary(every),
            skips=any(one["skipped"] not in ("0", "-") for one in every),
            query=query,
            folder=self._folder,
            first_route=FIRST_ROUTE,
            **self._attention(numbers),
        )

    def _attention(self, numbers: Numbers) -> dict[str, Any]:
        return {
            "reasons": numbers.bridge.reasons,
            "problems": page_problems(numbers),
            "unmatched": unmatched_object(numbers)["unmatched"],
            "open_failures": {
                name: route.open_failures for name, route in numbers.routes.items() if route.open_failures
            },
            "may_retry": self._may_retry,
        }

    def flow(self, numbers: Numbers, focus: flow.Node | None) -> Response:
        """Return the drawing of all routes, or of what leads to one node and from it."""
        every = rows(numbers, self._history)
        names = [one["name"] for one in sort_rows(every, "health") if one["name"] in self.routes]
        drawn = names if focus is not None else names[: flow.MOST_ROUTES]
        arrows = flow.edges([self.routes[name] for name in drawn])
        nodes = sorted({node[:2] for edge in arrows for node in (edge.begin, edge.end)})
        if focus is not None:
            arrows = flow.edges_around(arrows, focus)
        states = {one["name"]: _state(one) for one in every}
        return self._page(
            "flow",
            drawing=flow.drawing(arrows, states),
            kinds={edge.kind for edge in arrows},
            focus=focus,
            nodes=nodes,
            left_out=len(names) - len(drawn),
            is_empty=not arrows,
        )

    def route(
        self,
        name: str,
        numbers: Numbers,
        runs: Sequence[Run],
        query: PageQuery,
        alike: Counter[tuple[int | None, str]],
        ends: Counter[str],
    ) -> Response:
        """Return the page of one route; `alike` counts failures that can be sent again, by status and code.

        `ends` counts the retries that were just asked for, by their outcomes.
        """
        route = self.routes[name]
        shown = row(numbers.routes[name], self._history)
        return self._page(
            "route",
            row=shown,
            place=f"{route.path}:{route.position.line}",
            definition=route.definition,
            drawing=flow.drawing(flow.edges([route]), {name: _state(shown)}),
            runs=[self._with_tries(run_object(one)) for one in runs],
            outcomes=OUTCOMES,
            query=query,
            may_retry=self._may_retry,
            alike=alike.most_common(),
            ends=ends,
            has_several=len(route.client_events) + len(route.server_events) > 1,
            **self._chart(name, query.range),
        )

    def chart(self, name: str, span: str) -> Response:
        """Return the chart of one route by itself, for its page when another range is chosen."""
        return self._page("chart", row={"name": name}, **self._chart(name, span))

    def _chart(self, name: str, span: str) -> dict[str, Any]:
        samples = self._history.samples(name, span)
        chart = charts.chart(samples, RANGES[span][1], step_seconds(span), time.time())
        latency = charts.latency_chart(self._history.latencies(name, span), RANGES[span][1])
        return {"chart": chart, "latency": latency, "span": span, "ranges": RANGES}

    def runs(self, runs: Sequence[Run], query: PageQuery, waiting: int, ends: Counter[str]) -> Response:
        """Return the page of the runs of all routes; `waiting` is how many of those asked for wait for a retry.

        `ends` counts the retries that were just asked for, by their outcomes.
        """
        return self._page(
            "runs",
            runs=[self._with_tries(run_object(one)) for one in runs],
            query=query,
            waiting=waiting,
            ends=ends,
            may_retry=self._may_retry,
            outcomes=OUTCOMES,
            names=sorted(self.routes, key=str.lower),
        )

    def run(self, run: dict[str, Any], again: Run | None, alike: int, *, is_refused: bool) -> Response:
        """Return the page of one run; see `json_objects.whole_run_object`.

        `again` is the newest run that sends its message again, once that has ended. `alike` counts failures like it
        that can be sent again, `is_refused` is whether a retry of it was just refused.
        """
        route = self.routes.get(run["route"])
        bars, seconds = time_line(run["tries"], run["waited_ms"])
        return self._page(
            "run",
            run=self._with_tries(run),
            alike=alike,
            again=None if again is None else run_object(again),
            may_retry=self._may_retry,
            is_refused=is_refused,
            bars=bars,
            seconds=seconds,
            curl=curl_line(run, route),
            trial=try_line(run, route, self._secrets_dir),
            definition=route.definition if route is not None else "",
        )

    def _with_tries(self, run: dict[str, Any]) -> dict[str, Any]:
        return run | {"tries_text": tries_text(run, self._started)}

    def error(self, refused: Response) -> Response:
        """Return a refusal as a page, for a person who followed a link that leads nowhere, or no longer."""
        error = msgspec.json.decode(refused.body)["error"]
        page = self._page("error", refused.status, error=error)
        kept = tuple(header for header in refused.headers if header not in SAFE and header[0] != "Content-Type")
        return replace(refused, headers=(*page.headers, *kept), body=page.body)

    def playground(self, trial: Trial, tried: TrialResult | None) -> Response:
        """Return the playground with a trial and its result, None before the first trial."""
        status = "503 Service Unavailable" if tried is not None and tried.is_busy else "200 OK"
        return self._page("playground", status, trial=trial, tried=tried)

    def asset(self, path: str, version: str) -> Response | None:
        """Return a style sheet or script, None if the path names none. With its version, browsers may keep it."""
        name = path[1:]
        if name not in _ASSETS:
            return None
        headers = _KEPT if version == _version() else _SAFE_PAGE
        return Response("200 OK", (*headers, ("Content-Type", _ASSETS[name])), _asset(name))

    def sections(self, numbers: Numbers) -> dict[str, str]:
        """Return what the page of all routes shows beside its rows, as HTML, by the id of the element that it fills."""
        shown = self._attention(numbers)
        return {name: self._templates[name].render(shown) for name in ("attention", "unmatched")}

    def _page(self, name: str, status: str = "200 OK", **values: Any) -> Response:
        headers = (*_SAFE_PAGE, ("Content-Type", "text/html; charset=utf-8"))
        return Response(status, headers, self._templates[name].render(values).encode("utf-8", "replace"))


@cache
def compiled() -> Mapping[str, Template]:
    """Compile the templates of all pages; takes 40 ms, once."""
    environment = page_environment()
    return {name: environment.get_template(f"{name}.html") for name in _PAGES}


def page_environment() -> Environment:
    """Return what compiles the templates of pages."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader("amqtt_rest_bridge.admin"), FunctionLoader(site_template)]),
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"prose": prose, "sentence": sentence, "moment": moment, "duration": duration}
    environment.filters |= {"json_lines": json_lines, "options": options}
    environment.globals["version"] = _version()
    return environment


# Filters of the templates.


def prose(text: str) -> Markup:
    """Return a text as HTML, with code between backticks."""
    return Markup(_CODE.sub(r"<code>\1</code>", escape(text)))  # noqa: S704 - all but our own tag is escaped


def options(line: str) -> Markup:
    """Return a line for a shell as HTML whose options do not break behind a hyphen."""
    return Markup(_OPTION.sub(r'<span class="option">\g<0></span>', str(escape(line))))  # noqa: S704 - as above


def sentence(text: str) -> str:
    """Return a text that a log line quotes as a sentence of its own; an address or a name stays as it is."""
    return text[:1].upper() + text[1:] if _WORD.match(text) else text


def duration(milliseconds: float) -> str:
    """Return milliseconds as a text, a second and more in seconds."""
    return f"{milliseconds:.1f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def moment(time: str) -> str:
    """Return the time of the day of a time in RFC 3339, with its date unless that is today."""
    at = datetime.fromisoformat(time).astimezone(UTC)
    return f"{at:%H:%M:%S} UTC" if at.date() == datetime.now(UTC).date() else f"{at.day} {at:%b %H:%M} UTC"


@cache
def _version() -> str:
    """Return a text that changes with any style sheet or script; pages name them with it."""
    return hashlib.sha256(b"".join(map(_asset, _ASSETS))).hexdigest()[:12]


@cache
def _asset(name: str) -> bytes:
    if name in SITE_FILES:
        return site_file(name)
    return files("amqtt_rest_bridge.admin").joinpath("static", name).read_bytes()


def _state(shown: Row) -> flow.RouteState:
    return flow.RouteState(shown["health"], "" if shown["rate"] == "-" else f"{shown['rate']}/s")


class Changes:
    """The stream that keeps a page up to date: the rows of routes that change, and their runs.

    See `http.exchange.ResponseStream`.

    Args:
        figures: Of all routes.
        history: Of the routes.
        pages: Renders what the page of all routes shows beside its rows.
        follower: Has the runs of the routes that the page shows.
    """

    def __init__(self, figures: Figures, history: History, pages: StatusPages, follower: Follower) -> None:
        self._figures = figures
        self._history = history
        self._pages = pages
        self._follower = follower
        self._wake: Callable[[], None] = lambda: None
        self._rows: dict[str, Row] = {}  # that were sent, by route
        self._sections: dict[str, str] = {}  # that were sent
        self._sent = time.monotonic()
        self._gathering: asyncio.Task[Numbers] | None = None

    def begin(self, wake: Callable[[], None]) -> None:
        """Begin: `wake` has the next piece taken."""
        self._wake = wake
        self._follower.begin(wake)

    def take(self) -> bytes | float:
        """Return the rows that have changed, or runs, or the seconds after which to ask again."""
        gathering, now = self._gathering, time.monotonic()
        if gathering is None and now - self._sent >= CHANGE_SECONDS:
            self._sent = now
            self._gathering = asyncio.create_task(self._figures.now(statuses=True))
            self._gathering.add_done_callback(lambda _: self._wake())
        elif gathering is not None and gathering.done() and not gathering.cancelled():
            self._gathering, numbers = None, gathering.result()
            present, sections = rows(numbers, self._history), self._pages.sections(numbers)
            changed = [one for one in present if self._rows.get(one["name"]) != one]
            if changed or len(present) != len(self._rows) or sections != self._sections:
                self._rows, self._sections, self._sent = {one["name"]: one for one in present}, sections, now
                names = [one["name"] for one in present]
                page = {"summary": summary(present), "sections": sections, "names": names, "rows": changed}
                return event("routes", page)
        runs = self._follower.take()
        return runs if isinstance(runs, bytes) else min(runs, CHANGE_SECONDS)

    def close(self) -> None:
        """Cease to follow."""
        self._follower.close()
        if self._gathering is not None:
            self._gathering.cancel()

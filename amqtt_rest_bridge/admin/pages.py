"""The status page and the page of each route: rendered here, readable without JavaScript, live with it.

jinja2 (templates beside this module) escapes everything that is inserted; the Content-Security-Policy lets nothing run
and nothing load but our own script and style sheet. The graph of the routes is a drawing: topic to route to server,
endpoint to route to topic. On the port's thread.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from amqtt_rest_bridge.admin.history import SAMPLES, History, Sample
from amqtt_rest_bridge.admin.live import Follower, Followers, event
from amqtt_rest_bridge.admin.numbers import Numbers, NumbersCache
from amqtt_rest_bridge.admin.runs import Runs
from amqtt_rest_bridge.admin.shown import problem_members, whole_run
from amqtt_rest_bridge.http_server import Headers, Response, Stream
from amqtt_rest_bridge.http_server.site_files import SCRIPT, SITE_FILES, site_file
from amqtt_rest_bridge.link.admin_frames import RouteNumbers
from amqtt_rest_bridge.masking import masker_of
from amqtt_rest_bridge.model import HEALTHS, Route

CHANGE_SECONDS: Final = 2.0
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
_ASSETS: Final = {"script.js": SCRIPT, "live.js": SCRIPT, **SITE_FILES}
_HEIGHT: Final = 20

Row = Mapping[str, str]


class StatusPages:
    """Render the pages from the broker's numbers and the samples of the last minutes."""

    def __init__(self, numbers: NumbersCache, samples: History, followers: Followers) -> None:
        self.routes: Mapping[str, Route] = {}
        """The present routes, by name; replaced, never changed."""
        self._numbers = numbers
        self._samples = samples
        self._followers = followers
        environment = Environment(
            loader=PackageLoader("amqtt_rest_bridge.admin"), autoescape=True, undefined=StrictUndefined
        )
        environment.filters["clock"] = clock
        self._overview = environment.get_template("overview.html")
        self._route = environment.get_template("route.html")
        self._graph = environment.get_template("graph.html")
        self._run = environment.get_template("run.html")

    def overview(self, numbers: Numbers) -> Response:
        """Return the page of all routes, those that need attention first."""
        shown = worst_first(rows(numbers, self._samples))
        return _page(
            self._overview.render(
                rows=shown,
                summary=summary(shown),
                reasons=numbers.broker.reasons,
                problems=problem_rows(numbers),
                unmatched=unmatched_rows(numbers),
            )
        )

    def graph(self) -> Response:
        """Return the page with the graph of all routes."""
        routes = sorted(self.routes.values(), key=lambda route: route.name.lower())
        left_out = max(0, len(routes) - MOST_ROUTES)
        return _page(self._graph.render(drawing=drawing(routes), left_out=left_out))

    def route(self, name: str, numbers: Numbers, runs: Runs) -> Response:
        """Return the page of one route."""
        route = self.routes[name]
        return _page(
            self._route.render(
                row=row(numbers.routes[name], self._samples),
                place=f"{route.path}:{route.position.line}",
                definition=route.definition,
                drawing=drawing([route]),
                calls=runs.recent(),
                failures=runs.last_failures(),
            )
        )

    def run(self, runs: Runs, *, may_retry: bool) -> Response:
        """Return the page of one run."""
        run = whole_run(runs, self.routes)
        return _page(self._run.render(run=run, may_retry=may_retry and run["route"] in self.routes))

    def asset(self, path: str) -> Response | None:
        """Return a style sheet or script, None when there is none of this path."""
        name = path[1:]
        if name not in _ASSETS:
            return None
        content = site_file(name) if name in SITE_FILES else _read(name)
        return Response("200 OK", (*_SAFE_PAGE, ("Content-Type", _ASSETS[name])), content)

    def changes(self, wake: Callable[[], None], routes: frozenset[str]) -> Stream | None:
        """Return the stream of what changes on the pages of a browser, None when there are too many.

        `routes` are those whose calls the stream carries too.
        """
        follower = self._followers.follow("pages", wake, routes)
        return None if follower is None else _Changes(self._numbers, self._samples, wake, follower)


class _Changes:
    """A stream of the rows that have changed, every two seconds, and of calls; see `http_server.Stream`."""

    def __init__(self, numbers: NumbersCache, samples: History, wake: Callable[[], None], follower: Follower) -> None:
        self._numbers = numbers
        self._samples = samples
        self._wake = wake
        self._follower = follower
        self._known: dict[str, Row] = {}
        self._others: dict[str, list[Any]] = {}
        self._asked = 0.0
        self._sent = time.monotonic()

    def take(self) -> bytes | float:
        changed = self._changed_rows()
        if changed is not None:
            return changed
        calls = self._follower.take()
        return calls if isinstance(calls, bytes) else min(calls, CHANGE_SECONDS)

    def close(self) -> None:
        self._follower.close()

    def _changed_rows(self) -> bytes | None:
        now = time.monotonic()
        numbers = self._numbers.fresh(self._asked, statuses=True) if self._asked else None
        if numbers is not None:
            self._asked = 0.0
            others: dict[str, list[Any]] = {
                "reasons": numbers.broker.reasons,
                "problems": problem_rows(numbers),
                "unmatched": unmatched_rows(numbers),
            }
            changed = self._changed(rows(numbers, self._samples), others)
            if changed is not None:
                self._sent = now
                return event("routes", changed)
        if not self._asked and now - self._sent >= CHANGE_SECONDS:
            self._asked = self._sent = now
            self._numbers.ask(self._wake, statuses=True)
        return None

    def _changed(self, present: list[Row], others: dict[str, list[Any]]) -> dict[str, Any] | None:
        changed = [one for one in present if self._known.get(one["name"]) != one]
        if not changed and len(present) == len(self._known) and others == self._others:
            return None
        self._known, self._others = {one["name"]: one for one in present}, others
        names = [one["name"] for one in present]
        return {"summary": summary(present), **others, "names": names, "rows": changed}


def _page(text: str) -> Response:
    headers = (*_SAFE_PAGE, ("Content-Type", "text/html; charset=utf-8"))
    return Response("200 OK", headers, text.encode("utf-8", "replace"))


@cache
def _read(name: str) -> bytes:
    return files("amqtt_rest_bridge.admin").joinpath("static", name).read_bytes()


# What the pages show of a route's numbers, as texts: the same for a page and for its live changes.


def row(route: RouteNumbers, all_samples: History) -> Row:
    """Return the cells of a route; `ok` and `bad` are the points of two lines in a drawing of 60 by 20."""
    status: Mapping[str, Any] = route.status or {}
    latency, wait, error = status.get("latency_ms") or {}, status.get("wait_ms") or {}, status.get("last_error")
    samples, rate = all_samples.of(route.name), all_samples.rate(route.name)
    highest = max((sum(sample) for sample in samples), default=0)
    return {
        "name": route.name,
        "health": str(status.get("health", "-")),
        "connection": str(status.get("connection", "-")),
        "rate": "-" if rate is None else f"{rate:.1f}",
        "succeeded": str(route.succeeded),
        "failed": str(route.failed),
        "refused": str(route.refused),
        "skipped": str((status.get("messages") or {}).get("skipped", "-")),
        "retried": str(route.retried),
        "queued": str(route.queued),
        "in_flight": str(route.in_flight),
        "spooled": "-" if route.spooled is None else str(route.spooled),
        "p50": _milliseconds(latency.get("p50")),
        "p99": _milliseconds(latency.get("p99")),
        "wait_p50": _milliseconds(wait.get("p50")),
        "wait_p99": _milliseconds(wait.get("p99")),
        "reason": str(status.get("health_reason") or ""),
        "error": "" if error is None else f"{error['code']}: {error['message']}",
        "error_time": "" if error is None else f"Last error, {str(error['time'])[:19].replace('T', ' ')} UTC: ",
        "ok": _points([sample.succeeded for sample in samples], highest),
        "bad": _points([sample.failed for sample in samples], highest),
        "label": _label(samples),
    }


def rows(numbers: Numbers, samples: History) -> list[Row]:
    """Return the cells of all routes, by name."""
    return [row(route, samples) for route in numbers.routes.values()]


def problem_rows(numbers: Numbers) -> list[Row]:
    """Return the cells of what is wrong now, most messages first."""
    return [
        {
            "count": str(one["count"]),
            "code": one["code"] if one["status"] is None else f"{one['status']} {one['code']}",
            "target": one["target"],
            "routes": ", ".join(one["routes"]),
            "message": one["message"] or "",
            "hint": one["hint"] or "",
            "last": one["last"][:19].replace("T", " "),
            "run": one["run"] or "",
        }
        for one in problem_members(numbers)
    ]


def unmatched_rows(numbers: Numbers) -> list[Row]:
    """Return the cells of the paths that led to no endpoint."""
    return [
        {
            "count": str(one.count),
            "request": f"{one.method} {one.path}",
            "port": str(one.port),
            "status": str(one.status),
            "nearest": "" if one.nearest is None else f"{one.nearest.method} {one.nearest.path}",
            "last": f"{datetime.fromtimestamp(one.last, UTC):%Y-%m-%d %H:%M:%S}",
        }
        for one in numbers.broker.unmatched_paths
    ]


def worst_first(all_rows: Sequence[Row]) -> list[Row]:
    """Sort so that what needs attention comes first."""
    order = {health: place for place, health in enumerate(HEALTHS)}
    return sorted(all_rows, key=lambda one: order.get(one["health"], len(order)))


def summary(all_rows: Sequence[Row]) -> str:
    """Count the routes by health: `3 routes: 1 Red, 2 Green`."""
    healths = [one["health"] for one in all_rows]
    counts = [f"{healths.count(health)} {health}" for health in HEALTHS if health in healths]
    return f"{len(healths)} route{'' if len(healths) == 1 else 's'}{': ' if counts else ''}{', '.join(counts)}"


def clock(seconds: float) -> str:
    """Return Unix time as a time of the day in UTC, with milliseconds."""
    return f"{datetime.fromtimestamp(seconds, UTC):%H:%M:%S.%f}"[:-3]


def _points(values: Sequence[int], highest: int) -> str:
    if not any(values):
        return ""
    left = SAMPLES - len(values)
    scale = (_HEIGHT - 2) / highest
    return " ".join(f"{left + x},{_HEIGHT - 1 - value * scale:.1f}" for x, value in enumerate(values))


def _label(samples: Sequence[Sample]) -> str:
    ok, bad = sum(sample.succeeded for sample in samples), sum(sample.failed for sample in samples)
    return f"last ten minutes: {ok} succeeded, {bad} failed"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


_ROW: Final = 34
_TOP: Final = 30
_COLUMNS: Final = (10, 330, 650)
_WIDTH: Final = 240
_LONGEST: Final = 32  # characters that fit into a box
MOST_ROUTES: Final = 200


@dataclass(frozen=True, slots=True)
class Box:
    """A name in the drawing; `shown` is cut to the width of the box, `kind` is "route" or "end"."""

    x: int
    y: int
    text: str
    shown: str
    kind: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """Boxes, the curves between them (as SVG paths), and the size of it all."""

    boxes: tuple[Box, ...]
    curves: tuple[str, ...]
    width: int
    height: int


def edges(route: Route) -> list[tuple[str, str, str]]:
    """Return where each event of a route begins and ends: (from, route, to); secrets are masked."""
    found: dict[tuple[str, str, str], None] = {}
    masker = masker_of(route)
    server = route.config.server
    for client in route.client_events:
        found[client.source_topic, route.name, masker.address(server)] = None
    for served in route.server_events:
        endpoint = masker.address(f"{served.method} :{route.config.server_port}{served.endpoint}")
        if served.destination_topic is None:
            found[served.source_topic or "", route.name, endpoint] = None
        else:
            found[endpoint, route.name, masker.text(served.destination_topic.source)] = None
    return list(found)


def drawing(routes: Iterable[Route]) -> Drawing:
    """Draw the first `MOST_ROUTES` routes."""
    lines = [edge for route in list(routes)[:MOST_ROUTES] for edge in edges(route)]
    places: list[dict[str, int]] = [{}, {}, {}]
    for edge in lines:
        for column, name in zip(places, edge, strict=True):
            column.setdefault(name, _TOP + _ROW * len(column))
    boxes = tuple(
        Box(
            x,
            y,
            name,
            name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…",
            "route" if x == _COLUMNS[1] else "end",
        )
        for x, column in zip(_COLUMNS, places, strict=True)
        for name, y in column.items()
    )
    curves = tuple(dict.fromkeys(curve for edge in lines for curve in _curves(places, edge)))
    height = _TOP + _ROW * max((len(column) for column in places), default=0)
    return Drawing(boxes, curves, _COLUMNS[2] + _WIDTH + 10, max(height, _TOP + _ROW))


def _curves(places: list[dict[str, int]], edge: tuple[str, str, str]) -> Iterator[str]:
    for left in (0, 1):
        x1, y1 = _COLUMNS[left] + _WIDTH, places[left][edge[left]]
        x2, y2 = _COLUMNS[left + 1], places[left + 1][edge[left + 1]]
        middle = (x1 + x2) // 2
        yield f"M{x1} {y1 + 12} C{middle} {y1 + 12} {middle} {y2 + 12} {x2} {y2 + 12}"

"""The status page and the page of each route: rendered here, readable without JavaScript, live with it.

jinja2 (templates beside this module) escapes everything that is inserted; the Content-Security-Policy lets nothing run
and nothing load but our own script and style sheet. On the port's thread.
"""

import time
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from amqtt_rest_bridge.admin.findings import Finding
from amqtt_rest_bridge.admin.graph import MOST_ROUTES, drawing
from amqtt_rest_bridge.admin.history import History
from amqtt_rest_bridge.admin.insights import Insights, Numbers
from amqtt_rest_bridge.admin.live import Follower, Live, event
from amqtt_rest_bridge.admin.rows import Row, clock, gravest_first, row, rows, summary, unmatched_rows
from amqtt_rest_bridge.http_server import Headers, Response, Stream
from amqtt_rest_bridge.model import Route

CHANGE_SECONDS: Final = 2.0
_POLICY: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; worker-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SAFE: Final[Headers] = (
    ("Cache-Control", "no-store"),
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
)
_SCRIPT: Final = "text/javascript; charset=utf-8"
_ASSETS: Final = {"/style.css": "text/css; charset=utf-8", "/script.js": _SCRIPT, "/live.js": _SCRIPT}


class StatusPages:
    """Render the pages from the broker's numbers and the samples of the last minutes."""

    def __init__(self, insights: Insights, history: History, live: Live) -> None:
        self.routes: Mapping[str, Route] = {}
        """The present routes, by name; replaced, never changed."""
        self._insights = insights
        self._history = history
        self._live = live
        environment = Environment(
            loader=PackageLoader("amqtt_rest_bridge.admin"), autoescape=True, undefined=StrictUndefined
        )
        environment.filters["clock"] = clock
        self._overview = environment.get_template("overview.html")
        self._route = environment.get_template("route.html")
        self._graph = environment.get_template("graph.html")

    def overview(self, numbers: Numbers) -> Response:
        """Return the page of all routes, those that need attention first."""
        shown = gravest_first(rows(numbers, self._history))
        return _page(
            self._overview.render(
                rows=shown,
                summary=summary(shown),
                reasons=numbers.broker.reasons,
                unmatched=unmatched_rows(numbers),
            )
        )

    def graph(self) -> Response:
        """Return the page with the graph of all routes."""
        routes = sorted(self.routes.values(), key=lambda route: route.name.lower())
        left_out = max(0, len(routes) - MOST_ROUTES)
        return _page(self._graph.render(drawing=drawing(routes), left_out=left_out))

    def route(self, name: str, numbers: Numbers, finding: Finding) -> Response:
        """Return the page of one route."""
        route, insight = self.routes[name], numbers.routes[name]
        return _page(
            self._route.render(
                row=row(insight, self._history),
                place=f"{route.path}:{route.position.line}",
                definition=route.definition,
                drawing=drawing([route]),
                calls=finding.recent(),
                failures=finding.last_failures(),
            )
        )

    def asset(self, path: str) -> Response | None:
        """Return a style sheet or script, None when there is none of this path."""
        if path not in _ASSETS:
            return None
        return Response("200 OK", (*SAFE, ("Content-Type", _ASSETS[path])), _read(path[1:]))

    def changes(self, wake: Callable[[], None], routes: frozenset[str]) -> Stream | None:
        """Return the stream of what changes on the pages of a browser, None when there are too many.

        `routes` are those whose calls the stream carries too.
        """
        follower = self._live.follow("pages", wake, routes)
        return None if follower is None else _Changes(self._insights, self._history, wake, follower)


class _Changes:
    """A stream of the rows that have changed, every two seconds, and of calls; see `http_server.Stream`."""

    def __init__(self, insights: Insights, history: History, wake: Callable[[], None], follower: Follower) -> None:
        self._insights = insights
        self._history = history
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
        numbers = self._insights.fresh(self._asked, statuses=True) if self._asked else None
        if numbers is not None:
            self._asked = 0.0
            others: dict[str, list[Any]] = {"reasons": numbers.broker.reasons, "unmatched": unmatched_rows(numbers)}
            changed = self._changed(rows(numbers, self._history), others)
            if changed is not None:
                self._sent = now
                return event("routes", changed)
        if not self._asked and now - self._sent >= CHANGE_SECONDS:
            self._asked = self._sent = now
            self._insights.ask(self._wake, statuses=True)
        return None

    def _changed(self, present: list[Row], others: dict[str, list[Any]]) -> dict[str, Any] | None:
        changed = [one for one in present if self._known.get(one["name"]) != one]
        if not changed and len(present) == len(self._known) and others == self._others:
            return None
        self._known, self._others = {one["name"]: one for one in present}, others
        names = [one["name"] for one in present]
        return {"summary": summary(present), **others, "names": names, "rows": changed}


def _page(text: str) -> Response:
    return Response("200 OK", (*SAFE, ("Content-Type", "text/html; charset=utf-8")), text.encode("utf-8", "replace"))


@cache
def _read(name: str) -> bytes:
    return files("amqtt_rest_bridge.admin").joinpath("static", name).read_bytes()

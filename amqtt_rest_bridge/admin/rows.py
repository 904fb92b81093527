"""Routes, problems and unmatched requests as texts: the same for a page and for its live changes. Pure; any thread."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from amqtt_rest_bridge.admin.drawing.charts import sparks
from amqtt_rest_bridge.admin.history import SAMPLES, History
from amqtt_rest_bridge.admin.numbers import SAMPLE_SECONDS, Numbers, RouteNumbers
from amqtt_rest_bridge.admin.shown import problem_members
from amqtt_rest_bridge.lot.model import HEALTHS, severity_of

Row = Mapping[str, str]
SORTS: Final = ("health", "name", "rate", "succeeded", "failed", "refused", "queued", "p50", "p99", "wait_p99")
_UNFOLDED: Final = 40
"""Routes that are listed one below the other; more are folded by what their names begin with."""
_FEWEST: Final = 3  # routes that are folded together
_PREFIX: Final = re.compile(r"[^\W\d_]+?(?=[-_./: \d]|(?<=[a-z])[A-Z])|[^-_./: ]+")


def row(route: RouteNumbers, history: History) -> Row:
    """Return the cells of a route; `ok` and `bad` are lines in a drawing of 14 by 12."""
    status: Mapping[str, Any] = route.status or {}
    latency, wait, error = status.get("latency_ms") or {}, status.get("wait_ms") or {}, status.get("last_error")
    reason, samples, rate = status.get("health_reason") or "", history.of(route.name), history.rate(route.name)
    ok, bad = sparks(samples, SAMPLES)
    peak = max(map(sum, samples), default=0) / SAMPLE_SECONDS
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
        "readers": "-" if route.readers is None else str(route.readers),
        "p50": _milliseconds(latency.get("p50")),
        "p99": _milliseconds(latency.get("p99")),
        "wait_p50": _milliseconds(wait.get("p50")),
        "wait_p99": _milliseconds(wait.get("p99")),
        "reason": reason,
        "error": "" if error is None else _error(error, reason),
        "error_time": "" if error is None else str(error["time"]),
        "ok": ok,
        "bad": bad,
        "label": f"last ten minutes, at most {peak:.1f} a second",
    }


def _error(error: Mapping[str, Any], reason: str) -> str:
    return str(error["code"]) if error["message"] == reason else f"{error['code']}: {error['message']}"


def rows(numbers: Numbers, history: History) -> list[Row]:
    """Return the cells of all routes, by name."""
    return [row(route, history) for route in numbers.routes.values()]


def problem_rows(numbers: Numbers) -> list[dict[str, Any]]:
    """Return the cells of what is wrong now, most messages first."""
    return [
        one | {"title": one["code"] if one["status"] is None else f"{one['status']} {one['code']}"}
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
            "route": "" if one.nearest is None else one.nearest.route,
            "last": f"{datetime.fromtimestamp(one.last, UTC):%Y-%m-%dT%H:%M:%SZ}",
        }
        for one in numbers.bridge.unmatched_paths
    ]


def sort_rows(all_rows: Sequence[Row], by: str) -> list[Row]:
    """Sort by one of `SORTS`: what needs attention first, names from A on, numbers from the highest on."""
    if by == "name":
        return sorted(all_rows, key=lambda one: one["name"].lower())
    if by == "health":
        return sorted(all_rows, key=lambda one: severity_of(one["health"]))
    return sorted(all_rows, key=lambda one: float("-inf") if one[by] == "-" else float(one[by]), reverse=True)


@dataclass(frozen=True, slots=True)
class Group:
    """Routes whose names begin alike; `name` is "" for those that are not folded."""

    name: str
    rows: Sequence[Row]
    summary: str


def groups(sorted_rows: Sequence[Row]) -> list[Group]:
    """Fold many routes by what their names begin with, the groups in the order of their first routes."""
    if len(sorted_rows) <= _UNFOLDED:
        return [Group("", sorted_rows, summary(sorted_rows))]
    found: dict[str, list[Row]] = {}
    for one in sorted_rows:
        match = _PREFIX.match(one["name"])
        found.setdefault(match[0] if match else one["name"], []).append(one)
    rest = [one for own in found.values() if len(own) < _FEWEST for one in own]
    folded = [Group(name, own, summary(own)) for name, own in found.items() if len(own) >= _FEWEST]
    return ([Group("", rest, summary(rest))] if rest else []) + folded


def summary(all_rows: Sequence[Row]) -> str:
    """Count the routes by health: `3 routes: 1 Red, 2 Green`."""
    healths = [one["health"] for one in all_rows]
    counts = [f"{healths.count(health)} {health}" for health in HEALTHS if health in healths]
    return f"{len(healths)} route{'' if len(healths) == 1 else 's'}{': ' if counts else ''}{', '.join(counts)}"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"

"""Routes as the rows of the page of all routes: made, sorted, folded into groups, counted. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from amqtt_rest_bridge.admin.charts import sparks
from amqtt_rest_bridge.admin.figures import SAMPLE_SECONDS, Numbers, RouteNumbers
from amqtt_rest_bridge.admin.history import SAMPLES, History
from amqtt_rest_bridge.lot.model import HEALTHS, severity_of

Row = Mapping[str, str]
"""The cells of a route, by the names that pages and their script use."""
SORTS: Final = (
    "health",
    "name",
    "rate",
    "succeeded",
    "failed",
    "refused",
    "skipped",
    "queued",
    "p50",
    "p99",
    "wait_p99",
)
"""The cells that rows are sorted by, the usual one first."""
_UNFOLDED: Final = 40
"""Most routes that are listed one by one; more are folded into groups by the beginnings of their names."""
_SMALLEST_GROUP: Final = 3  # routes that are folded together
_PREFIX: Final = re.compile(r"[^\W\d_]+?(?=[-_./: \d]|(?<=[a-z])[A-Z])|[^-_./: ]+")


def row(route: RouteNumbers, history: History) -> Row:
    """Return the row of a route; `ok` and `bad` are lines in a drawing of 14 by 12."""
    status: Mapping[str, Any] = route.status or {}
    latency, wait, error = status.get("latency_ms") or {}, status.get("wait_ms") or {}, status.get("last_error")
    reason, samples, rate = status.get("health_reason") or "", history.samples(route.name), history.rate(route.name)
    ok, bad = sparks(samples, SAMPLES)
    peak = max(map(sum, samples), default=0) / SAMPLE_SECONDS
    shown_error = ""
    if error is not None:
        shown_error = str(error["code"]) if error["message"] == reason else f"{error['code']}: {error['message']}"
        shown_error += " (it has passed)" if status.get("health") == "Green" else ""
    return {
        "name": route.name,
        "health": str(status.get("health", "-")),
        "connection": str(status.get("connection", "-")),
        "rate": "-" if rate is None else rate_text(rate),
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
        "error": shown_error,
        "error_time": "" if error is None else str(error["time"]),
        "ok": ok,
        "bad": bad,
        "label": f"last ten minutes, at most {peak:.1f} a second",
    }


def rows(numbers: Numbers, history: History) -> list[Row]:
    """Return the rows of all routes, by name."""
    return [row(route, history) for route in numbers.routes.values()]


def sort_rows(all_rows: Sequence[Row], by: str) -> list[Row]:
    """Sort by one of `SORTS`: health with the worst first, names from A to Z, numbers with the highest first."""
    if by == "name":
        return sorted(all_rows, key=lambda one: one["name"].lower())
    if by == "health":
        return sorted(all_rows, key=lambda one: severity_of(one["health"]))
    return sorted(all_rows, key=lambda one: float("-inf") if one[by] == "-" else float(one[by]), reverse=True)


@dataclass(frozen=True, slots=True)
class Group:
    """Routes whose names begin with `name`; it is "" for routes that are not folded."""

    name: str
    rows: Sequence[Row]
    summary: str


def groups(sorted_rows: Sequence[Row]) -> list[Group]:
    """Fold many routes into groups by the beginnings of their names, in the order of the first route of each group."""
    if len(sorted_rows) <= _UNFOLDED:
        return [Group("", sorted_rows, summary(sorted_rows))]
    found: dict[str, list[Row]] = {}
    for one in sorted_rows:
        match = _PREFIX.match(one["name"])
        found.setdefault(match[0] if match else one["name"], []).append(one)
    rest = [one for own in found.values() if len(own) < _SMALLEST_GROUP for one in own]
    folded = [Group(name, own, summary(own)) for name, own in found.items() if len(own) >= _SMALLEST_GROUP]
    return ([Group("", rest, summary(rest))] if rest else []) + folded


def summary(all_rows: Sequence[Row]) -> str:
    """Count the routes by health: `3 routes: 1 Red, 2 Green`."""
    healths = [one["health"] for one in all_rows]
    counts = [f"{healths.count(health)} {health}" for health in HEALTHS if health in healths]
    return f"{len(healths)} route{'' if len(healths) == 1 else 's'}{': ' if counts else ''}{', '.join(counts)}"


def rate_text(rate: float) -> str:
    """Return a rate with one decimal; below 1 with two digits, so that one message a minute is not zero."""
    return f"{rate:.1f}" if rate >= 1 else f"{rate:.2g}"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"

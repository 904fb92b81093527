"""What the pages show of a route's numbers, as texts: the same for the page and for its live changes. Pure."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from amqtt_rest_bridge.admin.history import SAMPLES, History, Sample
from amqtt_rest_bridge.admin.insights import Numbers
from amqtt_rest_bridge.link.admin_frames import RouteInsight

_HEIGHT: Final = 20
_GRAVEST_FIRST: Final = ("Red", "Yellow", "Green")

Row = Mapping[str, str]


def row(route: RouteInsight, history: History) -> Row:
    """Return the cells of a route; `ok` and `bad` are the points of two lines in a drawing of 60 by 20."""
    status: Mapping[str, Any] = route.status or {}
    latency, wait, error = status.get("latency_ms") or {}, status.get("wait_ms") or {}, status.get("last_error")
    samples, rate = history.of(route.name), history.rate(route.name)
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
        "told": _told(samples),
    }


def rows(numbers: Numbers, history: History) -> list[Row]:
    """Return the cells of all routes, by name."""
    return [row(route, history) for route in numbers.routes.values()]


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


def gravest_first(all_rows: Sequence[Row]) -> list[Row]:
    """Sort so that what needs attention comes first."""
    order = {health: place for place, health in enumerate(_GRAVEST_FIRST)}
    return sorted(all_rows, key=lambda one: order.get(one["health"], len(order)))


def summary(all_rows: Sequence[Row]) -> str:
    """Count the routes by health: `3 routes: 1 Red, 2 Green`."""
    healths = [one["health"] for one in all_rows]
    counts = [f"{healths.count(health)} {health}" for health in _GRAVEST_FIRST if health in healths]
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


def _told(samples: Sequence[Sample]) -> str:
    ok, bad = sum(sample.succeeded for sample in samples), sum(sample.failed for sample in samples)
    return f"last ten minutes: {ok} succeeded, {bad} failed"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"

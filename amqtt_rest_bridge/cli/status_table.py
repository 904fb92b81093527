"""Route status as people read it: payloads to a table for rich. Pure; no thread of its own.

Payloads come over MQTT from anywhere: they may lack members, hold other types, control characters or rich's markup.
So every cell is a `Text`, which rich prints as it is, of printable characters.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

Status = Mapping[str, Any]

_UNKNOWN: Final = "-"
_COLOURS: Final[Mapping[str, str]] = {"Green": "green", "Yellow": "yellow", "Red": "red"}
_GRAVEST_FIRST: Final = ("Red", "Yellow", "Green")
_TEXTS: Final = (("ROUTE", "name"), ("HEALTH", "health"), ("CONNECTION", "connection"))
_SLOT: Final = ("SLOT", "slot")  # of statuses of a group of workers
_NUMBERS: Final = (
    ("TOTAL", "messages", "total"),
    ("OK", "messages", "succeeded"),
    ("FAILED", "messages", "failed"),
    ("RETRIED", "messages", "retried"),
    ("REFUSED", "messages", "refused"),
    ("SKIPPED", "messages", "skipped"),
    ("QUEUED", "messages", "queued"),
    ("IN FLIGHT", "messages", "in_flight"),
    ("P50 MS", "latency_ms", "p50"),
    ("P99 MS", "latency_ms", "p99"),
    ("WAIT P99", "wait_ms", "p99"),
)
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_WIDEST: Final = 10_000
_NARROW: Final = (0, 1, 0, 0)  # one space between columns where two would not fit


def in_order(statuses: Iterable[Status]) -> list[Status]:
    """Sort by the routes' names, and the slots of a group."""
    return sorted(
        statuses, key=lambda status: (str(status["name"]).lower(), str(status["name"]), _slot(status))
    )  # fmt: skip


def table(statuses: Iterable[Status], console: Console, *, now: float, rows: int | None = None) -> RenderableType:
    """Return a table of all routes, with their last errors below it, one a line.

    Columns that are zero or unknown for every route are left out, so that it fits 80 columns unless all has happened;
    what does not fit is cut off at the right, never wrapped.

    Args:
        statuses: Status payloads.
        console: Where it is measured for.
        now: Unix time; the age of an error is counted from it.
        rows: Most routes to show, the others are counted; None: all.
    """
    ordered = in_order(statuses)
    numbers = [column for column in _NUMBERS if any(_member(status, *column[1:]) for status in ordered)]
    grid = Table(box=None, pad_edge=False, header_style="bold")
    texts = (*_TEXTS[:1], _SLOT, *_TEXTS[1:]) if any("slot" in status for status in ordered) else _TEXTS
    for title, _ in texts:
        grid.add_column(title, no_wrap=True)
    for title, *_ in numbers:
        grid.add_column(title, no_wrap=True, justify="right")
    shown = ordered if rows is None or len(ordered) <= rows else ordered[: max(0, rows - 1)]
    for status in shown:
        cells = [Text(_text(status.get(name)), _COLOURS.get(str(status.get(name)), "")) for _, name in texts]
        grid.add_row(*cells, *(Text(_text(_member(status, *path))) for _, *path in numbers))
    unbounded = console.options.update(max_width=_WIDEST)
    grid.width = Measurement.get(console, unbounded, grid).maximum
    if grid.width > console.width:
        grid.padding, grid.width = _NARROW, None
        grid.width = Measurement.get(console, unbounded, grid).maximum
    if len(shown) < len(ordered):
        return Group(grid, Text(f"... and {len(ordered) - len(shown)} more"))
    return Group(grid, *_errors(ordered, now))


def summary(statuses: Iterable[Status]) -> str:
    """Count the routes by health, the gravest first: `3 routes: 1 Red, 2 Green`."""
    healths = [_text(status.get("health")) for status in statuses]
    order = [*_GRAVEST_FIRST, *sorted(set(healths) - set(_GRAVEST_FIRST))]
    counts = [f"{healths.count(health)} {health}" for health in order if health in healths]
    return f"{len(healths)} route{'s' if len(healths) != 1 else ''}{': ' if counts else ''}{', '.join(counts)}"


def reload_failure(failure: Status | None, now: float) -> Text | None:
    """Return the line about a reload that failed, None without one; `failure` came over MQTT too."""
    if failure is None:
        return None
    errors, told = failure.get("errors"), _text(failure.get("message"))
    why = f"{errors} errors in the route files, the first: {told}" if isinstance(errors, int) and errors > 1 else told
    return Text(f"reload failed {_age(failure.get('time'), now)}, keeping the current routes: {why}", "red")


def _slot(status: Status) -> int:
    slot = status.get("slot")
    return slot if isinstance(slot, int) else -1


def _errors(statuses: Sequence[Status], now: float) -> Iterable[Text]:
    for status in statuses:
        error, why = status.get("last_error"), status.get("health_reason")
        parts = [] if why is None else [_text(why)]
        if isinstance(error, Mapping):
            shown = " ".join(_text(error[name]) for name in ("code", "message") if error.get(name) is not None)
            parts.insert(0, f"{shown or _UNKNOWN} ({_age(error.get('time'), now)})")
        if parts:
            yield Text(f"{_text(status['name'])}: {'; '.join(parts)}")


def _age(time: Any, now: float) -> str:
    """Return how long ago an RFC 3339 time was, in its largest unit: `12 min ago`."""
    try:
        moment = datetime.fromisoformat(time)
    except (TypeError, ValueError):
        return f"at {_text(time)}"
    seconds = max(0, int(now - (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()))
    size, unit = next((one for one in _UNITS if seconds >= one[0]), _UNITS[-1])
    return f"{seconds // size} {unit} ago"


def _member(status: Status, group: str, name: str) -> Any:
    members = status.get(group)
    return members.get(name) if isinstance(members, Mapping) else None


def _text(value: Any) -> str:
    match value:
        case None:
            return _UNKNOWN
        case float():
            return f"{value:.1f}"
        case str():
            return "".join([char if char.isprintable() else "\ufffd" for char in value]) or _UNKNOWN
        case _:
            return json.dumps(value)

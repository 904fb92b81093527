"""Route status as people read it: payloads to rows, rows to a table. Pure.

Whatever comes over MQTT is written by somebody else: it may be no JSON, lack members or hold control characters.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_GAP: Final = "  "
_UNKNOWN: Final = "-"
_RESET: Final = "\x1b[0m"
_BOLD: Final = "\x1b[1m"
_COLOURS: Final[Mapping[str, str]] = {"Green": "\x1b[32m", "Yellow": "\x1b[33m", "Red": "\x1b[31m"}
_GRAVEST_FIRST: Final = ("Red", "Yellow", "Green")


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    path: tuple[str, ...]
    is_number: bool = True


_COLUMNS: Final = (
    _Column("ROUTE", ("name",), is_number=False),
    _Column("HEALTH", ("health",), is_number=False),
    _Column("CONNECTION", ("connection",), is_number=False),
    _Column("TOTAL", ("messages", "total")),
    _Column("OK", ("messages", "succeeded")),
    _Column("FAILED", ("messages", "failed")),
    _Column("RETRIED", ("messages", "retried")),
    _Column("REFUSED", ("messages", "refused")),
    _Column("QUEUED", ("messages", "queued")),
    _Column("IN FLIGHT", ("messages", "in_flight")),
    _Column("P50 MS", ("latency_ms", "p50")),
    _Column("P99 MS", ("latency_ms", "p99")),
)
_LAST_ERROR: Final = "LAST ERROR"


def in_order(statuses: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Sort by the routes' names."""
    return sorted(statuses, key=lambda status: (str(status["name"]).lower(), str(status["name"])))


def table(
    statuses: Iterable[Mapping[str, Any]], *, width: int | None = None, height: int | None = None, colour: bool = False
) -> list[str]:
    """Make a table of all routes.

    Args:
        statuses: Status payloads.
        width: Columns of the terminal; longer lines are cut. None: as long as they are.
        height: Most lines, the title among them; the last one says how many routes are left out then.
        colour: Whether the title and the health stand out, with ANSI codes.
    """
    ordered = in_order(statuses)
    rows = [_cells(status) for status in ordered]
    titles = [*(column.title for column in _COLUMNS), _LAST_ERROR]
    widths = [max(len(cell) for cell in cells) for cells in zip(titles, *rows, strict=True)]
    lines = [_line(titles, widths, width, _BOLD if colour else "")]
    shown = rows if height is None or len(rows) < height else rows[: max(0, height - 2)]
    lines += [_line(row, widths, width, "", _COLOURS.get(row[1], "") if colour else "") for row in shown]
    if len(shown) < len(rows):
        lines.append(f"... and {len(rows) - len(shown)} more"[:width])
    return lines


def summary(statuses: Iterable[Mapping[str, Any]]) -> str:
    """Count the routes by health, the gravest first: `3 routes: 1 Red, 2 Green`."""
    healths = [_text(status.get("health")) for status in statuses]
    order = [*_GRAVEST_FIRST, *sorted(set(healths) - set(_GRAVEST_FIRST))]
    counts = [f"{healths.count(health)} {health}" for health in order if health in healths]
    return f"{len(healths)} route{'s' if len(healths) != 1 else ''}{': ' if counts else ''}{', '.join(counts)}"


def _cells(status: Mapping[str, Any]) -> list[str]:
    return [*(_text(_member(status, column.path)) for column in _COLUMNS), _last_error(status.get("last_error"))]


def _line(cells: Sequence[str], widths: Sequence[int], limit: int | None, style: str, health: str = "") -> str:
    """Lay out one line; it is cut before colours are put in, so that none is cut in two."""
    padded = [
        cell.rjust(size) if number < len(_COLUMNS) and _COLUMNS[number].is_number else cell.ljust(size)
        for number, (cell, size) in enumerate(zip(cells, widths, strict=True))
    ]
    line = _GAP.join(padded).rstrip()[:limit]
    if style:
        return f"{style}{line}{_RESET}"
    start = widths[0] + len(_GAP)
    end = start + len(cells[1])
    if health and len(line) >= end:
        return f"{line[:start]}{health}{line[start:end]}{_RESET}{line[end:]}"
    return line


def _member(status: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = status
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _last_error(error: Any) -> str:
    if not isinstance(error, Mapping):
        return _UNKNOWN
    parts = [_text(error[name]) for name in ("code", "message", "time") if error.get(name) is not None]
    return " ".join(parts) or _UNKNOWN


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

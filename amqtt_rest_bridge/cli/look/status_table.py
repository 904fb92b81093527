"""Route status as people read it: payloads to a table for rich. Pure; no thread of its own.

Payloads come over MQTT from anywhere: they may lack members, hold other types, control characters or rich's markup.
So every cell is a `Text`, which rich prints as it is, without control characters and not endless.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from amqtt_rest_bridge.cli import count, without_controls
from amqtt_rest_bridge.group.overview import GroupOverview
from amqtt_rest_bridge.lot.model import HEALTHS

Status = Mapping[str, Any]

_UNKNOWN: Final = "-"
_COLOURS: Final[Mapping[str, str]] = {"Green": "green", "Yellow": "yellow", "Red": "red"}
_AWAY_COLOUR: Final = "red"
_WORST_FIRST: Final = (HEALTHS[0], "away", *HEALTHS[1:])
_TEXTS: Final = (("ROUTE", "name"), ("HEALTH", "health"), ("CONNECTION", "connection"))
_NUMBERS: Final = (
    ("TOTAL", "messages", "total"),
    ("OK", "messages", "succeeded"),
    ("FAILED", "messages", "failed"),
    ("RETRIED", "messages", "retried"),
    ("RETRYING", "messages", "retrying"),
    ("REFUSED", "messages", "refused"),
    ("SKIPPED", "messages", "skipped"),
    ("QUEUED", "messages", "queued"),
    ("IN FLIGHT", "messages", "in_flight"),
    ("P50 MS", "latency_ms", "p50"),
    ("P99 MS", "latency_ms", "p99"),
    ("WAIT P99", "wait_ms", "p99"),
)
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
UNBOUNDED: Final = 10_000
"""The width of a table that is not for a terminal."""
_LONGEST: Final = 2000  # characters of a text: an error that names twenty faults has room
_LEAST_NAME: Final = 12  # characters of a route's name on a line, before columns go below


def in_order(statuses: Iterable[Status]) -> list[Status]:
    """Sort by the routes' names."""
    return sorted(statuses, key=lambda status: (str(status["name"]).lower(), str(status["name"])))


def table(
    statuses: Iterable[Status], console: Console, *, now: float, rows: int | None = None, width: int | None = None
) -> RenderableType:
    """Return a table of all routes, with their last errors below it, one a line.

    Columns that are zero or unknown for every route are left out. What does not fit beside each other goes below, with
    the routes' names again; long names go over several lines; no number is cut.

    Args:
        statuses: Status payloads.
        console: Where it is measured for.
        now: Unix time; the age of an error is counted from it.
        rows: Most lines to show, the routes and errors beyond are counted; None: all.
        width: Characters of a line; None: those of the console.
    """
    ordered = in_order(statuses)
    bands = _bands(_columns(ordered), console.width if width is None else width)
    lines_of = [sum(band.lines(number) for band in bands) for number in range(len(ordered))]
    room = None if rows is None else rows - (len(bands) - 1)
    shown = _fitting(lines_of, room)
    parts: list[RenderableType] = [band.grid(shown) for band in bands]
    if shown < len(ordered):
        return Group(*parts, Text(f"... and {len(ordered) - shown} more"))
    below = list(_errors(ordered, now))
    left = None if room is None else room - sum(lines_of)
    fitting = _fitting([_wrapped(line.cell_len, console.width) for line in below], left)
    parts += below[:fitting]
    if fitting < len(below):
        parts.append(Text(f"... and {len(below) - fitting} more lines"))
    return Group(*parts)


@dataclass(frozen=True, slots=True)
class _Column:
    """A column: its title, the cell of each route, and how it is aligned. Names may go over several lines."""

    title: str
    cells: Sequence[Text]
    is_number: bool = False
    is_name: bool = False

    @property
    def width(self) -> int:
        return max(cell_len(self.title), *(cell.cell_len for cell in self.cells), 0)


@dataclass(frozen=True, slots=True)
class _Band:
    """Columns beside each other, `space` apart; names have `name_width` characters."""

    columns: Sequence[_Column]
    space: int
    name_width: int

    def lines(self, number: int) -> int:
        """Return how many lines a route takes."""
        return max(_wrapped(each.cells[number].cell_len, self.name_width) for each in self.columns if each.is_name)

    def grid(self, shown: int) -> Table:
        grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, self.space, 0, 0))
        for each in self.columns:
            width = self.name_width if each.is_name else each.width
            grid.add_column(
                each.title, no_wrap=not each.is_name, overflow="fold", width=width,
                justify="right" if each.is_number else "left",
            )  # fmt: skip
        for cells in zip(*(each.cells[:shown] for each in self.columns), strict=True):
            grid.add_row(*cells)
        grid.width = sum(self.name_width if each.is_name else each.width for each in self.columns)
        grid.width += self.space * (len(self.columns) - 1)
        return grid


def _columns(ordered: Sequence[Status]) -> list[_Column]:
    columns = [
        _Column(title, [_cell(status, name) for status in ordered], is_name=name == "name") for title, name in _TEXTS
    ]
    if any("workers" in status for status in ordered):  # of a group
        counts = [Text(str(len(status.get("workers", ())))) for status in ordered]
        columns.insert(1, _Column("WORKERS", counts, is_number=True))
    for title, *path in _NUMBERS:
        if any(_member(status, *path) for status in ordered):
            cells = [Text(_text(_member(status, *path))) for status in ordered]
            columns.append(_Column(title, cells, is_number=True))
    return columns


def _bands(columns: Sequence[_Column], width: int) -> list[_Band]:
    """Lay columns out: two spaces apart if that fits, else one, else with shorter names, else below each other."""
    name, others = columns[0], columns[1:]
    for space in (2, 1):
        if name.width + sum(space + each.width for each in others) <= width:
            return [_Band(columns, space, name.width)]
    shortest = min(name.width, _LEAST_NAME)
    bands: list[list[_Column]] = [[]]
    for each in others:
        used = shortest + sum(1 + one.width for one in bands[-1])
        if bands[-1] and used + 1 + each.width > width:
            bands.append([])
        bands[-1].append(each)
    laid = []
    for band in bands:
        left = width - sum(1 + each.width for each in band)
        laid.append(_Band([name, *band], 1, max(shortest, min(name.width, left))))
    return laid


def _wrapped(length: int, width: int) -> int:
    """Return how many lines a text takes."""
    return max(1, -(-length // max(1, width)))


def _fitting(lines: Sequence[int], room: int | None) -> int:
    """Return how many of these fit; where not all do, one line is kept for their count."""
    if room is None or sum(lines) <= room:
        return len(lines)
    fitting, used = 0, 0
    for each in lines:
        used += each
        if used > room - 1:
            break
        fitting += 1
    return fitting


def _cell(status: Status, name: str) -> Text:
    value = status.get(name)
    since = status.get("away_since")
    if name == "health" and since is not None:
        return _away_since(since)
    if name == "connection" and since is not None:  # it was that of the worker
        return Text(_UNKNOWN)
    return Text(_text(value), _COLOURS.get(str(value), ""))


def _away_since(since: Any) -> Text:
    """Return since when something is away; `since` is RFC 3339."""
    return Text(f"away since {_clock(since)}", _AWAY_COLOUR)


def _clock(time: Any) -> str:
    """Return an RFC 3339 time as a clock here shows it, with the day where it is not today."""
    try:
        moment = datetime.fromisoformat(time).astimezone()
    except (TypeError, ValueError):
        return _text(time)
    today = datetime.now().astimezone().date()
    return f"{moment:%H:%M:%S}" if moment.date() == today else f"{moment:%Y-%m-%d %H:%M:%S}"


def summary(statuses: Iterable[Status]) -> str:
    """Count the routes by health, the worst first: `3 routes: 1 Red, 2 Green`."""
    healths = [_text(status.get("health")) for status in statuses]
    order = [*_WORST_FIRST, *sorted(set(healths) - set(_WORST_FIRST))]
    counts = [f"{healths.count(health)} {health}" for health in order if health in healths]
    return f"{count(len(healths), 'route')}{': ' if counts else ''}{', '.join(counts)}"


def reload_failure(failure: Status | None, now: float) -> str | None:
    """Return the line about a reload that failed, None without one; `failure` came over MQTT."""
    if failure is None:
        return None
    errors, why = failure.get("errors"), _text(failure.get("message"))
    if isinstance(errors, int) and errors > 1:
        why = f"{errors} errors in the route files, the first: {why}"
    return f"reload failed {_age(failure.get('time'), now)}, keeping the current routes: {why}"


def counters_age(statuses: Iterable[Status], now: float) -> Text | None:
    """Return the line about the oldest counters of routes that are not away, None where no status has a time."""
    times = [status.get("timestamp") for status in statuses if "away_since" not in status]
    ages = [seconds for time in times if (seconds := _seconds_since(time, now)) is not None]
    return Text(f"counters of up to {_in_largest_unit(max(ages))} ago") if ages else None


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
    seconds = _seconds_since(time, now)
    return f"at {_text(time)}" if seconds is None else f"{_in_largest_unit(seconds)} ago"


def _seconds_since(time: Any, now: float) -> int | None:
    try:
        moment = datetime.fromisoformat(time)
    except (TypeError, ValueError):
        return None
    return max(0, int(now - (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()))


def _in_largest_unit(seconds: int) -> str:
    size, unit = next((one for one in _UNITS if seconds >= one[0]), _UNITS[-1])
    return f"{seconds // size} {unit}"


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
            return _bounded(value) or _UNKNOWN
        case _:
            return _bounded(json.dumps(value))


def _bounded(text: str) -> str:
    """Return a text from outside as it is shown."""
    shown = without_controls(text[: _LONGEST + 1])
    return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 3]}..."


def group_tables(group: GroupOverview) -> Group:
    """Return the slots, the workers, and what is wrong with them; an empty line at the end."""
    slots = [
        (Text(str(one.slot)), _optional(one.worker, Text("none", _AWAY_COLOUR)), _since(one.since, one.away_since))
        for one in group.slots
    ]
    workers = [
        (_optional(one.worker), _since(one.since, one.away_since), _optional(one.routes), _optional(one.version))
        for one in group.workers
    ]
    parts: list[RenderableType] = [_uncut(("SLOT", "HOLDER", "SINCE"), slots), Text()] if slots else []
    parts.append(_uncut(("WORKER", "SINCE", "ROUTE SET", "VERSION"), workers))
    if len(group.route_sets) > 1:
        sets = (f"{routes} on {', '.join(names)}" for routes, names in sorted(group.route_sets.items()))
        parts.append(Text(_bounded(f"route sets differ: {'; '.join(sets)}"), _AWAY_COLOUR))
    return Group(*parts, Text())


def _uncut(titles: Sequence[str], rows: Sequence[Sequence[Text]]) -> Table:
    """Return a table in which nothing is cut, however narrow the console is."""
    columns = [_Column(title, [row[number] for row in rows]) for number, title in enumerate(titles)]
    return _Band(columns, 2, 0).grid(len(rows))


def _since(since: str | None, away: str | None) -> Text:
    return _away_since(away) if away is not None else Text(_clock(since))


def _optional(text: str | None, missing: Text = Text(_UNKNOWN)) -> Text:  # noqa: B008  # no cell is changed
    return missing if text is None else Text(_bounded(text))

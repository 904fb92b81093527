"""The tables of `status`, as rich draws them: routes, and the slots and workers of a group. Pure.

Statuses may come from a broker on which every client publishes: members may be missing, of another type, or with
control characters and rich's markup in them. So every cell is a `Text` of limited length on one line.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from amqtt_rest_bridge.cli import count
from amqtt_rest_bridge.errors import on_one_line
from amqtt_rest_bridge.group.overview import AWAY, GroupOverview
from amqtt_rest_bridge.lot.model import HEALTHS

Status = Mapping[str, Any]

_UNKNOWN: Final = "-"
_COLOURS: Final[Mapping[Any, str]] = {"Green": "green", "Yellow": "yellow", "Red": "red"}
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
_LONGEST: Final = 2000  # characters of a text: an error that names twenty faults has room
_LEAST_NAME: Final = 12  # characters of a route's name on a line, before columns go below


class _Column(NamedTuple):
    title: str
    cells: Sequence[Text]
    is_number: bool = False
    is_name: bool = False

    @property
    def width(self) -> int:
        return max(cell_len(self.title), *(cell.cell_len for cell in self.cells), 0)


def in_order(statuses: Iterable[Status]) -> list[Status]:
    """Sort by the routes' names."""
    return sorted(statuses, key=lambda status: (str(status["name"]).lower(), str(status["name"])))


def route_table(statuses: Iterable[Status], console: Console, now: float) -> Group:
    """Return a table of all routes, with their last errors below it, one a line; their ages count from `now`.

    Columns that are zero or unknown for every route are left out. What does not fit beside each other goes below, with
    the routes' names again; long names go over several lines, and no number is cut.
    """
    ordered = in_order(statuses)
    name, *others = _columns(ordered)
    least = min(name.width, _LEAST_NAME)
    gap = 2 if name.width + sum(2 + each.width for each in others) <= console.width else 1
    bands: list[list[_Column]] = [[]]
    for each in others:
        used = least + sum(gap + one.width for one in bands[-1])
        if bands[-1] and used + gap + each.width > console.width:
            bands.append([])
        bands[-1].append(each)
    errors: list[Text] = []
    for status in ordered:
        error, why = status.get("last_error"), status.get("health_reason")
        parts = [] if why is None else [_text(why)]
        if isinstance(error, Mapping):
            shown = ": ".join(_text(error[name]) for name in ("code", "message") if error.get(name) is not None)
            past = "last error, Green now: " if status.get("health") == "Green" else ""
            parts.insert(0, f"{past}{shown or _UNKNOWN} ({_age(error.get('time'), now)})")
        if parts:
            errors.append(Text(f"{_text(status['name'])}: {'; '.join(parts)}"))
    return Group(*(_table([name, *band], gap) for band in bands), *errors)


def group_tables(group: GroupOverview) -> Group:
    """Return the slots, the workers, and what is wrong with them; an empty line at the end."""
    slots = [
        _Column("SLOT", [Text(str(one.slot)) for one in group.slots]),
        _Column("HOLDER", [_optional(one.worker, "none", "red") for one in group.slots], is_name=True),
        _Column("SINCE", [_since(one.since, one.away_since) for one in group.slots]),
    ]
    workers = [
        _Column("WORKER", [_optional(one.worker) for one in group.workers], is_name=True),
        _Column("SINCE", [_since(one.since, one.away_since) for one in group.workers]),
        _Column("ROUTE SET", [_optional(one.routes) for one in group.workers]),
        _Column("VERSION", [_optional(one.version) for one in group.workers]),
    ]
    parts: list[RenderableType] = [_table(slots, 2), Text()] if group.slots else []
    parts.append(_table(workers, 2))
    if len(group.route_sets) > 1:
        sets = (f"{routes} on {', '.join(names)}" for routes, names in sorted(group.route_sets.items()))
        parts.append(Text(on_one_line(f"route sets differ: {'; '.join(sets)}", _LONGEST), "red"))
    return Group(*parts, Text())


def summary(statuses: Iterable[Status]) -> str:
    """Count the routes by health, the worst first: `3 routes: 1 Red, 2 Green`."""
    healths = [_text(status.get("health")) for status in statuses]
    worst_first = (HEALTHS[0], AWAY, *HEALTHS[1:])
    order = [*worst_first, *sorted(set(healths) - set(worst_first))]
    counts = [f"{healths.count(health)} {health}" for health in order if health in healths]
    return f"{count(len(healths), 'route')}{': ' if counts else ''}{', '.join(counts)}"


def reload_failure(failure: Status, now: float) -> str:
    """Return the line about a reload that failed."""
    errors, why = failure.get("errors"), _text(failure.get("message"))
    if isinstance(errors, int) and errors > 1:
        why = f"{errors} errors in the route files, the first: {why}"
    return f"reload failed {_age(failure.get('time'), now)}, keeping the current routes: {why}"


def counters_age(statuses: Iterable[Status], now: float, *, is_live: bool) -> str | None:
    """Return the line about the oldest counters of routes that are not away, None where no status has a time.

    It has the time of counters that were asked for (`is_live`), and the age of published ones.
    """
    moments = [_moment(status.get("timestamp")) for status in statuses if "away_since" not in status]
    oldest = min((moment for moment in moments if moment is not None), default=None)
    if oldest is None:
        return None
    return f"as of {_clock(oldest)}" if is_live else f"counters up to {_in_largest_unit(now - oldest.timestamp())} old"


def _table(columns: Sequence[_Column], gap: int) -> Table:
    """Return a table in which only names that are too wide are folded."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, gap, 0, 0))
    for each in columns:
        width = None if each.is_name else each.width
        table.add_column(each.title, justify="right" if each.is_number else "left", overflow="fold", width=width)
    for cells in zip(*(each.cells for each in columns), strict=True):
        table.add_row(*cells)
    return table


def _columns(ordered: Sequence[Status]) -> Iterator[_Column]:
    """Yield the columns of routes, the names first; numbers that are zero or unknown for every route are left out."""
    yield _Column("ROUTE", [Text(_text(status["name"])) for status in ordered], is_name=True)
    if any("workers" in status for status in ordered):  # of a group
        yield _Column("WORKERS", [Text(str(len(status.get("workers", ())))) for status in ordered], is_number=True)
    healths: list[Text] = []
    for status in ordered:
        if status.get("away_since") is not None:
            healths.append(_since(None, status["away_since"]))
        else:
            health = _text(status.get("health"))
            healths.append(Text(health, _COLOURS.get(health, "")))
    yield _Column("HEALTH", healths)
    yield _Column(
        "CONNECTION",  # of a route whose workers are away it is unknown
        [Text(_text(None if "away_since" in status else status.get("connection"))) for status in ordered],
    )
    for title, group, member in _NUMBERS:
        groups = [status.get(group) for status in ordered]
        values = [members.get(member) if isinstance(members, Mapping) else None for members in groups]
        if any(values):
            yield _Column(title, [Text(_text(value)) for value in values], is_number=True)


def _since(since: Any, away: Any) -> Text:
    """Return a time in local time, with the date unless it is today; `away` is when an absent worker was seen last.

    A broker does not say when the worker went. What is retained of a killed worker is its last status.
    """
    shown = since if away is None else away
    clock = _text(shown) if (moment := _moment(shown)) is None else _clock(moment)
    return Text(clock) if away is None else Text(f"away, last seen {clock}", "red")


def _clock(moment: datetime) -> str:
    is_today = moment.date() == datetime.now().astimezone().date()
    return f"{moment:%H:%M:%S}" if is_today else f"{moment:%Y-%m-%d %H:%M:%S}"


def _age(time: Any, now: float) -> str:
    """Return how long ago an RFC 3339 time was, in its largest unit: `12 min ago`."""
    moment = _moment(time)
    return f"at {_text(time)}" if moment is None else f"{_in_largest_unit(now - moment.timestamp())} ago"


def _moment(time: Any) -> datetime | None:
    """Return an RFC 3339 time in the zone of this machine, None for anything else."""
    try:
        moment = datetime.fromisoformat(time)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone()
    except (TypeError, ValueError, OverflowError):
        return None


def _in_largest_unit(seconds: float) -> str:
    whole = max(0, int(seconds))
    size, unit = next((one for one in _UNITS if whole >= one[0]), _UNITS[-1])
    return f"{whole // size} {unit}"


def _text(value: Any) -> str:
    match value:
        case None | "":
            return _UNKNOWN
        case float():
            return f"{value:.1f}"
        case str():
            return on_one_line(value, _LONGEST)
        case _:
            return on_one_line(json.dumps(value), _LONGEST)


def _optional(text: str | None, missing: str = _UNKNOWN, colour: str = "") -> Text:
    return Text(missing, colour) if text is None else Text(_text(text))

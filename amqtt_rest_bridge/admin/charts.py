"""The charts of a route's history. Pure.

They are numbers for SVG, which `templates/chart.html` draws: heights are pixels, and places along the time are
hundredths of the width, so that texts keep their size on a phone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final, TypeVar

from amqtt_rest_bridge.admin.history import Latency, Sample
from amqtt_rest_bridge.times import rfc3339

T = TypeVar("T")

CHART_HEIGHT: Final = 160
LATENCY_HEIGHT: Final = 64
SPARK_HEIGHT: Final = 12
_SPARK_POINTS: Final = 15
_MOST_COLUMNS: Final = 120
_UNITS: Final = ((1, "s"), (60, "min"), (3600, "h"))
_MINUTE: Final = 60
_TEN_MINUTES: Final = 600
_DAY: Final = 86_400


@dataclass(frozen=True, slots=True)
class Mark:
    """A label at a place of an axis; `anchor` is SVG's text-anchor. One of the time axis has its `time` in RFC 3339."""

    at: float
    text: str
    anchor: str = "start"
    time: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of `columns` columns: two areas as SVG paths, `failed` on top of `succeeded`."""

    columns: int
    succeeded: str
    failed: str
    unit: str
    levels: Sequence[Mark]
    times: Sequence[Mark]
    peak: Mark | None
    peak_y: float
    label: str


@dataclass(frozen=True, slots=True)
class LatencyChart:
    """A chart of `columns` columns: two lines as SVG paths, with gaps where nothing was answered, and its height."""

    columns: int
    p50: str
    p99: str
    top: str
    label: str


def chart(samples: Sequence[Sample], most: int, step_seconds: float, now: float) -> Chart:
    """Draw the last `most` samples, of which those at the beginning may be missing; `now` is Unix time."""
    together = math.ceil(most / _MOST_COLUMNS)
    columns = _columns(samples, together)
    width, seconds = math.ceil(most / together), together * step_seconds
    sums = [sum(column) / seconds for column in columns]
    rate = max(sums, default=0.0)
    # The unit of time in which the highest rate is at least 1, and what a rate per second is multiplied by for it.
    factor, unit = next((one for one in _UNITS if rate * one[0] >= 1), _UNITS[-1] if rate else _UNITS[0])
    highest = _round_up(rate * factor)
    first = width - len(columns)

    def y(count: float) -> float:
        return round(CHART_HEIGHT * (1 - count * factor / seconds / highest), 1)

    total = Sample(sum(one.succeeded for one in samples), sum(one.failed for one in samples))
    begin = now - width * seconds
    peak, peak_y = None, 0.0
    if total.succeeded or total.failed:
        place = max(range(len(sums)), key=sums.__getitem__)
        at = begin + (first + place + 0.5) * seconds
        during = f"{seconds:g} s" if seconds < _MINUTE else f"{seconds / _MINUTE:g} min"
        text = f"{sums[place] * factor:.3g} a {_NAMES[unit]} ({sum(columns[place])} in {during})"
        peak, peak_y = Mark(100 * (first + place + 0.5) / width, text, time=rfc3339(at)), y(sum(columns[place]))
    return Chart(
        width,
        _area(first, [(y(0), y(one.succeeded)) for one in columns]),
        _area(first, [(y(one.succeeded), y(sum(one))) for one in columns]) if total.failed else "",
        unit,
        [Mark(CHART_HEIGHT * (1 - part), f"{highest * part:g}/{unit}") for part in (1, 0.5)],
        _times(begin, now),
        peak,
        peak_y,
        f"{total.succeeded} succeeded, {total.failed} failed" + (f", highest rate {peak.text}" if peak else ""),
    )


def latency_chart(values: Sequence[Latency | None], most: int) -> LatencyChart | None:
    """Draw the last `most` values, the highest of each column; None without any."""
    together = math.ceil(most / _MOST_COLUMNS)
    columns = [[one for one in group if one is not None] for group in _groups(values, together)]
    found = [one for group in columns for one in group]
    if not found:
        return None
    width, high = math.ceil(most / together), max(one.p99 for one in found)
    top = _round_up(high)

    def line(part: int) -> str:
        path, is_joined = "", False
        for x, group in enumerate(columns, width - len(columns)):
            if group:
                y = LATENCY_HEIGHT * (1 - max(one[part] for one in group) / top)
                path += f"V{y:.1f}h1" if is_joined else f"M{x} {y:.1f}h1"
            is_joined = bool(group)
        return path

    return LatencyChart(width, line(0), line(1), f"{top:g} ms", f"highest p99 {high:g} ms")


_NAMES: Final[Mapping[str, str]] = {"s": "second", "min": "minute", "h": "hour"}


def _columns(samples: Sequence[Sample], together: int) -> list[Sample]:
    """Add up neighbours."""
    groups = _groups(samples, together)
    return [Sample(sum(one.succeeded for one in group), sum(one.failed for one in group)) for group in groups]


def _groups(values: Sequence[T], together: int) -> list[Sequence[T]]:
    """Group neighbours, from the newest on, so that all columns but the oldest last equally long."""
    ends = range(len(values), 0, -together)
    return [values[max(0, end - together) : end] for end in ends][::-1]


def _round_up(value: float) -> float:
    """Return 1, 2 or 5 times a power of ten that is not smaller; 1 for 0."""
    if value <= 0:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * 0.999)


def _area(first: int, columns: Sequence[tuple[float, float]]) -> str:
    """Return the outline of columns as an SVG path: along their upper ends and back along the lower ones."""
    if not columns:
        return ""
    there = "".join(f"V{top:g}h1" for _, top in columns)
    back = "".join(f"V{bottom:g}h-1" for bottom, _ in reversed(columns))
    return f"M{first} {columns[0][0]:g}{there}{back}z"


def _times(begin: float, now: float) -> list[Mark]:
    """Return the labels of the time axis."""
    parts = 5 if now - begin <= _TEN_MINUTES else 4  # so that labels are whole minutes apart
    form = "%H:%M" if now - begin <= _DAY else "%a %H:%M"
    marks = []
    for number in range(parts + 1):
        anchor = {0: "start", parts: "end"}.get(number, "middle")
        at = datetime.fromtimestamp(begin + (now - begin) * number / parts, UTC)
        marks.append(Mark(100 / parts * number, f"{at:{form}}", anchor, rfc3339(at.timestamp())))
    return marks


def sparks(samples: Sequence[Sample], most: int) -> tuple[str, str]:
    """Return what succeeded and what failed as SVG paths in a drawing of 14 by 12; relative moves keep them short."""
    columns = _columns(samples, most // _SPARK_POINTS)
    columns *= 2 if len(columns) == 1 else 1  # a line through one point is not drawn
    highest = max((sum(column) for column in columns), default=0)
    left = _SPARK_POINTS - len(columns)
    paths = []
    for values in ([one.succeeded for one in columns], [one.failed for one in columns]):
        path = ""
        if any(values):
            heights = [SPARK_HEIGHT - 1 - round(value * (SPARK_HEIGHT - 2) / highest) for value in values]
            path = f"m{left} {heights[0]}" + "".join(f" 1 {after - before}" for before, after in pairwise(heights))
        paths.append(path)
    return paths[0], paths[1]

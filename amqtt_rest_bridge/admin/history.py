"""What went well, what failed and how long it took, of each route over time. Any thread.

Counts are kept of the last hour, day and week, each more coarsely; latencies of the last hour.

The process that serves the admin port samples the broker's counters; when it dies its history starts again. 31 KB of
memory a route, at most.
"""

import math
from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate
from operator import sub
from typing import Final, NamedTuple

from amqtt_rest_bridge.admin.numbers import BUCKETS, SAMPLE_SECONDS, Numbers, RouteNumbers

SAMPLES: Final = 60
"""Those of the last ten minutes, which pages draw."""
_RESOLUTIONS: Final = ((1, 360), (6, 1440), (30, 2016))
"""How many samples are one value, and how many values are kept: 10 s for an hour, 1 min for a day, 5 min for a week."""
RANGES: Final = {"10m": (0, 60), "1h": (0, 360), "24h": (1, 1440), "7d": (2, 2016)}
"""The resolution, and the most values, of what can be asked for."""
_MOST: Final = (1 << 32) - 1
_NONE: Final = 255
_UNANSWERED: Final = bytes((_NONE, _NONE))


class Sample(NamedTuple):
    """Messages and requests within one sample."""

    succeeded: int
    failed: int


class Latency(NamedTuple):
    """Milliseconds within which half, and 99 of 100, calls and requests of one sample were answered."""

    p50: float
    p99: float


@dataclass(slots=True, eq=False)
class _Values:
    """Values at one resolution; `counted` are the samples of the one that is not complete."""

    together: int
    most: int
    succeeded: "array[int]" = field(default_factory=lambda: array("I"))
    failed: "array[int]" = field(default_factory=lambda: array("I"))
    counted: int = 0

    def add(self, sample: Sample) -> None:
        if self.counted % self.together == 0:
            for values in (self.succeeded, self.failed):
                values.append(0)
                if len(values) > self.most:
                    del values[0]
        self.counted += 1
        self.succeeded[-1] = min(_MOST, self.succeeded[-1] + sample.succeeded)
        self.failed[-1] = min(_MOST, self.failed[-1] + sample.failed)

    def last(self, number: int) -> list[Sample]:
        """Return the last values, the oldest first."""
        return [Sample(*pair) for pair in zip(self.succeeded[-number:], self.failed[-number:], strict=True)]


@dataclass(slots=True, eq=False)
class _Latencies:
    """The buckets that p50 and p99 of each sample are in, a byte each; `before` is what had been counted until then."""

    before: list[int]
    buckets: bytearray = field(default_factory=bytearray)

    def add(self, counted: list[int]) -> None:
        if counted == self.before:
            self.buckets += _UNANSWERED
        else:
            counts = list(map(sub, counted, self.before))
            self.before = counted
            since = list(accumulate(counts))
            total = since[-1] if min(counts) >= 0 else 0  # counters may have started again
            places = (bisect_left(since, math.ceil(total * part)) if total else _NONE for part in (0.5, 0.99))
            self.buckets += bytes(places)
        del self.buckets[: -2 * _RESOLUTIONS[0][1]]


class History:
    """Take samples, and return them."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[int, int]] = {}
        self._values: dict[str, list[_Values]] = {}
        self._latencies: dict[str, _Latencies] = {}

    def add(self, numbers: Numbers) -> None:
        """Add a sample: what has been counted since the one before, for as many seconds as have passed."""
        kept: dict[str, list[_Values]] = {}
        before: dict[str, tuple[int, int]] = {}
        latencies: dict[str, _Latencies] = {}
        for name, route in numbers.routes.items():
            failed = route.failed + route.refused
            last = self._before.get(name)
            own = kept[name] = self._values.get(name) or [_Values(*resolution) for resolution in _RESOLUTIONS]
            took = _took(route)
            latencies[name] = self._latencies.get(name) or _Latencies(took)
            if last is not None:
                latencies[name].add(took)
                sample = Sample(max(0, route.succeeded - last[0]), max(0, failed - last[1]))
                for values in own:
                    values.add(sample)
            before[name] = (route.succeeded, failed)
        self._before, self._values, self._latencies = before, kept, latencies

    def of(self, route: str, span: str = "10m") -> list[Sample]:
        """Return the values of a route within one of `RANGES`, the oldest first; the last one may not be complete."""
        resolution, most = RANGES[span]
        values = self._values.get(route)
        return [] if values is None else values[resolution].last(most)

    def latencies(self, route: str, span: str = "10m") -> list[Latency | None]:
        """Return the latencies of a route within `10m` or `1h`, the oldest first, None where nothing was answered."""
        values = self._latencies.get(route)
        if values is None or RANGES[span][0] > 0:
            return []
        pairs = zip(*[iter(values.buckets[-2 * RANGES[span][1] :])] * 2, strict=True)
        return [None if p50 == _NONE else Latency(_milliseconds(p50), _milliseconds(p99)) for p50, p99 in pairs]

    def rate(self, route: str) -> float | None:
        """Return messages and requests a second in the last sample, None before there is one."""
        samples = self.of(route)
        return (samples[-1].succeeded + samples[-1].failed) / SAMPLE_SECONDS if samples else None


def step_seconds(span: str) -> int:
    """Return the seconds of one value within one of `RANGES`."""
    return int(_RESOLUTIONS[RANGES[span][0]][0] * SAMPLE_SECONDS)


def _took(route: RouteNumbers) -> list[int]:
    """Return how many calls and requests of a route took how long, by `BUCKETS`, since the broker's start."""
    events = [event.took.buckets for event in route.events.values()]
    return list(map(sum, zip(*events, strict=True))) if events else [0] * (len(BUCKETS) + 1)


def _milliseconds(bucket: int) -> float:
    """Return the middle of a bucket: no duration within it is more than 12 % away, but below 0.8 ms and beyond 36 s."""
    high = BUCKETS[min(bucket, len(BUCKETS) - 1)]
    low = BUCKETS[bucket - 1] if 0 < bucket < len(BUCKETS) else high
    return round(1000 * math.sqrt(low * high), 1)

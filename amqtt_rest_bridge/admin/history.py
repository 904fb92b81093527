"""The history of each route: its successes, failures and latencies over time, sample by sample. Pure.

`AdminPort.sample` adds a sample every ten seconds; `charts` draws them. Counts are kept of the last hour, day and week,
each more coarsely; latencies of the last hour. A history ends with the bridge, and takes 31 KB a route at most.
"""

import math
from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate
from operator import sub
from typing import Final, NamedTuple

from amqtt_rest_bridge.admin.figures import SAMPLE_SECONDS, Numbers
from amqtt_rest_bridge.admin.recorder import BUCKETS

SAMPLES: Final = 60
"""Those of the last ten minutes, which pages draw."""
_RESOLUTIONS: Final = ((1, 360), (6, 1440), (30, 2016))
"""Samples of one value, and how many values are kept: one of 10 s for an hour, 1 min for a day, 5 min for a week."""
RANGES: Final = {"10m": (0, 60), "1h": (0, 360), "24h": (1, 1440), "7d": (2, 2016)}
"""The resolution, and the most values, of what can be asked for."""
_RATE_SAMPLES: Final = 6  # the last minute
_MOST: Final = (1 << 32) - 1  # of a count in an array
_NONE: Final = 255  # in place of a bucket: nothing was answered


class Sample(NamedTuple):
    """Messages and requests within one sample."""

    succeeded: int
    failed: int


class Latency(NamedTuple):
    """The median and the 99th percentile of the calls and requests of one sample, in milliseconds."""

    p50: float
    p99: float


@dataclass(slots=True, eq=False)
class _Values:
    """The last `most` values at one resolution. Each is the sum of `together` samples; `counted` samples have come."""

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
class _RouteHistory:
    """The history of one route: what it had counted at the last sample, and the values of the samples before.

    `latencies` has two bytes for each sample, the buckets of its p50 and its p99.
    """

    succeeded: int
    failed: int
    took: list[int]
    values: list[_Values] = field(default_factory=lambda: [_Values(*resolution) for resolution in _RESOLUTIONS])
    latencies: bytearray = field(default_factory=bytearray)

    def add(self, succeeded: int, failed: int, took: list[int]) -> None:
        """Add a sample; counters may have started again."""
        sample = Sample(max(0, succeeded - self.succeeded), max(0, failed - self.failed))
        for values in self.values:
            values.add(sample)
        counts = list(map(sub, took, self.took))
        since = list(accumulate(counts))
        total = since[-1] if min(counts) >= 0 else 0
        self.latencies += bytes(bisect_left(since, math.ceil(total * part)) if total else _NONE for part in (0.5, 0.99))
        del self.latencies[: -2 * _RESOLUTIONS[0][1]]
        self.succeeded, self.failed, self.took = succeeded, failed, took


class History:
    """The history of all routes."""

    def __init__(self) -> None:
        self._routes: dict[str, _RouteHistory] = {}

    def add(self, numbers: Numbers) -> None:
        """Add a sample of each route: what it has counted since the sample before."""
        before, self._routes = self._routes, {}
        for name, route in numbers.routes.items():
            events = [event.took.buckets for event in route.events.values()]
            took = list(map(sum, zip(*events, strict=True))) if events else [0] * (len(BUCKETS) + 1)
            counted = route.succeeded, route.failed + route.refused, took
            if (own := before.get(name)) is None:
                own = _RouteHistory(*counted)
            else:
                own.add(*counted)
            self._routes[name] = own

    def samples(self, route: str, span: str = "10m") -> list[Sample]:
        """Return the values of a route within one of `RANGES`, the oldest first; the last one may not be complete."""
        resolution, most = RANGES[span]
        own = self._routes.get(route)
        return [] if own is None else own.values[resolution].last(most)

    def latencies(self, route: str, span: str = "10m") -> list[Latency | None]:
        """Return the latencies of a route within `10m` or `1h`, the oldest first, None where nothing was answered."""
        own, (resolution, most) = self._routes.get(route), RANGES[span]
        if own is None or resolution > 0:
            return []
        pairs = zip(*[iter(own.latencies[-2 * most :])] * 2, strict=True)
        return [None if p50 == _NONE else Latency(_milliseconds(p50), _milliseconds(p99)) for p50, p99 in pairs]

    def rate(self, route: str) -> float | None:
        """Return messages and requests a second in the last minute, None before there is a sample."""
        samples = self.samples(route)[-_RATE_SAMPLES:]
        return sum(map(sum, samples)) / (len(samples) * SAMPLE_SECONDS) if samples else None


def step_seconds(span: str) -> int:
    """Return the seconds of one value within one of `RANGES`."""
    return int(_RESOLUTIONS[RANGES[span][0]][0] * SAMPLE_SECONDS)


def _milliseconds(bucket: int) -> float:
    """Return the middle of a bucket, from which no duration between 0.8 ms and 36 s is more than 12 % away."""
    high = BUCKETS[min(bucket, len(BUCKETS) - 1)]
    low = BUCKETS[bucket - 1] if 0 < bucket < len(BUCKETS) else high
    return round(1000 * math.sqrt(low * high), 1)

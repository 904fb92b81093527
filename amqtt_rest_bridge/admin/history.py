"""What went well and what failed, of each route over time: the last hour, day and week, each more coarsely. Any thread.

The process that serves the admin port samples the broker's counters; when it dies its history starts again. 31 KB of
memory a route, at most.
"""

from array import array
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from amqtt_rest_bridge.admin.numbers import SAMPLE_SECONDS, Numbers

SAMPLES: Final = 60
"""Those of the last ten minutes, which pages draw."""
_RESOLUTIONS: Final = ((1, 360), (6, 1440), (30, 2016))
"""How many samples are one value, and how many values are kept: 10 s for an hour, 1 min for a day, 5 min for a week."""
RANGES: Final = {"10m": (0, 60), "1h": (0, 360), "24h": (1, 1440), "7d": (2, 2016)}
"""The resolution, and the most values, of what can be asked for."""
_MOST: Final = (1 << 32) - 1


class Sample(NamedTuple):
    """Messages and requests within one sample."""

    succeeded: int
    failed: int


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


class History:
    """Take samples, and return them."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[int, int]] = {}
        self._values: dict[str, list[_Values]] = {}

    def add(self, numbers: Numbers) -> None:
        """Add a sample: what has been counted since the one before, for as many seconds as have passed."""
        kept: dict[str, list[_Values]] = {}
        before: dict[str, tuple[int, int]] = {}
        for name, route in numbers.routes.items():
            failed = route.failed + route.refused
            last = self._before.get(name)
            own = kept[name] = self._values.get(name) or [_Values(*resolution) for resolution in _RESOLUTIONS]
            if last is not None:
                sample = Sample(max(0, route.succeeded - last[0]), max(0, failed - last[1]))
                for values in own:
                    values.add(sample)
            before[name] = (route.succeeded, failed)
        self._before, self._values = before, kept

    def of(self, route: str, span: str = "10m") -> list[Sample]:
        """Return the values of a route within one of `RANGES`, the oldest first; the last one may not be complete."""
        resolution, most = RANGES[span]
        values = self._values.get(route)
        return [] if values is None else values[resolution].last(most)

    def rate(self, route: str) -> float | None:
        """Return messages and requests a second in the last sample, None before there is one."""
        samples = self.of(route)
        return (samples[-1].succeeded + samples[-1].failed) / SAMPLE_SECONDS if samples else None


def step_seconds(span: str) -> int:
    """Return the seconds of one value within one of `RANGES`."""
    return int(_RESOLUTIONS[RANGES[span][0]][0] * SAMPLE_SECONDS)

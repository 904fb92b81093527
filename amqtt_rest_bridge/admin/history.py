"""What the status page draws: how many messages of each route went well and failed, every ten seconds for ten minutes.

Memory: two numbers a route and sample, 1 KB a route. The timers' thread adds, the port's thread reads.
"""

from collections import deque
from typing import Final, NamedTuple

from amqtt_rest_bridge.admin.insights import Numbers

SAMPLE_SECONDS: Final = 10.0
SAMPLES: Final = 60


class Sample(NamedTuple):
    """Messages and requests within one sample."""

    succeeded: int
    failed: int


class History:
    """The samples of all routes."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[int, int]] = {}
        self._samples: dict[str, deque[Sample]] = {}
        self._at: float | None = None

    def add(self, numbers: Numbers) -> None:
        """Add a sample: what has been counted since the one before, for as many seconds as have passed."""
        samples: dict[str, deque[Sample]] = {}
        before: dict[str, tuple[int, int]] = {}
        for name, route in numbers.routes.items():
            failed = route.failed + route.refused
            last = self._before.get(name)
            kept = self._samples.get(name)
            samples[name] = deque(maxlen=SAMPLES) if kept is None else kept
            if last is not None:
                samples[name].append(Sample(max(0, route.succeeded - last[0]), max(0, failed - last[1])))
            before[name] = (route.succeeded, failed)
        self._before, self._samples, self._at = before, samples, numbers.at

    def of(self, route: str) -> list[Sample]:
        """Return the samples of a route, the oldest first."""
        return list(self._samples.get(route, ()))

    def rate(self, route: str) -> float | None:
        """Return messages and requests a second in the last sample, None before there is one."""
        samples = self._samples.get(route)
        if not samples:
            return None
        return (samples[-1].succeeded + samples[-1].failed) / SAMPLE_SECONDS

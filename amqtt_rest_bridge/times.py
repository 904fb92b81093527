"""Times as they are written, clocks, and waiting: between tries, for an event, for a quiet loop, between log lines.

Any thread, but for what awaits.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import asyncio

SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
"""The units of the durations that people write: `10m`."""


_QUIET_ITERATION: Final = 15e-6  # seconds: an iteration of the loop that is shorter has done nothing
_QUIET_ITERATIONS: Final = 4  # such iterations in a row are a lull
LONGEST_LULL: Final = 0.003  # seconds
_SUSPENDED: Final = getattr(time, "CLOCK_BOOTTIME", None)
lease_time: Final[Callable[[], float]] = (
    time.monotonic if _SUSPENDED is None else partial(time.clock_gettime, _SUSPENDED)
)
"""Returns monotonic seconds, alike in all processes of a machine; on Linux they go on while it is suspended."""


def rfc3339(timestamp: float) -> str:
    """Write Unix seconds as RFC 3339 in UTC, rounded to milliseconds: `2026-01-31T12:00:00.123Z`."""
    seconds, milliseconds = divmod(round(timestamp * 1000), 1000)
    return f"{datetime.fromtimestamp(seconds, UTC).isoformat()[:19]}.{milliseconds:03d}Z"


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before what failed is tried or started again: `first` seconds, then twice as long each time.

    Args:
        first: Seconds before the first repetition; before the second one, where the first is `at_once`.
        longest: The most seconds.
        at_once: The first repetition is at once.
        steady: What ran for so many seconds has recovered: its next failure is the first one again.
    """

    first: float = 1.0
    longest: float = 30.0
    at_once: bool = False
    steady: float = 60.0

    def delay(self, failures: int) -> float:
        """Return the seconds before the next try after so many failures in a row, one at least."""
        doubled = failures - 1 - self.at_once
        return 0.0 if doubled < 0 else min(self.longest, self.first * 2.0 ** min(doubled, 16))


async def woken(event: "asyncio.Event", seconds: float | None) -> bool:
    """Wait until an event is set, and clear it; return False if it was not set within so many seconds (None: no limit).

    `asyncio.wait_for` would not do: before Python 3.12 it drops a cancellation that comes together with the event. A
    worker would not end then, since the last notice that it publishes comes back from the broker, and sets the event.
    """
    import asyncio  # which a check of route files does not need

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    is_set = event.is_set()
    event.clear()
    return is_set


class LineLimit:
    """Which of many log lines are written: at most one in `seconds`; the others are counted."""

    def __init__(self, seconds: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._written: float | None = None
        self._count = 0

    def count(self) -> int:
        """Count a line; return how many there were since the last one that was written, 0 when none is due."""
        with self._lock:
            self._count += 1
            now = self._monotonic()
            if self._written is not None and now - self._written < self._seconds:
                return 0
            count, self._count, self._written = self._count, 0, now
            return count


def in_lull(action: Callable[[], object]) -> None:
    """Call an action once the running loop has nothing else to do, after `LONGEST_LULL` at most.

    All actions that wait for a lull of the loop are called then, each once: what they send goes out together.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    lull = _lulls.get(loop)
    if lull is None:
        lull = _lulls[loop] = _Lull(loop)
    lull.add(action)


class _Lull:
    """The actions that wait for a lull of a loop: some iterations in a row in which it has nothing to do."""

    def __init__(self, loop: "asyncio.AbstractEventLoop") -> None:
        self._time, self._call_soon = loop.time, loop.call_soon
        self._actions: dict[Callable[[], object], None] = {}
        self._until = self._looked = 0.0
        self._quiet = 0  # iterations in a row

    def add(self, action: Callable[[], object]) -> None:
        if not self._actions:
            self._looked = self._time()
            self._until = self._looked + LONGEST_LULL
            self._quiet = 0
            self._call_soon(self._look)
        self._actions[action] = None

    def _look(self) -> None:
        """Look how long the last iteration of the loop took."""
        now = self._time()
        self._quiet = self._quiet + 1 if now - self._looked < _QUIET_ITERATION else 0
        if self._quiet < _QUIET_ITERATIONS and now < self._until:
            self._looked = now
            self._call_soon(self._look)
            return
        actions, self._actions = self._actions, {}
        for action in actions:
            action()


_lulls: "WeakKeyDictionary[asyncio.AbstractEventLoop, _Lull]" = WeakKeyDictionary()


class LoopClock:
    """The time of this machine, and timers of the running event loop."""

    time = staticmethod(time.time)
    """Returns Unix seconds."""
    monotonic = staticmethod(lease_time)
    """Returns seconds that nothing sets, and that go on while the machine is suspended, where it can tell."""

    def later(self, seconds: float, action: Callable[[], object]) -> "asyncio.TimerHandle":
        """Call `action` on the running loop, so many seconds from now."""
        import asyncio

        return asyncio.get_running_loop().call_later(seconds, action)

    async def sleep(self, seconds: float) -> None:
        """Return so many seconds from now."""
        import asyncio

        await asyncio.sleep(seconds)

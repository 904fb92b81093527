"""The form of every time that the bridge publishes, logs or fills in; and how often a line is logged. Any thread."""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime


def rfc3339(timestamp: float) -> str:
    """Write Unix seconds as RFC 3339 in UTC, rounded to milliseconds: `2026-01-31T12:00:00.123Z`."""
    seconds, milliseconds = divmod(round(timestamp * 1000), 1000)
    return f"{datetime.fromtimestamp(seconds, UTC).isoformat()[:19]}.{milliseconds:03d}Z"


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

"""How many threads all worker pools of a bridge process may have together. Pure concurrency; any thread may call."""

import threading
from typing import Final

_MOST: Final = 2048
"""Threads, at 0.03 MB each (with their connection, measured). A hundred routes whose servers all hang have 20 each; a
thousand with 64 each would be more than many systems start."""


class ThreadBudget:
    """Admit new threads of pools, so that many slow routes cannot use up the system's threads and memory.

    Up to `most` threads are admitted to any pool. Beyond that a pool still gets its even share of them, at least one,
    so that routes whose servers hang never keep another one from running: `2 * most` threads at most, or one a pool.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._pools = 0
        self._threads = 0
        self._lock = threading.Lock()

    @property
    def threads(self) -> int:
        """Return how many threads there are."""
        return self._threads

    def join(self) -> None:
        """Count a pool among those that share."""
        with self._lock:
            self._pools += 1

    def leave(self) -> None:
        """Count a pool no longer; the threads it still has remain counted until each is released."""
        with self._lock:
            self._pools -= 1

    def acquire(self, own: int) -> bool:
        """Admit one more thread of a pool that has `own`; return False when the pool has to do without."""
        with self._lock:
            if self._threads >= self._most and own >= max(1, self._most // max(1, self._pools)):
                return False
            self._threads += 1
            return True

    def release(self) -> None:
        """Count a thread that has ended, or could not be started, no longer."""
        with self._lock:
            self._threads -= 1

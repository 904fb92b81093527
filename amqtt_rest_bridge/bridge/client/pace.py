"""RATE_LIMIT: the requests of a route start at an even pace, whichever of its definitions they belong to.

A call that waits for its turn holds no worker. Any thread may call; turns come on the timers' thread.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from amqtt_rest_bridge.bridge.timers import Timers


class Pace:
    """Start what enters in its order, so many seconds apart.

    Decision: evenly spaced instead of in bursts, so that the server sees no more than the limit in any window of time.

    Args:
        timers: Run the turns.
        clock: Monotonic seconds.
    """

    def __init__(self, timers: Timers, clock: Callable[[], float] = time.monotonic) -> None:
        self._timers = timers
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()  # bounded by what the broker admits
        self._seconds = 0.0
        self._last = -float("inf")
        self._turn = 0  # the timer that counts; those before it have been replaced

    def change(self, seconds: float) -> None:
        """Keep another distance from now on; 0 is none."""
        with self._lock:
            self._seconds = seconds
            self._set_timer()

    def enter(self, start: Callable[[], None]) -> None:
        """Call `start` when it is its turn; it must not block."""
        with self._lock:
            self._waiting.append(start)
            if len(self._waiting) == 1:
                self._set_timer()

    def _set_timer(self) -> None:
        if self._waiting:
            self._turn += 1
            delay = max(0.0, self._last + self._seconds - self._clock())
            self._timers.after(delay, partial(self._start_next, self._turn))

    def _start_next(self, turn: int) -> None:
        with self._lock:
            if turn != self._turn or not self._waiting:
                return
            start = self._waiting.popleft()
            self._last = self._clock()
            self._set_timer()
        start()

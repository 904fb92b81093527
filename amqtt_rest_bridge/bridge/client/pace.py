"""RATE_LIMIT: the requests of a route are sent at an even pace, whichever of its definitions they belong to.

What waits for its turn holds no worker. A turn is given to one call at a time, and the next one is due so many seconds
after that call has sent its request, not after its turn was given: however long a call waits then for a free worker,
for a processor or for an access token, requests do not gather and leave together. Any thread may call; turns come on
the timers' thread.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from amqtt_rest_bridge.bridge.timers import Timers


class Pace:
    """Start what enters, one turn each, in order of arrival. A turn ends with `sending`, or with `decline`.

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
        self._workers = 1
        self._last = -float("inf")
        self._given = False  # a turn that has not ended
        self._timer = 0  # the one that counts; those before it have been replaced

    def change(self, seconds: float) -> None:
        """Keep another distance from now on; 0 is none."""
        with self._lock:
            self._seconds = seconds
            self._set_timer()

    def share(self, workers: int) -> None:
        """Leave the others of so many workers their part of the limit from now on."""
        with self._lock:
            self._workers = workers
            self._set_timer()

    def enter(self, start: Callable[[], None], *, first: bool = False) -> None:
        """Call `start` when it is its turn, with `first` before all others; it must not block."""
        with self._lock:
            if first:
                self._waiting.appendleft(start)
            else:
                self._waiting.append(start)
            if len(self._waiting) == 1:
                self._set_timer()

    def sending(self) -> None:
        """End a turn: its request is sent now."""
        with self._lock:
            self._last, self._given = self._clock(), False
            self._set_timer()

    def decline(self) -> None:
        """End a turn that sends nothing: it is another call's at once."""
        with self._lock:
            self._given = False
            self._set_timer()

    def _set_timer(self) -> None:
        if self._waiting and not self._given:
            self._timer += 1
            delay = max(0.0, self._last + self._workers * self._seconds - self._clock())
            self._timers.after(delay, partial(self._start_next, self._timer))

    def _start_next(self, timer: int) -> None:
        with self._lock:
            if timer != self._timer or self._given or not self._waiting:
                return
            start, self._given = self._waiting.popleft(), True
        start()

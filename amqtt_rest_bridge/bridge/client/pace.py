"""RATE_LIMIT: the requests of a route are sent at an even pace, whichever of its definitions they belong to.

What waits for its turn holds no worker. `calls.open_calls.Turns` decides, here are its lock and its timer. Any thread
may call; turns come on the timers' thread.
"""

import threading
import time
from collections.abc import Callable
from functools import partial

from amqtt_rest_bridge.bridge.timers import Timers
from amqtt_rest_bridge.calls.open_calls import Turns


class Pace:
    """Start what enters, one turn each, in order of arrival. A turn ends with `sending`, or with `decline`.

    Args:
        timers: Run the turns.
        clock: Monotonic seconds.
    """

    def __init__(self, timers: Timers, clock: Callable[[], float] = time.monotonic) -> None:
        self._timers = timers
        self._clock = clock
        self._lock = threading.Lock()
        self._turns: Turns[Callable[[], None]] = Turns()
        self._timer = 0  # the one that counts; those before it have been replaced

    def change(self, seconds: float) -> None:
        """Keep another distance from now on; 0 is none."""
        with self._lock:
            self._turns.seconds = seconds
            self._set_timer()

    def share(self, workers: int) -> None:
        """Leave the others of so many workers their part of the limit from now on."""
        with self._lock:
            self._turns.workers = workers
            self._set_timer()

    def enter(self, start: Callable[[], None], *, first: bool = False) -> None:
        """Call `start` when it is its turn, with `first` before all others; it must not block."""
        with self._lock:
            if self._turns.enter(start, first=first):
                self._set_timer()

    def sending(self) -> None:
        """End a turn: its request is sent now."""
        with self._lock:
            self._turns.sent(self._clock())
            self._set_timer()

    def decline(self) -> None:
        """End a turn that sends nothing: it is another call's at once."""
        with self._lock:
            self._turns.declined()
            self._set_timer()

    def _set_timer(self) -> None:
        due = self._turns.due
        if due is not None:
            self._timer += 1
            self._timers.after(max(0.0, due - self._clock()), partial(self._start_next, self._timer))

    def _start_next(self, timer: int) -> None:
        with self._lock:
            start = self._turns.give() if timer == self._timer else None
        if start is not None:
            start()

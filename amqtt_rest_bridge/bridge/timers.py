"""Timed actions on one thread of their own: retries that are due, queues that wait too long, turns, leases.

`calls.open_calls.Turns` decides about turns, in `Pace` are its lock and its timer. Any thread may call.
"""

import heapq
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable
from functools import partial

from amqtt_rest_bridge.calls.open_calls import Turns
from amqtt_rest_bridge.times import lease_time

log = logging.getLogger(__name__)


class Timers:
    """Run actions after a delay, on a thread of their own; an action must not block."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="bridge-timers", daemon=True)
        self._thread.start()

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Run `action` once, `seconds` from now; any thread may call. After `close` it never runs."""
        with self._changed:
            entry = (time.monotonic() + seconds, next(self._order), action)
            heapq.heappush(self._due, entry)
            if self._due[0] is entry:
                self._changed.notify()

    def close(self) -> None:
        """Drop what is left and end the thread."""
        with self._changed:
            self._closed = True
            self._due.clear()
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while (action := self._next()) is not None:
            try:
                action()
            except Exception:
                log.exception("a timed action ended with an unexpected error")

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._closed:
                if not self._due:
                    self._changed.wait()
                    continue
                remaining = self._due[0][0] - time.monotonic()
                if remaining <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(remaining)
            return None


class Pace:
    """Start what enters, one turn each, in order of arrival. A turn ends with `sending`, or with `decline`.

    RATE_LIMIT: the requests of a route are sent at an even pace, whichever of its definitions they belong to. What
    waits for its turn holds no worker.

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


class Lease:
    """Until when ORDERED calls begin, by `lease_time`: a worker's, as long as no other one takes its slots."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until = math.inf
        self._held: list[Callable[[], None]] = []

    @property
    def lasts(self) -> bool:
        """Return whether calls may begin."""
        return lease_time() < self._until

    def hold(self, resume: Callable[[], None]) -> None:
        """Call `resume` when the lease is renewed; at once where it was meanwhile."""
        with self._lock:
            if not self.lasts:
                self._held.append(resume)
                return
        resume()

    def renew(self, until: float) -> None:
        """Begin calls until another time, and resume those that waited for it."""
        with self._lock:
            self._until = until
            held, self._held = self._held, []
        for resume in held:
            resume()

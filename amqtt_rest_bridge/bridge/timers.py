"""Timed actions on one thread of their own: retries that are due, queues that wait too long, turns, leases.

`calls.open_calls.Turns` decides about turns, in `Pace` are its lock and its timer; so are those of
`engine.stages.breaker.Circuit` in `Breaker`. Any thread may call.
"""

import heapq
import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from amqtt_rest_bridge.calls.open_calls import Turns
from amqtt_rest_bridge.engine.stages.breaker import PROBE_SECONDS, Circuit
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.model import BreakerRule, HttpResponse
from amqtt_rest_bridge.times import lease_time

log = logging.getLogger(__name__)


class Timers:
    """Run actions after a delay, on a thread of their own; an action must not block."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="bridge-timers", daemon=True)
        self._thread.start()

    def after(self, seconds: float, action: Callable[[], object]) -> None:
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
        while True:
            with self._changed:
                while not self._closed and (not self._due or self._due[0][0] > time.monotonic()):
                    self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
                if self._closed:
                    return
                _, _, action = heapq.heappop(self._due)
            try:
                action()
            except Exception:
                log.exception("a timed action ended with an unexpected error")


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


class Breaker:
    """The circuit of a route's target, and the calls that wait until it lets them through: they hold no worker.

    A call names its target: one of an earlier definition may have another, which does not tell about this one.

    Args:
        timers: Start the probes.
        on_change: Called with the reason when the circuit opens, with None when it closes; must not block.
        clock: Monotonic seconds.
    """

    def __init__(
        self, timers: Timers, on_change: Callable[[str | None], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._timers = timers
        self._on_change = on_change
        self._clock = clock
        self._lock = threading.Lock()
        self._target: object = None
        self._rule: BreakerRule | None = None
        self._circuit: Circuit | None = None
        self._workers = 1
        self._waiting: deque[Callable[[], bool]] = deque()  # bounded by what the broker admits
        self._timer = 0  # the one that counts; those before it have been replaced

    def change(self, target: object, rule: BreakerRule | None) -> None:
        """Keep another rule, or target, from now on; with the same ones the state stays. `release` must follow."""
        with self._lock:
            if (target, rule) == (self._target, self._rule):
                return
            was_open = self._circuit is not None and self._circuit.is_open
            self._target, self._rule, self._circuit = target, rule, None if rule is None else Circuit(rule)
            self._divide()
            if was_open:
                self._on_change(None)

    def share(self, workers: int) -> None:
        """Leave the others of so many workers their part of the probes from now on."""
        with self._lock:
            self._workers = workers
            self._divide()

    def passes(self, call: int, target: object) -> bool:
        """Return whether a call may send the request of a try now; `replied` must follow if so."""
        with self._lock:
            return self._circuit is None or target != self._target or self._circuit.passes(call, self._clock())

    def replied(self, call: int, reply: HttpResponse | CallError | None, target: object) -> None:
        """Note what came of a try that passed, None for nothing; where the circuit closes, what waits starts."""
        with self._lock:
            if self._circuit is None or target != self._target:
                return
            was_open = self._circuit.is_open
            self._circuit.replied(call, reply, self._clock(), time.time())
            is_open = self._circuit.is_open
            if is_open and not was_open:
                self._on_change(self._circuit.reason)
            elif was_open and not is_open:
                self._on_change(None)
            self._set_timer()
        if was_open and not is_open:
            self.release()

    def hold(self, start: Callable[[], bool], target: object) -> bool:
        """Call `start` when its call may be the probe, or the circuit has closed; return False where it is closed.

        It must not block, and returns whether the call goes on.
        """
        with self._lock:
            if self._circuit is None or target != self._target or not self._circuit.is_open:
                return False
            self._waiting.append(start)
            if len(self._waiting) == 1:
                self._set_timer()
            return True

    def release(self) -> None:
        """Start what waits, unless the circuit is open."""
        with self._lock:
            if self._circuit is not None and self._circuit.is_open:
                return
            waiting, self._waiting = self._waiting, deque()
        for start in waiting:
            start()

    def _divide(self) -> None:
        if self._circuit is not None:
            self._circuit.workers = self._workers

    def _set_timer(self) -> None:
        due = None if self._circuit is None else self._circuit.due
        if due is not None and self._waiting:
            self._timer += 1
            self._timers.after(max(0.0, due - self._clock()), partial(self._start_probe, self._timer))

    def _start_probe(self, timer: int) -> None:
        while True:
            with self._lock:
                due = None if self._circuit is None else self._circuit.due
                if timer != self._timer or due is None or not self._waiting:
                    return
                start = self._waiting.popleft()
            if start():
                break
        # Where it sends nothing, as WHEN has it since a reload, the next one is the probe.
        self._timers.after(PROBE_SECONDS, partial(self._start_probe, timer))


class Lease:
    """Until when ORDERED calls begin, by `lease_time`: a worker's, as long as no other one takes its slots."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until = math.inf
        self._held: list[Callable[[], object]] = []

    @property
    def lasts(self) -> bool:
        """Return whether calls may begin."""
        return lease_time() < self._until

    def hold(self, resume: Callable[[], object]) -> None:
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

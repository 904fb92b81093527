"""BREAKER: a target that is down gets no requests except probes.

A closed breaker lets every attempt through and remembers failures of the target. An open breaker lets one attempt
through at a time, the *probe*, and the next one `PROBE_SECONDS` later. `Circuit` decides; `Breaker` keeps the calls
that wait.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from amqtt_rest_bridge.engine.needs import Cancels, Clock
from amqtt_rest_bridge.engine.stages import Call
from amqtt_rest_bridge.engine.stages.retries import retry_after
from amqtt_rest_bridge.errors import CallError, FailureCode
from amqtt_rest_bridge.lot.model import BreakerRule, HttpResponse

PROBE_SECONDS: Final = 5.0
_DOWN: Final = frozenset({FailureCode.CONNECTION_FAILED, FailureCode.TLS_FAILED, FailureCode.TIMEOUT})
_UP: Final = frozenset({FailureCode.REDIRECT_REFUSED, FailureCode.RESPONSE_TOO_LARGE})
_GATEWAY: Final = range(502, 505)


class Circuit:
    """Whether the target of one route is down, and when the next probe may leave. Times are given in seconds.

    Args:
        rule: How many failures, within how many seconds, open the circuit.
    """

    def __init__(self, rule: BreakerRule) -> None:
        self._seconds = rule.seconds
        times = "once" if rule.failures == 1 else f"{rule.failures} times"
        self._failed = f"the breaker is open: the target failed {times} within {rule.seconds} s, the last time with"
        self.reason = ""
        """Why the circuit opened last, empty before. The failures `target_down` that follow do not name the cause."""
        self._failures: deque[float] = deque(maxlen=rule.failures)
        self._probe: int | None = None  # the call that is under way
        self._next = 0.0
        self.is_open = False
        self.workers = 1
        """Workers that share the target. Each waits so many times `PROBE_SECONDS` for its next probe."""

    @property
    def due(self) -> float | None:
        """Return when the next call passes; None while it is closed, or its probe is under way."""
        return self._next if self.is_open and self._probe is None else None

    def passes(self, call: int, now: float) -> bool:
        """Return whether a call may send the request of an attempt now."""
        if not self.is_open:
            return True
        if self._probe is not None or now < self._next:
            return False
        self._probe, self._next = call, now + self.workers * PROBE_SECONDS
        return True

    def replied(self, call: int, reply: HttpResponse | CallError | None, now: float, unix_time: float) -> None:
        """Note the reply to an attempt that passed, None if it sent nothing. This may open or close the circuit.

        An open circuit counts the reply to its probe only: attempts that were under way when it opened may end in any
        way. Any answer except 502 to 504 closes it, even an error: it shows that the target is up. Retry-After delays
        the next probe.
        """
        is_down = _is_down(reply)
        if self.is_open:
            if call != self._probe:
                return
            self._probe = None
            self.is_open = is_down is not False
        elif is_down:
            self._failures.append(now)
            if len(self._failures) == self._failures.maxlen and now - self._failures[0] <= self._seconds:
                self._failures.clear()
                self.is_open, self._next = True, now + self.workers * PROBE_SECONDS
                self.reason = f"{self._failed} {_named(reply)}"
        if self.is_open and isinstance(reply, HttpResponse):
            self._next = max(self._next, now + (retry_after(reply, unix_time) or 0.0))


class Breaker:
    """The circuit of a route, and the calls that wait until it lets them through, without a place.

    A call of an earlier definition may have another target; it always passes and does not count.

    Args:
        clock: Times the probes.
        on_change: Called with the reason when the circuit opens, with None when it closes.
    """

    def __init__(self, clock: Clock, on_change: Callable[[str | None], None]) -> None:
        self._clock = clock
        self._on_change = on_change
        self._target: str | None = None
        self._rule: BreakerRule | None = None
        self._circuit: Circuit | None = None
        self._workers = 1
        self._waiting: deque[Call] = deque()  # bounded by what the route admits
        self._timer: Cancels | None = None

    def change(self, target: str | None, rule: BreakerRule | None) -> None:
        """Change the target and the rule. The breaker keeps its state if both are unchanged."""
        if (target, rule) == (self._target, self._rule):
            return
        was_open = self.is_open
        self._target, self._rule, self._circuit = target, rule, None if rule is None else Circuit(rule)
        self.share(self._workers)
        if was_open:
            self._on_change(None)
        self._release()

    def share(self, workers: int) -> None:
        """Share the probes with other workers."""
        self._workers = workers
        if self._circuit is not None:
            self._circuit.workers = workers

    @property
    def is_open(self) -> bool:
        """Return whether the target counts as down."""
        return self._circuit is not None and self._circuit.is_open

    def passes(self, call: Call) -> bool:
        """Return whether a call may send the request of an attempt now; `replied` must follow if so."""
        if self._circuit is None or call.event.target != self._target:
            return True
        return self._circuit.passes(call.number, self._clock.monotonic())

    def replied(self, call: Call, reply: HttpResponse | CallError | None) -> None:
        """Note the reply to an attempt that passed, None if it sent nothing. Waiting calls go on if this closes it."""
        if self._circuit is None or call.event.target != self._target:
            return
        was_open = self._circuit.is_open
        self._circuit.replied(call.number, reply, self._clock.monotonic(), self._clock.time())
        if self._circuit.is_open and not was_open:
            self._on_change(self._circuit.reason)
        elif was_open and not self._circuit.is_open:
            self._on_change(None)
            self._release()

    def hold(self, call: Call) -> bool:
        """Keep a call until it may be the probe or the circuit closes; return False if it may go on now."""
        if not self.is_open or call.event.target != self._target:
            return False
        self._waiting.append(call)
        self._look_again()
        return True

    def left(self, call: Call) -> None:
        """Note that a call has no place any more. If a probe sent nothing, the next waiting call becomes the probe."""
        if self._circuit is not None:
            self.replied(call, None)
            self._look_again()

    def _look_again(self) -> None:
        due = None if self._circuit is None else self._circuit.due
        if due is not None and self._waiting:
            self._look_in(due - self._clock.monotonic())

    def _release(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            call.resume(call)

    def _look_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._clock.later(max(0.0, seconds), self._probe)

    def _probe(self) -> None:
        """Resume the first waiting call, which becomes the probe unless another call comes before it."""
        self._timer = None
        due = None if self._circuit is None else self._circuit.due
        if due is not None and due > self._clock.monotonic():  # there has been another probe, or Retry-After
            self._look_in(due - self._clock.monotonic())
            return
        while due is not None and self._waiting:
            call = self._waiting.popleft()
            if not call.has_ended:
                self._look_in(PROBE_SECONDS)  # in case its source takes this call back meanwhile
                call.resume(call)
                return


def _named(reply: HttpResponse | CallError | None) -> str:
    """Return the status of a response, or the code of a failure."""
    return str(reply.status) if isinstance(reply, HttpResponse) else "" if reply is None else reply.code.value


def _is_down(reply: HttpResponse | CallError | None) -> bool | None:
    """Return whether a reply shows that the target is down; None where it does not tell."""
    if isinstance(reply, HttpResponse):
        return reply.status in _GATEWAY
    if reply is None or reply.code not in _DOWN | _UP:
        return None
    return reply.code in _DOWN

"""BREAKER: a target that is down gets no requests except probes.

A closed breaker lets every attempt through and remembers failures of the target. An open breaker lets one attempt
through at a time, the *probe*, and the next one `PROBE_SECONDS` later. Calls that it does not let through wait here,
without a place.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from amqtt_rest_bridge.engine.event import Call
from amqtt_rest_bridge.engine.needs import Cancels, Clock
from amqtt_rest_bridge.engine.stages.retries import retry_after
from amqtt_rest_bridge.errors import CallError, FailureCode
from amqtt_rest_bridge.lot.model import BreakerRule, HttpResponse

PROBE_SECONDS: Final = 5.0
# Failures that show that the target is down, or up. Others, such as no access token, show neither.
_DOWN: Final = frozenset({FailureCode.CONNECTION_FAILED, FailureCode.TLS_FAILED, FailureCode.TIMEOUT})
_UP: Final = frozenset({FailureCode.REDIRECT_REFUSED, FailureCode.RESPONSE_TOO_LARGE})
_GATEWAY: Final = range(502, 505)


class Breaker:
    """The breaker of a route, and the calls that wait until it lets them through.

    A call of an earlier definition may have another target; it always passes and does not count.

    Args:
        clock: Times the probes.
        on_change: Called with the reason when the breaker opens, with None when it closes.
        workers: Workers that share the target, including this one.
    """

    def __init__(self, clock: Clock, on_change: Callable[[str | None], None], workers: int = 1) -> None:
        self.is_open = False
        """Whether the target counts as down."""
        self.workers = workers
        """Workers that share the target. Each waits so many times `PROBE_SECONDS` for its next probe."""
        self._clock = clock
        self._on_change = on_change
        self._target: str | None = None
        self._rule: BreakerRule | None = None  # None since a reload has removed it: everything passes
        self._failures: deque[float] = deque()
        self._probe: Call | None = None  # under way
        self._next_probe = 0.0
        self._waiting: deque[Call] = deque()  # bounded by what the route admits
        self._timer: Cancels | None = None

    def change(self, target: str | None, rule: BreakerRule | None) -> None:
        """Change the target and the rule. The breaker keeps its state if both are unchanged, else it is closed."""
        if (target, rule) == (self._target, self._rule):
            return
        was_open, self.is_open, self._probe = self.is_open, False, None
        self._target, self._rule = target, rule
        self._failures = deque(maxlen=1 if rule is None else rule.failures)
        if was_open:
            self._on_change(None)
        self._release_waiting()

    def passes(self, call: Call) -> bool:
        """Return whether a call may send the request of an attempt now; `note_reply` must follow if so."""
        if not self.is_open or call.event.target != self._target:
            return True
        now = self._clock.monotonic()
        if self._probe is not None or now < self._next_probe:
            return False
        self._probe, self._next_probe = call, now + self.workers * PROBE_SECONDS
        return True

    def note_reply(self, call: Call, reply: HttpResponse | CallError) -> None:
        """Note the reply to an attempt that passed, which may open or close the breaker.

        An open breaker counts the reply to its probe only: attempts that were under way when it opened may end in any
        way. Any answer except 502 to 504 closes it, even an error: it shows that the target is up. Retry-After delays
        the next probe.
        """
        if self._rule is None or call.event.target != self._target:
            return
        now = self._clock.monotonic()
        is_down: bool | None = None  # the reply says nothing of the target
        if isinstance(reply, HttpResponse):
            is_down = reply.status in _GATEWAY
        elif reply.code in _DOWN | _UP:
            is_down = reply.code in _DOWN
        if self.is_open:
            if call is not self._probe:
                return
            self._probe = None
            if is_down is False:
                self.is_open = False
                self._on_change(None)
                self._release_waiting()
        elif is_down:
            self._failures.append(now)
            if len(self._failures) == self._rule.failures and now - self._failures[0] <= self._rule.seconds:
                self._failures.clear()
                self.is_open, self._next_probe = True, now + self.workers * PROBE_SECONDS
                # The failures `target_down` that follow do not name the cause.
                times = "once" if self._rule.failures == 1 else f"{self._rule.failures} times"
                within = f"{times} within {self._rule.seconds} s"
                last = str(reply.status) if isinstance(reply, HttpResponse) else reply.code.value
                self._on_change(f"the breaker is open: the target failed {within}, the last time with {last}")
        if self.is_open and isinstance(reply, HttpResponse):
            self._next_probe = max(self._next_probe, now + (retry_after(reply, self._clock.time()) or 0.0))

    def hold(self, call: Call) -> bool:
        """Keep a call until it may be the probe or the breaker closes; return False if it may go on now."""
        if not self.is_open or call.event.target != self._target:
            return False
        self._waiting.append(call)
        self._set_timer()
        return True

    def return_probe(self, call: Call) -> None:
        """Note that a call has no place any more. If a probe sent nothing, the next waiting call becomes the probe."""
        if call is self._probe:
            self._probe = None
        self._set_timer()

    def _release_waiting(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            call.resume(call)

    def _set_timer(self, seconds: float = 0.0) -> None:
        """Resume a call when the next probe is due, but not before so many seconds from now."""
        if self.is_open and self._probe is None and self._waiting:
            if self._timer is not None:
                self._timer.cancel()
            seconds = max(seconds, self._next_probe - self._clock.monotonic())
            self._timer = self._clock.later(seconds, self._resume_first)

    def _resume_first(self) -> None:
        """Resume the first waiting call, which becomes the probe unless another call comes before it."""
        self._timer = None
        if not self.is_open or self._probe is not None:
            return
        if self._next_probe > self._clock.monotonic():  # there has been another probe, or Retry-After
            self._set_timer()
            return
        while self._waiting:
            call = self._waiting.popleft()
            if not call.has_ended:
                self._set_timer(PROBE_SECONDS)  # in case its source takes this call back meanwhile
                call.resume(call)
                return

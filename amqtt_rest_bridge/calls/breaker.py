"""BREAKER: whether the target of a route is asked, and when. Pure: the time is handed in, in seconds.

`Circuit` decides for one target, whichever definition of its route a call follows. Closed, it lets every call through
and remembers when the target was down; open, it lets one call through at a time, the *probe*, and its next one
`PROBE_SECONDS` later. A driver asks `passes` before it sends the request of a try, and says with `replied` what came.
"""

from collections import deque
from typing import Final

from amqtt_rest_bridge.calls.retries import retry_after
from amqtt_rest_bridge.errors import CallError, FailureCode
from amqtt_rest_bridge.model import BreakerRule, HttpResponse

PROBE_SECONDS: Final = 5.0
_DOWN: Final = frozenset({FailureCode.CONNECTION_FAILED, FailureCode.TLS_FAILED, FailureCode.TIMEOUT})
_UP: Final = frozenset({FailureCode.REDIRECT_REFUSED, FailureCode.RESPONSE_TOO_LARGE})
_GATEWAY: Final = range(502, 505)


class Circuit:
    """The target of one route: is it down, and when may the next request find out?

    Args:
        rule: So many failures within so many seconds open it.
    """

    def __init__(self, rule: BreakerRule) -> None:
        self._seconds = rule.seconds
        times = "once" if rule.failures == 1 else f"{rule.failures} times"
        self._failed = f"the breaker is open: the target failed {times} within {rule.seconds} s, the last time with"
        self.reason = ""
        """Why it is open, once it was: failures with `target_down` that follow do not tell what the target lacks."""
        self._failures: deque[float] = deque(maxlen=rule.failures)
        self._probe: int | None = None  # the call that is under way
        self._next = 0.0
        self.is_open = False
        self.workers = 1
        """That share the target: each waits so many times as long for its next probe."""

    @property
    def due(self) -> float | None:
        """Return when the next call passes; None while it is closed, or its probe is under way."""
        return self._next if self.is_open and self._probe is None else None

    def passes(self, call: int, now: float) -> bool:
        """Return whether a call may send the request of a try now."""
        if not self.is_open:
            return True
        if self._probe is not None or now < self._next:
            return False
        self._probe, self._next = call, now + self.workers * PROBE_SECONDS
        return True

    def replied(self, call: int, reply: HttpResponse | CallError | None, now: float, unix_time: float) -> None:
        """Note what came of a try that passed; None where it sent nothing. It may open or close the circuit.

        Decision: an open circuit hears its probe only: what was under way when it opened may end in any way. It closes
        with any answer but 502 to 504, also an error: the target is there. Retry-After delays the next probe.
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

"""One route: whether it has room for a message (`Admission`), how its calls went, its health (`RouteStatistics`).

A route is full by what it has counted, so both are here. Pure; the broker's loop alone.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from amqtt_rest_bridge.catalogue import INTERNAL_ERROR
from amqtt_rest_bridge.errors import CallError, FailureCode
from amqtt_rest_bridge.failures import bytes_used_up, no_free_worker, overloaded
from amqtt_rest_bridge.link.frames import CALLER_REFUSED, NOT_SERVED, RECENT, WELL, RouteAnswers
from amqtt_rest_bridge.model import OverloadPolicy, Route, RouteConfig
from amqtt_rest_bridge.times import rfc3339

_RED_STREAK = 3
_LAST = 1000  # calls and requests that p50 and p99 are taken from
# What a failure tells of the connection to the server; any other one, such as a value that is missing, tells nothing.
_DISCONNECTED: Final = frozenset({FailureCode.CONNECTION_FAILED, FailureCode.TLS_FAILED, FailureCode.TIMEOUT})
_ANSWERED: Final = frozenset({FailureCode.HTTP_STATUS, FailureCode.REDIRECT_REFUSED, FailureCode.RESPONSE_TOO_LARGE})


class QueueBytes:
    """The payloads that all routes together have queued and in flight, in bytes, and the setting queue_bytes."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0


class Admission:
    """What a route holds, what it may hold, and whether one more message has room.

    `workers` is how many requests the route can have in flight, over all bridge processes; `queue` counts the payloads
    of all routes.

    Decision: a route that has nothing queued and nothing in flight takes one message, however large it is and however
    full the queues of other routes are. So no route is silenced by another one, and the bounds in bytes can be
    exceeded by one message of each route.
    """

    __slots__ = (
        *("capacity", "deferred", "held_bytes", "most_bytes", "outside", "outstanding", "policy", "timeout"),
        *("waiting", "workers", "_outside_bytes", "_queue"),
    )

    def __init__(self, config: RouteConfig, workers: int, queue: QueueBytes) -> None:
        self.workers = workers
        self._queue = queue
        self.held_bytes = 0  # of payloads, admitted and not ended
        self.outside = 0  # not admitted yet: waiting for room, and a new one goes behind them
        self._outside_bytes = 0
        self.deferred = 0  # on disk from an earlier run, and not read while there is no room; they go first, too
        self.outstanding = 0  # admitted and not ended
        self.waiting = 0  # of those: between two tries, holding no worker
        self.update(config)

    def update(self, config: RouteConfig) -> None:
        """Apply what a reload changed."""
        self.capacity = config.overload_capacity
        self.most_bytes = config.overload_bytes
        self.policy = config.overload_policy
        self.timeout = config.overload_timeout / 1000

    def admit(self, size: int) -> CallError | None:
        """Hold one more message of `size` bytes, or return the reason why not."""
        if self.outside or self.deferred:  # those go first
            return self.full(size)
        if self.policy is OverloadPolicy.REALTIME and self.outstanding - self.waiting >= self.workers:
            return no_free_worker(self.workers)
        if self.outstanding and not (self.outstanding < self.capacity and self._fit(self.held_bytes, size)):
            return self.full(size)
        self.outstanding += 1
        self.held_bytes += size
        self._queue.held += size
        return None

    def full(self, size: int) -> CallError:
        """Return why a message of `size` bytes has no room."""
        if self.outstanding >= self.capacity or self.outside >= self.capacity:
            return overloaded(self.capacity)
        if self.held_bytes + size <= self.most_bytes and self._queue.held + size > self._queue.limit:
            return bytes_used_up("queue_bytes", self._queue.limit, size)
        return bytes_used_up("OVERLOAD_BYTES", self.most_bytes, size)  # also of those that wait, which go first

    def has_room(self, size: int) -> bool:
        """Return whether a message of `size` bytes that waits for room, and counts in `queue`, can be queued."""
        return not self.outstanding or (
            self.outstanding < self.capacity and self._fit(self.held_bytes, size, counted=True)
        )

    def has_bytes(self, size: int) -> bool:
        """Return whether a message of `size` bytes that was admitted by an earlier run can be read from disk."""
        return not self.outstanding or self._fit(self.held_bytes, size)

    def may_wait(self, count: int, size: int) -> bool:
        """Return whether one more message of `size` bytes may wait for room beside `count` others."""
        return count < self.capacity and self._fit(self._outside_bytes, size)

    def _fit(self, held: int, size: int, *, counted: bool = False) -> bool:
        """Return whether `size` bytes fit beside those `held`; `counted`: they are in `queue` already."""
        return held + size <= self.most_bytes and (counted or self._queue.held + size <= self._queue.limit)

    def take(self, size: int) -> None:
        """Hold a message of `size` bytes, whatever room there is."""
        self.outstanding += 1
        self.held_bytes += size
        self._queue.held += size

    def wait_outside(self, change: int, size: int) -> None:
        """Note that a message begins (+1) or ceases (-1) to wait for room."""
        self.outside += change
        self._outside_bytes += change * size
        self._queue.held += change * size

    def release(self, size: int) -> None:
        """Note that the payload of an admitted call is no longer held: the call has ended."""
        self.held_bytes -= size
        self._queue.held -= size

    @property
    def in_flight(self) -> int:
        """Return how many calls a worker is at."""
        return min(self.outstanding - self.waiting, self.workers)

    @property
    def queued(self) -> int:
        """Return how many messages wait: for a worker, for their next try, or for room."""
        return self.outstanding - self.in_flight + self.outside + self.deferred

    @property
    def bytes(self) -> int:
        """Return the bytes of the payloads that wait or are in flight."""
        return self.held_bytes + self._outside_bytes


class RouteStatistics:
    """Counters of one route, and its admission; kept when a reload changes the route."""

    def __init__(self, route: Route, workers: int, now: float, queue: QueueBytes) -> None:
        self.name = route.name
        self.admission = Admission(route.route_config, workers, queue)
        self.total = self.succeeded = self.failed = self.retried = self.refused = self.skipped = 0
        self._failed_tries = 0  # of calls that are tried until they succeed
        self._recent: deque[bool] = deque(maxlen=RECENT)
        self._recent_errors = 0
        self._took: deque[float] = deque(maxlen=_LAST)
        self._waited: deque[float] = deque(maxlen=_LAST)
        self._streak = 0
        self._requests = ""  # the last 20 of server mode: see `RouteAnswers.recent`
        self._failed_requests = 0  # in a row
        self._refused_callers = 0  # of `refused`
        self._refusal = ""  # of the last of them
        self._connection = "idle"
        self._last_success: float | None = None
        self._last_error: tuple[float, str, str] | None = None
        self._down: str | None = None  # why its port is not served
        self._since = now
        self.update(route)

    def update(self, route: Route) -> None:
        """Apply what a reload changed."""
        self._calls_out = route.config.enable_client
        self.admission.update(route.route_config)

    def admit(self, size: int) -> CallError | None:
        """Admit one more message of `size` bytes, or return the reason why not (then `refuse` has to follow)."""
        refusal = self.admission.admit(size)
        self.total += refusal is None
        return refusal

    def refuse(self, code: str, message: str, now: float) -> bool:
        """Note a message that was not admitted; return whether the health changed."""
        self.total += 1
        self.refused += 1
        return self._error(code, message, now)

    def admit_again(self, size: int) -> None:
        """Admit a message of `size` bytes whatever room there is: it was admitted before, or its source bounds them."""
        self.total += 1
        self.admission.take(size)

    def withdraw(self, size: int) -> None:
        """Undo an admission: the message turned out not to be ours."""
        self.total -= 1
        self.admission.outstanding -= 1
        self.admission.release(size)

    def wait(self, change: int, *, for_try: bool = True) -> None:
        """Note that a call begins (+1) or ceases (-1) to wait for its next try, or without `for_try` for its turn."""
        self.admission.waiting += change
        if change > 0 and for_try:
            self.retried += 1

    def success(self, waited: float, took: float, now: float) -> bool:
        """Note an admitted call that ended well; see `CallResult`. Return whether the health changed."""
        self.admission.outstanding -= 1
        self.succeeded += 1
        self._took.append(took)
        self._waited.append(waited)
        self._last_success = now
        self._connection = "connected"
        if not self._recent_errors and not self._streak:  # nearly always; the health stays what it is
            self._recent.append(True)
            return False
        before = self.health
        self._note(well=True)
        return self.health != before

    def skip(self) -> None:
        """Note an admitted call that has ended because WHEN is false; it says nothing about the server."""
        self.admission.outstanding -= 1
        self.skipped += 1

    def served(self, answers: RouteAnswers, now: float) -> bool:
        """Count requests of server mode; return whether the health changed.

        Decision: a caller's mistake (a 4xx) is not a fault of the route: it makes its health Yellow, never Red, is no
        error of its, and leaves `last_error` as it is.
        """
        before = self.health
        self.total += answers.answered + answers.failed + answers.skipped + answers.refused
        self.skipped += answers.skipped
        self.succeeded += answers.answered
        self.failed += answers.failed
        self.refused += answers.refused
        self._refused_callers += answers.refused
        self._refusal = answers.refusal or self._refusal
        self._took.extend(answers.seconds)
        self._requests = (self._requests + answers.recent)[-RECENT:]
        at_the_end = len(answers.recent) - len(answers.recent.rstrip(NOT_SERVED))
        if at_the_end < len(answers.recent):
            self._failed_requests = at_the_end
        else:
            self._failed_requests += answers.failed
        if answers.failed:
            self._last_error = (now, answers.code, answers.message)
        if answers.answered:
            self._last_success = now
            if not self._calls_out:
                self._connection = "connected"
        return self.health != before

    def server_error(self, code: str, message: str, now: float) -> bool:
        """Note an error of server mode that ended no request; return whether the health changed."""
        before = self.health
        self._failed_tries += 1
        self._failed_requests += 1
        self._requests = (self._requests + NOT_SERVED)[-RECENT:]
        self._last_error = (now, code, message)
        return self.health != before

    def failure(self, code: str, message: str, now: float) -> bool:
        """Note an admitted call that failed; return whether the health changed."""
        self.admission.outstanding -= 1
        self.failed += 1
        return self._error(code, message, now)

    def try_failed(self, code: str, message: str, now: float) -> bool:
        """Note a failed try of a call that is retried; return whether the health changed.

        Decision: each failed try of a lossless call is an error of its own. Such a call ends only when it succeeds, so
        a route whose server is down for a week would be Green all the while.
        """
        self._failed_tries += 1
        return self._error(code, message, now)

    def note_down(self, reason: str | None, now: float) -> bool:
        """Note that the port of the route is not served, or (None) that it is; return whether the health changed."""
        before = self.health
        if reason is not None and reason != self._down:
            self._last_error = (now, INTERNAL_ERROR.code, reason)
        self._down = reason
        return self.health != before

    def _error(self, code: str, message: str, now: float) -> bool:
        before = self.health
        self._note(well=False)
        if code in _DISCONNECTED:
            self._connection = "failing"
        elif code in _ANSWERED:
            self._connection = "connected"
        self._last_error = (now, code, message)
        return self.health != before

    def _note(self, *, well: bool) -> None:
        if len(self._recent) == RECENT:  # counted, since each message asks for the health twice
            self._recent_errors -= not self._recent[0]
        self._recent.append(well)
        if well:
            self._streak = 0
        else:
            self._recent_errors, self._streak = self._recent_errors + 1, self._streak + 1

    @property
    def health(self) -> str:
        """Return Green, Yellow (errors or refused callers among the last 20) or Red (3 errors in a row, or no port).

        Calls and requests are looked at each for themselves; the worse counts.
        """
        if self._down is not None or self._streak >= _RED_STREAK or self._failed_requests >= _RED_STREAK:
            return "Red"
        return "Yellow" if self._recent_errors or self._requests.strip(WELL) else "Green"

    @property
    def health_reason(self) -> str | None:
        """Return why the health is not Green: what fails, and callers that are refused apart from it."""
        requests, reasons = self._requests, []
        if self._down is not None:
            reasons.append(self._down)
        if self._recent_errors:
            reasons.append(f"messages failed: {self._recent_errors} of the last {len(self._recent)}")
        if NOT_SERVED in requests:
            reasons.append(f"requests failed: {requests.count(NOT_SERVED)} of the last {len(requests)}")
        if CALLER_REFUSED in requests:
            refused = requests.count(CALLER_REFUSED)
            reasons.append(
                f"callers refused: {refused} of the last {len(requests)} requests, the last one with {self._refusal}"
            )
        return "; ".join(reasons) or None

    def status(self, now: float) -> dict[str, Any]:
        """Return the members of the status payload; times are Unix seconds."""
        errors = self.failed + self.refused - self._refused_callers + self._failed_tries
        error: dict[str, str] | None = None
        if self._last_error is not None:
            failed_at, code, message = self._last_error
            error = {"time": rfc3339(failed_at), "code": code, "message": message}
        return {
            "name": self.name,
            "type": "REST_API",
            "health": self.health,
            "health_reason": self.health_reason,
            "connection": self._connection,
            "errors": {"total": errors, "consecutive": max(self._streak, self._failed_requests)},
            "messages": {
                "total": self.total,
                "succeeded": self.succeeded,
                "failed": self.failed,
                "retried": self.retried,
                "refused": self.refused,
                "skipped": self.skipped,
                "queued": self.admission.queued,
                "in_flight": self.admission.in_flight,
                "held_bytes": self.admission.bytes,
            },
            "last_success": None if self._last_success is None else rfc3339(self._last_success),
            "last_error": error,
            "latency_ms": _quantiles(self._took),
            "wait_ms": _quantiles(self._waited),
            "uptime_s": round(now - self._since, 3),
            "timestamp": rfc3339(now),
        }


def _quantiles(seconds: Iterable[float]) -> dict[str, float | None]:
    """Return the values below which half, and 99 of 100, of the seconds lie, in milliseconds (nearest rank)."""
    ordered = sorted(seconds)
    if not ordered:
        return {"p50": None, "p99": None}
    last = len(ordered) - 1
    at = {"p50": min(last, int(0.5 * len(ordered))), "p99": min(last, int(0.99 * len(ordered)))}
    return {name: round(ordered[place] * 1000, 3) for name, place in at.items()}

"""The state of a route: the messages that it holds and has room for, its counts, its health, its status. Pure.

`engine.call` asks `Admission` for room. `engine.outcome` notes in `RouteStatistics` what ends, and checks after each
change whether the health is another one. Health is judged by the last messages and requests (`_Window`) and by a WHEN
that fails (`Whens`).
"""

from collections import deque
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.catalogue import INTERNAL_ERROR
from amqtt_rest_bridge.errors import CallError, FailureCode
from amqtt_rest_bridge.lot.model import OverloadPolicy, Route, RouteConfig
from amqtt_rest_bridge.sizes import size_text
from amqtt_rest_bridge.times import rfc3339

HEALTH_WINDOW: Final = 20
"""Health looks at so many of the last calls of a route, and of its last requests of server mode."""
WHEN_SECONDS: Final = 60.0
"""A WHEN that failed for all messages of so many seconds makes its route Yellow."""
_FEWEST_UNUSABLE: Final = 5  # with fewer messages in this time it does not
_MOST_RUNS: Final = 20  # ids that are kept of one message that is retried again and again
_RED_STREAK = 3  # failures in a row make a route Red
_MOST_SAMPLES = 1000  # calls and requests that p50 and p99 are taken from
# Failures by which `connection` is failing, or connected. Others, such as that of a missing value, do not change it.
_DISCONNECTED: Final = frozenset(
    {FailureCode.CONNECTION_FAILED, FailureCode.TLS_FAILED, FailureCode.TIMEOUT, FailureCode.TARGET_DOWN}
)
_ANSWERED: Final = frozenset({FailureCode.HTTP_STATUS, FailureCode.REDIRECT_REFUSED, FailureCode.RESPONSE_TOO_LARGE})


class RouteError(NamedTuple):
    """An error of a route, as its status shows it; `time` is Unix time in seconds."""

    time: float
    code: str
    message: str

    def members(self) -> dict[str, str]:
        """Return the members of `last_error` in the status."""
        return self._asdict() | {"time": rfc3339(self.time)}


class _Ended(Struct, frozen=True):
    """How a message or request has ended: it succeeded, failed, or was refused through the fault of its caller."""

    error: RouteError | None = None  # why it failed
    refused: bool = False
    runs: tuple[str, ...] = ()  # ids of its failed runs: a retry names one of them
    is_earlier: bool = False  # it ended before the start

    @property
    def failed(self) -> bool:
        return self.error is not None


_SUCCEEDED: Final = _Ended()
_REFUSED: Final = _Ended(refused=True)


def _failed(error: RouteError, run: str | None = None, *, is_earlier: bool = False) -> _Ended:
    return _Ended(error, runs=() if run is None else (run,), is_earlier=is_earlier)


class _Window:
    """How the last 20 messages, or requests, of a route have ended.

    A retry replaces the failure that it repeats, so each message counts once. `streak` is the number of failures in a
    row.
    """

    def __init__(self) -> None:
        self._last: deque[_Ended] = deque(maxlen=HEALTH_WINDOW)
        self.failed = self.refused = self.streak = 0

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._last)

    @property
    def failures(self) -> str:
        """Return how many have failed: `2 of the last 5 (1 of them before the start)`.

        Without any since the start: `none since the start, before it 5 of the last 5`.
        """
        counts, earlier = f"{self.failed} of the last {len(self)}", sum(one.is_earlier for one in self._last)
        if earlier == len(self):
            return f"none since the start, before it {counts}"
        return f"{counts} ({earlier} of them before the start)" if earlier else counts

    @property
    def errors(self) -> list[RouteError]:
        """Return why messages have failed, except those that a retry has sent with success."""
        return [one.error for one in self._last if one.error is not None]

    def add(self, ended: _Ended, retry_of: str | None = None) -> RouteError | None:
        """Note how a run has ended; `retry_of` is the id of the run that it repeats. Return the error that it replaces.

        Runs from before the start are in no streak: it is unknown whether others succeeded between them.
        """
        self.streak = self.streak + 1 if ended.failed and not ended.is_earlier else 0
        last = self._last
        place = None if retry_of is None else next((at for at, one in enumerate(last) if retry_of in one.runs), None)
        if place is None:
            gone = last[0] if len(last) == HEALTH_WINDOW else _SUCCEEDED
            last.append(ended)
        else:
            gone = last[place]
            last[place] = replace(ended, runs=(*gone.runs, *ended.runs)[-_MOST_RUNS:])
        self.failed += ended.failed - gone.failed
        self.refused += ended.refused - gone.refused
        return None if place is None else gone.error

    def put_away(self, run: str) -> RouteError | None:
        """Count a failure whose message is not to be sent again as a success, and return its error.

        The other failures of a streak are still one: nothing says that the server answers.
        """
        if not any(run in one.runs for one in self._last):
            return None
        streak = self.streak
        error = self.add(_SUCCEEDED, run)
        self.streak = min(streak, self.failed)
        return error


class When(Struct):
    """When the WHEN of an event was evaluated, and when and why it failed; times are monotonic seconds."""

    evaluated: float = float("-inf")  # the last time that it did not fail
    failures: deque[float] = field(default_factory=lambda: deque(maxlen=_FEWEST_UNUSABLE))  # the last times that it did
    fault: str = ""  # why it failed last
    count: int = 0  # failures since it was evaluated
    first: float = 0.0  # the first of them
    logged: float = float("-inf")  # the last time that they were logged

    def fits_none(self) -> bool:
        """Return whether it failed for all messages of the minute before its last failure."""
        return self.count > 0 and self.evaluated < self.failures[-1] - WHEN_SECONDS

    def is_broken(self, now: float) -> bool:
        """Return whether it failed for all messages of the last minute, of which there were at least five."""
        since = now - WHEN_SECONDS
        return self.evaluated < since and len(self.failures) == _FEWEST_UNUSABLE and self.failures[0] >= since


class Whens:
    """The WHEN settings of a route that fail; times are monotonic seconds."""

    def __init__(self) -> None:
        self.broken: dict[str, str] = {}
        """Why a WHEN failed for all messages of the last minute, by event."""
        self.by_event: dict[str, When] = {}
        """When each WHEN was evaluated, by event."""

    def note(self, event: str, fault: str | None, now: float) -> bool:
        """Note that the WHEN of an event was evaluated, or (`fault`) why it failed; return whether to log that now."""
        when = self.by_event.get(event)
        if when is None:
            when = self.by_event[event] = When()
        if fault is None:
            when.evaluated, when.count = now, 0
        else:
            when.first = when.first if when.count else now
            when.count += 1
            when.failures.append(now)
            when.fault = fault
        if fault is not None or self.broken:
            self.check(now)
        is_due = when.fits_none() and now - when.logged >= WHEN_SECONDS
        if is_due:
            when.logged = now
        return is_due

    def check(self, now: float) -> None:
        """Update `broken`."""
        self.broken = {event: when.fault for event, when in self.by_event.items() if when.is_broken(now)}

    def clear(self) -> None:
        """Forget all WHEN settings, since a reload may have changed them."""
        self.broken = {}
        self.by_event.clear()


class QueueBytes:
    """The payloads that all routes together have queued and in flight, in bytes, and the setting queue_bytes."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0


class Admission:
    """The messages that a route holds, and the bounds that decide whether one more has room.

    A route that holds nothing takes one message, however large it is and however full the queues of other routes are.
    So no route can block another one, and each route can exceed the bounds in bytes by one message.

    Args:
        config: The bounds.
        places: Requests that the route may have in flight (the setting `workers`).
        all_routes: Counts the payloads of all routes.
    """

    __slots__ = (
        "_all_routes", "admitted", "awaiting_room", "awaiting_room_bytes", "capacity", "held_bytes", "in_flight",
        "most_bytes", "outstanding", "places", "policy", "timeout",
    )  # fmt: skip

    def __init__(self, config: RouteConfig, places: int, all_routes: QueueBytes) -> None:
        self.places = places
        self._all_routes = all_routes
        self.admitted = 0  # so far
        self.outstanding = 0  # admitted and not ended
        self.in_flight = 0  # those of them that have a place
        self.held_bytes = 0  # payloads of the outstanding messages
        self.awaiting_room = 0  # messages that are not admitted yet; a new one waits behind them
        self.awaiting_room_bytes = 0
        self.update(config)

    def update(self, config: RouteConfig) -> None:
        """Apply what a reload changed."""
        self.capacity = config.overload_capacity
        self.most_bytes = config.overload_bytes
        self.policy = config.overload_policy
        self.timeout = config.overload_timeout / 1000

    def admit(self, size: int) -> CallError | None:
        """Hold one more message of `size` bytes, or return the reason why not."""
        if self.awaiting_room:  # these messages go first
            return self.why_full(size)
        if self.policy is OverloadPolicy.REALTIME and self.in_flight >= self.places:
            busy = f"all {self.places} workers are busy and OVERLOAD_POLICY is realtime"
            return catalogue.NO_FREE_WORKER.error(f"the route is overloaded: {busy}")
        if self.outstanding and not (self.outstanding < self.capacity and self._fits(self.held_bytes, size)):
            return self.why_full(size)
        self.hold(size)
        return None

    def why_full(self, size: int) -> CallError:
        """Return why a message of `size` bytes has no room."""
        if self.outstanding >= self.capacity or self.awaiting_room >= self.capacity:
            used_up = f"its OVERLOAD_CAPACITY of {self.capacity} messages is used up"
            return catalogue.ROUTE_FULL.error(f"the route is overloaded: {used_up}")
        # The bound of the route is named too if only the messages that wait, and go first, leave no room.
        row, whose, bound = catalogue.ROUTE_BYTES_FULL, "route", f"OVERLOAD_BYTES of {size_text(self.most_bytes)}"
        held, limit = self._all_routes.held, self._all_routes.limit
        if self.held_bytes + size <= self.most_bytes and held + size > limit:
            row, whose, bound = catalogue.QUEUE_BYTES_FULL, "bridge", f"queue_bytes of {size_text(limit)}"
        return row.error(f"the {whose} is overloaded: its {bound} have no room for a payload of {size_text(size)}")

    def hold(self, size: int) -> None:
        """Hold a message of `size` bytes, even without room. Its source bounds what it sends, or room was found."""
        self.admitted += 1
        self.outstanding += 1
        self.held_bytes += size
        self._all_routes.held += size

    def release(self, size: int) -> None:
        """Note that an admitted call has ended."""
        self.outstanding -= 1
        self.held_bytes -= size
        self._all_routes.held -= size

    def may_wait(self, size: int) -> bool:
        """Return whether one more message of `size` bytes may wait for room.

        As many messages, and bytes, may wait as the route has room for, so that waiting is bounded too.
        """
        return self.awaiting_room == 0 or (
            self.awaiting_room < self.capacity and self._fits(self.awaiting_room_bytes, size)
        )

    def count_awaiting_room(self, change: int, size: int) -> None:
        """Note that a message begins (`change` 1) or ceases (-1) to wait for room."""
        self.awaiting_room += change
        self.awaiting_room_bytes += change * size
        self._all_routes.held += change * size

    def has_room(self, size: int) -> bool:
        """Return whether a waiting message of `size` bytes, which counts in `all_routes` already, can be admitted."""
        return not self.outstanding or (
            self.outstanding < self.capacity and self._fits(self.held_bytes, size, is_counted=True)
        )

    def _fits(self, held: int, size: int, *, is_counted: bool = False) -> bool:
        """Return whether `size` bytes fit beside those `held`; `is_counted` if they count in `all_routes` already."""
        return held + size <= self.most_bytes and (is_counted or self._all_routes.held + size <= self._all_routes.limit)

    @property
    def queued(self) -> int:
        """Return how many messages wait: for a place, for their next attempt, or for room."""
        return self.outstanding - self.in_flight + self.awaiting_room

    @property
    def bytes(self) -> int:
        """Return the bytes of the payloads that wait or are in flight."""
        return self.held_bytes + self.awaiting_room_bytes


class RouteStatistics:
    """The counts of one route, its health, and its admission. A reload that changes the route keeps them."""

    def __init__(self, route: Route, places: int, now: float, all_routes: QueueBytes) -> None:
        self.name = route.name
        self.admission = Admission(route.route_config, places, all_routes)
        self.succeeded = self.failed = self.retried = self.refused = self.skipped = 0
        self._not_admitted = 0  # refused messages, and requests of server mode; `admission.admitted` has the others
        self._other_errors = 0  # errors that ended no message, such as failed attempts of lossless calls
        self._calls, self._requests = _Window(), _Window()
        self.whens = Whens()
        self._latencies: deque[float] = deque(maxlen=_MOST_SAMPLES)
        self._waits: deque[float] = deque(maxlen=_MOST_SAMPLES)
        self.retrying = 0
        """The number of calls that wait for another attempt after a failed one; see `note_retry`."""
        self._retry_code = ""
        self._refused_callers = 0  # requests that are counted in `refused`
        self._refusal = ""  # the answer to the last refused caller
        self._connection = "idle"
        self.last_success: float | None = None
        """The Unix time at which a message or request last ended well, None before the first."""
        self._last_error: RouteError | None = None
        self._port_fault: str | None = None  # why its port is not served
        self.open_breaker: str | None = None
        """Why its breaker is open, None while it is closed."""
        self.open_streams = 0
        self._reported_health = self.health
        self._since = now
        self.update(route)

    def update(self, route: Route) -> None:
        """Apply what a reload changed."""
        self._route = route
        self.admission.update(route.route_config)
        self.whens.clear()

    def health_changed(self) -> bool:
        """Return whether the health has changed since the last call."""
        before, self._reported_health = self._reported_health, self.health
        return self._reported_health != before

    def note_refusal(self, error: RouteError, run: str | None = None, retry_of: str | None = None) -> None:
        """Note a message that was not admitted."""
        self._not_admitted += 1
        self.refused += 1
        self._note_call_error(error, run, retry_of)

    def note_success(self, waited: float, took: float, now: float, retry_of: str | None = None) -> None:
        """Note a call that succeeded; `waited` and `took` are seconds of waiting and of its requests.

        `retry_of` is the id of the failed run that the call retried; that run counts as a success from now on.
        """
        self.succeeded += 1
        self._latencies.append(took)
        self._waits.append(waited)
        self.last_success = now
        self._connection = "connected"
        self._note_resolved(self._calls.add(_SUCCEEDED, retry_of))

    def note_skip(self) -> None:
        """Note a message, or a request, that WHEN or another setting leaves out; it says nothing about the server."""
        self.skipped += 1

    def note_failure(self, error: RouteError, run: str | None = None, retry_of: str | None = None) -> None:
        """Note a call that failed."""
        self.failed += 1
        self._note_call_error(error, run, retry_of)

    def note_earlier_failure(
        self, error: RouteError, run: str | None, retry_of: str | None, *, is_request: bool
    ) -> None:
        """Note a failure from before the start. It makes the health Yellow, but is not in the counts."""
        window = self._requests if is_request else self._calls
        window.add(_failed(error, run, is_earlier=True), retry_of)
        self._last_error = error

    def put_away(self, run: str) -> None:
        """Stop counting a failure for the health: its message is not to be sent again."""
        for window in (self._calls, self._requests):
            self._note_resolved(window.put_away(run))

    def note_retry(self, code: str) -> None:
        """Note the failure code of an attempt that another one follows. It counts in `retried` when that one begins.

        The route is Yellow while a call waits for another attempt, which may take minutes. Once a later attempt
        succeeds, the failed ones no longer affect the health.
        """
        self._retry_code = code
        self._note_connection(code)

    def note_error(self, error: RouteError, run: str | None = None) -> None:
        """Note an error that ended no message, such as a failed attempt of a lossless call.

        A lossless call ends only when it succeeds. If its failed attempts were no errors, its route would stay Green
        while the server is down.
        """
        self._other_errors += 1
        self._note_call_error(error, run)

    def note_served_request(self, seconds: float, now: float, retry_of: str | None = None) -> None:
        """Count a request of server mode that was answered well."""
        self._not_admitted += 1
        self.succeeded += 1
        self._latencies.append(seconds)
        self.last_success = now
        if not self._route.config.enable_client:
            self._connection = "connected"
        self._note_resolved(self._requests.add(_SUCCEEDED, retry_of))

    def note_skipped_request(self) -> None:
        """Count a request for which WHEN is false, or whose DEDUPE_KEY was seen."""
        self._not_admitted += 1
        self.skipped += 1
        self._requests.add(_SUCCEEDED)

    def note_refused_caller(self, refusal: str) -> None:
        """Count a request that is its caller's fault; `refusal` is its answer, such as `401 unauthorized`.

        The route is not at fault: this makes the health Yellow, never Red, counts as no error, and does not change
        `last_error`.
        """
        self._not_admitted += 1
        self.refused += 1
        self._refused_callers += 1
        self._refusal = refusal
        self._requests.add(_REFUSED)

    def note_failed_request(self, error: RouteError, run: str | None = None, retry_of: str | None = None) -> None:
        """Count a request that the route could not serve."""
        self._not_admitted += 1
        self.failed += 1
        self._last_error = error
        self._requests.add(_failed(error, run), retry_of)

    def note_server_error(self, error: RouteError) -> None:
        """Note an error of server mode that ended no request."""
        self._other_errors += 1
        self._last_error = error
        self._requests.add(_failed(error))

    def note_port_fault(self, reason: str | None, now: float) -> None:
        """Note that the port of the route is not served, or (None) that it is."""
        if reason is not None and reason != self._port_fault:
            self._last_error = RouteError(now, INTERNAL_ERROR.code, reason)
        self._port_fault = reason

    @property
    def breaker(self) -> str | None:
        """Return `open` or `closed`, None for a route without BREAKER."""
        if self._route.route_config.breaker is None:
            return None
        return "closed" if self.open_breaker is None else "open"

    @property
    def readers(self) -> int | None:
        """Return how many streams of the route are open, None for a route without STREAM."""
        has_stream = self._route.config.enable_server and any(event.stream for event in self._route.server_events)
        return self.open_streams if has_stream else None

    def _note_call_error(self, error: RouteError, run: str | None = None, retry_of: str | None = None) -> None:
        self._calls.add(_failed(error, run), retry_of)
        self._note_connection(error.code)
        self._last_error = error

    def _note_resolved(self, error: RouteError | None) -> None:
        """Choose another `last_error` if a retry has just succeeded for it: the newest error that still counts.

        `error` is the error that the retry has replaced, None if there is none.
        """
        if error is not None and error is self._last_error:
            self._last_error = max((*self._calls.errors, *self._requests.errors), default=error)

    def _note_connection(self, code: str) -> None:
        if code in _DISCONNECTED:
            self._connection = "failing"
        elif code in _ANSWERED:
            self._connection = "connected"

    @property
    def health(self) -> str:
        """Return Green, Yellow (errors or refused callers among the last 20) or Red (3 in a row, breaker, port).

        Calls and requests are judged separately, and the worse result counts. A call that waits for another attempt and
        a WHEN that fails make it Yellow, too.
        """
        calls, requests = self._calls, self._requests
        is_down = self._port_fault is not None or self.open_breaker is not None
        if is_down or calls.streak >= _RED_STREAK or requests.streak >= _RED_STREAK:
            return "Red"
        is_impaired = calls.failed or self.retrying or requests.failed or requests.refused or self.whens.broken
        return "Yellow" if is_impaired else "Green"

    @property
    def health_reason(self) -> str | None:
        """Return why the health is not Green, as sentences joined by `; `; None if it is Green."""
        calls, requests = self._calls, self._requests
        reasons = [why for why in (self._port_fault, self.open_breaker) if why is not None]
        if calls.failed:
            what = "tries failed" if self._route.is_lossless else "messages failed"
            reasons.append(f"{what}: {calls.failures}")
        if self.retrying:
            reasons.append(f"messages tried again: {self.retrying}, the last failed try with {self._retry_code}")
        reasons += [
            f"event {event}, each message of the last minute was skipped: {fault}"
            for event, fault in self.whens.broken.items()
        ]
        if requests.failed:
            reasons.append(f"requests failed: {requests.failures}")
        if refused := requests.refused:
            last = f"the last one with {self._refusal}"
            reasons.append(f"callers refused: {refused} of the last {len(requests)} requests, {last}")
        return "; ".join(reasons) or None

    def status(self, now: float) -> dict[str, Any]:
        """Return the members of the status payload; times are Unix seconds."""
        errors = self.failed + self.refused - self._refused_callers + self._other_errors
        return {
            "name": self.name,
            "type": "REST_API",
            "health": self.health,
            "health_reason": self.health_reason,
            "connection": self._connection,
            "breaker": self.breaker,
            "readers": self.readers,
            "errors": {"total": errors, "consecutive": max(self._calls.streak, self._requests.streak)},
            "messages": {
                "total": self.admission.admitted + self._not_admitted,
                "succeeded": self.succeeded,
                "failed": self.failed,
                "retried": self.retried,
                "retrying": self.retrying,
                "refused": self.refused,
                "skipped": self.skipped,
                "queued": self.admission.queued,
                "in_flight": self.admission.in_flight,
                "held_bytes": self.admission.bytes,
            },
            "last_success": None if self.last_success is None else rfc3339(self.last_success),
            "last_error": None if self._last_error is None else self._last_error.members(),
            "latency_ms": _quantiles(self._latencies),
            "wait_ms": _quantiles(self._waits),
            "uptime_s": round(now - self._since, 3),
            "timestamp": rfc3339(now),
        }


def _quantiles(seconds: Iterable[float]) -> dict[str, float | None]:
    """Return the median and the 99th percentile of durations in seconds, as milliseconds (nearest rank)."""
    ordered = sorted(seconds)
    if not ordered:
        return {"p50": None, "p99": None}
    last = len(ordered) - 1
    at = {"p50": min(last, int(0.5 * len(ordered))), "p99": min(last, int(0.99 * len(ordered)))}
    return {name: round(ordered[place] * 1000, 3) for name, place in at.items()}

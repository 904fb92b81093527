"""RETRIES, RETRY_ON, Retry-After: whether a request that failed is sent again, and when.

Only `RetriesStage` decides this. A call that waits for its next attempt holds no place of its route.
"""

from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

from msgspec.structs import replace

from amqtt_rest_bridge.engine.event import Call, Stage, Verdict
from amqtt_rest_bridge.engine.needs import Host, Outcome
from amqtt_rest_bridge.errors import CallError, FailureCode
from amqtt_rest_bridge.lot.model import IDEMPOTENT, ClientEvent, HttpResponse, Method, Route, values_of
from amqtt_rest_bridge.times import Backoff

_BACKOFF: Final = Backoff(first=0.5)
# A server that asks for more than an hour is asked again after an hour.
LONGEST_RETRY_AFTER: Final = 3600.0  # seconds

_CONNECTION_CODES: Final = frozenset({FailureCode.CONNECTION_FAILED, FailureCode.TIMEOUT})
_BEFORE_SENDING: Final = frozenset({FailureCode.TLS_FAILED, FailureCode.OAUTH2_FAILED})
_ALWAYS: Final = frozenset({429, 503})
_WHEN_IDEMPOTENT: Final = frozenset({502, 504})


class RetriesStage(Stage):
    """Try again, RETRIES times, or for a lossless route (OVERLOAD_POLICY) until an attempt succeeds.

    Args:
        route: The route of the event.
        event: Its RETRY_ON and METHOD count.
        host: Has the time, and chance.
    """

    def __init__(self, route: Route, event: ClientEvent, host: Host) -> None:
        self._retries = route.config.retries
        self._lossless = route.is_lossless
        self._event = event
        self._host = host

    def retry(self, call: Call, verdict: Verdict) -> Verdict:
        """Return `RETRYING` with the seconds to wait if a call is retried, else the given verdict.

        A call is not retried if that cannot help, is not safe, or RETRIES is reached. The hint of the failure says if
        it is not safe.
        """
        failure, response = verdict.failure, verdict.response
        if failure is None or (not self._lossless and call.attempts.count > self._retries):
            return verdict
        listed = response is not None and response.status in self._event.retry_on
        outcome = failure if response is None else response
        if not listed and not is_retryable(self._event.method, outcome, lossless=self._lossless):
            if not is_retryable(Method.PUT, outcome, lossless=False):
                return verdict
            hint = f"{failure.hint} A {self._event.method} that the server may have got is not tried again by itself."
            return replace(verdict, failure=CallError(failure.code, failure.message, hint))
        seconds = delay(call.attempts.count, response, now=self._host.clock.time(), chance=self._host.chance())
        return replace(verdict, outcome=Outcome.RETRYING, seconds=seconds)


def is_retryable(method: Method, outcome: CallError | HttpResponse, *, lossless: bool) -> bool:
    """Return whether a retry may help and is safe. The number of retries does not count here.

    `outcome` is what `send` raised, or the response that `failure_of` calls a failure. A lossless call
    (OVERLOAD_POLICY) is also retried when the server may have processed it, or when only TLS prevents it.
    """
    if isinstance(outcome, HttpResponse):
        if lossless and outcome.status >= 500:
            return True
        return outcome.status in _ALWAYS or (method in IDEMPOTENT and outcome.status in _WHEN_IDEMPOTENT)
    if outcome.code in _CONNECTION_CODES:
        return outcome.unsent or lossless or method in IDEMPOTENT
    # A refused certificate (not `unsent`) is refused again in a few seconds: only lossless calls wait until it has been
    # replaced. A handshake that was cut off is a connection that was never established. Credentials that the server of
    # OAUTH2_TOKEN_URL refuses are like a refused certificate.
    return outcome.code in _BEFORE_SENDING and (outcome.unsent or lossless)


def delay(attempt: int, response: HttpResponse | None, *, now: float, chance: float) -> float:
    """Return the seconds to wait after so many attempts: the backoff, or Retry-After if that is longer."""
    asked = None if response is None else retry_after(response, now)
    return max(backoff(attempt, chance), asked or 0.0)


def backoff(attempt: int, chance: float) -> float:
    """Return the seconds to wait after so many attempts: 0.5, 1, 2, ... with jitter, 30 at most.

    The jitter is up to a quarter of the delay, by `chance`, a number from 0 to 1.
    """
    return min(_BACKOFF.longest, _BACKOFF.delay(attempt) * (1 + chance / 4))


def retry_after(response: HttpResponse, now: float) -> float | None:
    """Return the seconds that a Retry-After field asks for (RFC 9110 section 10.2.3), None without a usable one.

    `now` is Unix time in seconds; a date in the past asks for 0.
    """
    text = next(iter(values_of(response.headers, "retry-after")), "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), LONGEST_RETRY_AFTER)
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):  # a year or zone of twenty digits
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)  # RFC 9110 section 5.6.7: dates of HTTP are in UTC
    return min(max(date.timestamp() - now, 0.0), LONGEST_RETRY_AFTER)

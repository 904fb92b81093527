"""Which calls are tried again, and when (decisions section 5, "Retries"). Pure: time and randomness are parameters."""

from collections.abc import Callable
from datetime import UTC
from email.utils import parsedate_to_datetime

from amqtt_rest_bridge.bridge.client.results import header
from amqtt_rest_bridge.errors import CallError, FailureCode
from amqtt_rest_bridge.model import HttpResponse, Method

FIRST_DELAY = 0.5  # seconds
LONGEST_DELAY = 30.0  # seconds
# Decision: a server that asks for more than an hour is asked again after an hour.
LONGEST_RETRY_AFTER = 3600.0  # seconds

_IDEMPOTENT = frozenset({Method.GET, Method.PUT, Method.DELETE})  # RFC 9110 section 9.2.2
_CONNECTION_CODES = frozenset({FailureCode.CONNECTION_FAILED, FailureCode.TIMEOUT})
_ALWAYS = frozenset({429, 503})
_WHEN_IDEMPOTENT = frozenset({502, 504})


def is_retryable(method: Method, outcome: CallError | HttpResponse, *, lossless: bool) -> bool:
    """Tell whether a call is worth, and safe, trying again; how often is not decided here.

    `outcome` is what `send` raised, or the response that `failure_of` calls a failure. A lossless call
    (OVERLOAD_POLICY) is also tried again when the server may have processed it, or when only TLS stands in its way.
    """
    if isinstance(outcome, HttpResponse):
        if lossless and outcome.status >= 500:
            return True
        return outcome.status in _ALWAYS or (method in _IDEMPOTENT and outcome.status in _WHEN_IDEMPOTENT)
    if outcome.code in _CONNECTION_CODES:
        return outcome.unsent or lossless or method in _IDEMPOTENT
    # Decision: a certificate that is refused (not `unsent`) is refused in a few seconds too: only lossless calls wait
    # until someone has replaced it. A handshake that was cut off is a connection that was never established.
    return outcome.code is FailureCode.TLS_FAILED and (outcome.unsent or lossless)


def backoff(attempt: int, random: Callable[[], float]) -> float:
    """Give the seconds before the next try after `attempt` tries: 0.5, 1, 2, ... with jitter, 30 at most.

    `random` gives a number from 0 to 1; the jitter is up to a quarter of the delay.
    """
    base = FIRST_DELAY * 2.0 ** min(attempt - 1, 16)
    return min(LONGEST_DELAY, base * (1 + random() / 4))


def retry_after(response: HttpResponse, now: float) -> float | None:
    """Give the seconds that a Retry-After field asks for (RFC 9110 section 10.2.3), None without a usable one.

    `now` is Unix time in seconds; a date in the past asks for 0.
    """
    text = (header(response, "retry-after") or "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), LONGEST_RETRY_AFTER)
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):  # a year or zone of twenty digits
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)  # RFC 9110 section 5.6.7: dates of HTTP are in UTC
    return min(max(date.timestamp() - now, 0.0), LONGEST_RETRY_AFTER)


def delay(attempt: int, response: HttpResponse | None, *, now: float, random: Callable[[], float]) -> float:
    """Give the seconds before the next try: the backoff, but never less than the server asks for."""
    asked = None if response is None else retry_after(response, now)
    return max(backoff(attempt, random), asked or 0.0)

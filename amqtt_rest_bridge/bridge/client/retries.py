"""Retries: whether a failed call is sent again, and when. `RetryPolicy` decides; nothing else does.

Pure: time and randomness are parameters; the route's workers run it. `RetryLog` alone has a lock and writes to the log.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

from amqtt_rest_bridge.bridge.client.results import header
from amqtt_rest_bridge.errors import CallError, FailureCode
from amqtt_rest_bridge.model import ClientEvent, HttpResponse, Method, OverloadPolicy, Route

log = logging.getLogger(__name__)

FIRST_DELAY: Final = 0.5  # seconds
LONGEST_DELAY: Final = 30.0  # seconds
# Decision: a server that asks for more than an hour is asked again after an hour.
LONGEST_RETRY_AFTER: Final = 3600.0  # seconds

_IDEMPOTENT: Final = frozenset({Method.GET, Method.PUT, Method.DELETE})  # RFC 9110 section 9.2.2
_CONNECTION_CODES: Final = frozenset({FailureCode.CONNECTION_FAILED, FailureCode.TIMEOUT})
_BEFORE_SENDING: Final = frozenset({FailureCode.TLS_FAILED, FailureCode.OAUTH2_FAILED})
_ALWAYS: Final = frozenset({429, 503})
_WHEN_IDEMPOTENT: Final = frozenset({502, 504})
_LOG_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When the calls of a route are retried: `retries` times (RETRIES), or with `lossless` until they succeed."""

    retries: int
    lossless: bool

    def applies(self, event: ClientEvent, tries: int, failure: CallError, response: HttpResponse | None) -> bool:
        """Return whether a call that was tried `tries` times and ended with `failure` is tried again."""
        if not self.lossless and tries > self.retries:
            return False
        if response is not None and response.status in event.retry_on:
            return True
        outcome = failure if response is None else response
        return is_retryable(event.method, outcome, lossless=self.lossless)


def policy_of(route: Route) -> RetryPolicy:
    """Return the policy that RETRIES and OVERLOAD_POLICY of a route describe."""
    return RetryPolicy(route.config.retries, route.route_config.overload_policy is OverloadPolicy.LOSSLESS)


def is_retryable(method: Method, outcome: CallError | HttpResponse, *, lossless: bool) -> bool:
    """Return whether a retry may help and is safe; how many there are is not decided here.

    `outcome` is what `send` raised, or the response that `failure_of` calls a failure. A lossless call
    (OVERLOAD_POLICY) is also retried when the server may have processed it, or when only TLS prevents it.
    """
    if isinstance(outcome, HttpResponse):
        if lossless and outcome.status >= 500:
            return True
        return outcome.status in _ALWAYS or (method in _IDEMPOTENT and outcome.status in _WHEN_IDEMPOTENT)
    if outcome.code in _CONNECTION_CODES:
        return outcome.unsent or lossless or method in _IDEMPOTENT
    # Decision: a certificate that is refused (not `unsent`) is refused in a few seconds too: only lossless calls wait
    # until it has been replaced. A handshake that was cut off is a connection that was never established.
    # The same holds for credentials that the server of OAUTH2_TOKEN_URL refuses.
    return outcome.code in _BEFORE_SENDING and (outcome.unsent or lossless)


def delay(attempt: int, response: HttpResponse | None, *, now: float, random: Callable[[], float]) -> float:
    """Return the seconds before the next try after `attempt` tries: the backoff, at least what Retry-After requests."""
    asked = None if response is None else retry_after(response, now)
    return max(backoff(attempt, random), asked or 0.0)


def backoff(attempt: int, random: Callable[[], float]) -> float:
    """Return the seconds before the next try after `attempt` tries: 0.5, 1, 2, ... with jitter, 30 at most.

    `random` returns a number from 0 to 1; the jitter is up to a quarter of the delay.
    """
    base = FIRST_DELAY * 2.0 ** min(attempt - 1, 16)
    return min(LONGEST_DELAY, base * (1 + random() / 4))


def retry_after(response: HttpResponse, now: float) -> float | None:
    """Return the seconds that a Retry-After field asks for (RFC 9110 section 10.2.3), None without a usable one.

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


class RetryLog:
    """Log retries of a route, one line a second at most: a queue before a server that is down would fill any disk."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unlogged = 0
        self._logged = -_LOG_SECONDS

    def write(self, call: str, failure: CallError, topic: str, seconds: float) -> None:
        """Log that `call` (route and event) is retried in `seconds`, unless a line was written a moment ago."""
        with self._lock:
            self._unlogged += 1
            now = time.monotonic()
            if now - self._logged < _LOG_SECONDS:
                return
            count, self._unlogged, self._logged = self._unlogged, 0, now
        more = f" (last of {count} failed tries)" if count > 1 else ""
        log.info("%s: %s on %s, retry in %.1f s%s: %s", call, failure.code, topic, seconds, more, failure.message)

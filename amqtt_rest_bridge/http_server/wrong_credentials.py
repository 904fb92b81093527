"""Wrong credentials: counted by address, and once there are many from one address, answered a second late. Any thread.

One table for all ports of a bridge process: routes' passwords, tokens and signatures, and the token of the admin port.
A right credential never comes here, so it is never delayed, whatever else comes from its address: behind a proxy all
callers have one. So this slows down what tries words of a list; against who opens a connection for each guess and does
not wait for its answer, only a long secret helps.

Decision: an IPv6 address counts as its /64, which is what one machine gets (RFC 4291 section 2.5.4). Beyond
`MOST_ADDRESSES` in a minute all further addresses count as one, so no number of them makes the table forget another.
"""

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Final

from amqtt_rest_bridge.http.exchange import overloaded
from amqtt_rest_bridge.http_server import Pending, Refusal, Response
from amqtt_rest_bridge.times import LineLimit

log = logging.getLogger(__name__)

FREE_GUESSES: Final = 10
"""Wrong credentials of an address within `MINUTE_SECONDS` that are answered at once."""
MINUTE_SECONDS: Final = 60.0
DELAY_SECONDS: Final = 1.0
MOST_LATE: Final = 64
"""Answers that wait at a time; one more is 503 at once."""
MOST_ADDRESSES: Final = 4096
_LOG_SECONDS: Final = 60.0
_OTHERS: Final = "other addresses"

Answer = Callable[[Refusal | None], Response]
"""Make the answer to a wrong credential, or with a refusal that one instead."""


class WrongCredentials:
    """Answer wrong credentials; `monotonic` returns seconds."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._times: OrderedDict[str, deque[float]] = OrderedDict()  # the address of the last guess at the end
        self._waiting = 0
        self._left = 0  # of callers that have closed their side of the connection
        self._limit = LineLimit(_LOG_SECONDS, monotonic)

    def refuse(self, address: str, port: int, answer: Answer) -> Response | Pending:
        """Count a wrong credential that came to a port, and return its answer."""
        now = self._monotonic()
        with self._lock:
            is_late = self._count(_network(address), now)
            has_place = is_late and self._waiting < MOST_LATE
            self._waiting += has_place
        if not is_late:
            return answer(None)
        count = self._limit.count()
        if count:
            text = "port %d: more than %d wrong credentials from %s within a minute; further ones are answered late%s"
            log.warning(text, port, FREE_GUESSES, address, f" (the last of {count})" if count > 1 else "")
        return _LateAnswer(self, answer, self._monotonic, now) if has_place else answer(_too_many())

    def _count(self, address: str, now: float) -> bool:
        """Count a guess; return whether its address had made enough of them before."""
        while self._times and now - next(iter(self._times.values()))[-1] >= MINUTE_SECONDS:
            self._times.popitem(last=False)
        if address not in self._times and len(self._times) >= MOST_ADDRESSES:
            address = _OTHERS
        times = self._times.setdefault(address, deque(maxlen=FREE_GUESSES))
        is_late = len(times) == FREE_GUESSES and now - times[0] < MINUTE_SECONDS
        times.append(now)
        self._times.move_to_end(address)
        return is_late

    def leave(self) -> bool:
        """Free the place of a caller that has closed its side; return whether its answer may wait on without one."""
        with self._lock:
            self._waiting -= 1
            stays = self._left < MOST_LATE
            self._left += stays
            return stays

    def end(self, *, has_left: bool) -> None:
        """Note that an answer waits no longer."""
        with self._lock:
            if has_left:
                self._left -= 1
            else:
                self._waiting -= 1


class _LateAnswer:
    """An answer that is given after `DELAY_SECONDS`; see `http_server.Pending`.

    A caller may have closed only its side of the connection, to be answered at once. So its place is free from then on,
    and its answer comes no sooner; there may be as many of those again.
    """

    def __init__(
        self, wrong_credentials: WrongCredentials, answer: Answer, monotonic: Callable[[], float], now: float
    ) -> None:
        self._wrong_credentials = wrong_credentials
        self._answer = answer
        self._monotonic = monotonic
        self._due = now + DELAY_SECONDS
        self._has_left = False
        self._has_ended = False

    def resume(self) -> Response | float:
        if self._has_ended:
            return self._answer(_too_many())
        remaining = self._due - self._monotonic()
        if remaining > 0:
            return remaining
        self.cancel()
        return self._answer(None)

    def refuse(self, refusal: Refusal) -> Response:
        self.cancel()
        return self._answer(refusal)

    def caller_left(self) -> None:
        if self._wrong_credentials.leave():
            self._has_left = True
        else:
            self._has_ended = True

    def cancel(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._wrong_credentials.end(has_left=self._has_left)


def _network(address: str) -> str:
    """Return what an address counts as."""
    try:
        parsed = ip_address(address.partition("%")[0])  # without the interface of a link-local one
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    return str(parsed.ipv4_mapped or IPv6Network((int(parsed) >> 64 << 64, 64)))


def _too_many() -> Refusal:
    return overloaded("Too many wrong credentials wait for their answers; this request was not published")

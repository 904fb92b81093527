"""Wrong credentials: counted by address, and once there are many from one address, answered a second late.

One table for all ports of a bridge: routes' passwords, tokens and signatures, and the token of the admin port. A right
credential never comes here, so it is never delayed, whatever else comes from its address: behind a proxy all callers
have one. So this slows down what tries words of a list; against who opens a connection for each guess and does not wait
for its answer, only a long secret helps.

Decision: an IPv6 address counts as its /64, which is what one machine gets (RFC 4291 section 2.5.4). Beyond
`MOST_ADDRESSES` in a minute all further addresses count as one, so no number of them makes the table forget another.
"""

import logging
from collections import OrderedDict, deque
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Final

from amqtt_rest_bridge.engine.needs import Clock
from amqtt_rest_bridge.http.exchange import Caller, Refusal, overloaded
from amqtt_rest_bridge.times import LineLimit

log = logging.getLogger(__name__)

FREE_GUESSES: Final = 10
"""Wrong credentials of an address within `MINUTE_SECONDS` that are answered at once."""
MINUTE_SECONDS: Final = 60.0
DELAY_SECONDS: Final = 1.0
MOST_LATE: Final = 64
"""Answers that wait at a time, and as many again whose callers have closed their side; one more is 503 at once."""
MOST_ADDRESSES: Final = 4096
_LOG_SECONDS: Final = 60.0
_OTHERS: Final = "other addresses"


class WrongCredentials:
    """Count them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._times: OrderedDict[str, deque[float]] = OrderedDict()  # the address of the last guess at the end
        self._late: list[Caller] = []
        self._limit = LineLimit(_LOG_SECONDS, clock.monotonic)

    async def delay(self, address: str, port: int, caller: Caller) -> Refusal | None:
        """Count a wrong credential that came to a port, and wait where many came from its address.

        Returns what it is answered instead where too many wait.
        """
        if not self._count(_network(address), self._clock.monotonic()):
            return None
        if count := self._limit.count():
            text = "port %d: more than %d wrong credentials from %s within a minute; further ones are answered late%s"
            log.warning(text, port, FREE_GUESSES, address, f" (the last of {count})" if count > 1 else "")
        # A caller may have closed only its side of the connection, to be answered at once: it waits all the same.
        present = sum(not each.has_left for each in self._late)
        if present >= MOST_LATE or len(self._late) >= 2 * MOST_LATE:
            return overloaded("Too many wrong credentials wait for their answers; this request was not published")
        self._late.append(caller)
        try:
            await self._clock.sleep(DELAY_SECONDS)
        finally:
            self._late.remove(caller)
        return None

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


def _network(address: str) -> str:
    """Return what an address counts as."""
    try:
        parsed = ip_address(address.partition("%")[0])  # without the interface of a link-local one
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    return str(parsed.ipv4_mapped or IPv6Network((int(parsed) >> 64 << 64, 64)))

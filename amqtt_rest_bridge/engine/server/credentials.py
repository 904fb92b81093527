"""Passwords and tokens: which callers an endpoint admits. After many wrong credentials, further answers are delayed."""

import base64
import binascii
import hashlib
import hmac
import logging
from collections import OrderedDict, deque
from collections.abc import Mapping
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Final

from amqtt_rest_bridge.catalogue import UNAUTHORIZED
from amqtt_rest_bridge.engine.needs import Clock
from amqtt_rest_bridge.http.exchange import Caller, Refusal, RequestRefusedError, overloaded, refuse
from amqtt_rest_bridge.lot.model import RestApiConfig
from amqtt_rest_bridge.times import LineLimit

log = logging.getLogger(__name__)

FREE_GUESSES: Final = 10
"""Wrong credentials of an address within `MINUTE_SECONDS` that are answered at once."""
MINUTE_SECONDS: Final = 60.0
DELAY_SECONDS: Final = 1.0
MOST_LATE: Final = 64
"""Answers that are delayed at a time; beyond it the answer is 503 at once.

As many again may wait for callers that have closed their side of the connection.
"""
MOST_ADDRESSES: Final = 4096
_LOG_SECONDS: Final = 60.0
_OTHERS: Final = "other addresses"


class WrongCredentialError(RequestRefusedError):
    """The password, token or signature of a request is wrong. A request without any is refused without delay."""


class Credentials:
    """What a route asks of its callers: a name and password, or a token. If it asks for both, either admits.

    SERVER_USERNAME and SERVER_PASSWORD, or in a route without client mode USERNAME and PASSWORD, as Basic credentials
    (RFC 7617); SERVER_TOKEN as Bearer (RFC 6750) or in SERVER_TOKEN_HEADER. If only one of a pair is set, the other one
    counts as empty, so that half a setting never opens a route.
    """

    def __init__(self, route: str, config: RestApiConfig) -> None:
        self._passwords: list[bytes] = []  # hashes, as of the tokens
        self._tokens = [_hashed(token.encode()) for token in config.server_token]
        self._token_header = config.server_token_header.lower() if config.server_token_header and self._tokens else ""
        challenges, what, hints = [], [], []
        username, password = config.server_username, config.server_password
        if username is None and password is None and not config.enable_client:
            username, password = config.username, config.password
        if username is not None or password is not None:
            self._passwords.append(_hashed(f"{username or ''}:{password or ''}".encode()))
            challenges.append(("WWW-Authenticate", f'Basic realm="{route}", charset="UTF-8"'))
            what.append("name or password")
            hints.append("the route's name and password as Basic credentials in the Authorization header")
        if self._tokens:
            challenges.append(("WWW-Authenticate", f'Bearer realm="{route}"'))
            what.append("token")
            header = f", or in the header {config.server_token_header}" if config.server_token_header else ""
            hints.append(f"the route's token as Bearer in the Authorization header{header}")
        self._refusal = refuse(
            UNAUTHORIZED, f"The caller's {' or '.join(what)} is missing or wrong", tuple(challenges),
            hint=f"Send {', or '.join(hints)}",
        )  # fmt: skip

    def check(self, headers: Mapping[str, str]) -> None:
        """Raise `RequestRefusedError` (401) unless the caller sent what the route asks for.

        It is a `WrongCredentialError` if a header that may hold a credential came. All hashes are compared, and they
        have the same length, so that the time of the answer does not help to guess.
        """
        authorization, token_header = headers.get("authorization", ""), headers.get(self._token_header, "")
        scheme, _, credential = authorization.partition(" ")
        scheme, credential = scheme.lower(), credential.strip()
        password = _hashed(from_base64(credential) if scheme == "basic" else b"")
        tokens = _hashed(credential.encode() if scheme == "bearer" else b""), _hashed(token_header.encode())
        found = [hmac.compare_digest(password, expected) for expected in self._passwords]
        found += [hmac.compare_digest(token, expected) for token in tokens for expected in self._tokens]
        if not any(found):
            raise (WrongCredentialError if authorization or token_header else RequestRefusedError)(self._refusal)


def credentials_for(route: str, config: RestApiConfig) -> Credentials | None:
    """Return what a route asks of its callers, None if it asks for nothing."""
    own = config.server_username, config.server_password
    shared = () if config.enable_client else (config.username, config.password)
    asks = any(one is not None for one in (*own, *shared)) or config.server_token
    return Credentials(route, config) if asks else None


def _hashed(sent: bytes) -> bytes:
    return hashlib.sha256(sent).digest()


def from_base64(text: str) -> bytes:
    """Return the bytes that a text in base64 means, none if it is not base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


class WrongCredentials:
    """Counts wrong credentials by address, and delays answers to an address that has sent many.

    One table counts for all ports of a bridge: passwords, tokens and signatures of routes, and the token of the admin
    port. A right credential is never delayed, whatever else its address sends: behind a proxy all callers have one
    address. The delay slows down a caller that tries the words of a list. Only a long secret helps against one that
    opens a connection for each guess and does not wait for the answer.

    An IPv6 address counts as its /64, which is what one machine gets (RFC 4291 section 2.5.4). Beyond `MOST_ADDRESSES`
    in a minute all further addresses count as one, so that a flood of addresses does not push out the others.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._times: OrderedDict[str, deque[float]] = OrderedDict()  # the address of the last guess at the end
        self._late: list[Caller] = []
        self._limit = LineLimit(_LOG_SECONDS, clock.monotonic)

    async def delay(self, address: str, port: int, caller: Caller) -> Refusal | None:
        """Count a wrong credential that came to a port; return at once, or a second later after many from its address.

        Returns None, or the answer in place of the refusal if too many answers are delayed already.
        """
        if not self._count(_network(address)):
            return None
        if count := self._limit.count():
            text = "port %d: more than %d wrong credentials from %s within a minute; further ones are answered late%s"
            log.warning(text, port, FREE_GUESSES, address, f" (and {count - 1} more like it)" if count > 1 else "")
        # A caller that has closed its side of the connection waits too: it may only have done so to skip the delay.
        present = sum(not each.has_left for each in self._late)
        if present >= MOST_LATE or len(self._late) >= 2 * MOST_LATE:
            return overloaded("Too many wrong credentials wait for their answers; this request was not published")
        self._late.append(caller)
        try:
            await self._clock.sleep(DELAY_SECONDS)
        finally:
            self._late.remove(caller)
        return None

    def _count(self, network: str) -> bool:
        """Count a wrong credential of what an address counts as; return whether it has used up its `FREE_GUESSES`."""
        now = self._clock.monotonic()
        while self._times and now - next(iter(self._times.values()))[-1] >= MINUTE_SECONDS:
            self._times.popitem(last=False)
        if network not in self._times and len(self._times) >= MOST_ADDRESSES:
            network = _OTHERS
        times = self._times.setdefault(network, deque(maxlen=FREE_GUESSES))
        is_used_up = len(times) == FREE_GUESSES and now - times[0] < MINUTE_SECONDS
        times.append(now)
        self._times.move_to_end(network)
        return is_used_up


def _network(address: str) -> str:
    """Return what an address counts as."""
    try:
        parsed = ip_address(address.partition("%")[0])  # without the interface of a link-local one
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    return str(parsed.ipv4_mapped or IPv6Network((int(parsed) >> 64 << 64, 64)))

"""Which callers an endpoint admits: passwords, tokens, origins (CORS), signatures. Wrong guesses are answered late.

Every scheme of a signature is an HMAC-SHA256 with SIGNATURE_SECRET. All but `hmac` also sign the time of sending, which
may be five minutes off at most: a recorded request cannot be sent again later.
"""

import base64
import binascii
import hashlib
import hmac
import logging
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Final

from amqtt_rest_bridge.catalogue import (
    INVALID_SCHEME,
    INVALID_SIGNATURE,
    ORIGIN_NOT_ALLOWED,
    SIGNED_TOO_LONG_AGO,
    UNAUTHORIZED,
)
from amqtt_rest_bridge.engine.needs import Clock
from amqtt_rest_bridge.http.exchange import Caller, Headers, Refusal, RequestRefusedError, overloaded, refuse
from amqtt_rest_bridge.lot.model import RestApiConfig, Signature, SignatureScheme
from amqtt_rest_bridge.times import LineLimit

log = logging.getLogger(__name__)

_TOKENS: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:[ \t]*,[ \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]+)*")
_PREFLIGHT_SECONDS: Final = "600"
FREE_GUESSES: Final = 10
"""Wrong credentials of an address within `MINUTE_SECONDS` that are answered at once."""
MINUTE_SECONDS: Final = 60.0
DELAY_SECONDS: Final = 1.0
MOST_LATE: Final = 64
"""Answers that wait at a time, and as many again whose callers have closed their side; one more is 503 at once."""
MOST_ADDRESSES: Final = 4096
_LOG_SECONDS: Final = 60.0
_OTHERS: Final = "other addresses"


class WrongCredentialError(RequestRefusedError):
    """A request is refused for its password, token or signature. A request without any of them is not a guess."""


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

        It is a `WrongCredentialError` if a header that may hold a credential came. Hashes of the same length are
        compared, all of them, so that the time of it says nothing.
        """
        authorization, own = headers.get("authorization", ""), headers.get(self._token_header, "")
        scheme, _, sent = authorization.partition(" ")
        scheme, sent = scheme.lower(), sent.strip()
        password = _hashed(_base64(sent) if scheme == "basic" else b"")
        tokens = _hashed(sent.encode() if scheme == "bearer" else b""), _hashed(own.encode())
        found = [hmac.compare_digest(password, expected) for expected in self._passwords]
        found += [hmac.compare_digest(token, expected) for token in tokens for expected in self._tokens]
        if not any(found):
            raise (WrongCredentialError if authorization or own else RequestRefusedError)(self._refusal)


def credentials_for(route: str, config: RestApiConfig) -> Credentials | None:
    """Return what a route asks of its callers, None if it asks for nothing."""
    own = config.server_username, config.server_password
    shared = () if config.enable_client else (config.username, config.password)
    asks = any(one is not None for one in (*own, *shared)) or config.server_token
    return Credentials(route, config) if asks else None


@dataclass(frozen=True, slots=True)
class CorsPolicy:
    """The answer of a route with ENABLE_CORS to pages of other origins; `origins` is None when all are allowed."""

    origins: frozenset[str] | None

    def answer_headers(self, origin: str | None) -> Headers:
        """Return the headers for an answer; raises `RequestRefusedError` (403) for an origin that is not listed."""
        if origin is None:
            return _VARY
        return (*_VARY, *self._allow(origin), _EXPOSE)

    def preflight_headers(self, origin: str, methods: str, wanted: str | None) -> Headers:
        """Return the headers for a preflight; raises `RequestRefusedError` (403) for an origin that is not listed."""
        headers = (*_PREFLIGHT_VARY, *self._allow(origin), ("Access-Control-Allow-Methods", methods))
        if wanted and _TOKENS.fullmatch(wanted):
            headers = (*headers, ("Access-Control-Allow-Headers", wanted))
        return (*headers, ("Access-Control-Max-Age", _PREFLIGHT_SECONDS))

    def _allow(self, origin: str) -> Headers:
        if self.origins is None:
            return _ANY_ORIGIN
        if _normal(origin) not in self.origins:
            message = "Pages of this origin may not call this endpoint; nothing was published"
            raise RequestRefusedError(refuse(ORIGIN_NOT_ALLOWED, message, _VARY))
        return (("Access-Control-Allow-Origin", origin),)


_VARY: Final = (("Vary", "Origin"),)
_PREFLIGHT_VARY: Final = (("Vary", "Origin, Access-Control-Request-Method, Access-Control-Request-Headers"),)
_ANY_ORIGIN: Final = (("Access-Control-Allow-Origin", "*"),)
_EXPOSE: Final = ("Access-Control-Expose-Headers", "ETag, Retry-After, X-Request-ID")


def cors_for(config: RestApiConfig) -> CorsPolicy | None:
    """Read a route's CORS settings; None without ENABLE_CORS."""
    if not config.enable_cors:
        return None
    origins = frozenset(_normal(origin) for origin in config.cors_origins)
    return CorsPolicy(None if "*" in origins else origins)


def _normal(origin: str) -> str:
    """Return an origin as browsers send it: lower case, no slash at its end."""
    return origin.strip().rstrip("/").lower()


def _hashed(sent: bytes) -> bytes:
    return hashlib.sha256(sent).digest()


TOLERANCE_SECONDS: Final = 300
"""How old or how far ahead a signed timestamp may be."""

_Signed = tuple[str | None, bytes, list[bytes]]
"""The timestamp (None: the scheme has none), what was signed, and the signatures that were sent."""

Verify = Callable[[Mapping[str, str], bytes, float], None]
"""Raise `RequestRefusedError` (401) unless the headers, by names in lower case, sign the body at a Unix time."""


def verifier_of(signature: Signature) -> Verify:
    """Return what verifies the requests of an event."""
    key = _key_of(signature)
    header, read = _SCHEMES.get(signature.scheme, (signature.header, partial(_plain, signature.header.lower())))

    def verify(headers: Mapping[str, str], body: bytes, now: float) -> None:
        time, content, sent = read(headers, body)
        if time is not None and not (time.isascii() and time.isdigit() and len(time) <= 12):
            row, message = INVALID_SCHEME, "The request has no timestamp that was signed"
        elif time is not None and abs(now - int(time)) > TOLERANCE_SECONDS:
            row, message = SIGNED_TOO_LONG_AGO, "The request was signed more than five minutes ago or ahead"
        else:
            expected = hmac.digest(key, content, "sha256")
            if sum(hmac.compare_digest(one, expected) for one in sent):  # all, of which there are two during a rotation
                return
            row = INVALID_SIGNATURE if time is None else INVALID_SCHEME
            what = "HMAC-SHA256 of the request's body" if time is None else "signature of the request"
            message = f"The {header} header does not hold the {what}"
        # A 401 names a scheme, RFC 9110 section 15.5.2.
        refusal = refuse(row, message, (("WWW-Authenticate", f'HMAC-SHA256 header="{header}"'),))
        raise (WrongCredentialError if headers.get(header.lower()) else RequestRefusedError)(refusal)

    return verify


def sign(signature: Signature, body: bytes, now: float) -> dict[str, str]:
    """Return the headers (names in lower case) that a sender puts on a request at a Unix time."""
    key, time = _key_of(signature), str(int(now))
    match signature.scheme:
        case SignatureScheme.SLACK:
            digest = hmac.digest(key, f"v0:{time}:".encode() + body, "sha256").hex()
            return {"x-slack-request-timestamp": time, "x-slack-signature": f"v0={digest}"}
        case SignatureScheme.STRIPE:
            return {"stripe-signature": f"t={time},v1={hmac.digest(key, f'{time}.'.encode() + body, 'sha256').hex()}"}
        case SignatureScheme.STANDARD_WEBHOOKS:
            digest = base64.b64encode(hmac.digest(key, f"msg_1.{time}.".encode() + body, "sha256")).decode()
            return {"webhook-id": "msg_1", "webhook-timestamp": time, "webhook-signature": f"v1,{digest}"}
    return {signature.header.lower(): f"sha256={hmac.digest(key, body, 'sha256').hex()}"}


def _key_of(signature: Signature) -> bytes:
    if signature.scheme is SignatureScheme.STANDARD_WEBHOOKS:
        return base64.b64decode(signature.secret.removeprefix("whsec_"))
    return signature.secret.encode()


def _plain(name: str, headers: Mapping[str, str], body: bytes) -> _Signed:
    """Read a header with hexadecimal or base64, with or without `sha256=`."""
    text = headers.get(name, "").strip()
    if text[:7].lower() == "sha256=":
        text = text[7:]
    return None, body, [_hexadecimal(text) if len(text) == 64 else _base64(text)]


def _slack(headers: Mapping[str, str], body: bytes) -> _Signed:
    """Read a timestamp and `v0=` with hexadecimal, each in its header."""
    time = headers.get("x-slack-request-timestamp", "")
    sent = headers.get("x-slack-signature", "").removeprefix("v0=")
    return time, f"v0:{time}:".encode() + body, [_hexadecimal(sent)]


def _stripe(headers: Mapping[str, str], body: bytes) -> _Signed:
    """Read one header with a timestamp (`t=`) and hexadecimal signatures (`v1=`)."""
    items = [item.strip().partition("=") for item in headers.get("stripe-signature", "").split(",")]
    time = next((value for name, _, value in items if name == "t"), "")
    return time, f"{time}.".encode() + body, [_hexadecimal(value) for name, _, value in items if name == "v1"]


def _standard_webhooks(headers: Mapping[str, str], body: bytes) -> _Signed:
    """Read an id, a timestamp, and base64 signatures after `v1,`, each in its header."""
    number, time = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    sent = headers.get("webhook-signature", "").replace(",v1,", " v1,").split(" ")  # repeated headers come with commas
    digests = [_base64(one.removeprefix("v1,")) for one in sent if one.startswith("v1,")]
    return time, f"{number}.{time}.".encode("latin-1", "replace") + body, digests


_SCHEMES: Final[Mapping[SignatureScheme, tuple[str, Callable[[Mapping[str, str], bytes], _Signed]]]] = {
    SignatureScheme.SLACK: ("X-Slack-Signature", _slack),
    SignatureScheme.STRIPE: ("Stripe-Signature", _stripe),
    SignatureScheme.STANDARD_WEBHOOKS: ("webhook-signature", _standard_webhooks),
}
"""By scheme: the header that holds the signature, and the function that reads it. The header of `hmac` is a setting."""


def _hexadecimal(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


class WrongCredentials:
    """Wrong credentials: counted by address, and once there are many from one address, answered a second late.

    One table for all ports of a bridge: passwords, tokens and signatures of routes, and the token of the admin port. A
    right credential never comes here, so it is never delayed, whatever else comes from its address: behind a proxy all
    callers have one. So this slows down what tries words of a list; against a caller who opens a connection for each
    guess and does not wait for its answer, only a long secret helps.

    An IPv6 address counts as its /64, which is what one machine gets (RFC 4291 section 2.5.4). Beyond `MOST_ADDRESSES`
    in a minute all further addresses count as one, so no number of them makes the table forget another.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._times: OrderedDict[str, deque[float]] = OrderedDict()  # the address of the last guess at the end
        self._late: list[Caller] = []
        self._limit = LineLimit(_LOG_SECONDS, clock.monotonic)

    async def delay(self, address: str, port: int, caller: Caller) -> Refusal | None:
        """Count a wrong credential that came to a port; return a second later if many came from its address.

        Returns None, or what is answered in place of the refusal if too many wait already.
        """
        now, counted = self._clock.monotonic(), _network(address)
        while self._times and now - next(iter(self._times.values()))[-1] >= MINUTE_SECONDS:
            self._times.popitem(last=False)
        if counted not in self._times and len(self._times) >= MOST_ADDRESSES:
            counted = _OTHERS
        times = self._times.setdefault(counted, deque(maxlen=FREE_GUESSES))
        is_late = len(times) == FREE_GUESSES and now - times[0] < MINUTE_SECONDS
        times.append(now)
        self._times.move_to_end(counted)
        if not is_late:
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


def _network(address: str) -> str:
    """Return what an address counts as."""
    try:
        parsed = ip_address(address.partition("%")[0])  # without the interface of a link-local one
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    return str(parsed.ipv4_mapped or IPv6Network((int(parsed) >> 64 << 64, 64)))

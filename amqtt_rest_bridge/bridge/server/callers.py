"""Which callers an endpoint admits: passwords, tokens, origins (CORS). Pure; any thread."""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from amqtt_rest_bridge.bridge.server.request import WrongCredentialError, error
from amqtt_rest_bridge.catalogue import ORIGIN_NOT_ALLOWED, UNAUTHORIZED
from amqtt_rest_bridge.http_server import Headers
from amqtt_rest_bridge.model import RestApiConfig

_TOKENS: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:[ \t]*,[ \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]+)*")
_PREFLIGHT_SECONDS: Final = "600"


class _Password:
    """One name and password, as Basic credentials (RFC 7617)."""

    header: Final = "authorization"

    def __init__(self, username: str, password: str) -> None:
        self._expected = _hashed(f"{username}:{password}".encode())

    def admits(self, headers: Mapping[str, str]) -> bool:
        """Return whether the caller sent them: hashed and compared as one, with the same work whatever is wrong."""
        return hmac.compare_digest(_hashed(_basic(headers.get("authorization", ""))), self._expected)


class _Tokens:
    """Tokens, any of which a caller sends as Bearer (RFC 6750) or in a header of its own."""

    def __init__(self, tokens: Iterable[str], header: str | None) -> None:
        self._expected = [_hashed(token.encode()) for token in tokens]
        self.header = None if header is None else header.lower()

    def admits(self, headers: Mapping[str, str]) -> bool:
        """Return whether the caller sent one: all are compared, whichever is right."""
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        sent = [_hashed(bearer.strip().encode() if scheme.lower() == "bearer" else b"")]
        if self.header is not None:
            sent.append(_hashed(headers.get(self.header, "").encode()))
        found = [hmac.compare_digest(one, expected) for one in sent for expected in self._expected]
        return any(found)


class Credentials:
    """What a route asks of its callers; where it asks for a password or a token, either admits.

    `challenges` name the schemes, one header each (RFC 9110 section 11.6.1).
    """

    def __init__(self, checks: Sequence[_Password | _Tokens], challenges: Headers, what: str, hint: str) -> None:
        self._checks = checks
        self._challenges = challenges
        self._message = f"The caller's {what} is missing or wrong"
        self._hint = hint

    def check(self, headers: Mapping[str, str]) -> None:
        """Raise `RefusedError` (401) unless the caller sent what the route asks for.

        It is a `WrongCredentialError` where a header that may hold a credential came.
        """
        if sum(one.admits(headers) for one in self._checks):  # all are checked, whichever is right
            return
        failure = error(UNAUTHORIZED, self._message, self._challenges, hint=self._hint)
        if headers.get("authorization") or any(one.header and headers.get(one.header) for one in self._checks):
            raise WrongCredentialError(failure.refusal)
        raise failure


def credentials_for(route: str, config: RestApiConfig) -> Credentials | None:
    """Return what a route asks of its callers.

    SERVER_USERNAME and SERVER_PASSWORD, or in a route without client mode USERNAME and PASSWORD, or SERVER_TOKEN; None
    when none is set.

    Decision: where only one of a pair is set the other one is empty, so that half a setting never opens a route.
    """
    username, password = config.server_username, config.server_password
    if username is None and password is None and not config.enable_client:
        username, password = config.username, config.password
    checks: list[_Password | _Tokens] = []
    challenges: list[tuple[str, str]] = []
    what: list[str] = []
    hints: list[str] = []
    if username is not None or password is not None:
        checks.append(_Password(username or "", password or ""))
        challenges.append(("WWW-Authenticate", f'Basic realm="{route}", charset="UTF-8"'))
        what.append("name or password")
        hints.append("the route's name and password as Basic credentials in the Authorization header")
    if config.server_token:
        checks.append(_Tokens(config.server_token, config.server_token_header))
        challenges.append(("WWW-Authenticate", f'Bearer realm="{route}"'))
        what.append("token")
        header = f", or in the header {config.server_token_header}" if config.server_token_header else ""
        hints.append(f"the route's token as Bearer in the Authorization header{header}")
    if not checks:
        return None
    return Credentials(checks, tuple(challenges), " or ".join(what), f"Send {', or '.join(hints)}")


@dataclass(frozen=True, slots=True)
class CorsPolicy:
    """The answer of a route with ENABLE_CORS to pages of other origins; `origins` is None when all are allowed."""

    origins: frozenset[str] | None

    def answer_headers(self, origin: str | None) -> Headers:
        """Return the headers for a request's answer; raises `RefusedError` (403) for an origin that is not listed."""
        if origin is None:
            return _VARY
        return (*_VARY, *self._allow(origin), _EXPOSE)

    def preflight_headers(self, origin: str, methods: str, wanted: str | None) -> Headers:
        """Return the headers of a preflight's answer; raises `RefusedError` (403) for an origin that is not listed."""
        headers = (*_PREFLIGHT_VARY, *self._allow(origin), ("Access-Control-Allow-Methods", methods))
        if wanted and _TOKENS.fullmatch(wanted):
            headers = (*headers, ("Access-Control-Allow-Headers", wanted))
        return (*headers, ("Access-Control-Max-Age", _PREFLIGHT_SECONDS))

    def _allow(self, origin: str) -> Headers:
        if self.origins is None:
            return _ANY_ORIGIN
        if _normal(origin) not in self.origins:
            message = "Pages of this origin may not call this endpoint; nothing was published"
            raise error(ORIGIN_NOT_ALLOWED, message, _VARY)
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


def _basic(authorization: str) -> bytes:
    """Return `name:password` of an Authorization header; empty when there is none."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return b""
    try:
        return base64.b64decode(encoded.strip(), validate=True)
    except (binascii.Error, ValueError):
        return b""


def _hashed(sent: bytes) -> bytes:
    return hashlib.sha256(sent).digest()

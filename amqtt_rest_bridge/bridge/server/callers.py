"""Which callers an endpoint admits: Basic credentials (RFC 7617), signatures, origins (CORS). Pure; any thread."""

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Final

from amqtt_rest_bridge.bridge.server.refusals import error
from amqtt_rest_bridge.http_server import Headers
from amqtt_rest_bridge.model import RestApiConfig, Signature

_TOKENS: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:[ \t]*,[ \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]+)*")
_PREFLIGHT_SECONDS: Final = "600"


class Credentials:
    """The one name and password that a route requires of its callers."""

    def __init__(self, username: str, password: str, realm: str) -> None:
        self._expected = hashlib.sha256(f"{username}:{password}".encode()).digest()
        self._challenge = (("WWW-Authenticate", f'Basic realm="{realm}", charset="UTF-8"'),)

    def check(self, authorization: str | None) -> None:
        """Raise `RefusedError` (401) unless the Authorization header is right.

        Work and answer are the same for any fault: name and password are hashed and compared as one.
        """
        given = hashlib.sha256(_basic(authorization or "")).digest()
        if not hmac.compare_digest(given, self._expected):
            raise error(
                "unauthorized",
                "The caller's name or password is missing or wrong",
                "Send the route's name and password as Basic credentials in the Authorization header",
                self._challenge,
            )


def credentials_for(route: str, config: RestApiConfig) -> Credentials | None:
    """Return what a route requires of its callers.

    SERVER_USERNAME and SERVER_PASSWORD, or in a route without client mode USERNAME and PASSWORD; None when none is set.

    Decision: where only one of a pair is set the other one is empty, so that half a setting never opens a route.
    """
    username, password = config.server_username, config.server_password
    if username is None and password is None and not config.enable_client:
        username, password = config.username, config.password
    if username is None and password is None:
        return None
    return Credentials(username or "", password or "", route)


def check_signature(signature: Signature, header: str | None, body: bytes) -> None:
    """Raise `RefusedError` (401) unless the header holds the HMAC-SHA256 of the body, in hexadecimal or base64."""
    expected = hmac.digest(signature.secret.encode(), body, "sha256")
    if not hmac.compare_digest(_digest(header or ""), expected):
        raise error(
            "invalid_signature",
            f"The {signature.header} header does not hold the HMAC-SHA256 of the request's body",
            "Sign the body, byte for byte, with the secret that the route's SIGNATURE_SECRET holds",
            (("WWW-Authenticate", f'HMAC-SHA256 header="{signature.header}"'),),  # a 401 names one, RFC 9110 15.5.2
        )


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
            raise error(
                "origin_not_allowed",
                "Pages of this origin may not call this endpoint; nothing was published",
                "Ask the operator to add the origin, with its scheme and port, to CORS_ORIGINS",
                _VARY,
            )
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


def _digest(header: str) -> bytes:
    """Read a signature header: hexadecimal or base64, with or without `sha256=`; empty when it is neither."""
    text = header.strip()
    if text[:7].lower() == "sha256=":
        text = text[7:]
    try:
        return bytes.fromhex(text) if len(text) == 64 else base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""

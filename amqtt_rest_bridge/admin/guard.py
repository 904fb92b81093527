"""Who may use the admin port, and for what. Pure.

With a token, those who know it may; without one, the pages and programs of this machine. A retry needs the token, and a
page of another site may neither retry nor use the playground.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.http.exchange import Refusal, Request, refuse

_HERE: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_CHALLENGE: Final = (("WWW-Authenticate", 'Basic realm="rest-bridge", charset="UTF-8"'),)


class Guard:
    """Admits requests: those that have the token; without a token those of this machine, but no retry."""

    def __init__(self, token: str | None) -> None:
        self._expected = None if token is None else _digest(token.encode())

    @property
    def may_retry(self) -> bool:
        """Return whether there is a token, which a retry needs since it changes something."""
        return self._expected is not None

    def check(self, request: Request, *, is_retry: bool, is_trial: bool = False) -> Refusal | None:
        """Return why a request is not admitted, None when it is; a trial is a form of the playground."""
        headers, refusal = request.headers, None
        if self._expected is not None:
            # As Bearer (RFC 6750) or as the password of Basic, with any name; compared in constant time.
            if not hmac.compare_digest(_digest(_token_of(headers.get("authorization", ""))), self._expected):
                refusal = refuse(catalogue.ADMIN_TOKEN, "The token is missing or wrong", _CHALLENGE)
        else:
            refusal = _check_machine(headers)
        if refusal is not None:
            return refusal
        if is_retry:
            if request.method != "POST":
                return refuse(catalogue.RETRY_METHOD, "A retry changes something", (("Allow", "POST"),))
            if not self.may_retry:
                return refuse(catalogue.NO_ADMIN_TOKEN, "Without admin_token the admin port only answers questions")
            is_own = _is_same_origin(headers)
            return None if is_own else refuse(catalogue.ADMIN_ORIGIN, "Pages of other sites may not retry")
        if is_trial:
            is_own = _is_same_origin(headers)
            return None if is_own else refuse(catalogue.ADMIN_ORIGIN, "Pages of other sites may not use the playground")
        if request.method not in ("GET", "HEAD"):
            return refuse(catalogue.ADMIN_METHOD, "The admin port only answers questions", (("Allow", "GET, HEAD"),))
        return None


def _check_machine(headers: Mapping[str, str]) -> Refusal | None:
    """Refuse a request that comes from a page of another site, or by another name of this machine."""
    try:
        host = (urlsplit(f"//{headers.get('host', '')}").hostname or "").rstrip(".")
    except ValueError:
        host = ""
    if host not in _HERE:
        return refuse(catalogue.MISDIRECTED_REQUEST, "The Host of this request is not this machine")
    # A link that is followed to a page is a visit, which only its caller sees.
    is_visit = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not is_visit:
        return refuse(catalogue.ADMIN_ORIGIN, "Pages of other sites may not use the admin port")
    return None


def _is_same_origin(headers: Mapping[str, str]) -> bool:
    """Return whether a page of this site made a request, or a command, which sends neither header."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site not in (None, "none", "same-origin"):
        return False
    if origin is None or (origin == "null" and site is not None):
        return True
    return origin.partition("://")[2].lower() == headers.get("host", "").lower()


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _token_of(authorization: str) -> bytes:
    """Return what an Authorization header has for a token, b"" for nothing."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode("latin-1", "replace")
    if scheme.lower() != "basic":
        return b""
    try:
        return base64.b64decode(value.strip(), validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""

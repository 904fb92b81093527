"""Who may use the admin port. Pure.

Without a token the port is for this machine alone, and a page of another site, open in a browser on this machine, is
the attacker: it may send requests here (DNS rebinding gives it our answers too). So the Host has to be this machine's,
and what a browser says of the page that sends the request has to be our own. With a token neither helps an attacker.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from amqtt_rest_bridge.http_server import Refusal

_HERE: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_CHALLENGE: Final = (("WWW-Authenticate", 'Basic realm="rest-bridge", charset="UTF-8"'),)


class Guard:
    """Admit requests; `token` None admits those of this machine."""

    def __init__(self, token: str | None) -> None:
        self._expected = None if token is None else _digest(token.encode())

    def check(self, headers: Mapping[str, str]) -> Refusal | None:
        """Return why a request is not admitted, None when it is."""
        if self._expected is not None:
            return self._check_token(headers.get("authorization", ""), self._expected)
        if _host(headers.get("host", "")) not in _HERE:
            return Refusal(
                "misdirected_request",
                "421 Misdirected Request",
                "The Host of this request is not this machine",
                "Use http://127.0.0.1 or http://localhost; for other names set admin_token",
            )
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not _is_visit(headers):
            return Refusal(
                "origin_not_allowed",
                "403 Forbidden",
                "Pages of other sites may not use the admin port",
                "Open the status page itself",
            )
        return None

    def _check_token(self, authorization: str, expected: bytes) -> Refusal | None:
        """Compare the token, as Bearer (RFC 6750) or as the password of Basic, with any name; in constant time."""
        if hmac.compare_digest(_digest(_given(authorization)), expected):
            return None
        return Refusal(
            "unauthorized",
            "401 Unauthorized",
            "The token is missing or wrong",
            "Send admin_token as Authorization: Bearer ..., or as the password in a browser, with any name",
            _CHALLENGE,
        )


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _given(authorization: str) -> bytes:
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode("latin-1", "replace")
    if scheme.lower() != "basic":
        return b""
    try:
        return base64.b64decode(value.strip(), validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""


def _host(header: str) -> str:
    try:
        return (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_visit(headers: Mapping[str, str]) -> bool:
    """Return whether a request follows a link to a page, which only its caller sees."""
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"

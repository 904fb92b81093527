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

from amqtt_rest_bridge.catalogue import ADMIN_ORIGIN, ADMIN_TOKEN, MISDIRECTED_REQUEST
from amqtt_rest_bridge.http_server import Refusal
from amqtt_rest_bridge.http_server.refusals import refuse

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
            return refuse(MISDIRECTED_REQUEST, "The Host of this request is not this machine")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not _is_visit(headers):
            return refuse(ADMIN_ORIGIN, "Pages of other sites may not use the admin port")
        return None

    def _check_token(self, authorization: str, expected: bytes) -> Refusal | None:
        """Compare the token, as Bearer (RFC 6750) or as the password of Basic, with any name; in constant time."""
        if hmac.compare_digest(_digest(_given(authorization)), expected):
            return None
        return refuse(ADMIN_TOKEN, "The token is missing or wrong", _CHALLENGE)


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

"""Who may use the admin port: those who know its token, and without one the pages and programs of this machine."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from amqtt_rest_bridge import catalogue
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
            # As Bearer (RFC 6750) or as the password of Basic, with any name; compared in constant time.
            if hmac.compare_digest(_digest(_given(headers.get("authorization", ""))), self._expected):
                return None
            return refuse(catalogue.ADMIN_TOKEN, "The token is missing or wrong", _CHALLENGE)
        if _host(headers.get("host", "")) not in _HERE:
            return refuse(catalogue.MISDIRECTED_REQUEST, "The Host of this request is not this machine")
        # A link that is followed to a page is a visit, which only its caller sees.
        is_visit = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not is_visit:
            return refuse(catalogue.ADMIN_ORIGIN, "Pages of other sites may not use the admin port")
        return None


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

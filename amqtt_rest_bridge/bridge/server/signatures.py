"""Signed requests: which header holds the signature, and what was signed. Pure; any thread.

Every scheme is an HMAC-SHA256 with SIGNATURE_SECRET. Those beside `hmac` also sign the time of sending, so that a
request that was recorded cannot be sent again later: it is refused when it is more than five minutes off.
"""

import base64
import binascii
import hmac
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from amqtt_rest_bridge.bridge.server.request import WrongCredentialError, error
from amqtt_rest_bridge.catalogue import INVALID_SCHEME, INVALID_SIGNATURE, SIGNED_TOO_LONG_AGO
from amqtt_rest_bridge.model import Signature, SignatureScheme

TOLERANCE_SECONDS: Final = 300
"""How old or how far ahead a signed timestamp may be."""

_Signed = tuple[str | None, bytes, list[bytes]]
"""The timestamp (None: the scheme has none), what was signed, and the signatures that were sent."""

Verify = Callable[[Mapping[str, str], bytes, float], None]
"""Raise `RefusedError` (401) unless the headers (names in lower case) hold the signature of the body at a Unix time."""


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
        failure = error(row, message, (("WWW-Authenticate", f'HMAC-SHA256 header="{header}"'),))
        raise WrongCredentialError(failure.refusal) if headers.get(header.lower()) else failure

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
    return None, body, [_digest(headers.get(name, ""))]


def _slack(headers: Mapping[str, str], body: bytes) -> _Signed:
    time = headers.get("x-slack-request-timestamp", "")
    sent = headers.get("x-slack-signature", "").removeprefix("v0=")
    return time, f"v0:{time}:".encode() + body, [_hexadecimal(sent)]


def _stripe(headers: Mapping[str, str], body: bytes) -> _Signed:
    items = [item.strip().partition("=") for item in headers.get("stripe-signature", "").split(",")]
    time = next((value for name, _, value in items if name == "t"), "")
    return time, f"{time}.".encode() + body, [_hexadecimal(value) for name, _, value in items if name == "v1"]


def _standard_webhooks(headers: Mapping[str, str], body: bytes) -> _Signed:
    number, time = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    sent = headers.get("webhook-signature", "").replace(",v1,", " v1,").split(" ")  # repeated headers come with commas
    digests = [_base64(one.removeprefix("v1,")) for one in sent if one.startswith("v1,")]
    return time, f"{number}.{time}.".encode("latin-1", "replace") + body, digests


_SCHEMES: Final[Mapping[SignatureScheme, tuple[str, Callable[[Mapping[str, str], bytes], _Signed]]]] = {
    SignatureScheme.SLACK: ("X-Slack-Signature", _slack),
    SignatureScheme.STRIPE: ("Stripe-Signature", _stripe),
    SignatureScheme.STANDARD_WEBHOOKS: ("webhook-signature", _standard_webhooks),
}
"""The header that holds the signature, and what reads a request; beside these there is `hmac`."""


def _digest(header: str) -> bytes:
    """Read a signature header: hexadecimal or base64, with or without `sha256=`; empty when it is neither."""
    text = header.strip()
    if text[:7].lower() == "sha256=":
        text = text[7:]
    return _hexadecimal(text) if len(text) == 64 else _base64(text)


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

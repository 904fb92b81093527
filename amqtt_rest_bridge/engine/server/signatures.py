"""Signatures of requests: an HMAC-SHA256 with SIGNATURE_SECRET, in the form that each SIGNATURE_SCHEME sends.

All schemes but `hmac` also sign the time of sending, which may be five minutes off at most: a recorded request cannot
be sent again later.
"""

import base64
import hmac
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from amqtt_rest_bridge.catalogue import INVALID_SCHEME, INVALID_SIGNATURE, SIGNED_TOO_LONG_AGO
from amqtt_rest_bridge.engine.server.credentials import WrongCredentialError, from_base64
from amqtt_rest_bridge.http.exchange import RequestRefusedError, refuse
from amqtt_rest_bridge.lot.model import Signature, SignatureScheme

TOLERANCE_SECONDS: Final = 300
"""How old or how far ahead a signed timestamp may be."""

_Signed = tuple[str | None, bytes, list[bytes]]
"""The timestamp (None: the scheme has none), what was signed, and the signatures that were sent."""

Verify = Callable[[Mapping[str, str], bytes, float], None]
"""Raise `RequestRefusedError` (401) unless the headers, by names in lower case, sign the body at a Unix time."""


def verifier_of(signature: Signature) -> Verify:
    """Return the function that verifies the requests of an event."""
    key = _key_of(signature)
    header, read = _SCHEMES.get(signature.scheme, (signature.header, partial(_read_hmac, signature.header.lower())))

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


def _read_hmac(name: str, headers: Mapping[str, str], body: bytes) -> _Signed:
    """Read a header with hexadecimal or base64, with or without `sha256=`."""
    text = headers.get(name, "").strip()
    if text[:7].lower() == "sha256=":
        text = text[7:]
    return None, body, [_hexadecimal(text) if len(text) == 64 else from_base64(text)]


def _read_slack(headers: Mapping[str, str], body: bytes) -> _Signed:
    """Read a timestamp and `v0=` with hexadecimal, each in its header."""
    time = headers.get("x-slack-request-timestamp", "")
    sent = headers.get("x-slack-signature", "").removeprefix("v0=")
    return time, f"v0:{time}:".encode() + body, [_hexadecimal(sent)]


def _read_stripe(headers: Mapping[str, str], body: bytes) -> _Signed:
    """Read one header with a timestamp (`t=`) and hexadecimal signatures (`v1=`)."""
    items = [item.strip().partition("=") for item in headers.get("stripe-signature", "").split(",")]
    time = next((value for name, _, value in items if name == "t"), "")
    return time, f"{time}.".encode() + body, [_hexadecimal(value) for name, _, value in items if name == "v1"]


def _read_standard_webhooks(headers: Mapping[str, str], body: bytes) -> _Signed:
    """Read an id, a timestamp, and base64 signatures after `v1,`, each in its header."""
    number, time = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    sent = headers.get("webhook-signature", "").replace(",v1,", " v1,").split(" ")  # repeated headers come with commas
    digests = [from_base64(one.removeprefix("v1,")) for one in sent if one.startswith("v1,")]
    return time, f"{number}.{time}.".encode("latin-1", "replace") + body, digests


_SCHEMES: Final[Mapping[SignatureScheme, tuple[str, Callable[[Mapping[str, str], bytes], _Signed]]]] = {
    SignatureScheme.SLACK: ("X-Slack-Signature", _read_slack),
    SignatureScheme.STRIPE: ("Stripe-Signature", _read_stripe),
    SignatureScheme.STANDARD_WEBHOOKS: ("webhook-signature", _read_standard_webhooks),
}
"""By scheme: the header that holds the signature, and the function that reads it. The header of `hmac` is a setting."""


def _hexadecimal(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""

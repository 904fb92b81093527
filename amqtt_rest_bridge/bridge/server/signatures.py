"""Signed requests: which header holds the signature, and what was signed. Pure; any thread.

Every scheme is an HMAC-SHA256 with SIGNATURE_SECRET. Those beside `hmac` also sign the time of sending, so that a
request that was recorded cannot be sent again later: it is refused when it is more than five minutes off.
"""

import base64
import binascii
import hmac
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from amqtt_rest_bridge.bridge.server.refusals import RefusedError, WrongCredentialError, error
from amqtt_rest_bridge.catalogue import INVALID_SCHEME, INVALID_SIGNATURE, SIGNED_TOO_LONG_AGO, AnswerRow
from amqtt_rest_bridge.model import Signature, SignatureScheme

TOLERANCE_SECONDS: Final = 300
"""How old or how far ahead a signed timestamp may be."""


Verify = Callable[[Mapping[str, str], bytes, float], None]
"""Raise `RefusedError` (401) unless the headers (names in lower case) hold the signature of the body at a Unix time."""


def verifier_of(signature: Signature) -> Verify:
    """Return what verifies the requests of an event."""
    key = _key_of(signature)
    match signature.scheme:
        case SignatureScheme.SLACK:
            return _slack(key)
        case SignatureScheme.STRIPE:
            return _stripe(key)
        case SignatureScheme.STANDARD_WEBHOOKS:
            return _standard_webhooks(key)
    return _hmac(key, signature.header)


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


def _hmac(key: bytes, header: str) -> Verify:
    name = header.lower()

    def verify(headers: Mapping[str, str], body: bytes, _now: float) -> None:
        expected = hmac.digest(key, body, "sha256")
        if not hmac.compare_digest(_digest(headers.get(name, "")), expected):
            message = f"The {header} header does not hold the HMAC-SHA256 of the request's body"
            raise _refused(headers, header, message, INVALID_SIGNATURE)

    return verify


def _slack(key: bytes) -> Verify:
    header = "X-Slack-Signature"

    def verify(headers: Mapping[str, str], body: bytes, now: float) -> None:
        time = headers.get("x-slack-request-timestamp", "")
        _check_time(headers, header, time, now)
        expected = hmac.digest(key, f"v0:{time}:".encode() + body, "sha256")
        _check_any(headers, header, [_hexadecimal(headers.get("x-slack-signature", "").removeprefix("v0="))], expected)

    return verify


def _stripe(key: bytes) -> Verify:
    header = "Stripe-Signature"

    def verify(headers: Mapping[str, str], body: bytes, now: float) -> None:
        items = [item.strip().partition("=") for item in headers.get("stripe-signature", "").split(",")]
        time = next((value for name, _, value in items if name == "t"), "")
        _check_time(headers, header, time, now)
        expected = hmac.digest(key, f"{time}.".encode() + body, "sha256")
        _check_any(headers, header, [_hexadecimal(value) for name, _, value in items if name == "v1"], expected)

    return verify


def _standard_webhooks(key: bytes) -> Verify:
    header = "webhook-signature"

    def verify(headers: Mapping[str, str], body: bytes, now: float) -> None:
        number, time = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
        _check_time(headers, header, time, now)
        expected = hmac.digest(key, f"{number}.{time}.".encode("latin-1") + body, "sha256")
        sent = headers.get(header, "").replace(",v1,", " v1,").split(" ")  # repeated headers come joined by commas
        digests = [_base64(one.removeprefix("v1,")) for one in sent if one.startswith("v1,")]
        _check_any(headers, header, digests, expected)

    return verify


def _check_time(headers: Mapping[str, str], header: str, time: str, now: float) -> None:
    if not (time.isascii() and time.isdigit() and len(time) <= 12):
        raise _refused(headers, header, "The request has no timestamp that was signed", INVALID_SCHEME)
    if abs(now - int(time)) > TOLERANCE_SECONDS:
        message = "The request was signed more than five minutes ago or ahead"
        raise _refused(headers, header, message, SIGNED_TOO_LONG_AGO)


def _check_any(headers: Mapping[str, str], header: str, sent: Iterable[bytes], expected: bytes) -> None:
    """Compare all signatures that were sent, of which there are two while a secret is rotated."""
    if not sum(hmac.compare_digest(one, expected) for one in sent):
        message = f"The {header} header does not hold the signature of the request"
        raise _refused(headers, header, message, INVALID_SCHEME)


def _refused(headers: Mapping[str, str], header: str, message: str, row: AnswerRow) -> RefusedError:
    # A 401 names a scheme, RFC 9110 section 15.5.2.
    failure = error(row, message, (("WWW-Authenticate", f'HMAC-SHA256 header="{header}"'),))
    return WrongCredentialError(failure.refusal) if headers.get(header.lower()) else failure


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

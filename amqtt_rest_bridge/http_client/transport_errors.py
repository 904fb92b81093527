"""Errors of sockets, TLS and HTTP to `CallError` with the next thing to check.

Pure. `where` is an origin, never a path or query: those may hold what a payload brought.
"""

import os
import socket
import ssl
from http import HTTPStatus
from http.client import HTTPException, IncompleteRead, LineTooLong, RemoteDisconnected
from urllib.parse import urlsplit

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.errors import CallError, ConfigurationError
from amqtt_rest_bridge.http.content import ContentTooLargeError, MalformedResponseError
from amqtt_rest_bridge.http.origin import MOST_REDIRECTS, REDIRECTS, may_follow, origin_of, resolve
from amqtt_rest_bridge.http_client.connection import (
    LONGEST_HEAD,
    DeadlineSocket,
    HeadTooLargeError,
    NotHttpError,
    Phase,
    phase_of,
)
from amqtt_rest_bridge.model import HttpRequest, HttpResponse, Method, values_of

EXCHANGE_ERRORS = (
    OSError, HTTPException, NotHttpError, HeadTooLargeError, ContentTooLargeError, MalformedResponseError,
)  # fmt: skip
"""What `connection.exchange` raises."""

_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")  # a TLS server answers a plain request with an alert or handshake record
_NO_TLS = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG"}
)
_VERSION = frozenset({"UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION", "NO_PROTOCOLS_AVAILABLE"})
_CLIENT_CERTIFICATE = frozenset(
    {
        "TLSV13_ALERT_CERTIFICATE_REQUIRED",
        "SSLV3_ALERT_BAD_CERTIFICATE",
        "SSLV3_ALERT_CERTIFICATE_EXPIRED",
        "SSLV3_ALERT_CERTIFICATE_REVOKED",
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
        "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
        "TLSV1_ALERT_ACCESS_DENIED",
        "TLSV1_ALERT_DECRYPT_ERROR",
        "TLSV1_ALERT_UNKNOWN_CA",
    }
)


def connecting_failed(where: str, error: OSError, seconds: float) -> CallError:
    """Explain why there is no connection; nothing has been sent."""
    if isinstance(error, TimeoutError):
        return catalogue.TIMEOUT_CONNECTING.error(f"no connection to {where} within {seconds:g} s", unsent=True)
    if isinstance(error, socket.gaierror | UnicodeError):
        return catalogue.UNKNOWN_HOST.error(f"the host name of {where} is not known", unsent=True)
    if isinstance(error, ConnectionRefusedError):
        return catalogue.CONNECTION_REFUSED.error(f"{where} refused the connection", unsent=True)
    return catalogue.UNREACHABLE.error(f"no connection to {where}: {_reason(error)}", unsent=True)


def proxy_failed(where: str, answer: str) -> CallError:
    """Explain that a proxy did not open the way to a server."""
    return catalogue.PROXY_REFUSED.error(f"no connection to {where}: the proxy answered {answer}", unsent=True)


def files_unusable(where: str, error: ConfigurationError) -> CallError:
    """Explain that a route's files for TLS cannot be used; `error` names the setting and the path."""
    return catalogue.TLS_FILES.error(f"no TLS with {where}: {error}")


def tls_failed(where: str, error: OSError, *, handshake: bool = True) -> CallError:
    """Explain why TLS could not be established, or broke.

    `unsent` is set only when trying again may help: a handshake that was cut off, not a certificate that was refused.
    """
    message, row = f"TLS with {where} failed: {_reason(error)}", catalogue.NO_TLS
    if isinstance(error, ssl.SSLCertVerificationError):
        message = f"the certificate of {where} is refused: {error.verify_message}"
        return catalogue.CERTIFICATES.get(error.verify_code, catalogue.CERTIFICATE).error(message)
    reason = (error.reason if isinstance(error, ssl.SSLError) else None) or ""
    if reason in _NO_TLS:
        message, row = f"{where} does not speak TLS on this port", catalogue.PLAIN_PORT
    elif reason in _CLIENT_CERTIFICATE:
        message = f"{where} does not accept the client certificate, or misses one ({_reason(error)})"
        row = catalogue.CLIENT_CERTIFICATE
    elif reason in _VERSION:
        row = catalogue.TLS_VERSION
    elif reason == "SSLV3_ALERT_HANDSHAKE_FAILURE":
        row = catalogue.TLS_HANDSHAKE
    cut_off = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError) or not isinstance(error, ssl.SSLError)
    if handshake and cut_off:
        message = f"{where} closed the connection during the TLS handshake"
    return row.error(message, unsent=handshake and cut_off)


def exchange_failed(where: str, error: Exception, wire: DeadlineSocket, *, seconds: float, limit: int) -> CallError:
    """Explain why there is no complete response, from the error and from how far the exchange had come."""
    phase = phase_of(wire)
    if isinstance(error, TimeoutError):
        message = f"{where} was not done within {seconds:g} s ({phase})"
        return catalogue.TIMEOUT_ANSWERING.error(message, unsent=not wire.sent)
    # http.client's own bounds: a line of 64 KiB, and 100 headers, for which it has no error of their own.
    if isinstance(error, HeadTooLargeError | ContentTooLargeError | LineTooLong) or type(error) is HTTPException:
        if phase is Phase.BODY:
            return catalogue.RESPONSE_BODY_TOO_LARGE.error(f"the response of {where} is larger than {limit} bytes")
        message = f"the response of {where} has more than 100 headers, or more than {LONGEST_HEAD} bytes of them"
        return catalogue.RESPONSE_HEAD_TOO_LARGE.error(message)
    closed = isinstance(error, RemoteDisconnected | IncompleteRead | ssl.SSLEOFError | ssl.SSLZeroReturnError)
    if isinstance(error, ssl.SSLError) and not closed:
        return tls_failed(where, error, handshake=False)
    if not closed and not isinstance(error, OSError):
        return _malformed(where, error, phase)
    may_want_tls = phase is Phase.WAITING and where.startswith("http://")
    row = catalogue.PLAIN_CONNECTION_ENDED if may_want_tls else catalogue.CONNECTION_ENDED
    message = f"{where} {'closed' if closed else 'broke off'} the connection while {phase}"
    if phase is Phase.BODY and isinstance(error, ssl.SSLEOFError):
        message += ", without TLS's close_notify"
    return row.error(message, unsent=not wire.sent)


def _malformed(where: str, error: Exception, phase: Phase) -> CallError:
    if isinstance(error, NotHttpError) and error.first_bytes.startswith(_TLS_RECORDS):
        return catalogue.TLS_EXPECTED.error(f"{where} expects TLS on this port")
    if phase is Phase.BODY:
        return catalogue.UNREADABLE_BODY.error(f"the response of {where} cannot be read: {_without_content(error)}")
    what = f"{where} answered with something that is not HTTP/1.1: {_without_content(error)}"
    return catalogue.NOT_HTTP.error(what)


def _without_content(error: Exception) -> str:
    """Return a text for an error without what came, which is not for logs; http.client's own texts quote it."""
    return type(error).__name__ if isinstance(error, HTTPException) else str(error)


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or type(error).__name__).lower().replace("_", " ")
    return os.strerror(error.errno) if error.errno and error.errno > 0 else type(error).__name__


def redirect_refused(request: HttpRequest, response: HttpResponse) -> CallError | None:
    """Explain why `send` did not follow a redirect; None for a response that is none."""
    if response.status not in REDIRECTS:
        return None
    locations = values_of(response.headers, "location")
    if not locations:
        return None
    target = resolve(request.url, locations[0])
    where = "an address that cannot be used" if target is None else str(target[0])
    if request.method is not Method.GET:
        reason, row = f"{request.method} is not redirected", catalogue.REDIRECTED_METHOD
    elif target is not None and may_follow(origin_of(urlsplit(request.url)), target[0]):
        reason = f"this was redirect {MOST_REDIRECTS + 1}, {MOST_REDIRECTS} are followed"
        row = catalogue.REDIRECTED_TOO_OFTEN
    else:
        reason, row = "only the same host and port is followed", catalogue.REDIRECTED_ELSEWHERE
    return row.error(f"the server answered {describe_status(response.status)} to {where}; {reason}")


def describe_status(status: int) -> str:
    """Return a status with its standard phrase; the server's own phrase never reaches a log line."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)

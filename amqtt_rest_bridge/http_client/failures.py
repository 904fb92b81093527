"""Failures: errors of sockets, TLS and HTTP to `CallError` with the next thing to check.

Pure. `where` is an origin, never a path or query: those may hold what a payload brought.
"""

import os
import socket
import ssl
from http import HTTPStatus
from http.client import HTTPException, IncompleteRead, LineTooLong, RemoteDisconnected
from urllib.parse import urlsplit

from amqtt_rest_bridge.errors import CallError, ConfigurationError, FailureCode
from amqtt_rest_bridge.http_client.connection import Phase, phase_of
from amqtt_rest_bridge.http_client.deadline_socket import LONGEST_HEAD, DeadlineSocket, HeadTooLargeError, NotHttpError
from amqtt_rest_bridge.http_client.origin import MOST_REDIRECTS, REDIRECTS, may_follow, origin_of, resolve
from amqtt_rest_bridge.http_client.response import ContentTooLargeError, MalformedResponseError
from amqtt_rest_bridge.model import HttpRequest, HttpResponse, Method

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
# OpenSSL's X509_V_ERR_* of the cases that an operator meets, with what each asks for.
_CERTIFICATE_HINTS = {
    9: "It is not valid yet: check this machine's clock.",
    10: "The server needs a new certificate; check this machine's clock too.",
    18: "Put the certificate into a file and name it in CA_FILE.",
    19: "Put the certificate of that authority into a file and name it in CA_FILE.",
    20: "Name the certificate of its authority in CA_FILE, or configure the server to send its whole chain.",
    62: "Write the name that the certificate is made for into BASE_ADDRESS.",
    64: "Write the name that the certificate is made for into BASE_ADDRESS.",
}


def connecting_failed(where: str, error: OSError, seconds: float) -> CallError:
    """Explain why there is no connection; nothing has been sent."""
    if isinstance(error, TimeoutError):
        return CallError(
            FailureCode.TIMEOUT,
            f"no connection to {where} within {seconds:g} s",
            "Check host and port in BASE_ADDRESS and firewalls on the way; REQUEST_TIMEOUT may be too small.",
            unsent=True,
        )
    if isinstance(error, socket.gaierror | UnicodeError):
        message, hint = f"the host name of {where} is not known", "Check BASE_ADDRESS and this machine's name server."
    elif isinstance(error, ConnectionRefusedError):
        message, hint = f"{where} refused the connection", "Check that the server runs, and the port in BASE_ADDRESS."
    else:
        message = f"no connection to {where}: {_reason(error)}"
        hint = "Check BASE_ADDRESS, the network of this machine and firewalls on the way."
    return CallError(FailureCode.CONNECTION_FAILED, message, hint, unsent=True)


def proxy_failed(where: str, answer: str) -> CallError:
    """Explain that a proxy did not open the way to a server."""
    return CallError(
        FailureCode.CONNECTION_FAILED,
        f"no connection to {where}: the proxy answered {answer}",
        "Check that the proxy may reach this server, its credentials in HTTPS_PROXY, and NO_PROXY.",
        unsent=True,
    )


def files_unusable(where: str, error: ConfigurationError) -> CallError:
    """Explain that a route's files for TLS cannot be used; `error` names the setting and the path."""
    return CallError(
        FailureCode.TLS_FAILED,
        f"no TLS with {where}: {error}",
        "Put the file where the route's definition has it; it is read again for the next call.",
    )


def tls_failed(where: str, error: OSError, *, handshake: bool = True) -> CallError:
    """Explain why TLS could not be established, or broke.

    `unsent` is set only when trying again may help: a handshake that was cut off, not a certificate that was refused.
    """
    message = f"TLS with {where} failed: {_reason(error)}"
    hint = "Check that the server speaks TLS on this port: USE_SSL, and http:// or https:// in BASE_ADDRESS."
    if isinstance(error, ssl.SSLCertVerificationError):
        message = f"the certificate of {where} is refused: {error.verify_message}"
        hint = _CERTIFICATE_HINTS.get(error.verify_code, "Check the server's certificate, and CA_FILE.")
        return CallError(FailureCode.TLS_FAILED, message, hint)
    reason = (error.reason if isinstance(error, ssl.SSLError) else None) or ""
    if reason in _NO_TLS:
        message = f"{where} does not speak TLS on this port"
        hint = "Write http:// into BASE_ADDRESS and leave USE_SSL out, or give the port for TLS."
    elif reason in _CLIENT_CERTIFICATE:
        message = f"{where} does not accept the client certificate, or misses one ({_reason(error)})"
        hint = "Set CLIENT_CERT_FILE and CLIENT_KEY_FILE to a certificate that this server accepts."
    elif reason in _VERSION:
        hint = "The server must offer TLS 1.2 or newer."
    elif reason == "SSLV3_ALERT_HANDSHAKE_FAILURE":
        hint = "The server may want a client certificate (CLIENT_CERT_FILE), or offer no cipher that this machine has."
    cut_off = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError) or not isinstance(error, ssl.SSLError)
    if handshake and cut_off:
        message = f"{where} closed the connection during the TLS handshake"
    return CallError(FailureCode.TLS_FAILED, message, hint, unsent=handshake and cut_off)


def exchange_failed(where: str, error: Exception, wire: DeadlineSocket, *, seconds: float, limit: int) -> CallError:
    """Explain why there is no complete response, from the error and from how far the exchange had come."""
    phase = phase_of(wire)
    if isinstance(error, TimeoutError):
        return CallError(
            FailureCode.TIMEOUT,
            f"{where} was not done within {seconds:g} s ({phase})",
            "Check that the server is not overloaded, or raise REQUEST_TIMEOUT.",
            unsent=not wire.sent,
        )
    # http.client's own bounds: a line of 64 KiB, and 100 headers, for which it has no error of their own.
    if isinstance(error, HeadTooLargeError | ContentTooLargeError | LineTooLong) or type(error) is HTTPException:
        return _too_large(where, phase, limit)
    closed = isinstance(error, RemoteDisconnected | IncompleteRead | ssl.SSLEOFError | ssl.SSLZeroReturnError)
    if isinstance(error, ssl.SSLError) and not closed:
        return tls_failed(where, error, handshake=False)
    if not closed and not isinstance(error, OSError):
        return _malformed(where, error, phase)
    hint = "Check the server's log: it, or something on the way, ended the connection."
    if phase is Phase.WAITING and where.startswith("http://"):
        hint += " If this port speaks TLS, set USE_SSL or write https:// into BASE_ADDRESS."
    return CallError(
        FailureCode.CONNECTION_FAILED,
        f"{where} {'closed' if closed else 'broke off'} the connection while {phase}",
        hint,
        unsent=not wire.sent,
    )


def _too_large(where: str, phase: Phase, limit: int) -> CallError:
    if phase is not Phase.BODY:
        message = f"the response of {where} has more than 100 headers, or more than {LONGEST_HEAD} bytes of them"
        return CallError(FailureCode.RESPONSE_TOO_LARGE, message, "Check what the server sends.")
    return CallError(
        FailureCode.RESPONSE_TOO_LARGE,
        f"the response of {where} is larger than {limit} bytes",
        "Ask the server for less, or raise max_response_bytes of the plugin.",
    )


def _malformed(where: str, error: Exception, phase: Phase) -> CallError:
    if isinstance(error, NotHttpError) and error.first_bytes.startswith(_TLS_RECORDS):
        message = f"{where} expects TLS on this port"
        hint = "Set USE_SSL or write https:// into BASE_ADDRESS."
    elif phase is Phase.BODY:
        message = f"the response of {where} cannot be read: {_without_content(error)}"
        hint = "Check the server, and proxies on the way."
    else:
        message = f"{where} answered with something that is not HTTP/1.1: {_without_content(error)}"
        hint = "Check the port in BASE_ADDRESS, and the server."
    return CallError(FailureCode.CONNECTION_FAILED, message, hint)


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
    location = next((value for name, value in response.headers if name.lower() == "location"), None)
    if location is None:
        return None
    target = resolve(request.url, location)
    where = "an address that cannot be used" if target is None else str(target[0])
    if request.method is not Method.GET:
        reason, hint = f"{request.method} is not redirected", "Write the final address into BASE_ADDRESS and ENDPOINT."
    elif target is not None and may_follow(origin_of(urlsplit(request.url)), target[0]):
        reason = f"this was redirect {MOST_REDIRECTS + 1}, {MOST_REDIRECTS} are followed"
        hint = "The server redirects in a circle, or ENDPOINT should name the final path."
    else:
        reason = "only the same host and port is followed"
        hint = "If that server is meant, write it into BASE_ADDRESS; its credentials would go there too."
    return CallError(
        FailureCode.REDIRECT_REFUSED,
        f"the server answered {describe_status(response.status)} to {where}; {reason}",
        hint,
    )


def describe_status(status: int) -> str:
    """Return a status with its standard phrase; the server's own phrase never reaches a log line."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)

"""What went wrong on the network, in words: errors of sockets and TLS to `CallError` with the next thing to check.

Pure. `where` is an origin, never a path or query: those may hold what a payload brought.
"""

import os
import socket
import ssl
from http import HTTPStatus
from http.client import HTTPException, IncompleteRead, LineTooLong, RemoteDisconnected

from amqtt_rest_bridge.errors import CallError, ConfigurationError, FailureCode
from amqtt_rest_bridge.http_client.connection import LONGEST_HEAD, DeadlineSocket, HeadTooLargeError, NotHttpError
from amqtt_rest_bridge.http_client.content import ContentTooLargeError
from amqtt_rest_bridge.http_client.exchange import Phase, phase_of

_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")  # what a TLS server says to a plain request: an alert or handshake record
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
    20: "Name the certificate of its authority in CA_FILE, or let the server send its whole chain.",
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
        "Put the file where the route's definition says; it is looked at again for the next call.",
    )


def tls_failed(where: str, error: OSError, *, handshake: bool = True) -> CallError:
    """Explain why TLS did not come about, or broke.

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
        message = f"the response of {where} cannot be read: {_told(error)}"
        hint = "Check the server, and proxies on the way."
    else:
        message = f"{where} answered with something that is not HTTP/1.1: {_told(error)}"
        hint = "Check the port in BASE_ADDRESS, and the server."
    return CallError(FailureCode.CONNECTION_FAILED, message, hint)


def _told(error: Exception) -> str:
    """Give our own words for an error; http.client's quote what came, which is not for logs."""
    return type(error).__name__ if isinstance(error, HTTPException) else str(error)


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or type(error).__name__).lower().replace("_", " ")
    return os.strerror(error.errno) if error.errno and error.errno > 0 else type(error).__name__


def describe_status(status: int) -> str:
    """Give a status with its standard phrase; what the server calls it never reaches a log line."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)

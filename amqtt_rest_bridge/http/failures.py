"""Why an attempt has failed: libcurl's codes and texts become a `CallError`, whose hint says what to check next.

Pure. `where` is an origin, never a path or query, which may hold a part of a payload.
"""

import os
import re
from collections.abc import Sequence
from enum import StrEnum
from errno import ECONNREFUSED
from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import pycurl

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.catalogue import FailureRow
from amqtt_rest_bridge.errors import CallError, ConfigurationError
from amqtt_rest_bridge.http.origin import MOST_REDIRECTS, REDIRECTS, may_follow, origin_of, resolve
from amqtt_rest_bridge.lot.model import HttpRequest, HttpResponse, Method, values_of

LONGEST_HEAD: Final = 65_536
"""Bytes of a response's head."""
MOST_LINES: Final = 100
"""Lines of a response's head."""

_TLS_RECORDS: Final = (b"\x15\x03", b"\x16\x03")  # a TLS server answers a plain request with an alert or handshake
# Words in the texts of OpenSSL and libcurl, in lower case.
_NO_TLS: Final = ("wrong version number", "http request", "record layer failure", "unknown protocol", "packet length")
_VERSION: Final = ("unsupported protocol", "alert protocol version", "no protocols available")
_CLIENT_CERTIFICATE: Final = (
    "certificate required", "bad certificate", "certificate expired", "certificate revoked", "certificate unknown",
    "unsupported certificate", "access denied", "decrypt error", "unknown ca",
)  # fmt: skip
_CLOSED: Final = ("unexpected eof", "closed abruptly", "connection reset by peer", "ssl_error_syscall", "broken pipe")
_NOT_HTTP: Final = frozenset({pycurl.E_UNSUPPORTED_PROTOCOL, pycurl.E_FTP_WEIRD_SERVER_REPLY})
_TOO_LARGE: Final = 100  # CURLE_TOO_LARGE, which pycurl does not name
_TLS_CODES: Final = frozenset({pycurl.E_SSL_CONNECT_ERROR, pycurl.E_SSL_CIPHER, pycurl.E_SSL_CERTPROBLEM})
_ERROR_NUMBER: Final = re.compile(r" \([0-9]+\)$")  # of OpenSSL; libcurl 8.17 writes it behind the reason
_HOST_MISMATCH: Final = 62  # X509_V_ERR_HOSTNAME_MISMATCH


class Phase(StrEnum):
    """How far an attempt had come when it ended."""

    CONNECTING = "connecting"
    SENDING = "sending the request"
    WAITING = "waiting for the response"
    HEAD = "reading the response's headers"
    BODY = "reading the response's body"


class AttemptEnd(NamedTuple):
    """How libcurl has ended an attempt: its code and text, how far the attempt had come, and what else it knows.

    `tls` is whether the server is asked for TLS, `os_error` the system's error number or 0, `verify_result` OpenSSL's
    result of the verification, `connect_status` the status of a proxy's answer to CONNECT or 0.
    """

    code: int
    text: str
    phase: Phase
    tls: bool
    os_error: int = 0
    verify_result: int = 0
    connect_status: int = 0


def attempt_failed(where: str, end: AttemptEnd, *, seconds: float, limit: int) -> CallError:
    """Explain why an attempt has brought no response."""
    code, phase = end.code, end.phase
    if code == pycurl.E_OPERATION_TIMEDOUT:
        if phase is Phase.CONNECTING:
            return catalogue.TIMEOUT_CONNECTING.error(f"no connection to {where} within {seconds:g} s", unsent=True)
        return catalogue.TIMEOUT_ANSWERING.error(f"{where} was not done within {seconds:g} s ({phase})")
    if code == pycurl.E_SSL_CACERT:
        row: FailureRow | None = catalogue.CERTIFICATES.get(end.verify_result)
        why = _ERROR_NUMBER.sub("", end.text.rpartition(": ")[2])
        if row is None and "subject name" in end.text:
            row, why = catalogue.CERTIFICATES[_HOST_MISMATCH], "it is not valid for this host name or address"
        return (row or catalogue.CERTIFICATE).error(f"the certificate of {where} is refused: {why}")
    if phase is Phase.CONNECTING:
        return _not_connected(where, end)
    is_of_tls = end.tls and (code in _TLS_CODES or "ssl routines" in end.text.lower())
    if is_of_tls and not _was_closed(end):  # with TLS 1.3 a client certificate is refused after the handshake
        return _tls_failed(where, end)
    return _not_answered(where, end, limit)


def malformed(where: str, why: str, phase: Phase, first_bytes: bytes = b"") -> CallError:
    """Explain that a response is not HTTP, or is ambiguous; `why` holds nothing of the response."""
    if first_bytes.startswith(_TLS_RECORDS):
        return catalogue.TLS_EXPECTED.error(f"{where} expects TLS on this port")
    if phase is Phase.BODY:
        return catalogue.UNREADABLE_BODY.error(f"the response of {where} cannot be read: {why}")
    return catalogue.NOT_HTTP.error(f"{where} answered with something that is not HTTP: {why}")


def head_too_large(where: str) -> CallError:
    """Explain that a response has too many headers."""
    what = f"the response of {where} has more than {MOST_LINES} headers, or more than {LONGEST_HEAD} bytes of them"
    return catalogue.RESPONSE_HEAD_TOO_LARGE.error(what)


def body_too_large(where: str, limit: int) -> CallError:
    """Explain that a body, decoded or not, is larger than `limit` bytes."""
    return catalogue.RESPONSE_BODY_TOO_LARGE.error(f"the response of {where} is larger than {limit} bytes")


def files_unusable(where: str, error: ConfigurationError) -> CallError:
    """Explain that a route's files for TLS cannot be used; `error` names the setting and the path."""
    return catalogue.TLS_FILES.error(f"no TLS with {where}: {error}")


def connection_ended(where: str, phase: Phase, *, was_closed: bool = True, tls: bool = True) -> CallError:
    """Explain that a connection was closed, or broke, before the response was complete."""
    row = catalogue.CONNECTION_ENDED
    if phase is Phase.WAITING:  # with TLS 1.3 a server refuses a client's certificate only after the handshake
        row = catalogue.TLS_CONNECTION_ENDED if tls else catalogue.PLAIN_CONNECTION_ENDED
    return row.error(f"{where} {'closed' if was_closed else 'broke off'} the connection while {phase}")


def closed_before(where: str) -> CallError:
    """Explain that a kept connection was closed by its server, which may have seen the request."""
    message = f"{where} closed the kept connection while {Phase.WAITING}; the request must not be repeated"
    return catalogue.CONNECTION_ENDED.error(message)


def _not_answered(where: str, end: AttemptEnd, limit: int) -> CallError:
    """Explain why a request that was sent, or was about to be, has no complete response."""
    code, phase = end.code, end.phase
    if code == pycurl.E_FILESIZE_EXCEEDED:
        return body_too_large(where, limit)
    if code in _NOT_HTTP:
        return malformed(where, end.text, phase)
    if code == pycurl.E_BAD_CONTENT_ENCODING:
        return malformed(where, "its Transfer-Encoding is not chunked", phase)
    if code == _TOO_LARGE or "too large response headers" in end.text.lower():
        return head_too_large(where)
    if phase is Phase.BODY and code in (pycurl.E_RECV_ERROR, pycurl.E_WRITE_ERROR) and "chunk" in end.text.lower():
        return malformed(where, "one of its chunks has no proper size", phase)
    if phase is Phase.BODY and "unexpected eof" in end.text.lower():
        what = f"{where} closed the connection while {phase}, without TLS's close_notify"
        return catalogue.CONNECTION_ENDED.error(what)
    was_closed = code in (pycurl.E_GOT_NOTHING, pycurl.E_PARTIAL_FILE) or not end.os_error
    return connection_ended(where, phase, was_closed=was_closed, tls=end.tls)


def _not_connected(where: str, end: AttemptEnd) -> CallError:
    """Explain why there is no connection to the server."""
    code = end.code
    if end.connect_status >= 300 or "CONNECT" in end.text or code in _NOT_HTTP:
        if code in _NOT_HTTP:
            did = "answered with something that is not HTTP"
        else:
            did = f"answered {describe_status(end.connect_status)}" if end.connect_status else "opened no tunnel"
        return catalogue.PROXY_REFUSED.error(f"no connection to {where}: the proxy {did}", unsent=True)
    if code in (pycurl.E_COULDNT_RESOLVE_HOST, pycurl.E_COULDNT_RESOLVE_PROXY):
        return catalogue.UNKNOWN_HOST.error(f"the host name of {where} is not known", unsent=True)
    if end.tls and code != pycurl.E_COULDNT_CONNECT:
        return _tls_failed(where, end)
    if end.os_error == ECONNREFUSED:
        return catalogue.CONNECTION_REFUSED.error(f"{where} refused the connection", unsent=True)
    why = os.strerror(end.os_error) if end.os_error else end.text
    return catalogue.UNREACHABLE.error(f"no connection to {where}: {why}", unsent=True)


def _was_closed(end: AttemptEnd) -> bool:
    return any(words in end.text.lower() for words in _CLOSED)


def _tls_failed(where: str, end: AttemptEnd) -> CallError:
    """Explain why TLS could not be established, or broke.

    Only a handshake that was cut off is `unsent`, so that the call is tried again; a refused certificate stays refused.
    """
    reason = end.text.lower().partition(", errno")[0].rpartition(":")[2].strip()
    message, row = f"TLS with {where} failed: {reason}", catalogue.NO_TLS
    if any(words in reason for words in _NO_TLS):
        message, row = f"{where} does not speak TLS on this port", catalogue.PLAIN_PORT
    elif any(words in reason for words in _CLIENT_CERTIFICATE):
        message = f"{where} does not accept the client certificate, or misses one ({reason})"
        row = catalogue.CLIENT_CERTIFICATE
    elif any(words in reason for words in _VERSION):
        row = catalogue.TLS_VERSION
    elif "handshake failure" in reason:
        row = catalogue.TLS_HANDSHAKE
    elif end.phase is Phase.CONNECTING and _was_closed(end):
        return row.error(f"{where} closed the connection during the TLS handshake", unsent=True)
    return row.error(message)


def redirect_refused(request: HttpRequest, response: HttpResponse) -> CallError | None:
    """Explain why `send` did not follow a redirect; None if the response does not redirect."""
    if response.status not in REDIRECTS:
        return None
    locations: Sequence[str] = values_of(response.headers, "location")
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

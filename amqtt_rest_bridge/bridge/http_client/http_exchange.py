"""One request and its response over a connection: http.client does HTTP, this module makes it stricter.

Runs on client workers. Knows nothing of routes, proxies or retries.
"""

import contextlib
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import NamedTuple

from amqtt_rest_bridge.bridge.http_client.http_connection import LONGEST_HEAD, Connection, DeadlineSocket
from amqtt_rest_bridge.bridge.http_client.http_content import ContentTooLarge, decode_content

Headers = tuple[tuple[str, str], ...]

_FOLD = re.compile(r"[ \t]*\r?\n[ \t]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_KEEP_ALIVE_TIMEOUT = re.compile(r"\btimeout\s*=\s*([0-9]{1,6})", re.IGNORECASE)
_CHUNK_OVERHEAD = 8  # bytes on the wire for one of the body, when each has a chunk of its own


class Phase(StrEnum):
    """How far an exchange had come when it ended."""

    SENDING = "sending the request"
    WAITING = "waiting for the response"
    HEAD = "reading the response's headers"
    BODY = "reading the response's body"


class MalformedResponse(Exception):  # noqa: N818  # says what the response is
    """The response cannot be read; the message says why, without what came."""


class Received(NamedTuple):
    """A response read to its end; `reusable` tells that its connection may carry another request."""

    status: int
    reason: str
    headers: Headers
    body: bytes
    reusable: bool
    keep_alive_seconds: int | None


class FinalResponse(HTTPResponse):
    """Passes over every interim response (RFC 9110 section 15.2); http.client only knows 100."""

    def begin(self) -> None:
        """Read the head of the final response."""
        super().begin()
        while 100 <= self.status < 200:
            if self.status == 101:
                raise MalformedResponse("it switches to a protocol that nobody asked for")
            self.headers = self.msg = None  # type: ignore[assignment]  # what makes http.client begin again
            super().begin()


def exchange(
    connection: Connection, method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes | None, limit: int
) -> Received:
    """Send a request and read its response, its content coding undone.

    The connection's wire must have been started; it tells how far the exchange came when this raises.

    Raises:
        TimeoutError: the deadline passed.
        OSError: the connection broke or was closed; `ssl.SSLError` among them.
        HTTPException, NotHttp, MalformedResponse, MalformedContent: what came is not a complete response.
        HeadTooLarge, ContentTooLarge: head or body is larger than allowed.
        ValueError: target or headers hold what would change the shape of the request.
    """
    http, wire = connection.http, connection.wire
    _send(http, method, target, headers, body)
    try:
        response = HTTPConnection.getresponse(http)
    except (ConnectionError, HTTPException):
        if wire.cut_off is not None:
            raise wire.cut_off from None
        raise
    wire.room = wire.received + LONGEST_HEAD + limit * _CHUNK_OVERHEAD
    if response.headers.defects or response.headers.get_payload():
        raise MalformedResponse("one of its header lines has no name")
    fields = tuple([(name, _text(value)) for name, value in response.headers.raw_items()])
    named = {name.lower(): value for name, value in fields}
    content = _read_body(response, named, limit)
    if "content-encoding" in named:
        content = decode_content(content, named["content-encoding"], limit)
    # RFC 9112 section 6.1: with both lengths given, someone on the way may have seen another end of this response.
    ambiguous = response.chunked and "content-length" in named
    return Received(
        response.status,
        _text(response.reason),
        fields,
        content,
        wire.kept and not ambiguous and wire.is_clean(),
        _keep_alive_seconds(named.get("keep-alive")),
    )


def _send(
    http: HTTPConnection, method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes | None
) -> None:
    """Send a request with no header but those given."""
    http.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
    # Not urllib3's own putheader and getresponse: the one looks for a marker in each value that is never there, the
    # other wraps the response in objects that are not needed here; together they cost 40 us a call.
    put = HTTPConnection.putheader
    for name, value in headers:
        # http.client writes latin-1: this way round, UTF-8 goes out (decisions section 4).
        put(http, name, value if value.isascii() else value.encode().decode("latin-1"))
    http.endheaders(body)


def phase_of(wire: DeadlineSocket) -> Phase:
    """Tell how far an exchange has come."""
    if not wire.flushed:
        return Phase.SENDING
    if not wire.received:
        return Phase.WAITING
    return Phase.HEAD if wire.room == LONGEST_HEAD else Phase.BODY


def _read_body(response: HTTPResponse, named: Mapping[str, str], limit: int) -> bytes:
    """Read a body of `limit` bytes at most; framing that http.client would take lightly is malformed."""
    if response.chunked:
        try:
            content = response.read(limit + 1)
        except ValueError as error:  # http.client takes a negative chunk size for a number of bytes to read
            raise MalformedResponse("one of its chunks has a negative size") from error
    else:
        length = response.length
        _check_length(response, named)
        if length is not None and length > limit:
            raise ContentTooLarge
        content = response.read(limit + 1) if length is None else response.read()
    if len(content) > limit:
        raise ContentTooLarge
    return content


def _check_length(response: HTTPResponse, named: Mapping[str, str]) -> None:
    """Refuse lengths that two readers could understand differently (RFC 9112 section 6.3)."""
    if "transfer-encoding" in named:
        raise MalformedResponse("its Transfer-Encoding is not chunked")
    length = named.get("content-length")
    if length is not None:
        if not (length.isascii() and length.isdigit()) or response.length is None:  # None: thousands of digits
            raise MalformedResponse("its Content-Length is not a number")
        if len(named) < len(response.headers) and len(set(response.headers.get_all("content-length", ()))) > 1:
            raise MalformedResponse("it has two different Content-Lengths")


def _text(value: str) -> str:
    """Give a header as text: UTF-8 where it is that, folds and controls as spaces (RFC 9110 section 5.5)."""
    if not value.isascii():
        with contextlib.suppress(UnicodeError):  # bytes that are neither ASCII nor UTF-8 stay latin-1
            value = value.encode("latin-1").decode()
    if not value.isprintable():
        value = _CONTROL.sub(" ", _FOLD.sub(" ", value))
    return value.strip()


def _keep_alive_seconds(text: str | None) -> int | None:
    match = None if text is None else _KEEP_ALIVE_TIMEOUT.search(text)
    return None if match is None else int(match[1])

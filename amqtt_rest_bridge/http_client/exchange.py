"""One request and its response over a connection: http.client does HTTP, this module makes it stricter.

Runs on client workers. Knows nothing of routes, proxies or retries.
"""

import contextlib
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from http.client import BadStatusLine, HTTPConnection, HTTPException, HTTPResponse, IncompleteRead, RemoteDisconnected
from typing import IO, Any, NamedTuple, cast

from amqtt_rest_bridge.http_client.connection import LONGEST_HEAD, Connection, DeadlineSocket, HeadTooLargeError
from amqtt_rest_bridge.http_client.content import ContentTooLargeError, decode_content

Headers = tuple[tuple[str, str], ...]

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_WITHOUT_BODY = frozenset({204, 304})  # whatever their headers say
_LONGEST_NUMBER = 30  # digits of a Content-Length
_MOST_LINES = 100  # of headers, http.client's bound
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_STATUS_LINE = re.compile(r"HTTP/1\.([0-9]) +([1-9][0-9]{2})((?: [^\n]*)?)\r?\n")
_KEEP_ALIVE_TIMEOUT = re.compile(r"\btimeout\s*=\s*([0-9]{1,6})", re.IGNORECASE)
_CHUNK_OVERHEAD = 8  # bytes on the wire for one of the body, when each has a chunk of its own


class Phase(StrEnum):
    """How far an exchange had come when it ended."""

    SENDING = "sending the request"
    WAITING = "waiting for the response"
    HEAD = "reading the response's headers"
    BODY = "reading the response's body"


class MalformedResponseError(Exception):
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
    """http.client's response, with its head read here: stricter, and in a third of the email parser's time.

    Interim responses (RFC 9110 section 15.2) are passed over; http.client only knows 100.
    """

    fields: Headers
    named: Mapping[str, str]
    """The fields by lower-case name; of a name that comes twice the last."""

    # http.client's `close` and `flush` expect a file that is there and open. From Python 3.13 on, failures of the
    # `close` that happens when a response is collected are reported.
    fp: Any = None  # the request may fail before there is one

    def __init__(self, sock: socket.socket, debuglevel: int = 0, method: str | None = None) -> None:
        super().__init__(sock, debuglevel, method)
        self._opens_tunnel = method == "CONNECT"

    def flush(self) -> None:
        """Do nothing: the file belongs to the connection, which may have been closed before."""

    def begin(self) -> None:
        """Read the head of the final response."""
        status = 100
        while 100 <= status < 200:
            minor, status, reason = _status(self.fp)
            self.fields = tuple(_fields(self.fp))
            if status == 101:
                raise MalformedResponseError("it switches to a protocol that nobody asked for")
        self.named = {name.lower(): value for name, value in self.fields}
        self.status, self.reason, self.version = status, reason, 10 if minor == 0 else 11
        self._frame()
        options = ",".join(self._all("connection")).lower()
        closes = "close" in options or (minor == 0 and "keep-alive" not in options)  # RFC 9112 section 9.3
        self.will_close = closes or self._end_is_uncertain()

    def _frame(self) -> None:
        """Find out where the body ends (RFC 9112 section 6.3)."""
        self.chunked, self.chunk_left, self.length = False, None, None
        if self.status in _WITHOUT_BODY or (self._opens_tunnel and 200 <= self.status < 300):
            self.length = 0
        elif "transfer-encoding" in self.named:
            if {value.lower() for value in self._all("transfer-encoding")} != {"chunked"}:
                raise MalformedResponseError("its Transfer-Encoding is not chunked")
            self.chunked = True
        elif "content-length" in self.named:
            lengths = set(self._all("content-length"))
            if len(lengths) > 1:
                raise MalformedResponseError("it has two different Content-Lengths")
            self.length = _length(lengths.pop())

    def _end_is_uncertain(self) -> bool:
        """Say whether more may come, which a later response could not be told from: a body that should not be there."""
        if self.status == 204:
            return "transfer-encoding" in self.named or self.named.get("content-length", "0") != "0"
        if self.status == 304:  # its Content-Length is that of the answer it stands for
            return "transfer-encoding" in self.named
        return not self.chunked and self.length is None

    def _all(self, wanted: str) -> list[str]:
        return [value for name, value in self.fields if name.lower() == wanted]


def _status(file: IO[bytes]) -> tuple[int, int, str]:
    """Read a status line: minor version, status and reason."""
    line = file.readline()
    if not line:
        raise RemoteDisconnected("")
    match = _STATUS_LINE.fullmatch(line.decode("latin-1"))
    if match is None:
        raise BadStatusLine("")
    return int(match[1]), int(match[2]), _text(match[3])


def _fields(file: IO[bytes]) -> Iterator[tuple[str, str]]:
    """Read header lines up to the empty one; a line that begins with a space goes on with the one before (a fold)."""
    name, value, count = "", "", 0
    while (line := file.readline()) not in (b"\r\n", b"\n"):
        count += 1
        if count > _MOST_LINES:
            raise HeadTooLargeError
        if not line.endswith(b"\n"):
            raise IncompleteRead(b"")
        text = line.decode("latin-1").rstrip(" \t\r\n")
        if line[0] in b" \t" and name:
            value += " " + text.strip(" \t")
            continue
        if name:
            yield name, _text(value)
        name, colon, value = text.partition(":")
        name = name.rstrip(" \t")
        if not colon or not _NAME.fullmatch(name):
            raise MalformedResponseError("one of its header lines has no name that HTTP allows")
    if name:
        yield name, _text(value)


def _length(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER):
        raise MalformedResponseError("its Content-Length is not a number")
    return int(text)


def connect(http: HTTPConnection, wire: DeadlineSocket) -> Connection:
    """Give an unconnected HTTP connection its socket, and `exchange` what it needs of it."""
    http.response_class = FinalResponse
    http.sock = cast(socket.socket, wire)  # it has what http.client uses of a socket
    return Connection(http, wire)


def exchange(
    connection: Connection, method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes | None, limit: int
) -> Received:
    """Send a request and read its response, its content coding undone.

    The connection's wire must have been started; it tells how far the exchange came when this raises.

    Raises:
        TimeoutError: the deadline passed.
        OSError: the connection broke or was closed; `ssl.SSLError` among them.
        HTTPException, NotHttpError, MalformedResponseError, MalformedContentError: it is not a complete response.
        HeadTooLargeError, ContentTooLargeError: head or body is larger than allowed.
        ValueError: target or headers hold what would change the shape of the request.
    """
    http, wire = connection.http, connection.wire
    _send(http, method, target, headers, body)
    try:
        response = cast(FinalResponse, HTTPConnection.getresponse(http))
    except (ConnectionError, HTTPException):
        if wire.cut_off is not None:
            raise wire.cut_off from None
        raise
    wire.room = wire.received + LONGEST_HEAD + limit * _CHUNK_OVERHEAD
    named = response.named
    content = _read_body(response, limit)
    if "content-encoding" in named:
        content = decode_content(content, named["content-encoding"], limit)
    # RFC 9112 section 6.1: with both lengths given, someone on the way may have seen another end of this response.
    ambiguous = response.chunked and "content-length" in named
    return Received(
        response.status,
        response.reason,
        response.fields,
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


def _read_body(response: FinalResponse, limit: int) -> bytes:
    """Read a body of `limit` bytes at most."""
    length = response.length
    if response.chunked:
        try:
            content = response.read(limit + 1)
        except ValueError as error:  # http.client takes a negative chunk size for a number of bytes to read
            raise MalformedResponseError("one of its chunks has a negative size") from error
    elif length is not None and length > limit:
        raise ContentTooLargeError
    else:
        content = response.read(limit + 1) if length is None else response.read()
    if len(content) > limit:
        raise ContentTooLargeError
    return content


def _text(value: str) -> str:
    """Give a header as text: UTF-8 where it is that, controls as spaces (RFC 9110 section 5.5)."""
    if not value.isascii():
        with contextlib.suppress(UnicodeError):  # bytes that are neither ASCII nor UTF-8 stay latin-1
            value = value.encode("latin-1").decode()
    if not value.isprintable():
        value = _CONTROL.sub(" ", value)
    return value.strip()


def _keep_alive_seconds(text: str | None) -> int | None:
    match = None if text is None else _KEEP_ALIVE_TIMEOUT.search(text)
    return None if match is None else int(match[1])

"""Requests and answers, which a port and its application exchange, and how they are read and written. No I/O.

llhttp (httptools) reads fields, lengths and chunks of a request, and refuses what is not HTTP. `RequestReader` adds
what llhttp leaves open: the end of a request among the bytes that came, so that the next one waits; bounds for head,
body and chunks; the request line, of which llhttp knows only some methods and targets; Host; what two servers could
read differently. `event_of` and `Pulse` write server-sent events (WHATWG HTML section 9.2).
"""

import json
import re
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from typing import Any, Final, Protocol

import httptools
from msgspec import Struct

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.catalogue import NOT_IMPLEMENTED, AnswerRow
from amqtt_rest_bridge.errors import BridgeError

_AUTHORITY: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")  # absolute-form, RFC 9112 section 3.2.2
_NO_LENGTH: Final = ("204", "304")

Headers = tuple[tuple[str, str], ...]
Labels = tuple[tuple[str, str], ...]
"""Of an answer: fields of its line in the access log."""

RETRY_AFTER: Final[Headers] = (("Retry-After", "1"),)

HEADER_BYTES: Final = 65_536  # request line and headers together
_LINE_BYTES: Final = 16_384  # of size lines and trailers, from one content to the next

_HOST: Final = r"(?:\[[\w.~!$&'()*+;=%:-]+\]|[\w.~!$&'()*+;=%-]*)(?::[0-9]*)?"  # RFC 9110 section 7.2
_IS_HOST: Final = re.compile(_HOST, re.ASCII)
_IS_TARGET: Final = re.compile(rf"[A-Za-z][A-Za-z0-9+.-]*://{_HOST}(?:[/?].*)?|(?!.*://).*", re.ASCII)
_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Z-]+) ([^\x00-\x20\x7f]+) HTTP/1\.([01])\r\n")
_UPGRADE: Final = re.compile(rb"(?i)\r\nupgrade(?=[ \t]*:)")
_SIZE: Final = re.compile(rb"[0-9A-Fa-f]*")

HEADERS: Final = (
    ("Content-Type", "text/event-stream"),
    ("Cache-Control", "no-store"),
    ("X-Accel-Buffering", "no"),  # a proxy must not gather events
    ("X-Content-Type-Options", "nosniff"),
)
RETRY: Final = b"retry: 2000\n\n"
"""At the beginning: a browser connects again 2 s after the end."""

_BEAT_SECONDS: Final = 15.0
_BEAT: Final = b": still here\n\n"
_LINE_BREAK: Final = re.compile("\r\n|\r|\n")


class Caller:
    """The peer that waits for an answer. One of this class itself never leaves."""

    has_left = False
    """It has closed its side: it is gone, or still waits for its answer (RFC 9293 section 3.6); TCP does not tell."""

    def when_left(self, action: Callable[[], None]) -> None:
        """Call `action` once it has left. The last action that was given counts."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error answer of a request that is not served; `headers` are added to it."""

    code: str
    status: str
    message: str
    hint: str
    headers: Headers = ()

    @property
    def body(self) -> bytes:
        """Return the answer's body, JSON in UTF-8."""
        error = {"code": self.code, "message": self.message, "hint": self.hint}
        return json.dumps({"error": error}).encode()


class Request(Struct, frozen=True):
    """A request as it came, its body complete.

    Texts hold the octets that were sent as Latin-1, since HTTP leaves their encoding open (RFC 9110 section 5.5).
    `target` and `query` are as in the request line; names of `headers` are in lower case, values of repeated ones are
    joined by commas; `remote` is the address of the peer. With a `refusal` the server has not read the request to its
    end, or does not admit it: the application only adds the endpoint's own headers, such as CORS headers.
    """

    id: str
    method: str
    target: str
    query: str
    headers: Mapping[str, str]
    body: bytes = b""
    refusal: Refusal | None = None
    remote: str = ""
    caller: Caller = Caller()


class ResponseStream(Protocol):
    """A body that comes piece by piece, such as server-sent events.

    The next piece is taken once the one before has left, so a caller that does not read holds one piece here.
    """

    def begin(self, wake: Callable[[], None]) -> None:
        """Begin: `wake` has the next piece taken. It may be called at any time and more than once."""
        ...

    def take(self) -> bytes | float:
        """Return the next piece, b"" at the end, or the seconds after which to ask again although nothing woke it."""
        ...

    def close(self) -> None:
        """Release what is held: the connection has been closed, or the body has ended."""
        ...


class Response(Struct, frozen=True):
    """An answer, or with a `stream` the beginning of one.

    The server adds Content-Length, Date, Connection and X-Request-ID. `code` is an error's, for the access log, where
    `labels` become fields. A stream ends with its connection (RFC 9112 section 6.3); the answer to a HEAD has none.
    """

    status: str
    headers: Headers = ()
    body: bytes = b""
    code: str | None = None
    labels: Labels = ()
    stream: ResponseStream | None = None


Answer = Response | Coroutine[Any, Any, Response]
"""An answer, or what makes one that has to wait."""


class Application(Protocol):
    """What answers the requests of a port."""

    def answer(self, request: Request) -> Answer:
        """Answer a request, or return the coroutine that does; called once for each, and must not block.

        A coroutine is not begun where too many answers wait already; the request comes once more then, with a refusal.
        """
        ...


def path_of(target: str) -> str:
    """Return the path, as sent, out of a request target (RFC 9112 section 3.2)."""
    if not target.startswith("/") and (authority := _AUTHORITY.match(target)):
        target = target[authority.end() :]
        if not target.startswith("/"):
            target = "/" + target
    return target.partition("?")[0]


def takes_gzip(accept_encoding: str | None) -> bool:
    """Return whether an Accept-Encoding field takes gzip (RFC 9110 section 12.5.3).

    A weight of 0 forbids a coding; `*` holds for those that are not named.
    """
    if not accept_encoding:
        return False
    taken: dict[str, bool] = {}
    for item in "".join(accept_encoding.lower().split()).split(","):
        coding, _, weight = item.partition(";")
        taken.setdefault(coding, not weight or weight.removeprefix("q=").strip("0.") != "")
    return taken.get("gzip", taken.get("x-gzip", taken.get("*", False)))


def write_head(response: Response, request_id: str, now: int, version: str = "1.1", *, close: bool) -> bytes:
    """Return the head of an answer; `now` is Unix time.

    Raises `ValueError` for a header value that would break the answer or cannot be written.
    """
    length = None if response.status[:3] in _NO_LENGTH or response.stream is not None else len(response.body)
    head = _fields(response.status, response.headers, length, version, close)
    return b"%bX-Request-ID: %b\r\n%b\r\n" % (head, request_id.encode(), _date(now))


@lru_cache(maxsize=64)  # most answers are alike; one may have 64 KiB of headers, which came from its caller
def _fields(status: str, headers: Headers, length: int | None, version: str, close: bool) -> bytes:
    lines = [f"HTTP/{version} {status}"]
    for name, value in headers:
        if "\n" in value or "\r" in value or not value.isascii():
            raise ValueError(f"the value of {name} does not fit into a header")
        lines.append(f"{name}: {value}")
    if length is not None:
        lines.append(f"Content-Length: {length}")
    if close:
        lines.append("Connection: close")
    elif version == "1.0":
        lines.append("Connection: keep-alive")
    return "\r\n".join([*lines, ""]).encode("latin-1")


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    return f"Date: {formatdate(second, usegmt=True)}\r\n".encode()


# Error answers: by the catalogue's rows, and those of the server itself.


class RequestRefusedError(BridgeError):
    """A request gets an error answer."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def refuse(row: AnswerRow, message: str, headers: Headers = (), *, hint: str | None = None) -> Refusal:
    """Return the answer of a row; `headers` go with it, `hint` replaces the row's where it holds facts."""
    return Refusal(row.code, row.status, message, row.hint if hint is None else hint, headers)


def refused(refusal: Refusal, headers: Headers = (), labels: Labels = ()) -> Response:
    """Return a refusal as an answer, with `headers` before its own."""
    content_type = ("Content-Type", "application/json")
    return Response(refusal.status, (*headers, *refusal.headers, content_type), refusal.body, refusal.code, labels)


def invalid_request(message: str) -> Refusal:
    """Refuse a request that is not HTTP."""
    return refuse(catalogue.INVALID_REQUEST, message)


def request_timeout(seconds: float) -> Refusal:
    """Refuse a request of which only a part came in time."""
    return refuse(catalogue.REQUEST_TIMEOUT, f"The request did not arrive within {seconds:g} seconds")


def too_large(limit: int) -> Refusal:
    """Refuse a body of more than `limit` bytes."""
    return refuse(catalogue.PAYLOAD_TOO_LARGE, f"The request's body is over the limit of {limit} bytes")


def headers_too_large(limit: int) -> Refusal:
    """Refuse a request line and headers of more than `limit` bytes together."""
    message = f"The request line and headers are over the limit of {limit} bytes"
    return refuse(catalogue.HEADERS_TOO_LARGE, message)


def internal_error() -> Refusal:
    """Answer a request on which the server or its application failed, without a word of the cause."""
    return refuse(catalogue.INTERNAL_ERROR, "The bridge failed on this request")


def overloaded(message: str = "The bridge serves as many requests as it can; this one was not published") -> Refusal:
    """Refuse a request for which there is no room."""
    return refuse(catalogue.NO_ROOM, message, RETRY_AFTER)


def shutting_down() -> Refusal:
    """Refuse a request that came while the port closes."""
    return refuse(catalogue.SHUTTING_DOWN, "The bridge is shutting down; this request was not published", RETRY_AFTER)


class RequestReader:
    """Reads one request at a time; `begin` the next one once it `is_complete`. It is also once there is a `refusal`.

    `is_understood`: the head has been read, so that a refusal can be the endpoint's.

    Args:
        max_body_bytes: A larger body is refused as soon as that is known.
    """

    def __init__(self, max_body_bytes: int) -> None:
        self._limit = max_body_bytes
        self._llhttp = httptools.HttpRequestParser(self)
        self.begin()

    def begin(self) -> None:
        """Begin a request."""
        self.method = self.target = ""
        self.version = "1.1"
        self.headers: dict[str, str] = {}
        self.size = 0
        """Bytes of its body that have come."""
        self.refusal: Refusal | None = None
        self.is_complete = self.is_understood = self.is_last = False
        self._held = b""  # of a head that has not come to its end
        self._body = bytearray()
        self._left = 0  # bytes of the body, or of the chunk that is being read
        self._is_chunked = False
        self._at_size = True  # a line that begins now has the size of a chunk
        self._line = b""  # such a line, as far as it has come
        self._lines = 0  # bytes of lines between chunks since there was content

    @property
    def has_begun(self) -> bool:
        """Return whether a part of a request has come."""
        return bool(self._held) or self.is_understood

    @property
    def wants_to_continue(self) -> bool:
        """Return whether the caller waits for 100 Continue before it sends its body (RFC 9110 section 10.1.1)."""
        is_open = self.is_understood and not self.is_complete and self.size == 0
        return is_open and self.version == "1.1" and self.headers.get("expect", "").lower() == "100-continue"

    def take_body(self) -> bytes:
        """Return the body, and hold it no longer."""
        body, self._body = self._body, bytearray()
        return bytes(body)

    def read(self, data: bytes) -> bytes:
        """Read up to the end of the request; return what is behind it."""
        try:
            if not self.is_understood:
                data = self._read_head(data)
            while data and not self.is_complete:
                data = self._read_chunked(data) if self._is_chunked else self._read_body(data)
        except httptools.HttpParserError as error:
            self.refuse(_invalid(str(error)))  # words of llhttp, never the caller's
        return data

    def _read_head(self, data: bytes) -> bytes:
        held = self._held + data if self._held else data.lstrip(b"\r\n")  # RFC 9112 section 2.2
        end = held.find(b"\r\n\r\n") + 4
        line = _LINE.match(held, 0, HEADER_BYTES)
        if end == 3:
            self._held = held
            if len(held) >= HEADER_BYTES:
                self.refuse(headers_too_large(HEADER_BYTES))
            elif b"\n\n" in held or (b"\n" in held and line is None):
                self.refuse(_invalid("its first line is not one of HTTP/1.1"))
            return b""
        self._held = b""
        if end > HEADER_BYTES:
            self.refuse(headers_too_large(HEADER_BYTES))
        elif line is None:
            self.refuse(_invalid("its first line is not one of HTTP/1.1"))
        else:
            method, target, version = line.groups()
            self.method, self.target, self.version = method.decode(), target.decode("latin-1"), f"1.{version.decode()}"
            self._read_fields(b"POST / HTTP/1.%b\r\n" % version + held[line.end() : end])
        return held[end:]

    def _read_fields(self, head: bytes) -> None:
        """Read a head, whose request line is one that llhttp knows."""
        try:
            self._llhttp.feed_data(head)
        except httptools.HttpParserUpgrade:
            # It may be ignored (RFC 9110 section 7.8), but llhttp would read no body behind it.
            self._llhttp = httptools.HttpRequestParser(self)
            self.headers, self.is_complete, self.is_understood = {}, False, False
            self._read_fields(_UPGRADE.sub(b"\r\nIgnored-Upgrade", head))

    def _read_body(self, data: bytes) -> bytes:
        piece = data[: self._left]
        self._left -= len(piece)
        self._llhttp.feed_data(piece)
        return data[len(piece) :]

    def _read_chunked(self, data: bytes) -> bytes:
        """Read a part of a chunk, or of a line: the size of a chunk, its end, a trailer."""
        if self._left:
            self._lines = 0
            return self._read_body(data)
        piece = data[: data.find(b"\n") + 1 or len(data)]
        self._lines += len(piece)
        if self._at_size:
            self._line += piece
            if (size := _SIZE.match(self._line)) and size.end() > 16:  # 64 bits: llhttp would call it invalid
                self.refuse(too_large(self._limit))
        if self._lines > _LINE_BYTES:
            self.refuse(invalid_request("A chunk's size line or the trailer section is too long"))
        if self.refusal is None:
            self._llhttp.feed_data(piece)
        return data[len(piece) :]

    def refuse(self, refusal: Refusal) -> None:
        """Read no further."""
        self.refusal = self.refusal or refusal
        self.is_complete = self.is_last = True
        self._body = bytearray()

    # What llhttp calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note a field."""
        if self.is_understood:  # a trailer
            return
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        known = self.headers.get(key)
        self.headers[key] = text if known is None else f"{known}, {text}"

    def on_headers_complete(self) -> None:
        """Check what was read of the head."""
        headers, coding = self.headers, self.headers.get("transfer-encoding")
        host = headers.get("host")
        self._is_chunked = coding is not None
        self._left = int(headers.get("content-length", 0))
        if not _IS_HOST.fullmatch("" if host is None else host) or (host is None and self.version == "1.1"):
            self.refuse(_invalid("HTTP/1.1 needs exactly one Host header, a host with or without a port"))
        elif not self.target.startswith("/") and not _IS_TARGET.fullmatch(self.target):
            self.refuse(_invalid("the request target holds a user name, or no address"))
        elif coding is not None and self.version == "1.0":
            self.refuse(_invalid("HTTP/1.0 has no Transfer-Encoding"))
        elif coding is not None and coding.lower() != "chunked":
            self.refuse(refuse(NOT_IMPLEMENTED, "The Transfer-Encoding of the request is not supported"))
        else:
            self.is_understood = True
            if self._left > self._limit:
                self.refuse(too_large(self._limit))

    def on_chunk_header(self) -> None:
        """Note the size of a chunk, which counts before it has come."""
        match = _SIZE.match(self._line)
        self._left = int(match[0], 16) if match else 0
        self._at_size, self._line = False, b""
        if self.size + self._left > self._limit:
            self.refuse(too_large(self._limit))

    def on_chunk_complete(self) -> None:
        """Expect the size of the next chunk."""
        self._at_size = True

    def on_body(self, part: bytes) -> None:
        """Note a part of the body."""
        self.size += len(part)
        self._body += part

    def on_message_complete(self) -> None:
        """Note the end of the request."""
        if self.refusal is None:
            self.is_complete, self.is_last = True, not self._llhttp.should_keep_alive()


def _invalid(why: str) -> Refusal:
    return invalid_request(f"The request is not valid HTTP: {why}")


def event_of(text: str, number: str | None = None, name: str | None = None) -> bytes:
    """Return one event; a text of several lines has a line of data for each."""
    head = "" if number is None else f"id: {number}\n"
    head += "" if name is None else f"event: {name}\n"
    data = "\ndata: ".join(_LINE_BREAK.split(text))
    return f"{head}data: {data}\n\n".encode()


class Pulse:
    """Keeps a stream open through proxies: with a comment when nothing was sent for 15 s."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._sent_at = monotonic()

    def of(self, piece: bytes) -> bytes | float:
        """Return a piece; in the place of an empty one a comment, or the seconds until it is due."""
        now = self._monotonic()
        if not piece and now - self._sent_at < _BEAT_SECONDS:
            return self._sent_at + _BEAT_SECONDS - now
        self._sent_at = now
        return piece or _BEAT

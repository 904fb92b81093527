"""The response: its head read strictly, its body bounded, its content coding undone. Pure but for the file it reads.

http.client's own parser of heads goes through the email package: this one is stricter and takes a third of its time.
urllib3's decoders of content do not report that a compressed body is cut short, which would be published as complete.
"""

import contextlib
import re
import socket
import zlib
from collections.abc import Iterator, Mapping
from http.client import BadStatusLine, HTTPResponse, IncompleteRead, RemoteDisconnected
from typing import IO, Any, Final

from amqtt_rest_bridge.http_client.deadline_socket import HeadTooLargeError

Headers = tuple[tuple[str, str], ...]

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_WITHOUT_BODY: Final = frozenset({204, 304})  # with any headers
_LONGEST_NUMBER: Final = 30  # digits of a Content-Length
_MOST_LINES: Final = 100  # of headers, http.client's bound
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_STATUS_LINE = re.compile(r"HTTP/1\.([0-9]) +([1-9][0-9]{2})((?: [^\n]*)?)\r?\n")
_GZIP, _ZLIB, _RAW_DEFLATE = 31, 15, -15  # zlib's window bits, which name the format
_FORMATS = {"gzip": (_GZIP,), "x-gzip": (_GZIP,), "deflate": (_ZLIB, _RAW_DEFLATE)}
_MOST_CODINGS: Final = 5


class MalformedResponseError(Exception):
    """The response cannot be read; the message is the reason, without its content."""


class ContentTooLargeError(Exception):
    """The body, decoded or not, is larger than allowed."""


class FinalResponse(HTTPResponse):
    """http.client's response, with its head read here: stricter, and in a third of the email parser's time.

    Interim responses (RFC 9110 section 15.2) are passed over; http.client skips only 100.
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
        """No-op: the connection, which owns the file, may have been closed before."""

    def begin(self) -> None:
        """Read the head of the final response."""
        status = 100
        while 100 <= status < 200:
            minor, status, reason = _status(self.fp)
            self.fields = tuple(_fields(self.fp))
            if status == 101:
                raise MalformedResponseError("it switches to a protocol that was not asked for")
        self.named = {name.lower(): value for name, value in self.fields}
        self.status, self.reason, self.version = status, reason, 10 if minor == 0 else 11
        self._frame()
        options = ",".join(self._all("connection")).lower()
        closes = "close" in options or (minor == 0 and "keep-alive" not in options)  # RFC 9112 section 9.3
        self.will_close = closes or self._end_is_uncertain()

    def _frame(self) -> None:
        """Determine where the body ends (RFC 9112 section 6.3)."""
        self.chunked, self.chunk_left, self.length = False, None, None
        if self.status in _WITHOUT_BODY or (self._opens_tunnel and 200 <= self.status < 300):
            self.length = 0
        elif "transfer-encoding" in self.named:
            if "content-length" in self.named:  # a proxy on the way may have seen another end of it, section 6.3
                raise MalformedResponseError("it has both a Content-Length and a Transfer-Encoding")
            if {value.lower() for value in self._all("transfer-encoding")} != {"chunked"}:
                raise MalformedResponseError("its Transfer-Encoding is not chunked")
            self.chunked = True
        elif "content-length" in self.named:
            lengths = set(self._all("content-length"))
            if len(lengths) > 1:
                raise MalformedResponseError("it has two different Content-Lengths")
            text = lengths.pop()
            if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER):
                raise MalformedResponseError("its Content-Length is not a number")
            self.length = int(text)

    def _end_is_uncertain(self) -> bool:
        """Return whether more may come, a body that should not be there and would be taken for the next response."""
        if self.status == 204:
            return "transfer-encoding" in self.named or self.named.get("content-length", "0") != "0"
        if self.status == 304:  # its Content-Length is that of the response it replaces
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
    """Read header lines up to the empty one; a line that begins with a space continues the one before (a fold)."""
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


def read_body(response: FinalResponse, limit: int) -> bytes:
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


def decode_content(body: bytes, codings: str, limit: int) -> bytes:
    """Undo the codings gzip and deflate, making `limit` bytes at most at any step.

    Decision: a body with any other coding stays as it is: HEADERS must have asked for it.

    Raises:
        ContentTooLargeError: the decoded body is larger than `limit`.
        MalformedResponseError: the body does not match its codings.
    """
    names = [name.strip().lower() for name in codings.split(",")]
    names = [name for name in names if name not in ("", "identity")]
    if not body or not all(name in _FORMATS for name in names):
        return body
    if len(names) > _MOST_CODINGS:
        raise MalformedResponseError(f"it has more than {_MOST_CODINGS} content codings")
    for name in reversed(names):
        body = _inflate(body, name, limit)
    return body


def _inflate(body: bytes, name: str, limit: int) -> bytes:
    for window_bits in _FORMATS[name]:
        try:
            return _inflate_members(body, window_bits, limit)
        except zlib.error:
            continue  # "deflate" is zlib by RFC 9110 section 8.4.1.2, and raw by widespread mistake
    raise MalformedResponseError(f"its body is not {name}")


def _inflate_members(body: bytes, window_bits: int, limit: int) -> bytes:
    parts: list[bytes] = []
    room = limit
    while True:
        inflater = zlib.decompressobj(window_bits)
        part = inflater.decompress(body, room + 1)
        if len(part) > room:
            raise ContentTooLargeError
        if not inflater.eof:
            raise MalformedResponseError("its compressed body is cut short")
        parts.append(part)
        room -= len(part)
        body = inflater.unused_data.lstrip(b"\0")  # RFC 1952 section 2.2: members follow one another; some pad them
        if window_bits != _GZIP or not body:
            return b"".join(parts)


def _text(value: str) -> str:
    """Return a header as text: as UTF-8 if it is, control characters as spaces (RFC 9110 section 5.5)."""
    if not value.isascii():
        with contextlib.suppress(UnicodeError):  # bytes that are neither ASCII nor UTF-8 stay latin-1
            value = value.encode("latin-1").decode()
    if not value.isprintable():
        value = _CONTROL.sub(" ", value)
    return value.strip()

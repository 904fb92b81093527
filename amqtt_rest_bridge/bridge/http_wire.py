# LEAD TO SENDER: read tests/bridge/test_http_sender_note_from_lead.py before you go on: this must be urllib3.
"""HTTP/1.1 as bytes, without I/O: requests written, heads of responses read, content decoded (RFC 9112, RFC 9110).

http.client reads headers through the email parser, which takes longer than all the rest of a call. This reader is
strict where framing is concerned and lenient where small devices are known to be sloppy.
"""

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

LONGEST_HEAD = 65_536  # bytes of a response's head, interim responses included
MOST_HEADERS = 256

_STATUS_LINE = re.compile(r"HTTP/1\.([01])[ \t]+([1-9][0-9]{2})(?:[ \t](.*))?")
_FOLD = re.compile(r"[ \t]*\n[ \t]+")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_LENGTH = re.compile(r"[0-9]{1,18}")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")
_FRAMING = frozenset({"content-length", "transfer-encoding", "connection", "content-encoding", "keep-alive"})
_KEEP_ALIVE_TIMEOUT = re.compile(r"\btimeout\s*=\s*([0-9]{1,6})", re.IGNORECASE)
_GZIP, _ZLIB, _RAW_DEFLATE = 31, 15, -15  # zlib's window bits, which say the format
_FORMATS = {"gzip": (_GZIP,), "x-gzip": (_GZIP,), "deflate": (_ZLIB, _RAW_DEFLATE)}
_MOST_CODINGS = 5


class MalformedResponse(Exception):  # noqa: N818  # the response is malformed, whoever made it so
    """What came is not an HTTP/1 response; the message says why, without what came."""


class BodyTooLarge(Exception):  # noqa: N818  # as above
    """The body, decoded or not, is larger than allowed."""


@dataclass(frozen=True, slots=True)
class Head:
    """Status line and header section of a response; `fields` holds what framing needs, by lower-case name."""

    minor_version: int
    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    fields: dict[str, str]

    @property
    def has_body(self) -> bool:
        """Tell that a body follows, if only an empty one (RFC 9112 section 6.3); this client never sends HEAD."""
        return self.status not in (204, 304)

    @property
    def is_chunked(self) -> bool:
        """Tell that the body comes in chunks; another transfer coding is malformed, because none was offered."""
        coding = self.fields.get("transfer-encoding")
        if coding is None:
            return False
        if coding.lower() != "chunked":
            raise MalformedResponse("its Transfer-Encoding is not chunked")
        return True

    @property
    def content_length(self) -> int | None:
        """Give the body's length; None when the connection's end ends it (RFC 9112 section 6.3)."""
        text = self.fields.get("content-length")
        if text is None:
            return None
        value, *others = {value.strip() for value in text.split(",")}
        if others or not _LENGTH.fullmatch(value):
            raise MalformedResponse("its Content-Length is not a number")
        return int(value)

    @property
    def is_persistent(self) -> bool:
        """Tell that the connection may carry another request (RFC 9112 section 9.3)."""
        if "transfer-encoding" in self.fields and "content-length" in self.fields:
            return False  # RFC 9112 section 6.1: someone on the way may have seen another end of this response
        options = self.fields.get("connection")
        if options is None:
            return self.minor_version == 1
        words = {word.strip() for word in options.lower().split(",")}
        return "close" not in words and (self.minor_version == 1 or "keep-alive" in words)

    @property
    def keep_alive_seconds(self) -> int | None:
        """Give how long the server says it keeps an idle connection, None when it does not say."""
        text = self.fields.get("keep-alive")
        match = None if text is None else _KEEP_ALIVE_TIMEOUT.search(text)
        return None if match is None else int(match[1])


def write_head(method: str, target: str, headers: Iterable[tuple[str, str]]) -> bytes:
    """Write a request's head.

    Raises:
        ValueError: the target or a header would change the shape of the request. Whoever fills them has checked that;
            it is checked here too, so that no mistake elsewhere becomes a smuggled request.
    """
    lines = [f"{method} {target} HTTP/1.1", *[f"{name}: {value}" for name, value in headers], "", ""]
    text = "\r\n".join(lines)
    breaks = len(lines) - 1
    if text.count("\r") != breaks or text.count("\n") != breaks or "\0" in text or " " in target:
        raise ValueError("a line break, NUL or space stands where a request cannot have one")
    return text.encode()


def end_of_head(data: bytes, start: int = 0) -> int:
    """Say where the head at the start of `data` ends, behind its empty line; -1 when it is not complete.

    A bare LF ends a line too (RFC 9112 section 2.2). What lies before `start` was searched in vain before.
    """
    start = max(start - 3, 0)
    crlf = data.find(b"\n\r\n", start)
    bare = data.find(b"\n\n", start, len(data) if crlf < 0 else crlf)
    if bare >= 0:
        return bare + 2
    return -1 if crlf < 0 else crlf + 3


def read_head(data: bytes) -> Head:
    """Read a complete head; control characters in it become spaces (RFC 9110 section 5.5).

    Raises:
        MalformedResponse: it is not one.
    """
    first, *lines = _lines(data)
    status_line = _STATUS_LINE.fullmatch(first)
    if status_line is None:
        raise MalformedResponse("it does not begin with an HTTP/1 status line")
    if len(lines) > MOST_HEADERS:
        raise MalformedResponse(f"it has more than {MOST_HEADERS} headers")
    headers: list[tuple[str, str]] = []
    fields: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.strip()
        if not colon or not name:
            raise MalformedResponse("one of its header lines has no name")
        value = value.strip()
        headers.append((name, value))
        name = name.lower()
        if name in _FRAMING:
            fields[name] = f"{fields[name]}, {value}" if name in fields else value
    return Head(int(status_line[1]), int(status_line[2]), (status_line[3] or "").strip(), tuple(headers), fields)


def _lines(data: bytes) -> list[str]:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode("latin-1")  # bytes that are not ASCII have no set meaning (RFC 9110 section 5.5)
    text = text.replace("\r\n", "\n").rstrip("\n")
    if "\n " in text or "\n\t" in text:
        text = _FOLD.sub(" ", text)  # RFC 9112 section 5.2
    if _CONTROL.search(text):
        text = _CONTROL.sub(" ", text)
    return text.split("\n")


def chunk_size(line: bytes) -> int:
    """Read the line before a chunk; extensions are ignored (RFC 9112 section 7.1.1)."""
    match = _CHUNK_SIZE.fullmatch(line)
    if match is None:
        raise MalformedResponse("a chunk of its body has no size")
    return int(match[1], 16)


def decode_content(body: bytes, codings: str, limit: int) -> bytes:
    """Undo the content codings gzip and deflate, never making more than `limit` bytes at any step.

    Decision: a body with any other coding stays as it is: HEADERS must have asked for it.

    Raises:
        BodyTooLarge: the decoded body is larger than `limit`.
        MalformedResponse: the body is not what its coding says.
    """
    names = [name.strip().lower() for name in codings.split(",")]
    names = [name for name in names if name not in ("", "identity")]
    if not body or not all(name in _FORMATS for name in names):
        return body
    if len(names) > _MOST_CODINGS:
        raise MalformedResponse(f"it has more than {_MOST_CODINGS} content codings")
    for name in reversed(names):
        body = _inflate(body, name, limit)
    return body


def _inflate(body: bytes, name: str, limit: int) -> bytes:
    for window_bits in _FORMATS[name]:
        try:
            return _inflate_members(body, window_bits, limit)
        except zlib.error:
            continue  # "deflate" is zlib by RFC 9110 section 8.4.1.2, and raw by widespread mistake
    raise MalformedResponse(f"its body is not {name}")


def _inflate_members(body: bytes, window_bits: int, limit: int) -> bytes:
    parts: list[bytes] = []
    room = limit
    while True:
        inflater = zlib.decompressobj(window_bits)
        part = inflater.decompress(body, room + 1)
        if len(part) > room:
            raise BodyTooLarge
        if not inflater.eof:
            raise MalformedResponse("its compressed body is cut short")
        parts.append(part)
        room -= len(part)
        body = inflater.unused_data.lstrip(b"\0")  # RFC 1952 section 2.2: members follow one another; some pad them
        if window_bits != _GZIP or not body:
            return b"".join(parts)

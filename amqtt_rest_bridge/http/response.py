"""A response as libcurl has read it: its head from lines, its content with the codings undone. Pure.

libcurl is lenient with heads. What two programs could read differently is refused here: lines without a proper name,
both a Content-Length and a Transfer-Encoding, a protocol that was not asked for. Codings are undone by zlib within a
bound; urllib3's decoders do not report that a compressed body is cut short.
"""

import contextlib
import re
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from amqtt_rest_bridge.lot.model import Pairs

LONGEST_HEAD: Final = 65_536
"""Bytes of a response's head."""
MOST_LINES: Final = 100
"""Lines of a response's head."""

_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_FIELD: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+)[ \t]*:(.*)", re.DOTALL)
_STATUS_LINE: Final = re.compile(rb"HTTP/(1\.[0-9]|2) +([1-9][0-9]{2})((?: [^\n]*)?)\r?\n")
_LONGEST_USUAL: Final = 128  # bytes of a header line that is remembered
_LONGEST_NUMBER: Final = 30  # digits of a Content-Length
_NO_LINE: Final = (b"\r\n", b"\n")  # the end of a head
_WITHOUT_BODY: Final = frozenset({204, 304})
_USED: Final = frozenset({"content-encoding", "content-length", "keep-alive", "transfer-encoding"})
_GZIP, _ZLIB, _RAW_DEFLATE = 31, 15, -15  # zlib's window bits, which name the format
_FORMATS: Final = {"gzip": (_GZIP,), "x-gzip": (_GZIP,), "deflate": (_ZLIB, _RAW_DEFLATE)}
_MOST_CODINGS: Final = 5


class MalformedResponseError(Exception):
    """The response cannot be read; the message is the reason, without its content."""


class HeadTooLargeError(Exception):
    """The head of a response is larger than `LONGEST_HEAD`, or has more than `MOST_LINES` lines."""


class CutHeadError(Exception):
    """The connection was closed before the end of the head."""


class ContentTooLargeError(Exception):
    """The body, decoded or not, is larger than allowed."""


class Head(NamedTuple):
    """Status, reason and header fields in their order; `is_http_1` unless the response came by HTTP/2.

    `used` are the values of the fields that the client itself looks at, by name in lower case.
    """

    status: int
    reason: str
    fields: Pairs
    is_http_1: bool
    used: Mapping[str, Sequence[str]]

    @property
    def has_uncertain_end(self) -> bool:
        """Return whether a body may follow that must not be there, and would be taken for the next response."""
        if self.status not in _WITHOUT_BODY:
            return False
        # The Content-Length of a 304 is that of the response it replaces.
        has_length = self.status == 204 and self.used.get("content-length", ["0"]) != ["0"]
        return has_length or "transfer-encoding" in self.used


def read_head(lines: Sequence[bytes], *, is_http_1: bool = True) -> Head:
    """Return the head of the final response, whose lines are among those of interim responses and trailers.

    With `is_http_1` its version is HTTP/1, else HTTP/2.

    Raises:
        CutHeadError: Its end is missing.
        HeadTooLargeError: There is too much of it.
        MalformedResponseError: It can be read in two ways, or it is not the head of a response by this version.
    """
    first = len(lines) - 1
    while first > 0 and not lines[first].startswith(b"HTTP/"):
        first -= 1
    status = _STATUS_LINE.fullmatch(lines[first]) if lines else None
    if status is None or (status[1] == b"2") is is_http_1:
        raise MalformedResponseError("it does not begin with an HTTP/1 status line")
    fields: list[tuple[str, str]] = []
    used: dict[str, list[str]] = {}
    key = ""
    for line in _lines_of(lines, first + 1):
        if line[0] in b" \t" and fields:  # a fold continues the line before
            name, value = fields.pop()
            value = f"{value} {_text(line)}".strip()
            if key:
                used[key].pop()
        else:
            name, value, key = _usual_field(line) if len(line) <= _LONGEST_USUAL else _field(line)
        fields.append((name, value))
        if key:
            used.setdefault(key, []).append(value)
    head = Head(int(status[2]), _text(status[3]), tuple(fields), is_http_1, used)
    if is_http_1:
        _check_framing(head)
    return head


def _lines_of(lines: Sequence[bytes], first: int) -> Sequence[bytes]:
    """Return the header lines of the head whose fields begin at `first`."""
    end = first
    while end < len(lines) and lines[end] not in _NO_LINE:
        end += 1
    if end - first > MOST_LINES or sum(map(len, lines[first:end])) > LONGEST_HEAD:
        raise HeadTooLargeError
    if end == len(lines):
        raise CutHeadError
    return lines[first:end]


def _field(line: bytes) -> tuple[str, str, str]:
    """Return the name and the value of a header line, and its name in lower case where the client looks at it."""
    field = _FIELD.fullmatch(line.decode("latin-1").rstrip("\r\n"))
    if field is None:
        raise MalformedResponseError("one of its header lines has no name that HTTP allows")
    key = field[1].lower()
    return field[1], _text(field[2].encode("latin-1")), key if key in _USED else ""


_usual_field = lru_cache(maxsize=1024)(_field)  # the responses of a server have most lines in common


def _text(value: bytes) -> str:
    """Return a header as text: as UTF-8 if it is, control characters as spaces (RFC 9110 section 5.5)."""
    text = value.decode("latin-1")
    if not text.isascii():
        with contextlib.suppress(UnicodeError):  # bytes that are neither ASCII nor UTF-8 stay latin-1
            text = value.decode()
    if not text.isprintable():
        text = _CONTROL.sub(" ", text)
    return text.strip()


def _check_framing(head: Head) -> None:
    """Refuse a response whose end is uncertain (RFC 9112 section 6.3)."""
    if head.status == 101:
        raise MalformedResponseError("it switches to a protocol that was not asked for")
    if head.status in _WITHOUT_BODY:
        return
    codings, lengths = head.used.get("transfer-encoding", ()), head.used.get("content-length", ())
    if codings and lengths:  # a proxy on the way may have seen another end of it
        raise MalformedResponseError("it has both a Content-Length and a Transfer-Encoding")
    if any(coding.lower() != "chunked" for coding in codings):
        raise MalformedResponseError("its Transfer-Encoding is not chunked")
    if len(set(lengths)) > 1:
        raise MalformedResponseError("it has two different Content-Lengths")
    if lengths and not (lengths[0].isascii() and lengths[0].isdigit() and len(lengths[0]) <= _LONGEST_NUMBER):
        raise MalformedResponseError("its Content-Length is not a number")


def decode_content(body: bytes, codings: str, limit: int) -> bytes:
    """Undo the codings gzip and deflate, making `limit` bytes at most at any step.

    A body with any other coding stays as it is: HEADERS must have asked for it.

    Raises:
        ContentTooLargeError: The decoded body is larger than `limit`.
        MalformedResponseError: The body does not match its codings.
    """
    names = [name.strip() for name in codings.lower().split(",")]
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

"""The response of a server, read strictly: its head from lines, its content without content codings. Pure.

libcurl accepts heads that two programs could read differently. They are refused here: a line without a proper name,
both a Content-Length and a Transfer-Encoding, a protocol that was not asked for. Content codings are undone with zlib,
within a limit, since urllib3's decoders do not report a compressed body that is cut short.
"""

import re
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Final, NamedTuple

from amqtt_rest_bridge.http import failures
from amqtt_rest_bridge.http.failures import Phase
from amqtt_rest_bridge.lot.model import Pairs

END_OF_HEAD: Final = (b"\r\n", b"\n")
"""The empty line that ends a head."""
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_FIELD: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+)[ \t]*:(.*)", re.DOTALL)
_STATUS_LINE: Final = re.compile(rb"HTTP/(1\.[0-9]|2) +([1-9][0-9]{2})((?: [^\n]*)?)\r?\n")
_LONGEST_CACHED: Final = 128  # bytes of a header line whose parsed form is cached
_LONGEST_NUMBER: Final = 30  # digits of a Content-Length
_WITHOUT_BODY: Final = frozenset({204, 304})
_CONTROL_FIELDS: Final = frozenset({"content-encoding", "content-length", "keep-alive", "transfer-encoding"})
_GZIP, _ZLIB, _RAW_DEFLATE = 31, 15, -15  # zlib's window bits, which name the format
_FORMATS: Final = {"gzip": (_GZIP,), "x-gzip": (_GZIP,), "deflate": (_ZLIB, _RAW_DEFLATE)}
_MOST_CODINGS: Final = 5


class MalformedResponseError(Exception):
    """The response cannot be read; the message is the reason, without its content."""


class ContentTooLargeError(Exception):
    """The body, decoded or not, is larger than allowed."""


class Head(NamedTuple):
    """The status line and the header fields of a response, in their order.

    `is_http_1` is False for HTTP/2. `control` has the values of the fields that the client itself acts on
    (`_CONTROL_FIELDS`), by name in lower case.
    """

    status: int
    reason: str
    fields: Pairs
    is_http_1: bool
    control: Mapping[str, Sequence[str]]

    @property
    def has_uncertain_end(self) -> bool:
        """Return whether a body may follow although HTTP forbids one. It would be read as the next response."""
        if self.status not in _WITHOUT_BODY:
            return False
        # The Content-Length of a 304 is that of the response it replaces.
        has_length = self.status == 204 and self.control.get("content-length", ["0"]) != ["0"]
        return has_length or "transfer-encoding" in self.control


def read_head(lines: Sequence[bytes], where: str, *, is_http_1: bool) -> Head:
    """Return the head of the final response.

    Args:
        lines: As they came, also those of interim responses before it and of a trailer behind its body.
        where: The server, for messages.
        is_http_1: Whether the version has to be HTTP/1; otherwise it has to be HTTP/2.

    Raises:
        CallError: The end of the head is missing, or the head is too large.
        MalformedResponseError: The head is invalid, can be read in two ways, or has another version.
    """
    first = len(lines) - 1
    while first > 0 and not lines[first].startswith(b"HTTP/"):
        first -= 1
    status = _STATUS_LINE.fullmatch(lines[first]) if lines else None
    if status is None or (status[1] == b"2") is is_http_1:
        raise MalformedResponseError("it does not begin with an HTTP/1 status line")
    fields: list[tuple[str, str]] = []
    control: dict[str, list[str]] = {}
    key = ""  # of the line before in `control`, "" if it is not there
    end = first + 1
    while end < len(lines) and lines[end] not in END_OF_HEAD:
        end += 1
    if end - first > failures.MOST_LINES + 1 or sum(map(len, lines[first + 1 : end])) > failures.LONGEST_HEAD:
        raise failures.head_too_large(where)
    if end == len(lines):
        raise failures.connection_ended(where, Phase.HEAD)
    for line in lines[first + 1 : end]:
        if line[0] in b" \t" and fields:  # a fold continues the line before
            name, value = fields.pop()
            value = f"{value} {_decode_text(line)}".strip()
            if key:
                control[key].pop()
        else:
            name, value, key = (_parse_field_cached if len(line) <= _LONGEST_CACHED else _parse_field)(line)
        fields.append((name, value))
        if key:
            control.setdefault(key, []).append(value)
    head = Head(int(status[2]), _decode_text(status[3]), tuple(fields), is_http_1, control)
    if is_http_1:
        _check_framing(head)
    return head


def _parse_field(line: bytes) -> tuple[str, str, str]:
    """Return name and value of a header line, and its key in `Head.control`, "" for most fields."""
    field = _FIELD.fullmatch(line.decode("latin-1").rstrip("\r\n"))
    if field is None:
        raise MalformedResponseError("one of its header lines has no name that HTTP allows")
    key = field[1].lower()
    return field[1], _decode_text(field[2].encode("latin-1")), key if key in _CONTROL_FIELDS else ""


_parse_field_cached = lru_cache(maxsize=1024)(_parse_field)  # the responses of a server have most lines in common


def _decode_text(value: bytes) -> str:
    """Decode a header's text as UTF-8, or else as Latin-1. Control characters become spaces (RFC 9110 section 5.5)."""
    text = value.decode("latin-1")
    if not text.isascii():
        with suppress(UnicodeError):  # bytes that are neither ASCII nor UTF-8 stay latin-1
            text = value.decode()
    if not text.isprintable():
        text = _CONTROL.sub(" ", text)
    return text.strip()


def _check_framing(head: Head) -> None:
    """Raise `MalformedResponseError` for a response whose end is uncertain (RFC 9112 section 6.3)."""
    if head.status == 101:
        raise MalformedResponseError("it switches to a protocol that was not asked for")
    if head.status in _WITHOUT_BODY:
        return
    codings, lengths = head.control.get("transfer-encoding", ()), head.control.get("content-length", ())
    if codings and lengths:  # a proxy on the way may have seen another end of it
        raise MalformedResponseError("it has both a Content-Length and a Transfer-Encoding")
    if any(coding.lower() != "chunked" for coding in codings):
        raise MalformedResponseError("its Transfer-Encoding is not chunked")
    if len(set(lengths)) > 1:
        raise MalformedResponseError("it has two different Content-Lengths")
    if lengths and not (lengths[0].isascii() and lengths[0].isdigit() and len(lengths[0]) <= _LONGEST_NUMBER):
        raise MalformedResponseError("its Content-Length is not a number")


def decode_content(body: bytes, codings: str, limit: int) -> bytes:
    """Return a body without its content codings, gzip and deflate. No step makes more than `limit` bytes.

    A body with any other coding stays as it is: HEADERS of the event must have asked for that coding.

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
        for window_bits in _FORMATS[name]:  # "deflate" is zlib by RFC 9110 section 8.4.1.2, and raw by mistake
            with suppress(zlib.error):
                body = _inflate(body, window_bits, limit)
                break
        else:
            raise MalformedResponseError(f"its body is not {name}")
    return body


def _inflate(body: bytes, window_bits: int, limit: int) -> bytes:
    """Undo one coding. Only a gzip body may consist of several compressed streams, its members."""
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

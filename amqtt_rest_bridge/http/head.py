"""The head of a response, from the lines that libcurl has read. Pure.

libcurl is lenient with heads. What two programs could read differently is refused here: lines without a proper name,
both a Content-Length and a Transfer-Encoding, a protocol that was not asked for.
"""

import contextlib
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from amqtt_rest_bridge.http.content import MalformedResponseError
from amqtt_rest_bridge.lot.model import Pairs, values_of

LONGEST_HEAD: Final = 65_536
"""Bytes of a response's head."""
MOST_LINES: Final = 100
"""Lines of a response's head."""

_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_FIELD: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+)[ \t]*:(.*)", re.DOTALL)
_STATUS_LINE: Final = re.compile(r"HTTP/(1\.[0-9]|2) +([1-9][0-9]{2})((?: [^\n]*)?)\r?\n")
_LONGEST_USUAL: Final = 128  # bytes of a header line that is remembered
_LONGEST_NUMBER: Final = 30  # digits of a Content-Length
_WITHOUT_BODY: Final = frozenset({204, 304})


class HeadTooLargeError(Exception):
    """The head of a response is larger than `LONGEST_HEAD`, or has more than `MOST_LINES` lines."""


class CutHeadError(Exception):
    """The connection was closed before the end of the head."""


class Head(NamedTuple):
    """Status, reason and header fields in their order; `is_http_1` unless the response came by HTTP/2."""

    status: int
    reason: str
    fields: Pairs
    is_http_1: bool

    @property
    def has_uncertain_end(self) -> bool:
        """Return whether a body may follow that must not be there, and would be taken for the next response."""
        if self.status not in _WITHOUT_BODY:
            return False
        if values_of(self.fields, "transfer-encoding"):
            return True
        # The Content-Length of a 304 is that of the response it replaces.
        return self.status == 204 and values_of(self.fields, "content-length") not in ([], ["0"])


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
    status = _STATUS_LINE.fullmatch(lines[first].decode("latin-1")) if lines else None
    if status is None or (status[1] == "2") is is_http_1:
        raise MalformedResponseError("it does not begin with an HTTP/1 status line")
    fields: list[tuple[str, str]] = []
    size = 0
    for number, line in enumerate(lines[first + 1 :]):
        if line in (b"\r\n", b"\n"):
            break
        size += len(line)
        if number >= MOST_LINES or size > LONGEST_HEAD:
            raise HeadTooLargeError
        if line[0] in b" \t" and fields:  # a fold continues the line before
            name, value = fields[-1]
            fields[-1] = name, f"{value} {_text(_line(line))}".strip()
        else:
            fields.append(_usual_field(line) if len(line) <= _LONGEST_USUAL else _field(line))
    else:
        raise CutHeadError
    head = Head(int(status[2]), _text(status[3]), tuple(fields), is_http_1)
    if is_http_1:
        _check_framing(head)
    return head


def _field(line: bytes) -> tuple[str, str]:
    """Return the name and the value of a header line."""
    field = _FIELD.fullmatch(_line(line))
    if field is None:
        raise MalformedResponseError("one of its header lines has no name that HTTP allows")
    return field[1], _text(field[2])


_usual_field = lru_cache(maxsize=1024)(_field)  # the responses of a server have most lines in common


def _line(line: bytes) -> str:
    return line.decode("latin-1").rstrip("\r\n")


def _check_framing(head: Head) -> None:
    """Refuse a response whose end is uncertain (RFC 9112 section 6.3)."""
    if head.status == 101:
        raise MalformedResponseError("it switches to a protocol that was not asked for")
    if head.status in _WITHOUT_BODY:
        return
    codings, lengths = values_of(head.fields, "transfer-encoding"), set(values_of(head.fields, "content-length"))
    if codings and lengths:  # a proxy on the way may have seen another end of it
        raise MalformedResponseError("it has both a Content-Length and a Transfer-Encoding")
    if codings and {coding.lower() for coding in codings} != {"chunked"}:
        raise MalformedResponseError("its Transfer-Encoding is not chunked")
    if len(lengths) > 1:
        raise MalformedResponseError("it has two different Content-Lengths")
    for text in lengths:
        if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER):
            raise MalformedResponseError("its Content-Length is not a number")


def _text(value: str) -> str:
    """Return a header as text: as UTF-8 if it is, control characters as spaces (RFC 9110 section 5.5)."""
    if not value.isascii():
        with contextlib.suppress(UnicodeError):  # bytes that are neither ASCII nor UTF-8 stay latin-1
            value = value.encode("latin-1").decode()
    if not value.isprintable():
        value = _CONTROL.sub(" ", value)
    return value.strip()

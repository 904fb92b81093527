"""The content of a response: its codings undone, within a bound. Pure.

urllib3's decoders do not report that a compressed body is cut short, which would be published as complete.
"""

import zlib
from typing import Final

_GZIP, _ZLIB, _RAW_DEFLATE = 31, 15, -15  # zlib's window bits, which name the format
_FORMATS = {"gzip": (_GZIP,), "x-gzip": (_GZIP,), "deflate": (_ZLIB, _RAW_DEFLATE)}
_MOST_CODINGS: Final = 5


class MalformedResponseError(Exception):
    """The response cannot be read; the message is the reason, without its content."""


class ContentTooLargeError(Exception):
    """The body, decoded or not, is larger than allowed."""


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

"""The search for secrets in bytes, and their replacement. Pure; any thread.

**Idea.** Encoders differ in what they escape and how, and two of them are often applied one after the other. So this
module decodes the bytes instead of making a pattern for each encoded form. Each secret is searched for, without regard
to case, in the bytes as they came, and again after undoing their escapes (JSON, percent, HTML, Python) once, twice and
three times. It is also searched for in Base64 (both alphabets, any offset, broken into lines) and as hexadecimal or
decimal numbers. What is found is traced back to the bytes as they came, and only those are replaced. The charsets are
UTF-8 and Latin-1, also each taken for the other, and UTF-16, which is searched with its NUL bytes removed.

**Cost** (`bytes.find` for some six forms of each secret, and 1 us for each escape): 7 ms of processor time for 20
secrets and 256 KiB of random text, 10 ms with 2,000 escapes, 30 ms where every character is escaped.
"""

import base64
import contextlib
import functools
import html
import json
import re
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import compress
from typing import Final

MASK: Final = "***"
_DEPTH: Final = 3  # how often escapes are undone
_SHORTEST_ENCODED: Final = 5  # characters of Base64; fewer are in most texts
_SHORTEST_DECODED: Final = 5  # of a secret's own escapes undone, and of numbers

_Span = tuple[int, int]


def masked_text(text: str, secrets: Iterable[str]) -> str:
    """Replace secrets in a text."""
    if not secrets or not text:
        return text
    data = text.encode("utf-8", "surrogatepass")
    replaced = masked(data, secrets)
    return text if replaced is data else replaced.decode("utf-8", "replace")


def masked(data: bytes, secrets: Iterable[str]) -> bytes:
    """Replace secrets; return `data` itself if it holds none."""
    forms = [_forms(secret) for secret in secrets]
    spans: list[_Span] = []
    for start, stop in sorted(_find_secrets(data, forms)) if forms and data else ():
        if spans and start < spans[-1][1]:  # they overlap
            spans[-1] = spans[-1][0], max(stop, spans[-1][1])
        else:
            spans.append((start, stop))
    if not spans:
        return data
    numbers = _numbers_of_json(data, spans)
    parts, end = [], 0
    for span in spans:
        start, stop = numbers.get(span, span)
        if start >= end:
            # In UTF-16 and UTF-32 an asterisk is as wide as the characters around it.
            behind = data[start + 1 : min(start + 4, stop)]
            zeros = b"\0" * (len(behind) - len(behind.lstrip(b"\0")))
            parts += [data[end:start], b'"***"' if span in numbers else zeros.join([b"*", b"*", b"*"])]
        end = max(end, stop)
    return b"".join([*parts, data[end:]])


class _Forms:
    """What to search for to find one secret in bytes whose escapes are undone; texts and digits in lower case."""

    __slots__ = ("base64", "decimal", "hexadecimal", "texts")

    def __init__(self, secret: str) -> None:
        data = secret.encode("utf-8", "surrogatepass")
        plain = _views(data)[-1].data  # where the data is searched, escapes within the secret are undone as well
        # The end of the secret may look like the beginning of an escape, which the text behind it completes.
        shorter = {plain, _OPEN_ESCAPE.sub(b"", data), _OPEN_ESCAPE.sub(b"", plain)}
        texts = {data.lower()} | {text.lower() for text in shorter if len(text) >= _SHORTEST_DECODED}
        if b" " in data:
            texts |= {text.replace(b" ", b"+") for text in texts}  # as HTML forms write it
        if not secret.isascii():
            for other in (secret, secret.lower(), secret.upper()):
                encoded = other.encode("utf-8", "surrogatepass")
                texts |= {encoded.lower(), encoded.decode("latin-1").encode().lower()}  # also taken for Latin-1
                for charset in ("latin-1", "utf-16-le", "utf-16-be"):
                    with contextlib.suppress(UnicodeEncodeError):
                        texts.add(other.encode(charset).replace(b"\0", b"").lower())  # UTF-16 is searched without NUL
        self.texts = tuple(texts)
        self.hexadecimal = data.hex().encode()
        self.decimal = "".join(map(str, data)).encode() if len(data) >= _SHORTEST_DECODED else b""
        self.base64 = tuple(_in_base64(data))


_forms = functools.lru_cache(maxsize=4096)(_Forms)


def _in_base64(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield the characters that the Base64 of data always has, for each of its three offsets (RFC 4648 section 4).

    With them: how many characters before and after them hold bits of both the data and the text around it, 0 or 1.
    """
    for before in range(3):
        first, beyond = -(-before * 8 // 6), (before + len(data)) * 8
        sure = base64.b64encode(bytes(before) + data)[first : beyond // 6]
        if len(sure) >= _SHORTEST_ENCODED:
            yield sure, int(before > 0), int(beyond % 6 > 0)


def _views(data: bytes) -> list["_View"]:
    """Return data as it came, then with its escapes undone once, twice and so on."""
    views = [_View(data)]
    while len(views) <= _DEPTH and (following := _unescaped(views[-1])) is not None:
        views.append(following)
    return views


def _find_secrets(data: bytes, forms: list[_Forms]) -> Iterator[_Span]:
    """Yield the spans of data that hold secrets."""
    views = _views(data)
    for view in views:
        lower = view.data.lower()
        found = [span for form in forms for text in form.texts for span in _find_all(lower, text)]
        if view is views[0]:
            found += _find_within(lower, _HEXADECIMAL, ((form.hexadecimal, 4) for form in forms))
            found += _find_within(lower, _DECIMAL, ((form.decimal, 8) for form in forms if form.decimal))
        if view is views[-1]:  # its characters begin no escape, so the last view finds all
            standard = view.data.translate(_STANDARD)
            for sure, before, behind in (one for form in forms for one in form.base64):
                found += [_widen_base64(standard, *span, before, behind) for span in _find_all(standard, sure)]
            if b"\n" in standard:  # Base64 that is broken into lines
                wanted = ((sure, 2) for form in forms for sure, _, _ in form.base64)
                found += _find_within(standard, _NOT_FOLD, wanted)
        for start, stop in found:
            span = view.source(start, stop)
            # Half an escape would break the string that it is in, so an escape is replaced as a whole.
            yield views[1].widened(*span) if len(views) > 1 else span


def _find_all(data: bytes, wanted: bytes) -> Iterator[_Span]:
    start = data.find(wanted)
    while start >= 0:
        yield start, start + len(wanted)
        start = data.find(wanted, start + len(wanted))


def _widen_base64(data: bytes, start: int, stop: int, before: int, behind: int) -> _Span:
    """Widen a span by the characters at its ends that hold bits of the secret, and by the padding."""
    if before and start and data[start - 1] in _BASE64:
        start -= 1
    if behind and stop < len(data) and data[stop] in _BASE64:
        stop += 1
    while stop < len(data) and data[stop] in b"=":
        stop += 1
    return start, stop


def _find_within(data: bytes, alphabet: bytes, wanted: Iterable[tuple[bytes, int]]) -> Iterator[_Span]:
    """Find texts in data, ignoring bytes between theirs that are not in `alphabet` (a table of 256 truth values).

    `wanted` is pairs of a text and the most times its own length that it may be spread over.
    """
    squeezed = data.translate(None, _OTHERS[alphabet])
    positions: list[int] | None = None
    for text, spread in wanted:
        if text not in squeezed:
            continue
        if positions is None:
            positions = list(compress(range(len(data)), data.translate(alphabet)))
        for start, stop in _find_all(squeezed, text):
            first, last = positions[start], positions[stop - 1] + 1
            if last - first <= spread * len(text):
                yield first, last


def _table(members: Iterable[int]) -> bytes:
    inside = frozenset(members)
    return bytes(byte in inside for byte in range(256))


_HEXADECIMAL: Final = _table(b"0123456789abcdef")
_DECIMAL: Final = _table(b"0123456789")
_NOT_FOLD: Final = _table(set(range(256)) - set(b"\r\n\t "))
_OTHERS: Final = {
    kept: bytes(byte for byte in range(256) if not kept[byte]) for kept in (_HEXADECIMAL, _DECIMAL, _NOT_FOLD)
}
_STANDARD: Final = bytes.maketrans(b"-_", b"+/")
_BASE64: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_")
_JSON_BEGINS: Final = tuple(bytes([byte]) for byte in b"{[-0123456789")


# Escapes undone, and the way back.

_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[bfnrt]|[^A-Za-z0-9\0])"
    rb"|%[0-9a-fA-F]{2}|&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});"
)
_OPEN_ESCAPE = re.compile(rb"(?:\\(?:u[0-9a-fA-F]{0,3}|x[0-9a-fA-F]?)?|%[0-9a-fA-F]?|&[#A-Za-z0-9]{0,31})\Z")
_NULLS = re.compile(rb"\0+")
_SHORT: Final = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}  # RFC 8259 section 7


@functools.lru_cache(maxsize=8192)
def _unescape(escape: bytes) -> bytes:
    """Return the bytes that an escape means, or the escape itself if it means none."""
    rest = escape[1:]
    if not escape.strip(b"\0"):
        return b""
    if escape[:1] == b"%":
        return bytes.fromhex(rest.decode())
    if escape[:2] == b"&#":
        number = int(escape[3:-1], 16) if escape[2:3] in b"xX" else int(escape[2:-1])
        return chr(number).encode("utf-8", "surrogatepass") if number <= sys.maxunicode else escape
    if escape[:1] == b"&":
        return html.unescape(escape.decode()).encode("utf-8", "surrogatepass")
    if rest[:1] == b"u" and len(rest) > 1:
        units = bytes.fromhex(rest.replace(b"\\u", b"")[1:].decode())
        return units.decode("utf-16-be", "surrogatepass").encode("utf-8", "surrogatepass")
    if rest[:1] == b"x" and len(rest) > 1:
        return bytes.fromhex(rest[1:].decode())
    return _SHORT.get(rest, rest)


class _View:
    """The data as it came, or the bytes of another view (`of`) with their escapes (`pattern`) undone.

    Positions are traced back only if a secret was found.
    """

    __slots__ = ("_begins", "_ends", "_of", "_pattern", "_positions", "data")

    def __init__(self, data: bytes, of: "_View | None" = None, pattern: re.Pattern[bytes] | None = None) -> None:
        self.data = data
        self._of = of
        self._pattern = pattern
        self._positions: list[int] | None = None  # begin and end of the bytes that each escape stood for, in turn
        self._begins: list[int] = []
        self._ends: list[int] = []

    def source(self, start: int, stop: int) -> _Span:
        """Return the span in the data as it came that a span of this view was made of."""
        if self._of is None:
            return start, stop
        return self._of.source(self._origin(start)[0], self._origin(stop - 1)[1])

    def widened(self, start: int, stop: int) -> _Span:
        """Widen a span of the view `of` so that it cuts none of its escapes."""
        self._trace()
        first, last = bisect_right(self._begins, start) - 1, bisect_right(self._begins, stop - 1) - 1
        if first >= 0:
            start = self._begins[first] if start < self._ends[first] else start
        if last >= 0:
            stop = max(stop, self._ends[last])
        return start, stop

    def _origin(self, at: int) -> _Span:
        """Return the span of the view `of` that a byte was made of: a byte, or a whole escape."""
        positions = self._trace()
        number, behind = divmod(bisect_right(positions, at) - 1, 2)
        if number < 0:
            return at, at + 1
        begin, end = self._begins[number], self._ends[number]
        if not behind:
            return begin, end
        end += at - positions[2 * number + 1]
        return end, end + 1

    def _trace(self) -> list[int]:
        """Return begin and end of what each escape became, in this view; found when first asked for."""
        if self._positions is None:
            self._positions, shorter = [], 0
            for found in self._pattern.finditer(self._of.data) if self._pattern and self._of else ():
                begin, end = found.span()
                place, size = begin - shorter, len(_unescape(found[0]))
                self._positions += (place, place + size)
                self._begins.append(begin)
                self._ends.append(end)
                shorter += end - begin - size
        return self._positions


def _unescaped(of: _View) -> _View | None:
    """Return a view without the NUL bytes of another one, or else with its escapes undone; None if it has neither."""
    data = of.data
    if b"\0" in data:  # of UTF-16 and UTF-32 remain the characters of Latin-1
        return _View(data.replace(b"\0", b""), of, _NULLS)
    if b"\\" not in data and b"%" not in data and b"&" not in data:
        return None
    undone = _ESCAPE.sub(lambda found: _unescape(found[0]), data)
    return _View(undone, of, _ESCAPE) if undone != data else None


# JSON stays JSON.

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_REST_OF_TOKEN = re.compile(rb"[0-9A-Za-z+.-]*")
_BEGIN_OF_TOKEN = re.compile(rb"[0-9A-Za-z+.-]*\Z")


def _numbers_of_json(data: bytes, spans: list[_Span]) -> dict[_Span, _Span]:
    """Return, if data is JSON, each span outside of a string, with the span of the whole number that it is in.

    The caller replaces the whole number by a string.
    """
    if data.lstrip()[:1] not in _JSON_BEGINS or b"\0" in data:
        return {}
    outside: dict[_Span, _Span] = {}
    strings = _STRING.finditer(data)
    string = next(strings, None)
    for start, stop in spans:
        while string is not None and string.end() <= start:
            string = next(strings, None)
        if string is None or not (string.start() < start and stop < string.end()):
            begin = _BEGIN_OF_TOKEN.search(data, max(0, start - 64), start)
            rest = _REST_OF_TOKEN.match(data, stop)
            outside[start, stop] = (start if begin is None else begin.start(), stop if rest is None else rest.end())
    try:
        if outside:
            json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return outside

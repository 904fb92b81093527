"""Places in texts as editors count them: lines from 0, columns in the code units that the editor counts. Pure.

A notebook is its JSON text: the places of a cell are those in that text.
"""

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Final, NamedTuple

from amqtt_rest_bridge.lot.sources import is_route_cell

UTF_16 = "utf-16"
"""The unit of columns unless an editor asks for another one."""
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_LINE_END = re.compile(r"\r\n|\n|\r")
_ENCODINGS: Final = {"utf-8": ("utf-8", 1), UTF_16: ("utf-16-le", 2), "utf-32": ("utf-32-le", 4)}
"""How a text is encoded in units, and the octets of a unit."""


class EditorPlace(NamedTuple):
    """A line and a column, both from 0."""

    line: int
    column: int


class Lines:
    """Converts offsets of a text to places and back. A place outside of the text counts as the nearest one inside."""

    def __init__(self, text: str, units: str = UTF_16) -> None:
        self._text = text
        self._starts = [0, *(found.end() for found in _LINE_END.finditer(text))]
        self._encoding, self._octets = _ENCODINGS[units]
        # The offsets of characters that may take several units, and how many units more than characters the first none,
        # one, two ... of them take.
        self._wide = [found.start() for found in _NOT_ASCII.finditer(text)]
        self._more = [0, *accumulate(self._width(text[offset]) - 1 for offset in self._wide)]

    def place(self, offset: int) -> EditorPlace:
        """Return the place of an offset."""
        offset = max(0, min(offset, len(self._text)))
        line = bisect_right(self._starts, offset) - 1
        start = self._starts[line]
        more = self._more[bisect_left(self._wide, offset)] - self._more[bisect_left(self._wide, start)]
        return EditorPlace(line, offset - start + more)

    def offset(self, line: int, column: int) -> int:
        """Return the offset of a place; a column behind the end of its line counts as that end."""
        if not 0 <= line < len(self._starts):
            return 0 if line < 0 else len(self._text)
        start = self._starts[line]
        end = self._starts[line + 1] if line + 1 < len(self._starts) else len(self._text)
        written = self._text[start:end].rstrip("\r\n")
        if written.isascii():
            return start + max(0, min(column, len(written)))
        units = 0
        for number, char in enumerate(written):
            if units >= column:
                return start + number
            units += self._width(char)
        return start + len(written)

    def _width(self, char: str) -> int:
        """Return how many units a character takes. An editor may send half a surrogate pair: it is a character too."""
        return len(char.encode(self._encoding, "surrogatepass")) // self._octets


_SPACE = re.compile(r"[ \t\n\r]*")
_CHARACTER = re.compile(r"\\u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w|\\u\w{4}|\\.|[\s\S]")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class NotebookCell:
    """A cell of the route language: its number among all cells, from 1, its text, and its place.

    `start` is the offset of the text in the notebook, behind the quote; `literal` is how it is written there.
    """

    number: int
    text: str
    start: int
    literal: str

    @cached_property
    def _offsets(self) -> list[int]:
        return [found.start() for found in _CHARACTER.finditer(self.literal)] + [len(self.literal)]

    def offset(self, index: int) -> int:
        """Return the offset in the notebook of a character of the text, by its index."""
        return self.start + self._offsets[max(0, min(index, len(self._offsets) - 1))]

    def index(self, offset: int) -> int | None:
        """Return the index of the character at an offset of the notebook, None outside of the text."""
        if not self.start <= offset <= self.start + len(self.literal):
            return None
        return bisect_right(self._offsets, offset - self.start) - 1


def cells_of(notebook: str) -> tuple[NotebookCell, ...]:
    """Return the cells of the route language that have a text; none if this is not a notebook."""
    try:
        root = json.loads(notebook)
        return tuple(_cells(notebook, root))
    except (ValueError, RecursionError):
        return ()


def with_texts(notebook: str, texts: Mapping[int, str]) -> str:
    """Return a notebook with other texts in the cells of these numbers, and no other change."""
    at, parts = 0, []
    for cell in cells_of(notebook):
        if texts.get(cell.number, cell.text) != cell.text:
            # A notebook that escapes what is not ASCII goes on doing so.
            literal = json.dumps(texts[cell.number], ensure_ascii=cell.literal.isascii())[1:-1]
            parts += [notebook[at : cell.start], literal]
            at = cell.start + len(cell.literal)
    return "".join([*parts, notebook[at:]])


def _cells(notebook: str, root: object) -> Iterator[NotebookCell]:
    """Yield the cells of the route language; `root` is the notebook as it was parsed."""
    at = _behind_space(notebook, 0)
    if isinstance(root, dict):
        at = {key: start for key, _, start, _ in _members(notebook, at)}.get("cells", -1)
        root = root.get("cells")
    if not isinstance(root, list) or at < 0:
        return
    at, number = _behind_space(notebook, at + 1), 0
    while notebook[at] != "]":
        cell, end = _DECODER.raw_decode(notebook, at)
        number += 1
        if is_route_cell(cell):
            values = {key: (value, begin, behind) for key, value, begin, behind in _members(notebook, at)}
            value, begin, behind = values.get("value", (None, 0, 0))
            if isinstance(value, str):
                yield NotebookCell(number, value, begin + 1, notebook[begin + 1 : behind - 1])
        at = _behind_comma(notebook, end)


def _members(text: str, at: int) -> Iterator[tuple[str, Any, int, int]]:
    """Yield the members of an object: key, value, and where the value begins and ends."""
    at = _behind_space(text, at + 1)
    while text[at] != "}":
        key, end = _DECODER.raw_decode(text, at)
        at = _behind_space(text, _behind_space(text, end) + 1)
        value, end = _DECODER.raw_decode(text, at)
        yield key, value, at, end
        at = _behind_comma(text, end)


def _behind_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _behind_comma(text: str, at: int) -> int:
    at = _behind_space(text, at)
    return _behind_space(text, at + 1) if text[at] == "," else at

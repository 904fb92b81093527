"""Places in a text as editors count them: lines from 0, columns in the code units that the editor counts. Pure."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import NamedTuple

UTF_16 = "utf-16"
"""What editors count in unless they ask for something else."""
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_LINE_END = re.compile(r"\r\n|\n|\r")
_WIDTHS: Mapping[str, Callable[[str], int]] = {
    "utf-8": lambda char: len(char.encode("utf-8", "surrogatepass")),
    UTF_16: lambda char: 2 if char > "\uffff" else 1,
    "utf-32": lambda _: 1,
}


class EditorPlace(NamedTuple):
    """A line and a column, both from 0."""

    line: int
    column: int


class Lines:
    """The lines of a text: from offsets to places and back. Places outside of the text count as the nearest inside."""

    def __init__(self, text: str, units: str = UTF_16) -> None:
        self._text = text
        self._starts = [0, *(found.end() for found in _LINE_END.finditer(text))]
        self._width = _WIDTHS[units]
        # Characters that may be wider than one unit, and how many units more than characters there are up to each.
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
        """Return the offset of a place; a column behind the end of its line is its end."""
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

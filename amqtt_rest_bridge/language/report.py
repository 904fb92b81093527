"""Faults of one text as they are found: offsets become lines and columns here and nowhere else."""

import re
from bisect import bisect_right
from functools import cached_property

from amqtt_rest_bridge.errors import Fault, Position, Severity, visible


class Report:
    """Collect the faults of one source; `offset`s count characters of its text from 0.

    `without_define` are the lines that look like a route of ours whose DEFINE is missing: offset and name.
    """

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.faults: list[Fault] = []
        self.without_define: list[tuple[int, str]] = []
        self._text = text

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer("\n", self._text))]

    def position(self, offset: int) -> Position:
        """Turn an offset into a line and column from 1; one past the end counts as the last character."""
        offset = max(0, min(offset, len(self._text) - 1))
        line = bisect_right(self._line_starts, offset)
        return Position(line, offset - self._line_starts[line - 1] + 1)

    def error(self, offset: int, message: str, hint: str | None = None) -> None:
        """Note something that keeps the route from working."""
        self._add(Severity.ERROR, offset, message, hint)

    def warning(self, offset: int, message: str, hint: str | None = None) -> None:
        """Note something that works, but hardly as it was meant."""
        self._add(Severity.WARNING, offset, message, hint)

    def notice(self, offset: int, message: str, hint: str | None = None) -> None:
        """Note something worth knowing."""
        self._add(Severity.NOTICE, offset, message, hint)

    def _add(self, severity: Severity, offset: int, message: str, hint: str | None) -> None:
        # Names and texts of a file stand in messages: they must not break the log line they end in.
        message, hint = visible(message), hint and visible(hint)
        self.faults.append(Fault(self.path, self.position(offset), severity, message, hint))


_CELL = re.compile(r"(.*?)(?:#(\d+))?", re.DOTALL)


def in_order(faults: list[Fault]) -> tuple[Fault, ...]:
    """Sort faults by file, cell, line and column, and drop what was said twice."""
    return tuple(sorted(dict.fromkeys(faults), key=_place))


def _place(fault: Fault) -> tuple[str, int, Position, Severity, str]:
    cell = _CELL.fullmatch(fault.path)
    file, number = cell.groups() if cell else (fault.path, None)
    return file, int(number or 0), fault.position, fault.severity, fault.message

"""Reads route files, folders and notebooks, and reports the faults of each text. Blocks while it reads.

Offsets become lines and columns here and nowhere else.
"""

import errno
import json
import os
import re
import stat
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeGuard

from amqtt_rest_bridge.errors import ConfigurationError, Fault, FaultCode, Position, Severity, visible
from amqtt_rest_bridge.sizes import size_text
from amqtt_rest_bridge.spelling import Question
from amqtt_rest_bridge.system import FileState

SUFFIXES = (".lot", ".lotnb")
"""The suffixes of route files, in any case."""
_START = Position(1, 1)
_NO_FILE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
MAX_FILE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Source:
    """One text of the route language: a file, or the cell of a notebook.

    `path` is as the operator named it; a cell's is `file.lotnb#3`, all cells counted from 1.
    `faults` are those of reading it.
    """

    path: str
    text: str
    faults: tuple[Fault, ...] = ()


_STRING = r"""(?:"(?:[^"\\\n]|\\[^\n])*+(?:"|$)|'(?:[^'\\\n]|\\[^\n])*+(?:'|$))"""
_MOST_MARKED = 1000
"""The most characters that a fault marks: a line may hold many statements."""
_MARKED = re.compile(
    # A statement up to its comment or the end of its line; a string; a placeholder; GET and its name; a word.
    rf"""(?:DEFINE|WITH|ADD)(?=\s)(?>(?:{_STRING}|[^\n"'/-]|/(?![/*])|-(?!-))*)
    |{_STRING}
    |\{{[^{{}}\n]*+\}}
    |GET\s+(?:ENV|SECRET)\s+(?:{_STRING}|[^\s"']+)
    |(?:(?!//|--|/\*)[^\s"'])+""",
    re.VERBOSE | re.IGNORECASE | re.MULTILINE,
)


class Report:
    """The faults of one source; `offset`s count characters of its text from 0.

    A fault marks the string, word, placeholder or statement that begins at its offset, or the text up to `end`. Its
    replacement is the one that its hint suggests. `files` are the files that were read for its routes.
    """

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.faults: list[Fault] = []
        self.errors = 0
        self.files: set[FileState] = set()
        self._text = text

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer("\n", self._text))]

    def position(self, offset: int) -> Position:
        """Return the line and column, from 1, of an offset; one past the end counts as the last character."""
        offset = max(0, min(offset, len(self._text) - 1))
        line = bisect_right(self._line_starts, offset)
        return Position(line, offset - self._line_starts[line - 1] + 1)

    def offset(self, position: Position) -> int:
        """Return the offset of a line and column; one past the end counts as the end."""
        start = self._line_starts[min(position.line, len(self._line_starts)) - 1]
        return min(start + position.column - 1, len(self._text))

    def position_behind(self, end: int) -> Position:
        """Return the place behind the character before an offset, in its line."""
        last = self.position(end - 1)
        return Position(last.line, last.column + 1)

    def line_before(self, offset: int) -> str:
        """Return the text of a line up to an offset."""
        return self._text[self._text.rfind("\n", 0, offset) + 1 : offset]

    def find(self, text: str, offset: int) -> int:
        """Return the offset of a text that follows at or behind an offset; raises ValueError if it does not."""
        return self._text.index(text, offset)

    def error(
        self, code: FaultCode, offset: int, message: str, hint: str | None = None, *, end: int | None = None
    ) -> None:
        """Note something that keeps the route from working."""
        self.note(Severity.ERROR, code, offset, message, hint, end=end)

    def warning(
        self, code: FaultCode, offset: int, message: str, hint: str | None = None, *, end: int | None = None
    ) -> None:
        """Note something that works, but is probably a mistake."""
        self.note(Severity.WARNING, code, offset, message, hint, end=end)

    def notice(self, offset: int, message: str, hint: str | None = None) -> None:
        """Note something that is skipped."""
        self.note(Severity.NOTICE, FaultCode.SKIPPED, offset, message, hint)

    def note(
        self,
        severity: Severity,
        code: FaultCode,
        offset: int,
        message: str,
        hint: str | None = None,
        *,
        end: int | None = None,
    ) -> None:
        """Note a fault of a severity."""
        self.faults.append(self.fault(severity, code, offset, message, hint, end))
        self.errors += severity is Severity.ERROR

    def fault(
        self,
        severity: Severity,
        code: FaultCode,
        offset: int,
        message: str,
        hint: str | None = None,
        end: int | None = None,
    ) -> Fault:
        """Return a fault without noting it."""
        behind = self.position_behind(self.end_of(offset) if end is None else end)
        replacement = hint.meant if isinstance(hint, Question) else None
        # Messages hold names and texts of a file: these must not break the log line they end in.
        message, hint = visible(message), hint and visible(hint)
        return Fault(self.path, self.position(offset), severity, message, hint, code, behind, replacement)

    def end_of(self, offset: int) -> int:
        """Return where the string, word, placeholder or statement that begins at an offset ends."""
        found = _MARKED.match(self._text, offset, offset + _MOST_MARKED)
        return offset + 1 if found is None else offset + len(found[0].rstrip())


def in_order(faults: list[Fault]) -> tuple[Fault, ...]:
    """Sort faults by file, cell, line and column, and drop duplicates."""

    def place(fault: Fault) -> tuple[str, int, Position, Severity, str]:
        return *split_cell(fault.path), fault.position, fault.severity, fault.message

    return tuple(sorted(dict.fromkeys(faults), key=place))


def split_cell(path: str) -> tuple[str, int]:
    """Return the file of a source, and the number of its cell, 0 for one that is not the cell of a notebook."""
    file, _, number = path.rpartition("#")
    return (file, int(number)) if number.isdecimal() and is_notebook(file) else (path, 0)


def read(
    paths: Iterable[str | Path], may_be_empty: Collection[str] = (), instead: Mapping[str, str | None] | None = None
) -> tuple[Source, ...]:
    """Read route files and notebooks; folders are searched for `*.lot` and `*.lotnb`, at any depth, in sorted order.

    A file that is named twice is read once. What cannot be understood as text becomes a fault of its source.

    Args:
        paths: Files and folders.
        may_be_empty: Those of them that may be missing, or hold no route file.
        instead: Texts by path that replace files, which need not exist; None: the file counts as missing.

    Raises:
        ConfigurationError: a path is missing or cannot be read; the message names all of them.
    """
    sources: list[Source] = []
    replaced = {os.path.realpath(path) for path in instead or ()}
    for path, content in read_contents(paths, may_be_empty):
        if not (replaced and os.path.realpath(path) in replaced):
            sources += sources_of(path, content)
    texts = (Source(path, text) for path, text in (instead or {}).items() if text is not None)
    return (*sources, *texts)


def read_contents(
    paths: Iterable[str | Path], may_be_empty: Collection[str] = ()
) -> Iterator[tuple[str, bytes | None]]:
    """Yield the files that `read` reads, with their contents, and folders without any, with None.

    The contents of a file that is too large end one byte behind `MAX_FILE_BYTES`.

    Raises:
        ConfigurationError: as `read` does, after the files that can be read.
    """
    seen: set[str] = set()
    unreadable: list[str] = []
    for path in map(Path, paths):
        is_optional, found = str(path) in may_be_empty, [path]
        if is_optional and not os.path.lexists(path):
            continue
        if os.path.isdir(path):  # noqa: PTH112  # Path.is_dir raises for a name that is too long
            errors: list[OSError] = []
            found = find_route_files(path, errors)
            unreadable += [f"{error.filename}: {error.strerror}" for error in errors]
            if not found and not is_optional:
                yield str(path), None
        for item in found:
            # Path.resolve raises for links in a circle, realpath for a NUL; opening the file reports both.
            real = str(item) if "\0" in str(item) else os.path.realpath(item)
            if real in seen:
                continue
            seen.add(real)
            try:
                with item.open("rb") as file:
                    content = file.read(MAX_FILE_BYTES + 1)
            except (OSError, ValueError) as error:  # ValueError: a NUL in the path
                # Where a relative path was looked for: most often it is the wrong folder.
                is_absent = isinstance(error, FileNotFoundError)
                where = f" (working directory: {Path.cwd()})" if is_absent and not item.is_absolute() else ""
                leads = f"; it is a link to {item.readlink()}" if is_absent and item.is_symlink() else ""
                unreadable.append(f"{item}: {getattr(error, 'strerror', None) or error}{leads}{where}")
            else:
                yield str(item), content
    if unreadable:
        raise ConfigurationError("; ".join(f"cannot read {visible(item)}" for item in unreadable))


def is_route_file(name: str) -> bool:
    """Return whether a file in a folder is read. Hidden files belong to editors and version control."""
    return not name.startswith(".") and name.lower().endswith(SUFFIXES)


def find_route_files(folder: Path, errors: list[OSError]) -> list[Path]:
    """Return the route files of a folder, at any depth, sorted; hidden folders are left out. Blocks while it looks.

    Adds to `errors` why a folder cannot be listed.
    """
    found: list[Path] = []
    for inner, folders, files in os.walk(folder, onerror=errors.append):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [path for path in (Path(inner, name) for name in files if is_route_file(name)) if _is_file(path)]
    return sorted(found)


def _is_file(path: Path) -> bool:
    """Return whether a path is a file; also True if it cannot be read, so that opening it raises the error.

    Path.is_file raises these errors up to Python 3.13 and hides them since 3.14.
    """
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError as error:
        return error.errno not in _NO_FILE


def sources_of(path: str, content: bytes | None) -> Iterator[Source]:
    """Yield the sources of a file's content: one text, the cells of a notebook, or the fault of an empty folder."""
    if content is None:
        yield _unreadable_source(path, Severity.WARNING, "this folder holds no *.lot or *.lotnb file")
        return
    if len(content) > MAX_FILE_BYTES:
        yield _unreadable_source(path, Severity.ERROR, f"the file is larger than {size_text(MAX_FILE_BYTES)}")
        return
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8", "replace")
        position = Position(before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)
        yield _unreadable_source(path, Severity.ERROR, "the file is not UTF-8 text", position, "save it as UTF-8")
        return
    if is_notebook(path):
        yield from _sources_of_cells(path, text)
    else:
        yield Source(path, text)


def _sources_of_cells(path: str, text: str) -> Iterator[Source]:
    """Yield the cells of a notebook that are in the route language, each with its number from 1."""
    if not text.strip():  # a notebook that an editor has just created
        return
    try:
        notebook = json.loads(text)
    except json.JSONDecodeError as error:
        message = f"the notebook is not JSON: {error.msg}"
        yield Source(path, "", (Report(path, text).fault(Severity.ERROR, FaultCode.UNREADABLE, error.pos, message),))
        return
    except (ValueError, RecursionError):  # numbers of thousands of digits, a thousand brackets
        yield _unreadable_source(path, Severity.ERROR, "the notebook is not JSON that can be read")
        return
    cells = notebook.get("cells") if isinstance(notebook, dict) else notebook
    if not isinstance(cells, list):
        hint = "[{kind, language, value}, ...]"
        yield _unreadable_source(path, Severity.ERROR, "the notebook is not an array of cells", hint=hint)
        return
    for number, cell in enumerate(cells, start=1):
        if not is_route_cell(cell):
            continue
        cell_path, value = f"{path}#{number}", cell.get("value")
        if not isinstance(value, str):
            yield _unreadable_source(
                cell_path, Severity.ERROR, "the cell has no text", hint="its value is a string"
            )  # fmt: skip
            continue
        try:
            value.encode()
        except UnicodeEncodeError as error:  # "\ud800" is JSON
            message, code = "the cell holds half a surrogate pair, which has no UTF-8 form", FaultCode.UNREADABLE
            fault = Report(cell_path, value).fault(Severity.ERROR, code, error.start, message, "leave it out")
            yield Source(cell_path, "", (fault,))
        else:
            yield Source(cell_path, value)


def is_route_cell(cell: object) -> TypeGuard[dict[str, object]]:
    """Return whether a cell of a notebook is in the route language."""
    return isinstance(cell, dict) and str(cell.get("language")).lower() == "lot"


def is_notebook(path: str) -> bool:
    """Return whether a file is a notebook, by its name."""
    return path.lower().endswith(SUFFIXES[1])


def _unreadable_source(
    path: str, severity: Severity, message: str, position: Position = _START, hint: str | None = None
) -> Source:
    return Source(path, "", (Fault(path, position, severity, message, hint, FaultCode.UNREADABLE),))

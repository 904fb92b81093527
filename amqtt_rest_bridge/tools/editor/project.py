"""The route files of an editor: their texts as they are typed, and what is wrong with them, alone and together. Pure.

A text is read in parts, each from one DEFINE to the next. After a keystroke only the part that has changed is read
again, so that editing a long text is quick.
"""

import re
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace

from amqtt_rest_bridge.errors import Fault, FaultCode, Position, Severity
from amqtt_rest_bridge.lot.definitions import Block, Definition
from amqtt_rest_bridge.lot.evaluation import Environment
from amqtt_rest_bridge.lot.grammar.parsing import MOST_UNREADABLE
from amqtt_rest_bridge.lot.loader import LoadedText, join, load_text
from amqtt_rest_bridge.lot.parsed_texts import ParsedText, parse_text
from amqtt_rest_bridge.lot.sources import Report, Source, is_notebook, sources_of, split_cell
from amqtt_rest_bridge.tools.editor.places import UTF_16, EditorPlace, Lines, NotebookCell, cells_of

MAX_TEXT = 1 << 20
"""Characters of a file beyond which it is not read while it is typed."""
_DEFINE = re.compile(r"^(?=[^\S\n]*DEFINE(?![\w-]))", re.MULTILINE | re.IGNORECASE)
_ANY_TYPE = re.compile(r"\"\*/\*\"|'\*/\*'")
# The messages and hints of faults that name a line.
_LINE = re.compile(r"\A(the first is in line |too much of this text .* up to line )(\d+)( only|\Z)")
_START = Position(1, 1)


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault where an editor shows it; `replacement` is what to write from `start` to `end`."""

    start: EditorPlace
    end: EditorPlace
    severity: Severity
    code: FaultCode
    message: str
    replacement: str | None


@dataclass(slots=True)
class Part:
    """A definition with its text, or what precedes the first definition.

    `offset` and `line` are where it begins in its source, both from 0. `alone` and `loaded` are the events and faults
    of its text. Places in `alone` count from the beginning of the part, places in `loaded` from that of the source.
    """

    source: str
    text: str
    offset: int
    line: int
    parsed: ParsedText
    alone: LoadedText
    loaded: LoadedText

    def blocks(self) -> Iterator[tuple[Definition, Block]]:
        """Return the blocks with their definitions, in the order of the text."""
        return ((definition, block) for definition in self.parsed.definitions for block in definition.blocks)


@dataclass(slots=True)
class RouteText:
    """A file: its text, the cells of a notebook by their numbers, and its parts.

    `unread` has the faults of a file that is too large, or whose octets cannot be read.
    """

    path: str
    text: str
    lines: Lines
    cells: dict[int, NotebookCell] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    unread: LoadedText = field(default_factory=LoadedText)

    def offset_in_file(self, source: str, offset: int) -> int:
        """Return where a character of a source is in the file, for a notebook in its JSON text."""
        cell = self.cells.get(split_cell(source)[1])
        return offset if cell is None else cell.offset(offset)

    def part_at(self, offset: int) -> tuple[Part, int] | None:
        """Return the part at an offset of the file, and the offset in it."""
        found = None
        for part in self.parts:
            cell = self.cells.get(split_cell(part.source)[1])
            index = offset if cell is None else cell.index(offset)
            if index is not None and part.offset <= index <= part.offset + len(part.text):
                found = part, index - part.offset
        return found


def folder_of(path: str) -> str:
    """Return the folder of a file. Files of one folder are compared, as `rest-bridge check FOLDER` does."""
    return path[: max(path.rfind("/"), path.rfind("\\"))]


class Project:
    """The files of a workspace by their paths, with the faults of each; paths are names, nothing is read from disk.

    `units` is what columns count: utf-8, utf-16 or utf-32.
    """

    def __init__(self, environment: Environment) -> None:
        self.files: dict[str, RouteText] = {}
        self.units = UTF_16
        self._environment = environment
        # Of files that `put_in_steps` is reading: parts by path and text.
        self._unfinished_parts: dict[str, dict[str, Part]] = {}

    def put(self, path: str, text: str) -> None:
        """Add a file, or change its text."""
        for _ in self.put_in_steps(path, text):
            pass

    def put_in_steps(self, path: str, text: str) -> Generator[None]:
        """Do what `put` does, and yield after each part that is read. Nothing changes unless all steps are done."""
        old = self.files.get(path)
        file = RouteText(path, text, Lines(text, self.units))
        if len(text) > MAX_TEXT:
            message = f"this file has more than {MAX_TEXT} characters: it is not checked here"
            fault = Fault(path, _START, Severity.WARNING, message, "use rest-bridge check", FaultCode.UNREADABLE)
            file.unread = LoadedText(faults=(fault,))
            self.files[path] = file
            return
        if is_notebook(path):
            file.cells = {cell.number: cell for cell in cells_of(text)}
        known = self._unfinished_parts.setdefault(path, {})
        known.update({part.text: part for part in (old.parts if old is not None else ())})
        # An editor may send half a surrogate pair; its replacement "?" is one character too.
        sources = list(sources_of(path, text.encode("utf-8", "replace")))
        file.unread = LoadedText(faults=tuple(fault for source in sources for fault in source.faults))
        for source in sources:
            parts_before, errors, line = len(file.parts), 0, 0
            for offset, part_text in _parts(source.text):
                part = self._part(source.path, part_text, offset, line, known.get(part_text))
                file.parts.append(part)
                line += part_text.count("\n")
                errors += sum(fault.severity is Severity.ERROR for fault in part.parsed.faults)
                if errors > MOST_UNREADABLE:  # read the source as one part: it ends at the same fault as in `check`
                    file.parts[parts_before:] = [self._part(source.path, source.text, 0, 0, known.get(source.text))]
                    break
                if part_text not in known:
                    known[part_text] = part
                    yield
        self.files[path] = file
        self._unfinished_parts.pop(path, None)

    def remove(self, path: str) -> None:
        """Forget a file."""
        self.files.pop(path, None)
        self._unfinished_parts.pop(path, None)

    def reload(self, paths: Iterable[str]) -> None:
        """Read the variables, secrets and certificates of files again."""
        files = [self.files[path] for path in paths if path in self.files]
        for part in (part for file in files for part in file.parts):
            part.alone = load_text(Source("", part.text), part.parsed, self._environment)
            part.loaded = _moved(part.alone, part.source, part.line)

    def findings(self, paths: Iterable[str]) -> dict[str, list[Finding]]:
        """Return what is wrong with these files, in the order of their texts. Files of one folder are compared."""
        places = {path: _Places(self.files[path]) for path in paths if path in self.files}
        found: dict[str, list[Finding]] = {path: [] for path in places}
        for folder in {folder_of(path) for path in places}:
            files = [file for path, file in self.files.items() if folder_of(path) == folder]
            loaded = [text for file in files for text in (file.unread, *(part.loaded for part in file.parts))]
            for fault in join(loaded).faults:
                path = fault.path if fault.path in self.files else split_cell(fault.path)[0]
                if path in places:
                    found[path].append(places[path].finding(fault))
        return found

    def _part(self, source: str, text: str, offset: int, line: int, old: Part | None) -> Part:
        """Return a part; `old` is one with the same text, which is not read again."""
        if old is None:
            parsed = parse_text(text)
            alone = load_text(Source("", text), parsed, self._environment)
            return Part(source, text, offset, line, parsed, alone, _moved(alone, source, line))
        has_moved = (old.source, old.line) != (source, line)
        loaded = old.loaded if not has_moved else _moved(old.alone, source, line)
        return replace(old, source=source, offset=offset, line=line, loaded=loaded)


def _parts(text: str) -> Iterator[tuple[int, str]]:
    """Split a text before each DEFINE that begins a line and is in no block comment; yield offsets and texts."""
    begin = 0
    last_end = text.rfind("*/")
    for found in _DEFINE.finditer(text):
        end = found.start()
        may_be_in_comment = False  # a comment that begins before this DEFINE, and ends behind it
        if last_end >= end and text.find("/*", begin, end) >= 0:
            part = _ANY_TYPE.sub("", text[begin:end])  # as in ADD Accept "*/*"
            may_be_in_comment = part.rfind("/*") >= max(0, part.rfind("*/") - 1)
        if end > begin and not may_be_in_comment:
            yield begin, text[begin:end]
            begin = end
    yield begin, text[begin:]


def _moved(loaded: LoadedText, path: str, lines: int) -> LoadedText:
    """Return events and faults of a part with their places in its source, in which `lines` lines precede the part."""

    def moved(position: Position) -> Position:
        return Position(position.line + lines, position.column)

    def line_moved(found: re.Match[str]) -> str:
        return f"{found[1]}{int(found[2]) + lines}{found[3]}"

    def fault(one: Fault) -> Fault:
        message, hint = one.message, one.hint
        if lines and one.code in (FaultCode.DUPLICATE, FaultCode.UNREADABLE):
            message, hint = _LINE.sub(line_moved, message), hint and _LINE.sub(line_moved, hint)
        position, end = moved(one.position), moved(one.end)
        return replace(one, path=path, position=position, end=end, message=message, hint=hint)

    events = [
        replace(event, path=path, places={name: (moved(one), moved(two)) for name, (one, two) in event.places.items()})
        for event in loaded.events
    ]
    return replace(
        loaded,
        faults=tuple(map(fault, loaded.faults)),
        claims=tuple(replace(claim, refused=fault(claim.refused)) for claim in loaded.claims),
        events=tuple(events),
        without_define=tuple(map(fault, loaded.without_define)),
    )


class _Places:
    """Converts the positions of a file's faults to those of an editor."""

    def __init__(self, file: RouteText) -> None:
        self._file = file
        self._reports: dict[int, Report] = {}  # of the file, and of its cells by their numbers

    def finding(self, fault: Fault) -> Finding:
        """Return a fault as an editor shows it."""
        number = split_cell(fault.path)[1] if fault.path != self._file.path else 0
        # What GET reads is there on the broker's machine, perhaps not on this one.
        severity = Severity.NOTICE if fault.code is FaultCode.UNAVAILABLE else fault.severity
        message = f"{fault.message}\nhint: {fault.hint}" if fault.hint else fault.message
        start, end = self._place(fault.position, number), self._place(fault.end, number)
        return Finding(start, end, severity, fault.code, message, fault.replacement)

    def _place(self, position: Position, number: int) -> EditorPlace:
        cell = self._file.cells.get(number)
        if number not in self._reports:
            self._reports[number] = Report("", self._file.text if cell is None else cell.text)
        offset = self._reports[number].offset(position)
        return self._file.lines.place(offset if cell is None else cell.offset(offset))

"""The route files of a workspace, with their texts as they are in the editor, and the faults of each. Pure.

A text is split into parts, before each DEFINE. A part whose text was read before is not read again: after a keystroke
in a long file only one definition is read.

The faults have to be those of `rest-bridge check`, which reads a text in one piece. So the faults of a part get their
places in the whole text (`_moved`), and the parts of all files of a folder are joined (`lot.loader.join`).
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
_ANY_MEDIA_TYPE = re.compile(r"\"\*/\*\"|'\*/\*'")
"""The string "*/*", as in ADD Accept "*/*". It neither ends a comment nor begins one."""
_MESSAGE_WITH_LINE = re.compile(r"\A(the first is in line |too much of this text .* up to line )(\d+)( only|\Z)")
"""The beginnings of messages and hints that name a line of the text, and the number of the line."""


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
    """A definition with its text, or the text before the first definition.

    `source` names the text that the part is of: the path of a file, or that of a cell of a notebook (`split_cell`).
    The part begins there at `offset`, on `line`, both counted from 0. `in_part` and `in_source` are its events and
    faults, with places counted from the beginning of the part in `in_part`, of the source in `in_source`.
    """

    source: str
    text: str
    offset: int
    line: int
    parsed: ParsedText
    in_part: LoadedText
    in_source: LoadedText

    def blocks(self) -> Iterator[tuple[Definition, Block]]:
        """Return the blocks with their definitions, in the order of the text."""
        return ((definition, block) for definition in self.parsed.definitions for block in definition.blocks)


@dataclass(slots=True)
class RouteText:
    """A file: its text, its parts, and the cells of a notebook by their numbers.

    `unread` has the faults of what could not be read: a file that is too large, bytes that are not text.
    """

    path: str
    text: str
    lines: Lines
    cells: dict[int, NotebookCell] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    unread: LoadedText = field(default_factory=LoadedText)

    def offset_in_file(self, source: str, offset: int) -> int:
        """Convert an offset in a source to an offset in the file, which for a notebook is JSON."""
        cell = self.cells.get(split_cell(source)[1])
        return offset if cell is None else cell.offset(offset)

    def part_at(self, offset: int) -> tuple[Part, int] | None:
        """Return the part at an offset of the file, and the offset in the part; None between two cells."""
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
    """The files of a workspace by their paths. Paths are names only: `session` reads the files from disk.

    `units` is what columns count: utf-8, utf-16 or utf-32.
    """

    def __init__(self, environment: Environment) -> None:
        self.files: dict[str, RouteText] = {}
        self.units = UTF_16
        self._environment = environment
        # The parts that `put_in_steps` has read, by path and text of the part, until it ends. A keystroke may cancel it
        # and call it with a new text: then it finds these parts here.
        self._parts_read: dict[str, dict[str, Part]] = {}

    def put(self, path: str, text: str) -> None:
        """Add a file, or change its text."""
        for _ in self.put_in_steps(path, text):
            pass

    def put_in_steps(self, path: str, text: str) -> Generator[None]:
        """Do what `put` does, but yield after each part that is read. The file changes after the last part."""
        file = RouteText(path, text, Lines(text, self.units))
        if len(text) > MAX_TEXT:
            file.unread = _too_large(path)
            self.files[path] = file
            return
        if is_notebook(path):
            file.cells = {cell.number: cell for cell in cells_of(text)}
        known = self._parts_read.setdefault(path, {})
        if path in self.files:
            known.update({part.text: part for part in self.files[path].parts})
        # An editor may send half a surrogate pair. It is read as "?", which is one character too.
        sources = list(sources_of(path, text.encode("utf-8", "replace")))
        file.unread = LoadedText(faults=tuple(fault for source in sources for fault in source.faults))
        for source in sources:
            first, errors, line = len(file.parts), 0, 0
            for offset, part_text in _split(source.text):
                part = self._part(source.path, part_text, offset, line, known.get(part_text))
                file.parts.append(part)
                line += part_text.count("\n")
                errors += sum(fault.severity is Severity.ERROR for fault in part.parsed.faults)
                if errors > MOST_UNREADABLE:
                    # `check` does not read such a text to its end. Read as one part it ends at the same fault as there.
                    file.parts[first:] = [self._part(source.path, source.text, 0, 0, known.get(source.text))]
                    break
                if part_text not in known:
                    known[part_text] = part
                    yield
        self.files[path] = file
        self._parts_read.pop(path, None)

    def _part(self, source: str, text: str, offset: int, line: int, known: Part | None) -> Part:
        """Return the part of a source that begins at an offset; `known` has the same text, and was read before."""
        if known is None:
            parsed = parse_text(text)
            in_part = load_text(Source("", text), parsed, self._environment)
            return Part(source, text, offset, line, parsed, in_part, _moved(in_part, source, line))
        is_where_it_was = (known.source, known.line) == (source, line)
        in_source = known.in_source if is_where_it_was else _moved(known.in_part, source, line)
        return replace(known, source=source, offset=offset, line=line, in_source=in_source)

    def remove(self, path: str) -> None:
        """Forget a file."""
        self.files.pop(path, None)
        self._parts_read.pop(path, None)

    def reload(self, paths: Iterable[str]) -> None:
        """Read again the variables, secrets and certificates that files name; the texts have not changed."""
        for file in [self.files[path] for path in paths if path in self.files]:
            for part in file.parts:
                part.in_part = load_text(Source("", part.text), part.parsed, self._environment)
                part.in_source = _moved(part.in_part, part.source, part.line)

    def findings(self, paths: Iterable[str]) -> dict[str, list[Finding]]:
        """Return the faults of these files, each in the order of its text.

        Names and endpoints are compared with those of all files of the folder, as by `rest-bridge check FOLDER`.
        """
        places = {path: _Places(self.files[path]) for path in paths if path in self.files}
        found: dict[str, list[Finding]] = {path: [] for path in places}
        for folder in {folder_of(path) for path in places}:
            files = [file for path, file in self.files.items() if folder_of(path) == folder]
            loaded = [text for file in files for text in (file.unread, *(part.in_source for part in file.parts))]
            for fault in join(loaded).faults:
                path = fault.path if fault.path in self.files else split_cell(fault.path)[0]
                if path in places:
                    found[path].append(places[path].finding(fault))
        return found


def _too_large(path: str) -> LoadedText:
    """Return the fault of a file that is too large to be read while it is typed."""
    message = f"this file has more than {MAX_TEXT} characters: it is not checked here"
    fault = Fault(path, Position(1, 1), Severity.WARNING, message, "use rest-bridge check", FaultCode.UNREADABLE)
    return LoadedText(faults=(fault,))


def _split(text: str) -> Iterator[tuple[int, str]]:
    """Split a text before each DEFINE that begins a line and is in no block comment; yield offsets and texts."""
    begin, last_end = 0, text.rfind("*/")
    for found in _DEFINE.finditer(text):
        end = found.start()
        is_in_comment = False
        if last_end >= end and text.find("/*", begin, end) >= 0:
            before = _ANY_MEDIA_TYPE.sub("", text[begin:end])
            # A comment is open here if the last "/*" comes after the last "*/". In "/*/" the two overlap: such a "*/"
            # does not end the comment, so a "/*" one character before it counts as later.
            is_in_comment = before.rfind("/*") >= max(0, before.rfind("*/") - 1)
        if end > begin and not is_in_comment:
            yield begin, text[begin:end]
            begin = end
    yield begin, text[begin:]


def _moved(loaded: LoadedText, path: str, lines: int) -> LoadedText:
    """Return what was loaded of a part with places in its source, in which `lines` lines come before the part."""

    def moved(position: Position) -> Position:
        return Position(position.line + lines, position.column)

    def line_moved(found: re.Match[str]) -> str:
        return f"{found[1]}{int(found[2]) + lines}{found[3]}"

    def fault(one: Fault) -> Fault:
        message, hint = one.message, one.hint
        if lines and one.code in (FaultCode.DUPLICATE, FaultCode.UNREADABLE):
            message = _MESSAGE_WITH_LINE.sub(line_moved, message)
            hint = hint and _MESSAGE_WITH_LINE.sub(line_moved, hint)
        position, end = moved(one.position), moved(one.end)
        return replace(one, path=path, position=position, end=end, message=message, hint=hint)

    events = [
        replace(event, path=path, places={name: (moved(one), moved(two)) for name, (one, two) in event.places.items()})
        for event in loaded.events
    ]
    return replace(
        loaded,
        faults=tuple(map(fault, loaded.faults)),
        claims=tuple(replace(claim, fault=fault(claim.fault)) for claim in loaded.claims),
        events=tuple(events),
        without_define=tuple(map(fault, loaded.without_define)),
    )


class _Places:
    """Converts the positions of a file's faults to those of an editor."""

    def __init__(self, file: RouteText) -> None:
        self._file = file
        # For the offsets of lines and columns: one for each cell, by its number, and 0 for the file itself.
        self._reports: dict[int, Report] = {}

    def finding(self, fault: Fault) -> Finding:
        """Return a fault as an editor shows it."""
        number = split_cell(fault.path)[1] if fault.path != self._file.path else 0
        # A variable or secret that is missing here may be there on the broker's machine.
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

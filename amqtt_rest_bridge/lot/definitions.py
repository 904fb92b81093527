"""Puts the statements of a route into its blocks: each setting in its block, at most once, by a name that exists. Pure.

`parsed_texts` calls `read_blocks` with the statements of one route, as `grammar` has parsed them; `evaluation` reads
the blocks. Values stay as written.

Each mistake is reported once, and reading goes on as the author probably meant it. For example, after a misspelt ADD
line the settings below it are not reported one by one. To do so, `_BlockReader` remembers the open block, the part of
it that is being read (`_Section`), and whether the next line belongs to a mistake that has been reported.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from itertools import islice, takewhile

from amqtt_rest_bridge.errors import FaultCode, on_one_line
from amqtt_rest_bridge.lot import hints
from amqtt_rest_bridge.lot.grammar.parsing import Junk, Level, Node, OpenComment, Piece, StatementNode
from amqtt_rest_bridge.lot.settings_table import (
    BLOCK_NAMES,
    HEADERS,
    IGNORED_BLOCK,
    PARAMETERS,
    BlockKind,
    Kind,
    Parameter,
)
from amqtt_rest_bridge.lot.sources import Report
from amqtt_rest_bridge.spelling import closest, did_you_mean, question

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_MARKS = ("=", ":", ":=", "=>")  # that other languages write between a name and its value
_FIRST_WORD = re.compile(r"\s*([A-Za-z_]+)[:=]?(?=\s|\Z)")
_FIRST_MARK = re.compile(r"\A\s*[:=]\s*")
_HEADER_LINE = re.compile(r"\s*(?P<name>\"[^\"]+\"|'[^']+'|[\w-]+)(?P<colon>:?)[ \t]+\S")
_HASH_BEFORE = re.compile(r"(?<!\S)#[^\"']*\Z")
_STATEMENT = re.compile(r"([A-Z]+)\s+([A-Z_]+)", re.IGNORECASE)


@dataclass(slots=True)
class Block:
    """A block: its settings by name (the `WITH` lines), and its headers (the lines below WITH HEADERS).

    `broken` names settings that are present but could not be read; `guessed` names those that an unknown name may mean.
    A setting in one of them is not reported as missing.
    """

    kind: BlockKind
    offset: int
    name: str = ""
    settings: dict[str, StatementNode] = field(default_factory=dict)
    headers: list[StatementNode] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    guessed: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Definition:
    """One `DEFINE ROUTE ... WITH TYPE REST_API`: its blocks in their order; `name` is None when it cannot be read.

    `broken` names blocks whose first line could not be read. `is_faulty`: an error in the text has been reported.
    """

    name: str | None
    offset: int
    blocks: list[Block] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    is_faulty: bool = False


def is_name(text: str) -> bool:
    """Return whether a text can name a route or an event."""
    return _NAME.fullmatch(text) is not None


def read_blocks(body: Sequence[Node], definition: Definition, report: Report) -> None:
    """Add the blocks of a route to its definition, and report what belongs to no block."""
    blocks = [node.name.text for node in body if isinstance(node, StatementNode) and node.level is Level.BLOCK]
    reader = _BlockReader(definition, report, has_events=BlockKind.EVENT in blocks)
    for number, node in enumerate(body, start=1):
        reader.read(node, islice(body, number, None))


def report_open_strings(pieces: Iterable[Piece], report: Report) -> None:
    """Report the strings that are not closed."""
    for piece in pieces:
        if piece.open_at is not None:
            in_comment = _HASH_BEFORE.search(report.line_before(piece.open_at))
            hint = hints.COMMENT_HINT if in_comment else f"write {piece.text[0]} where it ends"
            if piece.text[:2] in ('"{', '"['):
                hint = "write ' where it begins and where it ends: \" is part of the JSON in it"
            report.error(FaultCode.NOT_CLOSED, piece.open_at, "this string is not closed on its line", hint)


class _Section(Enum):
    """The part of a block that is being read."""

    SETTINGS = auto()
    """The settings of the open block. This is also the section before the first block."""
    HEADERS = auto()
    """The lines below WITH HEADERS: ADD adds a header."""
    SKIPPED = auto()
    """A block that is not read, since it is unknown, or a second one of its kind."""


class _BlockReader:
    """Reads the nodes of one definition in order; `has_events` says whether one of them opens an event.

    `block` is the last block that could be read, None before the first one. `previous` is the statement before the
    present node, None if other text is before it.

    Two flags keep a mistake from being reported twice:

    - `is_next_text_reported`: if text that is not a statement follows, it belongs to a fault that has been reported.
    - `is_missing_block_reported`: the last setting belongs in a block that is missing. The next one may belong there.
    """

    def __init__(self, definition: Definition, report: Report, *, has_events: bool) -> None:
        self.definition = definition
        self.has_events = has_events
        self.report = report
        self.block: Block | None = None
        self.previous: StatementNode | None = None
        self.events: dict[str, Block] = {}  # by name
        self.section = _Section.SETTINGS
        self.is_next_text_reported = self.is_missing_block_reported = False

    def read(self, node: Node, following: Iterator[Node]) -> None:
        """Read a node; `following` yields the nodes after it."""
        if isinstance(node, OpenComment):
            message = "this comment is never closed"
            self.report.error(FaultCode.NOT_CLOSED, node.offset, message, "write */ where it ends")
            self.is_next_text_reported = False
        elif isinstance(node, Junk):
            if self.section is _Section.SKIPPED:
                report_open_strings(node.open_strings, self.report)
            else:
                self._read_text(node)
            self.previous, self.is_next_text_reported = None, False
        else:
            report_open_strings((node.name, *node.pieces), self.report)
            self.is_next_text_reported = False
            self.previous = node
            if node.level is not Level.HEADER:
                if self.section is _Section.HEADERS:
                    self.section = _Section.SETTINGS
                self._open_block(node) if node.level is Level.BLOCK else self._read_setting(node)
            elif self.section is _Section.HEADERS:
                self._read_header(node)
            elif self.section is not _Section.SKIPPED or closest(node.name.text, BLOCK_NAMES):
                self._read_unknown_block(node, following)

    def _report_broken(
        self, code: FaultCode, name: str, offset: int, message: str, hint: str | None = None, end: int | None = None
    ) -> None:
        """Report a setting of the open block that cannot be read, so that it is not reported as missing too."""
        self.report.error(code, offset, message, hint, end=end)
        if self.block is not None:
            self.block.broken.add(name)

    def _report_second(self, first: Block, offset: int, message: str) -> None:
        """Report a block with the kind or name of the `first` one."""
        line = self.report.position(first.offset).line
        self.report.error(FaultCode.DUPLICATE, offset, message, f"the first is in line {line}")

    # Blocks.

    def _open_block(self, node: StatementNode) -> None:
        """Open the block of `ADD <block>`."""
        self.is_missing_block_reported = False
        if node.name.text == BlockKind.EVENT:
            self._open_event(node)
        else:
            self._open_unnamed_block(node, node.name.text)

    def _open_event(self, node: StatementNode) -> None:
        """Open an event; report that its name is missing, not allowed, or the name of another event."""
        block = self.block = Block(BlockKind.EVENT, node.offset)
        self.section = _Section.SETTINGS
        self.definition.blocks.append(block)
        if not node.pieces:
            self.report.error(FaultCode.MISSING, node.offset, "this event has no name", "write ADD EVENT MyEvent")
            return
        name = node.pieces[0]
        if len(node.pieces) == 1 and is_name(name.text):
            if self.events.setdefault(name.text, block) is not block:
                self._report_second(self.events[name.text], name.offset, f"this route has two events {name.text}")
            block.name = name.text
        else:
            self._report_event_name(name)

    def _report_event_name(self, name: Piece) -> None:
        """Report a text that cannot name an event: it is quoted, a mark follows it, or it holds other characters."""
        message = f"the event name {name.text} holds other characters than A-Z a-z 0-9 _ . -"
        hint = "write it bare, as in ADD EVENT My_Event-1"
        if name.is_string and is_name(name.text[1:-1]):
            message, hint = f"the event name {name.text} is quoted", f"write {name.text[1:-1]}"
        elif is_name(name.text[:-1]) and name.text[-1] in ",:;{":
            hint = "leave the comma out" if name.text.endswith(",") else f"leave the {name.text[-1]} out"
        self.report.error(FaultCode.INVALID_NAME, name.offset, message, hint)

    def _open_unnamed_block(self, node: StatementNode, name: str) -> None:
        """Open a block that takes no name, unlike an event; report text after it, and a second block of its kind."""
        first = node.pieces[0] if node.pieces else None
        # The text after it may be a setting without WITH.
        setting = first.text.upper() if first is not None and name != IGNORED_BLOCK else ""
        broken = {setting} & PARAMETERS.get(BlockKind(name), {}).keys() if setting else set()
        if first is not None and broken:
            message, hint = f"WITH is missing before {setting}", f"write WITH {setting}"
            self.report.error(FaultCode.MISSING_KEYWORD, first.offset, message, hint)
            self.is_next_text_reported = True
        elif first is not None:
            hint = hints.hint_for_extra_text(node.pieces, "only events have names")
            self.report.error(FaultCode.UNEXPECTED_TEXT, first.offset, f"ADD {name} takes no name", hint)
        self.section = _Section.SKIPPED
        if name == IGNORED_BLOCK:
            self.report.notice(node.offset, f"{name} is skipped: the route uses the broker it is loaded in")
            return
        same = next((block for block in self.definition.blocks if block.kind == name), None)
        if same is not None:
            self._report_second(same, node.offset, f"this route has two {name} blocks")
            return
        self.section = _Section.SETTINGS
        self.block = Block(BlockKind(name), node.offset, broken=broken)
        self.definition.blocks.append(self.block)

    def _read_unknown_block(self, node: StatementNode, following: Iterator[Node]) -> None:
        """Read ADD with a name that is not a block.

        These cases are tried in order:

        1. `ADD HEADERS`: the next lines are read as headers.
        2. A setting, which begins with WITH: it is read as a setting.
        3. A block in lower case, or with a mark after it: the block is opened.
        4. A header that is not below WITH HEADERS: the next lines are read as headers.
        5. Any other name: the lines of this block are skipped.
        """
        name, upper_name, block = node.name.text, node.name.text.strip("'\"").upper(), self.block
        is_setting = any(upper_name in rows for rows in PARAMETERS.values())
        is_in_event = block is not None and block.kind is BlockKind.EVENT
        looks_like_header = node.name.is_string or "-" in name or (name.istitle() if is_setting else bool(node.pieces))
        is_header = is_in_event and looks_like_header and closest(name, BLOCK_NAMES) is None
        if upper_name in ("HEADER", HEADERS):
            hint = "write WITH HEADERS, and below it ADD <name> <value>"
            self._report_broken(FaultCode.MISPLACED, HEADERS, node.name.offset, f"{name} is not a block", hint)
            self.section, self.is_next_text_reported = _Section.HEADERS, True
        elif block is not None and is_setting and not is_header:
            message = f"{name} is a setting, which begins with WITH"
            # HEADERS counts as broken too: the line may have been meant as a header.
            self._report_broken(FaultCode.MISPLACED, HEADERS, node.offset, message, f"write WITH {upper_name}")
            self.section = _Section.SETTINGS
            self._read_setting(node)
        elif (block_name := name.rstrip(":{").upper()) in BLOCK_NAMES:
            message, hint = f"unknown block {name}", f"write ADD {block_name}"
            self.report.error(FaultCode.UNKNOWN_BLOCK, node.name.offset, message, hint)
            self._open_block(StatementNode(Level.BLOCK, Piece(block_name, node.name.offset), node.pieces, node.offset))
        elif is_header:
            message, hint = f"the header {name} is not below WITH HEADERS", "write WITH HEADERS in the line above it"
            if block is not None and HEADERS in block.settings:
                hint = "write it directly below WITH HEADERS, without a setting between"
            self._report_broken(FaultCode.UNKNOWN_BLOCK, HEADERS, node.offset, message, hint)
            self.section = _Section.HEADERS
        else:
            self._skip_unknown_block(node.name, following)

    def _skip_unknown_block(self, name: Piece, following: Iterator[Node]) -> None:
        """Report an unknown block, and skip its lines. The settings in them show which block was meant."""
        lines = takewhile(lambda line: isinstance(line, StatementNode) and line.level is Level.SETTING, following)
        settings = [line.name.text.upper() for line in lines if isinstance(line, StatementNode)]
        meant = next((kind for kind in BlockKind if set(settings) & PARAMETERS[kind].keys()), None)
        hint = did_you_mean(name.text, BLOCK_NAMES) or f"known: {', '.join(BLOCK_NAMES)}"
        if meant is not None:
            hint = question(meant)
            self.definition.broken.add(meant)
        self.report.error(FaultCode.UNKNOWN_BLOCK, name.offset, f"unknown block {name.text}", hint)
        self.section = _Section.SKIPPED

    # Settings.

    def _read_setting(self, written: StatementNode) -> None:
        """Read a setting; report one that is outside of a block, unknown, set twice or without a value."""
        upper_name, block = written.name.text.upper(), self.block
        if upper_name in BLOCK_NAMES:
            hint = f"write ADD {' '.join([upper_name, *(piece.text for piece in written.pieces[:1])])}"
            message = f"{upper_name} is a block, which begins with ADD"
            self.report.error(FaultCode.MISPLACED, written.offset, message, hint)
            self._open_block(
                StatementNode(Level.BLOCK, Piece(upper_name, written.offset), written.pieces, written.offset)
            )
            return
        if self.section is _Section.SKIPPED:
            return
        if block is None:
            self._report_outside_block(written)
            return
        node = self._without_mark(written, "WITH")
        if node is None:
            return
        name = node.name
        self.section = _Section.HEADERS if name.text.upper() == HEADERS else _Section.SETTINGS
        parameter = PARAMETERS[block.kind].get(name.text.strip("'\"").upper())
        if parameter is None:
            self._report_unknown_setting(node, block)
        elif name.is_string:
            message = f"the name of a setting is not quoted: {name.text}"
            self._report_broken(FaultCode.QUOTES, parameter.name, name.offset, message, f"write {parameter.name}")
        elif parameter.name in block.settings:
            line = self.report.position(block.settings[parameter.name].offset).line
            message = f"{parameter.name} is set twice in this block"
            self.report.error(FaultCode.DUPLICATE, node.offset, message, f"the first is in line {line}")
        elif parameter.kind is Kind.HEADERS or self._has_value(node, parameter):
            self.is_missing_block_reported = False
            block.settings[parameter.name] = node
            if parameter.kind is Kind.HEADERS and node.pieces:
                self._report_text_after_headers(node)

    def _report_outside_block(self, written: StatementNode) -> None:
        """Report a setting before the first block, once for several such settings."""
        right_block = next((kind for kind in BlockKind if written.name.text.upper() in PARAMETERS[kind]), None)
        if not self.is_missing_block_reported:
            missing = {None: "ADD REST_API_CONFIG or ADD EVENT <name>", BlockKind.EVENT: "ADD EVENT <name>"}
            hint = f"write {missing.get(right_block, f'ADD {right_block}')} before it"
            message = f"{written.name.text} is outside of a block"
            self.report.error(FaultCode.MISPLACED, written.offset, message, hint)
        self.is_missing_block_reported = True
        self.definition.broken.add(str(right_block))

    def _report_text_after_headers(self, node: StatementNode) -> None:
        """Report the text after WITH HEADERS. On the next line it is a header without ADD."""
        first = node.pieces[0]
        self.is_next_text_reported = first.text[:1] in "{["
        if not self.report.line_before(first.offset).strip():
            self.previous = replace(node, pieces=())
            self._report_missing_add(first.offset, first.text)
            self.is_next_text_reported = True
        else:
            hint = "each header is a line of its own below: ADD <name> <value>"
            hint = hint if first.text[0] == "{" else hints.hint_for_extra_text(node.pieces, hint)
            self._report_broken(FaultCode.UNEXPECTED_TEXT, HEADERS, first.offset, "WITH HEADERS takes no value", hint)

    def _has_value(self, node: StatementNode, parameter: Parameter) -> bool:
        """Return whether a setting has a value that can be read; report why not."""
        first, name = node.pieces[0] if node.pieces else None, parameter.name
        if first is None:
            hint = f"allowed: {parameter.allowed}"
            self._report_broken(FaultCode.MISSING, name, node.offset, f"{name} has no value", hint)
        elif first.text[0] in hints.TYPOGRAPHIC_QUOTES:
            self._report_broken(
                FaultCode.QUOTES, name, first.offset, f"{first.text[0]} begins no string", hints.STRAIGHT
            )
        else:
            if parameter.kind not in (Kind.BOOLEAN, Kind.INTEGER, Kind.CHOICE):  # these refuse a comma later
                self._warn_of_comma(node)
            return True
        return False

    def _without_mark(self, node: StatementNode, verb: str) -> StatementNode | None:
        """Return a statement without the = or : between its name and its value, which is reported.

        Return None if the value cannot be used. `verb` is WITH or ADD.
        """
        name, pieces = node.name, node.pieces
        bare_name = re.split("[=:(]", name.text, maxsplit=1)[0]
        if not name.is_string and bare_name and bare_name != name.text:
            mark, value = name.text[len(bare_name)], name.text[len(bare_name) + 1 :]  # not shown: it may be a password
            message = f"{bare_name} has a {mark} before its value"
            hint = f"write {verb} {bare_name} and the value, with a space between"
            self.report.error(FaultCode.UNEXPECTED_TEXT, name.offset + len(bare_name), message, hint)
            self.is_next_text_reported = mark == "("
            if pieces and not value:
                return replace(node, name=Piece(bare_name, name.offset))
        elif pieces and not pieces[0].is_string and pieces[0].text in _MARKS:
            message = f"{name.text} has a {pieces[0].text} before its value"
            hint = f"write {verb} {name.text} and the value"
            self.report.error(FaultCode.UNEXPECTED_TEXT, pieces[0].offset, message, hint)
            self.is_next_text_reported = True
        else:
            return node
        if self.block is not None:
            self.block.broken.add(HEADERS if verb == "ADD" else bare_name.upper())
        return None

    def _warn_of_comma(self, node: StatementNode) -> None:
        """Warn of a comma after a value, which other languages require."""
        last = node.pieces[-1]
        if last.text.endswith(",") and last.text != ",":
            hint = f"{hints.NO_COMMA}; quote the value if it ends with one"
            message = f"the value of {node.name.text} ends with a comma"
            self.report.warning(FaultCode.OTHER_SYNTAX, last.offset + len(last.text) - 1, message, hint)

    def _report_unknown_setting(self, node: StatementNode, block: Block) -> None:
        """Report a setting that the block does not have, with what was probably meant.

        It may be the first word of a name (`REQUEST TIMEOUT`), a header, a setting of another block, or misspelt.
        """
        name, kind = node.name, block.kind
        unquoted = name.text.strip("'\"")
        next_word = node.pieces[0].text if node.pieces else ""
        right_block = next((other for other in BlockKind if unquoted.upper() in PARAMETERS[other]), None)
        looks_like_header = name.is_string or "-" in unquoted or unquoted.istitle()
        if (joined := f"{unquoted}_{next_word}".upper()) in PARAMETERS[kind]:
            message, hint = f"unknown setting {unquoted} {next_word}", f"write {joined}"
            self.report.error(FaultCode.UNKNOWN_SETTING, name.offset, message, hint)
            block.guessed.add(joined)
            self.is_next_text_reported = True
        elif kind is BlockKind.EVENT and looks_like_header and closest(unquoted, PARAMETERS[kind]) is None:
            hint = f"write ADD {name.text} below WITH HEADERS: each line of a header begins with ADD"
            self._report_broken(FaultCode.MISPLACED, HEADERS, node.offset, f"{name.text} is not a setting", hint)
        elif right_block is not None:
            hint = f"it belongs in {right_block}"
            if unquoted.upper() == HEADERS:
                hint = hints.HEADERS_IN_AN_EVENT
            elif right_block is BlockKind.EVENT:
                hint += ": move it below ADD EVENT" if self.has_events else ": write ADD EVENT <name> before it"
            if not self.is_missing_block_reported:
                self.report.error(FaultCode.MISPLACED, name.offset, f"{name.text} does not belong in {kind}", hint)
            self.is_missing_block_reported = right_block is BlockKind.EVENT
            self.definition.broken.add(right_block)
        else:
            guesses, hint = hints.explain_unknown_setting(unquoted, kind)
            block.guessed.update(guesses)
            self.is_next_text_reported = unquoted.upper() == "HEADER"
            self.report.error(FaultCode.UNKNOWN_SETTING, name.offset, f"unknown setting {name.text}", hint)

    # Headers.

    def _read_header(self, written: StatementNode) -> None:
        """Read `ADD <name> <value>` below WITH HEADERS."""
        self.previous = node = self._without_mark(written, "ADD")
        if self.block is None or node is None:
            return
        name = node.name.text
        if not node.pieces:
            meant = closest(name, BLOCK_NAMES)
            hint: str = question(meant, f"ADD {meant}") if meant else f'write ADD {name} "..."'
            if node.name.is_string and ":" in name:
                key, _, value = name[1:-1].partition(":")
                hint = f'write ADD "{key.strip()}" "{value.strip()}"'
            end = node.name.offset + len(name)
            self._report_broken(FaultCode.MISSING, HEADERS, node.offset, f"the header {name} has no value", hint, end)
        elif name.upper() == "HEADER":
            message, hint = "HEADER is not part of a header line", f"write ADD {node.pieces[0].text}"
            self._report_broken(FaultCode.UNEXPECTED_TEXT, HEADERS, node.name.offset, message, hint)
            self.is_next_text_reported = True
        else:
            self._warn_of_comma(node)
            self.block.headers.append(node)

    def _report_missing_add(self, offset: int, written: str) -> None:
        """Report a header without ADD; `written` is its name, and the colon if it has one."""
        name = written.removesuffix(":")
        hint = f'write ADD {name} "..."' + (", without the colon" if name != written else "")
        self._report_broken(FaultCode.MISSING_KEYWORD, HEADERS, offset, f"ADD is missing before {name}", hint)

    # Text that is not a statement.

    def _read_text(self, junk: Junk) -> None:
        """Report each line of a text that is a statement without its keyword, and all text before the first of them."""
        end, offset = None, junk.offset  # `end`: of the text before the first such line; None if there is none
        for number, line in enumerate(junk.text.split("\n")):
            start = offset + len(line) - len(line.lstrip())
            if number == 0 and self.is_next_text_reported:
                end = 0  # this line belongs to a fault that has been reported
            elif self._report_missing_keyword(line.strip(), start) and end is None:
                end = start - junk.offset
            offset += len(line) + 1
        if end is None:
            self._report_junk(junk)
        elif text := junk.text[:end].rstrip():
            self._report_junk(Junk(text, (), junk.offset))

    def _report_missing_keyword(self, text: str, offset: int) -> bool:
        """Report a line that is a block, setting or header without ADD or WITH; return False for any other line.

        The block is opened, so that the lines below it are read. A setting or header without its keyword is not used.
        """
        found, block = _FIRST_WORD.match(text), self.block
        begins_line = not self.report.line_before(offset).strip()
        name = found[1].upper() if found and (begins_line or found[1].isupper()) else ""
        follows = text[found.end() :].strip() if found else ""
        if name in BLOCK_NAMES:
            message, hint = f"ADD is missing before {name}", f"write ADD {on_one_line(text)}"
            self.report.error(FaultCode.MISSING_KEYWORD, offset, message, hint)
            pieces = tuple(Piece(word, offset) for word in follows.split()[:1])
            self._open_block(StatementNode(Level.BLOCK, Piece(name, offset), pieces, offset))
        elif found and block is not None and name in PARAMETERS[block.kind] and (follows or name == HEADERS):
            value = _FIRST_MARK.sub("", text[found.end(1) :].rstrip(" \t,;"))
            shown = name if PARAMETERS[block.kind][name].secret else on_one_line(f"{name} {value.strip()}".strip())
            message = f"WITH is missing before {name}"
            self._report_broken(FaultCode.MISSING_KEYWORD, name, offset, message, f"write WITH {shown}")
            if self.section is not _Section.SKIPPED:
                self.section = _Section.HEADERS if name == HEADERS else _Section.SETTINGS
        elif self.section is _Section.HEADERS and begins_line and (header := _HEADER_LINE.match(text)):
            self._report_missing_add(offset, header["name"] + header["colon"])
        else:
            return False
        return True

    def _report_junk(self, junk: Junk) -> None:
        """Report text that is not a statement. If it may belong to the value before it, that value is not used.

        These cases are tried in order:

        1. The text continues a string that is not closed, which has been reported.
        2. It continues a value, without quotes or GET.
        3. It continues a comment with #, which is reported as another fault.
        4. Any other text: unexpected.
        """
        piece = self.previous.pieces[-1] if self.previous is not None and self.previous.pieces else None
        if piece is not None and piece.open_at is not None:
            self._drop_value()
            return
        mistake = hints.explain_unreadable_value(junk, self.previous)
        if mistake is not None:
            self.report.error(*mistake)
            self._drop_value()
            return
        report_open_strings(junk.open_strings, self.report)
        if self.previous is not None and any(piece.text.startswith("#") for piece in self.previous.pieces[:1]):
            return
        self.report.error(FaultCode.UNEXPECTED_TEXT, junk.offset, *hints.explain_junk(junk.text, self.previous))
        found = _STATEMENT.match(junk.text)
        if found is not None and found[1].upper() == "ADD" and self.section is not _Section.HEADERS:
            self.definition.broken.add(found[2].upper())
            self.section = _Section.SKIPPED
        elif found is not None and self.block is not None:
            self.block.broken.add(found[2].upper())
        elif self.report.line_before(junk.offset).strip():
            self._drop_value()

    def _drop_value(self) -> None:
        """Drop the value of the previous statement, since only a part of it could be read."""
        if self.block is None or not isinstance(self.previous, StatementNode):
            return
        name = self.previous.name.text.upper()
        if self.section is _Section.HEADERS and self.block.headers and self.block.headers[-1] is self.previous:
            self.block.headers.pop()
            self.block.broken.add(HEADERS)
        elif self.block.settings.pop(name, None) is not None:
            self.block.broken.add(name)

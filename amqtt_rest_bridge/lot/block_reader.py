"""The blocks of a route: each setting in its block, at most once, by a name that exists. Values stay as written. Pure.

What is not a statement, or one with a mistake in it, is read with `definitions` as it was meant.
"""

import re
from collections import Counter
from collections.abc import Iterable

from amqtt_rest_bridge.errors import FaultCode, on_one_line
from amqtt_rest_bridge.lot import hints
from amqtt_rest_bridge.lot.definitions import HEADERS, Block, Definition, Reading, report_open_strings
from amqtt_rest_bridge.lot.grammar.parsing import (
    BlockNode,
    HeadersNode,
    Junk,
    Line,
    OpenComment,
    Piece,
    SettingNode,
    parse_condition,
)
from amqtt_rest_bridge.lot.parameters import IGNORED_BLOCK, PARAMETERS, BlockKind, Kind, Parameter
from amqtt_rest_bridge.lot.sources import Report
from amqtt_rest_bridge.spelling import closest, did_you_mean, question

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_BETWEEN = ("=", ":", ":=", "=>")
_BLOCK_NAMES = (*BlockKind, IGNORED_BLOCK)
_FIRST_WORD = re.compile(r"\s*([A-Za-z_]+)[:=]?(?=\s|\Z)")
_MARK = re.compile(r"\A\s*[:=]\s*")
_HEADER_LINE = re.compile(r"\s*(?P<name>\"[^\"]+\"|'[^']+'|[\w-]+)[ \t]+\S")


def is_name(text: str) -> bool:
    """Return whether a text can name a route or an event."""
    return _NAME.fullmatch(text) is not None


def read_blocks(body: Iterable[BlockNode | Line], definition: Definition, report: Report) -> None:
    """Put the blocks of a route into its definition, and report what fits nowhere."""
    reader = _BlockReader(definition, report)
    for node in body:
        reader.read(node)


class _BlockReader(Reading):
    """Reads the nodes of one definition in order, with the block that is open."""

    def __init__(self, definition: Definition, report: Report) -> None:
        super().__init__(definition, report)
        self._events: dict[str, Block] = {}  # by name

    def read(self, node: BlockNode | Line) -> None:
        if isinstance(node, Junk):
            if self.skipping:
                report_open_strings(node.open_strings, self.report)
            else:
                self._read_junk(node)
            self.last, self.rest_is_known = None, False
            return
        self.rest_is_known = False
        if isinstance(node, BlockNode):
            self._check_strings(node.pieces)
            self._open_block(node)
            self.last = node
            for line in node.lines:
                self.read(line)
        elif isinstance(node, OpenComment):
            self.report.error(
                FaultCode.NOT_CLOSED, node.offset, "this comment is never closed", "write */ where it ends"
            )
        elif isinstance(node, HeadersNode):
            self._read_headers(node)
        else:
            self._check_strings((node.name, *node.pieces))
            self._read_setting(node)
            self.last = node

    def _check_strings(self, pieces: Iterable[Piece]) -> None:
        if open_strings := [piece for piece in pieces if piece.open_at is not None]:
            report_open_strings(open_strings, self.report)

    # Blocks.

    def _open_block(self, node: BlockNode) -> None:
        if not node.known:
            if not self.skipping or closest(node.name.text, _BLOCK_NAMES):
                self._unknown_block(node)
            return
        self.after_headers = self.loose_headers = self.event_is_missing = False
        if node.name.text == BlockKind.EVENT:
            self._open_event(node)
        else:
            self._open_config(node, node.name.text)

    def _open_event(self, node: BlockNode) -> None:
        block = self.block = Block(BlockKind.EVENT, node.offset)
        self.skipping = False
        self.definition.blocks.append(block)
        if not node.pieces:
            self.report.error(FaultCode.MISSING, node.offset, "this event has no name", "write ADD EVENT MyEvent")
            return
        name = node.pieces[0]
        if name.is_string and is_name(name.text[1:-1]):
            self.report.error(
                FaultCode.INVALID_NAME, name.offset, f"the event name {name.text} is quoted", f"write {name.text[1:-1]}"
            )
        elif len(node.pieces) > 1 or not is_name(name.text):
            message = f"the event name {name.text} holds other characters than A-Z a-z 0-9 _ . -"
            hint = "write it bare, as in ADD EVENT My_Event-1"
            if is_name(name.text[:-1]) and name.text[-1] in ",:;{":
                hint = "leave the comma out" if name.text.endswith(",") else f"leave the {name.text[-1]} out"
            self.report.error(FaultCode.INVALID_NAME, name.offset, message, hint)
        else:
            first = self._events.setdefault(name.text, block)
            if first is not block:
                line = self.report.position(first.offset).line
                message = f"this route has two events {name.text}"
                self.report.error(FaultCode.DUPLICATE, name.offset, message, f"the first is in line {line}")
            block.name = name.text

    def _open_config(self, node: BlockNode, name: str) -> None:
        first_word = node.pieces[0].text.upper() if node.pieces else ""
        without_with = name != IGNORED_BLOCK and first_word in PARAMETERS[BlockKind(name)]
        if without_with:
            hint = f"write WITH {first_word}"
            self.report.error(
                FaultCode.MISSING_KEYWORD, node.pieces[0].offset, f"WITH is missing before {first_word}", hint
            )
            self.rest_is_known = True
        elif node.pieces:
            hint = hints.hint_at(node.pieces, "only events have names")
            self.report.error(FaultCode.UNEXPECTED_TEXT, node.pieces[0].offset, f"ADD {name} takes no name", hint)
        self.skipping = True
        if name == IGNORED_BLOCK:
            self.report.notice(node.offset, f"{name} is skipped: the route uses the broker it is loaded in")
            return
        kind = BlockKind(name)
        first = next((block for block in self.definition.blocks if block.kind is kind), None)
        if first is not None:
            line = self.report.position(first.offset).line
            self.report.error(
                FaultCode.DUPLICATE, node.offset, f"this route has two {name} blocks", f"the first is in line {line}"
            )
            return
        self.skipping = False
        self.block = Block(kind, node.offset, broken={first_word} if without_with else set())
        self.definition.blocks.append(self.block)

    def _unknown_block(self, node: BlockNode) -> None:
        name, plain = node.name.text, node.name.text.strip("'\"").upper()
        homes = ([self.block.kind] if self.block else []) + list(BlockKind)
        like_header = node.name.is_string or "-" in name or any(piece.is_string for piece in node.pieces)
        if plain in ("HEADER", HEADERS):
            hint = "write WITH HEADERS, and below it ADD <name> <value>"
            self.refuse(FaultCode.MISPLACED, HEADERS, node.name.offset, f"{name} is not a block", hint)
            self.loose_headers = self.rest_is_known = True
        elif self.loose_headers and self.block is not None and (like_header or closest(name, _BLOCK_NAMES) is None):
            self.block.broken.add(HEADERS)
        elif self.block is not None and any(plain in PARAMETERS[home] for home in homes):
            message = f"{name} is a setting, which begins with WITH"
            self.refuse(FaultCode.MISPLACED, HEADERS, node.offset, message, f"write WITH {plain}")
            self.skipping = False
            self._read_setting(SettingNode(node.name, node.pieces, node.offset))
        else:
            self._report_unknown_block(node)

    def _report_unknown_block(self, node: BlockNode) -> None:
        name = node.name.text
        if name.rstrip(":{").upper() in _BLOCK_NAMES:
            known = Piece(name.rstrip(":{").upper(), node.name.offset)
            self.report.error(
                FaultCode.UNKNOWN_BLOCK, node.name.offset, f"unknown block {name}", f"write ADD {known.text}"
            )
            self._open_block(BlockNode(known, node.pieces, (), node.offset, known=True))
            return
        hint: str | None = did_you_mean(name, _BLOCK_NAMES)
        like_header = node.name.is_string or "-" in name or bool(node.pieces)
        if hint is None and like_header and self.block is not None and self.block.kind is BlockKind.EVENT:
            hint = "header lines follow directly below WITH HEADERS"
            self.report.error(FaultCode.UNKNOWN_BLOCK, node.name.offset, f"unknown block {name}", hint)
            return
        settings = [line.name.text.upper() for line in node.lines if isinstance(line, SettingNode)]
        if inside := Counter(kind for one in settings for kind in BlockKind if one in PARAMETERS[kind]):
            home = inside.most_common(1)[0][0]
            hint = question(home)
            self.definition.broken.add(home)
        hint = hint or f"known: {', '.join(_BLOCK_NAMES)}"
        self.report.error(FaultCode.UNKNOWN_BLOCK, node.name.offset, f"unknown block {name}", hint)
        self.skipping = True

    # Settings.

    def _read_setting(self, written: SettingNode) -> None:
        plain = written.name.text.upper()
        if plain in _BLOCK_NAMES:
            shown = " ".join([plain, *(piece.text for piece in written.pieces[:1])])
            self.report.error(
                FaultCode.MISPLACED, written.offset, f"{plain} is a block, which begins with ADD", f"write ADD {shown}"
            )
            self._open_block(BlockNode(Piece(plain, written.offset), written.pieces, (), written.offset, known=True))
            return
        if self.skipping:
            return
        if self.block is None:
            self.report_outside(written)
            return
        node = self._straightened(written, "WITH")
        if node is None:
            return
        name = node.name
        parameter = PARAMETERS[self.block.kind].get(name.text.strip("'\"").upper())
        if parameter is None:
            self.unknown_setting(node, self.block)
        elif name.is_string:
            message = f"the name of a setting is not quoted: {name.text}"
            self.refuse(FaultCode.QUOTES, parameter.name, name.offset, message, f"write {parameter.name}")
        elif parameter.name in self.block.settings:
            first = self.report.position(self.block.settings[parameter.name].offset)
            message = f"{parameter.name} is set twice in this block"
            self.report.error(FaultCode.DUPLICATE, node.offset, message, f"the first is in line {first.line}")
        elif self._can_be_kept(node, parameter):
            self.after_headers = self.event_is_missing = False
            self.block.settings[parameter.name] = node
            if parameter.kind is Kind.CONDITION:
                self.block.condition = parse_condition(node.pieces)

    def _can_be_kept(self, node: SettingNode, parameter: Parameter) -> bool:
        first = node.pieces[0] if node.pieces else None
        if parameter.kind is Kind.HEADERS:
            self.loose_headers = True
            if first is not None:
                hint = "each header is a line of its own below: ADD <name> <value>"
                hint = hint if first.text[0] == "{" else hints.hint_at(node.pieces, hint)
                self.refuse(FaultCode.UNEXPECTED_TEXT, HEADERS, first.offset, "WITH HEADERS takes no value", hint)
        elif first is None:
            hint = f"allowed: {parameter.allowed}"
            self.refuse(FaultCode.MISSING, parameter.name, node.offset, f"{parameter.name} has no value", hint)
            return False
        elif self._refuse_spans(parameter.name, node.pieces, parameter.kind):
            return False
        elif first.text[0] in hints.TYPOGRAPHIC_QUOTES:
            self.refuse(
                FaultCode.QUOTES, parameter.name, first.offset, f"{first.text[0]} begins no string", hints.STRAIGHT
            )
            return False
        if parameter.kind not in (Kind.BOOLEAN, Kind.INTEGER, Kind.CHOICE):  # those refuse it themselves
            self._warn_of_comma(node)
        return True

    def _straightened(self, node: SettingNode, verb: str) -> SettingNode | None:
        """Report an = or : between a name and its value; return the statement without it, None if it has no value."""
        name, pieces = node.name, node.pieces
        plain = re.split("[=:(]", name.text, maxsplit=1)[0]
        if not name.is_string and plain and plain != name.text:
            mark, value = name.text[len(plain)], name.text[len(plain) + 1 :]  # not shown: it may be a password
            message = f"no {mark} belongs between {plain} and its value"
            hint = f"write {verb} {plain} and the value, with a space between"
            self.report.error(FaultCode.UNEXPECTED_TEXT, name.offset + len(plain), message, hint)
            self.rest_is_known = mark == "("
            if pieces and not value:
                return SettingNode(Piece(plain, name.offset), pieces, node.offset)
        elif pieces and not pieces[0].is_string and pieces[0].text in _BETWEEN:
            message = f"no {pieces[0].text} belongs between {name.text} and its value"
            self.report.error(
                FaultCode.UNEXPECTED_TEXT, pieces[0].offset, message, f"write {verb} {name.text} and the value"
            )
            self.rest_is_known = True
        else:
            return node
        if self.block is not None:
            self.block.broken.add(HEADERS if verb == "ADD" else plain.upper())
        return None

    def _refuse_spans(self, name: str, pieces: Iterable[Piece], kind: Kind) -> bool:
        """Report `15 MINUTES` where no time is meant; return whether there was one."""
        for piece in pieces if kind not in (Kind.DURATION, Kind.INTEGER) else ():
            if not piece.is_string and not piece.source and len(words := piece.text.split()) > 1:
                self.refuse(
                    FaultCode.UNEXPECTED_TEXT, name, piece.offset, f"unexpected text behind {words[0]}", hints.SPACES
                )
                return True
        return False

    def _warn_of_comma(self, node: SettingNode) -> None:
        """Warn of a comma behind a value, which other languages want there."""
        last = node.pieces[-1] if node.pieces else None
        if last is not None and last.text.endswith(",") and last.text != ",":
            hint = f"{hints.NO_COMMA}; quote the value if it ends with one"
            message = f"the value of {node.name.text} ends with a comma"
            self.report.warning(FaultCode.OTHER_SYNTAX, last.offset + len(last.text) - 1, message, hint)

    # Headers.

    def _read_headers(self, node: HeadersNode) -> None:
        first = node.pieces[0] if node.pieces else None
        self.in_headers = True  # for lines without ADD
        if first is not None and not self.report.line_before(first.offset).strip():
            if not self.skipping and self.block is not None:
                self.last = SettingNode(Piece(HEADERS, node.offset), (), node.offset)
                self.block.settings.setdefault(HEADERS, self.last)
            self.add_is_missing(first.offset, first.text)
            self.rest_is_known = True
        else:
            self.last = SettingNode(Piece(HEADERS, node.offset), node.pieces, node.offset)
            self._read_setting(self.last)
            self.rest_is_known = first is not None and first.text[:1] in "{["
        for line in node.lines:
            if isinstance(line, SettingNode):
                self._check_strings((line.name, *line.pieces))
                self.last = self._straightened(line, "ADD")
                if not self.skipping and self.block is not None and self.last is not None:
                    self._read_header(self.last, self.block)
            else:
                self.read(line)
        self.in_headers = self.loose_headers = False
        self.after_headers = True

    def _read_header(self, node: SettingNode, block: Block) -> None:
        name = node.name.text
        if not node.pieces:
            meant = closest(name, _BLOCK_NAMES)
            hint: str = question(meant, f"ADD {meant}") if meant else f'write ADD {name} "..."'
            if node.name.is_string and ":" in name:
                key, _, value = name[1:-1].partition(":")
                hint = f'write ADD "{key.strip()}" "{value.strip()}"'
            end = node.name.offset + len(name)
            self.refuse(FaultCode.MISSING, HEADERS, node.offset, f"the header {name} has no value", hint, end)
        elif name.upper() == "HEADER":
            hint = f"write ADD {node.pieces[0].text}"
            self.refuse(
                FaultCode.UNEXPECTED_TEXT, HEADERS, node.name.offset, "HEADER is not part of a header line", hint
            )
            self.rest_is_known = True
        elif not self._refuse_spans(HEADERS, node.pieces, Kind.HEADERS):
            self._warn_of_comma(node)
            block.headers.append(node)

    # Text that is not a statement.

    def _read_junk(self, junk: Junk) -> None:
        """Read lines that only lack their keyword; the rest is one fault of the statement before it."""
        end, offset = None, junk.offset
        for number, line in enumerate(junk.text.split("\n")):
            start = offset + len(line) - len(line.lstrip())
            if number == 0 and self.rest_is_known:
                end = 0
            elif self._lacks_keyword(line.strip(), start) and end is None:
                end = start - junk.offset
            offset += len(line) + 1
        if end is None:
            self.explain(junk)
        elif text := junk.text[:end].rstrip():
            self.explain(Junk(text, (), junk.offset))

    def _lacks_keyword(self, text: str, offset: int) -> bool:
        """Report a line that only lacks its WITH or ADD; return whether it is one."""
        found, block = _FIRST_WORD.match(text), self.block
        begins_line = not self.report.line_before(offset).strip()
        name = found[1].upper() if found and (begins_line or found[1].isupper()) else ""
        follows = text[found.end() :].strip() if found else ""
        if name in _BLOCK_NAMES:
            self.report.error(
                FaultCode.MISSING_KEYWORD, offset, f"ADD is missing before {name}", f"write ADD {on_one_line(text)}"
            )
            pieces = tuple(Piece(word, offset) for word in follows.split()[:1])
            self._open_block(BlockNode(Piece(name, offset), pieces, (), offset, known=True))
        elif found and block is not None and name in PARAMETERS[block.kind] and (follows or name == HEADERS):
            value = _MARK.sub("", text[found.end(1) :].rstrip(" \t,;"))
            shown = name if PARAMETERS[block.kind][name].secret else on_one_line(f"{name} {value.strip()}".strip())
            self.refuse(
                FaultCode.MISSING_KEYWORD, name, offset, f"WITH is missing before {name}", f"write WITH {shown}"
            )
            self.loose_headers = name == HEADERS
        elif self.in_headers and begins_line and (header := _HEADER_LINE.match(text)):
            self.add_is_missing(offset, header["name"])
        else:
            return False
        return True

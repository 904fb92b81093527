"""The blocks of a route: each setting in its block, at most once, by a name that exists. Values stay as written."""

import re
from collections.abc import Iterable

from amqtt_rest_bridge.language.hints import (
    COMMENT_HINT,
    NO_COMMA,
    SPACES,
    STRAIGHT,
    TYPOGRAPHIC_QUOTES,
    closest,
    did_you_mean,
    hint_at,
)
from amqtt_rest_bridge.language.nodes import (
    Block,
    BlockNode,
    Blocks,
    HeadersNode,
    Junk,
    Line,
    OpenComment,
    Piece,
    RouteNode,
    SettingNode,
)
from amqtt_rest_bridge.language.parameters import IGNORED_BLOCK, PARAMETERS, BlockKind, Kind, Parameter
from amqtt_rest_bridge.language.recovery import BLOCK_NAMES, Recovery
from amqtt_rest_bridge.language.sources import Report

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_BETWEEN = ("=", ":", ":=", "=>")
_HASH_BEFORE = re.compile(r"(?<!\S)#[^\"']*\Z")


def is_name(text: str) -> bool:
    """Return whether a text can name a route or an event."""
    return _NAME.fullmatch(text) is not None


def report_open_strings(pieces: Iterable[Piece], report: Report) -> None:
    """Report the strings that are not closed."""
    for piece in pieces:
        if piece.open_at is not None:
            in_comment = _HASH_BEFORE.search(report.line_before(piece.open_at))
            hint = COMMENT_HINT if in_comment else f"write {piece.text[0]} where it ends"
            if piece.text[:2] in ('"{', '"['):
                hint = "write ' where it begins and where it ends: \" is part of the JSON in it"
            report.error(piece.open_at, "this string is not closed on its line", hint)


class _BlockReader(Recovery):
    """Reads the nodes of one definition in order, with the block that is open."""

    def __init__(self, report: Report) -> None:
        self.blocks = Blocks()
        self._report = report
        self._events: dict[str, Block] = {}
        self._block: Block | None = None
        self._skipping = False  # inside a block that is not known, or known twice
        self._in_headers = False
        self._after_headers = False  # nothing but headers since WITH HEADERS
        self._loose_headers = False  # WITH HEADERS where it does not belong: what follows are headers all the same
        self._rest_is_known = False  # the next line that is not a statement belongs to a fault that is reported
        self._outside_reported = False
        self._last: BlockNode | SettingNode | None = None  # the statement before, None after junk

    def read(self, node: BlockNode | Line) -> None:
        if isinstance(node, Junk):
            self._read_junk(node)
            self._last, self._rest_is_known = None, False
            return
        self._rest_is_known = False
        if isinstance(node, BlockNode):
            report_open_strings(node.pieces, self._report)
            self._open_block(node)
            self._last = node
            for line in node.lines:
                self.read(line)
        elif isinstance(node, OpenComment):
            self._report.error(node.offset, "this comment is never closed", "write */ where it ends")
        elif isinstance(node, HeadersNode):
            self._read_headers(node)
        else:
            report_open_strings((node.name, *node.pieces), self._report)
            self._read_setting(node)
            self._last = node

    def _read_headers(self, node: HeadersNode) -> None:
        first = node.pieces[0] if node.pieces else None
        self._in_headers = True  # for lines without ADD
        if first is not None and not self._report.line_before(first.offset).strip():
            if not self._skipping and self._block is not None:
                self._last = SettingNode(Piece(Kind.HEADERS.name, node.offset), (), node.offset)
                self._block.settings.setdefault(Kind.HEADERS.name, self._last)
            self._add_is_missing(first.offset, first.text)
            self._rest_is_known = True
        else:
            self._last = SettingNode(Piece(Kind.HEADERS.name, node.offset), node.pieces, node.offset)
            self._read_setting(self._last)
            self._rest_is_known = first is not None and first.text[:1] in "{["
        for line in node.lines:
            if isinstance(line, SettingNode):
                report_open_strings((line.name, *line.pieces), self._report)
                straight = self._straightened(line, "ADD")
                if not self._skipping and self._block is not None and straight is not None:
                    self._read_header(straight, self._block)
                self._last = straight
            else:
                self.read(line)
        self._in_headers = self._loose_headers = False
        self._after_headers = True

    def _report_open(self, pieces: Iterable[Piece]) -> None:
        report_open_strings(pieces, self._report)

    def _straightened(self, node: SettingNode, verb: str) -> SettingNode | None:
        """Report an = or : between a name and its value; return the statement without it, None if it has no value."""
        name, pieces = node.name, node.pieces
        plain = re.split("[=:(]", name.text, maxsplit=1)[0]
        if not name.is_string and plain and plain != name.text:
            mark, value = name.text[len(plain)], name.text[len(plain) + 1 :]  # not shown: it may be a password
            hint = f"write {verb} {plain} and the value, with a space between"
            self._report.error(name.offset + len(plain), f"no {mark} belongs between {plain} and its value", hint)
            self._rest_is_known = mark == "("
            if pieces and not value:
                return SettingNode(Piece(plain, name.offset), pieces, node.offset)
        elif pieces and not pieces[0].is_string and pieces[0].text in _BETWEEN:
            message = f"no {pieces[0].text} belongs between {name.text} and its value"
            self._report.error(pieces[0].offset, message, f"write {verb} {name.text} and the value")
            self._rest_is_known = True
        else:
            return node
        if self._block is not None:
            self._block.broken.add(Kind.HEADERS.name if verb == "ADD" else plain.upper())
        return None

    def _read_setting(self, written: SettingNode) -> None:
        plain = written.name.text.upper()
        if plain in BLOCK_NAMES:
            shown = " ".join([plain, *(piece.text for piece in written.pieces[:1])])
            self._report.error(written.offset, f"{plain} is a block, which begins with ADD", f"write ADD {shown}")
            self._open_block(BlockNode(Piece(plain, written.offset), written.pieces, (), written.offset, known=True))
            return
        if self._skipping:
            return
        if self._block is None:
            self._report_outside(written)
            return
        node = self._straightened(written, "WITH")
        if node is None:
            return
        name = node.name
        parameter = PARAMETERS[self._block.kind].get(name.text.strip("'\"").upper())
        if parameter is None:
            self._unknown_setting(node, self._block)
        elif name.is_string:
            message = f"the name of a setting is not quoted: {name.text}"
            self._report.error(name.offset, message, f"write {parameter.name}")
            self._block.broken.add(parameter.name)
        elif parameter.name in self._block.settings:
            first = self._report.position(self._block.settings[parameter.name].offset)
            message = f"{parameter.name} is set twice in this block"
            self._report.error(node.offset, message, f"the first is in line {first.line}")
        else:
            self._keep(node, parameter, self._block)

    def _keep(self, node: SettingNode, parameter: Parameter, block: Block) -> None:
        if parameter.kind is Kind.HEADERS:
            self._loose_headers = True
            if node.pieces:
                hint = "each header is a line of its own below: ADD <name> <value>"
                hint = hint if node.pieces[0].text[0] == "{" else hint_at(node.pieces, hint)
                self._report.error(node.pieces[0].offset, "WITH HEADERS takes no value", hint)
                block.broken.add(parameter.name)
        elif not node.pieces:
            self._report.error(node.offset, f"{parameter.name} has no value", f"allowed: {parameter.allowed}")
            block.broken.add(parameter.name)
            return
        elif any(self._refuse_span(piece, parameter) for piece in node.pieces):
            block.broken.add(parameter.name)
            return
        elif node.pieces[0].text[0] in TYPOGRAPHIC_QUOTES:
            self._report.error(node.pieces[0].offset, f"{node.pieces[0].text[0]} begins no string", STRAIGHT)
            block.broken.add(parameter.name)
            return
        if parameter.kind not in (Kind.BOOLEAN, Kind.INTEGER, Kind.CHOICE):  # those refuse it themselves
            self._warn_of_comma(node)
        self._after_headers = False
        block.settings[parameter.name] = node

    def _refuse_span(self, piece: Piece, parameter: Parameter | None) -> bool:
        """Report `15 MINUTES` where no time is meant; return whether it was one."""
        is_span = " " in piece.text.expandtabs().replace("\n", " ") and not piece.is_string and not piece.source
        if not is_span or (parameter is not None and parameter.kind in (Kind.DURATION, Kind.INTEGER)):
            return False
        self._report.error(piece.offset, f"unexpected text behind {piece.text.split()[0]}", SPACES)
        return True

    def _warn_of_comma(self, node: SettingNode) -> None:
        last = node.pieces[-1] if node.pieces else None
        if last is not None and last.text.endswith(",") and last.text != ",":
            hint = f"{NO_COMMA}; quote the value if it ends with one"
            message = f"the value of {node.name.text} ends with a comma"
            self._report.warning(last.offset + len(last.text) - 1, message, hint)

    def _open_block(self, node: BlockNode) -> None:
        if not node.known:
            if not self._skipping or closest(node.name.text, BLOCK_NAMES):
                self._unknown_block(node)
            return
        self._after_headers = self._loose_headers = False
        if node.name.text == BlockKind.EVENT:
            self._open_event(node)
        else:
            self._open_config(node, node.name.text)

    def _open_event(self, node: BlockNode) -> None:
        block = self._block = Block(BlockKind.EVENT, node.offset)
        self._skipping = False
        self.blocks.events.append(block)
        if not node.pieces:
            self._report.error(node.offset, "this event has no name", "write ADD EVENT MyEvent")
            return
        name = node.pieces[0]
        if name.is_string and is_name(name.text[1:-1]):
            self._report.error(name.offset, f"the event name {name.text} is quoted", f"write {name.text[1:-1]}")
        elif len(node.pieces) > 1 or not is_name(name.text):
            message = f"the event name {name.text} holds other characters than A-Z a-z 0-9 _ . -"
            hint = "write it bare, as in ADD EVENT My_Event-1"
            if is_name(name.text[:-1]) and name.text[-1] in ",:;{":
                hint = "leave the comma out" if name.text.endswith(",") else f"leave the {name.text[-1]} out"
            self._report.error(name.offset, message, hint)
        else:
            first = self._events.setdefault(name.text, block)
            if first is not block:
                line = self._report.position(first.offset).line
                message = f"this route has two events {name.text}"
                self._report.error(name.offset, message, f"the first is in line {line}")
            block.name = name.text

    def _open_config(self, node: BlockNode, name: str) -> None:
        first_word = node.pieces[0].text.upper() if node.pieces else ""
        without_with = first_word in PARAMETERS.get(BlockKind(name), {}) if name != IGNORED_BLOCK else False
        if without_with:
            hint = f"write WITH {first_word}"
            self._report.error(node.pieces[0].offset, f"WITH is missing before {first_word}", hint)
            self._rest_is_known = True
        elif node.pieces:
            hint = hint_at(node.pieces, "only events have names")
            self._report.error(node.pieces[0].offset, f"ADD {name} takes no name", hint)
        if name == IGNORED_BLOCK:
            self._skipping = True
            self._report.notice(node.offset, f"{name} is skipped: the route uses the broker it is loaded in")
            return
        kind = BlockKind(name)
        first = self.blocks.config if kind is BlockKind.CONFIG else self.blocks.route_config
        if first is not None:
            self._skipping = True
            line = self._report.position(first.offset).line
            self._report.error(node.offset, f"this route has two {name} blocks", f"the first is in line {line}")
            return
        block = self._block = Block(kind, node.offset)
        if without_with:
            block.broken.add(first_word)
        self._skipping = False
        if kind is BlockKind.CONFIG:
            self.blocks.config = block
        else:
            self.blocks.route_config = block

    def _read_header(self, node: SettingNode, block: Block) -> None:
        name = node.name.text
        if node.pieces and name.upper() == "HEADER":
            hint = f"write ADD {node.pieces[0].text}"
            self._report.error(node.name.offset, "HEADER is not part of a header line", hint)
            block.broken.add(Kind.HEADERS.name)
            self._rest_is_known = True
            return
        if node.pieces:
            if any(self._refuse_span(piece, None) for piece in node.pieces):
                block.broken.add(Kind.HEADERS.name)
                return
            self._warn_of_comma(node)
            block.headers.append(node)
            return
        block.broken.add(Kind.HEADERS.name)
        hint = did_you_mean(name, BLOCK_NAMES) or f'write ADD {name} "..."'
        if node.name.is_string and ":" in name:
            key, _, value = name[1:-1].partition(":")
            hint = f'write ADD "{key.strip()}" "{value.strip()}"'
        self._report.error(node.offset, f"the header {name} has no value", hint)


def read_blocks(route: RouteNode, report: Report) -> Blocks:
    """Return the blocks of a route and report what fits nowhere."""
    reader = _BlockReader(report)
    for node in route.body:
        reader.read(node)
    return reader.blocks

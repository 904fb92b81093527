"""The blocks of a route: each setting in its block, at most once, by a name that exists. Values stay as written."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from amqtt_rest_bridge.errors import on_one_line
from amqtt_rest_bridge.language.hints import (
    COMMENT_HINT,
    NO_COMMA,
    STRAIGHT,
    TYPOGRAPHIC_QUOTES,
    closest,
    did_you_mean,
    explain_junk,
    hint_at,
)
from amqtt_rest_bridge.language.nodes import (
    BlockNode,
    HeadersNode,
    Junk,
    Line,
    OpenComment,
    Piece,
    RouteNode,
    SettingNode,
)
from amqtt_rest_bridge.language.parameters import IGNORED_BLOCK, PARAMETERS, BlockKind, Kind, Parameter
from amqtt_rest_bridge.language.sources import Report

_BLOCK_NAMES = (*BlockKind, IGNORED_BLOCK)
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_NAME_IN = re.compile(r"([A-Z]+)\s+([A-Z_]+)", re.IGNORECASE)
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
            report.error(piece.open_at, "this string is not closed on its line", hint)


@dataclass(slots=True)
class Block:
    """A block while it is read: `WITH` lines by name, each a setting that the block has, and lines below WITH HEADERS.

    `broken` names settings that are present but could not be read; `guessed` those that an unknown name may mean:
    they are not missed, and nothing else is concluded from them.
    """

    kind: BlockKind
    offset: int
    name: str = ""
    settings: dict[str, SettingNode] = field(default_factory=dict)
    headers: list[SettingNode] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    guessed: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Blocks:
    """All blocks of a definition; REST_API_CONFIG and ROUTE_CONFIG are None when they are missing.

    `broken` names blocks whose first line could not be read.
    """

    config: Block | None = None
    route_config: Block | None = None
    events: list[Block] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)


class _BlockReader:
    """Reads the nodes of one definition in order, with the block that is open."""

    def __init__(self, report: Report) -> None:
        self.blocks = Blocks()
        self._report = report
        self._events: dict[str, Block] = {}
        self._block: Block | None = None
        self._skipping = False  # inside a block that is not known, or known twice
        self._in_headers = False
        self._last: BlockNode | SettingNode | None = None  # the statement before, None after junk

    def read(self, node: BlockNode | Line) -> None:
        if isinstance(node, BlockNode):
            report_open_strings(node.pieces, self._report)
            self._open_block(node)
            self._last = node
            for line in node.lines:
                self.read(line)
        elif isinstance(node, Junk):
            report_open_strings(node.open_strings, self._report)
            if not self._skipping:
                self._read_junk(node)
            self._last = None
        elif isinstance(node, OpenComment):
            self._report.error(node.offset, "this comment is never closed", "write */ where it ends")
        elif isinstance(node, HeadersNode):
            self._read_headers(node)
        else:
            report_open_strings((node.name, *node.pieces), self._report)
            self._read_setting(node)
            self._last = node

    def _read_junk(self, junk: Junk) -> None:
        # What continues a # comment is reported with it already.
        in_comment = self._last is not None and any(piece.text.startswith("#") for piece in self._last.pieces[:1])
        if self._forgot_get(junk.text) or in_comment:
            return
        self._report.error(junk.offset, *explain_junk(junk.text, self._last))
        found = _NAME_IN.match(junk.text)
        if found is not None and found[1].upper() == "ADD" and not self._in_headers:
            self.blocks.broken.add(found[2].upper())
            self._skipping = True
        elif found is not None and self._block is not None:
            self._block.broken.add(found[2].upper())

    def _forgot_get(self, text: str) -> bool:
        """Report `ENV "X"` and `GET "X"` as one fault of their setting; return whether it was one of them."""
        last, block = self._last, self._block
        word = last.pieces[-1] if last is not None and last.pieces else None
        if last is None or word is None or word.source or block is None or text[:1] not in ("'", '"'):
            return False
        name = last.name.text.upper()
        is_setting = name in block.settings
        wanted = is_setting and (word.text.upper() != "GET" or PARAMETERS[block.kind][name].kind is not Kind.CHOICE)
        if word.text.upper() not in ("ENV", "SECRET", "GET") or not (wanted or self._in_headers):
            return False
        shown = on_one_line(text.split("\n", 1)[0].rstrip(), 40)
        if word.text.upper() == "GET":
            hint = f"write GET ENV {shown} or GET SECRET {shown}"
            self._report.error(word.offset, f"GET {shown} does not say of what", hint)
        else:
            hint = f"write GET {word.text.upper()} {shown}"
            self._report.error(word.offset, f"{word.text} {shown} is not a value", hint)
        if is_setting:
            block.broken.add(name)
            del block.settings[name]
        elif self._in_headers:
            block.headers.pop()
        return True

    def _read_headers(self, node: HeadersNode) -> None:
        self.read(SettingNode(Piece(Kind.HEADERS.name, node.offset), node.pieces, node.offset))
        self._in_headers = True
        for line in node.lines:
            if isinstance(line, SettingNode):
                report_open_strings((line.name, *line.pieces), self._report)
                if not self._skipping and self._block is not None:
                    self._read_header(line, self._block)
                self._last = line
            else:
                self.read(line)
        self._in_headers = False

    def _read_setting(self, node: SettingNode) -> None:
        if self._skipping:
            return
        name = node.name
        if self._block is None:
            hint = "ADD REST_API_CONFIG or ADD EVENT <name> goes before it"
            self._report.error(node.offset, f"{name.text} is outside of a block", hint)
            return
        parameter = PARAMETERS[self._block.kind].get(name.text.strip("'\"").upper())
        if parameter is None:
            self._unknown_setting(name, self._block)
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
            if node.pieces:
                hint = hint_at(node.pieces, "each header is a line of its own below: ADD <name> <value>")
                self._report.error(node.pieces[0].offset, "WITH HEADERS takes no value", hint)
        elif not node.pieces:
            self._report.error(node.offset, f"{parameter.name} has no value", f"allowed: {parameter.allowed}")
            block.broken.add(parameter.name)
            return
        elif node.pieces[0].text[0] in TYPOGRAPHIC_QUOTES:
            self._report.error(node.pieces[0].offset, f"{node.pieces[0].text[0]} begins no string", STRAIGHT)
            block.broken.add(parameter.name)
            return
        if parameter.kind not in (Kind.BOOLEAN, Kind.INTEGER, Kind.CHOICE):  # those refuse it themselves
            self._warn_of_comma(node)
        block.settings[parameter.name] = node

    def _warn_of_comma(self, node: SettingNode) -> None:
        last = node.pieces[-1] if node.pieces else None
        if last is not None and last.text.endswith(",") and last.text != ",":
            hint = f"{NO_COMMA}; quote the value if it ends with one"
            message = f"the value of {node.name.text} ends with a comma"
            self._report.warning(last.offset + len(last.text) - 1, message, hint)

    def _unknown_setting(self, name: Piece, block: Block) -> None:
        kind = block.kind
        elsewhere = [other for other in BlockKind if name.text.upper() in PARAMETERS[other]]
        if elsewhere:
            self._report.error(name.offset, f"{name.text} does not belong in {kind}", f"it belongs in {elsewhere[0]}")
            return
        if meant := closest(name.text, PARAMETERS[kind], parts=True):
            hint = f"did you mean {meant}?"
        elif meant := closest(name.text, [each for other in PARAMETERS.values() for each in other], parts=True):
            home = next(other for other, parameters in PARAMETERS.items() if meant in parameters)
            hint = f"did you mean {meant}? It belongs in {home}"
        else:
            hint = f"{kind} has {', '.join(PARAMETERS[kind])}"
        if meant is not None:
            block.guessed.add(meant)
        self._report.error(name.offset, f"unknown setting {name.text}", hint)

    def _open_block(self, node: BlockNode) -> None:
        if not node.known:
            if not self._skipping or closest(node.name.text, _BLOCK_NAMES):
                self._unknown_block(node)
        elif node.name.text == BlockKind.EVENT:
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
            hint = "leave the comma out" if name.text.endswith(",") else "write it bare, as in ADD EVENT My_Event-1"
            self._report.error(name.offset, message, hint)
        else:
            first = self._events.setdefault(name.text, block)
            if first is not block:
                line = self._report.position(first.offset).line
                message = f"this route has two events {name.text}"
                self._report.error(name.offset, message, f"the first is in line {line}")
            block.name = name.text

    def _open_config(self, node: BlockNode, name: str) -> None:
        if node.pieces:
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
        self._skipping = False
        if kind is BlockKind.CONFIG:
            self.blocks.config = block
        else:
            self.blocks.route_config = block

    def _read_header(self, node: SettingNode, block: Block) -> None:
        if node.pieces:
            self._warn_of_comma(node)
            block.headers.append(node)
            return
        name = node.name.text
        hint = did_you_mean(name, _BLOCK_NAMES) or f'write ADD {name} "..."'
        self._report.error(node.offset, f"the header {name} has no value", hint)

    def _unknown_block(self, node: BlockNode) -> None:
        name = node.name.text
        hint = did_you_mean(name, _BLOCK_NAMES)
        if hint is None and node.pieces:
            hint = "header lines follow directly below WITH HEADERS"
        self._report.error(node.name.offset, f"unknown block {name}", hint or f"known: {', '.join(_BLOCK_NAMES)}")
        self._skipping = True


def read_blocks(route: RouteNode, report: Report) -> Blocks:
    """Return the blocks of a route and report what fits nowhere."""
    reader = _BlockReader(report)
    for node in route.body:
        reader.read(node)
    return reader.blocks

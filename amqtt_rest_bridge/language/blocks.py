"""The blocks of a route: each setting in its block, at most once, by a name that exists. Values stay as written."""

import re
from dataclasses import dataclass, field

from amqtt_rest_bridge.errors import on_one_line
from amqtt_rest_bridge.language import nodes
from amqtt_rest_bridge.language.nodes import BlockNode, Headers, Junk, Line, OpenComment, Piece, RouteNode
from amqtt_rest_bridge.language.parameters import IGNORED_BLOCK, PARAMETERS, BlockKind, Kind, Parameter
from amqtt_rest_bridge.language.report import (
    NO_COMMA,
    STRAIGHT,
    TYPOGRAPHIC_QUOTES,
    Report,
    Statement,
    closest,
    did_you_mean,
    explain,
    hint_at,
    is_name,
    report_open_strings,
)

_BLOCK_NAMES = (*BlockKind, IGNORED_BLOCK)
_JUNK = Statement("", ())
_NAME_IN = re.compile(r"([A-Z]+)\s+([A-Z_]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Setting:
    """`WITH <name> <value>` in a block that has this setting."""

    parameter: Parameter
    pieces: tuple[Piece, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class HeaderLine:
    """`ADD <name> <value>` below WITH HEADERS."""

    name: Piece
    pieces: tuple[Piece, ...]


@dataclass(slots=True)
class Block:
    """A block while it is read.

    `broken` names settings that are present but could not be read; `guessed` those that an unknown name may mean:
    they are not missed, and nothing else is concluded from them.
    """

    kind: BlockKind
    offset: int
    name: str = ""
    settings: dict[str, Setting] = field(default_factory=dict)
    headers: list[HeaderLine] = field(default_factory=list)
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


class _Reader:
    """Reads the nodes of one definition in order, with the block that is open."""

    def __init__(self, report: Report) -> None:
        self.blocks = Blocks()
        self._report = report
        self._events: dict[str, Block] = {}
        self._block: Block | None = None
        self._skipping = False  # inside a block that is not known, or known twice
        self._in_headers = False
        self._last: Statement | None = None

    def read(self, node: BlockNode | Line) -> None:
        if isinstance(node, BlockNode):
            report_open_strings(node.pieces, self._report)
            self._open_block(node)
            self._last = Statement(node.name.text, node.pieces, node.known and node.name.text == BlockKind.EVENT)
            for line in node.lines:
                self.read(line)
        elif isinstance(node, Junk):
            report_open_strings(node.open_strings, self._report)
            if not self._skipping:
                self._read_junk(node)
            self._last = _JUNK
        elif isinstance(node, OpenComment):
            self._report.error(node.offset, "this comment is never closed", "write */ where it ends")
        elif isinstance(node, Headers):
            self._read_headers(node)
        else:
            report_open_strings((node.name, *node.pieces), self._report)
            self._read_setting(node)
            self._last = Statement(node.name.text, node.pieces)

    def _read_junk(self, junk: Junk) -> None:
        if self._forgot_get(junk.text) or self._is_in_comment():
            return
        self._report.error(junk.offset, *explain(junk.text, self._last))
        found = _NAME_IN.match(junk.text)
        if found is not None and found[1].upper() == "ADD" and not self._in_headers:
            self.blocks.broken.add(found[2].upper())
            self._skip()
        elif found is not None and self._block is not None:
            self._block.broken.add(found[2].upper())

    def _is_in_comment(self) -> bool:
        """Return whether a text continues a # comment that is reported already."""
        return self._last is not None and any(piece.text.startswith("#") for piece in self._last.pieces[:1])

    def _forgot_get(self, text: str) -> bool:
        """Report `ENV "X"` and `GET "X"` as one fault of their setting; return whether it was one of them."""
        last, block = self._last, self._block
        word = last.pieces[-1] if last is not None and last.pieces else None
        if last is None or word is None or word.source or block is None or text[:1] not in ("'", '"'):
            return False
        setting = block.settings.get(last.name.upper())
        wanted = setting is not None and (word.text.upper() != "GET" or setting.parameter.kind is not Kind.CHOICE)
        if word.text.upper() not in ("ENV", "SECRET", "GET") or not (wanted or self._in_headers):
            return False
        shown = on_one_line(text.split("\n", 1)[0].rstrip(), 40)
        if word.text.upper() == "GET":
            hint = f"write GET ENV {shown} or GET SECRET {shown}"
            self._report.error(word.offset, f"GET {shown} does not say of what", hint)
        else:
            hint = f"write GET {word.text.upper()} {shown}"
            self._report.error(word.offset, f"{word.text} {shown} is not a value", hint)
        if setting is not None:
            block.broken.add(setting.parameter.name)
            del block.settings[setting.parameter.name]
        elif self._in_headers:
            block.headers.pop()
        return True

    def _read_headers(self, node: Headers) -> None:
        report_open_strings(node.pieces, self._report)
        name = Piece(Kind.HEADERS.name, node.offset)
        self._read_setting(nodes.Setting(name, node.pieces, node.offset))
        self._last = Statement(name.text, node.pieces)
        self._in_headers = True
        for line in node.lines:
            if isinstance(line, nodes.Setting):
                report_open_strings((line.name, *line.pieces), self._report)
                if not self._skipping and self._block is not None:
                    self._read_header(line, self._block)
                self._last = Statement(line.name.text, line.pieces)
            else:
                self.read(line)
        self._in_headers = False

    def _read_setting(self, node: nodes.Setting) -> None:
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

    def _keep(self, node: nodes.Setting, parameter: Parameter, block: Block) -> None:
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
        block.settings[parameter.name] = Setting(parameter, node.pieces, node.offset)

    def _warn_of_comma(self, node: nodes.Setting) -> None:
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
        elif meant := closest(name.text, _all_names(), parts=True):
            hint = f"did you mean {meant}? It belongs in {_home_of(meant)}"
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
        block = self._enter(Block(BlockKind.EVENT, node.offset))
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
            self._name_event(block, name)

    def _name_event(self, block: Block, name: Piece) -> None:
        first = self._events.setdefault(name.text, block)
        if first is not block:
            line = self._report.position(first.offset).line
            self._report.error(name.offset, f"this route has two events {name.text}", f"the first is in line {line}")
        block.name = name.text

    def _open_config(self, node: BlockNode, name: str) -> None:
        if node.pieces:
            hint = hint_at(node.pieces, "only events have names")
            self._report.error(node.pieces[0].offset, f"ADD {name} takes no name", hint)
        if name == IGNORED_BLOCK:
            self._skip()
            self._report.notice(node.offset, f"{name} is skipped: the route uses the broker it is loaded in")
            return
        kind = BlockKind(name)
        first = self.blocks.config if kind is BlockKind.CONFIG else self.blocks.route_config
        if first is not None:
            self._skip()
            line = self._report.position(first.offset).line
            self._report.error(node.offset, f"this route has two {name} blocks", f"the first is in line {line}")
            return
        block = self._enter(Block(kind, node.offset))
        if kind is BlockKind.CONFIG:
            self.blocks.config = block
        else:
            self.blocks.route_config = block

    def _read_header(self, node: nodes.Setting, block: Block) -> None:
        if node.pieces:
            self._warn_of_comma(node)
            block.headers.append(HeaderLine(node.name, node.pieces))
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
        self._skip()

    def _enter(self, block: Block) -> Block:
        self._block, self._skipping = block, False
        return block

    def _skip(self) -> None:
        self._skipping = True


def read_blocks(route: RouteNode, report: Report) -> Blocks:
    """Return the blocks of a route and report what fits nowhere."""
    reader = _Reader(report)
    for node in route.body:
        reader.read(node)
    return reader.blocks


def _all_names() -> list[str]:
    return [name for block in PARAMETERS.values() for name in block]


def _home_of(name: str) -> str:
    return next(kind for kind, block in PARAMETERS.items() if name in block)

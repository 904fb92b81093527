"""Statements to blocks: which setting belongs where, each at most once, names that exist. Values stay as written."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from amqtt_rest_bridge.errors import on_one_line
from amqtt_rest_bridge.language.definitions import COMMENT_HINT, is_name
from amqtt_rest_bridge.language.parameters import IGNORED_BLOCK, PARAMETERS, BlockKind, Kind, Parameter
from amqtt_rest_bridge.language.parser import Piece, Statement, Verb
from amqtt_rest_bridge.language.report import Report
from amqtt_rest_bridge.language.suggest import closest, did_you_mean

_NO_COMMA = "leave the comma out: a line break or a space is enough"
_FIRST_CHARACTERS = {"#": COMMENT_HINT, ",": _NO_COMMA}
_ROUTE = re.compile(r"ROUTE\s+[^\s\"']+\Z", re.IGNORECASE)
_STRAIGHT = "strings stand in straight quotes: \" or '"
_BLOCK_NAMES = (*BlockKind, IGNORED_BLOCK)
_NAME_IN = re.compile(r"([A-Z]+)\s+([A-Z_]+)", re.IGNORECASE)
_PLUS_FIRST = re.compile(r"(?:(?:WITH|ADD)\s+[^\s+]+\s*)?\+", re.IGNORECASE)
_TYPOGRAPHIC_QUOTES = "“”„‟‘’‚‛«»"


@dataclass(frozen=True, slots=True)
class Setting:
    """`WITH <name> <value>` in a block that knows the name."""

    parameter: Parameter
    pieces: tuple[Piece, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class HeaderLine:
    """`ADD <name> <value>` behind WITH HEADERS."""

    name: Piece
    pieces: tuple[Piece, ...]


@dataclass(slots=True)
class Block:
    """A block while it is read.

    `broken` names settings that are there but could not be read; `guessed` those that an unknown name may have meant:
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
    """Walk the statements of one definition, with the block that is open."""

    def __init__(self, report: Report) -> None:
        self.blocks = Blocks()
        self._report = report
        self._events: dict[str, Block] = {}
        self._block: Block | None = None
        self._skipping = False  # inside a block that is not known, or known twice
        self._in_headers = False
        self._last: Statement | None = None

    def read(self, statement: Statement) -> None:
        if statement.verb is Verb.BROKEN:
            if not self._skipping:
                self._read_broken(statement)
        elif statement.verb is Verb.WITH:
            self._read_setting(statement)
        else:
            self._read_addition(statement)
        self._last = statement

    def _read_broken(self, statement: Statement) -> None:
        text = statement.name.text
        if self._forgot_get(text) or self._is_in_comment():
            return
        found = _NAME_IN.match(text)
        self._report.error(statement.offset, *_explain(text, self._last))
        if found is not None and found[1].upper() == Verb.ADD and not self._in_headers:
            self.blocks.broken.add(found[2].upper())
            self._skip()
        elif found is not None and self._block is not None:
            self._block.broken.add(found[2].upper())

    def _is_in_comment(self) -> bool:
        """Return whether a text goes on with a # comment that is reported already."""
        return self._last is not None and any(piece.text.startswith("#") for piece in self._last.pieces[:1])

    def _forgot_get(self, text: str) -> bool:
        """Report `ENV "X"` and `GET "X"` as one fault of their setting; return whether it was one of them."""
        last, block = self._last, self._block
        word = last.pieces[-1] if last is not None and last.pieces else None
        if last is None or word is None or block is None or text[:1] not in ("'", '"'):
            return False
        setting = block.settings.get(last.name.text.upper())
        wanted = setting is not None and (word.text.upper() != "GET" or setting.parameter.kind is not Kind.CHOICE)
        if word.text.upper() not in ("ENV", "SECRET", "GET") or not (wanted or self._in_headers):
            return False
        shown = on_one_line(text.split("\n", 1)[0].rstrip(), 40)
        if word.text.upper() == "GET":
            hint = f"write GET ENV {shown} or GET SECRET {shown}"
            self._report.error(word.offset, f"GET {shown} does not say of what", hint)
        else:
            hint = f"write GET {word.text.upper()} {shown}"
            self._report.error(word.offset, f"{word.text} {shown} is no value", hint)
        if setting is not None:
            block.broken.add(setting.parameter.name)
            del block.settings[setting.parameter.name]
        elif self._in_headers:
            block.headers.pop()
        return True

    def _read_setting(self, statement: Statement) -> None:
        self._in_headers = False
        if self._skipping:
            return
        name = statement.name
        if self._block is None:
            hint = "ADD REST_API_CONFIG or ADD EVENT <name> goes before it"
            self._report.error(statement.offset, f"{name.text} stands outside of a block", hint)
            return
        known = PARAMETERS[self._block.kind]
        parameter = known.get(name.text.strip("'\"").upper())
        if parameter is None:
            self._unknown_setting(name, self._block.kind)
        elif name.is_string:
            message = f"the name of a setting is not quoted: {name.text}"
            self._report.error(name.offset, message, f"write {parameter.name}")
            self._block.broken.add(parameter.name)
        elif parameter.name in self._block.settings:
            first = self._report.position(self._block.settings[parameter.name].offset)
            self._report.error(
                statement.offset, f"{parameter.name} is set twice in this block", f"the first is in line {first.line}"
            )
        else:
            self._keep(statement, parameter, self._block)

    def _keep(self, statement: Statement, parameter: Parameter, block: Block) -> None:
        if parameter.kind is Kind.HEADERS:
            self._in_headers = True
            if statement.pieces:
                hint = "each header is a line of its own below: ADD <name> <value>"
                self._report.error(statement.pieces[0].offset, "WITH HEADERS takes no value", _hint_at(statement, hint))
        elif not statement.pieces:
            self._report.error(statement.offset, f"{parameter.name} has no value", f"allowed: {parameter.allowed}")
            block.broken.add(parameter.name)
            return
        elif statement.pieces[0].text[0] in _TYPOGRAPHIC_QUOTES:
            self._report.error(statement.pieces[0].offset, f"{statement.pieces[0].text[0]} begins no string", _STRAIGHT)
            block.broken.add(parameter.name)
            return
        if parameter.kind not in (Kind.BOOLEAN, Kind.INTEGER, Kind.CHOICE):  # those refuse it themselves
            self._warn_of_comma(statement)
        block.settings[parameter.name] = Setting(parameter, statement.pieces, statement.offset)

    def _warn_of_comma(self, statement: Statement) -> None:
        last = statement.pieces[-1] if statement.pieces else None
        if last is not None and last.text.endswith(",") and last.text != ",":
            name = statement.name.text
            hint = f"{_NO_COMMA}; quote the value if it ends with one"
            self._report.warning(last.offset + len(last.text) - 1, f"the value of {name} ends with a comma", hint)

    def _unknown_setting(self, name: Piece, kind: BlockKind) -> None:
        elsewhere = [other for other in BlockKind if name.text.upper() in PARAMETERS[other]]
        if elsewhere:
            self._report.error(name.offset, f"{name.text} does not belong in {kind}", f"it belongs in {elsewhere[0]}")
            return
        if meant := closest(name.text, PARAMETERS[kind], parts=True):
            hint = f"did you mean {meant}?"
        elif meant := closest(name.text, _all_names(), parts=True):
            hint = f"did you mean {meant}? It belongs in {_home_of(meant)}"
        else:
            hint = f"{kind} knows {', '.join(PARAMETERS[kind])}"
        if self._block is not None and meant is not None:
            self._block.guessed.add(meant)
        self._report.error(name.offset, f"unknown setting {name.text}", hint)

    def _read_addition(self, statement: Statement) -> None:
        name = statement.name.text.upper()
        if name == BlockKind.EVENT and not self._is_header(statement):
            self._open_event(statement)
        elif name in _BLOCK_NAMES and not self._is_header(statement):
            self._open_config(statement, name)
        elif self._in_headers and self._block is not None:
            self._read_header(statement, self._block)
        elif not self._skipping or closest(name, _BLOCK_NAMES):
            self._unknown_block(statement)

    def _is_header(self, statement: Statement) -> bool:
        """Tell a header that is called like a block: only the quotes can say."""
        return self._in_headers and statement.name.is_string

    def _open_event(self, statement: Statement) -> None:
        block = self._enter(Block(BlockKind.EVENT, statement.offset))
        self.blocks.events.append(block)
        if not statement.pieces:
            self._report.error(statement.offset, "this event has no name", "write ADD EVENT MyEvent")
        elif statement.pieces[0].is_string and is_name(statement.pieces[0].text[1:-1]):
            name = statement.pieces[0]
            self._report.error(name.offset, f"the event name {name.text} is quoted", f"write {name.text[1:-1]}")
        elif len(statement.pieces) > 1 or not is_name(statement.pieces[0].text):
            name = statement.pieces[0]
            message = f"the event name {name.text} holds other characters than A-Z a-z 0-9 _ . -"
            hint = "leave the comma out" if name.text.endswith(",") else "write it bare, as in ADD EVENT My_Event-1"
            self._report.error(name.offset, message, hint)
        else:
            self._name_event(block, statement.pieces[0])

    def _name_event(self, block: Block, name: Piece) -> None:
        first = self._events.setdefault(name.text, block)
        if first is not block:
            line = self._report.position(first.offset).line
            self._report.error(name.offset, f"this route has two events {name.text}", f"the first is in line {line}")
        block.name = name.text

    def _open_config(self, statement: Statement, name: str) -> None:
        if statement.pieces:
            hint = _hint_at(statement, "only events have names")
            self._report.error(statement.pieces[0].offset, f"ADD {name} takes no name", hint)
        if name == IGNORED_BLOCK:
            self._skip()
            self._report.notice(statement.offset, f"{name} is skipped: the route uses the broker it is loaded in")
            return
        kind = BlockKind(name)
        first = self.blocks.config if kind is BlockKind.CONFIG else self.blocks.route_config
        if first is not None:
            self._skip()
            line = self._report.position(first.offset).line
            self._report.error(statement.offset, f"this route has two {name} blocks", f"the first is in line {line}")
            return
        block = self._enter(Block(kind, statement.offset))
        if kind is BlockKind.CONFIG:
            self.blocks.config = block
        else:
            self.blocks.route_config = block

    def _read_header(self, statement: Statement, block: Block) -> None:
        if statement.pieces:
            self._warn_of_comma(statement)
            block.headers.append(HeaderLine(statement.name, statement.pieces))
            return
        name = statement.name.text
        hint = did_you_mean(name, _BLOCK_NAMES) or f'write ADD {name} "..."'
        self._report.error(statement.offset, f"the header {name} has no value", hint)

    def _unknown_block(self, statement: Statement) -> None:
        name = statement.name.text
        hint = did_you_mean(name, _BLOCK_NAMES)
        if hint is None and statement.pieces:
            hint = "header lines stand directly below WITH HEADERS"
        self._report.error(statement.name.offset, f"unknown block {name}", hint or f"known: {', '.join(_BLOCK_NAMES)}")
        self._skip()

    def _enter(self, block: Block) -> Block:
        self._block, self._skipping, self._in_headers = block, False, False
        return block

    def _skip(self) -> None:
        self._skipping, self._in_headers = True, False


def read_blocks(statements: Iterable[Statement], report: Report) -> Blocks:
    """Sort the statements of a definition into its blocks and report those that fit nowhere."""
    reader = _Reader(report)
    for statement in statements:
        reader.read(statement)
    return reader.blocks


def _all_names() -> list[str]:
    return [name for block in PARAMETERS.values() for name in block]


def _home_of(name: str) -> str:
    return next(kind for kind, block in PARAMETERS.items() if name in block)


def _hint_at(statement: Statement, hint: str) -> str:
    """Return the hint for a value that should not be there: a # comment is the usual reason."""
    return COMMENT_HINT if statement.pieces[0].text.startswith("#") else hint


def _explain(text: str, before: Statement | None) -> tuple[str, str | None]:
    """Say what is wrong with a text that is no statement."""
    if text.endswith("+"):
        hint = 'a value follows it: "text", GET ENV "X" or GET SECRET "X"'
        return f"nothing follows the + in {on_one_line(text, 40)}", hint
    if text.upper() in ("WITH", "ADD"):
        return f"{text} is not followed by a name", None
    shown = on_one_line(text.split("\n", 1)[0].rstrip(), 40)
    if _PLUS_FIRST.match(text):
        return f"+ does not stand between two values: {shown}", None
    if text[:1] in _TYPOGRAPHIC_QUOTES:
        return f"unexpected text: {shown}", _STRAIGHT
    if text[:6].upper() == "DEFINE":
        return f"unexpected text: {shown}", "a definition begins at the start of a line"
    if verb := closest(text.split()[0], ["WITH", "ADD"]):
        return f"unexpected text: {shown}", f"did you mean {verb}?"
    return _explain_behind(shown, before)


def _explain_behind(shown: str, before: Statement | None) -> tuple[str, str | None]:
    """Say what is wrong with a text by what it stands behind."""
    if before is None or not before.pieces:
        hint = _FIRST_CHARACTERS.get(shown[0], "a route goes on with ADD REST_API_CONFIG or ADD EVENT <name>")
        return f"unexpected text: {shown}", hint
    if before.verb is Verb.ADD and before.name.text.upper() == BlockKind.EVENT:
        after = f"unexpected text after ADD EVENT {on_one_line(before.pieces[0].text)}: {shown}"
        return after, _FIRST_CHARACTERS.get(shown[0])
    hint = _FIRST_CHARACTERS.get(shown[0], "a value with spaces needs quotes")
    if _ROUTE.match(shown):
        hint = f"write DEFINE before {shown}"
    if before.pieces[-1].text in ("=", ":"):
        hint = f"no {before.pieces[-1].text} stands between a name and its value"
    return f"unexpected text after the value of {before.name.text}: {shown}", hint

"""The blocks of a route: each setting in its block, at most once, by a name that exists. Values stay as written. Pure.

A statement with a mistake in it is reported once and read on as it was meant, so that one mistake is not many faults.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from amqtt_rest_bridge.errors import on_one_line
from amqtt_rest_bridge.language import hints
from amqtt_rest_bridge.language.grammar import (
    BlockNode,
    ConditionTree,
    HeadersNode,
    Junk,
    Line,
    OpenComment,
    Piece,
    SettingNode,
    parse_condition,
)
from amqtt_rest_bridge.language.parameters import IGNORED_BLOCK, PARAMETERS, BlockKind, Kind, Parameter
from amqtt_rest_bridge.language.sources import Report
from amqtt_rest_bridge.spelling import closest, did_you_mean, question

_BLOCK_NAMES = (*BlockKind, IGNORED_BLOCK)
_HEADERS = Kind.HEADERS.name
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_BETWEEN = ("=", ":", ":=", "=>")
_HASH_BEFORE = re.compile(r"(?<!\S)#[^\"']*\Z")
_FIRST_WORD = re.compile(r"\s*([A-Za-z_]+)[:=]?(?=\s|\Z)")
_MARK = re.compile(r"\A\s*[:=]\s*")
_HEADER_LINE = re.compile(r"\s*(?P<name>\"[^\"]+\"|'[^']+'|[\w-]+)[ \t]+\S")
_NAME_IN = re.compile(r"([A-Z]+)\s+([A-Z_]+)", re.IGNORECASE)


@dataclass(slots=True)
class Block:
    """A block: `WITH` lines by name, each a setting that the block has, and the lines below WITH HEADERS.

    `broken` names settings that are present but could not be read; `guessed` those that an unknown name may mean:
    they are not missed, and nothing else is concluded from them. `condition` is the tree of WHEN, None where it is not
    one string, or nested too deeply.
    """

    kind: BlockKind
    offset: int
    name: str = ""
    settings: dict[str, SettingNode] = field(default_factory=dict)
    headers: list[SettingNode] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    guessed: set[str] = field(default_factory=set)
    condition: ConditionTree | None = None


@dataclass(slots=True)
class Definition:
    """One `DEFINE ROUTE ... WITH TYPE REST_API`: its blocks; `name` is None when it cannot be read.

    REST_API_CONFIG and ROUTE_CONFIG are None when they are missing. `broken` names blocks whose first line could not be
    read. `is_faulty`: its text has an error already.
    """

    name: str | None
    offset: int
    config: Block | None = None
    route_config: Block | None = None
    events: list[Block] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    is_faulty: bool = False

    @property
    def title(self) -> str:
        """Return what a message calls it."""
        return f"route {self.name}" if self.name is not None else "this route"


def is_name(text: str) -> bool:
    """Return whether a text can name a route or an event."""
    return _NAME.fullmatch(text) is not None


def report_open_strings(pieces: Iterable[Piece], report: Report) -> None:
    """Report the strings that are not closed."""
    for piece in pieces:
        if piece.open_at is not None:
            in_comment = _HASH_BEFORE.search(report.line_before(piece.open_at))
            hint = hints.COMMENT_HINT if in_comment else f"write {piece.text[0]} where it ends"
            if piece.text[:2] in ('"{', '"['):
                hint = "write ' where it begins and where it ends: \" is part of the JSON in it"
            report.error(piece.open_at, "this string is not closed on its line", hint)


def read_blocks(body: Iterable[BlockNode | Line], definition: Definition, report: Report) -> None:
    """Put the blocks of a route into its definition, and report what fits nowhere."""
    reader = _BlockReader(definition, report)
    for node in body:
        reader.read(node)


class _BlockReader:
    """Reads the nodes of one definition in order, with the block that is open."""

    def __init__(self, definition: Definition, report: Report) -> None:
        self._definition = definition
        self._report = report
        self._names: dict[str, Block] = {}  # of events
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
            if self._skipping:
                report_open_strings(node.open_strings, self._report)
            else:
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

    def _refuse(self, name: str, offset: int, message: str, hint: str | None = None) -> None:
        """Report a setting of the open block that is there, but cannot be read."""
        self._report.error(offset, message, hint)
        if self._block is not None:
            self._block.broken.add(name)

    # Blocks.

    def _open_block(self, node: BlockNode) -> None:
        if not node.known:
            if not self._skipping or closest(node.name.text, _BLOCK_NAMES):
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
        self._definition.events.append(block)
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
            first = self._names.setdefault(name.text, block)
            if first is not block:
                line = self._report.position(first.offset).line
                message = f"this route has two events {name.text}"
                self._report.error(name.offset, message, f"the first is in line {line}")
            block.name = name.text

    def _open_config(self, node: BlockNode, name: str) -> None:
        first_word = node.pieces[0].text.upper() if node.pieces else ""
        without_with = name != IGNORED_BLOCK and first_word in PARAMETERS[BlockKind(name)]
        if without_with:
            hint = f"write WITH {first_word}"
            self._report.error(node.pieces[0].offset, f"WITH is missing before {first_word}", hint)
            self._rest_is_known = True
        elif node.pieces:
            hint = hints.hint_at(node.pieces, "only events have names")
            self._report.error(node.pieces[0].offset, f"ADD {name} takes no name", hint)
        self._skipping = True
        if name == IGNORED_BLOCK:
            self._report.notice(node.offset, f"{name} is skipped: the route uses the broker it is loaded in")
            return
        kind = BlockKind(name)
        first = self._definition.config if kind is BlockKind.CONFIG else self._definition.route_config
        if first is not None:
            line = self._report.position(first.offset).line
            self._report.error(node.offset, f"this route has two {name} blocks", f"the first is in line {line}")
            return
        self._skipping = False
        self._block = Block(kind, node.offset, broken={first_word} if without_with else set())
        if kind is BlockKind.CONFIG:
            self._definition.config = self._block
        else:
            self._definition.route_config = self._block

    def _unknown_block(self, node: BlockNode) -> None:
        name, plain = node.name.text, node.name.text.strip("'\"").upper()
        homes = ([self._block.kind] if self._block else []) + list(BlockKind)
        if plain in ("HEADER", _HEADERS):
            hint = "write WITH HEADERS, and below it ADD <name> <value>"
            self._refuse(_HEADERS, node.name.offset, f"{name} is not a block", hint)
            self._loose_headers = self._rest_is_known = True
        elif self._block is not None and any(plain in PARAMETERS[home] for home in homes):
            self._refuse(_HEADERS, node.offset, f"{name} is a setting, which begins with WITH", f"write WITH {plain}")
            self._skipping = False
            self._read_setting(SettingNode(node.name, node.pieces, node.offset))
        elif not self._loose_headers:
            self._report_unknown_block(node)
        elif self._block is not None:
            self._block.broken.add(_HEADERS)

    def _report_unknown_block(self, node: BlockNode) -> None:
        name = node.name.text
        if name.rstrip(":{").upper() in _BLOCK_NAMES:
            known = Piece(name.rstrip(":{").upper(), node.name.offset)
            self._report.error(node.name.offset, f"unknown block {name}", f"write ADD {known.text}")
            self._open_block(BlockNode(known, node.pieces, (), node.offset, known=True))
            return
        hint = did_you_mean(name, _BLOCK_NAMES)
        like_header = node.name.is_string or "-" in name or bool(node.pieces)
        if hint is None and like_header and self._block is not None and self._block.kind is BlockKind.EVENT:
            hint = "header lines follow directly below WITH HEADERS"
            self._report.error(node.name.offset, f"unknown block {name}", hint)
            return
        settings = [line.name.text.upper() for line in node.lines if isinstance(line, SettingNode)]
        if inside := Counter(kind for one in settings for kind in BlockKind if one in PARAMETERS[kind]):
            home = inside.most_common(1)[0][0]
            hint = question(home)
            self._definition.broken.add(home)
        self._report.error(node.name.offset, f"unknown block {name}", hint or f"known: {', '.join(_BLOCK_NAMES)}")
        self._skipping = True

    # Settings.

    def _read_setting(self, written: SettingNode) -> None:
        plain = written.name.text.upper()
        if plain in _BLOCK_NAMES:
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
            self._refuse(parameter.name, name.offset, message, f"write {parameter.name}")
        elif parameter.name in self._block.settings:
            first = self._report.position(self._block.settings[parameter.name].offset)
            message = f"{parameter.name} is set twice in this block"
            self._report.error(node.offset, message, f"the first is in line {first.line}")
        elif self._can_be_kept(node, parameter):
            self._after_headers = False
            self._block.settings[parameter.name] = node
            if parameter.kind is Kind.CONDITION:
                self._block.condition = parse_condition(node.pieces)

    def _can_be_kept(self, node: SettingNode, parameter: Parameter) -> bool:
        first = node.pieces[0] if node.pieces else None
        if parameter.kind is Kind.HEADERS:
            self._loose_headers = True
            if first is not None:
                hint = "each header is a line of its own below: ADD <name> <value>"
                hint = hint if first.text[0] == "{" else hints.hint_at(node.pieces, hint)
                self._refuse(_HEADERS, first.offset, "WITH HEADERS takes no value", hint)
        elif first is None:
            hint = f"allowed: {parameter.allowed}"
            self._refuse(parameter.name, node.offset, f"{parameter.name} has no value", hint)
            return False
        elif self._refuse_spans(parameter.name, node.pieces, parameter.kind):
            return False
        elif first.text[0] in hints.TYPOGRAPHIC_QUOTES:
            self._refuse(parameter.name, first.offset, f"{first.text[0]} begins no string", hints.STRAIGHT)
            return False
        if parameter.kind not in (Kind.BOOLEAN, Kind.INTEGER, Kind.CHOICE):  # those refuse it themselves
            self._warn_of_comma(node)
        return True

    def _report_outside(self, node: SettingNode) -> None:
        """Report the first setting before any block; those that follow have the same cause."""
        home = next((kind for kind in BlockKind if node.name.text.upper() in PARAMETERS[kind]), None)
        if not self._outside_reported:
            block = {None: "ADD REST_API_CONFIG or ADD EVENT <name>", BlockKind.EVENT: "ADD EVENT <name>"}
            hint = f"write {block.get(home, f'ADD {home}')} before it"
            self._report.error(node.offset, f"{node.name.text} is outside of a block", hint)
        self._outside_reported = True
        self._definition.broken.add(str(home))

    def _unknown_setting(self, node: SettingNode, block: Block) -> None:
        name, kind = node.name, block.kind
        plain = name.text.strip("'\"")
        next_word = node.pieces[0].text if node.pieces else ""
        if (meant := f"{plain}_{next_word}".upper()) in PARAMETERS[kind]:
            self._report.error(name.offset, f"unknown setting {plain} {next_word}", f"write {meant}")
            block.guessed.add(meant)
            self._rest_is_known = True
            return
        like_header = name.is_string or "-" in plain or (self._after_headers and not plain.isupper())
        if kind is BlockKind.EVENT and like_header and closest(plain, PARAMETERS[kind]) is None:
            hint = f"write ADD {name.text}: below WITH HEADERS each line begins with ADD"
            if not self._after_headers:
                hint = f"write WITH HEADERS, and below it ADD {name.text} and the value"
            self._refuse(_HEADERS, node.offset, f"{name.text} is not a setting", hint)
            return
        elsewhere = next((other for other in BlockKind if plain.upper() in PARAMETERS[other]), None)
        if elsewhere is not None:
            hint = f"it belongs in {elsewhere}"
            if elsewhere is BlockKind.EVENT and not self._definition.events:
                hint += ": write ADD EVENT <name> before it"
            self._report.error(name.offset, f"{name.text} does not belong in {kind}", hint)
            self._loose_headers = plain.upper() == _HEADERS
            self._definition.broken.add(elsewhere)
            return
        guesses, hint = hints.explain_unknown_setting(plain, kind)
        block.guessed.update(guesses)
        self._rest_is_known = plain.upper() == "HEADER"
        self._report.error(name.offset, f"unknown setting {name.text}", hint)

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
            self._block.broken.add(_HEADERS if verb == "ADD" else plain.upper())
        return None

    def _refuse_spans(self, name: str, pieces: Iterable[Piece], kind: Kind) -> bool:
        """Report `15 MINUTES` where no time is meant; return whether there was one."""
        for piece in pieces if kind not in (Kind.DURATION, Kind.INTEGER) else ():
            if not piece.is_string and not piece.source and len(words := piece.text.split()) > 1:
                self._refuse(name, piece.offset, f"unexpected text behind {words[0]}", hints.SPACES)
                return True
        return False

    def _warn_of_comma(self, node: SettingNode) -> None:
        last = node.pieces[-1] if node.pieces else None
        if last is not None and last.text.endswith(",") and last.text != ",":
            hint = f"{hints.NO_COMMA}; quote the value if it ends with one"
            message = f"the value of {node.name.text} ends with a comma"
            self._report.warning(last.offset + len(last.text) - 1, message, hint)

    # Headers.

    def _read_headers(self, node: HeadersNode) -> None:
        first = node.pieces[0] if node.pieces else None
        self._in_headers = True  # for lines without ADD
        if first is not None and not self._report.line_before(first.offset).strip():
            if not self._skipping and self._block is not None:
                self._last = SettingNode(Piece(_HEADERS, node.offset), (), node.offset)
                self._block.settings.setdefault(_HEADERS, self._last)
            self._add_is_missing(first.offset, first.text)
            self._rest_is_known = True
        else:
            self._last = SettingNode(Piece(_HEADERS, node.offset), node.pieces, node.offset)
            self._read_setting(self._last)
            self._rest_is_known = first is not None and first.text[:1] in "{["
        for line in node.lines:
            if isinstance(line, SettingNode):
                report_open_strings((line.name, *line.pieces), self._report)
                self._last = self._straightened(line, "ADD")
                if not self._skipping and self._block is not None and self._last is not None:
                    self._read_header(self._last, self._block)
            else:
                self.read(line)
        self._in_headers = self._loose_headers = False
        self._after_headers = True

    def _read_header(self, node: SettingNode, block: Block) -> None:
        name = node.name.text
        if not node.pieces:
            hint = did_you_mean(name, _BLOCK_NAMES) or f'write ADD {name} "..."'
            if node.name.is_string and ":" in name:
                key, _, value = name[1:-1].partition(":")
                hint = f'write ADD "{key.strip()}" "{value.strip()}"'
            self._refuse(_HEADERS, node.offset, f"the header {name} has no value", hint)
        elif name.upper() == "HEADER":
            hint = f"write ADD {node.pieces[0].text}"
            self._refuse(_HEADERS, node.name.offset, "HEADER is not part of a header line", hint)
            self._rest_is_known = True
        elif not self._refuse_spans(_HEADERS, node.pieces, Kind.HEADERS):
            self._warn_of_comma(node)
            block.headers.append(node)

    def _add_is_missing(self, offset: int, name: str) -> None:
        hint = f"write ADD {name}: each header begins with ADD"
        self._refuse(_HEADERS, offset, f"ADD is missing before {name}", hint)

    # Text that is not a statement.

    def _read_junk(self, junk: Junk) -> None:
        """Read lines that only lack their keyword; the rest is one fault of the statement before it."""
        end, offset = None, junk.offset
        for number, line in enumerate(junk.text.split("\n")):
            start = offset + len(line) - len(line.lstrip())
            if number == 0 and self._rest_is_known:
                end = 0
            elif self._lacks_keyword(line.strip(), start) and end is None:
                end = start - junk.offset
            offset += len(line) + 1
        if end is None:
            self._explain(junk)
        elif text := junk.text[:end].rstrip():
            self._explain(Junk(text, (), junk.offset))

    def _lacks_keyword(self, text: str, offset: int) -> bool:
        """Report a line that only lacks its WITH or ADD; return whether it is one."""
        found, block = _FIRST_WORD.match(text), self._block
        begins_line = not self._report.line_before(offset).strip()
        name = found[1].upper() if found and (begins_line or found[1].isupper()) else ""
        follows = text[found.end() :].strip() if found else ""
        if name in _BLOCK_NAMES:
            self._report.error(offset, f"ADD is missing before {name}", f"write ADD {on_one_line(text)}")
            pieces = tuple(Piece(word, offset) for word in follows.split()[:1])
            self._open_block(BlockNode(Piece(name, offset), pieces, (), offset, known=True))
        elif found and block is not None and name in PARAMETERS[block.kind] and (follows or name == _HEADERS):
            value = _MARK.sub("", text[found.end(1) :].rstrip(" \t,;"))
            shown = name if PARAMETERS[block.kind][name].secret else on_one_line(f"{name} {value.strip()}".strip())
            self._refuse(name, offset, f"WITH is missing before {name}", f"write WITH {shown}")
            self._loose_headers = name == _HEADERS
        elif self._in_headers and begins_line and (header := _HEADER_LINE.match(text)):
            self._add_is_missing(offset, header["name"])
        else:
            return False
        return True

    def _explain(self, junk: Junk) -> None:
        if (quotes := hints.explain_quotes(junk, self._last)) is not None:
            if quotes[1]:
                self._report.error(*quotes)
            self._give_up()
            return
        report_open_strings(junk.open_strings, self._report)
        # What continues a # comment is reported with it already.
        in_comment = self._last is not None and any(piece.text.startswith("#") for piece in self._last.pieces[:1])
        if self._forgot_get(junk.text) or in_comment:
            return
        self._report.error(junk.offset, *hints.explain_junk(junk.text, self._last))
        found = _NAME_IN.match(junk.text)
        if found is not None and found[1].upper() == "ADD" and not self._in_headers:
            self._definition.broken.add(found[2].upper())
            self._skipping = True
        elif found is not None and self._block is not None:
            self._block.broken.add(found[2].upper())
        elif self._report.line_before(junk.offset).strip():
            self._give_up()

    def _give_up(self) -> None:
        """Forget the value of the statement before, of which only a part could be read."""
        if self._block is None or not isinstance(self._last, SettingNode):
            return
        name = self._last.name.text.upper()
        if self._in_headers and self._block.headers and self._block.headers[-1] is self._last:
            self._block.headers.pop()
            self._block.broken.add(_HEADERS)
        elif self._block.settings.pop(name, None) is not None:
            self._block.broken.add(name)

    def _forgot_get(self, text: str) -> bool:
        """Report `ENV "X"` and `GET "X"` as one fault of their setting; return whether it was one of them."""
        last, block = self._last, self._block
        word = last.pieces[-1] if last is not None and last.pieces else None
        if last is None or word is None or word.source or block is None or text[:1] not in ("'", '"'):
            return False
        name, source = last.name.text.upper(), word.text.upper()
        is_setting = name in block.settings
        wanted = is_setting and (source != "GET" or PARAMETERS[block.kind][name].kind is not Kind.CHOICE)
        if source not in ("ENV", "SECRET", "GET") or not (wanted or self._in_headers):
            return False
        shown = on_one_line(text.split("\n", 1)[0].rstrip(), 40)
        if source == "GET":
            hint = f"write GET ENV {shown} or GET SECRET {shown}"
            self._report.error(word.offset, f"GET {shown} does not say of what", hint)
        else:
            self._report.error(word.offset, f"{word.text} {shown} is not a value", f"write GET {source} {shown}")
        if is_setting:
            block.broken.add(name)
            del block.settings[name]
        elif self._in_headers:
            block.headers.pop()
        return True

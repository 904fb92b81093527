"""Text of the route language to its tree, by `route.tatsu`. For any thread.

Parsing never fails: what is wrong comes back as a node of its own. The text is scanned once. `route_parser` is
generated from the grammar, which takes TatSu 0.6 s of CPU.
"""

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias, cast

from amqtt_rest_bridge.lot.grammar.parser import Parser, Text
from amqtt_rest_bridge.lot.grammar.route_parser import DIRECTIVES
from amqtt_rest_bridge.lot.settings_table import BLOCK_NAMES, HEADERS, PARAMETERS, BlockKind

_ESCAPE = re.compile(r"\\([\"'\\nt])")
_COMMENT_BEHIND = re.compile(r"[^\S\n]*(?://|--|/\*)[^\n]*")
MOST_UNREADABLE = 1_000
"""Statements of a text that cannot be read, after which its rest is left unread: each costs 0.1 to 0.6 ms."""
_MOST_STATEMENTS = 20_000  # of one definition, with their strings; each word outside of a statement counts as one
_SETTINGS = frozenset(name for parameters in PARAMETERS.values() for name in parameters)


@dataclass(frozen=True, slots=True)
class Piece:
    """A string with its quotes, a word, or a `GET ENV "X"`, and its offset in the text.

    `source` is "ENV" or "SECRET" for a GET, whose `text` is the name. A string that is not closed ends with its line:
    its text has the missing quote, and `open_at` is the offset of the one it has.
    """

    text: str
    offset: int
    source: str = ""
    open_at: int | None = None
    is_string: bool = False


class Level(IntEnum):
    """What a statement adds to: a route, a block, or the headers of an event."""

    BLOCK = 1
    SETTING = 2
    HEADER = 3


@dataclass(frozen=True, slots=True)
class StatementNode:
    """`ADD <block> <name>`, `WITH <setting> <value>` or `ADD <header> <value>`.

    `pieces` are what follows the name, none for nothing. The name of a block is in capitals. A header may be anything
    else that is added: a block that does not exist.
    """

    level: Level
    name: Piece
    pieces: tuple[Piece, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Junk:
    """Text that is not a statement; `open_strings` are those in it that are not closed."""

    text: str
    open_strings: tuple[Piece, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class OpenComment:
    """A block comment that never ends."""

    offset: int


Node: TypeAlias = StatementNode | Junk | OpenComment


@dataclass(frozen=True, slots=True)
class RouteNode:
    """A route of our type: its statements and any other text, in their order.

    `name` may be one that no route can have; None if it is missing. `has_type` says whether WITH TYPE is there. Without
    both the text up to the first block is not read: `unread` are its words, `open_strings` its strings without an end.
    """

    name: Piece | None
    has_type: bool
    body: tuple[Node, ...]
    offset: int
    open_strings: tuple[Piece, ...] = ()
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OtherNode:
    """A definition that is not ours, as much of its first line as can be read."""

    kind: str | None
    name: str | None
    type: Piece | None
    offset: int


@dataclass(frozen=True, slots=True)
class Tree:
    """A text: what precedes the first definition, and its definitions.

    `stopped_at` is where reading ended since too much could not be read, None for a text that was read to its end.
    """

    outside: Junk
    definitions: tuple[RouteNode | OtherNode, ...]
    stopped_at: int | None = None


def unescape(raw: str) -> str:
    """Resolve the escapes of a string; a line break in it is LF, also in a file with CRLF."""
    if "\r" in raw:
        raw = raw.replace("\r\n", "\n")
    return _ESCAPE.sub(lambda found: {"n": "\n", "t": "\t"}.get(found[1], found[1]), raw) if "\\" in raw else raw


def parse(text: str) -> Tree:
    """Parse a text of the route language."""
    return cast(Tree, _parse(text, "file", _Nodes()))


def parse_condition(text: str, actions: object) -> Any:
    """Parse a condition by `actions`, which has a method for each rule; they may raise. Raises RecursionError."""
    return _parse(text, "condition", actions)


def _parse(text: str, start: str, actions: object) -> Any:
    # The line break: the grammar's DEFINE begins with one.
    return Parser(tokenizercls=Text, **DIRECTIVES).parse("\n" + text, start=start, semantics=actions)


class _Nodes:
    """Turns TatSu's dictionaries into nodes: one method for each rule that has a node of its own.

    They also count what cannot be read, and end a text that holds too much of it.
    """

    def __init__(self) -> None:
        self._unreadable = self._statements = 0
        self._before = ""  # the name of the statement before
        self._stopped_at: int | None = None

    def _count(self, ast: Any, *, unreadable: bool) -> None:
        """Count a statement or string; end the text once too much of it cannot be read."""
        self._statements += 1
        self._unreadable += unreadable
        if self._stopped_at is None and (self._unreadable > MOST_UNREADABLE or self._statements > _MOST_STATEMENTS):
            self._stopped_at = offset_of(ast)
            ast.parseinfo.tokenizer.stop()

    def file(self, ast: Any) -> Tree:
        return Tree(ast["outside"], tuple(ast["definitions"]), self._stopped_at)

    def outside(self, ast: Any) -> Junk:
        return Junk(ast["text"], (), offset_of(ast))

    def DEFINE(self, ast: Any) -> Any:  # noqa: N802  # the rule's name
        self._statements, self._before = 0, ""
        return ast

    def route(self, ast: Any) -> RouteNode:
        has_config = any(isinstance(node, StatementNode) and node.name.text == BlockKind.CONFIG for node in ast["body"])
        self._count(ast, unreadable=not has_config)
        return RouteNode(ast["name"], has_type=True, body=tuple(ast["body"]), offset=_define(ast))

    def headless_route(self, ast: Any) -> RouteNode:
        self._count(ast, unreadable=True)
        open_strings = tuple(word for word in ast["unread"] if isinstance(word, Piece) and word.open_at is not None)
        words = [word.text if isinstance(word, Piece) else str(word) for word in ast["unread"]]
        unread = tuple(one for word in words for one in ([word] if word[0] in "'\"" else word.split()))
        return RouteNode(ast["name"], ast["type"] is not None, tuple(ast["body"]), _define(ast), open_strings, unread)

    def other(self, ast: Any) -> OtherNode:
        name, route_type = ast["name"], ast["type"]
        return OtherNode(ast["kind"], name and name.text, route_type, _define(ast))

    def block(self, ast: Any) -> StatementNode:
        return self._statement(Level.BLOCK, Piece(ast["kind"].upper(), offset_of(ast)), ast)

    def setting(self, ast: Any) -> StatementNode:
        return self._statement(Level.SETTING, ast["name"], ast)

    def header(self, ast: Any) -> StatementNode:
        return self._statement(Level.HEADER, ast["name"], ast)

    def _statement(self, level: Level, name: Piece, ast: Any) -> StatementNode:
        node = StatementNode(level, name, tuple(ast["pieces"] or ()), offset_of(ast))
        plain = name.text.upper()
        match level:
            case Level.BLOCK:
                unreadable = self._before in BLOCK_NAMES
            case Level.SETTING:
                unreadable = plain not in _SETTINGS or plain == HEADERS == self._before
            case Level.HEADER:
                unreadable = not node.pieces
        self._count(ast, unreadable=unreadable)
        self._before = plain
        return node

    def fault(self, ast: Any) -> Junk | OpenComment:
        if isinstance(ast, OpenComment):
            return ast
        self._count(ast, unreadable=True)
        whole, begin = ast.parseinfo.tokenizer.text, ast.parseinfo.pos
        end = begin + len(whole[begin : ast.parseinfo.endpos].rstrip())
        comment = _COMMENT_BEHIND.match(whole, end)  # shown too: an address without quotes is cut by its //
        text = whole[begin : comment.end() if comment else end].rstrip()
        open_strings = tuple(word for word in ast["words"] if word.open_at is not None)
        if open_strings:
            last = open_strings[0]
            text = text[: last.offset - offset_of(ast)] + last.text
        return Junk(text, open_strings, offset_of(ast))

    def open_comment(self, ast: Any) -> OpenComment:
        self._count(ast, unreadable=True)
        return OpenComment(offset_of(ast))

    def string(self, ast: Any) -> Piece:
        self._count(ast, unreadable=False)
        begin, unclosed = offset_of(ast), ast["open"]
        if unclosed is None:
            return Piece(ast["text"], begin, is_string=True)
        return Piece(unclosed.rstrip("\r\\") + unclosed[0], begin, open_at=begin, is_string=True)

    def _piece(self, ast: Any) -> Piece:
        if isinstance(ast, Piece):
            return ast
        text: str = ast["text"]
        return Piece(text, offset_of(ast), is_string=text[:1] in ("'", '"'))

    def get(self, ast: Any) -> Piece:
        name: Piece = ast["name"]
        return Piece(name.text, offset_of(ast), ast["source"], name.open_at)

    def word(self, ast: Any) -> Piece:
        return Piece(ast["text"], offset_of(ast))

    def junk(self, ast: Any) -> Piece:
        if not isinstance(ast, Piece):  # a string, which is counted
            self._count(ast, unreadable=False)
        return self._piece(ast)

    span = word
    bare_name = route_name = title = _piece


def offset_of(ast: Any) -> int:
    """Return the offset at which the text of a rule begins."""
    offset: int = ast.parseinfo.pos - 1
    return offset


def _define(ast: Any) -> int:
    offset: int = ast.parseinfo.pos + len(ast["define"]) - len("DEFINE") - 1
    return offset

"""The tree of a text: values only, whose offsets count from 0. What is wrong is a node of its own."""

import re
from dataclasses import dataclass
from typing import TypeAlias

_ESCAPE = re.compile(r"\\([\"'\\nt])")


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


@dataclass(frozen=True, slots=True)
class SettingNode:
    """`WITH <name> <value>`, or below WITH HEADERS `ADD <name> <value>`; `pieces` is the value, empty for none."""

    name: Piece
    pieces: tuple[Piece, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class HeadersNode:
    """`WITH HEADERS` and the lines below it; `pieces` is a value that should not be there."""

    pieces: tuple[Piece, ...]
    lines: "tuple[SettingNode | Junk | OpenComment, ...]"
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


Line: TypeAlias = SettingNode | HeadersNode | Junk | OpenComment


@dataclass(frozen=True, slots=True)
class BlockNode:
    """`ADD <name> <value>` and the lines below it; `known`: the name is that of a block."""

    name: Piece
    pieces: tuple[Piece, ...]
    lines: tuple[Line, ...]
    offset: int
    known: bool


@dataclass(frozen=True, slots=True)
class RouteNode:
    """A route of our type: its blocks, and lines before the first of them.

    `name` is None when there is none; it may be one that no route can have. `has_type`: it has WITH TYPE;
    `open_strings` are in text that is not read, for want of a first line; `unread` are its words.
    """

    name: Piece | None
    has_type: bool
    body: tuple[BlockNode | Line, ...]
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


@dataclass(frozen=True, slots=True)
class Term:
    """A term of a condition: `kind` is the rule that it follows, "missing" for what is not a value."""

    kind: str
    text: str
    offset: int


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of a condition, on others: AND, OR, NOT, "(" (never closed); or on terms: EXISTS, IN, LIKE, =, ...

    "lone" is a term without an operation.
    """

    name: str
    offset: int
    operations: "tuple[Operation, ...]" = ()
    terms: tuple[Term, ...] = ()


@dataclass(frozen=True, slots=True)
class ConditionTree:
    """The text of a WHEN setting; `leftover` is what follows the last term that can be read."""

    root: Operation
    leftover: Term


def unescape(raw: str) -> str:
    """Resolve the escapes of a string; a line break in it is LF, also in a file with CRLF."""
    if "\r" in raw:
        raw = raw.replace("\r\n", "\n")
    return _ESCAPE.sub(lambda found: {"n": "\n", "t": "\t"}.get(found[1], found[1]), raw) if "\\" in raw else raw

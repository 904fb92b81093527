"""The body of a route definition to its statements, through TatSu; nothing else knows TatSu. Pure, for any thread."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any

import tatsu

_GAP = re.compile(r"(?:\s|//[^\n]*|--[^\n]*|/\*.*?\*/)*+", re.DOTALL)


class Verb(StrEnum):
    """What a statement begins with; BROKEN is text that is no statement."""

    WITH = "WITH"
    ADD = "ADD"
    BROKEN = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """A string with its quotes, a `GET ENV "X"` or a word, and its offset in the file."""

    text: str
    offset: int

    @property
    def is_string(self) -> bool:
        """Tell a quoted text from a word or GET."""
        return self.text[:1] in ("'", '"')


@dataclass(frozen=True, slots=True)
class Statement:
    """`WITH name value` or `ADD name [value]`: the value in its pieces, which `+` joins.

    A broken one has its text as its name.
    """

    verb: Verb
    name: Piece
    pieces: tuple[Piece, ...]
    offset: int


def parse(text: str, base: int) -> tuple[Statement, ...]:
    """Split the body of a definition into statements.

    `text` has every string and comment closed; `base` is its offset in the file. Never fails: what is no statement
    comes back as a broken one.
    """
    return tuple(_statement(node, text, base) for node in _parser()(text))


@cache
def _parser() -> Callable[[str], list[Any]]:
    """Compile the grammar, once and only when there is something to parse: it takes 30 ms."""
    grammar = resources.files(__package__).joinpath("route.tatsu").read_text(encoding="utf-8")
    parse_text: Callable[[str], list[Any]] = tatsu.compile(grammar).parse
    return parse_text


def _statement(node: dict[str, Any], text: str, base: int) -> Statement:
    start: int = node["parseinfo"].pos
    if node["broken"] is not None:
        return Statement(Verb.BROKEN, Piece(node["broken"].rstrip(), base + start), (), base + start)
    name, end = _place(node["name"], text, start + len(node["verb"]), base)
    pieces = []
    for value in node["value"]:
        piece, end = _place(value, text, end, base)
        pieces.append(piece)
    return Statement(Verb(node["verb"].upper()), name, tuple(pieces), base + start)


def _place(token: str, text: str, end: int, base: int) -> tuple[Piece, int]:
    """Find where a token stands that follows `end`: behind white space, comments and at most one `+`."""
    start = _end_of_gap(text, end)
    if not text.startswith(token, start):
        start = _end_of_gap(text, start + 1)
    return Piece(token, base + start), start + len(token)


def _end_of_gap(text: str, start: int) -> int:
    gap = _GAP.match(text, start)
    return gap.end() if gap else start

"""The grammar: which text becomes which node, as `route.tatsu` describes it."""

import pickle
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import pytest

from amqtt_rest_bridge.errors import on_one_line
from amqtt_rest_bridge.lot.grammar.parsing import Junk, Level, OpenComment, Piece, RouteNode, StatementNode, parse
from amqtt_rest_bridge.lot.parsed_texts import ParsedTexts, parse_text
from amqtt_rest_bridge.lot.sources import SUFFIXES, read
from tests.lot.generated_parser import GRAMMAR, PARSER, generated
from tests.support.route_text import CASES

FILES = sorted(path for kind in ("valid", "invalid") for path in (CASES / kind).iterdir() if path.suffix in SUFFIXES)
HEAD = "DEFINE ROUTE R WITH TYPE REST_API "


VERBS = {Level.BLOCK: "BLOCK", Level.SETTING: "WITH", Level.HEADER: "ADD"}


def short(node: object) -> str:
    """Write a node as a text."""
    match node:
        case Piece():
            return f"{node.source} {node.text}".strip()
        case StatementNode():
            return " ".join([VERBS[node.level], *map(short, (node.name, *node.pieces))])
        case Junk():
            return f"? {node.text}"
        case OpenComment():
            return "/*"
    raise TypeError(node)


def body(text: str) -> list[str]:
    (route,) = parse(HEAD + text).definitions
    assert isinstance(route, RouteNode)
    return [short(node) for node in route.body]


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("", []),
        (" \r\n\t// only\n-- comments\n/* here */ ", []),
        ("ADD REST_API_CONFIG WITH A 1", ["BLOCK REST_API_CONFIG", "WITH A 1"]),
        ("add event E\twith A 'x'", ["BLOCK EVENT E", "WITH A 'x'"]),
        ("ADD EVENT E WITH HEADERS ADD A/**/a/b//\n", ["BLOCK EVENT E", "WITH HEADERS", "ADD A a/b"]),
        ("WITH HEADERS ADD A a ? ADD B b ADD EVENT C", ["WITH HEADERS", "ADD A a", "? ?", "ADD B b", "BLOCK EVENT C"]),
        ('ADD X WITH A "a"+\'b\' /* c */ + GET  ENV "X"', ["ADD X", "WITH A \"a\" 'b' ENV \"X\""]),
        ("ADD X WITH METHOD GET WITH B get secret x", ["ADD X", "WITH METHOD GET", "WITH B SECRET x"]),
        ("ADD X WITH A 'WITH B' oops WITH C d", ["ADD X", "WITH A 'WITH B'", "? oops", "WITH C d"]),
        ("ADD With-Care 1 ADD ADDRESS 2", ["ADD With-Care 1", "ADD ADDRESS 2"]),
        ("WITH", ["? WITH"]),
        ('WITH "A" "b"', ['WITH "A" "b"']),
        ("WITH A + b", ["? WITH A + b"]),
        ("WITH A b +", ["? WITH A b +"]),
        ("x 'ADD y' // ADD z\nADD B", ["? x 'ADD y' // ADD z", "ADD B"]),
        ("ADD X WITH A 'b\nWITH C 'd'", ["ADD X", "WITH A 'b'", "WITH C 'd'"]),
        ("ADD X WITH A 'b\nc'", ["ADD X", "WITH A 'b\nc'"]),
        ("ADD X WITH A b /* c\nWITH D e", ["ADD X", "WITH A b", "/*", "WITH D e"]),
    ],
)  # fmt: skip
def test_text_is_read_as_blocks_and_settings(text: str, nodes: list[str]) -> None:
    assert body(text) == nodes


def pieces_of(node: object) -> Iterator[Piece]:
    """Find every piece below a node."""
    if isinstance(node, Piece):
        yield node
    elif isinstance(node, tuple):
        for item in node:
            yield from pieces_of(item)
    elif is_dataclass(node):
        for field in fields(node):
            yield from pieces_of(getattr(node, field.name))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_piece_has_the_offset_of_its_text(path: object) -> None:
    for source in read([str(path)]):
        for piece in pieces_of(parse(source.text).definitions):
            if piece.source:
                assert source.text[piece.offset :].upper().startswith("GET")
            elif piece.open_at is not None:
                assert source.text.startswith(piece.text[:-1].rstrip(), piece.open_at)
            elif piece.text not in ("EVENT", "REST_API_CONFIG", "ROUTE_CONFIG", "MQTT_CONFIG"):
                assert source.text.startswith(piece.text, piece.offset)


def test_no_pattern_of_the_grammar_is_long() -> None:
    patterns = re.findall(r"/(?:[^/\\\n]|\\.)+/", GRAMMAR.read_text(encoding="utf-8"))
    assert len(patterns) > 15
    assert max(map(len, patterns)) <= 120


@pytest.mark.parametrize(
    "text", [pytest.param("DEFINE ROUTE " * 30_000, id="route"), pytest.param(HEAD + "a\nb " * 30_000, id="fault")]
)
def test_60_000_words_that_cannot_be_read_are_one_fault(text: str) -> None:
    (found,) = parse_text(text).faults
    assert len(found.message) + len(found.hint or "") < 200


def test_headers_without_a_line_are_text_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqtt_rest_bridge.lot.grammar.parsing.MOST_UNREADABLE", 50)
    found = parse_text(HEAD + "ADD EVENT E " + "WITH HEADERS\n" * 52).faults
    assert "too much of this text cannot be read" in found[-1].message


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\nb\0", "a\\nb\\x00"), ("x" * 60, "x" * 60), ("x" * 61, "x" * 57 + "..."), ("é🌍", "é🌍"), ("", "")],
)
def test_text_in_a_message_is_short_and_visible(text: str, shown: str) -> None:
    assert on_one_line(text) == shown


def test_the_parser_is_the_one_of_the_grammar() -> None:
    assert PARSER.read_text(encoding="utf-8") == generated(), "run python -m tests.lot.generated_parser"


@pytest.mark.parametrize("dumped", [b"", b"damaged", pickle.dumps((b"the grammar of another version", {}, {}))])
def test_a_text_is_parsed_whatever_another_version_has_left(dumped: bytes) -> None:
    (definition,) = ParsedTexts(dumped).parse(HEAD).definitions
    assert definition.name == "R"

"""The grammar: which text becomes which node, as `route.tatsu` describes it."""

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from amqtt_rest_bridge.errors import on_one_line
from amqtt_rest_bridge.language.definitions import ParsedTexts
from amqtt_rest_bridge.language.grammar import parse
from amqtt_rest_bridge.language.nodes import BlockNode, HeadersNode, Junk, OpenComment, Piece, RouteNode, SettingNode
from amqtt_rest_bridge.language.sources import SUFFIXES, read

from .language_support import CASES

FILES = sorted(path for kind in ("valid", "invalid") for path in (CASES / kind).iterdir() if path.suffix in SUFFIXES)
GRAMMAR = Path(__file__).parents[2] / "amqtt_rest_bridge" / "language" / "route.tatsu"
README = GRAMMAR.parents[1] / "README.md"
HEAD = "DEFINE ROUTE R WITH TYPE REST_API "


def short(node: object) -> object:
    """Write a node as lists of texts."""
    match node:
        case Piece():
            return f"{node.source} {node.text}".strip()
        case SettingNode():
            return [short(node.name), *map(short, node.pieces)]
        case BlockNode():
            return {" ".join([node.name.text, *(piece.text for piece in node.pieces)]): [*map(short, node.lines)]}
        case HeadersNode():
            return {"HEADERS": [*map(short, node.lines)]}
        case Junk():
            return f"? {node.text}"
        case OpenComment():
            return "/*"
    raise TypeError(node)


def body(text: str) -> list[object]:
    (route,) = parse(HEAD + text).definitions
    assert isinstance(route, RouteNode)
    return [short(node) for node in route.body]


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("", []),
        (" \r\n\t// only\n-- comments\n/* here */ ", []),
        ("ADD REST_API_CONFIG WITH A 1", [{"REST_API_CONFIG": [["A", "1"]]}]),
        ("add event E\twith A 'x'", [{"EVENT E": [["A", "'x'"]]}]),
        ("ADD EVENT E WITH HEADERS ADD A/**/a/b//\nWITH B c", [{"EVENT E": [{"HEADERS": [["A", "a/b"]]}, ["B", "c"]]}]),
        ('ADD X WITH A "a"+\'b\' /* c */ + GET  ENV "X"', [{"X": [["A", '"a"', "'b'", 'ENV "X"']]}]),
        ("ADD X WITH METHOD GET WITH B get secret x", [{"X": [["METHOD", "GET"], ["B", "SECRET x"]]}]),
        ("ADD X WITH A 'WITH B' oops WITH C d", [{"X": [["A", "'WITH B'"], "? oops", ["C", "d"]]}]),
        ("ADD With-Care 1 ADD ADDRESS 2", [{"With-Care 1": []}, {"ADDRESS 2": []}]),
        ("WITH", ["? WITH"]),
        ('WITH "A" "b"', [['"A"', '"b"']]),
        ("WITH A + b", ["? WITH A + b"]),
        ("WITH A b +", ["? WITH A b +"]),
        ("x 'ADD y' // ADD z\nADD B", ["? x 'ADD y' // ADD z", {"B": []}]),
        ("ADD X WITH A 'b\nWITH C 'd'", [{"X": [["A", "'b'"], ["C", "'d'"]]}]),
        ("ADD X WITH A 'b\nc'", [{"X": [["A", "'b\nc'"]]}]),
        ("ADD X WITH A b /* c\nWITH D e", [{"X": [["A", "b"], "/*", ["D", "e"]]}]),
    ],
)  # fmt: skip
def test_text_is_read_as_blocks_and_settings(text: str, nodes: list[object]) -> None:
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


def test_the_readme_quotes_the_grammar() -> None:
    grammar = GRAMMAR.read_text(encoding="utf-8")
    quoted = re.findall(r"```tatsu\n(.*?)\n```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert "\n\n".join(quoted) == grammar[grammar.index("# Definitions.") : grammar.index("# The tokens of")].strip()


def test_no_pattern_of_the_grammar_is_long() -> None:
    patterns = re.findall(r"/(?:[^/\\\n]|\\.)+/", GRAMMAR.read_text(encoding="utf-8"))
    assert len(patterns) > 15
    assert max(map(len, patterns)) <= 120


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\nb\0", "a\\nb\\x00"), ("x" * 60, "x" * 60), ("x" * 61, "x" * 57 + "..."), ("é🌍", "é🌍"), ("", "")],
)
def test_text_in_a_message_is_short_and_visible(text: str, shown: str) -> None:
    assert on_one_line(text) == shown


ROUTE = "DEFINE ROUTE {} WITH TYPE REST_API ADD EVENT E WITH METHOD GET"
LATER_PROCESS = f"""
import sys, tatsu
compile = tatsu.compile
tatsu.compile = lambda *arguments, **options: print("compiled", end=" ") or compile(*arguments, **options)
from amqtt_rest_bridge.language.definitions import ParsedTexts
print(ParsedTexts(sys.stdin.buffer.read()).parse({ROUTE.format("Changed")!r}).definitions[0].name)
"""


def later_process(cache: Path, dumped: bytes = b"", **environment: str) -> str:
    """Parse a text in another process and its folder of compiled files; "compiled" before its name: the grammar was."""
    cached = {**os.environ, "PYTHONPYCACHEPREFIX": str(cache), "PYTHONDONTWRITEBYTECODE": "", **environment}
    command = [sys.executable, "-c", LATER_PROCESS]
    return subprocess.run(command, input=dumped, env=cached, stdout=subprocess.PIPE, check=True).stdout.decode()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = tmp_path_factory.mktemp("cache")
    assert later_process(cache) == "compiled Changed\n"
    return cache


@pytest.fixture
def grammar(compiled: Path) -> Path:
    """The file of the compiled grammar, as a start has written it."""
    (file,) = compiled.rglob("*.pickle")
    return file


def test_a_later_process_parses_a_changed_text_without_compiling_the_grammar(compiled: Path, grammar: Path) -> None:
    parsed = ParsedTexts()
    parsed.parse(ROUTE.format("First"))
    grammar.unlink()
    assert later_process(compiled, parsed.dump()) == "Changed\n"
    assert later_process(compiled, PYTHONDONTWRITEBYTECODE="1") == "compiled Changed\n"
    assert not grammar.exists()  # as with compiled modules
    assert later_process(compiled) == "compiled Changed\n"


def test_a_later_start_loads_the_grammar_from_beside_the_compiled_modules(compiled: Path, grammar: Path) -> None:
    assert later_process(compiled) == "Changed\n"
    grammar.write_bytes(grammar.read_bytes()[:-1])
    assert later_process(compiled) == "compiled Changed\n"
    assert later_process(compiled) == "Changed\n"
    assert [path for path in grammar.parent.iterdir() if path.suffix != ".pyc"] == [grammar]


@pytest.mark.parametrize("writable", ["file", "folder"])
def test_a_compiled_grammar_that_every_user_can_write_is_not_loaded(
    compiled: Path, grammar: Path, writable: str
) -> None:
    path = grammar if writable == "file" else grammar.parent
    mode = path.stat().st_mode
    path.chmod(0o777)
    assert later_process(compiled) == "compiled Changed\n"
    path.chmod(mode)
    assert later_process(compiled) == "Changed\n"


@pytest.mark.parametrize("dumped", [b"", b"damaged", pickle.dumps((b"the grammar of another version", {}))])
def test_a_text_is_parsed_whatever_another_version_has_left(dumped: bytes) -> None:
    (definition,) = ParsedTexts(dumped).parse(ROUTE.format("R")).definitions
    assert definition.name == "R"

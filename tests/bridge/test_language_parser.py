import pytest

from amqtt_rest_bridge.errors import on_one_line
from amqtt_rest_bridge.language.definitions import split
from amqtt_rest_bridge.language.parser import Statement, Verb, parse
from amqtt_rest_bridge.language.report import Report
from amqtt_rest_bridge.language.sources import SUFFIXES, read

from .language_support import CASES

FILES = sorted(path for kind in ("valid", "invalid") for path in (CASES / kind).iterdir() if path.suffix in SUFFIXES)


def short(statement: Statement) -> tuple[str, str, list[str]]:
    return statement.verb, statement.name.text, [piece.text for piece in statement.pieces]


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("", []),
        (" \r\n\t// only\n-- comments\n/* here */ ", []),
        ("WITH A 1", [("WITH", "A", ["1"])]),
        ("with A\t'x' AdD B", [("WITH", "A", ["'x'"]), ("ADD", "B", [])]),
        ("ADD X-A/**/a/b+c//d\nWITH B", [("ADD", "X-A", ["a/b+c"]), ("WITH", "B", [])]),
        ('WITH A "a"+\'b\' /* c */ + GET  ENV "X"', [("WITH", "A", ['"a"', "'b'", 'GET  ENV "X"'])]),
        ("WITH METHOD GET WITH B get secret x", [("WITH", "METHOD", ["GET"]), ("WITH", "B", ["get secret x"])]),
        ("WITH A 'WITH B' oops WITH C d", [("WITH", "A", ["'WITH B'"]), ("", "oops", []), ("WITH", "C", ["d"])]),
        ("ADD With-Care 1 ADD ADDRESS 2", [("ADD", "With-Care", ["1"]), ("ADD", "ADDRESS", ["2"])]),
        ("WITH", [("", "WITH", [])]),
        ('WITH "A" "b"', [("WITH", '"A"', ['"b"'])]),
        ("WITH A + b", [("", "WITH A + b", [])]),
        ("WITH A b +", [("", "WITH A b +", [])]),
        ("x 'ADD y' // ADD z\nADD B", [("", "x 'ADD y' // ADD z", []), ("ADD", "B", [])]),
    ],
)
def test_body_is_split_into_statements(text: str, statements: list[tuple[str, str, list[str]]]) -> None:
    assert [short(statement) for statement in parse(text, 0)] == statements


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_piece_stands_where_it_says(path: object) -> None:
    for source in read([str(path)]):
        for definition in split(source.text, Report(source.path, source.text)):
            for statement in parse(definition.body, 0):
                for piece in (statement.name, *statement.pieces):
                    assert definition.body.startswith(piece.text, piece.offset)
                assert statement.offset <= statement.name.offset
                assert statement.verb in Verb


def test_base_is_added_to_every_offset() -> None:
    (statement,) = parse(" WITH A b", 100)
    assert (statement.offset, statement.name.offset, statement.pieces[0].offset) == (101, 106, 108)


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\nb\0", "a\\nb\\x00"), ("x" * 60, "x" * 60), ("x" * 61, "x" * 57 + "..."), ("é🌍", "é🌍"), ("", "")],
)
def test_text_in_a_message_is_short_and_visible(text: str, shown: str) -> None:
    assert on_one_line(text) == shown

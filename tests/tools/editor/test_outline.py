"""Routes, events and topics of texts, as an editor lists and follows them."""

import pytest
from lsprotocol import types

from amqtt_rest_bridge.lot.evaluation import Environment
from amqtt_rest_bridge.tools.editor.assist import lenses, other_ends, symbols
from amqtt_rest_bridge.tools.editor.project import Project
from tests.support.route_text import BASIC, CASES

CHAIN = """\
DEFINE ROUTE First WITH TYPE REST_API
    ADD REST_API_CONFIG
        WITH ENABLE_CLIENT "true"
    ADD EVENT Ask
        WITH SOURCE_TOPIC "plant/+/alert"
        WITH METHOD "POST"
        WITH ENDPOINT "/x"
        WITH DESTINATION_TOPIC "tickets/{topic.2}/opened"
        WITH ERROR_TOPIC "failed"
"""
SERVER = """\
DEFINE ROUTE Second WITH TYPE REST_API
    ADD REST_API_CONFIG
        WITH ENABLE_SERVER "true"
    ADD EVENT Alert
        WITH METHOD "post"
        WITH ENDPOINT "/machines/{id}/alert"
        WITH DESTINATION_TOPIC "plant/{path.id}/alert"
        WITH REPLY_TOPIC "tickets/{path.id}/opened"
    ADD EVENT Watch
        WITH SOURCE_TOPIC "failed" + ""
    ADD EVENT Hidden
        WITH SOURCE_TOPIC GET ENV "TOPIC"
"""


def project(**texts: str) -> Project:
    found = Project(Environment({}, CASES))
    for name, text in texts.items():
        found.put(f"/{name}.lot", text)
    return found


OUTLINE = types.DocumentSymbolParams(types.TextDocumentIdentifier("file:///a.lot"))
LENSES = types.CodeLensParams(types.TextDocumentIdentifier("file:///a.lot"))


def text_of(found: Project, path: str, place: types.Range) -> str:
    file = found.files[path]
    start, end = (file.lines.offset(one.line, one.character) for one in (place.start, place.end))
    return file.text[start:end]


def ends(found: Project, path: str, word: str) -> list[tuple[str, str]]:
    offset = found.files[path].text.index(word)
    return [(end.path, text_of(found, end.path, end.range)) for end in other_ends(found, path, offset)]


def test_a_topic_leads_to_its_other_ends_in_all_files() -> None:
    found = project(first=CHAIN, second="// c\n" + SERVER)
    assert ends(found, "/first.lot", "tickets/") == [("/second.lot", '"tickets/{path.id}/opened"')]
    assert ends(found, "/first.lot", "failed") == [("/second.lot", '"failed" + ""')]
    assert ends(found, "/second.lot", '"failed') == [("/first.lot", '"failed"')]
    assert ends(found, "/first.lot", "plant/") == [("/second.lot", '"plant/{path.id}/alert"')]
    assert ends(found, "/second.lot", "tickets/") == [("/first.lot", '"tickets/{topic.2}/opened"')]
    assert ends(found, "/first.lot", "POST") == []
    assert ends(found, "/second.lot", 'TOPIC"') == []


def test_routes_and_events_are_symbols_also_where_a_route_has_faults() -> None:
    text = CHAIN.replace("METHOD", "METOD") + SERVER
    files = project(a=text)
    found = symbols(files.files["/a.lot"], OUTLINE)
    assert [(route.name, [block.name for block in route.children or ()]) for route in found] == [
        ("First", ["REST_API_CONFIG", "Ask"]),
        ("Second", ["REST_API_CONFIG", "Alert", "Watch", "Hidden"]),
    ]
    second = found[1]
    assert text_of(files, "/a.lot", second.range) == SERVER.rstrip()
    assert text_of(files, "/a.lot", second.selection_range) == SERVER.partition("\n")[0]


def test_a_route_without_blocks_is_a_symbol_too_also_among_many_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("lot.grammar.parsing", "tools.editor.project"):
        monkeypatch.setattr(f"amqtt_rest_bridge.{module}.MOST_UNREADABLE", 50)
    (route,) = symbols(project(a="DEFINE ROUTE First WITH TYPE REST_API\n").files["/a.lot"], OUTLINE)
    assert (route.name, route.children) == ("First", [])
    many = project(a="DEFINE ROUTE x\n" * 51)
    routes = symbols(many.files["/a.lot"], OUTLINE)
    assert {text_of(many, "/a.lot", route.range).strip() for route in routes} == {"DEFINE ROUTE x"}


def test_events_can_be_tried() -> None:
    found = lenses(project(a=CHAIN + SERVER).files["/a.lot"], LENSES)
    assert [one.command and one.command.arguments for one in found] == [
        ["file:///a.lot", {"topic": "plant/x/alert"}],
        ["file:///a.lot", {"request": "POST /machines/x/alert"}],
        ["file:///a.lot", {"topic": "failed"}],
    ]
    assert lenses(project(a=BASIC.replace("EVENT E", "EVENT")).files["/a.lot"], LENSES) == []

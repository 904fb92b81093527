"""What an editor shows of a text: completion and hover, routes and events, the other ends of topics."""

import pytest
from lsprotocol import types

from amqtt_rest_bridge.lot.evaluation import Environment
from amqtt_rest_bridge.lot.placeholders.kinds import PLACEHOLDERS
from amqtt_rest_bridge.lot.settings_table import PARAMETERS, BlockKind
from amqtt_rest_bridge.tools.editor.assist import completion, hover, lenses, opposite_uses, symbols
from amqtt_rest_bridge.tools.editor.project import Project, RouteText
from tests.support.route_text import BASIC, CASES

ROUTE = "DEFINE ROUTE R WITH TYPE REST_API\n    ADD {}\n        "
URI = types.TextDocumentIdentifier("file:///a.lot")


def project(**texts: str) -> Project:
    found = Project(Environment({}, CASES))
    for name, text in texts.items():
        found.put(f"/{name}.lot", text)
    return found


def at(text: str, mark: str = "|") -> tuple[RouteText, types.Position]:
    """Return the text and the place of the last mark in it, which is taken out."""
    before, _, after = text.rpartition(mark)
    file = project(a=before + after).files["/a.lot"]
    return file, types.Position(*file.lines.place(len(before)))


def suggested(text: str) -> list[types.CompletionItem]:
    file, place = at(text)
    return completion(file, types.CompletionParams(URI, place))


def described(text: str, mark: str = "|") -> str:
    """Return what is said of the place of the mark, "" where nothing is."""
    file, place = at(text, mark)
    found = hover(file, types.HoverParams(URI, place))
    return found.contents.value if found is not None and isinstance(found.contents, types.MarkupContent) else ""


@pytest.mark.parametrize("kind", BlockKind)
def test_every_setting_of_a_block_is_completed_and_explained(kind: BlockKind) -> None:
    block = ROUTE.format(f"{kind} E" if kind is BlockKind.EVENT else kind)
    names = {item.label: item for item in suggested(f"{block}WITH |")}
    assert set(names) == set(PARAMETERS[kind])
    for name, parameter in PARAMETERS[kind].items():
        typed = suggested(f"{block}with {name[:3].lower()}|")
        (edit,) = [one.text_edit for one in typed if one.label == name]
        assert isinstance(edit, types.TextEdit)
        assert edit.range.end.character - edit.range.start.character == 3
        meaning = described(f"{block}WITH {name[:2]}|{name[2:]} {parameter.example}")
        assert isinstance(documentation := names[name].documentation, types.MarkupContent)
        assert meaning == documentation.value
        assert parameter.meaning in meaning
        assert parameter.example in meaning


def test_a_setting_that_is_there_is_not_suggested_again() -> None:
    names = [one.label for one in suggested(BASIC + "        WITH |")]
    assert "BODY" in names
    assert "METHOD" not in names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ADD EVENT E WITH METHOD |", ["GET", "POST", "PUT", "DELETE", "PATCH"]),
        ('ADD EVENT E WITH METHOD "P|', ["GET", "POST", "PUT", "DELETE", "PATCH"]),
        ("ADD REST_API_CONFIG WITH ENABLE_CLIENT '|", ["true", "false"]),
        ("ADD REST_API_CONFIG WITH RETRIES '|", []),
        ("ADD R|", ["REST_API_CONFIG", "ROUTE_CONFIG", "EVENT", "MQTT_CONFIG"]),
        ("ADD EVENT E WITH BODY GET |", ["ENV", "SECRET"]),
        ("W|", ["DEFINE ROUTE", "ADD", "WITH"]),
        ('ADD EVENT E WITH BODY "text |', []),
    ],
)
def test_what_is_suggested_in_a_route(text: str, expected: list[str]) -> None:
    assert [one.label for one in suggested(f"DEFINE ROUTE R WITH TYPE REST_API\n  {text}")] == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("DEFINE |", "ROUTE"), ("DEFINE ROUTE R |", "WITH TYPE REST_API"), ("|", "DEFINE ROUTE")]
)
def test_what_is_suggested_before_a_route(text: str, expected: str) -> None:
    assert suggested(text)[0].label == expected


def test_placeholders_are_those_of_their_setting() -> None:
    event = ROUTE.format("EVENT E")
    client = {one.label for one in suggested(event + 'WITH SOURCE_TOPIC "a" WITH BODY \'{"a": {val|')}
    assert {"value.json", "topic.N", "secret.X"} <= client
    assert not {"query.x", "response.status"} & client
    assert "response.status" in {one.label for one in suggested(event + 'WITH SOURCE_TOPIC "a" WITH PAYLOAD "{|')}


@pytest.mark.parametrize("written", [written for kind in PLACEHOLDERS for written in kind.written])
def test_every_placeholder_is_explained(written: str) -> None:
    name = written.replace("N", "1")
    meaning = described(f"{BASIC}        WITH BODY 'x {name[:2]}\x00{name[2:]}'", "\x00")
    assert any(kind.meaning in meaning for kind in PLACEHOLDERS if written in kind.written)


def test_blocks_are_explained_and_other_words_are_not() -> None:
    assert described(ROUTE.format("EV|ENT E")).startswith("`EVENT`: ")
    assert described(ROUTE.format("EVENT METH|OD")) == ""
    assert described("|") == ""


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


OUTLINE = types.DocumentSymbolParams(URI)
LENSES = types.CodeLensParams(URI)


def text_of(found: Project, path: str, place: types.Range) -> str:
    file = found.files[path]
    start, end = (file.lines.offset(one.line, one.character) for one in (place.start, place.end))
    return file.text[start:end]


def ends(found: Project, path: str, word: str) -> list[tuple[str, str]]:
    offset = found.files[path].text.index(word)
    return [(end.path, text_of(found, end.path, end.range)) for end in opposite_uses(found, path, offset)]


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

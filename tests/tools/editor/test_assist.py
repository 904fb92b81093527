"""Completion and hover: every setting, every placeholder, wherever they may be written."""

import pytest
from lsprotocol import types

from amqtt_rest_bridge.lot.evaluation import Environment
from amqtt_rest_bridge.lot.parameters import PARAMETERS, BlockKind
from amqtt_rest_bridge.lot.placeholders.kinds import PLACEHOLDERS
from amqtt_rest_bridge.tools.editor.assist import completion, hover
from amqtt_rest_bridge.tools.editor.project import Project, RouteText
from tests.support.route_text import BASIC, CASES

ROUTE = "DEFINE ROUTE R WITH TYPE REST_API\n    ADD {}\n        "


URI = types.TextDocumentIdentifier("file:///a.lot")


def at(text: str, mark: str = "|") -> tuple[RouteText, types.Position]:
    """Return the text and the place of the last mark in it, which is taken out."""
    before, _, after = text.rpartition(mark)
    project = Project(Environment({}, CASES))
    project.put("/a.lot", before + after)
    file = project.files["/a.lot"]
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

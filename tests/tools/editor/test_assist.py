"""Completion and hover: every setting, every placeholder, wherever they may be written."""

import pytest

from amqtt_rest_bridge.lot.evaluation import Environment
from amqtt_rest_bridge.lot.parameters import PARAMETERS, BlockKind
from amqtt_rest_bridge.lot.placeholders.kinds import PLACEHOLDERS
from amqtt_rest_bridge.tools.editor.assist import Suggestion, complete, describe
from amqtt_rest_bridge.tools.editor.project import Part, Project
from tests.support.route_text import BASIC, CASES

ROUTE = "DEFINE ROUTE R WITH TYPE REST_API\n    ADD {}\n        "


def at(text: str, mark: str = "|") -> tuple[Part, int]:
    """Return the part and the offset of the last mark in a text, which is taken out."""
    before, _, after = text.rpartition(mark)
    project = Project(Environment({}, CASES))
    project.put("/a.lot", before + after)
    found = project.files["/a.lot"].part_at(len(before))
    assert found is not None
    return found


def suggested(text: str) -> list[Suggestion]:
    return complete(*at(text))


@pytest.mark.parametrize("kind", BlockKind)
def test_every_setting_of_a_block_is_completed_and_explained(kind: BlockKind) -> None:
    block = ROUTE.format(f"{kind} E" if kind is BlockKind.EVENT else kind)
    names = {suggestion.text: suggestion for suggestion in suggested(f"{block}WITH |")}
    assert set(names) == set(PARAMETERS[kind])
    for name, parameter in PARAMETERS[kind].items():
        typed = suggested(f"{block}with {name[:3].lower()}|")
        assert [one.length for one in typed if one.text == name] == [3]
        described = describe(*at(f"{block}WITH {name[:2]}|{name[2:]} {parameter.example}"))
        assert described is not None
        assert described[0] == names[name].meaning
        assert parameter.meaning in described[0]
        assert parameter.example in described[0]


def test_a_setting_that_is_there_is_not_suggested_again() -> None:
    names = [one.text for one in suggested(BASIC + "        WITH |")]
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
    assert [one.text for one in suggested(f"DEFINE ROUTE R WITH TYPE REST_API\n  {text}")] == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("DEFINE |", "ROUTE"), ("DEFINE ROUTE R |", "WITH TYPE REST_API"), ("|", "DEFINE ROUTE")]
)
def test_what_is_suggested_before_a_route(text: str, expected: str) -> None:
    assert suggested(text)[0].text == expected


def test_placeholders_are_those_of_their_setting() -> None:
    event = ROUTE.format("EVENT E")
    client = {one.text for one in suggested(event + 'WITH SOURCE_TOPIC "a" WITH BODY \'{"a": {val|')}
    assert {"value.json", "topic.N", "secret.X"} <= client
    assert not {"query.x", "response.status"} & client
    assert "response.status" in {one.text for one in suggested(event + 'WITH SOURCE_TOPIC "a" WITH PAYLOAD "{|')}


@pytest.mark.parametrize("written", [written for kind in PLACEHOLDERS for written in kind.written])
def test_every_placeholder_is_explained(written: str) -> None:
    name = written.replace("N", "1")
    described = describe(*at(f"{BASIC}        WITH BODY 'x {name[:2]}\x00{name[2:]}'", "\x00"))
    assert described is not None
    assert any(kind.meaning in described[0] for kind in PLACEHOLDERS if written in kind.written)


def test_blocks_are_explained_and_other_words_are_not() -> None:
    described = describe(*at(ROUTE.format("EV|ENT E")))
    assert described is not None
    assert described[0].startswith("`EVENT`: ")
    assert describe(*at(ROUTE.format("EVENT METH|OD"))) is None
    assert describe(*at("|")) is None

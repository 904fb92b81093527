import json
import pickle

import pytest

from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.lot.placeholders.kinds import PLACEHOLDERS, Mode, Placeholder, Suspect, recognise, suspects
from amqtt_rest_bridge.lot.placeholders.text import (
    Fixed,
    LoneBackslashError,
    Place,
    PlaceholderText,
    Values,
    parse,
    place_of,
    placeholders_at_load,
)
from tests.support.placeholder_values import message


@pytest.mark.parametrize(
    "text",
    ["", "no braces", "{}", "{ payload }", "{Payload}", "{payload.x}", "{topic.0}", "{topic.x}", "{value.json.}",
     "{body}", '{"payload"}', "{pay\nload}", "{payload", "payload}", "{timestamp.iso}", "{query.x}"],
)  # fmt: skip
def test_other_braces_are_text(text: str) -> None:
    parsed = parse(text, Place.TEXT, Mode.CLIENT)
    assert parsed.is_constant
    assert parsed.names == ()
    assert parsed.fill(message()) == text


def test_names_are_those_in_the_text() -> None:
    parsed = parse("{{payload}} {topic.2}{value.json.a b}", Place.TEXT, Mode.CLIENT)
    assert parsed.names == ("payload", "topic.2", "value.json.a b")
    assert not parsed.is_constant
    assert not parse("{payload}", Place.TEXT, Mode.CLIENT).is_constant


def test_parsed_text_is_a_value() -> None:
    one, same, other = (parse(text, Place.ENDPOINT, Mode.CLIENT) for text in ("/{topic}", "/{topic}", "/{payload}"))
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert pickle.loads(pickle.dumps(one)) == one


def test_fixed_text_is_never_expanded_and_never_shown() -> None:
    secret = Fixed('{payload}"', "{secret.x}")
    parsed = parse(['{"a": "', secret, '", "b": "{topic.1}"}'], Place.TEXT, Mode.CLIENT)
    assert parsed.fill(message()) == '{"a": "{payload}"", "b": "plant"}'
    assert "payload" not in repr(parsed)
    assert repr(secret) == "Fixed(label='{secret.x}', needs_escape=False)"
    assert parsed.source == '{"a": "{secret.x}", "b": "{topic.1}"}'


@pytest.mark.parametrize(
    ("place", "filled"),
    [
        (Place.ENDPOINT, "=a%22%20b%2Fc"),
        (Place.HEADER, '=a" b/c'),
        (Place.JSON, '="a\\" b/c"'),
        (Place.FORM, "=a%22%20b%2Fc"),
        (Place.TEXT, '=a" b/c'),
    ],
)
def test_fixed_text_may_be_escaped_for_its_place(place: Place, filled: str) -> None:
    assert parse(["=", Fixed('a" b/c', "{env.X}", needs_escape=True)], place, Mode.CLIENT).fill(message()) == filled


def test_fixed_text_is_escaped_inside_a_json_string_and_does_not_end_it() -> None:
    parsed = parse(['["', Fixed('"', "{env.X}", needs_escape=True), '", {topic.1}]'], Place.JSON, Mode.CLIENT)
    assert parsed.fill(message()) == '["\\"", "plant"]'


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(['{"a": "C:\\{payload}"}'], id="placeholder"),
        pytest.param(['{"a": "C:\\\\\\{payload}"}'], id="three"),
        pytest.param(['{"a": "C:\\', '{payload}"}'], id="joined"),
        pytest.param(['{"a": "{payload}\\{payload}"}'], id="behind_a_value"),
        pytest.param(['{"a": "', Fixed("\\", "GET"), '{payload}"}'], id="literal_from_outside"),
        pytest.param(['{"a": "C:\\', Fixed("x", "{payload}", needs_escape=True), '"}'], id="value_from_outside"),
    ],
)
def test_backslash_that_would_take_the_escape_of_a_value_is_refused(parts: list[str | Fixed]) -> None:
    with pytest.raises(LoneBackslashError, match=r"^has a single \\ before \{payload\}: "):
        parse(parts, Place.JSON, Mode.CLIENT)


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(['{"a": "C:\\\\{payload}"}'], id="doubled"),
        pytest.param(['{"a": "C:\\', '\\{payload}"}'], id="doubled_and_joined"),
        pytest.param(['{"a": "C:\\', '"{payload}"}'], id="quote_behind_the_joint"),
        pytest.param(['{"a": "', Fixed("\\", "{env.X}", needs_escape=True), '{payload}"}'], id="escaped_from_outside"),
    ],
)
def test_value_behind_backslashes_stays_inside_its_string(parts: list[str | Fixed]) -> None:
    filled = parse(parts, Place.JSON, Mode.CLIENT).fill(message(b'", "admin": "\\'))
    assert list(json.loads(filled)) == ["a"]


def test_backslash_outside_of_json_strings_is_text() -> None:
    assert parse("\\{payload}", Place.JSON, Mode.CLIENT).fill(message(b"x")) == "\\x"
    assert parse('"\\{payload}"', Place.TEXT, Mode.CLIENT).fill(message(b"x")) == '"\\x"'


def test_fixed_text_that_its_place_does_not_allow_is_refused_at_once() -> None:
    with pytest.raises(CallError) as raised:
        parse([Fixed("a/b", "{env.X}", needs_escape=True)], Place.TOPIC, Mode.CLIENT)
    assert raised.value.message.startswith("the value of {env.X} ")


@pytest.mark.parametrize(
    ("content_type", "place"),
    [
        ("application/json", Place.JSON),
        ("Application/JSON; charset=utf-8", Place.JSON),
        ("application/vnd.api+json", Place.JSON),
        ("text/json", Place.JSON),
        ("TEXT/JSON;charset=iso-8859-1", Place.JSON),
        ("application/x-ndjson", Place.JSON),
        (" Application/X-NDJSON ; x=y", Place.JSON),
        ("image/svg+JSON", Place.JSON),
        ("text/plain; as=application/json", Place.TEXT),
        ("application/x-www-form-urlencoded", Place.FORM),
        ("text/plain", Place.TEXT),
        ("application/jsonlines", Place.TEXT),
        ("", Place.TEXT),
    ],
)
def test_content_type_decides_how_a_body_is_escaped(content_type: str, place: Place) -> None:
    assert place_of(content_type) is place


def test_every_documented_placeholder_is_recognised_in_its_modes_only() -> None:
    for kind in PLACEHOLDERS:
        for written in kind.written:
            name = written.strip("{}").replace(".N", ".1")
            for mode in Mode:
                found = recognise(name, mode)
                assert (found is not None and found.root == kind.root) == (mode in kind.modes), (written, mode)


def test_constants_are_found_with_their_place() -> None:
    assert list(placeholders_at_load("a{env.X}{secret.y-z|d}{payload}{env.}{env.a b}")) == [
        (1, 8, Placeholder("env.X", "env", "X")),
        (8, 22, Placeholder("secret.y-z", "secret", "y-z", default="d")),
    ]


def test_suspects_are_words_in_braces_that_are_not_a_placeholder() -> None:
    text = "{payload}{ paylod }{a b}{x.y}{1}{}${a}{{payload}}{topic[1]}{{value}"
    assert list(suspects(text, Mode.CLIENT)) == [
        Suspect(9, "{ paylod }", " paylod "),
        Suspect(24, "{x.y}", "x.y"),
        Suspect(34, "${a}", "a"),
        Suspect(38, "{{payload}}", "payload"),
        Suspect(49, "{topic[1]}", "topic[1]"),
    ]


def test_request_and_message_placeholders_need_their_own_values() -> None:
    text: PlaceholderText = parse("{payload}", Place.TEXT, Mode.CLIENT)
    with pytest.raises(NotImplementedError):
        parse("{topic}", Place.TEXT, Mode.CLIENT).fill(Values(b"", 0.0))
    assert text.fill(Values(b"x", 0.0)) == "x"

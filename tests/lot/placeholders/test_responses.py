"""`{response...}` in PAYLOAD and DESTINATION_TOPIC, and `{NAME|TEXT}`."""

import json

import pytest
from hypothesis import example

from amqtt_rest_bridge.lot.placeholders.kinds import Mode
from amqtt_rest_bridge.lot.placeholders.text import Place, ResponseBody, ResultValues, parse
from tests.lot.placeholders.test_properties import JSON_VALUES, TEXTS, TOPICS, fill, for_all, payload_of
from tests.support.placeholder_values import fill as filled


@pytest.mark.parametrize(
    ("text", "place", "expected"),
    [
        pytest.param("<{value.json.missing|a/b ?}>", Place.ENDPOINT, "<a%2Fb%20%3F>", id="percent-encoded"),
        pytest.param('{"a": {value.json.missing|7.50}}', Place.JSON, '{"a": 7.50}', id="as it is outside of strings"),
        pytest.param('{"a": "{value.json.missing|\\x}"}', Place.JSON, '{"a": "\\\\x"}', id="escaped in strings"),
        pytest.param("{value.json.none|no}", Place.TEXT, "no", id="for null"),
        pytest.param("{value.json.yes|no}", Place.TEXT, "true", id="not for a value"),
        pytest.param("{value.json.empty|no}", Place.TEXT, "", id="not for an empty text"),
        pytest.param("[{value.json.missing|}]", Place.TEXT, "[]", id="empty"),
        pytest.param("{topic.9|no}{payload.csv.99|,}", Place.TEXT, "no,", id="of topics and CSV"),
        pytest.param("{value.json.x|{topic}}", Place.TEXT, "{value.json.x|plant/hall 7/temp}", id="no braces"),
        pytest.param("{value.json.missing|a|b}", Place.HEADER, "a|b", id="may hold bars"),
    ],
)
def test_a_default_is_inserted_where_the_value_is_missing_or_null(text: str, place: Place, expected: str) -> None:
    assert filled(text, place) == expected


MAPPED = parse(
    '{"in": "<{response.json.a|}>", "out": {response.json.a|0}, "raw": {response.body}, "text": "{response.body}"}',
    Place.JSON,
    Mode.RESULT,
)
TOPIC = parse("out/{response.json.a|none}/{response.header.x|none}", Place.TOPIC, Mode.RESULT)


def result_of(value: object, header: str = "") -> ResultValues:
    body = payload_of(value)
    return ResultValues(b"", 0.0, topic="in", status=200, headers=(("X", header),), response=ResponseBody(body, 0.0))


@for_all(JSON_VALUES)
@example('"')
@example("\\")
def test_values_of_a_response_never_change_the_shape_of_a_payload(value: object) -> None:
    made = fill(MAPPED, result_of(value))
    if made is None:
        return
    payload = json.loads(made)
    assert list(payload) == ["in", "out", "raw", "text"]
    assert payload["out"] == (0 if value is None else value)
    assert payload["raw"] == json.loads(payload["text"]) == {"a": value}


@for_all(JSON_VALUES, TEXTS)
def test_values_of_a_response_never_add_a_level_or_wildcard(value: object, header: str) -> None:
    made = fill(TOPIC, result_of(value, header))
    assert made is None or (made.count("/") == 2 and not set("+#\0") & set(made))


@for_all(TEXTS.filter(lambda text: not set('{}"') & set(text) and text.isprintable()), TOPICS)
def test_a_default_in_a_string_stays_in_its_string(default: str, _topic: str) -> None:
    text = parse(f'{{"a": "{{value.json.x|{default}}}"}}', Place.JSON, Mode.CLIENT)
    if len(default) < 200:
        assert json.loads(text.fill(result_of(1))) == {"a": default}

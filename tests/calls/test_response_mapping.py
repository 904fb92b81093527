"""PAYLOAD and DESTINATION_TOPIC with `{response...}`, and `{NAME|TEXT}`: from a message to what is published."""

import json

import pytest
from hypothesis import example

from amqtt_rest_bridge.placeholders import Mode, Place, ResponseBody, ResultValues, parse
from tests.placeholders.test_properties import JSON_VALUES, TEXTS, TOPICS, fill, for_all, payload_of
from tests.support.embedded_broker import hosting
from tests.support.http_recorder import Recorder
from tests.support.http_target import Target, answering, reply
from tests.support.placeholder_values import fill as filled


def route(port: int, settings: str) -> str:
    return f"""
        DEFINE ROUTE R WITH TYPE REST_API
            ADD REST_API_CONFIG WITH BASE_ADDRESS "http://127.0.0.1:{port}" WITH ENABLE_CLIENT "true" WITH RETRIES 0
            ADD EVENT E WITH SOURCE_TOPIC "in/+" WITH METHOD "GET" WITH ENDPOINT "/"
                {settings}
    """


def test_one_field_of_the_response_is_published_on_a_topic_that_the_response_names() -> None:
    answer = reply(b'{"price": 17.50, "zone": "DE"}', "200 OK", "X-Id: 7", "x-id: 8")
    settings = """
        WITH DESTINATION_TOPIC "prices/{topic.2}/{response.json.zone}"
        WITH PAYLOAD '{"price": {response.json.price}, "from": "{value.json.name|unknown}", "status": {response.status},
            "id": {response.header.X-Id}, "all": {response.json}, "raw": {response.body}}'
    """
    with Target(answering(answer)) as target, hosting(route(target.port, settings)) as host:
        client = host.client("prices/#")
        client.publish("in/a", b"no JSON")
        topic, payload = client.message()
    assert topic == "prices/a/DE"
    whole = {"price": 17.5, "zone": "DE"}
    expected = {"price": 17.5, "from": "unknown", "status": 200, "id": "7, 8", "all": whole, "raw": whole}
    assert json.loads(payload) == expected
    assert b'"price": 17.50' in payload


def test_the_body_alone_is_published_byte_for_byte(target: Recorder) -> None:
    target.answer = lambda _: (200, b"\x00\xff")
    settings = 'WITH DESTINATION_TOPIC "out/{response.status}" WITH PAYLOAD "{response.body}"'
    with hosting(route(target.port, settings)) as host:
        client = host.client("out/#")
        client.publish("in/a", b"")
        assert client.message() == ("out/200", b"\x00\xff")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        pytest.param(b'{"b": 1}', "the response has no field a", id="no such field"),
        pytest.param(b"<html>", "the response is not JSON", id="not JSON"),
        pytest.param(b"\xff", "the response is not UTF-8 text", id="not text"),
    ],
)
def test_a_value_that_the_response_lacks_is_a_failure_with_its_status_and_the_call_is_not_repeated(
    target: Recorder, body: bytes, reason: str
) -> None:
    target.answer = lambda _: (200, body)
    settings = 'WITH DESTINATION_TOPIC "out" WITH ERROR_TOPIC "wrong" WITH PAYLOAD "{response.json.a}"'
    with hosting(route(target.port, settings)) as host:
        client = host.client("out", "wrong")
        client.publish("in/a", b"")
        topic, payload = client.message()
    failure = json.loads(payload)
    assert (topic, failure["status"], failure["error"]["code"]) == ("wrong", 200, "placeholder_unresolved")
    assert reason in failure["error"]["message"]
    assert "{response.json.a|text}" in failure["error"]["hint"]
    assert target.arrived.qsize() == 1


def test_a_failure_goes_to_the_topic_that_the_response_names_where_there_is_one(target: Recorder) -> None:
    target.answer = lambda _: (404, b'{"zone": "DE"}')
    with hosting(route(target.port, 'WITH DESTINATION_TOPIC "out/{response.json.zone|none}"')) as host:
        client = host.client("out/#")
        client.publish("in/a", b"")
        topic, payload = client.message()
        assert (topic, json.loads(payload)["status"]) == ("out/DE", 404)
        target.close()
        client.publish("in/a", b"")
        topic, payload = client.message(20)
        assert (topic, json.loads(payload)["error"]["code"]) == ("out/none", "connection_failed")


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

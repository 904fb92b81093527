from urllib.parse import unquote

import pytest

from amqtt_rest_bridge.errors import FailureCode
from amqtt_rest_bridge.lot.placeholders.kinds import Mode
from amqtt_rest_bridge.lot.placeholders.text import Place, parse
from tests.support.placeholder_values import failure, fill, message, request


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("/x?q={value.json.text}", "/x?q=a%20%22b%22%2Fc%26d%3De"),
        ("/{topic}/{topic.2}", "/plant/hall%207/temp/hall%207"),
        ("/{source_topic}", "/plant/hall%207/temp"),
        ("/{value.json.e}", "/gr%C3%BC%C3%9F"),
        ("/{value.json.empty}/x", "//x"),
        ("/a%20b/../{value.json.n}", "/a%20b/../21.50"),
        ("/{timestamp.unix}?a=b#c", "/1769860800?a=b#c"),
        ("/x?d={value.json.dots}", "/x?d=.."),
    ],
)
def test_endpoint_is_percent_encoded_and_keeps_its_literal_text(text: str, filled: str) -> None:
    assert fill(text, Place.ENDPOINT) == filled


@pytest.mark.parametrize(
    "text", ["/a/%2e{value}", "/a/%2E{value}/b", "/a/%2e%2E{value}", "/.%2e{value}?x", "/.{value}", "/a/{value}.."]
)
def test_endpoint_whose_dot_segment_is_completed_by_an_empty_value_fails(text: str) -> None:
    assert failure(text, Place.ENDPOINT, message(b"")).code is FailureCode.INVALID_VALUE
    assert fill(text, Place.ENDPOINT, message(b"x")) == text.replace("{value}", "x")


@pytest.mark.parametrize(
    ("text", "payload"),
    [
        pytest.param("/{value.json.dots}/x", b'{"dots": ".."}', id="a segment"),
        pytest.param("{value.json.dots}", b'{"dots": ".."}', id="all of it"),
        pytest.param("/%2e{topic}", b"", id="behind a dot that is encoded"),
        pytest.param("/.{topic}", b"", id="behind a dot"),
        pytest.param("/a/{topic}?x", b"", id="before a query"),
        pytest.param("/a/{value};v=1", b"..", id="before a parameter"),
        pytest.param("/a/{value}", b"..;x", id="with a parameter of its own"),
        pytest.param("/a/%{value}", b"2e", id="the half of a dot"),
        pytest.param("/a/%2{value}", b"E", id="the last digit of a dot"),
        pytest.param("/../{value}/x", b".", id="beside a literal one"),
    ],
)
def test_endpoint_whose_value_makes_what_servers_take_for_a_dot_segment_fails(text: str, payload: bytes) -> None:
    failed = failure(text, Place.ENDPOINT, message(payload, "."))
    assert failed.code is FailureCode.INVALID_VALUE
    assert "path segment" in failed.message


@pytest.mark.parametrize("payload", ["...", ".x", "x..", "a;..", "%2e"])
def test_endpoint_takes_dots_that_are_not_a_segment(payload: str) -> None:
    assert unquote(fill("/a/{value}", Place.ENDPOINT, message(payload.encode()))) == f"/a/{payload}"


def test_header_takes_utf8_and_refuses_controls() -> None:
    assert fill("Bearer {value.json.e}", Place.HEADER) == "Bearer grüß"
    assert failure("{value.json.line}", Place.HEADER).code is FailureCode.INVALID_VALUE
    for control in ("\r", "\n", "\0", "\t", "\x7f", "\x85"):
        assert failure("{payload}", Place.HEADER, message(f"a{control}b".encode())).code is FailureCode.INVALID_VALUE


@pytest.mark.parametrize("payload", ["a/b", "+", "#", "a\0", "a\nb", "\ufdd0", "a\uffff", "\U0001fffe"])
def test_topic_refuses_what_would_change_it(payload: str) -> None:
    assert failure("a/{payload}/b", Place.TOPIC, message(payload.encode())).code is FailureCode.INVALID_VALUE


def test_topic_keeps_the_slashes_of_a_topic() -> None:
    assert fill("{topic}/answer/{topic.1}", Place.TOPIC) == "plant/hall 7/temp/answer/plant"


def test_topic_that_becomes_empty_or_too_long_fails() -> None:
    assert "is empty" in failure("{payload}", Place.TOPIC, message(b"")).message
    assert "bytes long" in failure("{payload}", Place.TOPIC, message(b"x" * 65_536)).message


def test_a_value_never_moves_a_message_among_the_brokers_own_topics() -> None:
    assert "begins with $" in failure("{payload}/x", Place.TOPIC, message(b"$SYS")).message
    assert fill("{topic}/x", Place.TOPIC, message(topic="$SYS/a")) == "$SYS/a/x"
    assert fill("a/{payload}", Place.TOPIC, message(b"$SYS")) == "a/$SYS"


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ('{"a": "{value.json.text}"}', '{"a": "a \\"b\\"/c&d=e"}'),
        ('{"a": {value.json.text}}', '{"a": "a \\"b\\"/c&d=e"}'),
        ('{"a": {value.json.n}, "b": "{value.json.n}"}', '{"a": 21.50, "b": "21.50"}'),
        ("[{value.json.yes}, {value.json.none}, {value.json.list}]", '[true, null, [1,{"x":"y"}]]'),
        ('["{value.json.list}"]', '["[1,{\\"x\\":\\"y\\"}]"]'),
        ("[{topic}, {timestamp}, {timestamp.unix}]", '["plant/hall 7/temp", "2026-01-31T12:00:00.123Z", 1769860800]'),
        ('["\\"{topic.1}\\"", {topic.1}]', '["\\"plant\\"", "plant"]'),
        ('{"a": {}, "b": [{}]}', '{"a": {}, "b": [{}]}'),
    ],
)
def test_json_body_is_escaped_inside_strings_and_quoted_outside(text: str, filled: str) -> None:
    assert fill(text, Place.JSON) == filled


def test_payload_outside_a_json_string_is_inserted_as_it_is() -> None:
    assert fill('{"raw": {payload}, "text": "{payload}"}', Place.JSON, message(b' [1 ,"a"]')) == (
        '{"raw":  [1 ,"a"], "text": " [1 ,\\"a\\"]"}'
    )


def test_form_body_is_percent_encoded() -> None:
    assert fill("a={value.json.text}&b={topic}", Place.FORM) == "a=a%20%22b%22%2Fc%26d%3De&b=plant%2Fhall%207%2Ftemp"


def test_one_pass_only() -> None:
    assert fill("{payload} {topic.1}", values=message(b"{topic.1}")) == "{topic.1} plant"


@pytest.mark.parametrize("place", list(Place))
@pytest.mark.parametrize("text", ["{payload}", "{value}"])
def test_payload_as_the_whole_body_is_byte_for_byte(place: Place, text: str) -> None:
    assert parse(text, place, Mode.CLIENT).fill_bytes(message(b"\xff\0")) == b"\xff\0"


def test_payload_within_a_plain_body_is_byte_for_byte() -> None:
    text = parse("--b\r\n{topic.1}: {payload}--é", Place.TEXT, Mode.CLIENT)
    assert text.fill_bytes(message(b"\xff")) == b"--b\r\nplant: " + b"\xff" + "--é".encode()


def test_body_of_a_request_as_the_whole_payload_is_byte_for_byte() -> None:
    assert parse("{body}", Place.JSON, Mode.SERVER).fill_bytes(request(b"\xff")) == b"\xff"
    assert parse("{body}", Place.JSON, Mode.SERVER).fill_bytes(request(b"")) == b""


def test_json_body_is_utf8() -> None:
    assert parse('"{value.json.e}"', Place.JSON, Mode.CLIENT).fill_bytes(message()) == '"grüß"'.encode()

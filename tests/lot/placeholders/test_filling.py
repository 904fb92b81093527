import json

import pytest

from amqtt_rest_bridge.engine.failures import failure_publication
from amqtt_rest_bridge.errors import CallError, FailureCode
from amqtt_rest_bridge.lot.model import ClientEvent, Message, Method
from amqtt_rest_bridge.lot.placeholders.kinds import Mode
from amqtt_rest_bridge.lot.placeholders.text import MessageValues, Place, parse
from tests.support.placeholder_values import PAYLOAD, failure, fill, message, request


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("{payload}", PAYLOAD.decode()),
        ("{value}", PAYLOAD.decode()),
        ("{value.json.text}", 'a "b"/c&d=e'),
        ("{payload.json.text}", 'a "b"/c&d=e'),
        ("{value.json.n}", "21.50"),
        ("{value.json.big}", "12345678901234567890.123"),
        ("{value.json.yes}", "true"),
        ("{value.json.none}", "null"),
        ("{value.json.list}", '[1,{"x":"y"}]'),
        ("{value.json.list.1}", '{"x":"y"}'),
        ("{value.json.list.1.x}", "y"),
        ("{value.json.a.b.c}", "2"),
        ("{value.json.a.b.0.c}", "1"),
        ("{value.json.0}", "zero"),
        ("{value.json.empty}", ""),
        ("{value.json.e}", "grüß"),
        ("{source_topic}", "plant/hall 7/temp"),
        ("{topic}", "plant/hall 7/temp"),
        ("{topic.1}", "plant"),
        ("{topic.2}", "hall 7"),
        ("{property.site}", "north/2"),
        ("{property.a.b c}", "last"),
        ("{property.Site|none}", "none"),
        ("{timestamp}", "2026-01-31T12:00:00.123Z"),
        ("{timestamp.unix}", "1769860800"),
        ("{timestamp.unix_ms}", "1769860800123"),
        ("{topic.1}-{topic.1}", "plant-plant"),
    ],
)
def test_client_mode_placeholder_is_replaced(text: str, filled: str) -> None:
    assert fill(text) == filled


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("{body}", '{"a": 1}'),
        ("{body.json}", '{"a":1}'),
        ("{body.json.a}", "1"),
        ("{query.a}", "2"),
        ("{path.device}", "7/8"),
        ("{path}", "/devices/7"),
        ("{header.X-Key}", "k"),
        ("{method}", "POST"),
        ("{request_id}", "id-1"),
        ("{timestamp}", "1970-01-01T00:00:00.000Z"),
    ],
)
def test_server_mode_placeholder_is_replaced(text: str, filled: str) -> None:
    assert fill(text, values=request()) == filled


def test_a_failure_has_the_same_time_as_its_request() -> None:
    moment = 1_769_860_800.123_9
    filled = parse("{timestamp}", Place.TEXT, Mode.CLIENT).fill(MessageValues(b"", moment, topic="t"))
    error = CallError(FailureCode.TIMEOUT, "m", "h")
    event = ClientEvent("E", "t", Method.GET, parse("/", Place.ENDPOINT, Mode.CLIENT), error_topic="failed")
    published = failure_publication("an id", ("R", "E"), event, Message("t", b"", moment), error)
    assert published is not None
    assert json.loads(published.payload)["timestamp"] == filled == "2026-01-31T12:00:00.124Z"


def test_whole_json_is_serialised_compactly_and_keeps_its_digits() -> None:
    text = '{ "a" : [ 1.50, 1e400, -0, "gr\\u00fc\\u00df" ] ,\n "b": {}, "c": [true,false,null] }'
    filled = fill("{value.json}", values=message(text.encode()))
    assert filled == '{"a":[1.50,1e400,-0,"grüß"],"b":{},"c":[true,false,null]}'


def test_payload_with_a_byte_order_mark_is_json() -> None:
    assert fill("{value.json.a}", values=message(b'\xef\xbb\xbf{"a": 1}')) == "1"


def test_an_integer_of_five_thousand_digits_is_not_a_fault() -> None:
    assert fill("{value.json}", values=message(b"9" * 5000)) == "9" * 5000


@pytest.mark.parametrize(
    ("text", "payload", "reason"),
    [
        ("{value.json.nothing}", PAYLOAD, "the payload has no field nothing"),
        ("{value.json.list.2}", PAYLOAD, "the payload has no field list.2"),
        ("{value.json.list.-1}", PAYLOAD, "the payload has no field list.-1"),
        ("{value.json.list.9999999999999999999}", PAYLOAD, "the payload has no field list.9999999999999999999"),
        ("{value.json.n.x}", PAYLOAD, "the payload has no field n.x"),
        ("{value.json.a.b.1}", PAYLOAD, "the payload has no field a.b.1"),
        ("{topic.4}", PAYLOAD, "the topic has only 3 levels"),
        ("{property.Site}", PAYLOAD, "the message has no user property Site"),
        *(("{value.json}", payload, "the payload is not JSON")
          for payload in (b"{", b"", b"NaN", b"[Infinity]", b"'a'", b"[" * 100_000)),
        ("{payload.csv.2}", b"", "the payload's first record has 0 field(s)"),
        ("{payload.csv.2}", b"a,b", "the payload's first record has 2 field(s)"),
        ("{payload.csv.2}", b'"a', "the payload is not CSV"),
        ("{payload.csv.2}", b'"a"b,c,d', "the payload is not CSV"),
        ("{payload.csv.2}", b"\xff,a,b", "the payload is not UTF-8 text"),
    ],
)  # fmt: skip
def test_missing_value_fails_the_call(text: str, payload: bytes, reason: str) -> None:
    failed = failure(text, values=message(payload))
    assert failed.code is FailureCode.PLACEHOLDER_UNRESOLVED
    assert failed.message.startswith(f"{text} has no value: {reason}")
    assert failed.hint


@pytest.mark.parametrize("name", ["query.b", "query.none", "path.x", "header.x-none", "body.json.b"])
def test_missing_value_of_a_request_fails_the_call(name: str) -> None:
    failed = failure(f"{{{name}}}", values=request())
    assert failed.code is FailureCode.PLACEHOLDER_UNRESOLVED
    assert failed.message.startswith(f"{{{name}}} has no value: the request")


def test_nesting_that_cannot_be_read_or_written_fails_the_call() -> None:
    for depth in range(100, 1200, 50):
        values = message(b"[" * depth + b"]" * depth)
        try:
            assert fill("{value.json}", values=values) == "[" * depth + "]" * depth
        except CallError as failed:
            assert failed.code in (FailureCode.PLACEHOLDER_UNRESOLVED, FailureCode.INVALID_VALUE)


@pytest.mark.parametrize("text", ["{payload}", "{value.json.a}"])
@pytest.mark.parametrize("place", [Place.ENDPOINT, Place.HEADER, Place.TOPIC, Place.JSON, Place.FORM])
def test_payload_that_is_not_utf8_fails_the_call_where_text_is_needed(text: str, place: Place) -> None:
    failed = failure(text, place, message(b"\xff"))
    assert failed.code is FailureCode.PLACEHOLDER_UNRESOLVED
    assert "is not UTF-8 text" in failed.message


@pytest.mark.parametrize("place", list(Place))
def test_half_a_surrogate_pair_fails_the_call(place: Place) -> None:
    failed = failure("{value.json.half}", place)
    assert failed.code is FailureCode.INVALID_VALUE
    assert failure("{value.json}", place).code is FailureCode.INVALID_VALUE


@pytest.mark.parametrize(
    ("payload", "fields"),
    [
        pytest.param("a,b,c", ["a", "b", "c"], id="plain"),
        pytest.param("a,b\r\nc,d,e\r\n", ["a", "b"], id="only the first record"),
        pytest.param('"a ""b""",",","1\r\n2"\nx', ['a "b"', ",", "1\r\n2"], id="quoted"),
        pytest.param(" a , ,", [" a ", " ", ""], id="spaces and an empty end"),
        pytest.param('5" pipe,ü', ['5" pipe', "ü"], id="a quote inside"),
        pytest.param("\ufeffa\rb", ["a"], id="byte order mark"),
        pytest.param("\na", [""], id="an empty line"),
        pytest.param("," * 10_000, [""] * 10_000, id="more fields than can be asked for"),
    ],
)
def test_field_of_the_first_csv_record_is_inserted(payload: str, fields: list[str]) -> None:
    values = message(payload.encode())
    assert [fill(f"{{payload.csv.{number}}}", values=values) for number in range(len(fields))] == fields


def test_csv_field_is_escaped_for_its_place() -> None:
    values = message(b'"a/b ""c""",2')
    assert fill("/{payload.csv.0}", Place.ENDPOINT, values) == "/a%2Fb%20%22c%22"
    assert fill('[{payload.csv.0}, "{payload.csv.0}", {payload.csv.1}]', Place.JSON, values) == (
        '["a/b \\"c\\"", "a/b \\"c\\"", "2"]'
    )
    assert failure("{payload.csv.0}", Place.TOPIC, values).code is FailureCode.INVALID_VALUE


def test_a_failure_never_tells_the_value() -> None:
    values = message(b'{"a": "s3cret\\n/"}')
    for place in (Place.HEADER, Place.TOPIC):
        failed = failure("{value.json.a}", place, values)
        assert "s3cret" not in f"{failed.message} {failed.hint}"

import pickle
from types import MappingProxyType

import pytest

from amqtt_rest_bridge.errors import CallFailed, FailureCode
from amqtt_rest_bridge.placeholders import (
    PLACEHOLDERS,
    Fixed,
    MessageValues,
    Mode,
    Place,
    PlaceholderText,
    RequestValues,
    Values,
    constants,
    parse,
    place_of,
    recognise,
    suspects,
)

PAYLOAD = b"""{"text": "a \\"b\\"/c&d=e", "n": 21.50, "big": 12345678901234567890.123, "yes": true, "none": null,
 "list": [1, {"x": "y"}], "a": {"b": [{"c": 1}]}, "a.b": {"c": 2}, "0": "zero", "empty": "", "e": "gr\xc3\xbc\xc3\x9f",
 "half": "\\ud83c", "dots": "..", "line": "1\\n2"}"""


def message(payload: bytes = PAYLOAD, topic: str = "plant/hall 7/temp") -> MessageValues:
    return MessageValues(topic, payload, 1769860800.1234)


def request(body: bytes = b'{"a": 1}') -> RequestValues:
    return RequestValues(
        method="POST",
        path="/devices/7",
        path_parameters={"device": "7/8"},
        query={"a": ["1", "2"], "none": []},
        headers=MappingProxyType({"x-key": "k"}),
        body=body,
        timestamp=0.0,
        request_id="id-1",
    )


def fill(text: str, place: Place = Place.TEXT, values: Values | None = None) -> str:
    mode = Mode.SERVER if isinstance(values, RequestValues) else Mode.CLIENT
    return parse(text, place, mode).fill(values or message())


def failure(text: str, place: Place = Place.TEXT, values: Values | None = None) -> CallFailed:
    with pytest.raises(CallFailed) as raised:
        fill(text, place, values)
    assert raised.value.unsent
    return raised.value


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


def test_whole_json_is_serialised_compactly_and_keeps_its_digits() -> None:
    text = '{ "a" : [ 1.50, 1e400, -0, "gr\\u00fc\\u00df" ] ,\n "b": {}, "c": [true,false,null] }'
    filled = fill("{value.json}", values=message(text.encode()))
    assert filled == '{"a":[1.50,1e400,-0,"grüß"],"b":{},"c":[true,false,null]}'


def test_payload_with_a_byte_order_mark_is_json() -> None:
    assert fill("{value.json.a}", values=message(b'\xef\xbb\xbf{"a": 1}')) == "1"


def test_an_integer_of_five_thousand_digits_is_no_fault() -> None:
    assert fill("{value.json}", values=message(b"9" * 5000)) == "9" * 5000


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{value.json.nothing}", "the payload has no field nothing"),
        ("{value.json.list.2}", "the payload has no field list.2"),
        ("{value.json.list.-1}", "the payload has no field list.-1"),
        ("{value.json.list.9999999999999999999}", "the payload has no field"),
        ("{value.json.n.x}", "the payload has no field n.x"),
        ("{value.json.a.b.1}", "the payload has no field a.b.1"),
        ("{topic.4}", "the topic has only 3 levels"),
    ],
)
def test_missing_value_fails_the_call(text: str, reason: str) -> None:
    failed = failure(text)
    assert failed.code is FailureCode.PLACEHOLDER_UNRESOLVED
    assert reason in failed.message
    assert failed.hint


@pytest.mark.parametrize("name", ["query.b", "query.none", "path.x", "header.x-none", "body.json.b"])
def test_missing_value_of_a_request_fails_the_call(name: str) -> None:
    failed = failure(f"{{{name}}}", values=request())
    assert failed.code is FailureCode.PLACEHOLDER_UNRESOLVED
    assert failed.message.startswith(f"{{{name}}} has no value: the request")


@pytest.mark.parametrize("payload", [b"{", b"", b"NaN", b"[Infinity]", b"'a'", b"[" * 100_000])
def test_payload_that_is_no_json_fails_the_call(payload: bytes) -> None:
    failed = failure("{value.json}", values=message(payload))
    assert failed.code is FailureCode.PLACEHOLDER_UNRESOLVED
    assert failed.message == "{value.json} has no value: the payload is not JSON"


def test_nesting_that_cannot_be_read_or_written_fails_the_call() -> None:
    for depth in range(100, 1200, 50):
        values = message(b"[" * depth + b"]" * depth)
        try:
            assert fill("{value.json}", values=values) == "[" * depth + "]" * depth
        except CallFailed as failed:
            assert failed.code in (FailureCode.PLACEHOLDER_UNRESOLVED, FailureCode.INVALID_VALUE)


@pytest.mark.parametrize("text", ["{payload}", "{value.json.a}"])
@pytest.mark.parametrize("place", [Place.ENDPOINT, Place.HEADER, Place.TOPIC, Place.JSON, Place.FORM])
def test_payload_that_is_no_utf8_fails_the_call_where_text_is_needed(text: str, place: Place) -> None:
    failed = failure(text, place, message(b"\xff"))
    assert failed.code is FailureCode.PLACEHOLDER_UNRESOLVED
    assert "is not UTF-8 text" in failed.message


@pytest.mark.parametrize("place", list(Place))
def test_half_a_surrogate_pair_fails_the_call(place: Place) -> None:
    failed = failure("{value.json.half}", place)
    assert failed.code is FailureCode.INVALID_VALUE
    assert failure("{value.json}", place).code is FailureCode.INVALID_VALUE


def test_a_failure_never_tells_the_value() -> None:
    values = message(b'{"a": "s3cret\\n/"}')
    for place in (Place.HEADER, Place.TOPIC):
        failed = failure("{value.json.a}", place, values)
        assert "s3cret" not in f"{failed.message} {failed.hint}"


# --- escaping by place


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
    "text", ["/{value.json.dots}/x", "{value.json.dots}", "/%2e{topic}", "/.{topic}", "/a/{topic}?x"]
)
def test_endpoint_whose_value_makes_a_dot_segment_fails(text: str) -> None:
    failed = failure(text, Place.ENDPOINT, message(b'{"dots": ".."}', "."))
    assert failed.code is FailureCode.INVALID_VALUE
    assert "path segment" in failed.message


def test_header_takes_utf8_and_refuses_controls() -> None:
    assert fill("Bearer {value.json.e}", Place.HEADER) == "Bearer grüß"
    assert failure("{value.json.line}", Place.HEADER).code is FailureCode.INVALID_VALUE
    for control in ("\r", "\n", "\0", "\t", "\x7f", "\x85"):
        assert failure("{payload}", Place.HEADER, message(f"a{control}b".encode())).code is FailureCode.INVALID_VALUE


@pytest.mark.parametrize("payload", ["a/b", "+", "#", "a\0", "a\nb"])
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
        ('[{value.json.yes}, {value.json.none}, {value.json.list}]', '[true, null, [1,{"x":"y"}]]'),
        ('["{value.json.list}"]', '["[1,{\\"x\\":\\"y\\"}]"]'),
        ('[{topic}, {timestamp}, {timestamp.unix}]', '["plant/hall 7/temp", "2026-01-31T12:00:00.123Z", 1769860800]'),
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


# --- parsing


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
    assert repr(secret) == "Fixed(label='{secret.x}', escaped=False)"
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
    assert parse(["=", Fixed('a" b/c', "{env.X}", escaped=True)], place, Mode.CLIENT).fill(message()) == filled


def test_fixed_text_is_escaped_inside_a_json_string_and_does_not_end_it() -> None:
    parsed = parse(['["', Fixed('"', "{env.X}", escaped=True), '", {topic.1}]'], Place.JSON, Mode.CLIENT)
    assert parsed.fill(message()) == '["\\"", "plant"]'


def test_fixed_text_that_cannot_stand_in_its_place_is_refused_at_once() -> None:
    with pytest.raises(CallFailed) as raised:
        parse([Fixed("a/b", "{env.X}", escaped=True)], Place.TOPIC, Mode.CLIENT)
    assert raised.value.message.startswith("the value of {env.X} ")


@pytest.mark.parametrize(
    ("content_type", "place"),
    [
        ("application/json", Place.JSON),
        ("Application/JSON; charset=utf-8", Place.JSON),
        ("application/vnd.api+json", Place.JSON),
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
            name = written.strip("{}").replace("topic.N", "topic.1")
            for mode in Mode:
                found = recognise(name, mode)
                assert (found is not None and found.root == kind.root) == (mode in kind.modes), (written, mode)


def test_constants_are_found_with_their_place() -> None:
    assert list(constants("a{env.X}{secret.y-z}{payload}{env.}{env.a b}")) == [
        (1, 8, "env", "X"),
        (8, 20, "secret", "y-z"),
    ]


def test_suspects_are_words_in_braces_that_are_no_placeholder() -> None:
    assert list(suspects("{payload}{ paylod }{a b}{x.y}{1}{}", Mode.CLIENT)) == [(9, "paylod"), (24, "x.y")]


def test_request_and_message_placeholders_need_their_own_values() -> None:
    text: PlaceholderText = parse("{payload}", Place.TEXT, Mode.CLIENT)
    with pytest.raises(NotImplementedError):
        parse("{topic}", Place.TEXT, Mode.CLIENT).fill(Values(b"", 0.0))
    assert text.fill(Values(b"x", 0.0)) == "x"

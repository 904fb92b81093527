"""For any payload, what is inserted never changes the shape of what it is inserted into (property tests).

The plain run tries some values, `pytest -m long` thousands.
"""

import json
from collections.abc import Callable
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from amqtt_rest_bridge.errors import CallError, FailureCode
from amqtt_rest_bridge.lot.placeholders.kinds import Mode
from amqtt_rest_bridge.lot.placeholders.text import MessageValues, Place, RequestValues, parse
from amqtt_rest_bridge.topics import check_topic_name

NASTY = st.sampled_from(
    ["/", "..", ".", "//", "?", "#", "&a=b", "%2e%2e", "%", "@evil.example", "\\", "\r\nX: y", "\0", '"', '\\"', "',",
     "}", "{payload}", "{topic.1}", "+", "a/#", "$SYS", ":8080", " ", "\t", "\x7f", "\x85", "\u2028", "é", "🌍", "[",
     "null"]
)  # fmt: skip
TEXTS = st.lists(st.one_of(NASTY, st.text(max_size=4)), max_size=4).map("".join)
JSON_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=4,
)
TOPICS = TEXTS.filter(lambda text: check_topic_name(text) is None)
EXPECTED = (FailureCode.INVALID_VALUE, FailureCode.PLACEHOLDER_UNRESOLVED)

ENDPOINT = parse("/v1/{value.json.a}/x{payload}.json/{topic.1}?q={value.json}&r={value}", Place.ENDPOINT, Mode.CLIENT)
WHOLE_TOPIC = parse("/v1/{topic}/x?t={source_topic}", Place.ENDPOINT, Mode.CLIENT)
HEADER = parse("Bearer {value.json.a} {payload} {topic} {timestamp}", Place.HEADER, Mode.CLIENT)
DESTINATION = parse("out/{value.json.a}/{payload}/{topic.1}", Place.TOPIC, Mode.CLIENT)
BODY = parse(
    '{"in": "<{value.json.a}>", "out": {value.json.a}, "{topic.1}": [{topic}, "{payload}", {value.json}]}',
    Place.JSON,
    Mode.CLIENT,
)
FORM = parse("a={value.json.a}&b={payload}&c={topic}", Place.FORM, Mode.CLIENT)

SIZES = [pytest.param(40, id="some"), pytest.param(3000, id="thousands", marks=pytest.mark.long)]


def for_all(*strategies: st.SearchStrategy[object]) -> Callable[[Callable[..., None]], Callable[[int], None]]:
    """Make a test of a check: it holds for everything the strategies give."""

    def make(check: Callable[..., None]) -> Callable[[int], None]:
        @pytest.mark.parametrize("examples", SIZES)
        def test(examples: int) -> None:
            patient = settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
            patient(given(*strategies)(check))()

        return test  # type: ignore[no-any-return, unused-ignore]

    return make


def payload_of(value: object) -> bytes:
    return json.dumps({"a": value}, ensure_ascii=False).encode("utf-8", "surrogatepass")


def values_of(value: object, topic: str = "a") -> MessageValues:
    return MessageValues(payload_of(value), 0.0, topic=topic)


def fill(text: object, values: MessageValues | RequestValues) -> str | None:
    """Fill a text; None when the call fails, which it may do only in the two declared ways."""
    try:
        return text.fill(values)  # type: ignore[attr-defined,no-any-return]
    except CallError as failed:
        assert failed.code in EXPECTED
        return None


@for_all(JSON_VALUES, TOPICS)
@example("../..", "a")
@example("x", "..")
def test_url_keeps_host_segments_and_query_names(value: object, topic: str) -> None:
    filled = fill(ENDPOINT, values_of(value, topic))
    if filled is None:
        return
    parts = urlsplit(f"http://host:1{filled}")
    assert parts.netloc == "host:1"
    assert parts.fragment == ""
    segments = parts.path.split("/")
    assert len(segments) == 5
    assert ".." not in segments
    assert "." not in segments
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    assert [name for name, _ in pairs] == ["q", "r"]
    assert json.loads(pairs[0][1]) == {"a": value}
    assert filled.isascii()
    assert filled.isprintable()


@for_all(TOPICS)
@example("a/..;x/b")
def test_whole_topic_in_a_url_adds_its_own_segments_only(topic: str) -> None:
    filled = fill(WHOLE_TOPIC, values_of(1, topic))
    if filled is None:
        assert {".", ".."} & {segment.partition(";")[0] for segment in topic.split("/")}
        return
    parts = urlsplit(f"http://host{filled}")
    assert (parts.netloc, parts.fragment) == ("host", "")
    assert parts.path.count("/") == 3 + topic.count("/")
    assert unquote(parts.path) == f"/v1/{topic}/x"
    assert parse_qsl(parts.query, keep_blank_values=True) == [("t", topic)]


@for_all(JSON_VALUES, TOPICS)
def test_header_never_holds_a_control_character(value: object, topic: str) -> None:
    filled = fill(HEADER, values_of(value, topic))
    if filled is not None:
        assert not any(char < " " or "\x7f" <= char <= "\x9f" for char in filled)
        assert filled.startswith("Bearer ")
        filled.encode()


@for_all(JSON_VALUES, TOPICS)
def test_topic_never_gains_a_level_or_wildcard(value: object, topic: str) -> None:
    filled = fill(DESTINATION, values_of(value, topic))
    if filled is not None:
        assert filled.count("/") == 3
        assert check_topic_name(filled) is None
        assert not filled.startswith("$")


@for_all(st.one_of(JSON_VALUES, TEXTS), TOPICS)
@example('"', "a")
@example("\\", "\\")
def test_json_body_parses_and_differs_only_in_its_values(value: object, topic: str) -> None:
    filled = fill(BODY, values_of(value, topic))
    if filled is None:
        return
    body = json.loads(filled)
    level = topic.split("/")[0]
    text = value if isinstance(value, str) else None
    assert list(body) == list(dict.fromkeys(["in", "out", level]))
    if level not in ("in", "out"):
        assert body["out"] == value
        assert body[level] == [topic, payload_of(value).decode(), {"a": value}]
        assert text is None or body["in"] == f"<{text}>"


@for_all(JSON_VALUES, TOPICS)
def test_form_body_keeps_its_fields(value: object, topic: str) -> None:
    filled = fill(FORM, values_of(value, topic))
    if filled is not None:
        pairs = parse_qsl(filled, keep_blank_values=True)
        assert [name for name, _ in pairs] == ["a", "b", "c"]
        assert pairs[1][1].encode() == payload_of(value)
        assert pairs[2][1] == topic


@for_all(st.binary(max_size=40))
def test_any_payload_fills_or_fails_as_declared(payload: bytes) -> None:
    values = MessageValues(payload, 0.0, topic="a/b")
    for text in (ENDPOINT, HEADER, DESTINATION, BODY, FORM):
        fill(text, values)


@for_all(TEXTS, TEXTS, TEXTS)
def test_request_never_changes_the_shape_of_what_it_publishes(path: str, query: str, header: str) -> None:
    values = RequestValues(
        method="POST", path=path, path_parameters={"p": path}, query={"q": [query]}, headers={"h": header},
        payload=b"{}", timestamp=0.0, request_id="1",
    )  # fmt: skip
    topic = fill(parse("t/{path.p}/{query.q}", Place.TOPIC, Mode.SERVER), values)
    if topic is not None:
        assert topic.count("/") == 2
        assert check_topic_name(topic) is None
    body = fill(parse('{"p": "{path.p}", "q": {query.q}, "h": {header.h}}', Place.JSON, Mode.SERVER), values)
    if body is not None:
        assert json.loads(body) == {"p": path, "q": query, "h": header}

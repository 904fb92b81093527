"""What a request publishes: its body, its parameters, or what PAYLOAD makes of it."""

import json

import pytest
from msgspec.structs import replace

from amqtt_rest_bridge.errors import BrokerAwayError, PublicationRefusedError
from amqtt_rest_bridge.http.exchange import overloaded
from amqtt_rest_bridge.lot.placeholders.text import Place
from tests.support.answering import answer_of, port
from tests.support.server_mode import NOW, REQUEST_ID, error_code, event, payload


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\x00\xff\r\n", id="octets"),
        pytest.param(b" ", id="a space"),
        pytest.param(b"x" * 1000, id="as long as allowed"),
    ],
)
def test_a_body_is_published_byte_for_byte(body: bytes) -> None:
    hooks = port(event())
    assert hooks.ask("POST", "/hook?query=ignored", body).status_code == 200
    assert hooks.published == [("hook/received", body)]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        pytest.param("", {}, id="nothing"),
        pytest.param("?a=1&b=x+y%26z", {"a": "1", "b": "x y&z"}, id="decoded"),
        pytest.param("?a=1&a=2&b=3", {"a": ["1", "2"], "b": "3"}, id="repeated"),
        pytest.param("?a&b=", {"a": "", "b": ""}, id="without values"),
        pytest.param("?%C3%A4=%22%00%0A", {"ä": '"\0\n'}, id="characters that JSON escapes"),
        pytest.param("?a=1;b=2", {"a": "1;b=2"}, id="a semicolon separates nothing"),
    ],
)
def test_without_a_body_the_query_parameters_are_published(query: str, expected: object) -> None:
    hooks = port(event("GET"))
    assert hooks.ask("GET", "/hook" + query).status_code == 200
    assert json.loads(hooks.broker.published[0].payload) == expected


def test_no_parameters_at_all_are_an_empty_object() -> None:
    hooks = port(event())
    hooks.ask("POST", "/hook")
    assert hooks.published == [("hook/received", b"{}")]


def test_path_and_query_parameters_come_in_one_object_and_the_path_wins() -> None:
    hooks = port(event("GET", "/things/{id}"))
    hooks.ask("GET", "/things/7?id=8&x=9")
    assert json.loads(hooks.broker.published[0].payload) == {"id": "7", "x": "9"}


@pytest.mark.parametrize("query", [pytest.param("%ff", id="not UTF-8"), pytest.param("a=\x01", id="control character")])
def test_a_query_that_is_none_is_an_invalid_request(query: str) -> None:
    hooks = port(event("GET"))
    result = hooks.ask("GET", f"/hook?{query}")
    assert (result.status_code, error_code(result)) == (400, "invalid_request")
    assert hooks.published == []


def test_payload_is_built_from_every_part_of_the_request() -> None:
    template = (
        '{"body": "{body}", "field": {body.json.a}, "query": "{query.q}", "path": "{path.id}",'
        ' "header": "{header.x-kind}", "type": "{header.content-type}", "method": "{method}",'
        ' "whole": "{path}", "at": {timestamp.unix_ms},'
        ' "time": "{timestamp}", "id": "{request_id}"}'
    )
    things = port(event("PUT", "/things/{id}", sends=payload(template)))
    body = '{"a": [1, "é"]}'.encode()
    things.ask("PUT", "/things/7?q=x%22", body, X_Kind="k", Content_Type="application/json")
    assert json.loads(things.broker.published[0].payload) == {
        "body": '{"a": [1, "é"]}',
        "field": [1, "é"],
        "query": 'x"',
        "path": "7",
        "header": "k",
        "type": "application/json",
        "method": "PUT",
        "whole": "/things/7",
        "at": int(NOW * 1000),
        "time": "2026-01-31T12:00:00.123Z",
        "id": REQUEST_ID,
    }


def test_header_values_are_utf8_where_they_can_be() -> None:
    hooks = port(event("GET", sends=payload('["{header.x-a}", "{header.x-b}"]')))
    hooks.ask("GET", "/hook", X_A="é".encode().decode("latin-1"), X_B="\xe9")
    assert json.loads(hooks.broker.published[0].payload) == ["é", "é"]


def test_path_parameters_are_inserted_into_the_topic_of_publication_and_answer() -> None:
    things = port(event(endpoint="/things/{id}", destination="things/{path.id}/set"))
    result = things.ask("POST", "/things/caf%C3%A9", "on")
    assert result.json == {"status": "published", "topic": "things/café/set"}
    assert things.published == [("things/café/set", b"on")]


@pytest.mark.parametrize("value", ["a%2Fb", "%2B", "%23", "a%2B"])
def test_a_value_that_would_change_the_topic_is_an_invalid_request(value: str) -> None:
    things = port(event(endpoint="/things/{id}", destination="things/{path.id}"))
    result = things.ask("POST", f"/things/{value}", "on")
    assert (result.status_code, error_code(result)) == (400, "invalid_request")
    assert things.published == []


def test_a_caller_cannot_reach_the_brokers_own_topics() -> None:
    things = port(event(endpoint="/{root}", destination="{path.root}/x"))
    assert error_code(things.ask("POST", "/$SYS", "on")) == "invalid_request"
    assert things.published == []


@pytest.mark.parametrize(
    ("template", "body"),
    [
        pytest.param("{query.missing}", "x", id="query parameter missing"),
        pytest.param("{header.x-missing}", "x", id="header missing"),
        pytest.param("{body.json.a}", "no JSON", id="body not JSON"),
        pytest.param("{body.json.a}", "{}", id="field missing"),
    ],
)
def test_a_placeholder_without_a_value_is_an_invalid_request(template: str, body: str) -> None:
    hooks = port(event(sends=payload(template)))
    result = hooks.ask("POST", "/hook", body)
    assert (result.status_code, error_code(result)) == (400, "invalid_request")
    assert hooks.published == []
    assert hooks.broker.counted == [("Hooks", "invalid_request")]


def test_what_a_caller_sends_is_never_expanded_again() -> None:
    hooks = port(event(sends=payload('"{body}"')))
    hooks.ask("POST", "/hook", "{header.authorization}", Authorization="Basic c2VjcmV0")
    assert hooks.published == [("hook/received", b'"{header.authorization}"')]


@pytest.mark.parametrize("retain", [True, False])
def test_retain_reaches_the_publication(retain: bool) -> None:
    hooks = port(event(retain=retain))
    hooks.ask("POST", "/hook", "x")
    assert hooks.broker.published[0].retain is retain


def test_a_body_over_the_limit_is_refused() -> None:
    hooks = port(event())
    result = hooks.ask("POST", "/hook", b"x" * 1001)
    assert (result.status_code, error_code(result)) == (413, "payload_too_large")
    assert hooks.published == []


def test_a_filled_payload_over_the_limit_is_refused() -> None:
    hooks = port(event(sends=payload("{body}{body}", Place.TEXT)))
    assert error_code(hooks.ask("POST", "/hook", b"x" * 501)) == "payload_too_large"
    assert hooks.published == []


@pytest.mark.parametrize(
    ("encoding", "status"), [("gzip", 415), ("br, gzip", 415), ("identity", 200), ("Identity", 200)]
)
def test_an_encoded_body_is_refused(encoding: str, status: int) -> None:
    hooks = port(event())
    result = hooks.ask("POST", "/hook", b"x", Content_Encoding=encoding)
    assert result.status_code == status
    assert len(hooks.published) == (status == 200)
    if status == 415:
        assert error_code(result) == "unsupported_media_type"
        assert result.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    ("outcome", "code", "waited"),
    [
        pytest.param(False, "overloaded", [1.0], id="no room"),
        pytest.param(BrokerAwayError("away"), "broker_unavailable", [], id="the broker is away"),
        pytest.param(PublicationRefusedError("not authorized"), "broker_unavailable", [], id="the broker refuses it"),
    ],
)
def test_what_is_not_published_is_answered_with_503(outcome: bool | Exception, code: str, waited: list[float]) -> None:
    hooks = port(event())
    hooks.broker.outcomes.append(outcome)
    result = hooks.ask("POST", "/hook", b"x")
    assert (result.status_code, error_code(result), result.headers["retry-after"]) == (503, code, "1")
    assert (hooks.waited, hooks.published, hooks.broker.queued) == (waited, [], [])
    assert hooks.broker.counted == [("Hooks", code)]


def test_a_publication_that_waits_is_answered_once_the_broker_has_it() -> None:
    hooks = port(event())
    hooks.broker.outcomes.append(False)
    task = hooks.start(hooks.begin("POST", "/hook", b"x"))
    assert (task.done(), hooks.broker.counted) == (False, [])  # it is not answered yet
    hooks.broker.make_room()
    assert hooks.finish(task).status == "200 OK"
    assert (hooks.published, hooks.waited) == ([("hook/received", b"x")], [])


def test_a_request_for_which_there_is_no_room_is_refused_by_its_endpoint() -> None:
    hooks = port(event(), enable_cors=True)
    answer = answer_of(hooks.app.answer(replace(hooks.request("POST", "/hook", b"x"), refusal=overloaded())))
    assert (answer.code, dict(answer.headers)["Vary"]) == ("overloaded", "Origin")
    assert (hooks.published, hooks.broker.counted) == ([], [("Hooks", "overloaded")])


def test_a_publication_whose_waiting_is_cancelled_is_never_sent() -> None:
    hooks = port(event())
    hooks.broker.outcomes.append(False)
    task = hooks.start(hooks.begin("POST", "/hook", b"x"))
    task.cancel()
    hooks.settle()
    assert (hooks.broker.queued, hooks.published) == ([], [])

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
@pytest.mark.parametrize("retain", [True, False])
def test_a_body_is_published_byte_for_byte_and_retained_where_the_event_says_so(body: bytes, retain: bool) -> None:
    hooks = port(event(retain=retain))
    assert hooks.ask("POST", "/hook?query=ignored", body).status_code == 200
    assert hooks.published == [("hook/received", body)]
    assert hooks.broker.published[0].retain is retain


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        pytest.param("/things/7", {"id": "7"}, id="of the path alone"),
        pytest.param("/things/7?id=8&x=9", {"id": "7", "x": "9"}, id="the path wins"),
        pytest.param("/hook", {}, id="nothing"),
        pytest.param("/hook?a=1&b=x+y%26z", {"a": "1", "b": "x y&z"}, id="decoded"),
        pytest.param("/hook?a=1&a=2&b=3", {"a": ["1", "2"], "b": "3"}, id="repeated"),
        pytest.param("/hook?a&b=", {"a": "", "b": ""}, id="without values"),
        pytest.param("/hook?%C3%A4=%22%00%0A", {"ä": '"\0\n'}, id="characters that JSON escapes"),
        pytest.param("/hook?a=1;b=2", {"a": "1;b=2"}, id="a semicolon separates nothing"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_without_a_body_the_parameters_are_published(method: str, path: str, expected: object) -> None:
    hooks = port(event(method), event(method, "/things/{id}", name="Things"))
    assert hooks.ask(method, path).status_code == 200
    assert json.loads(hooks.broker.published[0].payload) == expected


def test_payload_is_built_from_every_part_of_the_request() -> None:
    template = (
        '{"body": "{body}", "field": {body.json.a}, "query": "{query.q}", "path": "{path.id}",'
        ' "headers": ["{header.x-kind}", "{header.x-utf-8}", "{header.x-latin-1}"], "type": "{header.content-type}",'
        ' "method": "{method}", "whole": "{path}", "at": {timestamp.unix_ms},'
        ' "time": "{timestamp}", "id": "{request_id}"}'
    )
    things = port(event("PUT", "/things/{id}", sends=payload(template)))
    body, utf_8 = '{"a": [1, "é"]}', "é".encode().decode("latin-1")
    headers = {"X_Kind": "{header.authorization}", "X_UTF_8": utf_8, "X_Latin_1": "\xe9"}
    things.ask("PUT", "/things/7?q=x%22", body, Content_Type="application/json", Authorization="Basic c2U=", **headers)
    assert json.loads(things.broker.published[0].payload) == {
        "body": '{"a": [1, "é"]}',
        "field": [1, "é"],
        "query": 'x"',
        "path": "7",
        "headers": ["{header.authorization}", "é", "é"],  # what a caller sends is never expanded again
        "type": "application/json",
        "method": "PUT",
        "whole": "/things/7",
        "at": int(NOW * 1000),
        "time": "2026-01-31T12:00:00.123Z",
        "id": REQUEST_ID,
    }


def test_path_parameters_are_inserted_into_the_topic_of_publication_and_answer() -> None:
    things = port(event(endpoint="/things/{id}", destination="things/{path.id}/set"))
    result = things.ask("POST", "/things/caf%C3%A9", "on")
    assert result.json == {"status": "published", "topic": "things/café/set"}
    assert things.published == [("things/café/set", b"on")]


# What publishes nothing.


@pytest.mark.parametrize(
    ("path", "body", "sends", "status", "code"),
    [
        pytest.param("/hook?%ff", "", None, 400, "invalid_request", id="query not UTF-8"),
        pytest.param("/hook?a=\x01", "", None, 400, "invalid_request", id="control character in the query"),
        pytest.param("/things/a%2Fb", "on", None, 400, "invalid_request", id="slash in a topic"),
        pytest.param("/things/%2B", "on", None, 400, "invalid_request", id="plus in a topic"),
        pytest.param("/things/%23", "on", None, 400, "invalid_request", id="hash in a topic"),
        pytest.param("/things/a%2B", "on", None, 400, "invalid_request", id="plus at the end of a level"),
        pytest.param("/things/$SYS", "on", None, 400, "invalid_request", id="the broker's own topics"),
        pytest.param("/hook", "x", "{query.no}", 400, "invalid_request", id="query parameter missing"),
        pytest.param("/hook", "x", "{header.x-no}", 400, "invalid_request", id="header missing"),
        pytest.param("/hook", "no JSON", "{body.json.a}", 400, "invalid_request", id="body not JSON"),
        pytest.param("/hook", "{}", "{body.json.a}", 400, "invalid_request", id="field missing"),
        pytest.param("/hook", "x" * 1001, None, 413, "payload_too_large", id="body too large"),
        pytest.param("/hook", "x" * 501, "{body}{body}", 413, "payload_too_large", id="payload too large"),
    ],
)
def test_a_request_that_cannot_be_published_is_refused_and_counted(
    path: str, body: str, sends: str | None, status: int, code: str
) -> None:
    made = None if sends is None else payload(sends, Place.TEXT)
    hooks = port(event(sends=made), event(endpoint="/things/{id}", destination="{path.id}/set", name="Things"))
    result = hooks.ask("POST", path, body)
    assert (result.status_code, error_code(result)) == (status, code)
    assert hooks.published == []
    assert hooks.broker.counted == [("Hooks", code)]


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


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_publication_that_waits_is_answered_once_the_broker_has_it_and_never_sent_once_cancelled(
    is_cancelled: bool,
) -> None:
    hooks = port(event())
    hooks.broker.outcomes.append(False)
    task = hooks.start(hooks.begin("POST", "/hook", b"x"))
    assert (task.done(), hooks.broker.counted) == (False, [])  # it is not answered yet
    if is_cancelled:
        task.cancel()
        hooks.settle()
    hooks.broker.make_room()
    hooks.settle()
    assert (hooks.broker.queued, hooks.waited) == ([], [])
    assert hooks.published == ([] if is_cancelled else [("hook/received", b"x")])
    assert is_cancelled or task.result().status == "200 OK"


def test_a_request_for_which_there_is_no_room_is_refused_by_its_endpoint() -> None:
    hooks = port(event(), enable_cors=True)
    answer = answer_of(hooks.app.answer(replace(hooks.request("POST", "/hook", b"x"), refusal=overloaded())))
    assert (answer.code, dict(answer.headers)["Vary"]) == ("overloaded", "Origin")
    assert (hooks.published, hooks.broker.counted) == ([], [("Hooks", "overloaded")])

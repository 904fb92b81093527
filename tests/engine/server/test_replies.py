"""Answers that come from topics: read events, and request and reply."""

import json

import pytest

from amqtt_rest_bridge.engine.server.newest import TopicPayload, content_type_of
from amqtt_rest_bridge.engine.server.reads import is_not_modified
from amqtt_rest_bridge.lot.model import Message, MessageProperties, Publication, Route
from tests.support.answering import Answering, port
from tests.support.server_mode import REQUEST_ID, error_code, event, payload, route

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def reading(payload: bytes | None) -> Answering:
    room = port(event("GET", "/room", None, source="room/1"))
    if payload is not None:
        room.broker.changed("room/1", payload)
    return room


def test_a_read_event_answers_with_the_latest_payload() -> None:
    room = reading(b'{"temperature": 21.5}')
    result = room.ask("GET", "/room")
    assert (result.status_code, result.json) == (200, {"temperature": 21.5})
    assert result.headers["content-type"] == "application/json"
    assert result.headers["cache-control"] == "no-cache"
    assert result.headers["x-content-type-options"] == "nosniff"
    assert room.published == []
    assert room.ask("HEAD", "/room") == result  # the HTTP server leaves the body out


def test_an_empty_payload_is_a_message_and_before_the_first_message_there_is_none() -> None:
    result = reading(b"").ask("GET", "/room")
    assert (result.status_code, result.content) == (200, b"")
    result = reading(None).ask("GET", "/room")
    assert (result.status_code, error_code(result)) == (404, "no_message")


def test_a_caller_that_has_the_payload_gets_304() -> None:
    room = reading(b"21.5")
    tag = room.ask("GET", "/room").headers["etag"]
    result = room.ask("GET", "/room", If_None_Match=f'"x", W/{tag}')
    assert (result.status_code, result.content, result.headers["etag"]) == (304, b"", tag)
    room.broker.changed("room/1", b"21.6")
    assert room.ask("GET", "/room", If_None_Match=tag).status_code == 200


@pytest.mark.parametrize(
    ("if_none_match", "expected"),
    [(None, False), ("", False), ('"a"', True), ("*", True), ('"b"', False), ("a", False)],
)
def test_if_none_match_is_compared_by_entity_tag(if_none_match: str | None, expected: bool) -> None:
    assert is_not_modified(if_none_match, '"a"') is expected


def test_entity_tags_are_the_same_for_the_same_payload_only() -> None:
    tags = [TopicPayload(payload).entity_tag for payload in (b"a", b"a", b"b")]
    assert tags[0] == tags[1] != tags[2]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(b'{"a": 1}', "application/json", id="object"),
        pytest.param(b" \r\n[1]", "application/json", id="array after space"),
        pytest.param(b"21.5", "application/json", id="number"),
        pytest.param(b"true", "application/json", id="true"),
        pytest.param(b'"text"', "application/json", id="string"),
        pytest.param(b"NaN", "text/plain; charset=utf-8", id="NaN is not JSON"),
        pytest.param(b"[NaN]", "text/plain; charset=utf-8", id="nor inside"),
        pytest.param(b"{", "text/plain; charset=utf-8", id="broken JSON"),
        pytest.param(b"[" * 100_000, "text/plain; charset=utf-8", id="too deep to be JSON"),
        pytest.param(b"on", "text/plain; charset=utf-8", id="text"),
        pytest.param("été".encode(), "text/plain; charset=utf-8", id="UTF-8"),
        pytest.param(b"", "text/plain; charset=utf-8", id="nothing"),
        pytest.param(b"\xff\xd8\xff", "application/octet-stream", id="octets"),
        pytest.param(b'{"\xff', "application/octet-stream", id="octets that begin like JSON"),
        pytest.param(b"a\0b", "application/octet-stream", id="text with NUL"),
    ],
)
def test_the_media_type_follows_the_content(content: bytes, expected: str) -> None:
    assert content_type_of(content) == expected


def asking(reply: str = "answers/{request_id}") -> Answering:
    return port(
        event(endpoint="/ask", destination="questions", reply=reply, sends=payload('["{request_id}", "{body}"]')),
        request_timeout=7,
    )


@pytest.mark.parametrize(
    ("reply", "content_type"), [(b'{"to": 1}', "application/json"), (b"\xff", "application/octet-stream")]
)
def test_a_request_waits_for_the_reply_to_its_own_id(reply: bytes, content_type: str) -> None:
    questions = asking()
    questions.broker.on_wait = lambda topic: reply if topic == f"answers/{REQUEST_ID}" else None
    result = questions.ask("POST", "/ask", "what?")
    assert (result.status_code, result.content, result.headers["content-type"]) == (200, reply, content_type)
    assert json.loads(questions.broker.published[0].payload) == [REQUEST_ID, "what?"]
    assert questions.broker.log == [f"expect answers/{REQUEST_ID}", "publish questions", f"done answers/{REQUEST_ID}"]


def test_without_a_reply_the_answer_is_504_and_the_request_has_been_published() -> None:
    questions = asking()
    result = questions.ask("POST", "/ask", "what?")
    assert (result.status_code, error_code(result)) == (504, "reply_timeout")
    assert (len(questions.published), questions.waited) == (1, [7])
    assert questions.broker.log[-1] == f"done answers/{REQUEST_ID}"
    assert questions.broker.counted == [("Hooks", "reply_timeout")]


def test_path_parameters_are_inserted_into_the_reply_topic_and_nothing_is_published_if_they_cannot() -> None:
    things = port(event(endpoint="/things/{id}", destination="in", reply="out/{path.id}/{request_id}"))
    for name in ("a%2Fb", "%2B"):
        assert error_code(things.ask("POST", f"/things/{name}", "what?")) == "invalid_request"
    assert things.published == []
    things.ask("POST", "/things/7", "what?")
    assert things.broker.log[0] == f"expect out/7/{REQUEST_ID}"


def test_a_reply_that_comes_at_once_is_taken_and_a_second_one_is_not() -> None:
    questions = asking()

    def reply_twice(_: Publication) -> None:
        for reply in (b"first", b"second"):
            questions.broker.reply(f"answers/{REQUEST_ID}", reply)

    questions.broker.on_publish = reply_twice
    assert questions.ask("POST", "/ask", "what?").content == b"first"
    questions.broker.reply(f"answers/{REQUEST_ID}", b"late")
    assert questions.waited == []


def test_with_mqtt_5_a_reply_is_known_by_its_correlation_data() -> None:
    questions = Answering(route(event(endpoint="/ask", destination="questions", reply="answers")), is_mqtt_5=True)
    tasks = [questions.start(questions.begin("POST", "/ask", text)) for text in ("1", "2")]
    properties = [publication.properties for publication in questions.broker.published]
    for text, one in ((b"to 2", properties[1]), (b"to 1", properties[0])):
        assert one is not None
        assert one.response_topic == "answers"
        questions.mode.see(Message("answers", b"to nobody", 0.0))
        questions.mode.see(Message("answers", text, 0.0, MessageProperties((("traceparent", TRACE),), one.correlation)))
    answers = [questions.finish(task) for task in tasks]
    assert [answer.body for answer in answers] == [b"to 1", b"to 2"]
    assert dict(answers[0].headers)["traceparent"] == TRACE


def test_head_of_a_request_with_reply_neither_publishes_nor_waits() -> None:
    questions = port(event("GET", "/ask", "questions", reply="answers/{request_id}"))
    assert questions.ask("HEAD", "/ask").status_code == 200
    assert questions.broker.log == []


# One reply topic for all: requests take turns.


def test_requests_of_one_reply_topic_without_id_are_served_one_after_the_other() -> None:
    questions = asking("answers/all")
    tasks = [questions.start(questions.begin("POST", "/ask", str(number))) for number in range(3)]
    assert [json.loads(body)[1] for _, body in questions.published] == ["0"]
    for number, task in enumerate(tasks):
        questions.broker.waiting.get_nowait().arrive(b"reply %d" % number)
        questions.settle()
        assert task.result().body == b"reply %d" % number
    assert questions.broker.log == ["expect answers/all", "publish questions", "done answers/all"] * 3
    assert questions.waited == []


def test_a_request_that_does_not_get_its_turn_publishes_nothing() -> None:
    events = [event(endpoint=f"/{name}", destination=name, reply="answers/all") for name in ("patient", "hasty")]
    questions = Answering(
        route(events[0], name="Patient", request_timeout=30), route(events[1], name="Hasty", request_timeout=7)
    )
    first = questions.start(questions.begin("POST", "/patient", "1"))
    second = questions.ask("POST", "/hasty", "2")
    assert (second.status_code, error_code(second), questions.waited) == (503, "overloaded", [7])
    assert questions.published == [("patient", b"1")]
    questions.broker.reply("answers/all", b"reply")
    assert questions.finish(first).body == b"reply"


def test_a_request_that_gives_up_before_its_turn_keeps_the_others_order() -> None:
    questions = asking("answers/all")
    tasks = [questions.start(questions.begin("POST", "/ask", str(number))) for number in range(3)]
    for number, published in ((1, ["0"]), (0, ["0", "2"]), (2, ["0", "2"])):
        tasks[number].cancel()
        questions.settle()
        assert [json.loads(body)[1] for _, body in questions.published] == published
    assert questions.mode._shared.turns._queues == questions.mode._replies._awaited == {}


def test_topics_do_not_wait_for_each_other() -> None:
    questions = port(event(endpoint="/ask/{id}", destination="questions", reply="answers/{path.id}"))
    tasks = [questions.start(questions.begin("POST", f"/ask/{name}", name)) for name in ("a", "b")]
    assert [body for _, body in questions.published] == [b"a", b"b"]
    for task in tasks:
        task.cancel()


# Reply filters over reloads.

LONG, SHORT = 30, 5
LONGEST = {LONG: 65.0, SHORT: 15.0}
"""How long a request may take by its REQUEST_TIMEOUT: for its turn, for its reply, and some seconds more."""


def watching(timeout: int, *replies: str) -> Route:
    events = [event(endpoint=f"/{reply}", destination="q", reply=reply, name=reply.upper()) for reply in replies]
    return route(*events, request_timeout=timeout)


@pytest.mark.parametrize(
    "shorter", [pytest.param([], id="gone"), pytest.param([watching(SHORT, "a")], id="another timeout, then gone")]
)
def test_a_reply_filter_that_is_gone_is_watched_until_its_last_request_has_ended(shorter: list[Route]) -> None:
    asking = Answering(watching(LONG, "a"))
    asking.use(*shorter)
    kept = watching(SHORT, "b")
    for seconds, filters in ((0.0, {"a", "b"}), (LONGEST[LONG] - 1.0, {"a", "b"}), (2.0, {"b"})):
        asking.clock.advance(seconds)
        asking.use(kept)
        assert asking.mode.filters == filters


def test_many_reloads_watch_no_more_than_the_filters_in_use_and_those_just_gone() -> None:
    asking = Answering()
    for number in range(100):
        asking.use(watching(SHORT, f"answers/{number % 2}", f"gone/{number}"))
        asking.clock.advance(1.0)
    assert len(asking.mode.filters) <= LONGEST[SHORT] + 4

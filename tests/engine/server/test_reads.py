"""Reads of one topic, of one that the path names, and of a filter; the same as streams of server-sent events."""

import gc
import json
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from amqtt_rest_bridge.engine.server import reads
from amqtt_rest_bridge.engine.server.reads import MOST_STREAMS, Newest
from amqtt_rest_bridge.http.exchange import Response, ResponseStream
from amqtt_rest_bridge.lot.model import Message
from tests.support.answering import Answering, port
from tests.support.server_mode import error_code, event, topic

ROOM = event("GET", "/rooms/{room}", None, source="home/{path.room}/t", read_topic=topic("home/{path.room}/t"))
SEEN = {"home/kitchen/t": b"21.5", "home/bath/t": b"warm", "home/off/t": b""}
FILTER = "home/+/t"


def rooms(topics: dict[str, bytes] = SEEN, **settings: Any) -> Answering:
    made = port(ROOM, event("GET", "/all", None, name="All", source=FILTER), **settings)
    for name, payload in topics.items():
        made.broker.changed(name, payload)
    return made


# One topic, which the path names.


@pytest.mark.parametrize(
    ("path", "status", "expected"),
    [
        pytest.param("/rooms/kitchen", 200, b"21.5", id="JSON"),
        pytest.param("/rooms/k%69tchen", 200, b"21.5", id="decoded once"),
        pytest.param("/rooms/off", 200, b"", id="an empty message"),
        pytest.param("/rooms/garage", 404, "no_message", id="a topic without a message"),
        pytest.param("/rooms/k%2569tchen", 404, "no_message", id="not decoded twice"),
        pytest.param("/rooms/$SYS", 404, "no_message", id="$"),
        pytest.param("/rooms/..", 404, "no_message", id="dots"),
        pytest.param("/rooms/", 404, "not_found", id="an empty segment"),
        pytest.param("/rooms/kitchen%2Ft", 400, "invalid_request", id="a level more"),
        pytest.param("/rooms/+", 400, "invalid_request", id="+"),
        pytest.param("/rooms/%23", 400, "invalid_request", id="#"),
        pytest.param("/rooms/a%00b", 400, "invalid_request", id="NUL"),
        pytest.param("/rooms/%ff", 400, "invalid_request", id="not UTF-8"),
    ],
)
def test_a_segment_of_the_path_names_a_level_of_the_topic_and_nothing_else(
    path: str, status: int, expected: str | bytes
) -> None:
    result = rooms().ask("GET", path)
    assert result.status_code == status
    assert (result.content if status == 200 else error_code(result)) == expected


def test_no_value_leads_to_a_topic_that_the_filter_does_not_match() -> None:
    made = port(event("GET", "/{a}/{b}", None, source="{path.a}/{path.b}", read_topic=topic("{path.a}/{path.b}")))
    made.broker.changed("home/x", b"1")
    made.broker.changed("$SYS/x", b"secret")
    assert made.ask("GET", "/home/x").content == b"1"
    assert made.ask("GET", "/$SYS/x").status_code == 400
    made = port(event("GET", "/{a}", None, source="{path.a}/#", read_topic=topic("{path.a}/#")))
    made.broker.changed("home/x", b"1")
    assert [made.ask("GET", f"/{name}").status_code for name in ("home", "$SYS", "+", "%23", "a%2Fb")] == [
        *(200, 400, 400, 400, 400)
    ]


def test_an_answer_says_only_the_beginning_of_a_long_topic() -> None:
    result = rooms().ask("GET", f"/rooms/{'x' * 60_000}")
    assert (result.status_code, error_code(result)) == (404, "no_message")
    assert len(result.content) < 1000


# A filter.


def test_a_filter_answers_with_an_object_of_topic_to_payload() -> None:
    made = rooms(SEEN | {'home/"q"/t': b'{"a": [1]}', "home/bin/t": b"\xff", "home/nan/t": b"NaN"})
    result = made.ask("GET", "/all")
    expected = {"home/kitchen/t": 21.5, "home/bath/t": "warm", 'home/"q"/t': {"a": [1]}, "home/bin/t": "\ufffd"}
    assert result.json == expected | {"home/nan/t": "NaN"}
    assert result.headers["content-type"] == "application/json"
    tag = result.headers["etag"]
    assert made.ask("GET", "/all", If_None_Match=tag).status_code == 304
    made.broker.changed("home/bath/t", b"")  # as a retained message is removed
    assert "home/bath/t" not in made.ask("GET", "/all", If_None_Match=tag).json


def test_a_filter_without_a_message_answers_with_an_empty_object() -> None:
    assert rooms({}).ask("GET", "/all").json == {}


def test_a_filter_in_which_the_path_names_a_level_answers_with_what_is_below_it() -> None:
    source = "home/{path.room}/+"
    made = port(event("GET", "/rooms/{room}", None, source=source, read_topic=topic(source)))
    for name in ("home/bath/t", "home/bath/h", "home/hall/t"):
        made.broker.changed(name, b"1")
    assert made.ask("GET", "/rooms/bath").json == {"home/bath/t": 1, "home/bath/h": 1}
    assert made.ask("GET", "/rooms/none").json == {}


def test_an_object_over_max_response_bytes_is_refused() -> None:
    made = rooms({"home/a/t": b"x" * 900, "home/b/t": b"y" * 70})
    result = made.ask("GET", "/all")
    assert (result.status_code, error_code(result)) == (503, "response_too_large")
    made.broker.changed("home/b/t", b"y" * 10)
    assert len(made.ask("GET", "/all").content) <= 1000


@pytest.mark.parametrize(("topics", "size"), [(3, 0), (2, 60)])
def test_the_newest_messages_are_bounded_and_an_object_is_whole_or_refused(
    monkeypatch: pytest.MonkeyPatch, topics: int, size: int
) -> None:
    monkeypatch.setattr(reads, "MOST_TOPICS", 2)
    monkeypatch.setattr(reads, "MOST_BYTES", 100)
    made = rooms({f"home/{number}/t": b"x" * (size or 1) for number in range(topics)})
    assert error_code(made.ask("GET", "/all")) == "response_too_large"
    assert made.ask("GET", "/rooms/0").status_code == 404
    assert made.ask("GET", f"/rooms/{topics - 1}").status_code == 200


def publish(made: Answering, payload: bytes, *names: object) -> None:
    for name in names:
        made.broker.changed(f"home/{name}/t", payload)


def ask_again(made: Answering, *retained: object) -> None:
    with made.mode.reads.asking_again() as again:
        for name in retained if again else ():
            made.mode.see(Message(f"home/{name}/t", b"21", 0.0), retained=True)


def test_topics_that_are_removed_give_their_room_back_and_what_was_dropped_comes_back_when_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reads, "MOST_TOPICS", 10)
    made = rooms({})
    publish(made, b"21", "kitchen")
    publish(made, b"", *range(20))
    assert made.ask("GET", "/all").json == {"home/kitchen/t": 21}
    publish(made, b"1", *range(11))
    ask_again(made, "kitchen")  # there is no room for it
    assert error_code(made.ask("GET", "/all")) == "response_too_large"
    publish(made, b"", *range(11))
    publish(made, b"2", "bath")
    assert error_code(made.ask("GET", "/all")) == "response_too_large"
    ask_again(made, "kitchen")
    assert made.ask("GET", "/all").json == {"home/kitchen/t": 21, "home/bath/t": 2}
    publish(made, b"3", *range(8))
    assert len(made.ask("GET", "/all").json) == 10
    publish(made, b"3", 8)
    assert error_code(made.ask("GET", "/all")) == "response_too_large"


def test_a_topic_that_was_dropped_is_not_said_to_have_had_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "MOST_TOPICS", 2)
    made = rooms({})
    publish(made, b"1", "a", "b")
    answer = made.ask("GET", "/rooms/c")
    assert (error_code(answer), "No message has been seen on home/c/t yet" in answer.text) == ("no_message", True)
    publish(made, b"1", "c")
    answer = made.ask("GET", "/rooms/a")
    assert (error_code(answer), "No message is kept of home/a/t: home/+/t has matched" in answer.text) == (
        "no_message", True,
    )  # fmt: skip


def test_what_is_dropped_while_all_is_sent_again_is_not_taken_for_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "MOST_TOPICS", 2)
    made = rooms({})
    publish(made, b"1", "a", "b", "c")
    with made.mode.reads.asking_again():
        pass
    publish(made, b"1", "d")
    assert error_code(made.ask("GET", "/all")) == "response_too_large"


def test_asking_that_fails_leaves_the_filter_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "MOST_TOPICS", 2)
    made = rooms({})
    publish(made, b"1", "a", "b", "c")
    with pytest.raises(OSError, match="gone"), made.mode.reads.asking_again():
        raise OSError("gone")
    assert error_code(made.ask("GET", "/all")) == "response_too_large"


def test_one_message_is_kept_whatever_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "MOST_BYTES", 100)
    kept = Newest("a")
    kept.put("a", b"x" * 200)
    assert ({topic: one.payload for topic, one in kept.topics.items()}, kept.is_complete) == ({"a": b"x" * 200}, True)


def test_long_topics_count_for_the_bytes_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "MOST_BYTES", 100_000)
    kept = Newest("+")
    for number in range(100):
        kept.put(f"{number}{'x' * 10_000}", b"")
    assert sum(map(len, kept.topics)) <= 100_000
    assert kept.is_complete  # those that went were removed before


def test_a_retained_message_that_comes_again_with_a_subscription_changes_nothing() -> None:
    made = streams(("home/a/t", b"1"))
    stream = stream_of(made)
    stream.take()
    made.mode.see(Message("home/a/t", b"1", 0.0), retained=True)
    assert isinstance(stream.take(), float)
    made.mode.see(Message("home/a/t", b"2", 0.0), retained=True)
    assert [json.loads(one["data"]) for one in events(stream.take())] == [{"home/a/t": 2}]


# Streams.


def streams(*topics: tuple[str, bytes], source: str = FILTER, **settings: Any) -> Answering:
    made = port(event("GET", "/stream", None, source=source, stream=True), **settings)
    for name, payload in topics:
        made.broker.changed(name, payload)
    return made


def stream_of(made: Answering, **headers: str) -> ResponseStream:
    answer = made.begin("GET", "/stream", **headers)
    assert isinstance(answer, Response)
    assert answer.stream is not None
    return answer.stream


def events(piece: bytes | float) -> list[dict[str, str]]:
    """Return the events of a piece as a browser reads them."""
    assert isinstance(piece, bytes)
    found: list[dict[str, str]] = []
    for block in piece.decode().split("\n\n"):
        fields: dict[str, str] = {}
        for line in block.split("\n"):
            name, _, value = line.partition(": ")
            fields[name] = f"{fields[name]}\n{value}" if name in fields else value
        if "data" in fields:
            found.append(fields)
    return found


def test_a_stream_begins_with_the_latest_value_and_goes_on_with_each_new_one() -> None:
    made = streams(("a", b"1"), source="a")
    stream = stream_of(made)
    (first,) = events(stream.take())
    assert first["data"] == "1"
    assert isinstance(stream.take(), float)
    for payload in (b"2", b"two\r\nlines", "\u00e4".encode(), b"\xff", b""):
        made.broker.changed("a", payload)
        (one,) = events(stream.take())
        assert one["data"] == payload.decode(errors="replace").replace("\r\n", "\n")
        assert one["id"] != first["id"]


@pytest.mark.parametrize("payloads", [[b"%d" % number for number in range(100)], [b"x" * 20_000, b"y" * 20_000]])
def test_a_slow_reader_gets_the_newest_value_only(payloads: list[bytes]) -> None:
    made = streams(("a", b"0"), source="a")
    stream = stream_of(made)
    stream.take()
    for payload in payloads:
        made.broker.changed("a", payload)
    assert [one["data"] for one in events(stream.take())] == [payloads[-1].decode()]


def test_a_reader_gets_each_value_although_the_port_is_behind() -> None:
    made = streams(("home/a/t", b"0"), source="home/a/t")
    stream, late = stream_of(made), streams(source="home/a/t")
    begun = stream_of(late)
    stream.take(), begun.take()
    for payload in (b"1", b"2", b"3"):
        made.broker.changed("home/a/t", payload)
        late.broker.changed("home/a/t", payload)
    assert [one["data"] for one in events(stream.take())] == ["1", "2", "3"]
    assert [one["data"] for one in events(begun.take())] == ["1", "2", "3"]
    assert isinstance(stream.take(), float)


def test_a_reader_of_a_filter_gets_each_value_although_the_port_is_behind() -> None:
    made = streams(("home/a/t", b"0"))
    stream = stream_of(made)
    stream.take()
    for name, payload in (("a", b"1"), ("b", b"1"), ("a", b"2"), ("a", b"")):
        made.broker.changed(f"home/{name}/t", payload)
    found = events(stream.take())
    assert [json.loads(one["data"]) for one in found] == [
        {"home/a/t": 1, "home/b/t": 1},
        {"home/a/t": 2},
        {"home/a/t": None},
    ]
    rest = [events(stream_of(made, Last_Event_ID=one["id"]).take()) for one in found]
    assert [len(one) for one in rest] == [2, 1, 0]


def test_a_stream_of_a_filter_goes_on_with_the_topics_that_have_changed() -> None:
    made = streams(("home/a/t", b"1"), ("home/b/t", b"x"))
    stream = stream_of(made)
    assert [json.loads(one["data"]) for one in events(stream.take())] == [{"home/a/t": 1, "home/b/t": "x"}]
    made.broker.changed("home/b/t", b'{\n"y": 2}')
    assert [json.loads(one["data"]) for one in events(stream.take())] == [{"home/b/t": {"y": 2}}]
    made.broker.changed("home/a/t", b"")
    made.broker.changed("home/c/t", b"3")
    assert [json.loads(one["data"]) for one in events(stream.take())] == [{"home/a/t": None, "home/c/t": 3}]
    assert isinstance(stream.take(), float)


def test_a_stream_of_a_filter_that_the_path_names_is_silent_on_what_others_read() -> None:
    source = "home/{path.room}/+"
    made = port(event("GET", "/{room}", None, source=source, read_topic=topic(source), stream=True))
    made.broker.changed("home/bath/t", b"1")
    answer = made.begin("GET", "/bath")
    assert isinstance(answer, Response)
    assert answer.stream is not None
    (first,) = events(answer.stream.take())
    made.broker.changed("home/hall/t", b"2")
    made.clock.advance(15.0)
    assert answer.stream.take() == b": still here\n\n"
    again = made.begin("GET", "/bath", Last_Event_ID=first["id"])
    assert isinstance(again, Response)
    assert again.stream is not None
    assert again.stream.take() == b"retry: 2000\n\n"
    made.broker.changed("home/bath/t", b"3")
    assert [json.loads(one["data"]) for one in events(answer.stream.take())] == [{"home/bath/t": 3}]


def test_a_stream_that_begins_before_the_first_message_gets_it() -> None:
    for source, first in ((FILTER, ["{}"]), ("home/a/t", [])):
        made = streams(source=source)
        stream = stream_of(made)
        (*begun,) = events(stream.take())
        assert [one["data"] for one in begun] == first
        made.broker.changed("home/a/t", b"1")
        (one,) = events(stream.take())
        assert json.loads(one["data"]) in (1, {"home/a/t": 1})
        for last in begun:
            assert len(events(stream_of(made, Last_Event_ID=last["id"]).take())) == 1


@pytest.mark.parametrize("source", ["home/a/t", FILTER])
def test_who_names_the_last_event_is_not_sent_it_again(source: str) -> None:
    made = streams(("home/a/t", b"1"), source=source)
    (first,) = events(stream_of(made).take())
    again = stream_of(made, Last_Event_ID=first["id"])
    assert again.take() == b"retry: 2000\n\n"
    made.broker.changed("home/a/t", b"2")
    assert len(events(again.take())) == 1
    assert len(events(stream_of(made, Last_Event_ID=first["id"]).take())) == 1
    for unknown in ("", "x", f"{first['id']}9", "-1", "\u00b2"):
        assert len(events(stream_of(made, Last_Event_ID=unknown).take())) == 1


def test_the_id_of_an_event_says_nothing_of_another_filter_or_of_one_that_a_reload_brings_back() -> None:
    made = streams(("home/a/t", b"1"))
    (first,) = events(stream_of(made).take())
    made.use()
    made.use(*made.routes)
    for name in ("home/a/t", "home/b/t"):
        made.broker.changed(name, b"2")
    (after,) = events(stream_of(made, Last_Event_ID=first["id"]).take())
    assert json.loads(after["data"]) == {"home/a/t": 2, "home/b/t": 2}


def test_a_comment_comes_after_15_s_without_an_event() -> None:
    made = streams(("a", b"1"), source="a")
    stream = stream_of(made)
    stream.take()
    assert stream.take() == 15.0
    made.clock.advance(15.0)
    assert stream.take() == b": still here\n\n"
    assert stream.take() == 15.0


def test_readers_who_are_alike_share_the_bytes_of_an_event() -> None:
    for source in ("home/a/t", FILTER):
        made = streams(("home/a/t", b"1"), source=source)
        readers = [stream_of(made) for _ in range(3)]
        for reader in readers:
            reader.take()
        made.broker.changed("home/a/t", b"2")
        assert len({id(reader.take()) for reader in readers}) in (1, 3)
        made.broker.changed("home/a/t", b"3")
        pieces = [reader.take() for reader in readers]
        assert all(piece is pieces[0] for piece in pieces)


def test_events_that_no_two_readers_share_are_not_kept() -> None:
    made = streams(("home/a/t", b"0"))
    for number in range(300):
        made.broker.changed("home/a/t", b"%0800d" % number)
    (first,) = events(stream_of(made).take())
    instance = first["id"].rpartition("-")[0]
    tracemalloc.start()
    try:
        for number in range(300):
            stream = stream_of(made, Last_Event_ID=f"{instance}-{number}")
            assert events(stream.take())[-1]["id"] == first["id"]
            stream.close()
        made.broker.runs.clear()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 320_000  # of 900,000 that were sent
    finally:
        tracemalloc.stop()


def test_readers_of_the_same_part_of_a_filter_share_too() -> None:
    source = "home/{path.room}/+"
    made = port(event("GET", "/{room}", None, source=source, read_topic=topic(source), stream=True))
    readers = [made.begin("GET", f"/{room}") for room in ("bath", "hall", "bath")]
    streams = [one.stream for one in readers if isinstance(one, Response) and one.stream is not None]
    for stream in streams:
        stream.take()
    made.broker.changed("home/bath/t", b"2")
    first, other, third = (stream.take() for stream in streams)
    assert first is third
    assert isinstance(other, float)


def test_there_are_so_many_streams_and_one_that_has_ended_makes_room() -> None:
    made = streams(source="a")
    open_now = [stream_of(made) for _ in range(MOST_STREAMS)]
    result = made.ask("GET", "/stream")
    assert (result.status_code, error_code(result)) == (503, "overloaded")
    assert result.headers["retry-after"]
    open_now.pop().close()
    stream_of(made)


def test_open_streams_are_counted_by_route() -> None:
    made = streams(("a", b"1"), source="a")
    for _ in range(100):
        stream_of(made).close()
    (route,) = made.routes
    kept = [stream_of(made) for _ in range(3)]
    assert made.mode.reads.readers[route.name] == made.broker.statistics.statistics[route.name].readers == 3
    for stream in kept:
        stream.close()
    assert (made.mode.reads.readers.total(), made.broker.statistics.statistics[route.name].readers) == (0, 0)


def test_a_stop_ends_all_streams_and_a_reload_those_whose_definition_has_changed() -> None:
    made = streams(source="a")
    stream = stream_of(made)
    made.use(*made.routes)
    assert stream.take() != b""
    (route,) = made.routes
    made.use(replace(route, config=replace(route.config, enable_cors=True)))
    assert stream.take() == b""
    last = stream_of(made)
    made.mode.stop()
    assert last.take() == b""
    assert error_code(made.ask("GET", "/stream")) == "overloaded"


def test_a_stream_whose_object_grows_too_large_ends_and_the_next_one_is_refused() -> None:
    made = streams(("home/a/t", b"1"))
    stream = stream_of(made)
    stream.take()
    made.broker.changed("home/a/t", b"x" * 2000)
    assert stream.take() == b""
    assert error_code(made.ask("GET", "/stream")) == "response_too_large"


def test_a_stream_asks_for_credentials_and_has_the_headers_of_cors_as_other_endpoints_have() -> None:
    settings = {"server_username": "u", "server_password": "p", "enable_cors": True, "cors_origins": ("http://a",)}
    made = streams(("a", b"1"), source="a", **settings)
    assert made.ask("GET", "/stream", Origin="http://a").status_code == 401
    answer = made.begin("GET", "/stream", Origin="http://a", Authorization="Basic dTpw")
    assert isinstance(answer, Response)
    headers = dict(answer.headers)
    assert headers["Content-Type"] == "text/event-stream"
    assert headers["Access-Control-Allow-Origin"] == "http://a"
    head = made.begin("HEAD", "/stream", Origin="http://a", Authorization="Basic dTpw")
    assert isinstance(head, Response)
    assert (head.status, head.stream, head.headers) == (answer.status, None, answer.headers)

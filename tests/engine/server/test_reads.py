"""Reads of one topic, of one that the path names, and of a filter; the same as streams of server-sent events."""

import contextlib
import gc
import json
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from amqtt_rest_bridge.engine.server import newest
from amqtt_rest_bridge.engine.server.newest import NewestMessages
from amqtt_rest_bridge.engine.server.reads import MOST_STREAMS
from amqtt_rest_bridge.http.exchange import Response
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
    monkeypatch.setattr(newest, "MOST_TOPICS", 2)
    monkeypatch.setattr(newest, "MOST_BYTES", 100)
    made = rooms({f"home/{number}/t": b"x" * (size or 1) for number in range(topics)})
    assert error_code(made.ask("GET", "/all")) == "response_too_large"
    assert made.ask("GET", "/rooms/0").status_code == 404
    assert made.ask("GET", f"/rooms/{topics - 1}").status_code == 200


def publish(made: Answering, payload: bytes, *names: object) -> None:
    for name in names:
        made.broker.changed(f"home/{name}/t", payload)


def ask_again(made: Answering, *retained: object) -> None:
    with made.mode.reads.resubscribing() as again:
        for name in retained if again else ():
            made.mode.see(Message(f"home/{name}/t", b"21", 0.0), retained=True)


def test_topics_that_are_removed_give_their_room_back_and_what_was_dropped_comes_back_when_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(newest, "MOST_TOPICS", 10)
    made = rooms({})

    def answer() -> object:
        result = made.ask("GET", "/all")
        return result.json if result.status_code == 200 else error_code(result)

    publish(made, b"21", "kitchen")
    publish(made, b"", *range(20))
    assert answer() == {"home/kitchen/t": 21}
    publish(made, b"1", *range(11))
    ask_again(made, "kitchen")  # there is no room for it
    assert answer() == "response_too_large"
    publish(made, b"", *range(11))
    publish(made, b"2", "bath")
    assert answer() == "response_too_large"
    ask_again(made, "kitchen")
    assert answer() == {"home/kitchen/t": 21, "home/bath/t": 2}
    publish(made, b"3", *range(8))
    assert len(made.ask("GET", "/all").json) == 10
    publish(made, b"3", 8)
    assert answer() == "response_too_large"


def test_a_topic_that_was_dropped_is_not_said_to_have_had_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest, "MOST_TOPICS", 2)
    made = rooms({})
    for names, unseen, said in (
        ("ab", "c", "No message has been seen on home/c/t yet"),
        ("c", "a", "No message is kept of home/a/t: home/+/t has matched"),
    ):
        publish(made, b"1", *names)
        answer = made.ask("GET", f"/rooms/{unseen}")
        assert error_code(answer) == "no_message"
        assert said in answer.text


@pytest.mark.parametrize("fails", [False, True], ids=["more is dropped meanwhile", "asking fails"])
def test_what_was_dropped_is_not_complete_before_all_was_sent_again(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr(newest, "MOST_TOPICS", 2)
    made = rooms({})
    publish(made, b"1", "a", "b", "c")
    with contextlib.suppress(OSError), made.mode.reads.resubscribing():
        if fails:
            raise OSError("gone")
    if not fails:
        publish(made, b"1", "d")
    assert error_code(made.ask("GET", "/all")) == "response_too_large"


def test_one_message_is_kept_whatever_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest, "MOST_BYTES", 100)
    kept = NewestMessages("a")
    kept.put("a", b"x" * 200)
    assert ({topic: one.payload for topic, one in kept.topics.items()}, kept.is_complete) == ({"a": b"x" * 200}, True)


def test_long_topics_count_for_the_bytes_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest, "MOST_BYTES", 100_000)
    kept = NewestMessages("+")
    for number in range(100):
        kept.put(f"{number}{'x' * 10_000}", b"")
    assert sum(map(len, kept.topics)) <= 100_000
    assert kept.is_complete  # those that went were removed before


# Streams.


def streams(*topics: tuple[str, bytes], source: str = FILTER, **settings: Any) -> Answering:
    made = port(event("GET", "/stream", None, source=source, stream=True), **settings)
    for name, payload in topics:
        made.broker.changed(name, payload)
    return made


def of_rooms() -> Answering:
    """Streams of what is below the level that the path names."""
    source = "home/{path.room}/+"
    return port(event("GET", "/{room}", None, source=source, read_topic=topic(source), stream=True))


class Reader:
    """A caller that reads a stream; `ids` are those of the events so far."""

    def __init__(self, made: Answering, path: str = "/stream", **headers: str) -> None:
        answer = made.begin("GET", path, **headers)
        assert isinstance(answer, Response)
        assert answer.stream is not None
        self.answer, self.stream = answer, answer.stream
        self.ids: list[str] = []

    def read(self) -> list[str]:
        """Return the data of new events, as a browser reads them."""
        piece = self.stream.take()
        found: list[str] = []
        for block in piece.decode().split("\n\n") if isinstance(piece, bytes) else []:
            fields: dict[str, list[str]] = {}
            for line in block.split("\n"):
                name, _, value = line.partition(": ")
                fields.setdefault(name, []).append(value)
            if "data" in fields:
                found.append("\n".join(fields["data"]))
                self.ids += fields["id"]
        return found

    def values(self) -> list[Any]:
        """Return the data of new events, which are JSON."""
        return [json.loads(data) for data in self.read()]


def test_a_stream_begins_with_the_latest_value_and_goes_on_with_each_new_one() -> None:
    made = streams(("a", b"1"), source="a")
    reader = Reader(made)
    assert (reader.read(), reader.read()) == (["1"], [])
    for payload in (b"2", b"two\r\nlines", "\u00e4".encode(), b"\xff", b""):
        made.broker.changed("a", payload)
        assert reader.read() == [payload.decode(errors="replace").replace("\r\n", "\n")]
    assert len(set(reader.ids)) == 6


@pytest.mark.parametrize("payloads", [[b"%d" % number for number in range(100)], [b"x" * 20_000, b"y" * 20_000]])
def test_a_slow_reader_gets_the_newest_value_only(payloads: list[bytes]) -> None:
    made = streams(("a", b"0"), source="a")
    reader = Reader(made)
    reader.read()
    for payload in payloads:
        made.broker.changed("a", payload)
    assert reader.read() == [payloads[-1].decode()]


@pytest.mark.parametrize("before", [[("home/a/t", b"0")], []], ids=["after a message", "before the first one"])
def test_a_reader_gets_each_value_although_the_port_is_behind(before: list[tuple[str, bytes]]) -> None:
    made = streams(*before, source="home/a/t")
    reader = Reader(made)
    assert reader.read() == ["0"] * len(before)
    for payload in (b"1", b"2", b"3"):
        made.broker.changed("home/a/t", payload)
    assert (reader.read(), reader.read()) == (["1", "2", "3"], [])


@pytest.mark.parametrize("before", [[("home/a/t", b"0"), ("home/b/t", b"x")], []], ids=["after messages", "before"])
def test_a_reader_of_a_filter_gets_the_topics_that_have_changed_although_the_port_is_behind(
    before: list[tuple[str, bytes]],
) -> None:
    made = streams(*before)
    reader = Reader(made)
    assert reader.values() == [{"home/a/t": 0, "home/b/t": "x"} if before else {}]
    for name, payload in (("a", b"1"), ("b", b'{\n"y": 2}'), ("a", b"2"), ("a", b"")):
        made.broker.changed(f"home/{name}/t", payload)
    assert reader.values() == [{"home/a/t": 1, "home/b/t": {"y": 2}}, {"home/a/t": 2}, {"home/a/t": None}]
    assert reader.values() == []
    assert [len(Reader(made, Last_Event_ID=last).read()) for last in reader.ids[1:]] == [2, 1, 0]


def test_a_retained_message_that_comes_again_with_a_subscription_changes_nothing() -> None:
    made = streams(("home/a/t", b"1"))
    reader = Reader(made)
    reader.read()
    for payload, values in ((b"1", []), (b"2", [{"home/a/t": 2}])):
        made.mode.see(Message("home/a/t", payload, 0.0), retained=True)
        assert reader.values() == values


def test_a_stream_of_a_filter_that_the_path_names_is_silent_on_what_others_read_but_for_a_comment_each_15_s() -> None:
    made = of_rooms()
    made.broker.changed("home/bath/t", b"1")
    reader = Reader(made, "/bath")
    reader.read()
    made.broker.changed("home/hall/t", b"2")
    assert reader.stream.take() == 15.0
    made.clock.advance(15.0)
    assert (reader.stream.take(), reader.stream.take()) == (b": still here\n\n", 15.0)
    assert Reader(made, "/bath", Last_Event_ID=reader.ids[0]).stream.take() == b"retry: 2000\n\n"
    made.broker.changed("home/bath/t", b"3")
    assert reader.values() == [{"home/bath/t": 3}]


@pytest.mark.parametrize("source", ["home/a/t", FILTER])
def test_a_reader_that_names_the_last_event_is_not_sent_it_again(source: str) -> None:
    made = streams(("home/a/t", b"1"), source=source)
    first = Reader(made)
    first.read()
    again = Reader(made, Last_Event_ID=first.ids[0])
    assert again.stream.take() == b"retry: 2000\n\n"
    made.broker.changed("home/a/t", b"2")
    assert len(again.read()) == 1
    for last in (first.ids[0], "", "x", f"{first.ids[0]}9", "-1", "\u00b2"):
        assert len(Reader(made, Last_Event_ID=last).read()) == 1


def test_the_id_of_an_event_says_nothing_of_another_filter_or_of_one_that_a_reload_brings_back() -> None:
    made = streams(("home/a/t", b"1"))
    before = Reader(made)
    before.read()
    made.use()
    made.use(*made.routes)
    for name in ("home/a/t", "home/b/t"):
        made.broker.changed(name, b"2")
    assert Reader(made, Last_Event_ID=before.ids[0]).values() == [{"home/a/t": 2, "home/b/t": 2}]


@pytest.mark.parametrize("source", ["home/a/t", FILTER])
def test_readers_who_are_alike_share_the_bytes_of_an_event(source: str) -> None:
    made = streams(("home/a/t", b"1"), source=source)
    readers = [Reader(made) for _ in range(3)]
    for reader in readers:
        reader.read()
    for payload, most in ((b"2", 3), (b"3", 1)):
        made.broker.changed("home/a/t", payload)
        assert len({id(piece) for piece in [reader.stream.take() for reader in readers]}) <= most


def test_readers_of_the_same_part_of_a_filter_share_too() -> None:
    made = of_rooms()
    readers = [Reader(made, f"/{room}") for room in ("bath", "hall", "bath")]
    for reader in readers:
        reader.read()
    made.broker.changed("home/bath/t", b"2")
    first, other, third = (reader.stream.take() for reader in readers)
    assert first is third
    assert isinstance(other, float)


def test_events_that_no_two_readers_share_are_not_kept() -> None:
    made = streams(("home/a/t", b"0"))
    for number in range(300):
        made.broker.changed("home/a/t", b"%0800d" % number)
    first = Reader(made)
    first.read()
    instance = first.ids[0].rpartition("-")[0]
    tracemalloc.start()
    try:
        for number in range(300):
            reader = Reader(made, Last_Event_ID=f"{instance}-{number}")
            reader.read()
            assert reader.ids[-1] == first.ids[0]
            reader.stream.close()
        made.broker.runs.clear()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 320_000  # of 900,000 that were sent
    finally:
        tracemalloc.stop()


def test_there_are_so_many_streams_and_one_that_has_ended_makes_room() -> None:
    made = streams(source="a")
    readers = [Reader(made) for _ in range(MOST_STREAMS)]
    result = made.ask("GET", "/stream")
    assert (result.status_code, error_code(result)) == (503, "overloaded")
    assert result.headers["retry-after"]
    statistics = made.broker.statistics.statistics["Hooks"]
    assert made.mode.reads.readers["Hooks"] == statistics.readers == MOST_STREAMS
    reader = readers.pop()
    assert (reader.read(), reader.read()) == ([], [])  # it waits for a message
    reader.stream.close()
    assert statistics.readers == MOST_STREAMS - 1
    Reader(made)


def test_a_stop_ends_all_streams_and_a_reload_those_whose_definition_has_changed() -> None:
    made = streams(source="a")
    stream = Reader(made).stream
    made.use(*made.routes)
    assert stream.take() != b""
    (route,) = made.routes
    made.use(replace(route, config=replace(route.config, enable_cors=True)))
    assert stream.take() == b""
    last = Reader(made).stream
    made.mode.stop()
    assert last.take() == b""
    assert error_code(made.ask("GET", "/stream")) == "overloaded"


def test_a_stream_whose_object_grows_too_large_ends_and_the_next_one_is_refused() -> None:
    made = streams(("home/a/t", b"1"))
    stream = Reader(made).stream
    stream.take()
    made.broker.changed("home/a/t", b"x" * 2000)
    assert stream.take() == b""
    assert error_code(made.ask("GET", "/stream")) == "response_too_large"


def test_a_stream_asks_for_credentials_and_has_the_headers_of_cors_as_other_endpoints_have() -> None:
    settings = {"server_username": "u", "server_password": "p", "enable_cors": True, "cors_origins": ("http://a",)}
    made = streams(("a", b"1"), source="a", **settings)
    assert made.ask("GET", "/stream", Origin="http://a").status_code == 401
    admitted = {"Origin": "http://a", "Authorization": "Basic dTpw"}
    answer, head = Reader(made, **admitted).answer, made.begin("HEAD", "/stream", **admitted)
    headers = dict(answer.headers)
    assert headers["Content-Type"] == "text/event-stream"
    assert headers["Access-Control-Allow-Origin"] == "http://a"
    assert isinstance(head, Response)
    assert (head.status, head.stream, head.headers) == (answer.status, None, answer.headers)

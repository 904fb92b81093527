"""ON_CHANGE: what is sent are the changes of each topic, whatever fails, comes at once or is forgotten."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from amqtt_rest_bridge.__main__ import main
from amqtt_rest_bridge.calls.call import OpenCall, PreparedEvent, Step
from amqtt_rest_bridge.calls.stages import Means, OnChange, prepare
from amqtt_rest_bridge.engine.requests import BuiltRequest
from amqtt_rest_bridge.errors import FailureCode
from amqtt_rest_bridge.group.slots import plan
from amqtt_rest_bridge.link.frames import SKIPPED, CallResult, Results
from amqtt_rest_bridge.model import HttpResponse, Message, Route, RunIds
from tests.bridge.engine_rig import FINE, Rig
from tests.support.embedded_broker import hosting
from tests.support.gate import Gate
from tests.support.http_recorder import Recorder
from tests.support.route_text import load_text, messages
from tests.support.waiting import SECONDS

CHANGES = 'WITH ON_CHANGE "{payload}"'
REFUSED = HttpResponse(400, "Bad Request", (), b"", 0.0)


def route(settings: str = CHANGES) -> Route:
    (one,) = load_text(f"""
        DEFINE ROUTE R WITH TYPE REST_API
            ADD REST_API_CONFIG WITH BASE_ADDRESS "http://host.test" WITH ENABLE_CLIENT "true" WITH RETRIES 0
            ADD EVENT E WITH SOURCE_TOPIC "in/#" WITH METHOD "POST" WITH ENDPOINT "/" WITH BODY "{{payload}}" {settings}
    """).routes
    return one


class Topics:
    """Calls of an event one after the other, by a clock that a test sets."""

    def __init__(self, settings: str = CHANGES) -> None:
        self.now = 0.0
        one = route(settings)
        means = Means(lambda: 0.0, lambda: 0.5, RunIds(), monotonic=lambda: self.now)
        self.event: PreparedEvent = prepare(one, one.client_events[0], max_body_bytes=1000, means=means)
        (self.stage,) = (stage for stage in self.event.stages if isinstance(stage, OnChange))

    def send(self, payload: bytes, topic: str = "in/a", answer: HttpResponse = FINE) -> Step:
        call = OpenCall(0, self.event, Message(topic, payload, 0.0))
        begun = self.event.begin(call)
        return self.event.judge(call, answer).step if isinstance(begun, BuiltRequest) else begun.step


def test_a_message_whose_text_is_the_last_one_of_its_topic_is_skipped() -> None:
    topics = Topics()
    steps = [topics.send(payload) for payload in (b"1", b"1", b"2", b"2", b"1")]
    assert steps == [Step.DONE, Step.SKIPPED, Step.DONE, Step.SKIPPED, Step.DONE]
    assert topics.send(b"1", "in/b") is Step.DONE


def test_what_is_compared_is_the_text() -> None:
    topics = Topics("WITH ON_CHANGE '{value.json.on}'")
    assert topics.send(b'{"on": true, "at": 1}') is Step.DONE
    assert topics.send(b'{"on": true, "at": 2}') is Step.SKIPPED
    assert topics.send(b'{"on": false, "at": 3}') is Step.DONE


def test_octets_are_compared_byte_for_byte() -> None:
    topics = Topics()
    assert [topics.send(payload) for payload in (b"\xff", b"\xff", b"\xfe")] == [Step.DONE, Step.SKIPPED, Step.DONE]


def test_a_text_that_cannot_be_filled_fails_the_call_and_a_default_fills_it() -> None:
    topics = Topics("WITH ON_CHANGE '{value.json.on}'")
    call = OpenCall(0, topics.event, Message("in/a", b"{}", 0.0))
    begun = topics.event.begin(call)
    assert not isinstance(begun, BuiltRequest)
    assert begun.failure is not None
    assert begun.failure.code is FailureCode.PLACEHOLDER_UNRESOLVED
    topics = Topics("WITH ON_CHANGE '{value.json.on|none}'")
    assert [topics.send(b"{}"), topics.send(b"{}")] == [Step.DONE, Step.SKIPPED]


def test_a_call_that_failed_was_not_seen() -> None:
    topics = Topics()
    assert [topics.send(b"1", answer=REFUSED), topics.send(b"1"), topics.send(b"1")] == [
        *(Step.FAILED, Step.DONE, Step.SKIPPED)
    ]
    assert [topics.send(b"2", answer=REFUSED), topics.send(b"1")] == [Step.FAILED, Step.SKIPPED]


def test_a_message_that_is_not_wanted_is_not_remembered() -> None:
    topics = Topics("WITH ON_CHANGE '{payload}' WITH WHEN \"{payload} != '2'\"")
    assert [topics.send(one) for one in (b"1", b"2", b"1")] == [Step.DONE, Step.SKIPPED, Step.SKIPPED]


def test_the_same_text_is_sent_again_after_its_time() -> None:
    topics = Topics("WITH ON_CHANGE '{payload}' WITH ON_CHANGE_FOR '1h'")
    steps = []
    for topics.now in (0.0, 3599.0, 3600.0, 7199.0, 7200.0):
        steps.append(topics.send(b"1"))
    assert steps == [Step.DONE, Step.SKIPPED, Step.DONE, Step.SKIPPED, Step.DONE]


def test_a_publisher_that_invents_topics_has_others_sent_once_more() -> None:
    event = route().client_events[0]
    assert event.on_change is not None
    topics = Topics()
    stage = OnChange(event.on_change, None, lambda: 0.0, most=3)
    topics.event = PreparedEvent(route(), event, [stage], RunIds(), max_body_bytes=10)
    for number in range(1000):
        assert topics.send(b"1", f"in/{number}") is Step.DONE
    assert [topics.send(b"1", f"in/{number}") for number in (996, 997, 999)] == [
        *(Step.DONE, Step.DONE, Step.SKIPPED)  # 996 has pushed out 997
    ]


def test_of_ten_thousand_messages_on_a_hundred_topics_exactly_the_changes_are_sent() -> None:
    chance, topics = random.Random(7), Topics()
    state = dict.fromkeys((f"in/{number}" for number in range(100)), b"")
    expected = sent = 0
    for number in range(10_000):
        topic = f"in/{number % 100}"
        value = b"%d" % number if not state[topic] or chance.random() < 0.01 else state[topic]
        expected += value != state[topic]
        state[topic] = value
        sent += topics.send(value, topic) is Step.DONE
    assert sent == expected
    assert 150 < sent < 250


# In a bridge process.


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def codes(rig: Rig, count: int) -> list[str | None]:
    found: list[CallResult] = []
    while len(found) < count:
        found += rig.frame(Results).results
    return [one.code for one in sorted(found, key=lambda one: one.call)]


@pytest.mark.parametrize("fails", [False, True])
def test_a_message_behind_an_equal_one_that_is_under_way_waits_for_its_end(rig: Rig, *, fails: bool) -> None:
    gate = Gate()
    answers = [REFUSED if fails else FINE, FINE]
    rig.network.answer = gate.before(lambda _: answers.pop(0))
    rig.use(route())
    rig.call(b"1", "in/a")
    rig.call(b"1", "in/a")
    gate.entered.get(timeout=SECONDS)
    gate.open.set()
    assert codes(rig, 2) == (["http_status", None] if fails else [None, SKIPPED])


def test_a_reload_that_changes_nothing_in_the_route_keeps_what_is_known(rig: Rig) -> None:
    rig.use(route())
    rig.call(b"1", "in/a")
    assert codes(rig, 1) == [None]
    rig.use(replace(route()), replace(route(), name="other"))
    rig.call(b"1", "in/a")
    assert codes(rig, 1) == [SKIPPED]
    rig.use(route("WITH ON_CHANGE '{payload}' WITH ON_CHANGE_FOR '1h'"))
    rig.call(b"1", "in/a")
    assert codes(rig, 1) == [None]


def test_a_text_without_placeholders_and_a_time_without_a_text_are_warned_of() -> None:
    event = """DEFINE ROUTE R WITH TYPE REST_API
    ADD REST_API_CONFIG WITH BASE_ADDRESS "http://localhost" WITH ENABLE_CLIENT "true"
    ADD EVENT E WITH SOURCE_TOPIC "in" WITH METHOD "POST" WITH ENDPOINT "/" """
    (constant,) = messages(event + 'WITH ON_CHANGE "state"')
    assert "warning: ON_CHANGE has no placeholder: only the first message of each topic is sent" in constant
    (lone,) = messages(event + 'WITH ON_CHANGE_FOR "1h"')
    assert "warning: ON_CHANGE_FOR has no effect without ON_CHANGE" in lone
    (levels,) = messages(event + 'WITH ON_CHANGE "{topic.2}"')
    assert "error: ON_CHANGE uses {topic.2}" in levels


def test_a_test_file_has_a_message_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.lot").write_text(f"""DEFINE ROUTE R WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "http://h" WITH ENABLE_CLIENT "true"
        ADD EVENT E WITH SOURCE_TOPIC "in" WITH METHOD "GET" WITH ENDPOINT "/" {CHANGES}""")
    (tmp_path / "r.test.yaml").write_text("""tests:
        - {message: {topic: in, payload: 1}, twice: true, sends: [{url: "http://h/"}], skipped: true}""")
    assert main(["test", str(tmp_path)]) == 0
    assert "1 passed, 0 failed" in capsys.readouterr().out


# In a worker, and in a broker with two bridge processes.


def test_the_slots_of_workers_share_the_topics_of_such_an_event() -> None:
    (session,) = plan([route()], "plant").sessions.values()
    assert [(feed.topic_filter, feed.by_slot) for feed in session.feeds] == [("in/#", True)]


def test_two_bridge_processes_know_the_last_text_of_each_topic(target: Recorder) -> None:
    text = f"""DEFINE ROUTE R WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "{target.url}" WITH ENABLE_CLIENT "true"
        ADD EVENT E WITH SOURCE_TOPIC "in/#" WITH METHOD "POST" WITH ENDPOINT "/" WITH BODY '"{{topic}}"'
            WITH DESTINATION_TOPIC "out" {CHANGES}"""
    with hosting(text, processes=2) as host:
        client = host.client("out")
        for payload in (b"1", b"1", b"1", b"2"):
            for number in range(8):
                client.publish(f"in/{number}", payload)
        client.messages(16)
    assert sorted(target.request().body for _ in range(16)) == sorted(b'"in/%d"' % (one // 2) for one in range(16))

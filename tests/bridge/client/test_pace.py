"""RATE_LIMIT and RETRY_ON: how often the server is asked, and that a call that waits for its turn holds no worker."""

import itertools
import json
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from amqtt_rest_bridge.bridge.timers import Pace, Timers
from tests.support.embedded_broker import Client, Host, hosting
from tests.support.gate import Gate
from tests.support.http_recorder import Recorder
from tests.support.http_target import Peer, Seen, Target, reply
from tests.support.waiting import eventually

ROUTE = """
    DEFINE ROUTE R WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "{url}" WITH ENABLE_CLIENT "true"
        ADD ROUTE_CONFIG WITH OVERLOAD_CAPACITY '100' {route}
        ADD EVENT E WITH SOURCE_TOPIC "in" WITH METHOD "POST" WITH ENDPOINT "/" WITH BODY "{{payload}}"
            WITH DESTINATION_TOPIC "out" {event}
"""


class FakeTimers(Timers):
    """Timers whose time is set by the test."""

    def __init__(self) -> None:
        self.now = 0.0
        self._actions: list[tuple[float, Callable[[], object]]] = []

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        self._actions.append((self.now + seconds, action))

    def run_until(self, now: float) -> None:
        while due := sorted((entry for entry in self._actions if entry[0] <= now), key=lambda entry: entry[0]):
            self._actions.remove(due[0])
            self.now = due[0][0]
            due[0][1]()
        self.now = now


class Turns:
    """A pace whose turns are noted, with their time; each ends at once with a request."""

    def __init__(self, seconds: float) -> None:
        self.timers = FakeTimers()
        self.pace = Pace(self.timers, lambda: self.timers.now)
        self.pace.change(seconds)
        self.given: list[tuple[float, str]] = []

    def enter(self, name: str, end: Callable[[], None] | None = None, *, first: bool = False) -> None:
        def start() -> None:
            self.given.append((self.timers.now, name))
            (end or self.pace.sending)()

        self.pace.enter(start, first=first)


def test_what_enters_starts_in_its_order_at_an_even_pace() -> None:
    turns = Turns(0.5)
    for name in "abc":
        turns.enter(name)
    turns.timers.run_until(10.0)
    turns.enter("d")
    turns.timers.run_until(20.0)
    assert turns.given == [(0.0, "a"), (0.5, "b"), (1.0, "c"), (10.0, "d")]


def test_what_goes_on_has_the_next_turn() -> None:
    turns = Turns(0.5)
    for name in "abc":
        turns.enter(name)
    turns.timers.run_until(0.1)
    turns.enter("a again", first=True)
    turns.timers.run_until(10.0)
    assert turns.given == [(0.0, "a"), (0.5, "a again"), (1.0, "b"), (1.5, "c")]


def test_a_changed_limit_holds_at_once_for_what_waits() -> None:
    turns = Turns(3600.0)
    for name in "abc":
        turns.enter(name)
    turns.timers.run_until(5.0)
    turns.pace.change(1.0)
    turns.timers.run_until(6.5)
    turns.pace.change(0.0)
    turns.timers.run_until(7.0)
    assert turns.given == [(0.0, "a"), (5.0, "b"), (6.0, "c")]


def test_workers_that_share_a_limit_have_equal_parts_of_it() -> None:
    turns = Turns(0.5)
    turns.pace.share(3)
    for name in "abc":
        turns.enter(name)
    turns.timers.run_until(2.0)
    turns.pace.share(1)
    turns.timers.run_until(10.0)
    assert turns.given == [(0.0, "a"), (1.5, "b"), (2.0, "c")]


def test_a_request_that_is_sent_long_after_its_turn_came_delays_the_next_turn() -> None:
    turns = Turns(0.5)
    turns.enter("a", lambda: None)
    turns.enter("b")
    turns.timers.run_until(10.0)
    turns.pace.change(0.5)
    turns.timers.run_until(20.0)
    assert turns.given == [(0.0, "a")]
    turns.pace.sending()
    turns.timers.run_until(30.0)
    assert turns.given == [(0.0, "a"), (20.5, "b")]


def test_a_turn_that_sends_nothing_is_the_next_calls_at_once() -> None:
    turns = Turns(0.5)
    turns.enter("a")
    turns.enter("b", turns.pace.decline)
    turns.enter("c")
    turns.timers.run_until(10.0)
    assert turns.given == [(0.0, "a"), (0.5, "b"), (0.5, "c")]


@pytest.mark.parametrize("processes", [0, 2])
def test_the_server_sees_no_more_requests_than_the_limit(target: Recorder, processes: int) -> None:
    times: list[float] = []

    def answer(_: object) -> tuple[int, bytes]:
        times.append(time.monotonic())
        return 200, b""

    target.answer = answer
    text = ROUTE.format(url=target.url, route='WITH RATE_LIMIT "20/s"', event="")
    with hosting(text, processes=processes, workers=2) as host:
        client = host.client("out")
        began = time.monotonic()
        for _ in range(20):
            client.publish("in", b"1")
        client.messages(2)
        statistics = host.plugin.service.statistics["R"]
        eventually(lambda: statistics.admission.in_flight <= 2, "what waits for its turn is not counted as queued")
        assert statistics.retried == 0
        client.messages(18)
    # From before the first one is sent, which a starved server may note late.
    assert len(times) == 20
    assert times[-1] - began >= 19 / 20


LIMITED = """
    DEFINE ROUTE R WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "http://127.0.0.1:{port}" WITH ENABLE_CLIENT "true" {config}
        ADD ROUTE_CONFIG WITH RATE_LIMIT "{limit}"
        ADD EVENT E WITH SOURCE_TOPIC "in" WITH METHOD "{method}" WITH ENDPOINT "/a"
            WITH DESTINATION_TOPIC "out" {event}
"""
OAUTH2 = """WITH OAUTH2_TOKEN_URL "http://127.0.0.1:{port}/token"
    WITH OAUTH2_CLIENT_ID "me" WITH OAUTH2_CLIENT_SECRET "s3cret" """
TOKEN = reply(b'{"access_token": "t", "token_type": "bearer"}')


Answers = Callable[[Peer, Seen, int], None]
"""Answers a request, the nth of its connection."""


def unauthorized(peer: Peer, seen: Seen, _: int) -> None:
    peer.send(TOKEN if seen.path == "/token" else reply(b"", "401 Unauthorized"))


def redirecting(peer: Peer, seen: Seen, _: int) -> None:
    further = reply(b"", "307 Temporary Redirect", f"Location: {seen.path}a")
    peer.send(reply(b"") if seen.path == "/aaaa" else further)


def busy(peer: Peer, _: Seen, __: int) -> None:
    peer.send(reply(b"", "503 Service Unavailable"))


def hanging_up(peer: Peer, _: Seen, number: int) -> None:
    if number > 1:
        peer.sock.shutdown(socket.SHUT_RDWR)
    else:
        peer.send(reply(b""))


@pytest.mark.parametrize(
    ("answer", "method", "config", "requests"),
    [
        pytest.param(unauthorized, "POST", OAUTH2, 12, id="401 with OAuth2"),
        pytest.param(redirecting, "GET", "", 24, id="redirects"),
        pytest.param(busy, "POST", "WITH RETRIES 1", 12, id="retries"),
        pytest.param(hanging_up, "PUT", "", 11, id="repeated over a new connection"),
    ],
)
def test_each_request_of_a_call_takes_a_turn(answer: Answers, method: str, config: str, requests: int) -> None:
    arrived: list[float] = []

    def script(peer: Peer) -> None:
        for number in itertools.count(1):
            if (seen := peer.request()) is None:
                return
            if seen.path != "/token":
                arrived.append(time.monotonic())
            answer(peer, seen, number)

    calls, per_second = 6, 20
    with Target(script) as target:
        text = LIMITED.format(
            port=target.port, limit=f"{per_second}/s", method=method, event="", config=config.format(port=target.port)
        )
        with hosting(text, workers=1) as host:  # a second one would open a connection of its own beside a slow answer
            client = host.client("out")
            began = time.monotonic()
            for _ in range(calls):
                client.publish("in", b"1")
            client.messages(calls)
    assert len(arrived) == requests
    assert arrived[-1] - began >= (requests - 1) / per_second


def test_the_timeout_of_a_request_does_not_count_what_it_waits_for_its_turns() -> None:
    def script(peer: Peer) -> None:
        while (seen := peer.request()) is not None:
            redirecting(peer, seen, 0)

    with Target(script) as target:
        config = "WITH REQUEST_TIMEOUT 2 WITH RETRIES 0"  # one second was too little for a starved machine
        with hosting(LIMITED.format(port=target.port, limit="1/s", method="GET", event="", config=config)) as host:
            client = host.client("out")
            client.publish("in", b"1")
            assert client.message() == ("out", b"")


WANTED = """WITH BODY "{{value.json.text}}" WITH WHEN '{{value.json.level}} >= 3'"""


@pytest.fixture
def patient(target: Recorder) -> Iterator[tuple[Host, Client]]:
    """Run a route that sends one request an hour, and only for a level of 3 and more."""
    text = LIMITED.format(port=target.port, limit="1/h", method="POST", config="", event=WANTED.format())
    with hosting(text, workers=1) as host:
        yield host, host.client("out")


def test_skipped_and_unfilled_messages_take_no_turn(target: Recorder, patient: tuple[Host, Client]) -> None:
    host, client = patient
    for _ in range(50):
        client.publish("in", b'{"level": 1}')
        client.publish("in", b'{"level": 5}')
    client.publish("in", b'{"level": 5, "text": "fire"}')
    payloads = Counter(payload for _, payload in client.messages(51))
    assert payloads.pop(b'"fire"') == 1
    assert {json.loads(payload)["error"]["code"] for payload in payloads} == {"placeholder_unresolved"}
    eventually(lambda: host.plugin.service.statistics["R"].skipped == 50, "a skipped message waits")
    assert len(target.requests) == 1


@pytest.mark.parametrize("hangs", [False, True], ids=["server answers", "server hangs"])
def test_what_sends_nothing_leaves_a_long_queue_at_once(
    target: Recorder, patient: tuple[Host, Client], hangs: bool
) -> None:
    host, client = patient
    gate = Gate()
    if hangs:
        target.answer = gate.before(target.answer)
    for _ in range(100):
        client.publish("in", b'{"level": 5, "text": "fire"}')
    target.request()
    client.publish("in", b'{"level": 1}')
    client.publish("in", b'{"level": 5}')
    codes = [payload for _, payload in client.messages(1 if hangs else 2)]
    assert json.loads(codes[-1])["error"]["code"] == "placeholder_unresolved"
    statistics = host.plugin.service.statistics["R"]
    eventually(lambda: statistics.skipped == 1, "the skipped message waits")
    left = 100 if hangs else 99
    eventually(lambda: statistics.admission.outstanding == left, "what has ended is counted as waiting")
    gate.open.set()


def test_calls_begin_in_the_order_of_arrival(target: Recorder) -> None:
    with hosting(ROUTE.format(url=target.url, route='WITH RATE_LIMIT "1000/s"', event=""), workers=1) as host:
        client = host.client("out")
        for number in range(50):
            client.publish("in", b"%d" % number)
        assert [int(target.request().body) for _ in range(50)] == list(range(50))
        client.messages(50)


def test_other_statuses_are_retried_for_any_method_where_the_event_says_so(target: Recorder) -> None:
    answers = itertools.chain([(500, b""), (404, b"")], itertools.repeat((200, b"well")))
    target.answer = lambda _: next(answers)
    with hosting(ROUTE.format(url=target.url, route="", event='WITH RETRY_ON "404, 500-501"')) as host:
        client = host.client("out")
        client.publish("in", b"1")
        assert client.message() == ("out", b"well")
        assert host.plugin.service.statistics["R"].retried == 2

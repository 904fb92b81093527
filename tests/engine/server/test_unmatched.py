"""Requests that lead to no endpoint: counted by port and path, shown with the endpoint that was meant, bounded."""

import logging
import random
import tracemalloc
from collections import Counter

import pytest

from amqtt_rest_bridge.engine.server.unmatched import (
    MOST_SHOWN,
    FrequentKeys,
    NearestEndpoint,
    UnmatchedPath,
    UnmatchedRequests,
)
from amqtt_rest_bridge.lot.model import RestApiConfig, Route, ServerEvent
from tests.support.answering import VirtualClock, port
from tests.support.server_mode import NOW, event

PORT = 8080


class Counting:
    """A port whose requests lead to no endpoint."""

    def __init__(self, *events: ServerEvent, secrets: frozenset[str] = frozenset()) -> None:
        self.clock = VirtualClock()
        self.unmatched = UnmatchedRequests(self.clock)
        self.use(Route("Hooks", self.config(), server_events=events or (event(),), secrets=secrets))

    @staticmethod
    def config(number: int = PORT) -> RestApiConfig:
        return RestApiConfig(enable_server=True, server_port=number)

    def use(self, route: Route) -> None:
        self.unmatched.use_routes([route])

    def ask(self, path: str, count: int = 1, *, method: str = "POST", status: int = 404) -> None:
        for _ in range(count):
            self.unmatched.note(PORT, method, path, status)

    def most(self) -> list[UnmatchedPath]:
        return self.unmatched.most_frequent()


def test_the_most_frequent_key_is_never_missed_and_never_overcounted() -> None:
    keys = ["often"] * 600 + ["seldom"] * 40 + [f"once {number}" for number in range(20_000)]
    random.Random(7).shuffle(keys)
    frequent: FrequentKeys[str] = FrequentKeys(128)
    for key in keys:
        frequent.add(key)
    truth = Counter(keys)
    assert all(count <= truth[key] for key, count in frequent.most_frequent(128))
    assert frequent.most_frequent(1)[0][0] == "often"


def test_paths_are_counted_the_most_frequent_first() -> None:
    counting = Counting()
    counting.ask("/webhok", 3)
    counting.clock.advance(5)
    counting.ask("/webhok", 2)
    counting.ask("/hook", method="PUT", status=405)
    assert counting.most() == [
        UnmatchedPath(PORT, "POST", "/webhok", 404, 5, NOW, NOW + 5, None),
        UnmatchedPath(
            PORT, "PUT", "/hook", 405, 1, NOW + 5, NOW + 5, NearestEndpoint("POST", "/hook", "Hooks", "Event")
        ),
    ]
    assert counting.unmatched.totals() == {PORT: 6}


@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_a_scanner_with_a_million_paths_takes_bounded_memory_and_hides_no_frequent_one(count: int) -> None:
    counting = Counting()
    tracemalloc.start()
    try:
        for number in range(count):  # a million takes a minute and as little memory
            counting.ask(f"/scan/{number}/" + "x" * 2_000)
            if number % 20 == 0:
                counting.ask("/webhok")
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 3 << 19
    shown = counting.most()
    assert len(shown) == MOST_SHOWN
    assert shown[0].path == "/webhok" and 0.03 * count < shown[0].count <= count // 20
    assert all(len(one.path) <= 200 for one in shown)
    assert counting.unmatched.totals() == {PORT: count + count // 20}


@pytest.mark.parametrize(
    ("sent", "endpoint", "is_near"),
    [
        pytest.param("/webhok", "/webhook", True, id="a letter is missing"),
        pytest.param("/Webhook", "/webhook", True, id="case"),
        pytest.param("/webhook/", "/webhook", True, id="a slash at the end"),
        pytest.param("/api/v2/webhook", "/webhook", True, id="a prefix that a proxy left"),
        pytest.param("/webhook", "/api/v2/webhook", True, id="a prefix that a proxy took"),
        pytest.param("/rooms/7/temprature", "/rooms/{room}/temperature", True, id="beside a parameter"),
        pytest.param("/caf%C3%A8", "/café", True, id="encoded"),
        pytest.param("/hook", "/hook", True, id="another method"),
        pytest.param("/wp-login.php", "/webhook", False, id="something else"),
        pytest.param("/", "/webhook", False, id="the root"),
        pytest.param("/../../etc/passwd", "/webhook", False, id="a scanner"),
    ],
)
def test_the_endpoint_that_was_meant_is_named(sent: str, endpoint: str, is_near: bool) -> None:
    counting = Counting(event(endpoint=endpoint, name="Received"))
    counting.ask(sent, method="PUT")
    (shown,) = counting.most()
    assert shown.nearest == (NearestEndpoint("POST", endpoint, "Hooks", "Received") if is_near else None)


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        pytest.param("/hok?token=hush", "/hok", id="a query"),
        pytest.param("/hok%3Ftoken=hush", "/hok", id="an encoded query"),
        pytest.param("/hok#token=hush", "/hok", id="a fragment"),
        pytest.param("/hok/hush-hush-1", "/hok/***", id="a secret"),
        pytest.param("/hok/hush%2Dhush%2D1", "/hok/***", id="an encoded secret"),
        pytest.param("/a\r\nb\x1b[2J\x85\u202e", "/a\\r\\nb\\x1b[2J\\x85\\u202e", id="what cannot be seen"),
    ],
)
def test_no_query_no_secret_and_no_control_character_is_shown(
    sent: str, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    counting = Counting(secrets=frozenset({"hush-hush-1"}))
    counting.ask(sent)
    assert [one.path for one in counting.most()] == [shown]
    (line,) = caplog.messages
    assert "hush" not in line
    assert line.isprintable()


def test_the_log_names_the_first_at_once_and_then_the_most_frequent_of_each_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counting = Counting()
    counting.ask("/hok")
    told = "1 request(s) led to no endpoint; most: POST /hok (404, 1x, nearest: POST /hook of route Hooks)"
    assert caplog.messages == [f"port 8080: {told}"]
    assert caplog.records[0].levelno == logging.WARNING
    for path, count in (("/a", 1), ("/b", 4), ("/c", 3), ("/d", 2)):
        counting.ask(path, count)
    assert len(caplog.messages) == 1
    counting.clock.advance(60)
    told = "10 request(s) led to no endpoint; most: POST /b (404, 4x); POST /c (404, 3x); POST /d (404, 2x)"
    assert caplog.messages[1:] == [f"port 8080: {told}"]
    counting.clock.advance(120)
    assert len(caplog.messages) == 2
    counting.ask("/e")
    assert len(caplog.messages) == 3
    counting.ask("/e")
    counting.unmatched.flush()
    assert len(caplog.messages) == 4


def test_a_reload_keeps_the_counts_of_ports_that_stay_and_looks_for_the_nearest_endpoint_again() -> None:
    counting = Counting()
    counting.ask("/order")
    (before,) = counting.most()
    assert before.nearest is None
    counting.use(Route("Orders", counting.config(), server_events=(event(endpoint="/orders"),)))
    (after,) = counting.most()
    assert after.nearest is not None
    assert after.nearest.route == "Orders"
    counting.use(Route("Orders", counting.config(PORT + 1), server_events=(event(endpoint="/orders"),)))
    assert (counting.most(), counting.unmatched.totals()) == ([], {PORT + 1: 0})


def test_what_an_endpoint_answers_is_not_unmatched() -> None:
    hooks = port(event(), event("GET", "/last", None, source="last"), server_username="bob", server_password="x")
    hooks.ask("POST", "/hook")
    hooks.ask("GET", "/last")
    hooks.ask("OPTIONS", "/hook")
    hooks.ask("OPTIONS", "*")
    assert hooks.mode.unmatched.most_frequent() == []
    for method, path in (("POST", "/hok?a=1"), ("PUT", "/hook"), ("GET", "/%zz"), ("OPTIONS", "/x"), ("GET", "*")):
        hooks.ask(method, path)
    assert sorted((one.method, one.path, one.status) for one in hooks.mode.unmatched.most_frequent()) == [
        *(("GET", "*", 400), ("GET", "/%zz", 400), ("OPTIONS", "/x", 404), ("POST", "/hok", 404), ("PUT", "/hook", 405))
    ]


def test_a_route_with_a_thousand_endpoints_finds_the_nearest_ones_one_at_a_time() -> None:
    counting = Counting(*(event(endpoint=f"/plant/{number}/status", name=f"E{number}") for number in range(1_000)))
    for number in range(MOST_SHOWN):
        counting.ask(f"/plant/{number}/stauts")
    steps = 1
    while not counting.unmatched.find_one_nearest():
        steps += 1
    assert steps == MOST_SHOWN - 1  # the log has named the first one
    nearest = {one.nearest.path for one in counting.most() if one.nearest is not None}
    assert nearest == {f"/plant/{number}/status" for number in range(MOST_SHOWN)}

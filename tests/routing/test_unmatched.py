"""Requests that lead to no endpoint: counted by port and path, shown with the endpoint that was meant, bounded."""

import logging
import os
import random
import signal
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amqtt_rest_bridge.bridge.server.broker_access import Answers
from amqtt_rest_bridge.engine.server.unmatched import UnmatchedPath
from amqtt_rest_bridge.link.frequent import Frequent
from amqtt_rest_bridge.model import RestApiConfig, Route, ServerEvent
from amqtt_rest_bridge.routing.unmatched import MOST_SHOWN, Unmatched
from tests.support.admin_client import admin_of, server_route
from tests.support.clock import Clock
from tests.support.embedded_broker import Host, configuration, hosting
from tests.support.http_ports import Raw, get, post
from tests.support.old_server_mode import port
from tests.support.server_mode import event
from tests.support.waiting import eventually

PORT = 8080


class Counting:
    """The requests of a bridge process, and the broker's count of them."""

    def __init__(self, *events: ServerEvent, secrets: frozenset[str] = frozenset()) -> None:
        self.clock = Clock(1_000.0)
        self.broker = Unmatched(self.clock.later, self.clock)
        config = RestApiConfig(enable_server=True, server_port=PORT)
        self.broker.replace([Route("Hooks", config, server_events=events or (event(),), secrets=secrets)])
        self._answers = Answers()

    def ask(self, path: str, count: int = 1, *, method: str = "POST", status: str = "404 Not Found") -> None:
        for _ in range(count):
            self._answers.unmatched(PORT, method, path, status)

    def report(self) -> None:
        served = self._answers.take()
        self.broker.note(served.unmatched, served.unmatched_totals)

    def most(self) -> list[UnmatchedPath]:
        self.report()
        return self.broker.most()


def test_the_most_frequent_key_is_never_missed_and_never_overcounted() -> None:
    keys = ["often"] * 600 + ["seldom"] * 40 + [f"once {number}" for number in range(20_000)]
    random.Random(7).shuffle(keys)
    frequent: Frequent[str] = Frequent(128)
    for key in keys:
        frequent.add(key)
    truth = Counter(keys)
    assert len(frequent.counts()) == 128
    assert sum(count for _, count, _ in frequent.counts()) == len(keys)
    assert all(count - excess <= truth[key] <= count for key, count, excess in frequent.counts())
    assert frequent.most(1)[0][0] == "often"


def test_paths_are_counted_over_reports_the_most_frequent_first() -> None:
    counting = Counting()
    counting.ask("/webhok", 3)
    counting.report()
    counting.clock.advance(5)
    counting.ask("/webhok", 2)
    counting.ask("/hook", method="PUT", status="405 Method Not Allowed")
    first, second = counting.most()
    assert (first.port, first.method, first.path, first.status, first.count) == (PORT, "POST", "/webhok", 404, 5)
    assert (first.first, first.last) == (1_000.0, 1_005.0)
    assert (second.method, second.path, second.status, second.count) == ("PUT", "/hook", 405, 1)
    assert counting.broker.totals() == {PORT: 6}


@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_a_scanner_with_a_million_paths_takes_bounded_memory_and_hides_no_frequent_one(count: int) -> None:
    counting = Counting()
    tracemalloc.start()
    try:
        for number in range(count):  # a million takes a minute and as little memory
            counting.ask(f"/scan/{number}/" + "x" * 2_000)
            if number % 20 == 0:
                counting.ask("/webhok")
            if number % 1_000 == 999:
                counting.report()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 3 << 19
    shown = counting.most()
    assert len(shown) == MOST_SHOWN
    assert shown[0].path == "/webhok" and 0.03 * count < shown[0].count <= count // 20
    assert all(len(one.path) <= 200 for one in shown)
    assert counting.broker.totals() == {PORT: count + count // 20}


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
        pytest.param("/wp-login.php", "/webhook", False, id="something else"),
        pytest.param("/", "/webhook", False, id="the root"),
        pytest.param("/../../etc/passwd", "/webhook", False, id="a scanner"),
    ],
)
def test_the_endpoint_that_was_meant_is_named(sent: str, endpoint: str, is_near: bool) -> None:
    counting = Counting(event(endpoint=endpoint, name="Received"))
    counting.ask(sent)
    (shown,) = counting.most()
    if not is_near:
        assert shown.nearest is None
        return
    assert shown.nearest is not None
    near = shown.nearest
    assert (near.method, near.path, near.route, near.event) == ("POST", endpoint, "Hooks", "Received")


def test_another_method_of_the_path_is_the_nearest_endpoint() -> None:
    counting = Counting(event("GET", "/hook", None, source="last"), event("PUT", "/other"))
    counting.ask("/hook", method="PUT", status="405 Method Not Allowed")
    (shown,) = counting.most()
    assert shown.nearest is not None
    assert (shown.nearest.method, shown.nearest.path) == ("GET", "/hook")


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
    counting.report()
    told = "1 request(s) led to no endpoint; most: POST /hok (404, 1x, nearest: POST /hook of route Hooks)"
    assert caplog.messages == [f"port 8080: {told}"]
    assert caplog.records[0].levelno == logging.WARNING
    for path, count in (("/a", 1), ("/b", 4), ("/c", 3), ("/d", 2)):
        counting.ask(path, count)
        counting.report()
    assert len(caplog.messages) == 1
    counting.clock.advance(60)
    told = "10 request(s) led to no endpoint; most: POST /b (404, 4x); POST /c (404, 3x); POST /d (404, 2x)"
    assert caplog.messages[1:] == [f"port 8080: {told}"]
    counting.clock.advance(60)
    counting.clock.advance(60)
    assert len(caplog.messages) == 2
    counting.ask("/e")
    counting.report()
    assert len(caplog.messages) == 3
    counting.ask("/e")
    counting.report()
    counting.broker.flush()
    assert len(caplog.messages) == 4


def test_a_reload_keeps_the_counts_of_ports_that_stay_and_looks_for_the_nearest_endpoint_again() -> None:
    counting = Counting()
    counting.ask("/order")
    (before,) = counting.most()
    assert before.nearest is None
    config = RestApiConfig(enable_server=True, server_port=PORT)
    counting.broker.replace([Route("Orders", config, server_events=(event(endpoint="/orders"),))])
    (after,) = counting.most()
    assert after.nearest is not None and after.nearest.route == "Orders"
    moved = RestApiConfig(enable_server=True, server_port=PORT + 1)
    counting.broker.replace([Route("Orders", moved, server_events=(event(endpoint="/orders"),))])
    counting.ask("/order")
    assert counting.most() == []
    assert counting.broker.totals() == {PORT + 1: 0}


def test_what_an_endpoint_answers_is_not_unmatched() -> None:
    hooks = port(event(), event("GET", "/last", None, source="last"), server_username="bob", server_password="x")
    hooks.ask("POST", "/hook")
    hooks.ask("GET", "/last")
    hooks.ask("OPTIONS", "/hook")
    hooks.ask("OPTIONS", "*")
    assert not [line for line in hooks.broker.lines if "no endpoint" in line]
    for method, path in (("POST", "/hok?a=1"), ("PUT", "/hook"), ("GET", "/%zz"), ("OPTIONS", "/x"), ("GET", "*")):
        hooks.ask(method, path)
    assert [line for line in hooks.broker.lines if "no endpoint" in line] == [
        "port 8080: POST /hok led to no endpoint: 404 Not Found",
        "port 8080: PUT /hook led to no endpoint: 405 Method Not Allowed",
        "port 8080: GET /%zz led to no endpoint: 400 Bad Request",
        "port 8080: OPTIONS /x led to no endpoint: 404 Not Found",
        "port 8080: GET * led to no endpoint: 400 Bad Request",
    ]


@pytest.fixture(scope="module", params=[pytest.param(0, id="thread"), pytest.param(2, id="processes")])
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    with hosting(server_route(), admin_port=0, processes=request.param) as running:
        yield running


def unmatched_of(host: Host) -> dict[str, Any]:
    answer = admin_of(host).get("/api/unmatched")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    assert isinstance(answer.json, dict)
    return answer.json


def count_of(host: Host) -> int:
    return sum(port["count"] for port in unmatched_of(host)["ports"])


def test_requests_to_a_misspelt_path_are_in_the_api_the_metrics_the_page_and_the_log(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(4):  # connections, which two processes may share
        with Raw(host.http_port) as raw:
            for _ in range(5):
                assert raw.ask(post("/hok?token=hush")).status == 404
            assert raw.ask(get("/hook"), "GET").status == 405
    eventually(lambda: count_of(host) == 24)
    shown = unmatched_of(host)
    assert shown["ports"] == [{"port": host.http_port, "count": 24}]
    first, second = shown["unmatched"]
    assert first.pop("first") <= first.pop("last")
    nearest = {"method": "POST", "path": "/hook", "route": "Intake", "event": "Received"}
    assert first == {
        "port": host.http_port, "method": "POST", "path": "/hok", "status": 404, "count": 20, "nearest": nearest,
    }  # fmt: skip
    assert (second["method"], second["path"], second["status"], second["count"]) == ("GET", "/hook", 405, 4)
    assert second["nearest"] == nearest
    admin = admin_of(host)
    assert admin.value("rest_bridge_unmatched_requests_total", port=str(host.http_port)) == 24
    page = admin.get("/").text
    assert "Requests that led to no endpoint" in page and "POST /hok" in page and "hush" not in page
    eventually(lambda: [line for line in caplog.messages if line.startswith(f"port {host.http_port}: ")])


def test_the_count_outlives_a_bridge_process_and_the_admin_port_is_complete() -> None:
    with hosting(server_route(), admin_port=0, processes=1) as running:
        with Raw(running.http_port) as raw:
            assert raw.ask(post("/hok")).status == 404
        eventually(lambda: count_of(running) == 1)
        (before,) = running.bridges
        os.kill(before.pid, signal.SIGKILL)
        eventually(lambda: running.bridges[0] is not before and running.bridges[0].ready)
        assert count_of(running) == 1
        with Raw(running.http_port) as raw:
            assert raw.ask(post("/hok")).status == 404
        eventually(lambda: count_of(running) == 2)


def test_a_broker_that_stops_logs_what_it_has_only_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    routes = tmp_path / "routes.lot"
    routes.write_text(server_route())
    host = Host(configuration(routes))
    try:
        with Raw(host.http_port) as raw:
            assert raw.ask(post("/hok")).status == 404
            eventually(lambda: [line for line in caplog.messages if "led to no endpoint" in line])
            for _ in range(7):
                assert raw.ask(post("/hok")).status == 404
    finally:
        host.stop()
    (line,) = [line for line in caplog.messages if "7 request(s) led to no endpoint" in line]
    assert "POST /hok (404, 7x, nearest: POST /hook of route Intake)" in line


def test_a_path_that_holds_markup_is_text_on_the_page() -> None:
    with hosting(server_route(), admin_port=0) as running:
        with Raw(running.http_port) as raw:
            assert raw.ask(get("/<script>alert(1)</script>"), "GET").status == 404
        eventually(lambda: count_of(running) == 1)
        assert "<script>alert" not in admin_of(running).get("/").text
        assert "&lt;script&gt;alert(1)" in admin_of(running).get("/").text


def test_a_route_with_a_thousand_endpoints_finds_the_nearest_ones() -> None:
    counting = Counting(*(event(endpoint=f"/plant/{number}/status", name=f"E{number}") for number in range(1_000)))
    for number in range(MOST_SHOWN):
        counting.ask(f"/plant/{number}/stauts")
    counting.report()  # whose line names three
    steps = 1
    while not counting.broker.prepare():
        steps += 1
    assert steps == MOST_SHOWN - 3
    nearest = {one.nearest.path for one in counting.most() if one.nearest is not None}
    assert nearest == {f"/plant/{number}/status" for number in range(MOST_SHOWN)}

"""Callers that wait for a reply while a reload changes or removes what they asked: they end by the old definition."""

import concurrent.futures
from collections.abc import Iterator
from pathlib import Path

import pytest
from amqtt_rest_bridge.routing.route_table import Watching

from amqtt_rest_bridge.processes.supervisor import Times
from tests.processes.reloading import Reloading, server_route
from tests.support.asking import ask
from tests.support.clock import Clock
from tests.support.commands import accepts
from tests.support.embedded_broker import Client
from tests.support.http_ports import Raw, error_code_of, get, post
from tests.support.waiting import SECONDS, eventually

processes = pytest.mark.parametrize("processes", [pytest.param(0, id="thread"), pytest.param(1, id="process")])


def asking_route(
    reply: str = "answers/{request_id}", *, endpoint: str = "/ask", port: int = 0, seconds: int = 30
) -> str:
    return f"""DEFINE ROUTE Asking WITH TYPE REST_API
        ADD REST_API_CONFIG
            WITH ENABLE_SERVER "true" WITH SERVER_PORT '{port}' WITH REQUEST_TIMEOUT '{seconds}'
        ADD EVENT Ask
            WITH METHOD "POST" WITH ENDPOINT "{endpoint}" WITH DESTINATION_TOPIC "questions/{{request_id}}"
            WITH REPLY_TOPIC "{reply}"
    """


@pytest.fixture
def pool() -> Iterator[concurrent.futures.Executor]:
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        yield threads


def question(client: Client) -> str:
    """Wait for a question and return its request id."""
    return client.message()[0].partition("/")[2]


@pytest.mark.parametrize(
    ("after", "processes"),
    [
        pytest.param(asking_route("other/{request_id}"), 1, id="another REPLY_TOPIC"),
        pytest.param(asking_route("other/{request_id}", seconds=1), 1, id="and a shorter REQUEST_TIMEOUT"),
        pytest.param(asking_route(endpoint="/elsewhere"), 1, id="another ENDPOINT"),
        pytest.param(server_route("/ask", name="Asking"), 1, id="no REPLY_TOPIC"),
        pytest.param(server_route("/other", name="Other"), 1, id="the route is removed, its port is not"),
        pytest.param(server_route("/other", name="Other", port=-1), 1, id="the route is removed with its port"),
        pytest.param(asking_route(port=-1), 1, id="another SERVER_PORT"),
        pytest.param(asking_route("other/{request_id}", port=-1, seconds=1), 1, id="everything changes"),
        pytest.param(asking_route("other/{request_id}", port=-1, seconds=1), 0, id="everything changes-thread"),
    ],
)
def test_a_caller_that_waits_gets_the_reply_of_the_old_definition(
    tmp_path: Path, pool: concurrent.futures.Executor, after: str, processes: int, unused_port: int
) -> None:
    (tmp_path / "a.lot").write_text(asking_route())
    running = Reloading(tmp_path, processes=processes)
    try:
        client = running.host.client("questions/#")
        waiting = pool.submit(ask, running.host.http_port, "/ask", b"?")
        asked = question(client)
        running.write("a.lot", after.replace("'-1'", f"'{unused_port}'"))
        running.write("a.lot", after.replace("'-1'", f"'{unused_port}'") + "// and once more\n")
        client.publish(f"answers/{asked}", b"in time")
        assert waiting.result(SECONDS)[:2] == (200, b"in time")
    finally:
        running.host.stop()


@processes
def test_a_port_that_is_gone_takes_no_new_callers_while_the_old_ones_wait(
    tmp_path: Path, pool: concurrent.futures.Executor, processes: int, unused_port: int
) -> None:
    (tmp_path / "a.lot").write_text(asking_route())
    running = Reloading(tmp_path, processes=processes)
    try:
        client = running.host.client("questions/#")
        old = running.host.http_port
        waiting = pool.submit(ask, old, "/ask", b"?")
        first = question(client)
        with Raw(old) as kept:
            assert kept.ask(get("/"), "GET").status == 404
            running.write("a.lot", asking_route(port=unused_port))
            eventually(lambda: not accepts(old), "the old port still accepts")
            refused = kept.ask(post("/ask"))
            assert (refused.status, error_code_of(refused)) == (503, "shutting_down")
            assert b"The routes were reloaded and none is served on this port any more" in refused.body
        new = pool.submit(ask, unused_port, "/ask", b"?")
        second = question(client)
        for asked in (second, first):
            client.publish(f"answers/{asked}", asked.encode())
        assert waiting.result(SECONDS)[:2] == (200, first.encode())
        assert new.result(SECONDS)[:2] == (200, second.encode())
    finally:
        running.host.stop()


def test_callers_that_wait_for_their_turn_get_it_after_a_reload_too(
    tmp_path: Path, pool: concurrent.futures.Executor
) -> None:
    (tmp_path / "a.lot").write_text(asking_route("answers"))
    running = Reloading(tmp_path)
    try:
        client = running.host.client("questions/#")
        waiting = [pool.submit(ask, running.host.http_port, "/ask", b"?") for _ in range(3)]
        asked = question(client)
        running.write("a.lot", None)
        for last in (False, False, True):
            client.publish("answers", asked.encode())
            asked = asked if last else question(client)
        assert [caller.result(SECONDS)[0] for caller in waiting] == [200, 200, 200]
    finally:
        running.host.stop()


def test_a_broker_that_stops_ends_callers_of_a_port_that_is_gone_too(
    tmp_path: Path, pool: concurrent.futures.Executor
) -> None:
    (tmp_path / "a.lot").write_text(asking_route(seconds=3600))
    running = Reloading(tmp_path, times=Times(grace=0.6))
    client = running.host.client("questions/#")
    waiting = pool.submit(ask, running.host.http_port, "/ask", b"?")
    question(client)
    running.write("a.lot", None)
    running.host.stop()
    assert waiting.result(SECONDS)[0] == 504


def watching() -> tuple[Clock, Watching]:
    clock = Clock(100.0)
    return clock, Watching(clock)


def due(one: Watching) -> list[str]:
    return [topic_filter for topic_filter, watched in one.entries() if one.is_due(watched)]


def test_a_reply_filter_that_is_gone_is_watched_until_its_last_request_has_ended() -> None:
    clock, own = watching()
    own.replace([], {"a": 60.0, "b": 10.0})
    own.replace([], {"b": 10.0})
    clock.now += 59.0
    assert due(own) == ["a", "b"]
    clock.now += 2.0
    assert due(own) == ["b"]
    own.replace([], {"b": 10.0})
    assert [topic_filter for topic_filter, _ in own.entries()] == ["b"]


def test_a_shorter_definition_does_not_cut_the_longer_one_before_it_short() -> None:
    clock, own = watching()
    own.replace([], {"a": 60.0})
    own.replace([], {"a": 5.0})
    own.replace([], {})
    clock.now += 59.0
    assert due(own) == ["a"]
    clock.now += 2.0
    assert due(own) == []


def test_many_reloads_watch_no_more_than_the_filters_in_use_and_those_just_gone() -> None:
    clock, own = watching()
    for number in range(1000):
        own.replace(["seen"], {f"answers/{number % 2}": 5.0, f"gone/{number}": 5.0})
        clock.now += 1.0
    assert len(own.entries()) <= 9

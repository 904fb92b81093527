"""Callers that wait for a reply while a reload changes or removes what they asked: they end by the old definition."""

import concurrent.futures
from collections.abc import Iterator
from pathlib import Path

import pytest

from amqtt_rest_bridge.supervised_tasks import Times
from tests.bridge.reloading import Reloading, server_route
from tests.support.asking import ask
from tests.support.commands import accepts
from tests.support.embedded_broker import Client
from tests.support.http_ports import Raw, error_code_of, get, post
from tests.support.waiting import SECONDS, eventually


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
    "after",
    [
        pytest.param(asking_route("other/{request_id}"), id="another REPLY_TOPIC"),
        pytest.param(asking_route("other/{request_id}", seconds=1), id="and a shorter REQUEST_TIMEOUT"),
        pytest.param(asking_route(endpoint="/elsewhere"), id="another ENDPOINT"),
        pytest.param(server_route("/ask", name="Asking"), id="no REPLY_TOPIC"),
        pytest.param(server_route("/other", name="Other"), id="the route is removed, its port is not"),
        pytest.param(server_route("/other", name="Other", port=-1), id="the route is removed with its port"),
        pytest.param(asking_route(port=-1), id="another SERVER_PORT"),
        pytest.param(asking_route("other/{request_id}", port=-1, seconds=1), id="everything changes"),
    ],
)
def test_a_caller_that_waits_gets_the_reply_of_the_old_definition(
    tmp_path: Path, pool: concurrent.futures.Executor, after: str, unused_port: int
) -> None:
    with Reloading(tmp_path, asking_route()) as running:
        client = running.host.client("questions/#")
        waiting = pool.submit(ask, running.host.http_port, "/ask", b"?")
        asked = question(client)
        running.write("a.lot", after.replace("'-1'", f"'{unused_port}'"))
        running.write("a.lot", after.replace("'-1'", f"'{unused_port}'") + "// and once more\n")
        client.publish(f"answers/{asked}", b"in time")
        assert waiting.result(SECONDS)[:2] == (200, b"in time")


def test_a_port_that_is_gone_takes_no_new_callers_while_the_old_ones_wait(
    tmp_path: Path, pool: concurrent.futures.Executor, unused_port: int
) -> None:
    with Reloading(tmp_path, asking_route()) as running:
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


def test_callers_that_wait_for_their_turn_get_it_after_a_reload_too(
    tmp_path: Path, pool: concurrent.futures.Executor
) -> None:
    with Reloading(tmp_path, asking_route("answers")) as running:
        client = running.host.client("questions/#")
        waiting = [pool.submit(ask, running.host.http_port, "/ask", b"?") for _ in range(3)]
        asked = question(client)
        running.write("a.lot", None)
        for last in (False, False, True):
            client.publish("answers", asked.encode())
            asked = asked if last else question(client)
        assert [caller.result(SECONDS)[0] for caller in waiting] == [200, 200, 200]


def test_a_broker_that_stops_ends_callers_of_a_port_that_is_gone_too(
    tmp_path: Path, pool: concurrent.futures.Executor
) -> None:
    with Reloading(tmp_path, asking_route(seconds=3600), times=Times(grace=0.6)) as running:
        client = running.host.client("questions/#")
        waiting = pool.submit(ask, running.host.http_port, "/ask", b"?")
        question(client)
        running.write("a.lot", None)
    assert waiting.result(SECONDS)[0] == 504

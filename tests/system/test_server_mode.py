"""Server mode in a real broker: HTTP in, MQTT out; and what the bridge process shares with the broker."""

import asyncio
import concurrent.futures
import socket

import pytest

from amqtt_rest_bridge.supervised_tasks import Times
from tests.support.asking import ask
from tests.support.embedded_broker import hosting
from tests.support.lossless import load
from tests.support.waiting import eventually

ROUTE = """
    DEFINE ROUTE Hooks WITH TYPE REST_API
        ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT '0' WITH REQUEST_TIMEOUT '5'
        ADD EVENT In WITH METHOD "POST" WITH ENDPOINT "/hook" WITH DESTINATION_TOPIC "hook/in"
        ADD EVENT Latest WITH METHOD "GET" WITH ENDPOINT "/latest/{number}" WITH SOURCE_TOPIC "sensors/{path.number}/t"
        ADD EVENT Ask WITH METHOD "POST" WITH ENDPOINT "/ask/{who}"
            WITH DESTINATION_TOPIC "ask/{path.who}/{request_id}" WITH REPLY_TOPIC "answer/{request_id}"
"""

processes = pytest.mark.parametrize("processes", [pytest.param(0, id="thread"), pytest.param(1, id="process")])


@processes
def test_a_request_is_published_and_answered(processes: int) -> None:
    with hosting(ROUTE, processes=processes) as host:
        client = host.client("hook/in")
        body = bytes(range(256))
        answer = ask(host.http_port, "/hook", body)
        assert (answer.status, answer.json) == (200, {"status": "published", "topic": "hook/in"})
        assert answer.headers["Content-Type"].startswith("application/json")
        assert client.message() == ("hook/in", body)


@processes
def test_a_read_event_answers_with_the_latest_payload(processes: int) -> None:
    with hosting(ROUTE, processes=processes) as host:
        assert ask(host.http_port, "/latest/1").status == 404
        client = host.client("sensors/#")
        client.publish("sensors/1/t", b"20.5")
        client.message()
        eventually(lambda: ask(host.http_port, "/latest/1").body == b"20.5", "it is not read")


def test_what_was_retained_before_a_reload_is_read_too() -> None:
    every = 'ADD EVENT Every WITH METHOD "GET" WITH ENDPOINT "/every" WITH SOURCE_TOPIC "many/#"'
    wanted = {f"many/{number}": number for number in range(250)}

    with hosting(ROUTE) as host:
        for name, number in wanted.items():
            host.wait(host.broker.retain_message(None, name, b"%d" % number))
        load(host, ROUTE + every)
        eventually(lambda: ask(host.http_port, "/every").json == wanted, "not all is read")


def test_the_port_is_open_again_once_the_bridge_process_has_been_started_again() -> None:
    with hosting(ROUTE, processes=1, admin_port=0) as host:
        client, port, admin = host.client("hook/in"), host.http_port, host.admin_port
        host.kill_bridge()
        assert host.admin_port == admin
        assert ask(port, "/hook", b"after").status == 200
        assert client.message() == ("hook/in", b"after")


@processes
def test_a_broker_that_stops_refuses_connections_and_answers_who_waits_for_a_reply(
    processes: int,
) -> None:
    times = Times(grace=1.0)
    with hosting(ROUTE, processes=processes, times=times) as host, concurrent.futures.ThreadPoolExecutor(1) as pool:
        client, port = host.client("ask/#"), host.http_port
        waiting = pool.submit(ask, host.http_port, "/ask/me", b"?")
        client.message()
        stopping = asyncio.run_coroutine_threadsafe(host.plugin.on_broker_pre_shutdown(), host._loop)

        def is_refused() -> bool:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
            except ConnectionRefusedError:
                return True
            return False

        eventually(is_refused, "connections are still taken")
        assert not waiting.done()
        answer = waiting.result(30)
        assert answer.status == 504
        assert "the bridge shut down before a reply came" in answer.json["error"]["message"]
        stopping.result(30)

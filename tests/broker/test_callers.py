"""What callers of server mode get beside large messages, and of bridges that do not read or start again."""

import concurrent.futures
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from amqtt_rest_bridge.broker.bridge_session import BridgeSession
from tests.support.admin_client import admin_of
from tests.support.asking import ask
from tests.support.embedded_broker import Host, hosting
from tests.support.spawning import Spawning
from tests.support.waiting import eventually

ROUTE = """DEFINE ROUTE Callers WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT '0' WITH REQUEST_TIMEOUT '20'
    ADD EVENT Latest WITH METHOD "GET" WITH ENDPOINT "/latest" WITH SOURCE_TOPIC "seen/#"
    ADD EVENT One WITH METHOD "GET" WITH ENDPOINT "/one" WITH SOURCE_TOPIC "seen/1"
    ADD EVENT Ask WITH METHOD "POST" WITH ENDPOINT "/ask"
        WITH DESTINATION_TOPIC "ask/{request_id}" WITH REPLY_TOPIC "answer/{request_id}"
"""
MOST_UNREAD = 8 << 20


@contextmanager
def not_reading(host: Host) -> Iterator[BridgeSession]:
    """Keep the bridge from reading; yield the session whose messages wait."""
    pid = host.child.pid or 0
    os.kill(pid, signal.SIGSTOP)
    try:
        yield host.plugin.endpoint._sessions["own"]
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("size", [6_000_000, pytest.param(40_000_000, marks=pytest.mark.long)])
def test_large_messages_of_read_events_cost_no_reply(size: int) -> None:
    hosted = hosting(ROUTE, processes=1, max_message_bytes=2 * size, admin_port=0)
    with hosted as host, concurrent.futures.ThreadPoolExecutor(1) as pool:
        client = host.client("ask/#")
        waiting = pool.submit(ask, host.http_port, "/ask", method="POST")
        request_id = client.message()[0].split("/")[1]
        with not_reading(host):
            for number in range(3):
                client.publish("seen/1", b"%d" % number + b"x" * size)
            client.publish(f"answer/{request_id}", b"reply")
        assert waiting.result()[:2] == (200, b"reply")
        eventually(lambda: ask(host.http_port, "/one").body[:1] == b"2", "the latest message is missing")
        assert admin_of(host).value("rest_bridge_dropped_total") == 0


def test_a_bridge_that_does_not_read_gets_the_newest_message_of_each_read_event_when_it_does() -> None:
    with hosting(ROUTE, processes=1) as host:
        client = host.client()
        with not_reading(host) as session:
            for number in range(60):
                client.publish("seen/1", b"%d" % number + b"x" * 200_000, qos=0)
            client.publish("seen/1", b"last")
            client.publish("seen/2", b"last of all")
            assert session.waiting_bytes <= MOST_UNREAD
        eventually(lambda: ask(host.http_port, "/one").body == b"last", "the latest message is missing")
        newest = {"seen/1": "last", "seen/2": "last of all"}
        eventually(lambda: ask(host.http_port, "/latest").json == newest, "the latest message is missing")


def test_a_bridge_that_starts_again_answers_with_the_retained_messages_from_its_first_request_on() -> None:
    spawning = Spawning()
    with hosting(ROUTE, processes=1, **spawning.options) as host:
        client = host.client()
        for number in range(500):
            client.publish(f"seen/{number}", b"%d" % number + b"x" * 1000, qos=0, retain=True)
        client.publish("seen/1", b"retained", retain=True)
        with spawning.failing():
            os.kill(host.child.pid or 0, signal.SIGKILL)
            eventually(lambda: not host.plugin.endpoint.ready.is_set(), "the broker does not notice")
        assert asked_until_served(host, "/one") == b"retained"


def asked_until_served(host: Host, path: str) -> bytes:
    """Ask again and again until the port is open; return the first answer."""
    while True:
        try:
            return ask(host.http_port, path).body
        except ConnectionRefusedError:
            pass


def test_replies_that_a_bridge_does_not_read_are_bounded_and_the_log_and_the_metrics_tell(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hosted = hosting(ROUTE, processes=1, admin_port=0)
    with hosted as host, concurrent.futures.ThreadPoolExecutor(1) as pool:
        client = host.client("ask/#")
        with not_reading(host) as session:
            for _ in range(60):
                client.publish("answer/unasked", b"x" * 200_000, qos=0)
            client.publish("answer/unasked", b"one too many")
            assert session.waiting_bytes <= MOST_UNREAD
        assert "message(s) dropped, the last on answer/unasked: the bridge is away, or behind" in caplog.text
        eventually(lambda: not session.waiting, "the bridge reads nothing")
        eventually(lambda: admin_of(host).value("rest_bridge_dropped_total"), "not counted")
        waiting = pool.submit(ask, host.http_port, "/ask", method="POST")
        client.publish(client.message()[0].replace("ask", "answer"), b"reply")
        assert waiting.result()[:2] == (200, b"reply")

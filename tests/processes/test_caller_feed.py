"""What callers of server mode wait for, beside large messages and bridge processes that do not read."""

import concurrent.futures
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from amqtt_rest_bridge.bridge.server import broker_access as payloads
from amqtt_rest_bridge.processes.bridge_process import BridgeProcess
from tests.support.asking import ask
from tests.support.embedded_broker import Host, hosting
from tests.support.waiting import eventually

ROUTE = """DEFINE ROUTE Callers WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT '0' WITH REQUEST_TIMEOUT '20'
    ADD EVENT Latest WITH METHOD "GET" WITH ENDPOINT "/latest" WITH SOURCE_TOPIC "seen/#"
    ADD EVENT One WITH METHOD "GET" WITH ENDPOINT "/one" WITH SOURCE_TOPIC "seen/1"
    ADD EVENT Ask WITH METHOD "POST" WITH ENDPOINT "/ask"
        WITH DESTINATION_TOPIC "ask/{request_id}" WITH REPLY_TOPIC "answer/{request_id}"
"""
MOST_UNREAD = 10 << 20


def bridge_of(host: Host) -> BridgeProcess:
    (bridge,) = host.bridges
    return bridge


def status(host: Host) -> dict[str, Any]:
    return dict(host.plugin.service.statistics["Callers"].status(0.0))


def is_seen(host: Host, payload: bytes) -> bool:
    return ask(host.http_port, "/one").body == payload


@contextmanager
def not_reading(host: Host) -> Iterator[BridgeProcess]:
    """Keep the bridge process from reading its link."""
    bridge = bridge_of(host)
    os.kill(bridge.pid, signal.SIGSTOP)
    try:
        yield bridge
    finally:
        os.kill(bridge.pid, signal.SIGCONT)


@pytest.mark.parametrize("size", [6_000_000, pytest.param(40_000_000, marks=pytest.mark.long)])
def test_large_messages_of_read_events_cost_no_reply(size: int) -> None:
    hosted = hosting(ROUTE, processes=1, max_message_bytes=2 * size)
    with hosted as host, concurrent.futures.ThreadPoolExecutor(1) as pool:
        client = host.client("ask/#")
        waiting = pool.submit(ask, host.http_port, "/ask", method="POST")
        request_id = client.message()[0].split("/")[1]
        with not_reading(host) as bridge:
            for number in range(3):
                client.publish("seen/1", b"%d" % number + b"x" * size)
            client.publish(f"answer/{request_id}", b"reply")
            assert bridge.link.backlog < size + 1_000_000, "older messages of the read event wait too"
        assert waiting.result()[:2] == (200, b"reply")
        eventually(lambda: ask(host.http_port, "/one").body[:1] == b"2", "the latest message is missing")
        assert status(host)["errors"]["total"] == 0


def test_a_bridge_process_that_does_not_read_gets_the_newest_message_of_each_read_event_when_it_does() -> None:
    with hosting(ROUTE, processes=1) as host:
        client = host.client()
        with not_reading(host) as bridge:
            for number in range(60):
                client.publish("seen/1", b"%d" % number + b"x" * 200_000, qos=0)
            client.publish("seen/1", b"last")
            client.publish("seen/2", b"last of all")
            assert bridge.link.backlog < MOST_UNREAD
        eventually(lambda: ask(host.http_port, "/one").body == b"last", "the latest message is missing")
        newest = {"seen/1": "last", "seen/2": "last of all"}
        eventually(lambda: ask(host.http_port, "/latest").json == newest, "the latest message is missing")


def test_a_bridge_process_that_starts_again_answers_with_the_newest_messages_from_its_first_request_on() -> None:
    with hosting(ROUTE, processes=1) as host:
        client = host.client()
        client.publish("seen/1", b"older")
        client.publish("seen/2", b"newer")
        pid = bridge_of(host).pid
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: bridge_of(host).pid != pid, "it is not started again")
        # Its first answers: callers wait in the queue of the listening socket until it serves.
        assert ask(host.http_port, "/one").body == b"older"
        assert ask(host.http_port, "/latest").json == {"seen/1": "older", "seen/2": "newer"}


def test_replies_that_a_bridge_process_does_not_read_are_bounded_and_the_log_and_the_status_tell(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with hosting(ROUTE, processes=1) as host, concurrent.futures.ThreadPoolExecutor(1) as pool:
        client = host.client("ask/#")
        with not_reading(host) as bridge:
            for _ in range(60):
                client.publish("answer/unasked", b"x" * 200_000, qos=0)
            client.publish("answer/unasked", b"one too many")
            assert bridge.link.backlog < MOST_UNREAD
        assert "route Callers, event Ask: dropped a reply on answer/unasked: a reply of 200000 bytes" in caplog.text
        assert status(host)["last_error"]["code"] == "overloaded"
        assert status(host)["health"] == "Red"
        eventually(lambda: bridge.link.backlog == 0, "the bridge process reads nothing")
        waiting = pool.submit(ask, host.http_port, "/ask", method="POST")
        client.publish(client.message()[0].replace("ask", "answer"), b"reply")
        assert waiting.result()[:2] == (200, b"reply")


def test_type_and_entity_tag_of_a_message_are_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    worked: list[str] = []

    def counted(name: str) -> None:
        original = getattr(payloads, name)

        def count(payload: bytes) -> str:
            worked.append(name)
            return str(original(payload))

        monkeypatch.setattr(payloads, name, count)

    counted("content_type_of")
    counted("entity_tag_of")
    with hosting(ROUTE, processes=0) as host:
        client = host.client()
        for payload in (json.dumps(["x" * 100_000]).encode(), b"text"):
            worked.clear()
            client.publish("seen/1", payload)
            eventually(partial(is_seen, host, payload), "not seen")
            answers = [ask(host.http_port, "/one", method=method) for method in ("HEAD", "GET", "HEAD", "GET")]
            assert [answer.headers["Content-Length"] for answer in answers] == [str(len(payload))] * 4
            assert [answer.body for answer in answers] == [b"", payload] * 2
            assert sorted(worked) == ["content_type_of", "entity_tag_of"]

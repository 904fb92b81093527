"""Ports whose only thread hangs: noticed, told, and started again where they run in a process of their own."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from amqtt_rest_bridge.bridge.server.request import EventRequest
from amqtt_rest_bridge.processes.supervisor import Times
from tests.processes.test_caller_feed import ROUTE, bridge_of, status
from tests.support.asking import ask
from tests.support.embedded_broker import CODE, hosting
from tests.support.http_ports import Raw, get
from tests.support.waiting import eventually

HANGING = """
import threading
from amqtt_rest_bridge.bridge import main as process
from amqtt_rest_bridge.bridge.server.request import EventRequest

def hang(self, limit):
    if self.query == "hang":
        threading.Event().wait()
    return body(self, limit)

body, EventRequest.body = EventRequest.body, hang
process.main()
"""


OFTEN = Times(ping=0.2)


def may_hang(sock: socket.socket) -> tuple[int, Callable[[], None]]:
    """Start a bridge process whose port hangs when asked to."""
    running = subprocess.Popen([sys.executable, "-c", HANGING, str(sock.fileno()), "20"], pass_fds=[sock.fileno()])
    sock.close()

    def end() -> None:
        running.wait()

    return running.pid, end


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Block requests with the query `hang`, on the port's thread, until this is set."""
    opened, body = threading.Event(), EventRequest.body

    def hang(self: EventRequest, limit: int) -> bytes:
        if self.query == "hang":
            opened.wait()
        return body(self, limit)

    monkeypatch.setattr(EventRequest, "body", hang)
    yield opened
    opened.set()


def test_a_bridge_process_whose_port_hangs_is_killed_and_started_again(caplog: pytest.LogCaptureFixture) -> None:
    times = Times(ping=0.8)  # the next process may take its time to start
    with hosting(ROUTE, processes=1, times=times, code=replace(CODE, spawn=may_hang)) as host:
        host.client().publish("seen/1", b"1")
        eventually(lambda: ask(host.http_port, "/one").body == b"1", "not seen")
        pid, port = bridge_of(host).pid, host.http_port
        with Raw(port) as raw:
            raw.send(get("/one?hang"))
            eventually(lambda: bridge_of(host).pid != pid, "it goes on")
        assert f"(pid {pid}) hangs, port {port} answers nothing and is killed" in caplog.text
        assert status(host)["last_error"]["code"] == "internal_error"
        eventually(lambda: bridge_of(host).ready, "it is not started again")
        assert ask(host.http_port, "/one").body == b"1"


def test_a_hanging_port_in_the_broker_process_is_in_the_log_and_the_status(
    gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    with hosting(ROUTE, processes=0, times=OFTEN) as host:
        assert bridge_of(host).pid == os.getpid()
        with Raw(host.http_port) as raw:
            raw.send(get("/one?hang"))
            eventually(lambda: status(host)["health"] == "Red", "the health stays")
            assert status(host)["last_error"]["message"] == "the port of the route has stopped answering"
            assert f"hangs, port {host.http_port} answers nothing: start the broker again" in caplog.text
            gate.set()
            eventually(lambda: "the bridge answers again" in caplog.text, "it stays so")
            assert ask(host.http_port, "/one").status == 404


def test_a_port_that_only_waits_for_replies_is_not_taken_for_one_that_hangs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with hosting(ROUTE, processes=1, times=OFTEN) as host:
        client, pid = host.client("ask/#"), bridge_of(host).pid
        with Raw(host.http_port) as raw:
            raw.send(b"POST /ask HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
            topic = client.message()[0]
            threading.Event().wait(9 * OFTEN.ping)  # for more pings than a process that hangs leaves unanswered
            client.publish(topic.replace("ask", "answer"), b"reply")
            assert raw.answer().body == b"reply"
        assert bridge_of(host).pid == pid
        assert "hangs" not in caplog.text

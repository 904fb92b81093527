"""`rest-bridge trace` against a real broker: what is printed, and how it ends."""

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from amqtt_rest_bridge.cli import admin_client
from amqtt_rest_bridge.cli.trace import line
from tests.cli.conftest import Run
from tests.support.admin_client import TOKEN, client_route
from tests.support.embedded_broker import Client, Host, hosting
from tests.support.http_recorder import Recorder
from tests.support.waiting import SECONDS, eventually

PAUSE_SECONDS = 0.02


@contextmanager
def tracing(host: Host, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "amqtt_rest_bridge", "trace", "--admin", f"http://127.0.0.1:{host.admin_port}"]
    environment = {**os.environ, "REST_BRIDGE_ADMIN_TOKEN": TOKEN}
    process = subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def first_line(process: subprocess.Popen[str], client: Client, topic: str) -> str:
    """Publish until a line comes; nothing tells when the command has begun to follow."""
    assert process.stdout is not None
    while not select.select([process.stdout], [], [], PAUSE_SECONDS)[0]:
        client.publish(topic, b"secret payload")
    return process.stdout.readline()


def errors_of(process: subprocess.Popen[str], status: int) -> str:
    """Wait until it ends with an exit status, and return what it has written to standard error."""
    assert process.wait(SECONDS) == status
    assert process.stderr is not None
    return process.stderr.read()


def test_a_line_for_each_message_with_its_request_and_result(target: Recorder) -> None:
    with hosting(client_route(target.url), admin_port=0) as host, tracing(host, "--route", "Orders") as process:
        told = first_line(process, host.client(), "orders/7")
        assert f"Orders/Send  orders/7  POST {target.url}/new/7  200  " in told
        assert re.search(r" ms  run [0-9a-f-]{36}\n$", told)
        assert "payload" not in told
        process.send_signal(signal.SIGTERM)
        assert errors_of(process, 130) == ""


def test_with_json_each_line_is_an_object_and_a_topic_filter_narrows_it(target: Recorder) -> None:
    with (
        hosting(client_route(target.url), admin_port=0, admin_token=TOKEN) as host,
        tracing(host, "--json", "--topic", "other/#") as process,
    ):
        client = host.client()
        client.publish("orders/1", b"")
        record = json.loads(first_line(process, client, "other/1"))
        assert (record["kind"], record["topic"], record["route"]) == ("message", "other/1", None)


def test_it_ends_well_once_what_reads_its_output_has_ended(target: Recorder) -> None:
    with hosting(client_route(target.url), admin_port=0) as host, tracing(host) as process:
        client = host.client()
        first_line(process, client, "other/1")
        assert process.stdout is not None
        process.stdout.close()

        def has_ended() -> bool:
            client.publish("other/1", b"")
            return process.poll() is not None

        eventually(has_ended, "it goes on")
        assert errors_of(process, 0) == ""


def test_a_stream_that_ends_and_one_that_is_refused_are_reported(
    target: Recorder, monkeypatch: pytest.MonkeyPatch, run: Run, unused_port: int
) -> None:
    def refusal(url: str) -> str:
        return run("trace", "--admin", url, status=1).err

    monkeypatch.setenv("REST_BRIDGE_ADMIN_TOKEN", "wrong")
    assert "is admin_port set" in refusal(f"http://127.0.0.1:{unused_port}")
    with hosting(client_route(target.url), admin_port=0, admin_token=TOKEN) as host:
        address = f"http://127.0.0.1:{host.admin_port}"
        assert "the token is wrong; set REST_BRIDGE_ADMIN_TOKEN" in refusal(address)
        monkeypatch.setenv("REST_BRIDGE_ADMIN_TOKEN", "")
        assert "no token was given; set REST_BRIDGE_ADMIN_TOKEN" in refusal(address)
    target.answer = lambda _: (404, b"{}")
    assert "it has no live stream; is it the admin port of a bridge?" in refusal(target.url)
    target.answer = lambda _: (200, b'data: {"kind": "mess')
    assert "closed the connection" in refusal(target.url)
    run("trace", "--admin", "localhost", status=2)
    monkeypatch.delenv("REST_BRIDGE_ADMIN_TOKEN")  # which the bridge would take for its own
    with hosting(client_route(target.url), admin_port=0, processes=1) as host, tracing(host) as process:
        first_line(process, host.client(), "other")
        os.kill(host.child.pid or 0, signal.SIGKILL)
        assert "closed the connection" in errors_of(process, 1)


@pytest.mark.parametrize("framing", ["Connection: close", "Transfer-Encoding: chunked"])
def test_a_stream_in_which_nothing_comes_for_a_while_is_reported(monkeypatch: pytest.MonkeyPatch, framing: str) -> None:
    monkeypatch.setattr(admin_client, "_SILENCE_SECONDS", 0.2)
    accepted: list[socket.socket] = []

    def answer(server: socket.socket) -> None:
        accepted.append(server.accept()[0])
        accepted[0].sendall(f"HTTP/1.1 200 OK\r\n{framing}\r\n\r\n".encode())

    with socket.create_server(("127.0.0.1", 0)) as server:
        answering = threading.Thread(target=answer, args=[server])
        answering.start()
        port = admin_client.AdminClient(f"http://127.0.0.1:{server.getsockname()[1]}")
        with closing(port), pytest.raises(admin_client.AdminError, match="timed out; is admin_port set"):
            list(port.follow("/api/live", {}))
        answering.join()
        accepted[0].close()


def test_a_route_that_is_not_there_ends_the_command_with_the_name_that_was_meant(
    target: Recorder, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setenv("REST_BRIDGE_ADMIN_TOKEN", TOKEN)
    with hosting(client_route(target.url), admin_port=0, admin_token=TOKEN) as host:
        admin = f"http://127.0.0.1:{host.admin_port}"
        for route, said in (("Ordres", "Ordres; did you mean Orders?\n"), ("x\ny", "x\\ny; routes: Orders\n")):
            refused = run("trace", "--admin", admin, "--route", route, status=1).err
            assert refused == f"rest-bridge trace: there is no route {said}"


def test_what_a_publisher_writes_cannot_forge_a_line() -> None:
    record = {"time": "2026-01-31T12:00:00.123Z", "kind": "message", "topic": "a\n12:00 forged\x1b[31m", "code": None}
    assert line(record) == "12:00:00.123  message   (no route)  a\\n12:00 forged\\x1b[31m"

"""`rest-bridge serve` while it runs and when it ends: signals, event loop, listeners."""

import contextlib
import importlib.util
import json
import os
import re
import select
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.benchmarks.mqtt_wire import Wire, publish_packet
from tests.support.commands import BRIDGE, Workplace, accepts
from tests.support.waiting import SECONDS, eventually

STUCK_AT_SHUTDOWN = """\
    async def on_broker_pre_shutdown(self):
        log.info("stuck now")
        await asyncio.Event().wait()
"""
BLOCKING_THE_LOOP = """\
    async def on_broker_post_start(self):
        asyncio.get_running_loop().call_later(0.01, self.block)

    def block(self):
        log.info("blocking now")
        threading.Event().wait()
"""
NAMING_ITS_LOOP = """\
    async def on_broker_post_start(self):
        log.info("loop %s", asyncio.get_running_loop())
"""
SHORT_GRACE = {"amqtt_rest_bridge.signals.SHUTDOWN_SECONDS": 0.3}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("processes", [0, 1])
def test_signal_shuts_down_gracefully(place: Workplace, number: signal.Signals, processes: int) -> None:
    place.configure(("processes: 0", f"processes: {processes}"))
    with place.serving(bridges=processes) as running:
        port = running.port
        children = running.children()
        running.send(number)
        assert running.end() == 0
    assert any(f"{number.name}: shutting down" in line for line in running.lines)
    assert running.lines[-1].endswith("Broker closed")
    assert not accepts(port)
    assert len(children) >= processes
    assert [child for child in children if Path(f"/proc/{child}").exists()] == []


def test_shutdown_does_not_wait_for_clients_that_stay(place: Workplace) -> None:
    with place.serving() as running:
        port = running.port
        client = Wire(port, "stays")
        silent = socket.create_connection(("127.0.0.1", port))
        running.terminate()
        silent.close()
        client.sock.close()


@pytest.mark.parametrize(
    ("plugin", "line"),
    [
        pytest.param(STUCK_AT_SHUTDOWN, "ready: ", id="a plugin"),
        pytest.param(BLOCKING_THE_LOOP, "blocking", id="the loop"),
    ],
)
def test_shutdown_that_hangs_ends_when_its_time_is_over(bare: Workplace, plugin: str, line: str) -> None:
    bare.add_plugin(plugin)
    with bare.serving("--log-format", "json", constants=SHORT_GRACE) as running:
        running.line(line)
        running.terminate(status=1)
    assert json.loads(running.lines[-1])["message"].startswith("rest-bridge: error: not shut down within")


@pytest.mark.long
def test_shutdown_that_hangs_has_ten_seconds(bare: Workplace) -> None:
    bare.add_plugin(STUCK_AT_SHUTDOWN)
    with bare.serving() as running:
        assert running.port
        began = time.monotonic()
        running.terminate(status=1)
    assert time.monotonic() - began >= 10
    assert running.lines[-1] == "rest-bridge: error: not shut down within 10 s: ended at once"


def test_second_signal_ends_the_process_at_once_and_leaves_no_bridge_process(place: Workplace) -> None:
    place.configure(("processes: 0", "processes: 1"))
    place.add_plugin(STUCK_AT_SHUTDOWN)
    with place.serving(bridges=1) as running:
        assert running.port
        children = [os.pidfd_open(child) for child in running.children()]
        running.send(signal.SIGINT)
        running.line("stuck now")
        running.terminate(status=128 + signal.SIGTERM)
    for child in children:
        assert select.select([child], [], [], SECONDS)[0], "a child lives on"
        os.close(child)
    assert children
    assert running.lines[-1] == "rest-bridge: error: SIGTERM while shutting down: ended at once"


STARTING = [pytest.param("pass", id="start-goes-well"), pytest.param("raise ValueError('stopped')", id="start-fails")]


@pytest.mark.parametrize("statement", STARTING)
def test_signal_during_the_start_ends_it_gracefully(bare: Workplace, statement: str) -> None:
    bare.add_plugin(
        "    def __init__(self, context):\n"
        "        super().__init__(context)\n"
        f"        os.kill(os.getpid(), 15)\n        {statement}\n"
        "    async def close(self):\n        log.info('closed')\n"
    )
    with bare.serving() as running:
        assert running.end() == 0
    assert not any("ready" in line for line in running.lines)
    assert any(line.endswith("SIGTERM: stopped before the start") for line in running.lines)
    assert any(line.endswith(":: INFO - closed") for line in running.lines) == ("raise" not in statement)


def test_broker_that_ceases_to_forward_ends(bare: Workplace) -> None:
    bare.add_plugin(
        "    async def on_broker_client_connected(self, *, client_id, client_session):\n"
        "        self.context._broker_instance._broadcast_task.cancel()\n"
    )
    with bare.serving() as running:
        client = Wire(running.port, "victim")
        assert running.end() == 1
        client.sock.close()
    assert running.lines[-1] == ("rest-bridge: error: the broker stopped forwarding messages; the log says why")


def test_shutdown_that_fails_is_an_error(bare: Workplace) -> None:
    bare.add_plugin("    async def close(self):\n        raise ValueError('cannot let go')\n")
    with bare.serving() as running:
        assert running.port
        running.terminate(status=1)
    assert running.lines[-1] == "rest-bridge: error: the shutdown failed: cannot let go"


WITHOUT_UVLOOP = ("event loop: asyncio; the extra [fast] installs uvloop", "loop <_UnixSelectorEventLoop ")
NO_UVLOOP = pytest.mark.skipif(importlib.util.find_spec("uvloop") is None, reason="needs the extra [fast]")


@pytest.mark.parametrize(
    ("module", "lines"),
    [
        pytest.param(None, ("event loop: uvloop ", "loop <uvloop.Loop "), id="uvloop", marks=NO_UVLOOP),
        pytest.param("raise ImportError('not here')", WITHOUT_UVLOOP, id="asyncio"),
    ],
)
def test_uvloop_is_used_when_it_is_installed(bare: Workplace, module: str | None, lines: tuple[str, str]) -> None:
    if module is not None:
        bare.write("uvloop.py", module)
    bare.add_plugin(NAMING_ITS_LOOP)
    with bare.serving("--debug") as running:
        for line in lines:
            running.line(line)
        running.terminate()


def test_every_listener_is_named_when_the_broker_is_ready(place: Workplace) -> None:
    others = "  six: {bind: '[::1]:0'}\n  web: {type: ws, bind: '127.0.0.1:0'}\n"
    place.configure((BRIDGE, ""), ("plugins:", f"{others}plugins:"))
    with place.serving() as running:
        line = running.line("ready: MQTT on ")
        assert re.search(r"MQTT on 127\.0\.0\.1:\d+ \(default\), \[::1\]:\d+ \(six\), 127\.0\.0\.1:\d+ \(web\)$", line)
        running.terminate()


CALLING_ROUTE = """
DEFINE ROUTE Calls WITH TYPE REST_API
    ADD REST_API_CONFIG
        WITH BASE_ADDRESS "http://127.0.0.1:{port}"
        WITH ENABLE_CLIENT "true"
    ADD EVENT Ask
        WITH SOURCE_TOPIC "in"
        WITH METHOD "POST"
        WITH ENDPOINT "/ask"
        WITH BODY "{{payload}}"
        WITH DESTINATION_TOPIC "out"
"""


@pytest.mark.parametrize("processes", [0, 1])
def test_request_under_way_is_finished_and_its_result_published_at_shutdown(place: Workplace, processes: int) -> None:
    place.configure(("processes: 0", f"processes: {processes}"))
    with socket.create_server(("127.0.0.1", 0)) as target:
        place.write("routes.lot", CALLING_ROUTE.format(port=target.getsockname()[1]))
        with place.serving(bridges=processes) as running:
            client = Wire(running.port, "tester")
            client.subscribe("out")
            client.send(publish_packet("in", b"question"))
            connection, _ = target.accept()
            running.send(signal.SIGTERM)
            running.line("SIGTERM: shutting down")
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nanswer")
            assert client.messages() == [("out", b"answer")]
            assert running.end() == 0
            connection.close()
            client.sock.close()


def test_a_bridge_process_that_is_killed_during_the_start_is_started_again(place: Workplace) -> None:
    place.configure(("processes: 0", "processes: 1"))
    with place.serving() as running:
        eventually(running.children)
        (killed,) = running.children()
        os.kill(killed, signal.SIGKILL)
        running.line("ended while it started; it is started again at once")
        assert running.port
        assert running.children() != [killed]
        running.terminate()


def test_a_bridge_process_has_start_seconds_to_become_ready(place: Workplace) -> None:
    place.configure(("processes: 0", "processes: 1, start_seconds: 1"))
    with place.serving() as running:
        while running.process.poll() is None:  # whichever comes: none of them ever becomes ready
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # it has ended meanwhile
                for pid in running.children():
                    os.kill(pid, signal.SIGKILL)
        assert running.end() == 1
    reasons = ("ended while it started; its output says why", "it was not ready in time")  # the last one may live
    assert any(reason in running.lines[-1] for reason in reasons)

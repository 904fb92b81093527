"""The bridge as a child process of its broker: how it starts, dies, hangs and ends. A tiny module is the bridge."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from amqtt_rest_bridge.broker.bridge_child import BridgeChild, RunningProcess
from amqtt_rest_bridge.child_process import ChildProcess
from amqtt_rest_bridge.errors import ConfigurationError, RouteFilesError
from amqtt_rest_bridge.settings import Settings
from amqtt_rest_bridge.supervisor import Supervisor, Times
from amqtt_rest_bridge.times import Backoff

BRIDGE = """
import os, socket, sys, time
from amqtt_rest_bridge.errors import ConfigurationError, Fault, Position, RouteFilesError, Severity
from amqtt_rest_bridge.broker.control import *

sock = socket.socket(fileno=int(sys.argv[1]))

def say(message):
    sock.sendall(written(message))

def hear():
    return read_now(sock, time.monotonic() + 600)

start = hear()
manner, _, marker = start.settings.routes.partition(" ")
say(Log(30, "a.logger", f"loading {start.routes!r}, {start.address}"))
if manner == "faulty":
    fault = Fault("a.lot", Position(1, 1), Severity.ERROR, "a fault")
    say(Failed.because_of(RouteFilesError((fault,))))
elif manner == "taken":
    say(Failed.because_of(ConfigurationError("port 1 is taken")))
elif manner == "slow":
    time.sleep(600)
elif manner == "fragile" and not os.path.exists(marker):
    open(marker, "w").close()
    os._exit(1)
loads = 0
say(Loaded({0: 4711}, 4712, None if start.routes else b"routes 0"))
while (message := hear()) is not None:
    match message:
        case Connect():
            say(Log(20, "a.logger", "connecting"))
        case Reload():
            loads += 1
            say(Loaded({0: 4711 + loads}, 4712, b"routes %d" % loads))
        case Stop(grace):
            say(Log(20, "a.logger", f"stopping within {grace} s"))
            break
"""


class FakeEndpoint:
    """An endpoint whose bridge talks while `talks`."""

    address = "the address"

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.reports = self
        self.talks = True
        self.restarts = 0

    def has_heard(self) -> bool:
        return self.talks

    def note_restart(self) -> None:
        self.restarts += 1


@pytest.fixture(autouse=True)
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "tiny_bridge.py").write_text(BRIDGE)
    monkeypatch.syspath_prepend(tmp_path)
    caplog.set_level(logging.INFO)


def spawn(theirs: socket.socket) -> RunningProcess:
    return ChildProcess("tiny_bridge", [str(theirs.fileno())], [theirs.fileno()])


def made(
    endpoint: FakeEndpoint, manner: str = "sound", times: Times | None = None, start_seconds: float = 30
) -> BridgeChild:
    settings = Settings(routes=manner, start_seconds=start_seconds)
    quick = Times(bridges=Backoff(first=0.05, longest=0.05, at_once=True))
    return BridgeChild(settings, cast("Any", endpoint), times or quick, spawn)


@contextlib.asynccontextmanager
async def running(endpoint: FakeEndpoint, child: BridgeChild) -> AsyncIterator[BridgeChild]:
    supervisor = Supervisor(lambda _: None)
    supervisor.finish("bridge", child.run)
    endpoint.ready.set()
    try:
        yield child
    finally:
        await supervisor.stop()
        await child.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def test_a_bridge_says_its_ports_logs_reloads_and_ends_in_time(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        endpoint = FakeEndpoint()
        child = made(endpoint)
        assert (child.server_ports, child.admin_port) == ({0: 4711}, 4712)
        async with running(endpoint, child):
            await until(lambda: "connecting" in caplog.text)
            await child.reload()
            assert child.server_ports == {0: 4712}
            pid = child.pid
            await child.stop(1.5)
            assert "stopping within 1.5 s" in caplog.text
        assert child.pid is None
        with pytest.raises(ProcessLookupError):
            os.kill(pid or 0, 0)
        assert endpoint.restarts == 0

    asyncio.run(run())
    assert "loading None, the address" in caplog.text
    assert {record.name for record in caplog.records} == {"a.logger"}


@pytest.mark.parametrize(
    ("manner", "error", "message"),
    [
        pytest.param("faulty", RouteFilesError, "a fault", id="route files"),
        pytest.param("taken", ConfigurationError, "port 1 is taken", id="another reason"),
        pytest.param("slow", ConfigurationError, "not ready in time", id="no answer"),
    ],
)
def test_a_bridge_that_cannot_start_says_why_and_leaves_no_process(
    manner: str, error: type[Exception], message: str
) -> None:
    started: list[RunningProcess] = []

    def noting(theirs: socket.socket) -> RunningProcess:
        started.append(spawn(theirs))
        return started[-1]

    settings = Settings(routes=manner, start_seconds=1.0)
    with pytest.raises(error, match=message):
        BridgeChild(settings, cast("Any", FakeEndpoint()), Times(), noting)
    (process,) = started
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_a_bridge_that_dies_while_it_starts_is_started_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    child = made(FakeEndpoint(), f"fragile {tmp_path / 'marker'}")
    child.release()
    assert "ended while it started; it is started again at once" in caplog.text


def test_a_reload_that_the_bridge_does_not_survive_returns_too() -> None:
    async def run() -> None:
        endpoint = FakeEndpoint()
        async with running(endpoint, made(endpoint)) as child:
            await until(lambda: child._writer is not None)
            os.kill(child.pid or 0, signal.SIGSTOP)
            reloading = asyncio.ensure_future(child.reload())
            await asyncio.sleep(0)
            os.kill(child.pid or 0, signal.SIGKILL)
            await reloading

    asyncio.run(run())


def test_a_bridge_that_is_silent_for_six_looks_is_killed(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        endpoint = FakeEndpoint()
        child = made(endpoint, times=Times(ping=0.02))
        async with running(endpoint, child):
            pid = child.pid
            await asyncio.sleep(0.5)
            assert child.pid == pid, "one that talks lives on"
            endpoint.talks = False
            began = time.monotonic()
            await until(lambda: "hangs and is killed" in caplog.text)
            assert time.monotonic() - began > 5 * 0.02
            endpoint.talks = True
            await until(lambda: endpoint.restarts == 1)

    asyncio.run(run())


def test_a_bridge_that_connects_has_as_long_as_a_start_may_take(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        endpoint = FakeEndpoint()
        child = made(endpoint, times=Times(ping=0.02), start_seconds=600)
        endpoint.talks = False
        async with running(endpoint, child):
            endpoint.ready.clear()
            await asyncio.sleep(0.5)
            assert "hangs" not in caplog.text

    asyncio.run(run())


def test_a_bridge_that_cannot_be_started_again_is_tried_until_it_can(caplog: pytest.LogCaptureFixture) -> None:
    fails = False

    def failing(theirs: socket.socket) -> RunningProcess:
        if fails:
            raise OSError("no more processes")
        return spawn(theirs)

    async def run() -> None:
        nonlocal fails
        endpoint = FakeEndpoint()
        times = Times(bridges=Backoff(first=0.05, longest=0.05, at_once=True))
        child = BridgeChild(Settings(routes="sound"), cast("Any", endpoint), times, failing)
        async with running(endpoint, child):
            await until(lambda: "connecting" in caplog.text)
            fails = True
            os.kill(child.pid or 0, signal.SIGKILL)
            await until(lambda: caplog.text.count("no more processes; tried again in") > 1)
            caplog.clear()
            fails = False
            await until(lambda: "connecting" in caplog.text)

    asyncio.run(run())


def test_a_stop_while_the_bridge_is_being_started_again_waits_for_nothing() -> None:
    async def run() -> None:
        endpoint = FakeEndpoint()
        child = made(endpoint, times=Times(bridges=Backoff(first=600, longest=600)))
        async with running(endpoint, child):
            await until(lambda: child._writer is not None)
            os.kill(child.pid or 0, signal.SIGKILL)
            await until(lambda: child.pid is None)
            async with asyncio.timeout(5):
                await child.stop(60)

    asyncio.run(run())

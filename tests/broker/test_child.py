"""The bridge as a child of its broker: how it starts, is away, and ends. A socket takes the place of the process."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from time import monotonic
from typing import Any

import pytest

from amqtt_rest_bridge.broker.bridge_child import BridgeChild
from amqtt_rest_bridge.broker.control import Connect, Failed, Loaded, Reload, Start, Stop, read_blocking, written
from amqtt_rest_bridge.errors import ConfigurationError, Fault, Position, RouteFilesError, Severity
from amqtt_rest_bridge.settings import Settings
from amqtt_rest_bridge.supervised_tasks import Supervisor, Times
from amqtt_rest_bridge.times import Backoff
from tests.broker.conftest import on_a_loop
from tests.support.waiting import SECONDS

LOADED = Loaded({0: 4711}, 4712, b"routes")
QUICK = Times(bridges=Backoff(first=0.05, longest=0.05, at_once=True))


class Process:
    """A bridge that says what its test sends, and ends with its socket."""

    pid = 1 << 22  # no process has it

    def __init__(self, theirs: socket.socket, *said: object) -> None:
        self.has_ended = False
        self._sock = theirs.dup()
        self.say(*said)

    def say(self, *messages: object) -> None:
        self._sock.sendall(b"".join(map(written, messages)))

    async def hear(self) -> object:
        return await asyncio.to_thread(read_blocking, self._sock, monotonic() + SECONDS)

    def die(self) -> None:
        self._sock.shutdown(socket.SHUT_RDWR)

    def end(self, _seconds: float) -> int:
        self._sock.close()
        self.has_ended = True
        return -9


class Broker:
    """The broker's side: its child, the processes that were started in turn, and how often it was asked for news."""

    address = "the address"

    def __init__(
        self, *starts: tuple[object, ...] | None, start_seconds: float = SECONDS, times: Times = QUICK
    ) -> None:
        """Begin with a process that says the first of these messages; None: there is none to be had."""
        self.ready = asyncio.Event()
        self.reports = self
        self.restarts = self.looks = 0
        self.processes: list[Process] = []
        self._starts = list(starts)
        settings: Any = Settings(routes="r", start_seconds=start_seconds)
        endpoint: Any = self
        self.child = BridgeChild(settings, endpoint, times, self._spawn)

    def has_heard(self) -> bool:
        self.looks += 1
        return False

    def note_restart(self) -> None:
        self.restarts += 1

    def _spawn(self, theirs: socket.socket) -> Process:
        said = self._starts.pop(0)
        if said is None:
            raise OSError("no more processes")
        self.processes.append(Process(theirs, *said))
        if not said:
            self.processes[-1].die()
        return self.processes[-1]


@contextlib.asynccontextmanager
async def running(broker: Broker) -> AsyncIterator[Process]:
    """Run the child; yield its process once that was connected."""
    supervisor = Supervisor(lambda _: None)
    supervisor.run_to_end("bridge", broker.child.run)
    (process,) = broker.processes
    assert isinstance(await process.hear(), Start)
    assert await process.hear() == Connect()
    try:
        yield process
    finally:
        await supervisor.stop()
        await broker.child.close()
        assert all(one.has_ended for one in broker.processes)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.005)


FAULT = Fault("a.lot", Position(1, 1), Severity.ERROR, "a fault")


@pytest.mark.parametrize(
    ("error", "message", "seconds"),
    [
        pytest.param(RouteFilesError((FAULT,)), "a fault", SECONDS, id="route files"),
        pytest.param(ConfigurationError("port 1 is taken"), "port 1 is taken", SECONDS, id="another reason"),
        pytest.param(None, "not ready in time", 0.05, id="no answer"),
    ],
)
def test_a_bridge_that_cannot_start_says_why_and_leaves_no_process(
    error: Exception | None, message: str, seconds: float
) -> None:
    said: tuple[object, ...] = (Connect(),) if error is None else (Failed.because_of(error),)
    started: list[Process] = []

    def spawn(theirs: socket.socket) -> Process:
        started.append(Process(theirs, *said))
        return started[-1]

    endpoint: Any = Broker
    with pytest.raises(type(error) if error else ConfigurationError, match=message):
        BridgeChild(Settings(routes="r", start_seconds=seconds), endpoint, QUICK, spawn)
    (process,) = started
    assert process.has_ended


def test_a_bridge_that_dies_while_it_starts_is_started_again(caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker((), (LOADED,))
    assert (broker.child.server_ports, broker.child.admin_port) == ({0: 4711}, 4712)
    broker.child.release()
    assert [one.has_ended for one in broker.processes] == [True, True]
    assert "ended while it started; it is started again at once" in caplog.text


@on_a_loop
async def test_a_reload_that_the_bridge_does_not_survive_returns_too() -> None:
    broker = Broker((LOADED,), (LOADED,))
    async with running(broker) as process:
        reloading = asyncio.ensure_future(broker.child.reload())
        assert await process.hear() == Reload()
        process.die()
        await reloading


@on_a_loop
async def test_a_bridge_that_connects_has_as_long_as_a_start_may_take(caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker((LOADED,), start_seconds=600, times=Times(ping=0.001))
    async with running(broker):
        await until(lambda: broker.looks > 50)
        assert "hangs" not in caplog.text


@on_a_loop
async def test_a_bridge_that_cannot_be_started_again_is_tried_until_it_can(caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker((LOADED,), None, None, (LOADED,))
    async with running(broker) as process:
        process.die()
        await until(lambda: broker.restarts == 1)
        assert caplog.text.count("no more processes; tried again in") == 2
        start = await broker.processes[1].hear()
        assert isinstance(start, Start)
        assert (start.routes, start.ports, start.settings.admin_port) == (b"routes", {0: 4711}, 4712)


@on_a_loop
async def test_a_stop_waits_for_the_end_but_not_while_the_bridge_is_being_started_again() -> None:
    broker = Broker((LOADED,), times=Times(bridges=Backoff(first=600, longest=600)))
    async with running(broker) as process:
        process.die()
        await until(lambda: broker.child.pid is None)
        async with asyncio.timeout(5):
            await broker.child.stop(60)
    broker = Broker((LOADED,))
    async with running(broker) as process:
        stopping = asyncio.ensure_future(broker.child.stop(60))
        assert await process.hear() == Stop(60)
        process.die()
        await stopping

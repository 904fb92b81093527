"""`BridgeChild`: the bridge as a child process of the broker, which starts, watches, restarts and stops it.

The child runs `plugin_bridge`. Messages go by MQTT at the broker's endpoint; all else, such as logs and reloads, by the
messages of `control` on a socket pair. A bridge that ends is started again at once, then after 1, 2, 4 ... 30 s, with
the routes that it used last, even if the route files have changed. A bridge that sends nothing for 30 s counts as
hanging, and is killed. The broker's loop only; the constructor blocks.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from amqtt_rest_bridge.broker.control import (
    Connect,
    Failed,
    Loaded,
    Log,
    Reload,
    Start,
    Stop,
    read,
    read_blocking,
    written,
)
from amqtt_rest_bridge.child_process import ChildProcess, Restarts
from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.settings import Settings
from amqtt_rest_bridge.supervised_tasks import Times
from amqtt_rest_bridge.times import woken

if TYPE_CHECKING:
    from amqtt_rest_bridge.broker.endpoint import PrivateEndpoint

log = logging.getLogger(__name__)

_MODULE: Final = "amqtt_rest_bridge.plugin_bridge"
_MOST_SILENT: Final = 6  # looks in a row without a packet, after which a bridge is killed: 30 s with `Times.ping`
_END_SECONDS: Final = 1.0  # for a process to end once its control socket is closed
_RESULTS_SECONDS: Final = 1.5  # which a bridge gets after its grace, to publish its last results


class RunningProcess(Protocol):
    """A process that was started; `ChildProcess` is one."""

    pid: int

    def end(self, seconds: float) -> int:
        """Wait so long for its end, then kill it, and return its status; blocks."""
        ...


Spawn = Callable[[socket.socket], RunningProcess]
"""Start a bridge that owns this end of a socket pair; raises `OSError` if the system has no more processes."""


def spawn_bridge(theirs: socket.socket) -> RunningProcess:
    """Start a bridge in an interpreter of its own."""
    return ChildProcess(_MODULE, [str(theirs.fileno())], [theirs.fileno()])


class _EndedError(ConfigurationError):
    """The bridge ended while it started, and gave no reason. It may have been killed, so another start may succeed."""

    def __init__(self) -> None:
        super().__init__("the bridge process ended while it started; its output says why")


class _Child:
    """A process and the control socket that leads to it."""

    def __init__(self, spawn: Spawn, start: Start) -> None:
        self.socket, theirs = socket.socketpair()
        self.unsent = written(start)
        """The first message to the process; empty after it was sent."""
        try:
            with theirs:
                self.process = spawn(theirs)
        except OSError:
            self.socket.close()
            raise

    def disconnect(self) -> None:
        """Close the control socket, so that the process ends."""
        with contextlib.suppress(OSError):  # of a process that has ended
            self.socket.shutdown(socket.SHUT_RDWR)

    def end(self) -> int:
        """Wait a second at most for the end of the process, then kill it, and return its status; blocks."""
        status = self.process.end(_END_SECONDS)
        self.socket.close()
        return status


class BridgeChild:
    """The bridge. The constructor returns once it has loaded its routes and bound their ports.

    Args:
        settings: The plugin's settings, checked.
        endpoint: Where the bridge connects.
        times: How long to wait before a restart, and how often to look for a sign of life.
        spawn: Starts a process.

    Raises:
        RouteFilesError: A route file has an error; every fault has been logged.
        ConfigurationError: The bridge cannot start, or is not ready within `start_seconds`; no process is left.
    """

    def __init__(
        self, settings: Settings, endpoint: "PrivateEndpoint", times: Times, spawn: Spawn = spawn_bridge
    ) -> None:
        self.server_ports: dict[int, int] = {}
        """The bound port for each SERVER_PORT."""
        self.admin_port: int | None = None
        """The bound port of the status page and the metrics."""
        self._settings = settings
        self._endpoint = endpoint
        self._times = times
        self._spawn = spawn
        self._restarts = Restarts(times.bridges)
        self._routes_in_use: bytes | None = None  # a pickled `LoadedRoutes`, for the next bridge
        self._writer: asyncio.StreamWriter | None = None  # of the control socket, while `run` talks to the bridge
        self._reloading: asyncio.Future[None] | None = None  # done when the reload that was asked for has ended
        self._reload_missed = False  # a reload was asked for while the bridge was away
        self._failure: str | None = None  # why the bridge says that it cannot run
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()  # set when `run` returns
        self._child: _Child | None = self._start(time.monotonic() + settings.start_seconds)

    @property
    def pid(self) -> int | None:
        """Return the process id, None while there is no process."""
        return None if self._child is None else self._child.process.pid

    # The start, which blocks.

    def _start(self, deadline: float) -> _Child:
        """Start the bridge and wait until it has loaded its routes; start it again while it dies."""
        while True:
            child = self._spawn_child()
            try:
                self._await_loaded(child, deadline)
            except _EndedError as error:
                child.end()
                delay = self._restarts.ended()
                if time.monotonic() + delay >= deadline:
                    raise ConfigurationError(f"the bridge process cannot start: {error}") from error
                log.warning(
                    "the bridge process (pid %d) ended while it started; it is started again %s",
                    child.process.pid, _delay_text(delay),
                )  # fmt: skip
                time.sleep(delay)
            except BaseException:
                child.disconnect()
                child.end()
                raise
            else:
                return child

    def _await_loaded(self, child: _Child, deadline: float) -> None:
        try:
            child.socket.settimeout(max(0.001, deadline - time.monotonic()))
            child.socket.sendall(child.unsent)
            child.unsent = b""
            while (message := read_blocking(child.socket, deadline)) is not None:
                self._receive(message)
                if isinstance(message, Failed):
                    raise message.error()
                if isinstance(message, Loaded):
                    return
        except TimeoutError:
            raise ConfigurationError(
                "the bridge process cannot start: it was not ready in time; the setting start_seconds gives it more"
            ) from None
        except (BrokenPipeError, ConnectionResetError):
            raise _EndedError from None
        raise _EndedError

    def _spawn_child(self) -> _Child:
        self._restarts.begin()
        self._failure = None
        level = logging.getLogger("amqtt_rest_bridge").getEffectiveLevel()
        settings = self._settings
        if self.admin_port is not None:  # keep the port that the first start has bound
            settings = replace(settings, admin_port=self.admin_port)
        return _Child(
            self._spawn, Start(settings, self._endpoint.address, self._routes_in_use, level, self.server_ports)
        )

    # While it runs.

    async def run(self) -> None:
        """Connect the bridge, watch it, and start it again whenever it ends; return once it was stopped."""
        while not self._stopping.is_set():
            child = self._child
            if child is None:
                await self._start_again()
                continue
            await self._talk(child)
            if self._stopping.is_set():
                break
            status = await asyncio.to_thread(child.end)
            self._child = None
            delay = self._restarts.ended()
            why = f", killed by signal {-status}" if status < 0 else ""
            if self._failure is not None:
                why = f": {self._failure}"
            log.error(
                "the bridge process (pid %d) ended%s; it is started again %s",
                child.process.pid, why, _delay_text(delay),
            )  # fmt: skip
            await self._pause(delay)
        self._ended.set()

    async def _start_again(self) -> None:
        """Start a process. If the system has no process or descriptor left, wait until the next try is due."""
        try:
            self._child = await asyncio.to_thread(self._spawn_child)
            self._endpoint.reports.note_restart()
        except OSError as error:
            delay = self._restarts.ended()
            what = "the bridge process cannot be started: %s; tried again in %.0f s"
            log.error(what, error, delay)  # noqa: TRY400  # the reason is all
            await self._pause(delay)

    async def _pause(self, delay: float) -> None:
        """Wait so many seconds, or until the bridge is stopped."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._stopping.wait()

    async def _talk(self, child: _Child) -> None:
        """Connect a bridge, and receive its messages until its control socket ends."""
        child.socket.setblocking(False)
        reader, self._writer = await asyncio.open_unix_connection(sock=child.socket.dup())
        watching = asyncio.create_task(self._kill_if_silent(child))
        try:
            self._writer.write(child.unsent + written(Connect()))
            child.unsent = b""
            while (message := await read(reader)) is not None:
                self._receive(message)
        finally:
            watching.cancel()
            self._writer.close()
            self._writer = None
            self._finish_reload()

    async def _kill_if_silent(self, child: _Child) -> None:
        """Kill a bridge that hangs.

        Looks are counted, not seconds: a broker that was suspended for a minute has looked once, and kills nothing.
        """
        silent = 0
        while True:
            await asyncio.sleep(self._times.ping)
            silent = 0 if self._endpoint.has_heard() else silent + 1
            most = _MOST_SILENT
            if not self._endpoint.ready.is_set():  # the bridge still connects and subscribes
                most = max(most, round(self._settings.start_seconds / self._times.ping))
            if silent >= most:
                log.error("the bridge process (pid %d) hangs and is killed", child.process.pid)
                os.kill(child.process.pid, signal.SIGKILL)
                return

    def _receive(self, message: Any) -> None:
        """Log a record of the bridge, or note that it has loaded its routes or cannot run."""
        match message:
            case Log(level, logger, text):
                logging.getLogger(logger).log(level, "%s", text)
            case Loaded(server_ports, admin_port, routes):
                self.server_ports, self.admin_port = server_ports, admin_port
                self._routes_in_use = routes or self._routes_in_use
                self._finish_reload()
                if self._reload_missed and self._writer is not None:
                    self._reload_missed = False
                    self._writer.write(written(Reload()))
            case Failed(reason):
                self._failure = reason

    def _finish_reload(self) -> None:
        reloading, self._reloading = self._reloading, None
        if reloading is not None:
            reloading.set_result(None)

    async def reload(self) -> None:
        """Read the route files again. Return when that has succeeded or failed; the log says which.

        If the bridge is away, return at once: it reads the files when it is back.
        """
        if self._writer is None:
            self._reload_missed = True
            return
        if self._reloading is None:
            self._reloading = asyncio.get_running_loop().create_future()
        self._writer.write(written(Reload()))
        await asyncio.shield(self._reloading)

    # The end.

    async def stop(self, grace: float) -> None:
        """Stop the bridge: it takes no more messages, and its requests get `grace` seconds. Wait for its end."""
        self._stopping.set()
        if self._writer is not None:
            self._writer.write(written(Stop(grace)))
            await woken(self._ended, grace + _RESULTS_SECONDS)

    async def close(self) -> None:
        """End the process at once; `stop` gives it time before."""
        self._stopping.set()
        await asyncio.to_thread(self.release)

    def release(self) -> None:
        """End the process at once, without a loop; blocks for a second at most."""
        child, self._child = self._child, None
        if child is not None:
            child.disconnect()
            child.end()


def _delay_text(delay: float) -> str:
    return f"in {delay:.0f} s" if delay else "at once"

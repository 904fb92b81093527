"""The bridge of the plugin: `bridge.Program`, connected to the private endpoint of its broker.

`main` runs it as a child process, which `broker.bridge_child` has started and controls (`broker.control`).
`BridgeTasks` runs it as tasks of the broker's own loop (`processes: 0`). It has the methods of `BridgeChild`, so that
the plugin uses both in the same way.
"""

import asyncio
import contextlib
import logging
import os
import pickle
import shutil
import signal
import socket
import sys
import threading
from functools import partial
from typing import Any, Final

from amqtt_rest_bridge.bridge import MakePlace, Program
from amqtt_rest_bridge.broker.control import Connect, Failed, Loaded, Log, Reload, Start, Stop, read, written
from amqtt_rest_bridge.errors import BridgeError, InUseError, reason
from amqtt_rest_bridge.group.plugin_member import PluginMember
from amqtt_rest_bridge.mqtt.private import PrivateAddress
from amqtt_rest_bridge.mqtt.publisher import MqttPublisher
from amqtt_rest_bridge.reload import LoadedRoutes, load_first
from amqtt_rest_bridge.settings import Settings
from amqtt_rest_bridge.signals import loop_factory
from amqtt_rest_bridge.system import leave_no_core_file

log = logging.getLogger(__name__)

_MOST_LOG_BYTES: Final = 1 << 20  # of records that the broker has not read; further ones are dropped and counted
_IN_USE_SECONDS: Final = 2.0  # how long a start waits for the bridge of a broker that was killed
_RETRY_SECONDS: Final = 0.2
_FLUSH_SECONDS: Final = 0.5  # at the end, for the last messages


def main() -> None:
    """Run as a process: `python -m amqtt_rest_bridge.plugin_bridge DESCRIPTOR`."""
    # Ctrl-C, a hang-up and a supervisor's SIGTERM reach the whole group; the broker says when to stop.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    leave_no_core_file()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(socket.socket(fileno=int(sys.argv[1]))))


async def serve(sock: socket.socket) -> None:
    """Run the bridge at its end of a control socket, until the broker stops it or is gone."""
    reader, writer = await asyncio.open_unix_connection(sock=sock)
    start = await read(reader)
    if start is None:
        return
    logging.basicConfig(level=start.level, handlers=[ControlHandler(writer)], format="%(message)s", force=True)
    process = BridgeProcess(start, writer)
    running, obeying = asyncio.ensure_future(process.run()), asyncio.ensure_future(process.obey(reader))
    await asyncio.wait([running, obeying], return_when=asyncio.FIRST_COMPLETED)
    if not running.done():  # the broker is gone, so nothing can receive the results
        process.release()
        if (folder := start.address.folder) is not None:  # a killed broker has not removed it
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)
    obeying.cancel()
    writer.close()
    with contextlib.suppress(TimeoutError, OSError):
        async with asyncio.timeout(_FLUSH_SECONDS):
            await writer.wait_closed()
    await running  # so that an unexpected error is seen


class BridgeProcess:
    """The bridge in a process of its own.

    Args:
        start: The first message of the broker.
        writer: The control socket.
    """

    def __init__(self, start: Start, writer: asyncio.StreamWriter) -> None:
        self._start = start
        self._writer = writer
        self._program: Program | None = None
        self._may_connect = asyncio.Event()
        self._stop: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Serve until the broker sends `Stop`. If that is impossible, send the broker the reason, and return."""
        serving: asyncio.Future[Any] = asyncio.ensure_future(self._serve())
        await asyncio.wait([serving, self._stop], return_when=asyncio.FIRST_COMPLETED)
        if self._stop.done():
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            if self._program is not None:
                await self._program.stop(self._stop.result())

    async def obey(self, reader: asyncio.StreamReader) -> None:
        """Act on the messages of the broker, until it is gone."""
        while (message := await read(reader)) is not None:
            match message:
                case Connect():
                    self._may_connect.set()
                case Reload():
                    if self._program is not None:
                        self._program.reload_soon()
                case Stop(grace):
                    if not self._stop.done():
                        self._stop.set_result(grace)

    def release(self) -> None:
        """Close ports and files; blocks for some seconds at most."""
        if self._program is not None:
            self._program.release()

    async def _serve(self) -> None:
        try:
            self._program = program = await self._load()
            await self._may_connect.wait()
            await program.start()
            self._send(Failed(await program.supervisor.broken()))
        except BridgeError as error:
            self._send(Failed.because_of(error))
        except Exception as error:
            log.exception("the bridge cannot go on")
            self._send(Failed(reason(error)))

    async def _load(self) -> Program:
        """Load the routes, bind their ports, report them to the broker, and return the bridge.

        If a port or file is in use, try again for two seconds: the bridge of a broker that was killed needs that long
        to end.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + _IN_USE_SECONDS
        pids = {"main": os.getppid(), "bridge-0": os.getpid()}
        settings, place = self._start.settings, _make_place(self._start.settings, self._start.address)
        while True:
            try:
                self._program = program = Program(
                    settings, MqttPublisher(is_private=True), place, on_reload=self._report_loaded, pids=pids
                )
                if self._start.routes is None:
                    self._report_loaded(await program.load())
                else:
                    first = pickle.loads(self._start.routes)  # noqa: S301  # written by the process before this one
                    program.use_first(first, before=self._start.ports)
                    self._report_loaded(None)
                return program
            except InUseError:
                self.release()
                self._program = None
                if loop.time() >= until:
                    raise
                await asyncio.sleep(_RETRY_SECONDS)

    def _report_loaded(self, first: LoadedRoutes | None) -> None:
        if self._program is not None:
            known = None if first is None else pickle.dumps(first)
            self._send(Loaded(dict(self._program.server_ports), self._program.admin_port, known))

    def _send(self, message: object) -> None:
        if not self._writer.transport.is_closing():  # then uvloop would raise an error
            self._writer.write(written(message))


class ControlHandler(logging.Handler):
    """Sends log records to the broker's logging, from any thread. If too many wait, others are dropped and counted.

    Args:
        writer: The control socket.
    """

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        super().__init__()
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record."""
        message = Log(record.levelno, record.name, self.format(record))
        if threading.get_ident() == self._thread:
            self._write(message)
        else:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._write, message)

    def _write(self, message: Log) -> None:
        if self._writer.transport.is_closing():  # the broker is gone
            return
        if self._writer.transport.get_write_buffer_size() > _MOST_LOG_BYTES:
            self._dropped += 1
            return
        if self._dropped:
            lost = f"{self._dropped} log record(s) of the bridge are lost: too many came at once"
            self._dropped = 0
            self._writer.write(written(Log(logging.WARNING, __name__, lost)))
        self._writer.write(written(message))


class BridgeTasks:
    """The bridge in the broker's own loop. The constructor loads the routes and binds their ports; it blocks.

    Args:
        settings: The plugin's settings, checked.
        address: The address of the endpoint.

    Raises:
        RouteFilesError: A route file has an error; every fault has been logged.
        ConfigurationError: A file cannot be used, a port is taken, or a route cannot run.
    """

    def __init__(self, settings: Settings, address: PrivateAddress) -> None:
        self.program = program = Program(
            settings, MqttPublisher(is_private=True), _make_place(settings, address), owns_process=False
        )
        """The bridge."""
        self._starting: asyncio.Future[None] | None = None
        self._is_stopped = False
        try:
            program.use_first(load_first(settings))
        except BaseException:
            program.release()
            raise

    @property
    def server_ports(self) -> dict[int, int]:
        """Return the bound port for each SERVER_PORT."""
        return dict(self.program.server_ports)

    @property
    def admin_port(self) -> int | None:
        """Return the bound port of the status page and the metrics."""
        return self.program.admin_port

    async def run(self) -> None:
        """Connect to the endpoint and serve, until cancelled.

        Raises:
            RuntimeError: A task of the bridge keeps failing; raised again at each call until it has recovered.
        """
        if self._starting is None:
            self._starting = asyncio.ensure_future(self.program.start())
        await asyncio.shield(self._starting)
        raise RuntimeError(await self.program.supervisor.broken())

    async def reload(self) -> None:
        """Read the route files again, and return once that has succeeded or failed, which is in the log."""
        await self.program.reload()

    async def stop(self, grace: float) -> None:
        """Take no more messages, give running requests `grace` seconds, and end."""
        if self._starting is not None and not self._is_stopped:
            self._is_stopped = True
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
            await self.program.stop(grace)

    async def close(self) -> None:
        """End, if that is not done yet, and close ports and files."""
        await self.stop(0.0)
        self.release()

    def release(self) -> None:
        """Close ports and files; blocks for some seconds at most."""
        self.program.release()


def _make_place(settings: Settings, address: PrivateAddress) -> MakePlace:
    return partial(PluginMember, settings.coreflux, address)


if __name__ == "__main__":
    main()

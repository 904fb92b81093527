"""One bridge process as the broker sees it: how it is started, its link, and the calls that it holds or will be sent.

A bridge process lives at the other end of a link and ends by itself when the link closes; with `processes: 0` it is a
thread of the broker process. Starting one blocks briefly. The broker's loop.
"""

import asyncio
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.link.admin_frames import EndedRequest, FromAdmin
from amqtt_rest_bridge.link.frames import (
    BreakerChange,
    Claim,
    Failed,
    Listen,
    Log,
    Ping,
    Pong,
    Publications,
    PublishOnce,
    Ready,
    Served,
    Settle,
    Stalled,
    StalledPort,
    Stop,
    Stopped,
    StreamReaders,
    ToBroker,
    Unserved,
    UseRoutes,
)
from amqtt_rest_bridge.processes.bridge_calls import BridgeCalls
from amqtt_rest_bridge.processes.child import ChildProcess
from amqtt_rest_bridge.routing.server_reports import ServerReports

log = logging.getLogger(__name__)

_BUFFER: Final = 1 << 20  # bytes
_PROCESS_SECONDS: Final = 1.0  # for a bridge process to end
_THREAD_SECONDS: Final = 5.0  # for a bridge in a thread
MOST_UNANSWERED: Final = 6  # pings in a row; who answers none of them hangs: 30 s with `Times.ping`
_MOST_ASKED: Final = 1000  # frames of the admin port during the start; callers ask again

Spawn = Callable[[socket.socket], tuple[int, Callable[[], None]]]
"""Start a bridge at the other end of a socket; returns its process id and a function that waits for its end."""


class DiedError(ConfigurationError):
    """A bridge process ended during the start, as one does that is killed: another may start."""

    def __init__(self) -> None:
        super().__init__("the bridge process ended while it started; its output says why")


class BridgeProcess:
    """One bridge process, its link, and the calls that it holds.

    Args:
        index: Its number among those of the plugin.
        loop: The broker's, which may not run yet.
        spawn: Starts it.
        workers: How many calls of a route it runs at once.
        server: Counts what its server mode takes in and answers.
        on_ready: Called when it serves, each time that it has taken new routes.
        on_closed: Called when it has ended.
        on_admin: Called with each frame of the admin port.
        ping_seconds: How often it is asked whether it lives.
    """

    def __init__(
        self,
        index: int,
        loop: asyncio.AbstractEventLoop,
        spawn: Spawn,
        workers: int,
        server: ServerReports,
        on_ready: Callable[["BridgeProcess"], None],
        on_closed: Callable[["BridgeProcess"], None],
        on_admin: Callable[[FromAdmin], None],
        ping_seconds: float,
    ) -> None:
        self._ping_seconds = ping_seconds
        self.index = index
        self.ready = False
        self.ports: frozenset[int] = frozenset()
        self.failure: str | None = None
        self.stopped = False
        self._loop = loop
        self._server = server
        self._on_ready = on_ready
        self._on_closed = on_closed
        self._on_admin = on_admin
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):  # many small frames should fit while the other side is busy
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        self.calls = BridgeCalls(ours, loop, workers, server, self._handle, self._closed)
        self.link, self.feed = self.calls.link, self.calls.feed
        try:
            self.pid, self._end = spawn(theirs)
        except OSError:
            ours.close()
            theirs.close()
            raise
        self._unanswered = 0  # pings
        self._stalled: Sequence[StalledPort] = ()
        self._unserved: Mapping[int, str] = {}  # why, by port
        self._open_breakers: set[str] = set()  # by route
        self._gone = False
        self._early: list[Publications | Claim | PublishOnce | Settle | FromAdmin] = []  # what came before `attach`

    def configure_now(self, routes: bytes, sockets: Mapping[int, socket.socket]) -> None:
        """Send routes and the listening sockets of their ports; blocks, for the plugin's constructor."""
        self.link.send_now(Listen(list(sockets)), list(sockets.values()))
        self.link.send_now(UseRoutes(routes, list(sockets)))
        self.ports = frozenset(sockets)

    def configure(self, routes: bytes, sockets: Mapping[int, socket.socket]) -> None:
        """Send routes, after what was dispatched before, and the sockets of those of their ports that are new."""
        opened = {port: sock for port, sock in sockets.items() if port not in self.ports}
        self.link.send(Listen(list(opened)), list(opened.values()))
        self.link.send(UseRoutes(routes, list(sockets)))
        self.ports = frozenset(sockets)

    def await_ready(self, deadline: float) -> None:
        """Wait until the bridge serves.

        Raises:
            DiedError: It has ended without a reason.
            ConfigurationError: It cannot start, or did not within the time; the message says why.
        """
        while not self.ready:
            remaining = deadline - time.monotonic()
            frames = self.link.receive_now(remaining) if remaining > 0 else []
            for frame in frames or ():
                # Of callers who were faster: what answers it needs the loop.
                if isinstance(frame, Publications | Claim | PublishOnce | Settle):
                    self._early.append(frame)
                elif isinstance(frame, FromAdmin):
                    self._early += [frame] if len(self._early) < _MOST_ASKED else []
                else:
                    self.calls.handle(frame)
            if (reason := self.failure or next(iter(self._unserved.values()), None)) is not None:
                raise ConfigurationError(reason)
            if frames is None:
                raise DiedError
            if not frames and remaining <= 0:
                raise ConfigurationError("it was not ready in time; the setting start_seconds gives it more")

    def attach(self) -> None:
        """Attach to the loop, which runs."""
        self.link.attach(self._loop)
        early, self._early = self._early, []
        for frame in early:
            self.calls.handle(frame)
        self._loop.call_later(self._ping_seconds, self._ping)

    def stop(self, grace: float) -> None:
        """Send nothing more of what waits, and tell it to finish within `grace` seconds."""
        self.calls.stop()
        self.link.send(Stop(grace))

    def disconnect(self) -> None:
        """Close the link, so that the process ends."""
        self._gone = True
        self.link.close()

    def close(self) -> None:
        """Close the link and wait a moment for the process to end; blocks for a second at most."""
        self.disconnect()
        self._end()

    def _ping(self) -> None:
        """See whether the bridge still reads its link and its ports still turn; what hangs would do so for ever."""
        if self._gone:
            return
        if self._unanswered >= MOST_UNANSWERED:
            self._server.stalled([port.configured for port in self._stalled])
            silent = "".join(f", port {port.bound} answers nothing" for port in self._stalled)
            if self.pid != os.getpid():
                log.error("bridge process %d (pid %d) hangs%s and is killed", self.index, self.pid, silent)
                os.kill(self.pid, signal.SIGKILL)  # what follows is what follows the death of any other
                return
            if self._unanswered == MOST_UNANSWERED:
                log.error("the bridge, a thread of this process, hangs%s: start the broker again", silent)
        if self._unanswered < MOST_UNANSWERED or not self.link.backlog:
            self.link.send(Ping())
        self._unanswered += 1
        self._loop.call_later(self._ping_seconds, self._ping)

    def _handle(self, frame: ToBroker) -> None:  # noqa: C901  # a case for each frame
        """Handle a frame about the bridge process itself."""
        match frame:
            case Served():
                self._server.served(frame)
            case EndedRequest():
                self._server.ended(frame)
                self.calls.release_credits(frame.credits)
            case StreamReaders(routes):
                self._server.readers(self.index, routes)
            case Log(level, logger, text):
                logging.getLogger(logger).log(level, "%s", text)
            case Ready():
                self.ready = True
                self._on_ready(self)
            case Failed(reason):
                self.failure = reason
            case Stopped():
                self.stopped = True
            case Pong():
                if self._unanswered > MOST_UNANSWERED:
                    log.warning("the bridge answers again")
                self._unanswered, self._stalled = 0, ()
            case Stalled(ports):
                self._stalled = ports
            case Unserved(reasons):
                self._unserved = reasons
                self._server.unserved(self.index, reasons)
            case BreakerChange(route, reason):
                (self._open_breakers.discard if reason is None else self._open_breakers.add)(route)
                self._server.breaker(route, reason)
            case _ if isinstance(frame, FromAdmin):
                self._on_admin(frame)

    def _closed(self) -> None:
        self.ready = False
        self._gone = True
        for route in self._open_breakers:  # those of the next process begin closed
            self._server.breaker(route, None)
        self._server.readers(self.index, {})
        self._on_closed(self)


def spawn_process(sock: socket.socket) -> tuple[int, Callable[[], None]]:
    """Start a bridge process that owns this end of a socket pair."""
    level = logging.getLogger("amqtt_rest_bridge").getEffectiveLevel()
    child = ChildProcess("amqtt_rest_bridge.bridge.main", [str(sock.fileno()), str(level)], [sock.fileno()])
    sock.close()

    def end() -> None:
        status = child.end(_PROCESS_SECONDS)
        if status < 0:
            log.warning("the bridge process with pid %d was ended by signal %d", child.pid, -status)

    return child.pid, end


def thread_spawner(run: Callable[[socket.socket], None]) -> Spawn:
    """Return what runs the bridge in a thread of this process (`processes: 0`): the same code behind the same link."""

    def spawn(sock: socket.socket) -> tuple[int, Callable[[], None]]:
        thread = threading.Thread(target=run, args=(sock,), name="bridge", daemon=True)
        thread.start()
        return os.getpid(), lambda: thread.join(timeout=_THREAD_SECONDS)

    return spawn

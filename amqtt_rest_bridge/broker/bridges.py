"""The bridge processes as the broker sees them: started, fed, watched and started again. The broker's loop alone.

A bridge process lives at the other end of a link and ends by itself when the link closes. What it held when it died is
told to the dispatcher, call by call, after everything it had sent has been read.
"""

import asyncio
import logging
import os
import pickle
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from amqtt_rest_bridge.broker.dispatch import Call
from amqtt_rest_bridge.broker.route_set import exclusive_ports
from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.link import INITIAL_CREDITS, Batcher, BrokerEnd, Frame, Op
from amqtt_rest_bridge.model import BridgeSettings, NumberedRoute

log = logging.getLogger(__name__)

READY_SECONDS: Final = 10.0
_BUFFER: Final = 1 << 20  # bytes
_FIRST_DELAY: Final = 1.0  # before the second restart in a row; the first is at once
_LONGEST_DELAY: Final = 30.0
_STEADY_SECONDS: Final = 60.0  # a bridge that lived this long starts anew at once
# Credits go back a quarter of the window at a time, or after a while: each frame wakes the bridge process, which took
# 15 % of the loop's time under full load when 64 credits or 2 ms were the measure.
_CREDIT_BATCH: Final = INITIAL_CREDITS // 4
_CREDIT_SECONDS: Final = 0.05

Spawn = Callable[[socket.socket], tuple[int, Callable[[], None]]]
"""Start a bridge at the other end of a socket; gives its process id and what waits for its end."""


class Reports(Protocol):
    """Who is told what the bridges say; `give` takes back the credits of a publication once it is out."""

    def done(self, call: Call, item: tuple[Any, ...], give: Callable[[int], None]) -> None:
        """Take a call's end: an item of a DONE frame."""

    def lost(self, call: Call) -> None:
        """Take back a call whose bridge died."""

    def request(self, item: tuple[str, str, bytes, bool], give: Callable[[int], None]) -> None:
        """Take a publication of server mode: an item of a PUBLISH frame."""

    def waiting(self, number: int, change: int) -> None:
        """Note that a call of an event begins or ceases to wait for its next try."""

    def served(self, report: Mapping[str, tuple[int, int, str, str]]) -> None:
        """Take what server mode answered since the last report."""

    def latest(self) -> list[tuple[str, bytes]]:
        """Give what read events answer with."""


def spawn_process(sock: socket.socket) -> tuple[int, Callable[[], None]]:
    """Start a bridge process that owns the given end of a socket pair."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
    process = subprocess.Popen(  # noqa: S603  # our own module in our own interpreter
        [
            sys.executable,
            "-P",
            "-m",
            "amqtt_rest_bridge.bridge.process",
            str(sock.fileno()),
            str(logging.getLogger("amqtt_rest_bridge").getEffectiveLevel()),
        ],
        pass_fds=[sock.fileno()],
        stdin=subprocess.DEVNULL,
        env=environment,
    )
    sock.close()

    def end() -> None:
        try:
            process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    return process.pid, end


class Bridge:
    """One bridge process, its link, and the calls that it holds."""

    def __init__(self, index: int, spawn: Spawn, reports: Reports) -> None:
        self.index = index
        self.ready = False
        self.calls: dict[int, Call] = {}
        self.failure: str | None = None
        self.on_ready: Callable[[], None] = _nothing
        self.on_closed: Callable[[], None] = _nothing
        self.stopped = False
        self._reports = reports
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):  # many small frames should fit while the other side is busy
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        self._link = BrokerEnd(ours)
        self.pid, self._end = spawn(theirs)
        self._give_back = 0

    def configure_now(self, listen: Frame, sockets: Sequence[socket.socket], routes: Frame) -> None:
        """Send the first frames; blocks, for the plugin's constructor."""
        self._link.send_now(listen, sockets)
        self._link.send_now(routes)

    def await_ready(self, deadline: float) -> None:
        """Wait until the bridge serves.

        Raises:
            ConfigurationError: It cannot start, or did not within the time; the message says why.
        """
        while not self.ready:
            remaining = deadline - time.monotonic()
            frames = self._link.receive_now(remaining) if remaining > 0 else []
            for frame in frames or ():
                self._take(frame)
            if self.failure is not None:
                raise ConfigurationError(self.failure)
            if frames is None:
                raise ConfigurationError("the bridge process ended while it started; its output says why")
            if not frames and remaining <= 0:
                raise ConfigurationError(f"the bridge process was not ready after {READY_SECONDS:.0f} s")

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Go over to the loop."""
        self._link.attach(loop, self._take, self._closed)
        self._deals = Batcher(loop, lambda calls: self._link.send((Op.CALLS, calls)))
        self._seen = Batcher(loop, lambda seen: self._link.send((Op.SEEN, seen)))
        self._loop = loop

    def send(self, frame: Frame, sockets: Sequence[socket.socket] = ()) -> None:
        """Queue a frame, after what was dealt before it."""
        self._deals.flush()
        self._link.send(frame, sockets)

    def deal(self, call: Call) -> None:
        """Hand over a call."""
        self.calls[call.id] = call
        message = call.message
        self._deals.add(
            (call.id, call.listening.number, message.topic, message.payload, message.timestamp, call.key)
        )

    def forward(self, topic: str, payload: bytes) -> None:
        """Show a message to read events and waiting replies."""
        self._seen.add((topic, payload))

    def close(self) -> None:
        """Close the link and wait a moment for the process to end; blocks for a second at most."""
        self._link.close()
        self._end()

    def _take(self, frame: Frame) -> None:
        op = frame[0]
        if op == Op.DONE:
            for item in frame[1]:
                call = self.calls.pop(item[0], None)
                if call is not None:
                    self._reports.done(call, item, self._give)
        elif op == Op.PUBLISH:
            for item in frame[1]:
                self._reports.request(item, self._give)
        else:
            self._take_rare(frame)

    def _take_rare(self, frame: Frame) -> None:
        match frame[0]:
            case Op.WAITING:
                self._reports.waiting(frame[1], frame[2])
            case Op.SERVED:
                self._reports.served(frame[1])
            case Op.LOG:
                logging.getLogger(frame[2]).log(frame[1], "%s", frame[3])
            case Op.READY:
                self.ready = True
                self.on_ready()
            case Op.FAILED:
                self.failure = frame[1]
            case Op.STOPPED:
                self.stopped = True

    def _give(self, count: int) -> None:
        if not self._give_back:
            self._loop.call_later(_CREDIT_SECONDS, self._send_credits)
        self._give_back += count
        if self._give_back >= _CREDIT_BATCH:
            self._send_credits()

    def _send_credits(self) -> None:
        if self._give_back:
            count, self._give_back = self._give_back, 0
            self._link.send((Op.CREDIT, count))

    def _closed(self) -> None:
        self.ready = False
        self.on_closed()


class Bridges:
    """All bridge processes of a plugin; restarts those that die.

    Args:
        count: How many.
        spawn: How one is started.
        settings: What they need of the plugin's configuration.
    """

    def __init__(self, count: int, spawn: Spawn, settings: BridgeSettings) -> None:
        self._count = count
        self._spawn = spawn
        self._settings = settings
        self._bridges: list[Bridge] = []
        self._held: deque[Call] = deque()  # admitted while no bridge was ready; bounded by what the routes admit
        self._listen: dict[int, socket.socket] = {}
        self._exclusive: set[int] = set()
        self._routes: Frame = (Op.ROUTES, b"")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._delays = [0.0] * count
        self._stopping = False
        self.reports: Reports

    def start(self, routes: Sequence[NumberedRoute], sockets: Mapping[int, socket.socket]) -> None:
        """Start all processes and wait until they serve; blocks for `READY_SECONDS` at most.

        Raises:
            ConfigurationError: One of them cannot start; none is left.
        """
        self._describe(routes, sockets)
        deadline = time.monotonic() + READY_SECONDS
        try:
            for index in range(self._count):
                bridge = Bridge(index, self._spawn, self.reports)
                self._bridges.append(bridge)
                ports = self._ports_of(index, self._listen)
                bridge.configure_now((Op.LISTEN, list(ports)), list(ports.values()), self._routes)
            for bridge in self._bridges:
                bridge.await_ready(deadline)
        except (ConfigurationError, OSError) as error:
            self.close()
            raise ConfigurationError(f"the bridge process cannot start: {error}") from error

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Go over to the loop."""
        self._loop = loop
        for bridge in self._bridges:
            self._adopt(bridge, loop)

    def replace_routes(self, routes: Sequence[NumberedRoute], sockets: Mapping[int, socket.socket]) -> None:
        """Send a new set of routes; new ports open before old ones close."""
        opened = {port: sock for port, sock in sockets.items() if port not in self._listen}
        self._describe(routes, sockets)
        for bridge in self._bridges:
            ports = self._ports_of(bridge.index, opened)
            bridge.send((Op.LISTEN, list(ports)), list(ports.values()))
            bridge.send(self._routes)

    def deal(self, call: Call) -> None:
        """Hand a call to the least busy bridge; those of an ORDERED event to the same one for each topic."""
        ready = [bridge for bridge in self._bridges if bridge.ready]
        if not ready:
            self._held.append(call)
        elif len(ready) == 1:
            ready[0].deal(call)
        elif call.listening.event.ordered:
            ready[hash((call.listening.number, call.message.topic)) % len(ready)].deal(call)
        else:
            min(ready, key=lambda bridge: len(bridge.calls)).deal(call)

    def forward(self, topic: str, payload: bytes) -> None:
        """Show a message to all bridges."""
        for bridge in self._bridges:
            if bridge.ready:
                bridge.forward(topic, payload)

    async def stop(self, grace: float) -> dict[str, int]:
        """Let running calls finish for `grace` seconds; give how many of each route had not ended by then."""
        self._stopping = True
        for bridge in self._bridges:
            if bridge.ready:
                bridge.send((Op.STOP, grace))
        deadline = time.monotonic() + grace + 0.5
        while time.monotonic() < deadline and any(bridge.ready and not bridge.stopped for bridge in self._bridges):
            await asyncio.sleep(0.01)
        left: dict[str, int] = {}
        for call in [*self._held, *(call for bridge in self._bridges for call in bridge.calls.values())]:
            left[call.listening.route] = left.get(call.listening.route, 0) + 1
        return left

    def close(self) -> None:
        """End every bridge process; blocks for a second at most for each."""
        self._stopping = True
        for bridge in self._bridges:
            bridge.close()
        self._bridges.clear()

    def _describe(self, routes: Sequence[NumberedRoute], sockets: Mapping[int, socket.socket]) -> None:
        self._listen = dict(sockets)
        self._exclusive = exclusive_ports(numbered.route for numbered in routes)
        self._routes = (Op.ROUTES, pickle.dumps((self._settings, tuple(routes))))

    def _ports_of(self, index: int, sockets: Mapping[int, socket.socket]) -> dict[int, socket.socket]:
        """Give the ports that a bridge serves: all, but the first one alone has those that cannot be shared."""
        return {port: sock for port, sock in sockets.items() if index == 0 or port not in self._exclusive}

    def _adopt(self, bridge: Bridge, loop: asyncio.AbstractEventLoop) -> None:
        bridge.attach(loop)
        bridge.on_ready = lambda: self._became_ready(bridge)
        bridge.on_closed = lambda: self._died(bridge)
        if bridge.ready:
            self._became_ready(bridge)

    def _became_ready(self, bridge: Bridge) -> None:
        for topic, payload in self.reports.latest():
            bridge.forward(topic, payload)
        self._release()

    def _release(self) -> None:
        held, self._held = self._held, deque()
        for call in held:
            self.deal(call)

    def _died(self, bridge: Bridge) -> None:
        calls, bridge.calls = bridge.calls, {}
        if self._stopping:
            return
        delay = self._delays[bridge.index]
        log.error(
            "bridge process %d ended%s; it held %d message(s); it is started again %s",
            bridge.index,
            f": {bridge.failure}" if bridge.failure else "",
            len(calls),
            f"in {delay:.0f} s" if delay else "at once",
        )
        self._delays[bridge.index] = min(_LONGEST_DELAY, delay * 2 or _FIRST_DELAY)
        for call in calls.values():
            self.reports.lost(call)
        loop = self._loop
        if loop is not None:
            loop.call_later(delay, self._restart, bridge)

    def _restart(self, old: Bridge) -> None:
        if self._stopping or self._loop is None:
            return
        loop = self._loop
        loop.run_in_executor(None, old.close)
        bridge = Bridge(old.index, self._spawn, self.reports)
        self._bridges[old.index] = bridge
        self._adopt(bridge, loop)
        ports = self._ports_of(bridge.index, self._listen)
        bridge.send((Op.LISTEN, list(ports)), list(ports.values()))
        bridge.send(self._routes)
        loop.call_later(_STEADY_SECONDS, self._forgive, bridge)

    def _forgive(self, bridge: Bridge) -> None:
        if bridge in self._bridges:
            self._delays[bridge.index] = 0.0


def _nothing() -> None:
    """Nobody minds yet."""

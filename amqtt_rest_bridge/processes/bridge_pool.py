"""All bridge processes of a plugin: started, fed, watched and started again. The broker's loop alone.

A call goes to the process that holds the fewest; the calls of one topic of an ORDERED event, or of one route with a
RATE_LIMIT, always to the same one. Calls that find no process ready are held here.

When a process dies, everything that it had sent is read first. Then the calls that it still held are reported lost
(`bridge_restarted`), and those of lossless routes, and all that it had not been sent, are dispatched again: a slice of
them between two iterations of the loop, since ten thousand at once would hold up the other clients. It is started again
at once, then after 1, 2, 4 ... 30 s; its listening sockets belong to the broker process and stay open, and its routes
are sent to it again.
"""

import asyncio
import contextlib
import logging
import pickle
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.link.admin_frames import FromAdmin, ServeAdmin
from amqtt_rest_bridge.link.frames import InGroup
from amqtt_rest_bridge.link.newest import INCOMPLETE, Newest
from amqtt_rest_bridge.model import Message, NumberedRoute
from amqtt_rest_bridge.processes.bridge_calls import MOST_UNREAD
from amqtt_rest_bridge.processes.bridge_process import BridgeProcess, DiedError, Spawn
from amqtt_rest_bridge.processes.child import Restarts
from amqtt_rest_bridge.processes.supervisor import Times
from amqtt_rest_bridge.route_set import exclusive_ports
from amqtt_rest_bridge.routing.calls import MOST_WAITING_BYTES, Call, CallPlace
from amqtt_rest_bridge.routing.server_reports import ServerReports
from amqtt_rest_bridge.settings import BridgeSettings

log = logging.getLogger(__name__)

T = TypeVar("T")

# A client's message takes some ten iterations from its PUBLISH to the subscriber: it waits for ten slices.
_SLICE_SECONDS: Final = 0.001
_SLICE_BYTES: Final = 64 * 1024
_PAUSE_SECONDS: Final = 0.005


class Slices(Generic[T]):
    """Items that are worked on without taking the loop's time from others: a slice between two of its iterations.

    The first one goes first; a slice takes a millisecond, or 64 KiB.

    Args:
        loop: Where they are worked on.
        work: Called with each item; an exception is logged and costs that item alone.
        size: Returns the bytes that an item moves.
        end: Called at the end of each slice.
        paused: Returns whether the next slice has to wait.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Callable[[T], None],
        size: Callable[[T], int],
        end: Callable[[], None] = lambda: None,
        paused: Callable[[], bool] = lambda: False,
    ) -> None:
        self.items: deque[T] = deque()
        """What waits."""
        self.working = False
        """Whether a slice is being worked on right now."""
        self._work = work
        self._size = size
        self._end = end
        self._paused = paused
        self._loop = loop
        self._is_due = False

    def put_first(self, items: Iterable[T]) -> None:
        """Queue items, in their order, before all that wait."""
        self.items.extendleft(reversed(list(items)))
        self._schedule()

    def put_last(self, items: Iterable[T]) -> None:
        """Queue items after all that wait."""
        self.items.extend(items)
        self._schedule()

    def _schedule(self) -> None:
        if self.items and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        if self._paused():
            self._loop.call_later(_PAUSE_SECONDS, self._run)
            return
        self._is_due = False
        self.working = True
        try:
            self._run_slice()
        finally:
            self.working = False
            self._schedule()

    def _run_slice(self) -> None:
        deadline, size = time.perf_counter() + _SLICE_SECONDS, 0
        while self.items and size < _SLICE_BYTES and time.perf_counter() < deadline:
            item = self.items.popleft()
            size += self._size(item)
            try:
                self._work(item)
            except Exception:
                log.exception("a message was left behind")
        self._end()


class BridgePool:
    """All bridge processes of a plugin; restarts those that die.

    Args:
        count: How many.
        spawn: How one is started.
        settings: What they need of the plugin's configuration.
        server: Counts what their server mode takes in and answers.
        loop: The broker's, which may not run yet.
        start_seconds: What they get, together, to become ready at the start.
    """

    def __init__(
        self,
        count: int,
        spawn: Spawn,
        settings: BridgeSettings,
        server: ServerReports,
        loop: asyncio.AbstractEventLoop,
        start_seconds: float,
        times: Times,
    ) -> None:
        self._times = times
        self.restarts = 0
        """How many bridge processes had to be started again."""
        self.on_admin: Callable[[FromAdmin], None] = lambda _: None
        """Called with each frame of the admin port that a bridge process sends."""
        self.on_ready: Callable[[BridgeProcess], None] = lambda _: None
        """Called when a bridge process has been started, or has taken new routes."""
        self._count = count
        self._spawn = spawn
        self._settings = settings
        self._server = server
        self._start_seconds = start_seconds
        self._admin: socket.socket | None = None
        self._bridges: list[BridgeProcess] = []
        # Admitted while no bridge was ready, and on their way to one that is, before all that is admitted later.
        # Bounded by what the routes admit, which may be hundreds of megabytes: so they go in slices.
        self._held: deque[Call] = deque()
        # Replayed, for a reload may have changed the route.
        self._due: Slices[Call] = Slices(
            loop,
            lambda call: call.reports.replay(call),
            _size,
            self._flush,
            lambda: any(bridge.ready and bridge.link.backlog > MOST_UNREAD for bridge in self._bridges),
        )
        # Their failures may hold the messages (FAILURE_PAYLOAD).
        self._lost: Slices[Call] = Slices(
            loop,
            lambda call: call.reports.lost(call),
            _size,
            paused=lambda: self._server.publisher.waiting_bytes > MOST_WAITING_BYTES,
        )
        self._listen: dict[int, socket.socket] = {}
        self._exclusive: set[int] = set()
        self._routes = b""
        self._loop = loop
        self._pauses = [Restarts(times.bridges) for _ in range(count)]
        self._group: InGroup | None = None
        self._stopping = False

    @property
    def processes(self) -> Sequence[BridgeProcess]:
        """Return the bridge processes by their numbers, as they are now and as they become; none before `start`."""
        return self._bridges

    def start(
        self,
        routes: Sequence[NumberedRoute],
        sockets: Mapping[int, socket.socket],
        admin: socket.socket | None = None,
    ) -> None:
        """Start all processes and wait until they serve; blocks for `start_seconds` at most.

        The first one serves the admin port, where there is a socket for it. One that dies is started again.

        Raises:
            ConfigurationError: One of them cannot start; none is left.
        """
        self._describe(routes, sockets)
        self._admin = admin
        deadline = time.monotonic() + self._start_seconds
        try:
            for index in range(self._count):
                self._start_now(index, deadline)
            for index in range(self._count):
                self._await_now(index, deadline)
        except (ConfigurationError, OSError) as error:
            self.close()
            raise ConfigurationError(f"the bridge process cannot start: {error}") from error

    def _start_now(self, index: int, deadline: float) -> None:
        """Start a process, again while it dies before it has read what it gets; raises `DiedError` at the deadline."""
        while True:
            bridge = self._make(index)
            self._bridges[index : index + 1] = [bridge]
            try:
                if self._admin is not None and index == 0:
                    bridge.link.send_now(ServeAdmin(), [self._admin])
                bridge.configure_now(self._routes, self._ports_of(index))
            except (BrokenPipeError, ConnectionResetError):
                self._bury(bridge, deadline, DiedError())
            else:
                return

    def _await_now(self, index: int, deadline: float) -> None:
        """Wait until a process serves, and start it again while it dies."""
        while True:
            bridge = self._bridges[index]
            try:
                bridge.await_ready(deadline)
            except DiedError as error:
                self._bury(bridge, deadline, error)
                self._start_now(index, deadline)
            else:
                return

    def _bury(self, bridge: BridgeProcess, deadline: float, error: DiedError) -> None:
        """Close a process that died, and wait until it may be started again.

        Raises:
            DiedError: The deadline has passed, or the pool was closed meanwhile, which is what ended the process.
        """
        bridge.close()
        delay = self._pauses[bridge.index].ended()
        if self._stopping or time.monotonic() + delay >= deadline:
            raise error
        log.warning(
            "bridge process %d (pid %d) ended while it started; it is started again %s",
            bridge.index, bridge.pid, f"in {delay:.0f} s" if delay else "at once",
        )  # fmt: skip
        time.sleep(delay)

    def attach(self) -> None:
        """Attach to the loop, which runs."""
        for bridge in reversed(self._bridges):  # the first one last: what its admin port has asked goes to all
            bridge.attach()

    def replace_routes(self, routes: Sequence[NumberedRoute], sockets: Mapping[int, socket.socket]) -> None:
        """Send a new set of routes; new ports open before old ones close.

        Raises:
            OSError: There are too few file descriptors to pass the sockets on; nothing has changed.
        """
        with contextlib.ExitStack() as spare:
            for sock in [*sockets.values()] * len(self._bridges):
                spare.enter_context(sock.dup())
        self._describe(routes, sockets)
        for bridge in self._bridges:
            bridge.configure(self._routes, self._ports_of(bridge.index))

    def dispatch(self, calls: Sequence[Call]) -> None:
        """Send the calls of a message, each to the least busy bridge.

        Those of an ORDERED event go to the same one for each topic. While that one is being started again they wait
        for it: an earlier one may still be with no other.

        Decision: the calls of a route with a RATE_LIMIT go to one bridge process, which alone can keep to it; so do
        those of a route with a BREAKER, whose target would else be probed by each.
        """
        if self._due.items and not self._due.working:
            self._due.items.extend(calls)
        elif len(self._bridges) == 1 and self._bridges[0].ready and not self._stopping:
            self._bridges[0].calls.dispatch(calls)
        else:
            shares: dict[BridgeProcess, list[Call]] = {}
            for call in calls:
                bridges = [bridge for bridge in self._candidates(call) if bridge.ready and not self._stopping]
                if bridges:
                    chosen = min(bridges, key=lambda bridge: len(bridge.calls.open) + len(shares.get(bridge, ())))
                    shares.setdefault(chosen, []).append(call)
                else:
                    self._held.append(call)
            for bridge, share in shares.items():
                bridge.calls.dispatch(share)

    def _candidates(self, call: Call) -> Sequence[BridgeProcess]:
        """Return the bridges that may run a call."""
        if not call.listening.is_bound or len(self._bridges) < 2:
            return self._bridges
        key = (call.listening.route,) if call.listening.is_single else (*call.listening.name, call.message.topic)
        return (self._bridges[hash(key) % len(self._bridges)],)

    def withdraw(self) -> None:
        """Take back every call whose delivery was dropped; those that no bridge process has go with the next look."""
        held, self._held = self._held, deque()
        for call in held:
            if call.delivery is None or not call.delivery.is_dropped or call.reports.renew(call):
                self._held.append(call)
        for bridge in self._bridges:
            if bridge.ready:
                bridge.calls.withdraw()

    def forward(self, message: Message) -> bool:
        """Send a message that may be a reply to all bridges; return False when one of them had no room for it."""
        taken = [bridge.feed.reply(message) for bridge in self._bridges if bridge.ready]
        return all(taken)

    def show(self, newest: Newest[bytes], topic: str) -> None:
        """Pass on the newest message on a topic of read events, to all bridges."""
        for bridge in self._bridges:
            if bridge.ready:
                bridge.feed.newest(newest, topic)

    def show_all(self, newest: Newest[bytes]) -> None:
        """Pass on all newest messages of a filter that had too many, to all bridges."""
        for bridge in self._bridges:
            if bridge.ready:
                bridge.feed.all_newest(newest)

    async def stop(self, grace: float) -> dict[str, tuple[int, int]]:
        """Wait up to `grace` seconds for running calls, and for the failures of lost ones; start no more.

        Returns for each route how many had not ended by then: those that are lost, and lossless ones.
        """
        self._stopping = True
        for bridge in self._bridges:
            if bridge.ready:
                bridge.stop(grace)
        deadline = time.monotonic() + grace + 0.5
        while time.monotonic() < deadline and (
            self._lost.items or any(bridge.ready and not bridge.stopped for bridge in self._bridges)
        ):
            await asyncio.sleep(0.01)
        left: dict[str, tuple[int, int]] = {}
        in_flight = (call for bridge in self._bridges for call in bridge.calls.open.values())
        for call in [*self._lost.items, *self._due.items, *self._held, *in_flight]:
            lost, kept = left.get(call.listening.route, (0, 0))
            left[call.listening.route] = (lost + 1, kept) if call.key is None else (lost, kept + 1)
        return left

    def disconnect(self) -> None:
        """Close every link, so that the processes end."""
        self._stopping = True
        for bridge in self._bridges:
            bridge.disconnect()

    def close(self) -> None:
        """End every bridge process; blocks for a second at most for each."""
        self._stopping = True
        for bridge in self._bridges:
            bridge.close()
        self._bridges.clear()

    def in_group(self, workers: int, ordered_until: float) -> None:
        """Keep to what holds in a group of workers from now on; see `InGroup`."""
        self._group = InGroup(workers, ordered_until)
        for bridge in self._bridges:
            bridge.link.send(self._group)

    def _describe(self, routes: Sequence[NumberedRoute], sockets: Mapping[int, socket.socket]) -> None:
        self._listen = dict(sockets)
        self._exclusive = set() if self._settings.is_mqtt_5 else exclusive_ports(one.route for one in routes)
        self._routes = pickle.dumps((self._settings, tuple(routes)))

    def _ports_of(self, index: int) -> dict[int, socket.socket]:
        """Return the ports that a bridge serves: all, but the first one alone has those that cannot be shared."""
        return {port: sock for port, sock in self._listen.items() if index == 0 or port not in self._exclusive}

    def _make(self, index: int) -> BridgeProcess:
        self._pauses[index].begin()
        return BridgeProcess(
            index, self._loop, self._spawn, self._settings.workers,
            self._server, self._became_ready, self._died, self.on_admin, self._times.ping,
        )  # fmt: skip

    def _became_ready(self, bridge: BridgeProcess) -> None:
        self._show_latest(bridge)
        if self._group is not None:
            bridge.link.send(self._group)
        held, self._held = self._held, deque()
        self._due.put_first(held)
        self.on_ready(bridge)

    def _show_latest(self, bridge: BridgeProcess) -> None:
        for newest in self._server.watching.newest():
            for topic in [*newest.topics] if newest.is_complete else [INCOMPLETE, *newest.topics]:
                bridge.feed.newest(newest, topic)

    def _flush(self) -> None:
        for bridge in self._bridges:
            if bridge.ready:
                bridge.link.flush()

    def _died(self, bridge: BridgeProcess) -> None:
        if self._stopping:
            return
        calls = bridge.calls.close()
        delay = self._pauses[bridge.index].ended()
        log.error(
            "bridge process %d (pid %d) ended%s; it held %d message(s); it is started again %s",
            bridge.index,
            bridge.pid,
            f": {bridge.failure}" if bridge.failure else "",
            sum(map(_was_sent, calls)),
            f"in {delay:.0f} s" if delay else "at once",
        )
        self._lost.put_last(call for call in calls if call.key is None and _was_sent(call))
        self._due.put_first(call for call in calls if call.key is not None or not _was_sent(call))
        self._loop.call_later(delay, self._restart, bridge)

    def _restart(self, old: BridgeProcess) -> None:
        if self._stopping:
            return
        self._loop.run_in_executor(None, old.close)
        bridge = old
        try:
            bridge = self._bridges[old.index] = self._make(old.index)
            bridge.attach()
            self.restarts += 1
            if self._admin is not None and bridge.index == 0:
                bridge.link.send(ServeAdmin(), [self._admin])
            self._show_latest(bridge)
            bridge.feed.send_newest()  # before its ports open: a read event that has seen a message answers with it
            bridge.configure(self._routes, self._ports_of(bridge.index))
        except OSError as error:  # processes or descriptors may have run out
            bridge.disconnect()
            delay = self._pauses[old.index].ended()
            log.error("the bridge process cannot be started: %s; tried again in %.0f s", error, delay)  # noqa: TRY400
            self._loop.call_later(delay, self._restart, bridge)


def _was_sent(call: Call) -> bool:
    return call.place is not CallPlace.HELD or call.let_go


def _size(call: Call) -> int:
    return len(call.message.payload)

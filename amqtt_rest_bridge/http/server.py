"""An HTTP/1.1 server: `HttpServer(socket, app)` answers the requests of one port with an application.

`ports` and `admin` start one for each port. It accepts connections, closes slow ones, and ends gracefully; `connection`
reads the requests and sends the answers. asyncio has the sockets, buffers and timers, llhttp the parser. Both modules
exist for what no library promises:

- One caller, whatever it sends or does not read, costs bounded memory, and no other caller its answer.
- If there are too many connections, the longest idle one is closed, or else the slowest.
- A port that ends leaves its callers to other processes that listen on the same port.
"""

import asyncio
import contextlib
import ctypes
import errno
import itertools
import logging
import resource
import socket
import struct
import sys
import time
import uuid
from collections import deque
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from typing import Final, Protocol

from amqtt_rest_bridge.http.access_log import AccessLog
from amqtt_rest_bridge.http.connection import Connection, write_head
from amqtt_rest_bridge.http.exchange import SHUTTING_DOWN, Application, Refusal, overloaded, refused
from amqtt_rest_bridge.http.server_tls import TlsFiles, TlsTransport

log = logging.getLogger(__name__)

# Bytes of answers that the system holds and has not sent. By default it holds some 2.6 MB for a caller that does not
# read, so 1.3 GB for 500 of them. Bytes on their way are not counted, so long and fast lines are as fast as without it.
_UNSENT_BYTES: Final = 131_072
_MOST_CONNECTIONS: Final = 4096
_ACCEPTS: Final = 4  # connections taken in a row before others get their turn
_CLOSED_AT_ONCE: Final = 8  # connections, when there are too many
_HANDSHAKE_SECONDS: Final = 0.1  # from the last SYN that was taken until its connection can be accepted
_POLL_SECONDS: Final = 0.02
_ATTACH_FILTER: Final = 26 if sys.platform == "linux" else None  # SO_ATTACH_FILTER, which `socket` does not name
# Classic BPF on the TCP header, whose byte 13 has the flags: a packet with SYN is dropped, any other one is taken.
_DROP_SYN: Final = b"".join(
    struct.pack("HBBI", *one) for one in ((0x30, 0, 0, 13), (0x45, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFF))
)

_READ_BYTES: Final = 16_384
# Seconds of each iteration of the loop.
_TURN_SECONDS: Final = 0.001  # for callers
_REFUSED_SECONDS: Final = 0.00025  # for callers whose last answer was an error; for handshakes as much
_STREAMS_SECONDS: Final = 0.0005


class TakesTurns(Protocol):
    """A connection, a handshake or a stream, which works in turns."""

    def take_turn(self) -> None:
        """Do the next piece of work. Called once for each time that it was queued."""
        ...


@dataclass(frozen=True, slots=True)
class PortLimits:
    """The limits of a port, in seconds and counts.

    `connections` None means half of the process's file descriptors, 4,096 at most.
    """

    slow_seconds: float = 30.0  # for a request from its first to its last byte, a handshake, a stalled answer
    idle_seconds: float = 120.0  # a connection between requests
    waiting: int = 1024  # answers that are being made
    waiting_bytes: int = 64 << 20  # of the bodies of their requests
    connections: int | None = None
    patience_seconds: float = 1.0  # with a peer that sends or reads only a part, when connections are scarce
    linger_seconds: float = 2.0  # for a peer to read a refusal while it sends on


class Port:
    """What the connections of a port share: the application, the limits, and the turns.

    Callers are served in *turns*, so that no caller delays the others, and all of them take little of the loop's time.
    In one iteration of the loop these kinds of work are done in order, each for a limited time, over all connections:

    1. Answers that have been made are sent, one right after the other: 1 ms.
    2. Requests are read and answered, one of each connection: 1 ms.
    3. So are those of callers whose last answer was an error: 0.25 ms. A flood of them delays no other caller.
    4. TLS handshakes: 0.25 ms.
    5. Streams: 0.5 ms.
    """

    def __init__(
        self, app: Application, limits: PortLimits, max_body_bytes: int, access_log: AccessLog | None = None
    ) -> None:
        self.app = app
        self.limits = limits
        self.max_body_bytes = max_body_bytes
        self.access_log = access_log
        self.closing: Refusal | None = None
        """The refusal of all new requests, None while the port serves."""
        self.leaving = False
        """Whether each connection ends after its next answer."""
        self.connections: set[Connection] = set()
        self.aborted: set[Connection] = set()
        """Connections that the loop closes in one of its next iterations; they are no longer in `connections`."""
        self.waiting: set[Connection] = set()
        """The connections whose answers are being made. The peers of some may have gone."""
        self.waiting_bytes = 0
        self.buffer = memoryview(bytearray(_READ_BYTES))
        """All connections read into this buffer, and copy the bytes at once."""
        self.answered: deque[TakesTurns] = deque()
        """Connections whose answers have been made, and are to be sent."""
        self.ready: deque[TakesTurns] = deque()
        """Connections with requests to read, in order of arrival; those in `refused` got an error last."""
        self.refused: deque[TakesTurns] = deque()
        self.handshakes: deque[TakesTurns] = deque()
        """Connections whose handshakes have received bytes."""
        self.streaming: deque[TakesTurns] = deque()
        """Streams that may have a piece to send."""
        self._has_turn = False
        self._loop: asyncio.AbstractEventLoop | None = None
        # Ids are a random start and a number, since a random UUID for each request would take 2 us.
        self._prefix = str(uuid.uuid4())[:24]
        self._numbers = itertools.count(1)

    @property
    def is_full(self) -> bool:
        """Return whether no more answers may wait."""
        return len(self.waiting) >= self.limits.waiting or self.waiting_bytes >= self.limits.waiting_bytes

    def forget(self, connection: "Connection") -> None:
        """Note that a connection has ended."""
        self.connections.discard(connection)
        self.aborted.discard(connection)

    def request_id(self) -> str:
        """Return the id of the next request, a UUID that no other request has."""
        return self._prefix + next(self._numbers).to_bytes(6).hex()

    def schedule(self) -> None:
        """Serve turns in the next iteration of the loop."""
        if not self._has_turn:
            self._has_turn = True
            self._loop = self._loop or asyncio.get_running_loop()
            self._loop.call_soon(self._serve_turns)

    def _serve_turns(self) -> None:
        """Serve each kind of work until its time is over; the rest gets its turns in the next iteration."""
        self._has_turn = False
        for callers, seconds in (
            (self.answered, _TURN_SECONDS),
            (self.ready, _TURN_SECONDS),
            (self.refused, _REFUSED_SECONDS),
            (self.handshakes, _REFUSED_SECONDS),
            (self.streaming, _STREAMS_SECONDS),
        ):
            until = time.monotonic() + seconds if callers else 0.0
            for _ in range(len(callers)):
                callers.popleft().take_turn()
                if time.monotonic() >= until:
                    break
        if self.answered or self.ready or self.refused or self.handshakes or self.streaming:
            self.schedule()


class HttpServer:
    """A port that answers with an application, on the running loop.

    Args:
        sock: Bound and listening. The server works on a duplicate, so other processes may accept from the socket at the
            same time, and the caller closes it. It becomes non-blocking.
        app: Makes the answers.
        tls: Certificate and key of a port that speaks HTTPS; None for HTTP.
        max_body_bytes: A larger body is answered with 413 as soon as its size is known.
        access_log: Gets a line for every answer. The caller closes it.
        limits: None for the defaults of `PortLimits`.

    Raises:
        ConfigurationError: The TLS files cannot be used.
    """

    def __init__(
        self,
        sock: socket.socket,
        app: Application,
        *,
        tls: TlsFiles | None = None,
        max_body_bytes: int = 262_144,
        access_log: AccessLog | None = None,
        limits: PortLimits | None = None,
    ) -> None:
        self._tls = tls
        self._context = tls.load() if tls is not None else None
        self.bound_port: int = sock.getsockname()[1]
        self._port = Port(app, limits or PortLimits(), max_body_bytes, access_log)
        self._most = self._port.limits.connections or min(
            _MOST_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        )
        self._sock: socket.socket | None = sock.dup()
        self._sock.setblocking(False)
        self._is_accepting = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to accept."""
        self._loop = asyncio.get_running_loop()
        self._check_connections()

    def reload_tls(self) -> None:
        """Read the certificate files again, for connections from now on.

        Raises `ConfigurationError` when they cannot be used; the port then keeps the certificate that it has.
        """
        if self._tls is not None:
            self._context = self._tls.load()

    async def stop(self, grace: float, refusal: Refusal | None = None, serve_seconds: float = 0.0) -> None:
        """Shut down gracefully: stop accepting, wait up to `grace` seconds for running requests, close all.

        New requests on open connections are answered with `refusal` (default `SHUTTING_DOWN`).

        If other processes serve the port too (SO_REUSEPORT), `serve_seconds` of the grace come first: in this time each
        open connection gets one more answer and is then closed, so that no caller notices.

        The socket that was given to the server stays open. It still listens, unless `serve_seconds` is given.
        """
        port, deadline = self._port, time.monotonic() + grace
        if serve_seconds and grace and self._timer is not None:
            await self._leave(min(deadline, time.monotonic() + serve_seconds))
        port.leaving, port.closing = True, refusal or SHUTTING_DOWN
        self._close_listening()
        while any(each.is_busy for each in port.connections) and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_SECONDS)
        if self._timer is not None:
            self._timer.cancel()
        for connection in tuple(port.connections):
            connection.shut_down()
        for connection in tuple(port.waiting):
            connection.cancel_answer()
        while port.connections or port.aborted or port.waiting:
            await asyncio.sleep(0)

    async def _leave(self, until: float) -> None:
        """Leave new connections to other processes that listen on the same port; serve those that have begun.

        When a listening socket is closed, the kernel resets the connections that wait in it, and handshakes under way.
        So there must be none of both: a filter first makes the kernel drop each new SYN for this socket. A caller
        repeats its SYN after a second, and reaches another process. So some callers wait for a second, but none is
        reset. sysctl net.ipv4.tcp_migrate_req=1 would hand connections over, but not every machine has it.
        """
        if self._sock is not None and _ATTACH_FILTER is not None:
            program = ctypes.create_string_buffer(_DROP_SYN)
            with contextlib.suppress(OSError):  # without the filter, only what comes just before the close is reset
                filtered = struct.pack("HL", len(_DROP_SYN) // 8, ctypes.addressof(program))
                self._sock.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, filtered)
        await asyncio.sleep(min(_HANDSHAKE_SECONDS, until - time.monotonic()))
        self._port.leaving = True
        self._accept(_MOST_CONNECTIONS)
        self._close_listening()
        while self._port.connections and time.monotonic() < until:
            await asyncio.sleep(_POLL_SECONDS)

    def _check_connections(self) -> None:
        """Close connections that take too long, and accept again after a pause. Runs about once a second."""
        limits, now = self._port.limits, time.monotonic()
        seconds = min(1.0, limits.slow_seconds / 4, limits.idle_seconds / 4)
        self._timer = self._loop.call_later(seconds, self._check_connections)
        if not self._is_accepting and self._sock is not None:
            self._is_accepting = True
            self._loop.add_reader(self._sock, self._accept)
        unread = sum([connection.close_overdue(now) for connection in tuple(self._port.connections)])
        if unread:
            text = "Port %s closed %d connection(s) that did not read their answers for %g s"
            log.warning(text, self.bound_port, unread, limits.slow_seconds)

    # Connections.

    def _accept(self, most: int = _ACCEPTS) -> None:
        """Accept up to `most` of the connections that wait. Other processes may accept some of them too."""
        for _ in range(most if self._sock is not None else 0):
            assert self._sock is not None  # noqa: S101  # nothing closes it meanwhile
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE) and not self._make_room():
                    log.warning("Port %s accepts nothing for a moment: %s", self.bound_port, error.strerror)
                    self._pause()
                return
            if len(self._port.connections) >= self._most and not self._make_room():
                if self._context is None:  # one non-blocking write, without a connection
                    answer = refused(overloaded())
                    sock.setblocking(False)
                    with contextlib.suppress(OSError):
                        sock.send(
                            write_head(answer, self._port.request_id(), int(time.time()), close=True) + answer.body
                        )
                sock.close()
                continue
            connection = Connection(self._port, address[0])
            self._port.connections.add(connection)
            opening = connection.opening = self._loop.create_task(self._open(connection, sock))
            opening.add_done_callback(partial(self._opened, connection, sock))

    async def _open(self, connection: Connection, sock: socket.socket) -> None:
        """Hand an accepted connection to the loop, with TLS where the port speaks HTTPS."""
        protocol: asyncio.BaseProtocol = connection
        if self._context is not None:
            protocol = TlsTransport(self._port, connection, self._context)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
            await self._loop.connect_accepted_socket(lambda: protocol, sock)
        except OSError as error:  # gone already
            log.debug("A connection from %s ended at once: %s", connection.remote, error)

    def _opened(self, connection: Connection, sock: socket.socket, _: "asyncio.Task[None]") -> None:
        """Forget a connection that the loop could not take."""
        connection.opening = None
        if connection.transport is None:
            self._port.forget(connection)
            sock.close()

    def _make_room(self) -> bool:
        """Close the connections that are idle for longest, or else those that send or read slowest.

        Return whether there were any.
        """
        connections, since = self._port.connections, time.monotonic() - self._port.limits.patience_seconds
        idle = [each for each in connections if each.is_idle]
        late = [each for each in connections if each.is_late(since)] if not idle else []
        stalled = [each for each in connections if each.is_stalled(since)] if not (idle or late) else []
        for connection in nsmallest(_CLOSED_AT_ONCE, [*idle, *stalled], key=lambda each: each.active):
            connection.abandon()
        for connection in nsmallest(_CLOSED_AT_ONCE, late, key=lambda each: each.began):
            connection.abandon()
        return bool(idle or late or stalled)

    def _pause(self) -> None:
        """Accept nothing until `_check_connections` runs again."""
        if self._is_accepting and self._sock is not None:
            self._is_accepting = False
            self._loop.remove_reader(self._sock)

    def _close_listening(self) -> None:
        """Close our duplicate of the listening socket, which leaves the socket itself as it is."""
        self._pause()
        if self._sock is not None:
            self._sock.close()
            self._sock = None

"""The door, `HttpServer`, and the port behind it: waitress's server on our loop, which accepts and closes connections.

`HttpServer`'s methods may be called from any thread. `HttpPort` runs on the port's own thread; `do` is for the others.
"""

import contextlib
import ctypes
import errno
import logging
import resource
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any, Final

from waitress.adjustments import Adjustments
from waitress.server import TcpWSGIServer

from amqtt_rest_bridge.http.access_log import AccessLog
from amqtt_rest_bridge.http.exchange import Refusal, Response, overloaded, request_timeout, shutting_down
from amqtt_rest_bridge.http_server.channel_loop import ChannelLoop
from amqtt_rest_bridge.http_server.connection import ServerConnection
from amqtt_rest_bridge.http_server.exchange import (
    Application,
    Exchange,
    Refuse,
    Request,
    Waiting,
    refused,
    response_pieces,
)
from amqtt_rest_bridge.http_server.request_parser import HEADER_BYTES, raw_limit
from amqtt_rest_bridge.http_server.tls import TlsFiles, secure
from amqtt_rest_bridge.times import rfc3339

log = logging.getLogger(__name__)

_MOST_CONNECTIONS: Final = 4096
_ACCEPTS: Final = 16  # connections taken in a row before others get their turn
# What the system holds of answers that are not on the network yet; without it some 2.6 MB for a caller that does not
# read, 1.3 GB for 500 of them. What is on its way is not counted, so long and fast lines are as fast as before.
_UNSENT_BYTES: Final = 131_072
_ROOM: Final = 8  # connections closed at once when there are too many
_HANDSHAKE_SECONDS: Final = 0.1  # from the SYN that was taken last until its connection can be accepted
_ATTACH_FILTER: Final = 26 if sys.platform == "linux" else None  # SO_ATTACH_FILTER, which `socket` does not name
# Classic BPF on the TCP header: byte 13 has the flags; 0 bytes of a packet with SYN are taken, all of any other.
_DROP_SYN: Final = b"".join(
    struct.pack("HBBI", *one) for one in ((0x30, 0, 0, 13), (0x45, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFF))
)

# waitress comes without types; with the stubs of another package or without, its classes count as Any here.
_Server: Any = TcpWSGIServer


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a port, in seconds and counts.

    `connections` None means half of the process's file descriptors, 4,096 at most.
    """

    slow_seconds: float = 30.0  # for a request from its first to its last byte, a handshake, a stalled answer
    idle_seconds: float = 120.0  # a connection between requests
    waiting: int = 256  # pending answers
    connections: int | None = None
    patience_seconds: float = 1.0  # with a peer that sends or reads only a part, when connections are scarce
    linger_seconds: float = 2.0  # for a peer to read a refusal while it sends on


class HttpServer:
    """A port that answers with an application.

    Args:
        sock: bound and listening; the server works on a duplicate, so the socket stays the caller's, and other
            processes may accept from it at the same time. It becomes non-blocking.
        app: makes the answers.
        tls: with them the port speaks HTTPS and nothing else.
        max_body_bytes: larger bodies are answered with 413 as soon as that is known.
        access_log: gets a line for every answer; stays the caller's.
        limits: see `Limits`; its defaults without.
        refuse: the form of the server's own refusals; JSON as the admin port has it without.
        after_turn: called after each turn of the port's thread, before it waits.

    Raises:
        ConfigurationError: the TLS files cannot be used.
    """

    def __init__(
        self,
        sock: socket.socket,
        app: Application,
        *,
        tls: TlsFiles | None = None,
        max_body_bytes: int = 262_144,
        access_log: AccessLog | None = None,
        limits: Limits | None = None,
        refuse: Refuse | None = None,
        after_turn: Callable[[], None] | None = None,
    ) -> None:
        self._tls = tls
        context = tls.load() if tls is not None else None
        self.bound_port: int = sock.getsockname()[1]
        self._port = HttpPort(sock.dup(), app, context, max_body_bytes, access_log, limits or Limits(), refuse)
        self._port.loop.after_turn = after_turn
        self._thread = threading.Thread(target=self._port.run, name=f"http-{self.bound_port}", daemon=True)

    def start(self) -> None:
        """Begin to accept, on a thread of its own."""
        self._thread.start()

    def on_turn(self, action: Callable[[], None]) -> None:
        """Run `action` on the port's thread, in its next turn: so that it is known to turn. Never blocks."""
        self._port.do(action)

    def replace_app(self, app: Application) -> None:
        """Use another application from the next request on; pending answers stay with theirs."""
        self._port.app = app

    def reload_tls(self) -> None:
        """Read the certificate files again, for connections from now on.

        Raises `ConfigurationError` when they cannot be used; the port then keeps the certificate that it has.
        """
        if self._tls is not None:
            self._port.tls_context = self._tls.load()
            self._tls.check_dates()

    def stop(self, grace: float, refusal: Refusal | None = None, serve_seconds: float = 0.0) -> None:
        """Shut down gracefully: stop accepting, wait up to `grace` seconds for running requests, close all.

        New requests on open connections are answered with `refusal` (default `shutting_down()`). Before that, for
        `serve_seconds` of the grace at most, those that have connected are served, by one more answer for each
        connection; for ports that others serve on (SO_REUSEPORT), so that no caller notices.
        Blocks until all is closed. The caller's socket stays open, listening unless `serve_seconds` is given.
        """
        deadline = time.monotonic() + grace
        if not self._thread.is_alive():
            self._port.dispose()
            return
        if serve_seconds and grace:
            self._port.do(self._port.leave_to_others)
            self._thread.join(min(_HANDSHAKE_SECONDS, grace))
            self._port.do(self._port.begin_leave)
            until = min(time.monotonic() + serve_seconds, deadline)
            while self._thread.is_alive() and time.monotonic() < until:
                self._port.do(self._port.close_when_empty)
                self._thread.join(0.02)
        self._port.do(lambda: self._port.begin_stop(refusal or shutting_down()))
        while self._thread.is_alive():
            if time.monotonic() >= deadline:
                self._port.do(self._port.close_all)
                self._thread.join(1.0)
                return
            self._port.do(self._port.close_when_quiet)
            self._thread.join(0.02)


class HttpPort(_Server):  # type: ignore[misc]  # see _Server
    """waitress's server on our loop: accepts connections and closes those that take too long."""

    active_channels: dict[int, ServerConnection]
    socket: Any
    trigger: Any

    def __init__(
        self,
        sock: socket.socket,
        app: Application,
        tls_context: ssl.SSLContext | None,
        max_body_bytes: int,
        access_log: AccessLog | None,
        limits: Limits,
        refuse: Refuse | None,
    ) -> None:
        self.app = app
        self.refuse = refuse or _in_json
        self.tls_context = tls_context
        self.loop = ChannelLoop()
        self.closing: Refusal | None = None  # what new requests are answered with
        self.leaving = False  # each answer is the last one on its connection
        self._wake_lock = threading.Lock()
        self._access_log = access_log
        self.limits = limits
        self._connections = limits.connections or min(
            _MOST_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        )
        adjustments: Any = Adjustments(
            sockets=[sock],
            ident=None,
            clear_untrusted_proxy_headers=False,  # {header.x} is what was sent
            log_socket_errors=False,
            max_request_header_size=HEADER_BYTES,
            max_request_body_size=raw_limit(max_body_bytes),
            url_scheme="https" if tls_context else "http",
        )
        adjustments.max_body_bytes = max_body_bytes
        super().__init__(
            None,  # waitress's tasks are not used, which would call a WSGI application
            self.loop,
            _sock=sock,
            dispatcher=object(),  # waitress's threads are not used
            adj=adjustments,
            bind_socket=False,
            sockinfo=(sock.family, sock.type, sock.proto, sock.getsockname()),
        )
        self.waiting = Waiting(limits.waiting, self.loop.later, self.do)

    def run(self) -> None:
        """Serve until `close_all`; the port's thread."""
        try:
            self.loop.run(self._tick, min(1.0, self.limits.slow_seconds / 4, self.limits.idle_seconds / 4))
        finally:
            self.dispose()

    def dispose(self) -> None:
        """Release what the port holds itself; when it does not run."""
        self.close_listening()
        for exchange in list(self.waiting.exchanges):
            exchange.cancel()
        with self._wake_lock:  # a late thread must not write to the next owner of the trigger's descriptor
            if self.trigger is not None:
                self.trigger.close()
                self.trigger = None
                self.loop.close()

    def do(self, work: Callable[[], None]) -> None:
        """Run `work` on the port's thread, if it still runs; from any thread."""
        self.loop.soon(work)
        self._wake()

    def do_patiently(self, work: Callable[[], None]) -> None:
        """Run `work` likewise, after what others wait for; see `ChannelLoop.patiently`."""
        self.loop.patiently(work)
        self._wake()

    def _wake(self) -> None:
        if not self.loop.waits:  # it takes what is left for it before it waits again
            return
        self.loop.waits = False  # one trigger is enough
        with self._wake_lock:
            if self.trigger is not None:
                self.trigger.pull_trigger()

    def readable(self) -> bool:
        """Return whether to accept."""
        return bool(self.accepting)

    def handle_accept(self) -> None:
        """Accept connections that wait; another process may have been faster."""
        self._accept(_ACCEPTS)

    def _accept(self, most: int) -> None:
        for _ in range(most):
            try:
                sock, address = self.socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE) and not self._make_room():
                    log.warning("Port %s accepts nothing for a moment: %s", self.effective_port, error.strerror)
                    self.accepting = False  # until the next tick
                return
            self._welcome(sock, address)

    def log_access(self, connection: ServerConnection, exchange: Exchange) -> None:
        """Write an answered request to the access log, if there is one."""
        if self._access_log is None:
            return
        parser, response = exchange.parser, exchange.response
        assert response is not None  # noqa: S101  # it is being sent
        seconds, labels = time.monotonic() - exchange.began, dict(response.labels)
        self._access_log.write(
            {
                "time": rfc3339(time.time() - seconds),
                "request_id": exchange.request_id,
                "remote": connection.addr[0],
                "method": parser.command,
                "path": getattr(parser, "request_uri", "").partition("?")[0],
                "status": int(response.status[:3]),
                "code": response.code,
                **{name: labels.get(name) for name in self._access_log.labels},
                "request_bytes": parser.body_bytes_received,
                "response_bytes": len(response.body),
                "ms": round(seconds * 1000, 3),
            }
        )

    def leave_to_others(self) -> None:
        """Leave new connections to those who listen on the same port; who has begun to connect still can.

        The kernel resets connections that wait in a listening socket when that is closed, and handshakes that are
        under way, so those must be over before. It drops a SYN for this socket now, which its caller repeats after a
        second, to a socket of the others. Decision: some callers wait for a second, instead of some that are reset;
        with sysctl net.ipv4.tcp_migrate_req=1 the kernel would hand connections over, but not every machine has that.
        """
        if self.socket is not None and _ATTACH_FILTER is not None:
            program = ctypes.create_string_buffer(_DROP_SYN)
            with contextlib.suppress(OSError):  # without it, the time between the last look and the close is left
                filtered = struct.pack("HL", len(_DROP_SYN) // 8, ctypes.addressof(program))
                self.socket.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, filtered)

    def begin_leave(self) -> None:
        """Accept what waits, and no more after it."""
        self.leaving = True
        if self.socket is not None:
            self._accept(_MOST_CONNECTIONS)
        self.close_listening()

    def begin_stop(self, refusal: Refusal) -> None:
        """Accept no more, and refuse what comes on open connections."""
        self.leaving, self.closing = True, refusal
        self.close_listening()

    def close_when_empty(self) -> None:
        """End the loop if there is no connection any more."""
        if not self.active_channels:
            self.close_all()

    def close_listening(self) -> None:
        """Close our duplicate of the listening socket, which leaves the socket itself as it is."""
        if self.socket is not None:
            self.accepting = False
            self.del_channel()
            self.socket.close()
            self.socket = None

    def close_when_quiet(self) -> None:
        """Close everything if no request is being served."""
        if not any(connection.is_busy for connection in self.active_channels.values()):
            self.close_all()

    def close_all(self) -> None:
        """Close every connection and end the loop."""
        for connection in list(self.active_channels.values()):
            connection.end()
        self.loop.stop()

    def _welcome(self, sock: socket.socket, address: Any) -> None:
        if len(self.active_channels) >= self._connections and not self._make_room():
            self._turn_away(sock)
            return
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
            if self.tls_context is not None:
                sock = secure(sock, self.tls_context)
            ServerConnection(self, sock, address)
        except OSError as error:  # gone already
            log.debug("A connection from %s ended at once: %s", address[0], error)
            sock.close()

    def _make_room(self) -> bool:
        """Close the connections that have been idle for longest, or else send or read slowest; False without any."""
        connections = self.active_channels.values()
        idle = [connection for connection in connections if connection.is_idle]
        late = [connection for connection in connections if connection.is_late] if not idle else []
        stalled = [connection for connection in connections if connection.is_stalled] if not (idle or late) else []
        for connection in nsmallest(_ROOM, [*idle, *stalled], key=lambda each: each.active_at):
            connection.abandon()
        for connection in nsmallest(_ROOM, late, key=lambda each: each.began):
            connection.abandon()
        return bool(idle or late or stalled)

    def _turn_away(self, sock: socket.socket) -> None:
        """Refuse a connection for which there is no room, in one non-blocking write."""
        if self.tls_context is None:
            id_ = self.waiting.request_id()
            pieces = response_pieces(self.refuse(Request(id_, "", "", "", {}, b"", overloaded())), id_, close=True)
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                sock.send(b"".join(pieces))
        sock.close()

    def _tick(self) -> None:
        now = time.monotonic()
        limits = self.limits
        timeout = request_timeout(limits.slow_seconds)
        unread = 0
        for connection in list(self.active_channels.values()):
            unread += connection.close_overdue(now, limits.slow_seconds, limits.idle_seconds, timeout)
        if unread:
            log.warning(
                "Port %s closed %d connection(s) that did not read their answers for %g s",
                self.effective_port,
                unread,
                limits.slow_seconds,
            )
        if self.closing is None and not self.accepting:
            self.accepting = True
            self.loop.refresh(self._fileno)


def _in_json(request: Request) -> Response:
    assert request.refusal is not None  # noqa: S101  # it is refused
    return refused(request.refusal)

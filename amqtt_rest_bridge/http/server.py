"""An HTTP/1.1 server: `HttpServer(socket, app)` answers the requests of one port. `Ports` are those of server mode.

asyncio has the sockets, buffers and timers, llhttp (`exchange`) the parser. Here, and in `connection`, is what no
library promises: one caller, whatever it sends or does not read, costs bounded memory and no other caller's answer;
what is slow is closed, and with too many connections the longest idle one goes, then the slowest; a port ends
gracefully, and leaves its callers to others that listen on the same port.

A port is bound before anything is served, so that one that is taken ends the start, and listens once it is served.
Workers may share a port (SO_REUSEPORT), and the kernel hands connections to those that listen. A port that cannot be
served (its certificate is gone) affects only its own routes. It is tried again every second. It does not listen
meanwhile, so callers are refused, or served by another process.
"""

import asyncio
import contextlib
import ctypes
import errno
import logging
import resource
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from types import MappingProxyType
from typing import Final

from amqtt_rest_bridge.addresses import in_url, why_not_bound
from amqtt_rest_bridge.catalogue import PORT_CLOSED
from amqtt_rest_bridge.errors import ConfigurationError, InUseError
from amqtt_rest_bridge.http.access_log import AccessLog
from amqtt_rest_bridge.http.connection import Connection, Port, PortLimits
from amqtt_rest_bridge.http.exchange import (
    RETRY_AFTER,
    Application,
    Refusal,
    overloaded,
    refuse,
    refused,
    shutting_down,
    write_head,
)
from amqtt_rest_bridge.http.server_tls import TlsFiles, TlsTransport

__all__ = ["HttpServer", "PortLimits", "TlsFiles"]

log = logging.getLogger(__name__)

# What the system holds of answers that are not on the network yet; without it some 2.6 MB for a caller that does not
# read, 1.3 GB for 500 of them. What is on its way is not counted, so long and fast lines are as fast as before.
_UNSENT_BYTES: Final = 131_072
_MOST_CONNECTIONS: Final = 4096
_ACCEPTS: Final = 4  # connections taken in a row before others get their turn
_ROOM: Final = 8  # connections closed at once when there are too many
_HANDSHAKE_SECONDS: Final = 0.1  # from the SYN that was taken last until its connection can be accepted
_POLL_SECONDS: Final = 0.02
_ATTACH_FILTER: Final = 26 if sys.platform == "linux" else None  # SO_ATTACH_FILTER, which `socket` does not name
# Classic BPF on the TCP header: byte 13 has the flags; 0 bytes of a packet with SYN are taken, all of any other.
_DROP_SYN: Final = b"".join(
    struct.pack("HBBI", *one) for one in ((0x30, 0, 0, 13), (0x45, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFF))
)

_BACKLOG: Final = 1024  # connections that wait to be accepted
_RETRY_SECONDS: Final = 1.0
_SERVE_SECONDS: Final = 1.0  # at the end: for the last requests on connections that are open


class HttpServer:
    """A port that answers with an application, on the running loop.

    Args:
        sock: bound and listening; the server works on a duplicate, so the socket stays the caller's, and other
            processes may accept from it at the same time. It becomes non-blocking.
        app: makes the answers.
        tls: with them the port speaks HTTPS and nothing else.
        max_body_bytes: larger bodies are answered with 413 as soon as that is known.
        access_log: gets a line for every answer; stays the caller's.
        limits: see `PortLimits`; its defaults without.

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
        self._look()

    def reload_tls(self) -> None:
        """Read the certificate files again, for connections from now on.

        Raises `ConfigurationError` when they cannot be used; the port then keeps the certificate that it has.
        """
        if self._tls is not None:
            self._context = self._tls.load()

    async def stop(self, grace: float, refusal: Refusal | None = None, serve_seconds: float = 0.0) -> None:
        """Shut down gracefully: stop accepting, wait up to `grace` seconds for running requests, close all.

        New requests on open connections are answered with `refusal` (default `shutting_down()`). Before that, for
        `serve_seconds` of the grace at most, those that have connected are served, by one more answer for each
        connection; for ports that others serve on (SO_REUSEPORT), so that no caller notices.
        The caller's socket stays open, listening unless `serve_seconds` is given.
        """
        port, deadline = self._port, time.monotonic() + grace
        if serve_seconds and grace and self._timer is not None:
            await self._leave(min(deadline, time.monotonic() + serve_seconds))
        port.leaving, port.closing = True, refusal or shutting_down()
        self._close_listening()
        while any(each.is_busy for each in port.connections) and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_SECONDS)
        if self._timer is not None:
            self._timer.cancel()
        for connection in tuple(port.connections):
            connection.end()
        for connection in tuple(port.waiting):
            connection.cancel()
        while port.connections or port.aborted or port.waiting:
            await asyncio.sleep(0)

    async def _leave(self, until: float) -> None:
        """Leave new connections to those who listen on the same port; who has begun to connect still can.

        The kernel resets connections that wait in a listening socket when that is closed, and handshakes that are
        under way, so those must be over before. It drops a SYN for this socket now, which its caller repeats after a
        second, to a socket of the others. Some callers wait for a second, instead of some that are reset;
        with sysctl net.ipv4.tcp_migrate_req=1 the kernel would hand connections over, but not every machine has that.
        """
        if self._sock is not None and _ATTACH_FILTER is not None:
            program = ctypes.create_string_buffer(_DROP_SYN)
            with contextlib.suppress(OSError):  # without it, the time between the last look and the close is left
                filtered = struct.pack("HL", len(_DROP_SYN) // 8, ctypes.addressof(program))
                self._sock.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, filtered)
        await asyncio.sleep(min(_HANDSHAKE_SECONDS, until - time.monotonic()))
        self._port.leaving = True
        self._accept(_MOST_CONNECTIONS)
        self._close_listening()
        while self._port.connections and time.monotonic() < until:
            await asyncio.sleep(_POLL_SECONDS)

    def _look(self) -> None:
        """Close what takes too long, and accept again where nothing was for a moment; about once a second."""
        limits, now = self._port.limits, time.monotonic()
        self._timer = self._loop.call_later(min(1.0, limits.slow_seconds / 4, limits.idle_seconds / 4), self._look)
        if not self._is_accepting and self._sock is not None:
            self._is_accepting = True
            self._loop.add_reader(self._sock, self._accept)
        unread = sum([connection.close_overdue(now) for connection in tuple(self._port.connections)])
        if unread:
            text = "Port %s closed %d connection(s) that did not read their answers for %g s"
            log.warning(text, self.bound_port, unread, limits.slow_seconds)

    # Connections.

    def _accept(self, most: int = _ACCEPTS) -> None:
        """Accept connections that wait; another process may have been faster."""
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
                self._turn_away(sock)
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
        connection.opening = None
        if connection.transport is None:
            self._port.forget(connection)
            sock.close()

    def _make_room(self) -> bool:
        """Close the connections that have been idle for longest, or else send or read slowest; False without any."""
        connections, since = self._port.connections, time.monotonic() - self._port.limits.patience_seconds
        idle = [each for each in connections if each.is_idle]
        late = [each for each in connections if each.is_late(since)] if not idle else []
        stalled = [each for each in connections if each.is_stalled(since)] if not (idle or late) else []
        for connection in nsmallest(_ROOM, [*idle, *stalled], key=lambda each: each.active):
            connection.abandon()
        for connection in nsmallest(_ROOM, late, key=lambda each: each.began):
            connection.abandon()
        return bool(idle or late or stalled)

    def _turn_away(self, sock: socket.socket) -> None:
        """Refuse a connection for which there is no room, in one non-blocking write."""
        if self._context is None:
            answer = refused(overloaded())
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                sock.send(write_head(answer, self._port.request_id(), int(time.time()), close=True) + answer.body)
        sock.close()

    def _pause(self) -> None:
        """Accept nothing until the next look."""
        if self._is_accepting and self._sock is not None:
            self._is_accepting = False
            self._loop.remove_reader(self._sock)

    def _close_listening(self) -> None:
        """Close our duplicate of the listening socket, which leaves the socket itself as it is."""
        self._pause()
        if self._sock is not None:
            self._sock.close()
            self._sock = None


@dataclass(frozen=True, slots=True)
class PortOptions:
    """What all ports have in common: address, certificate, the largest body, the file of the access log.

    `is_shared` is whether other processes may serve the ports too.
    """

    host: str = "127.0.0.1"
    tls: TlsFiles | None = None
    max_body_bytes: int = 262_144
    access_log: str | None = None
    is_shared: bool = True


class Ports:
    """The ports, each with an application of its own.

    Args:
        options: What they have in common.
        application: Makes the application of a port, which is given its configured number and the bound one.
        on_fault: Called with a port and why it is not served, and with None when it is again.
    """

    def __init__(
        self,
        options: PortOptions,
        application: Callable[[int, int], Application],
        on_fault: Callable[[int, str | None], None] = lambda *_: None,
    ) -> None:
        self._options = options
        self._application = application
        self._on_fault = on_fault
        self._sockets: dict[int, socket.socket] = {}
        self._servers: dict[int, HttpServer] = {}
        self._faults: dict[int, str] = {}
        self._seconds: dict[int, float] = {}
        self._access_log: AccessLog | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def bound(self) -> Mapping[int, int]:
        """Return the bound port for each configured one; they differ where 0 asked for a free one."""
        return {port: sock.getsockname()[1] for port, sock in self._sockets.items()}

    @property
    def troubles(self) -> list[str]:
        """Return which ports are not served, and why, a sentence for each."""
        return [f"SERVER_PORT {port} is not served: {why}" for port, why in self._faults.items()]

    def bind(self, ports: Iterable[int], before: Mapping[int, int] = MappingProxyType({})) -> None:
        """Bind what is not bound yet; on an error nothing new stays bound.

        `before` are the bound ports of an earlier bridge: where 0 asks for a free one it is that one again.

        Raises:
            ConfigurationError: A port is taken, or the host is none, or none of this machine's.
        """
        opened: dict[int, socket.socket] = {}
        try:
            for port in sorted(set(ports) - set(self._sockets)):
                opened[port] = self._bound(port, before.get(port, port))
        except ConfigurationError:
            for sock in opened.values():
                sock.close()
            raise
        self._sockets |= opened

    def _bound(self, port: int, number: int) -> socket.socket:
        options = self._options
        if number != port:
            with contextlib.suppress(ConfigurationError):
                return bound_socket(options.host, number, "SERVER_PORT", is_shared=options.is_shared)
        return bound_socket(options.host, port, "SERVER_PORT", is_shared=options.is_shared)

    def unbind(self, keep: Iterable[int]) -> None:
        """Close the sockets of ports that are not served yet, but for those to keep."""
        for port in self._sockets.keys() - self._servers.keys() - set(keep):
            self._sockets.pop(port).close()

    def serve(self, seconds: Mapping[int, float]) -> None:
        """Serve these of the bound ports, and leave all others.

        A port that is left takes no more requests and ends those that it has begun, within as many seconds as a request
        on it may have taken: the value here the last time. Certificate files are read again.
        """
        for port in self._sockets.keys() - seconds.keys():
            self._sockets.pop(port).close()
            if (server := self._servers.pop(port, None)) is not None:
                leaving = asyncio.get_running_loop().create_task(server.stop(self._seconds[port], _closed()))
                self._leaving.add(leaving)
                leaving.add_done_callback(self._leaving.discard)
        if self._options.tls is not None and seconds:
            try:
                self._options.tls.check_dates()
                for server in self._servers.values():
                    server.reload_tls()
            except ConfigurationError as error:
                if self._servers:
                    log.error("the certificate in use stays: %s", error)  # noqa: TRY400  # the reason is the whole story
        self._seconds = dict(seconds)
        self._serve()

    async def stop(self, grace: float) -> None:
        """Take no more requests; wait for those that run, so many seconds at most, and close all connections.

        Where others serve the ports too, who is connected is served once more for a second at most, so that no caller
        notices.
        """
        if self._retry is not None:
            self._retry.cancel()
        servers, self._servers = list(self._servers.values()), {}
        seconds = _SERVE_SECONDS if self._options.is_shared else 0.0
        stopping = [asyncio.ensure_future(server.stop(grace, serve_seconds=seconds)) for server in servers]
        self.close()
        await asyncio.gather(*stopping, *self._leaving)
        if self._access_log is not None:
            self._access_log.close()

    def close(self) -> None:
        """Close the listening sockets."""
        for sock in self._sockets.values():
            sock.close()
        self._sockets = {}

    def _serve(self) -> None:
        """Serve what is not served yet, and try again soon what cannot be."""
        self._retry = None
        faults: dict[int, str] = {}
        for port in sorted(self._sockets.keys() - self._servers.keys()):
            try:
                self._servers[port] = self._start(port, self._sockets[port])
            except ConfigurationError as error:
                faults[port] = str(error)
                if self._faults.get(port) != faults[port]:
                    log.error("SERVER_PORT %d is not served: %s; tried again every second", port, error)  # noqa: TRY400
                    self._on_fault(port, faults[port])
                continue
            if port in self._faults:
                log.warning("SERVER_PORT %d is served again", port)
                self._on_fault(port, None)
        self._faults = faults
        if faults:
            self._retry = asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._serve)

    def _start(self, port: int, sock: socket.socket) -> HttpServer:
        options, bound = self._options, sock.getsockname()[1]
        if options.access_log is not None and self._access_log is None:
            self._access_log = AccessLog(options.access_log, ("route", "event"))
        server = HttpServer(
            sock, self._application(port, bound), tls=options.tls, max_body_bytes=options.max_body_bytes,
            access_log=self._access_log,
        )  # fmt: skip
        sock.listen(_BACKLOG)
        server.start()
        if port not in self._faults:
            scheme = "http" if options.tls is None else "https"
            log.info("server mode listens on %s://%s:%d", scheme, in_url(options.host), bound)
        return server


def bound_socket(host: str, port: int, setting: str, *, is_shared: bool = True) -> socket.socket:
    """Return a socket that does not listen yet.

    Args:
        host: The address.
        port: The port, 0 for a free one.
        setting: Which setting names it, for the error.
        is_shared: Whether other processes may listen on the port too (SO_REUSEPORT).

    Raises:
        ConfigurationError: The port is taken, or the host is none, or none of this machine's.
    """
    where = f"cannot listen on {host} port {port} ({setting})"
    if not host.isprintable():  # of which `socket` raises another error
        raise ConfigurationError(f"{where}: a host has no such characters")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:  # as `socket.create_server` does
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((host, port))
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        kind = InUseError if error.errno == errno.EADDRINUSE else ConfigurationError
        raise kind(f"{where}: {why_not_bound(error, port, setting)}") from error
    return sock


def _closed() -> Refusal:
    message = "The routes were reloaded and none is served on this port any more; this request was not published"
    return refuse(PORT_CLOSED, message, RETRY_AFTER)

"""The ports of server mode: `bridge` binds them, serves them, and leaves those that no route has after a reload.

All ports are bound before one is served, so that the bridge does not start if a port is taken. A port listens from the
time it is served. Workers may share a port (SO_REUSEPORT): the kernel hands connections to those that listen. A port
that cannot be served, because its certificate is gone, affects only its own routes, and is tried again every second.
Until then it does not listen: callers are refused by the system, or served by another process.
"""

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

from amqtt_rest_bridge.addresses import in_url, why_not_bound
from amqtt_rest_bridge.catalogue import PORT_CLOSED
from amqtt_rest_bridge.errors import ConfigurationError, InUseError
from amqtt_rest_bridge.http.access_log import AccessLog
from amqtt_rest_bridge.http.exchange import RETRY_AFTER, Application, refuse
from amqtt_rest_bridge.http.server import HttpServer
from amqtt_rest_bridge.http.server_tls import TlsFiles

log = logging.getLogger(__name__)

_BACKLOG: Final = 1024  # connections that wait to be accepted
_RETRY_SECONDS: Final = 1.0
_SERVE_SECONDS: Final = 1.0  # at the end: for the last requests on connections that are open
_NOT_SERVED: Final = refuse(
    PORT_CLOSED,
    "The routes were reloaded and none is served on this port any more; this request was not published",
    RETRY_AFTER,
)


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


class PortsUser(Protocol):
    """What the ports are served for: `bridge.Program`."""

    def application(self, port: int, bound: int) -> Application:
        """Return the application of a port, by its configured number and the bound one."""

    def port_changed(self, port: int, fault: str | None) -> None:
        """Note why a port is not served, or with None that it is served again."""


class Ports:
    """The ports, each with an application of its own.

    Args:
        options: What they have in common.
        user: Has the applications, and is informed of faults.
    """

    def __init__(self, options: PortOptions, user: PortsUser) -> None:
        self._options = options
        self._user = user
        self._sockets: dict[int, socket.socket] = {}
        self._servers: dict[int, HttpServer] = {}
        self._faults: dict[int, str] = {}
        self._grace: dict[int, float] = {}  # seconds for the requests that run when a port is left
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
        """Bind the ports that are not bound yet. If one cannot be bound, none of them is.

        `before` are the bound ports of an earlier bridge. Where 0 asks for a free port, the same one is tried first.

        Raises:
            ConfigurationError: A port is taken, or the host is not an address of this machine.
        """
        host, is_shared = self._options.host, self._options.is_shared
        opened: dict[int, socket.socket] = {}
        try:
            for port in sorted(set(ports) - set(self._sockets)):
                if port in before:
                    with contextlib.suppress(ConfigurationError):
                        opened[port] = bound_socket(host, before[port], "SERVER_PORT", is_shared=is_shared)
                if port not in opened:
                    opened[port] = bound_socket(host, port, "SERVER_PORT", is_shared=is_shared)
        except ConfigurationError:
            for sock in opened.values():
                sock.close()
            raise
        self._sockets |= opened

    def unbind(self, keep: Iterable[int]) -> None:
        """Close the sockets of ports that are not served yet, except the ports to `keep`."""
        for port in self._sockets.keys() - self._servers.keys() - set(keep):
            self._sockets.pop(port).close()

    def serve(self, seconds: Mapping[int, float]) -> None:
        """Serve these of the bound ports, and leave all others.

        `seconds` are the longest time that a request of each port may take. A port that is left takes no more requests,
        and those that have begun get as long as its last value here. Certificate files are read again.
        """
        for port in self._sockets.keys() - seconds.keys():
            self._sockets.pop(port).close()
            if (server := self._servers.pop(port, None)) is not None:
                leaving = asyncio.get_running_loop().create_task(server.stop(self._grace[port], _NOT_SERVED))
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
        self._grace = dict(seconds)
        self._serve()

    async def stop(self, grace: float) -> None:
        """Take no more requests, wait up to `grace` seconds for those that run, and close all connections.

        If other processes share the ports, callers that are connected get one more answer, for up to a second. So no
        caller notices the end.
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
        """Serve the ports that are not served yet. Try those that cannot be served again in a second."""
        self._retry, options = None, self._options
        faults: dict[int, str] = {}
        for port in sorted(self._sockets.keys() - self._servers.keys()):
            sock = self._sockets[port]
            bound = sock.getsockname()[1]
            try:
                if options.access_log is not None and self._access_log is None:
                    self._access_log = AccessLog(options.access_log, ("route", "event"))
                server = HttpServer(
                    sock, self._user.application(port, bound), tls=options.tls, max_body_bytes=options.max_body_bytes,
                    access_log=self._access_log,
                )  # fmt: skip
            except ConfigurationError as error:
                faults[port] = str(error)
                if self._faults.get(port) != faults[port]:
                    log.error("SERVER_PORT %d is not served: %s; tried again every second", port, error)  # noqa: TRY400
                    self._user.port_changed(port, faults[port])
                continue
            sock.listen(_BACKLOG)
            server.start()
            self._servers[port] = server
            if port in self._faults:
                log.warning("SERVER_PORT %d is served again", port)
                self._user.port_changed(port, None)
            else:
                scheme = "http" if options.tls is None else "https"
                log.info("server mode listens on %s://%s:%d", scheme, in_url(options.host), bound)
        self._faults = faults
        if faults:
            self._retry = asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._serve)


def bound_socket(host: str, port: int, setting: str, *, is_shared: bool = True) -> socket.socket:
    """Return a socket that does not listen yet.

    Args:
        host: The address.
        port: The port, 0 for a free one.
        setting: Which setting names it, for the error.
        is_shared: Whether other processes may listen on the port too (SO_REUSEPORT).

    Raises:
        ConfigurationError: The port is taken, or the host is not an address of this machine.
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

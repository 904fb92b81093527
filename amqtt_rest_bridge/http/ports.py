"""The ports of server mode: bound, served, left.

A port is bound before anything is served, so that one that is taken ends the start, and listens once it is served.
Workers may share a port (SO_REUSEPORT), and the kernel hands connections to those that listen. A port that cannot be
served (its certificate is gone) affects only its own routes. It is tried again every second. It does not listen
meanwhile, so callers are refused, or served by another process.
"""

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from amqtt_rest_bridge.addresses import in_url, why_not_bound
from amqtt_rest_bridge.catalogue import PORT_CLOSED
from amqtt_rest_bridge.errors import ConfigurationError, InUseError
from amqtt_rest_bridge.http.access_log import AccessLog
from amqtt_rest_bridge.http.exchange import RETRY_AFTER, Application, Refusal, refuse
from amqtt_rest_bridge.http.server import HttpServer
from amqtt_rest_bridge.http.server_tls import TlsFiles

log = logging.getLogger(__name__)

_BACKLOG: Final = 1024  # connections that wait to be accepted
_RETRY_SECONDS: Final = 1.0
_SERVE_SECONDS: Final = 1.0  # at the end: for the last requests on connections that are open


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

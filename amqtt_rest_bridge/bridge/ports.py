"""The ports that a bridge process serves: opened, given routes, watched, closed. The link's readers and the timers.

Decision: a port that cannot be served (its certificate is gone) affects only its own routes. It is tried again every
second, and the broker gets the ports that are not served, with the reason. Callers meanwhile wait in the listening
socket, which stays open, as while a bridge process is restarted.

Decision: a port whose thread hangs counts as a hanging bridge process, since that thread cannot be replaced by itself.
So a ping of the broker is answered once each port has taken a turn: the link has threads of its own, which would answer
for them.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from amqtt_rest_bridge.bridge.server.app import RouteApplication
from amqtt_rest_bridge.bridge.server.broker_access import BrokerAccess
from amqtt_rest_bridge.bridge.server.request import port_closed
from amqtt_rest_bridge.bridge.server.responders import ReplyTurns
from amqtt_rest_bridge.bridge.timers import Timers
from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.http_server import AccessLog, HttpServer, Refusal, TlsFiles
from amqtt_rest_bridge.http_server.wrong_credentials import WrongCredentials
from amqtt_rest_bridge.link.frames import Pong, Stalled, StalledPort, Unserved
from amqtt_rest_bridge.model import Route
from amqtt_rest_bridge.route_set import longest_request
from amqtt_rest_bridge.settings import BridgeSettings

log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 1.0
_SERVE_SECONDS: Final = 1.0  # at a worker's stop: for the last requests on connections that are open


class Port(HttpServer):
    """A running HTTP server whose routes can be replaced."""

    def __init__(
        self,
        sock: socket.socket,
        routes: tuple[Route, ...],
        broker: BrokerAccess,
        settings: BridgeSettings,
        turns: ReplyTurns,
        wrong_credentials: WrongCredentials,
    ) -> None:
        self._broker = broker
        self._turns = turns
        self._wrong_credentials = wrong_credentials
        self._bound: int = sock.getsockname()[1]
        self._settings = settings
        tls = None
        if settings.server_certfile is not None and settings.server_keyfile is not None:
            tls = TlsFiles(settings.server_certfile, settings.server_keyfile)
            tls.check_dates()  # before the access log is opened: a port that cannot be served is tried again and again
        self._access_log = None if settings.access_log is None else AccessLog(settings.access_log, ("route", "event"))
        limit, app = settings.max_body_bytes, self._app(routes)
        after_turn = broker.end_turn if settings.is_mqtt_5 else None  # else nothing is gathered
        super().__init__(sock, app, tls=tls, max_body_bytes=limit, access_log=self._access_log, after_turn=after_turn)
        self.start()

    def replace_routes(self, routes: tuple[Route, ...]) -> None:
        """Serve these routes from the next request on; certificate files are read again."""
        self.replace_app(self._app(routes))
        try:
            self.reload_tls()
        except ConfigurationError as error:
            log.error("the certificate in use stays: %s", error)  # noqa: TRY400  # the reason is the whole story

    def stop(self, grace: float, refusal: Refusal | None = None, serve_seconds: float = 0.0) -> None:
        """Shut down gracefully, by default with the bridge; other workers may listen on that of a worker."""
        if refusal is None and self._settings.is_mqtt_5:
            serve_seconds = _SERVE_SECONDS
        super().stop(grace, refusal, serve_seconds)
        if self._access_log is not None:
            self._access_log.close()

    def _app(self, routes: tuple[Route, ...]) -> RouteApplication:
        return RouteApplication(
            routes, self._broker, self._settings, turns=self._turns, wrong_credentials=self._wrong_credentials,
            port=self._bound,
        )  # fmt: skip


OpenPort = Callable[[socket.socket, tuple[Route, ...], BridgeSettings], Port]
"""Serve routes on a listening socket; raises `ConfigurationError` when its files cannot be used."""


class Ports:
    """Listening sockets and their servers.

    Args:
        open_port: Serves one.
        timers: Run the retries.
        send: Sends a frame to the broker.
    """

    def __init__(self, open_port: OpenPort, timers: Timers, send: Callable[[Unserved], None]) -> None:
        self.servers: Mapping[int, Port] = {}
        """What serves each port; replaced, never changed, so any thread may read it."""
        self._open_port = open_port
        self._timers = timers
        self._send = send
        self._lock = threading.Lock()
        self._sockets: dict[int, socket.socket] = {}
        self._routes: Mapping[int, tuple[Route, ...]] = {}
        self._settings = BridgeSettings()
        self._longest: dict[int, float] = {}  # seconds that a request on a port may take, by any of its definitions
        self._leaving: list[Port] = []  # a reload took their port away; they serve what they had begun
        self._faults: dict[int, str] = {}  # why a port is not served
        self._is_due = False  # the next retry
        self._stopped = False

    def add(self, port: int, sock: socket.socket) -> None:
        """Add the listening socket of a port, which is closed with it."""
        self._sockets[port] = sock

    @property
    def bound(self) -> dict[int, int]:
        """The bound port for each configured one."""
        return {port: sock.getsockname()[1] for port, sock in self._sockets.items()}

    def serve(self, routes: Mapping[int, tuple[Route, ...]], settings: BridgeSettings) -> None:
        """Serve these routes by port; a port that is not among them closes once its requests have ended."""
        with self._lock:
            self._routes, self._settings = routes, settings
            for port, server in self.servers.items():
                if port in routes:
                    server.replace_routes(routes[port])
            for port in [port for port in self._sockets if port not in routes]:
                self._sockets.pop(port).close()
                grace = self._longest.pop(port, 0.0)
                if port in self.servers:
                    self._leave(port, grace)
            for port, served in routes.items():
                self._longest[port] = max(self._longest.get(port, 0.0), *map(longest_request, served))
            self._send(Unserved(self._open()))

    def stop(self, deadline: float) -> None:
        """Refuse new connections and requests, wait for running ones until `deadline` (monotonic); blocks."""
        grace = max(0.0, deadline - time.monotonic())
        closing = [threading.Thread(target=server.stop, args=(grace,), daemon=True) for server in self._end()]
        for thread in closing:
            thread.start()
        for sock in self._sockets.values():  # the servers have closed their own: who connects now is refused at once
            sock.close()
        for thread in closing:
            thread.join(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Close all ports and connections at once."""
        for server in self._end():
            server.stop(0.0)
        for sock in self._sockets.values():
            sock.close()

    def _end(self) -> list[Port]:
        with self._lock:
            self._stopped = True
            return [*self.servers.values(), *self._leaving]

    def _open(self) -> dict[int, str]:
        """Open what is not served yet; return what cannot be served, and why."""
        faults: dict[int, str] = {}
        for port, routes in self._routes.items():
            if port in self.servers or port not in self._sockets:
                continue
            try:
                server = self._open_port(self._sockets[port], routes, self._settings)
            except ConfigurationError as error:
                faults[port] = str(error)
            else:
                self.servers = {**self.servers, port: server}
        for port, reason in faults.items():
            if self._faults.get(port) != reason:
                log.error("SERVER_PORT %d is not served: %s; tried again every second", port, reason)
        for port in self._faults.keys() & self.servers.keys():
            log.warning("SERVER_PORT %d is served again", port)
        self._faults = faults
        if faults and not self._is_due:
            self._is_due = True
            self._timers.after(_RETRY_SECONDS, self._retry)
        return faults

    def _retry(self) -> None:
        with self._lock:
            self._is_due = False
            before = self._faults
            if not self._stopped and self._open() != before:
                self._send(Unserved(self._faults))

    def _leave(self, port: int, grace: float) -> None:
        """Stop a port; the requests that it serves end by the definition that they began with."""
        server = self.servers[port]
        self.servers = {other: kept for other, kept in self.servers.items() if other != port}
        self._leaving.append(server)

        def stop() -> None:
            server.stop(grace, port_closed())
            self._leaving.remove(server)

        threading.Thread(target=stop, name=f"close-{port}", daemon=True).start()


class PortWatch:
    """Answers pings of the broker; `send` sends it a frame."""

    def __init__(self, send: Callable[[Pong | Stalled], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._awaited: dict[int, Port] = {}

    def ping(self, servers: Mapping[int, Port]) -> None:
        """Send `Pong` once every port has taken a turn, or `Stalled` with those that have not since the last ping."""
        with self._lock:
            late = {port: server for port, server in self._awaited.items() if servers.get(port) is server}
            asked = {port: server for port, server in servers.items() if port not in late}
            self._awaited = late | asked
        if late:
            self._send(Stalled([StalledPort(port, server.bound_port) for port, server in sorted(late.items())]))
        elif not asked:
            self._send(Pong())
        for port, server in asked.items():
            server.on_turn(partial(self._turned, port, server))

    def _turned(self, port: int, server: Port) -> None:
        with self._lock:
            if self._awaited.get(port) is not server:
                return
            del self._awaited[port]
            if self._awaited:
                return
        self._send(Pong())

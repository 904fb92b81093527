"""The bridge process's main: one link, one engine. The plugin starts it as `python -m`, or as a thread of the broker.

The link is its only tie to the broker: when it closes, the process ends, so a killed broker leaves none behind.
"""

import gc
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from amqtt_rest_bridge.bridge.client.senders import Sender, sender_of, unusable_routes
from amqtt_rest_bridge.bridge.engine import Engine
from amqtt_rest_bridge.bridge.server.app import RouteApplication
from amqtt_rest_bridge.bridge.server.broker_access import BrokerAccess
from amqtt_rest_bridge.bridge.server.request import port_closed
from amqtt_rest_bridge.bridge.server.responders import ReplyTurns
from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.http_client import TlsContexts
from amqtt_rest_bridge.http_server import AccessLog, HttpServer, Refusal, TlsFiles
from amqtt_rest_bridge.http_server.wrong_credentials import WrongCredentials
from amqtt_rest_bridge.link.admin_frames import FromAdmin
from amqtt_rest_bridge.link.bridge_end import BridgeEnd
from amqtt_rest_bridge.link.frames import Log
from amqtt_rest_bridge.model import RestApiConfig, Route
from amqtt_rest_bridge.records.bridge_records import BridgeRecords
from amqtt_rest_bridge.settings import BridgeSettings
from amqtt_rest_bridge.system import return_large_blocks

if TYPE_CHECKING:
    from amqtt_rest_bridge.admin.port import AdminServer

log = logging.getLogger(__name__)

_SERVE_SECONDS: Final = 1.0  # at a worker's stop: for the last requests on connections that are open


def run(sock: socket.socket) -> None:
    """Serve the broker at the other end of a socket until it closes it; blocks."""
    Engine(BridgeEnd(sock), Network()).run()


def check_routes(routes: Iterable[Route], settings: BridgeSettings) -> None:
    """Raise `ConfigurationError` for the first route that a bridge process could not run; reads its TLS files."""
    for route, error in unusable_routes(routes, settings, os.environ):
        raise ConfigurationError(f"route {route.name}: {error}") from error


class Network:
    """Real senders and HTTP servers."""

    def __init__(self) -> None:
        self._turns = ReplyTurns()
        self._wrong_credentials = WrongCredentials()
        self._contexts = TlsContexts()

    def sender(self, config: RestApiConfig, settings: BridgeSettings) -> Sender:
        """Return the HTTP client of a route; its TLS files are read when it connects."""
        limit = settings.max_response_bytes
        return sender_of(config, max_response_bytes=limit, environment=os.environ, contexts=self._contexts)

    def server(
        self, broker: BrokerAccess, sock: socket.socket, routes: tuple[Route, ...], settings: BridgeSettings
    ) -> "Port":
        """Serve routes on a listening socket."""
        return Port(sock, routes, broker, settings, self._turns, self._wrong_credentials)

    def admin(
        self,
        sock: socket.socket,
        settings: BridgeSettings,
        records: BridgeRecords,
        after: Callable[[float, Callable[[], None]], None],
        send: Callable[[FromAdmin], None],
    ) -> "AdminServer":
        """Start the admin port; imported only where there is one."""
        from amqtt_rest_bridge.admin.port import AdminServer

        return AdminServer(sock, settings, records, after, send, wrong_credentials=self._wrong_credentials)


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
            tls.load()  # before the access log is opened: a port that cannot be served is tried again and again
        self._access_log = None if settings.access_log is None else AccessLog(settings.access_log, ("route", "event"))
        limit, app = settings.max_body_bytes, self._app(routes)
        after_turn = broker.end_turn if settings.is_mqtt_5 else None  # else nothing is gathered
        super().__init__(
            sock, app, tls=tls, max_body_bytes=limit, access_log=self._access_log, after_turn=after_turn
        )
        self.start()

    def replace_routes(self, routes: tuple[Route, ...]) -> None:
        """Serve these routes from the next request on; certificate files are read again."""
        self.replace_app(self._app(routes))
        try:
            self.reload_tls()
        except ConfigurationError as error:
            log.error("the certificate in use stays: %s", error)  # noqa: TRY400  # the reason is the whole story

    def leave(self, grace: float) -> None:
        """Shut down gracefully because no route uses the port any more."""
        self.stop(grace, port_closed())

    def stop(self, grace: float, refusal: Refusal | None = None, serve_seconds: float = 0.0) -> None:
        """Shut down gracefully, by default with the bridge; other workers may listen on that of a worker."""
        if refusal is None and self._settings.is_mqtt_5:
            serve_seconds = _SERVE_SECONDS
        super().stop(grace, refusal, serve_seconds)
        if self._access_log is not None:
            self._access_log.close()

    def _app(self, routes: tuple[Route, ...]) -> RouteApplication:
        return RouteApplication(
            routes,
            self._broker,
            max_body_bytes=self._settings.max_body_bytes,
            max_response_bytes=self._settings.max_response_bytes,
            openapi=self._settings.openapi,
            turns=self._turns,
            wrong_credentials=self._wrong_credentials,
            port=self._bound,
        )


class LinkHandler(logging.Handler):
    """Sends log records, of the levels that the broker has set, to the broker's logging."""

    def __init__(self, link: BridgeEnd) -> None:
        super().__init__()
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record."""
        self._link.send(Log(record.levelno, record.name, self.format(record)))


def main() -> None:
    """Run as a process: `python -m amqtt_rest_bridge.bridge.main DESCRIPTOR LEVEL`."""
    # Ctrl-C, a hang-up and a supervisor's SIGTERM reach the whole group; the broker says when to stop.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # every connection of server mode needs a descriptor
    return_large_blocks(few_arenas=True)
    link = BridgeEnd(socket.socket(fileno=int(sys.argv[1])))
    logging.basicConfig(level=int(sys.argv[2]), handlers=[LinkHandler(link)], format="%(message)s")
    Engine(link, Network(), settle).run()


def settle() -> None:
    """Keep modules and routes, which live until the next reload, out of the garbage collector's rounds; blocks.

    With 1,000 routes a full round stops every thread for 40 ms (8 without them), and /metrics, which makes 15,000
    samples, starts one at every third request. What the last reload left in cycles is collected first.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    main()

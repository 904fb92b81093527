"""The door: a port that answers with an application. Its methods may be called from any thread."""

import socket
import threading
import time
from collections.abc import Callable

from amqtt_rest_bridge.http_server.access_log import AccessLog
from amqtt_rest_bridge.http_server.application import Application
from amqtt_rest_bridge.http_server.port import HttpPort, Limits
from amqtt_rest_bridge.http_server.refusals import Refusal, shutting_down
from amqtt_rest_bridge.http_server.tls import TlsFiles


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
    ) -> None:
        self._tls = tls
        context = tls.load() if tls is not None else None
        self.bound_port: int = sock.getsockname()[1]
        self._port = HttpPort(sock.dup(), app, context, max_body_bytes, access_log, limits or Limits())
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

    def stop(self, grace: float, refusal: Refusal | None = None) -> None:
        """Shut down gracefully: stop accepting, wait up to `grace` seconds for running requests, close all.

        New requests on open connections are answered with `refusal` (default `shutting_down()`).
        Blocks until all is closed. The caller's socket stays open and listening.
        """
        deadline = time.monotonic() + grace
        if not self._thread.is_alive():
            self._port.dispose()
            return
        self._port.do(lambda: self._port.begin_stop(refusal or shutting_down()))
        while self._thread.is_alive():
            if time.monotonic() >= deadline:
                self._port.do(self._port.close_all)
                self._thread.join(1.0)
                return
            self._port.do(self._port.close_when_quiet)
            self._thread.join(0.02)

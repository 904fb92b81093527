"""One port of server mode: waitress parses requests, the application of `server_mode` makes their answers.

What is waitress's: parsing, the WSGI environment, the listening socket. What is ours, and why:

* One thread does it all (`channel_loop`), the application included: handing each request to a worker thread and back
  costs more than answering it. Two shared cores, 16 connections: 13,300 requests/s and 68 us CPU each; an application
  that does nothing on plain waitress with four threads 7,800 and 121 us (tests/benchmarks/http_listener.py).
  What has to wait, for room or for a reply, is moved to a thread (`waiting_threads`).
* `request_parser` refuses what waitress takes: Content-Length beside Transfer-Encoding, no Host, bodies over the limit.
* `connection` takes the place of waitress's channel, which parses everything ahead, holds 16 MiB of unread answers and
  then waits for its peer on the thread that serves all (3.0.2); it adds TLS, limits on slow callers, JSON answers.
"""

import socket
import threading
import time
from collections.abc import Callable
from wsgiref.types import WSGIApplication

from amqtt_rest_bridge.http_server.access_log import AccessLog
from amqtt_rest_bridge.http_server.port import HttpPort, Limits
from amqtt_rest_bridge.http_server.tls import TlsFiles

__all__ = ["Limits", "Listener", "TlsFiles"]


class Listener:
    """A port that answers with an application.

    Args:
        sock: bound and listening; the listener works on a duplicate, so the socket stays the caller's, and other
            processes may accept from it at the same time. It becomes non-blocking.
        app: what `server_mode.create_app` made.
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
        app: WSGIApplication,
        *,
        tls: TlsFiles | None = None,
        max_body_bytes: int = 262_144,
        access_log: AccessLog | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._tls = tls
        context = tls.load() if tls is not None else None
        self.bound_port: int = sock.getsockname()[1]
        self._server = HttpPort(sock.dup(), app, context, max_body_bytes, access_log, limits or Limits())
        self._thread = threading.Thread(target=self._server.run, name=f"http-{self.bound_port}", daemon=True)

    def start(self) -> None:
        """Begin to accept, on a thread of its own."""
        self._thread.start()

    def on_turn(self, action: Callable[[], None]) -> None:
        """Run something on the port's thread, in its next turn: so that it is known to turn. Never blocks."""
        self._server.do(action)

    def replace_app(self, app: WSGIApplication) -> None:
        """Answer with another application from the next request on; running requests keep theirs."""
        self._server.app = app

    def reload_tls(self) -> None:
        """Read the certificate files again, for connections from now on.

        Raises `ConfigurationError` when they cannot be used; the port then goes on with what it had.
        """
        if self._tls is not None:
            self._server.tls_context = self._tls.load()

    def stop(self, grace: float) -> None:
        """Stop accepting, answer new requests with 503, let running ones finish for `grace` seconds, close all.

        Blocks until then. The caller's socket stays open and listening.
        """
        deadline = time.monotonic() + grace
        if not self._thread.is_alive():
            self._server.dispose()
            return
        self._server.do(self._server.begin_stop)
        while self._thread.is_alive():
            if time.monotonic() >= deadline:
                self._server.do(self._server.close_all)
                self._thread.join(1.0)
                return
            self._server.do(self._server.close_when_quiet)
            self._thread.join(0.02)

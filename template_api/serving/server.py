"""The API's HTTP server on waitress, which is imported here and in `channel` alone.

`Server.run` is the thread that does all socket I/O; waitress's worker threads run the application.
"""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

import waitress
from waitress import wasyncore

from template_api.config import DEFAULT_THREADS
from template_api.query import MAX_BODY_BYTES
from template_api.serving.channel import MAX_HEADER_BYTES, REQUEST_SECONDS, Channel

log = logging.getLogger(__name__)

_UNREAD_SECONDS = 30  # a caller that has read nothing of its answer for so long is cut off
_GRACE_SECONDS = 5  # what running requests get to finish in at a stop
_CONNECTIONS = 1000  # below the 1,024 files that a process may usually have open


class Server:
    """Serve one WSGI application on one listening socket, until `stop`.

    Args:
        app: the application.
        listening: a bound socket; closed at the end.
        threads: how many requests are answered at once.
    """

    def __init__(self, app: Any, listening: socket.socket, threads: int = DEFAULT_THREADS) -> None:
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # it would warn per request under load
        self._map: dict[int, Any] = {}
        self._stopping = threading.Event()
        self._server: Any = waitress.create_server(
            app,
            map=self._map,
            sockets=[listening],
            threads=threads,
            ident="template-api",
            max_request_body_size=MAX_BODY_BYTES + 1,  # waitress refuses bodies of this size, not only larger ones
            max_request_header_size=MAX_HEADER_BYTES,
            connection_limit=_CONNECTIONS,
            channel_timeout=REQUEST_SECONDS,
            cleanup_interval=5,
            log_socket_errors=False,
            clear_untrusted_proxy_headers=True,
        )
        self._server.channel_class = Channel

    @property
    def port(self) -> int:
        """The port that is served."""
        return int(self._server.effective_port)

    def run(self) -> None:
        """Serve until `stop`, then wait up to 5 s for running requests."""
        next_check = time.monotonic()
        while not self._stopping.is_set():
            wasyncore.loop(timeout=1, map=self._map, use_poll=True, count=1)
            if time.monotonic() >= next_check:
                next_check = time.monotonic() + 1
                self._close_unread()
        # Pending connections are accepted and served: closing the socket at once would reset them.
        wasyncore.loop(timeout=0, map=self._map, use_poll=True, count=3)
        wasyncore.dispatcher.close(self._server)
        deadline = time.monotonic() + _GRACE_SECONDS
        channels: Mapping[int, Any] = self._server.active_channels
        while time.monotonic() < deadline and any(
            channel.requests or channel.total_outbufs_len for channel in list(channels.values())
        ):
            wasyncore.loop(timeout=0.02, map=self._map, use_poll=True, count=1)
        self._server.task_dispatcher.shutdown(timeout=1)
        wasyncore.close_all(self._map)

    def stop(self) -> None:
        """Stop `run`; may be called from any thread and from a signal handler."""
        self._stopping.set()
        with contextlib.suppress(OSError):  # it has stopped already
            self._server.pull_trigger()

    def _close_unread(self) -> None:
        """Close connections whose callers do not read; waitress would wait until it can write to them."""
        for channel in list(self._server.active_channels.values()):
            if channel.is_unread(_UNREAD_SECONDS):
                log.info("%s has read nothing of its answer for %g s: closed", channel.addr[0], _UNREAD_SECONDS)
                channel.abandon()

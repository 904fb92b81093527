"""One connection of a port: waitress's channel, with TLS, time limits and answers made by our application.

Belongs to the port's thread. Only `_serve_waiting` runs on another one, while the port's thread leaves the connection
alone because a request of it is being served.
"""

import contextlib
import logging
import socket
import ssl
import time
from functools import partial
from typing import Any, Final

from waitress.channel import HTTPChannel
from waitress.task import WSGITask

from amqtt_rest_bridge.bridge.listener.answers import Made, answer_head, call, made_of
from amqtt_rest_bridge.bridge.listener.request_parser import RequestParser
from amqtt_rest_bridge.bridge.server.http_errors import RequestRefused, internal_error, overloaded, shutting_down
from amqtt_rest_bridge.bridge.server.server_mode import MustWait, new_request_id
from amqtt_rest_bridge.bridge.server.server_request import NO_WAIT, REFUSAL, REQUEST_ID

log = logging.getLogger(__name__)

LINGER_SECONDS: Final = 2.0
_PATIENCE_SECONDS: Final = 1.0  # with who sends nothing or only a part, when connections are scarce
_LINGER_BYTES: Final = 16 * 1024 * 1024
_RECEIVE_BYTES: Final = 16_384  # no less than a TLS record, so that nothing stays inside OpenSSL unseen

# waitress comes without types; with the stubs of another package or without, its classes count as Any here.
_Channel: Any = HTTPChannel
_Task: Any = WSGITask


class _AnswerTask(_Task):  # type: ignore[misc]  # see _Task
    """Writes an answer: head and body in one piece, one `send` and mostly one packet."""

    def execute(self) -> None:
        """Write the answer that was made for the request."""
        made: Made = self.request.made
        self.status = made.status
        self.complete = True
        self.wrote_header = True
        self.close_on_finish = (
            self.request.connection_close or self.request.error is not None or self.channel.server.stopping
        )
        body = b"" if self.request.command == "HEAD" else made.body
        version = "1.0" if self.request.is_understood and self.request.version == "1.0" else "1.1"
        self.channel.write_soon(answer_head(made, version, close=self.close_on_finish) + body)


class Connection(_Channel):  # type: ignore[misc]  # see _Channel
    """A connection and the requests on it, one after the other."""

    parser_class = RequestParser
    task_class = _AnswerTask
    error_task_class = _AnswerTask
    request: Any  # the parser that is at work, or None

    def __init__(self, server: Any, sock: socket.socket, addr: Any, adj: Any, map: Any) -> None:  # noqa: A002  # waitress's
        self.began = time.monotonic()  # the handshake, then each request that came in part
        self.active_at = self.began  # waitress's own `last_activity` jumps with the clock
        self.is_reading = False
        self._has_served = False
        self._handshaking = isinstance(sock, ssl.SSLSocket)
        self._handshake_writes = False
        self._linger = False
        self._lingering_since: float | None = None
        self._lingering_bytes = 0
        super().__init__(server, sock, addr, adj, map=map)

    @property
    def is_idle(self) -> bool:
        """Say that it has served its purpose and nothing is under way, so that closing it loses nothing."""
        return self._has_served and not (self.is_busy or self.request)

    @property
    def is_late(self) -> bool:
        """Say that a peer has kept us waiting for its handshake or request."""
        return not self.is_busy and time.monotonic() - self.began > _PATIENCE_SECONDS

    @property
    def is_busy(self) -> bool:
        """Say that a request is being served or its answer is on its way."""
        return bool(self.requests or self.total_outbufs_len)

    def readable(self) -> bool:
        """Say whether to wait for bytes."""
        if self._handshaking:
            return not self._handshake_writes
        return self._lingering_since is not None or bool(super().readable())

    def writable(self) -> bool:
        """Say whether to wait for room to send."""
        if self._handshaking:
            return self._handshake_writes
        return bool(super().writable())

    def handle_read(self) -> None:
        """Read what is there and take it apart."""
        if self._handshaking:
            self._shake_hands()
            return
        if not self.readable():
            return
        try:
            data = self.socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if self._lingering_since is not None:
            self._lingering_bytes += len(data)
            data = data if self._lingering_bytes < _LINGER_BYTES else b""
        elif data:
            self.active_at = time.monotonic()
            self._take(data)
        if not data:
            self.abandon()

    def handle_write(self) -> None:
        """Send what waits."""
        if self._handshaking:
            self._shake_hands()
        else:
            waited = self.total_outbufs_len
            super().handle_write()
            if self.total_outbufs_len < waited:
                self.active_at = time.monotonic()

    def handle_close(self) -> None:
        """Close; after a refusal first only our side, so that a peer that still sends can read the answer."""
        if self._linger and self.connected:
            self._linger = self.will_close = False
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_WR)
                self._lingering_since = time.monotonic()
                return
        super().handle_close()

    def abandon(self) -> None:
        """Close at once."""
        self._linger = False
        super().handle_close()

    def serve(self) -> None:
        """Answer the first request that waits, unless its answer has to wait: then a thread of its own does."""
        if self.requests:
            request = self.requests[0]
            if self._make(request, may_wait=False):
                self._answer(request)
                if self.close_when_flushed:
                    self.handle_write()

    def serve_next(self) -> None:
        """Answer a request that waited behind another one."""
        self.serve()
        self.server.loop.refresh(self._fileno)

    def refuse(self, refusal: RequestRefused) -> None:
        """Answer a request of which only a part has come, and close."""
        request, self.request = self.request, None
        request.error, request.completed = refusal, True
        self.requests.append(request)
        self.serve_next()

    def look_after(self, now: float, slow_seconds: float, idle_seconds: float, timeout: RequestRefused) -> None:
        """End what takes too long; `now` is monotonic. Called about once a second or more often."""
        if self._lingering_since is not None:
            if now - self._lingering_since > LINGER_SECONDS:
                self.abandon()
        elif self.requests:
            return
        elif self._handshaking or (self.request is not None and not self.total_outbufs_len):
            if now - self.began > slow_seconds:
                self._give_up(timeout)
        elif now - self.active_at > (slow_seconds if self.total_outbufs_len else idle_seconds):
            self.abandon()

    def _give_up(self, timeout: RequestRefused) -> None:
        if self._handshaking:
            self.abandon()
        else:
            self.refuse(timeout)

    def _take(self, data: bytes) -> None:
        before = self.request
        self.is_reading = True
        self.received(data)
        self.is_reading = False
        if self.request is not before:
            self.began = time.monotonic()

    def _shake_hands(self) -> None:
        """Go one step on with the TLS handshake."""
        self._handshake_writes = False
        try:
            self.socket.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLWantWriteError:
            self._handshake_writes = True
        except OSError as error:
            log.debug("A TLS handshake with %s failed: %s", self.addr[0], error)
            self.abandon()
        else:
            self._handshaking = False
            self.began = time.monotonic()

    def _make(self, request: Any, *, may_wait: bool) -> bool:
        """Have the application make the answer; False when a thread that may wait has been given the request."""
        if not hasattr(request, "environ"):
            request.served_at = time.monotonic()
            request.request_id = new_request_id()
            request.app = self.server.app  # the same one when it has to be asked again
            request.environ = self._environ(request) if request.is_understood or request.error is None else {}
        environ = request.environ
        if not environ:
            request.made = made_of(request.error, request.request_id)
            return True
        environ[NO_WAIT] = not may_wait
        try:
            request.made = call(request.app, environ)
        except MustWait:
            if self.server.waiting.run(partial(self._serve_waiting, request)):
                return False
            environ[REFUSAL] = overloaded()
            request.made = call(request.app, environ)
        except Exception:
            log.exception("The application failed on request %s", request.request_id)
            request.made = made_of(internal_error(), request.request_id)
        return True

    def _environ(self, request: Any) -> dict[str, Any]:
        environ: dict[str, Any] = _AnswerTask(self, request).get_environment()
        environ[REQUEST_ID] = request.request_id
        if request.error is not None:
            environ[REFUSAL] = request.error
        elif self.server.stopping:
            environ[REFUSAL] = shutting_down()
        return environ

    def _serve_waiting(self, request: Any) -> None:
        """Answer a request that has to wait; on a thread that may."""
        request.environ["wsgi.input"].seek(0)
        self._make(request, may_wait=True)
        self._answer(request)
        self.server.do(self._resume)

    def _resume(self) -> None:
        self.server.loop.refresh(self._fileno)

    def _answer(self, request: Any) -> None:
        self._linger = request.error is not None
        self._has_served = True
        self.service()
        self.active_at = time.monotonic()
        if self.request is not None:
            self.began = time.monotonic()  # its bytes could not be read before
        self.server.log_access(self, request)

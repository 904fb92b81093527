"""One connection of a port: requests in, one after the other, and their answers out. On the port's thread only.

The memory of a connection is bounded, for any input and for a peer that reads nothing: at most one read is held
unparsed and one request parsed, and the next request is served once the answer to the one before has left for the
system's buffers. So a caller that sends thousands of requests in one piece and reads nothing holds one answer here,
and the reading of its socket stops; `close_overdue` closes it when it takes nothing for `Limits.slow_seconds`.

Nothing blocks: answers are sent in order, as far as the peer takes them. A piece is kept as it is and never copied, so
a thousand callers that read the latest payload of one topic share its bytes. A stream is sent piece by piece, each once
the one before has left.
"""

import contextlib
import logging
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from amqtt_rest_bridge.http.exchange import Refusal, Stream, shutting_down
from amqtt_rest_bridge.http_server.channel_loop import Timer
from amqtt_rest_bridge.http_server.exchange import Exchange, response_pieces
from amqtt_rest_bridge.http_server.request_parser import RequestParser

log = logging.getLogger(__name__)

_LINGER_BYTES: Final = 16 * 1024 * 1024
_RECEIVE_BYTES: Final = 16_384  # no less than a TLS record, so that nothing stays inside OpenSSL unseen
_SEND_BYTES: Final = 262_144  # of a piece with one call
_TURN_BYTES: Final = 1_048_576  # sent in a row before others get their turn
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class ServerConnection:
    """A connection and the requests on it; a channel of the port's loop.

    Args:
        server: the port, an `HttpPort`.
        sock: accepted, and with TLS put onto it where the port speaks HTTPS; the connection closes it.
        addr: the peer's address.
    """

    accepting = False
    connected = True

    def __init__(self, server: Any, sock: socket.socket, addr: Any) -> None:
        sock.setblocking(False)
        self.server = server
        self.addr = addr
        self.request: Any = None  # the parser of the request that has come in part
        self.began = time.monotonic()  # the handshake, then each request that came in part
        self.active_at = self.began
        self._socket = sock
        self._descriptor = sock.fileno()
        self._unparsed = b""  # received behind the request that is being served; one read at most
        self._serving: Exchange | None = None  # the request whose answer is being made
        self._output = _Output(sock)
        self._stream: _StreamSender | None = None  # the answer, once its head has been made
        self._continued = False  # 100 Continue was sent for the request in part
        self._closing = False  # once the output has left
        self._caller_left = False  # the peer has closed its side while its answer was pending
        self._has_served = False
        self._handshaking = isinstance(sock, ssl.SSLSocket)
        self._handshake_writes = False
        self._linger = False
        self._lingering_since: float | None = None
        self._lingering_bytes = 0
        server.active_channels[self._descriptor] = self
        server.loop[self._descriptor] = self

    @property
    def is_idle(self) -> bool:
        """Return whether it has served a request and nothing is under way, so that closing it loses nothing."""
        return self._has_served and not (self.is_busy or self.request or self._stream)

    @property
    def is_late(self) -> bool:
        """Return whether a peer has kept us waiting for its handshake or request."""
        return not self.is_busy and time.monotonic() - self.began > self.server.limits.patience_seconds

    @property
    def is_stalled(self) -> bool:
        """Return whether a peer has kept us waiting for room to send."""
        return bool(self._output) and time.monotonic() - self.active_at > self.server.limits.patience_seconds

    @property
    def is_busy(self) -> bool:
        """Return whether a request is being served or its answer is on its way."""
        return bool(self._serving or self._output or self._unparsed)

    def readable(self) -> bool:
        """Return whether to wait for bytes."""
        if self._handshaking:
            return not self._handshake_writes
        if self._serving is not None:  # a pending answer: the next request, or the end of the connection
            return not (self._unparsed or self._caller_left)
        is_done = self._stream is not None or self._lingering_since is not None  # what comes is thrown away
        return is_done or not (self.is_busy or self._closing)

    def writable(self) -> bool:
        """Return whether to wait for room to send."""
        return self._handshake_writes if self._handshaking else bool(self._output)

    def handle_read_event(self) -> None:
        """Read what is there and parse it."""
        if self._handshaking:
            self._shake_hands()
            return
        if not self.readable():
            return
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if self._serving is None:
            self._take(data)
            return
        self._unparsed = data  # behind a request whose answer is pending
        if not data:
            self._caller_left = True
            self._serving.caller_left()

    def _take(self, data: bytes) -> None:
        """Parse what came, or throw it away after a refusal; without any the peer has closed."""
        if self._lingering_since is not None:
            self._lingering_bytes += len(data)
            data = data if self._lingering_bytes < _LINGER_BYTES else b""
        elif data and self._stream is None:  # a stream is the last answer on its connection
            self.active_at = time.monotonic()
            self._unparsed = data
            self._advance()
        if not data:
            self.abandon()

    def handle_write_event(self) -> None:
        """Send what waits, then parse what was received behind it."""
        if self._handshaking:
            self._shake_hands()
        elif self._output:
            if self._output.flush():
                self.active_at = time.monotonic()
            if not self._output:
                self._sent()

    def handle_close(self) -> None:
        """Close; after a refusal first only our side, so that a peer that still sends can read the answer."""
        if self._linger and self.connected:
            self._linger = False
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
                self._lingering_since = time.monotonic()
                self._closing = False
                return
        self.abandon()

    def abandon(self) -> None:
        """Close at once."""
        if self.connected:
            self.connected = False
            del self.server.active_channels[self._descriptor]
            del self.server.loop[self._descriptor]
            self._output.clear()
            if self._serving is not None:
                self._serving.cancel()
            if self._stream is not None:
                self._stream.close()
            self._unparsed, self.request = b"", None
            self._socket.close()

    def refuse(self, refusal: Refusal) -> None:
        """Answer a request of which only a part has come, and close."""
        request, self.request = self.request, None
        request.error, request.completed = refusal, True
        self._step(partial(self._serve, request))

    def end(self) -> None:
        """Close at once; a request of which a part has come is answered before."""
        if self.request is not None and not self._serving:
            self.refuse(self.server.closing or shutting_down())
        self.abandon()

    def close_overdue(self, now: float, slow_seconds: float, idle_seconds: float, timeout: Refusal) -> bool:
        """Close what takes too long; `now` is monotonic. Called about once a second or more often.

        Returns true when it closed a connection whose peer did not read.
        """
        if self._output:
            # Decision: the time counts from the last byte that left, so one that reads slowly gets its answer.
            is_unread = now - self.active_at > slow_seconds
            if is_unread:
                self.abandon()
            return is_unread
        if self._lingering_since is not None:
            if now - self._lingering_since > self.server.limits.linger_seconds:
                self.abandon()
        elif self._handshaking or self.request is not None:
            if now - self.began > slow_seconds:
                self.abandon() if self._handshaking else self.refuse(timeout)
        elif not (self._serving or self._stream) and now - self.active_at > idle_seconds:
            self.abandon()
        return False

    def _shake_hands(self) -> None:
        """Take one step of the TLS handshake."""
        self._handshake_writes = False
        assert isinstance(self._socket, ssl.SSLSocket)  # noqa: S101  # others have no handshake
        try:
            self._socket.do_handshake()
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

    def _advance(self) -> None:
        """Parse what was received up to the end of the next request, and serve that."""
        while self._unparsed:
            request = self.request
            if request is None:
                request = self.request = RequestParser(self.server.adj)
                self.began = time.monotonic()
                self._continued = False
            self._unparsed = self._unparsed[request.received(self._unparsed) :]
            if request.completed:
                self.request = None
                if not request.empty:
                    self._serve(request)
                    return
            elif request.expect_continue and request.headers_finished and not self._continued:
                self._continued = True
                self._output.send(_CONTINUE)

    def _step(self, step: Callable[[], None]) -> None:
        """Take a step that is not an event of the loop; close the connection when it fails."""
        if not self.connected:
            return
        try:
            step()
        except OSError as error:
            log.debug("A connection broke: %s", error)
            self.abandon()
        except Exception:
            log.exception("A connection is closed because serving it failed")
            self.abandon()
        if self.connected:
            self.server.loop.refresh(self._descriptor)

    def _serve(self, request: Any) -> None:
        """Answer a request, now or when its pending answer is complete."""
        on_answer: Callable[[Exchange], None] = lambda done: self._step(partial(self._answer, done))  # noqa: E731
        exchange = self._serving = Exchange(request, self.server.waiting, on_answer, self.server.refuse, self.addr[0])
        exchange.ask(self.server.app, request.error or self.server.closing)
        if exchange.response is not None:
            self._answer(exchange)

    def _send_stream(self) -> None:
        if not self._output:
            self.active_at = time.monotonic()
        if self._stream is not None and not self._stream.send():
            self.handle_close()

    def _answer(self, exchange: Exchange) -> None:
        """Send the answer that was made; raises `OSError` when the connection is broken."""
        request = exchange.parser
        self._serving = None
        self._has_served = True
        self._linger = request.error is not None
        stream = exchange.response.stream if exchange.response is not None else None
        is_last = request.connection_close or request.error is not None or stream is not None
        self._closing = is_last or self.server.leaving
        if self._closing:
            self._unparsed = b""
        try:
            pieces = self._pieces(exchange)
        except ValueError as error:
            if stream is not None:
                stream.close()
                stream = None
            exchange.fail(error)
            pieces = self._pieces(exchange)
        self.server.log_access(self, exchange)
        request.close()
        if stream is not None:
            resume = partial(self._step, self._send_stream)
            self._stream = _StreamSender(stream, self._output, resume, self.server)
            exchange.on_wake = self._stream.wake
        self._output.send(*pieces)
        self.active_at = time.monotonic()
        if not self._output:
            self._sent()

    def _pieces(self, exchange: Exchange) -> tuple[bytes, ...]:
        request = exchange.parser
        assert exchange.response is not None  # noqa: S101  # it has been made
        version = "1.0" if request.is_understood and request.version == "1.0" else "1.1"
        return response_pieces(
            exchange.response, exchange.request_id, method=request.asked[0], version=version, close=self._closing
        )

    def _sent(self) -> None:
        """Continue after an answer has been sent, in the next turn, after other connections."""
        if self._stream is not None:
            self._stream.wake()
        elif self._closing:
            self.handle_close()
        elif self._unparsed:
            self.server.loop.soon(partial(self._step, self._advance))


# What leaves.


class _Output(deque[memoryview]):
    """The unsent part of one connection's answers; itself the queue, since each request asks four times for its truth.

    The connection bounds it: it makes no further answer while one waits.
    """

    __slots__ = ("_sock",)

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self._sock = sock

    def send(self, *pieces: bytes) -> None:
        """Send pieces after what waits already; raises `OSError` when the connection is broken."""
        self.extend(memoryview(piece) for piece in pieces if piece)
        self.flush()

    def flush(self) -> int:
        """Send what the peer takes now; returns the number of bytes. Raises `OSError` when the connection is broken."""
        total = 0
        try:
            while self and total < _TURN_BYTES:
                piece = self[0]
                # TLS requires that a failed write is repeated with the same bytes in the same length.
                sent = self._sock.send(piece[:_SEND_BYTES])
                total += sent
                if sent == len(piece):
                    self.popleft()
                else:
                    self[0] = piece[sent:]
        except BlockingIOError:
            pass
        return total


class _StreamSender:
    """Send a stream.

    Args:
        stream: Where the pieces come from.
        output: Where they go.
        resume: Has `send` called, on the port's thread.
        server: The port.
    """

    def __init__(self, stream: Stream, output: _Output, resume: Callable[[], None], server: Any) -> None:
        self._stream = stream
        self._output = output
        self._resume = resume
        self._server = server
        self._is_due = False  # `send` follows
        self._timer: Timer | None = None

    def wake(self) -> None:
        """Schedule the next `send`, one for any number of calls; from any thread."""
        if not self._is_due:
            self._is_due = True
            self._server.do_patiently(self._resume)

    def send(self) -> bool:
        """Send the next piece, if there is one and room for it; return False at the end of the stream.

        One piece a turn, so that other connections get theirs. Raises `OSError` when the connection is broken.
        """
        self._is_due = False
        if self._output:
            return True
        piece = self._stream.take()
        if not isinstance(piece, bytes):
            self._wake_in(piece)
        elif piece:
            self._output.send(piece)
            if not self._output:
                self.wake()
        return piece != b""

    def close(self) -> None:
        """Release the stream."""
        if self._timer is not None:
            self._timer.cancel()
        self._stream.close()

    def _wake_in(self, seconds: float) -> None:
        """Set the timer, unless it is due before; a stream that is asked too early says so again."""
        timer = self._timer
        if timer is not None and timer.action is not None:
            if timer.at <= time.monotonic() + seconds:
                return
            timer.cancel()
        self._timer = self._server.loop.later(seconds, self.wake)

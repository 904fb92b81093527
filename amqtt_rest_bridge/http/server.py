"""An HTTP/1.1 server with one door: `HttpServer(socket, app)` answers the requests of one port. Nothing of routes.

asyncio has the sockets, buffers, timers and TLS, `request_reader` the parser. Here is what no library promises:

* One caller costs bounded memory, for any input and for a peer that reads nothing: at most one read is held unread and
  one request read, and the next request begins once the answer to the one before has left for the system's buffers.
* One caller costs no other caller's answer. What is to be done for callers is done in *turns*: in an iteration of the
  loop each connection has one request at most, and all together a millisecond; callers whose last answer was an error
  come after the others, so that a flood of them is answered with what time is left. Streams have half a millisecond.
* What is slow is closed: a handshake or a request that does not end, an answer that is not read, an idle connection.
  With too many connections the longest idle one goes, then the slowest.
* A port ends gracefully, and leaves its callers to others that listen on the same port.
"""

import asyncio
import contextlib
import ctypes
import errno
import itertools
import logging
import resource
import socket
import ssl
import struct
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any, Final, cast

from msgspec.structs import replace

from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.http.access_log import AccessLog
from amqtt_rest_bridge.http.exchange import (
    Application,
    Refusal,
    Request,
    Response,
    Stream,
    internal_error,
    overloaded,
    refused,
    request_timeout,
    shutting_down,
    write_head,
)
from amqtt_rest_bridge.http.request_reader import RequestReader
from amqtt_rest_bridge.system import regular_file
from amqtt_rest_bridge.times import rfc3339

log = logging.getLogger(__name__)

_READ_BYTES: Final = 16_384
_LINGER_BYTES: Final = 16 * 1024 * 1024
_COPIED_BYTES: Final = 16_384  # of a body, to send it together with its head
# What the system holds of answers that are not on the network yet; without it some 2.6 MB for a caller that does not
# read, 1.3 GB for 500 of them. What is on its way is not counted, so long and fast lines are as fast as before.
_UNSENT_BYTES: Final = 131_072
_MOST_CONNECTIONS: Final = 4096
_ACCEPTS: Final = 16  # connections taken in a row before others get their turn
_ROOM: Final = 8  # connections closed at once when there are too many
_TURN_SECONDS: Final = 0.001
_STREAMS_SECONDS: Final = 0.0005
_HANDSHAKE_SECONDS: Final = 0.1  # from the SYN that was taken last until its connection can be accepted
_POLL_SECONDS: Final = 0.02
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_ATTACH_FILTER: Final = 26 if sys.platform == "linux" else None  # SO_ATTACH_FILTER, which `socket` does not name
# Classic BPF on the TCP header: byte 13 has the flags; 0 bytes of a packet with SYN are taken, all of any other.
_DROP_SYN: Final = b"".join(
    struct.pack("HBBI", *one) for one in ((0x30, 0, 0, 13), (0x45, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFF))
)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a port, in seconds and counts.

    `connections` None means half of the process's file descriptors, 4,096 at most.
    """

    slow_seconds: float = 30.0  # for a request from its first to its last byte, a handshake, a stalled answer
    idle_seconds: float = 120.0  # a connection between requests
    waiting: int = 1024  # answers that are being made
    waiting_bytes: int = 64 << 20  # of the bodies of their requests
    connections: int | None = None
    patience_seconds: float = 1.0  # with a peer that sends or reads only a part, when connections are scarce
    linger_seconds: float = 2.0  # for a peer to read a refusal while it sends on


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: the certificate with its chain, and its private key."""

    certfile: str
    keyfile: str

    def load(self) -> ssl.SSLContext:
        """Read the files into a context for TLS 1.2 or newer; raises `ConfigurationError` when they cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            for path in (self.certfile, self.keyfile):
                regular_file(path)  # OpenSSL would wait for ever for a FIFO
            context.load_cert_chain(self.certfile, self.keyfile, password=_no_password)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"server_certfile {self.certfile} and server_keyfile {self.keyfile} cannot be used: {error}; "
                "use a PEM certificate and its unencrypted PEM key"
            ) from error
        return context


def _no_password() -> str:
    """Refuse an encrypted key instead of asking at the terminal."""
    raise ValueError("the key is encrypted")


class HttpServer:
    """A port that answers with an application, on the running loop.

    Args:
        sock: bound and listening; the server works on a duplicate, so the socket stays the caller's, and other
            processes may accept from it at the same time. It becomes non-blocking.
        app: makes the answers; another one may take its place for the requests from then on.
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
        self._context = tls.load() if tls is not None else None
        self.bound_port: int = sock.getsockname()[1]
        self.app = app
        self.max_body_bytes = max_body_bytes
        self.access_log = access_log
        self.limits = limits or Limits()
        self.closing: Refusal | None = None
        """What new requests are answered with."""
        self.leaving = False
        """Each answer is the last one on its connection."""
        self.connections: set[Connection] = set()
        self.buffer = memoryview(bytearray(_READ_BYTES))
        """What a connection reads into, before it takes it away."""
        self.aborted: set[Connection] = set()
        """Those that the loop closes in one of its next iterations; they are not in `connections` any more."""
        self.waiting: set[Connection] = set()
        """The connections whose answers are being made; the peers of some may have gone."""
        self.waiting_bytes = 0
        self.ready: deque[Connection] = deque()
        """The connections that have something unread, in order of arrival; those whose last answer was an error apart."""
        self.refused: deque[Connection] = deque()
        self.streaming: deque[_StreamSender] = deque()
        """The streams that have a piece, or may have."""
        self._has_turn = False
        self._sock: socket.socket | None = sock.dup()
        self._sock.setblocking(False)
        self._most = self.limits.connections or min(
            _MOST_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        )
        self._timer: asyncio.TimerHandle | None = None
        # A random start and a number: a whole random UUID for each request takes 2 us, a twentieth of all that it takes.
        self._prefix = str(uuid.uuid4())[:24]
        self._numbers = itertools.count(1)

    def start(self) -> None:
        """Begin to accept."""
        self.loop = asyncio.get_running_loop()
        self._is_accepting = False
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
        deadline = time.monotonic() + grace
        if serve_seconds and grace and self._timer is not None:
            await self._leave(min(deadline, time.monotonic() + serve_seconds))
        self.leaving, self.closing = True, refusal or shutting_down()
        self._close_listening()
        while any(each.is_busy for each in self.connections) and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_SECONDS)
        if self._timer is not None:
            self._timer.cancel()
        for connection in tuple(self.connections):
            connection.end()
        for connection in self.waiting:
            connection.cancel()
        while self.connections or self.aborted or self.waiting:
            await asyncio.sleep(0)

    async def _leave(self, until: float) -> None:
        """Leave new connections to those who listen on the same port; who has begun to connect still can.

        The kernel resets connections that wait in a listening socket when that is closed, and handshakes that are
        under way, so those must be over before. It drops a SYN for this socket now, which its caller repeats after a
        second, to a socket of the others. Decision: some callers wait for a second, instead of some that are reset;
        with sysctl net.ipv4.tcp_migrate_req=1 the kernel would hand connections over, but not every machine has that.
        """
        if self._sock is not None and _ATTACH_FILTER is not None:
            program = ctypes.create_string_buffer(_DROP_SYN)
            with contextlib.suppress(OSError):  # without it, the time between the last look and the close is left
                filtered = struct.pack("HL", len(_DROP_SYN) // 8, ctypes.addressof(program))
                self._sock.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, filtered)
        await asyncio.sleep(min(_HANDSHAKE_SECONDS, until - time.monotonic()))
        self.leaving = True
        self._accept(_MOST_CONNECTIONS)
        self._close_listening()
        while self.connections and time.monotonic() < until:
            await asyncio.sleep(_POLL_SECONDS)

    # Connections.

    def _close_listening(self) -> None:
        """Close our duplicate of the listening socket, which leaves the socket itself as it is."""
        if self._sock is not None:
            self._accept_no_more()
            self._sock.close()
            self._sock = None

    def _accept_no_more(self) -> None:
        if self._timer is not None and self._is_accepting and self._sock is not None:
            self._is_accepting = False
            self.loop.remove_reader(self._sock)

    def _accept(self, most: int = _ACCEPTS) -> None:
        """Accept connections that wait; another process may have been faster."""
        for _ in range(most):
            if self._sock is None:
                return
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE) and not self._make_room():
                    log.warning("Port %s accepts nothing for a moment: %s", self.bound_port, error.strerror)
                    self._accept_no_more()  # until the next look
                return
            if len(self.connections) >= self._most and not self._make_room():
                self._turn_away(sock)
                continue
            connection = Connection(self, address[0])
            self.connections.add(connection)
            connection.handshake = self.loop.create_task(self._connect(connection, sock))

    async def _connect(self, connection: "Connection", sock: socket.socket) -> None:
        """Hand an accepted connection to the loop, which shakes hands first where the port speaks HTTPS."""
        seconds: dict[str, Any] = {}
        if self._context is not None:
            seconds["ssl_handshake_timeout"] = self.limits.slow_seconds
            seconds["ssl_shutdown_timeout"] = self.limits.linger_seconds
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
            await self.loop.connect_accepted_socket(lambda: connection, sock, ssl=self._context, **seconds)
        except OSError as error:  # gone already, or no TLS
            log.debug("A connection from %s ended at once: %s", connection.remote, error)
            sock.close()
            self.connections.discard(connection)
        except asyncio.CancelledError:
            sock.close()
            self.connections.discard(connection)
            raise

    def _make_room(self) -> bool:
        """Close the connections that have been idle for longest, or else send or read slowest; False without any."""
        now = time.monotonic() - self.limits.patience_seconds
        idle = [each for each in self.connections if each.is_idle]
        late = [each for each in self.connections if each.is_late(now)] if not idle else []
        stalled = [each for each in self.connections if each.is_stalled(now)] if not (idle or late) else []
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
                sock.send(write_head(answer, self.request_id(), int(time.time()), close=True) + answer.body)
        sock.close()

    def _look(self) -> None:
        """Close what takes too long; about once a second."""
        limits = self.limits
        seconds = min(1.0, limits.slow_seconds / 4, limits.idle_seconds / 4)
        self._timer = self.loop.call_later(seconds, self._look)
        if not self._is_accepting and self._sock is not None:
            self._is_accepting = True
            self.loop.add_reader(self._sock, self._accept)
        now = time.monotonic()
        unread = sum([connection.close_overdue(now, limits) for connection in tuple(self.connections)])
        if unread:
            text = "Port %s closed %d connection(s) that did not read their answers for %g s"
            log.warning(text, self.bound_port, unread, limits.slow_seconds)

    # Turns.

    def schedule(self) -> None:
        """Have `_take_turn` called in the next iteration of the loop."""
        if not self._has_turn:
            self._has_turn = True
            self.loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        """Serve those that are ready, each once, for a millisecond at most; then one whose last answer was an error."""
        self._has_turn = False
        now = time.monotonic()
        for connections, until in (
            (self.ready, now + _TURN_SECONDS),
            (self.refused, now + _TURN_SECONDS),
        ):
            for _ in range(len(connections)):
                connections.popleft().take_turn()
                if time.monotonic() >= until:
                    break
        if self.streaming:
            until = time.monotonic() + _STREAMS_SECONDS
            for _ in range(len(self.streaming)):
                self.streaming.popleft().send_piece()
                if time.monotonic() >= until:
                    break
        if self.ready or self.refused or self.streaming:
            self.schedule()

    @property
    def is_full(self) -> bool:
        """Return whether no more answers may wait."""
        return len(self.waiting) >= self.limits.waiting or self.waiting_bytes >= self.limits.waiting_bytes

    def request_id(self) -> str:
        """Return the id of the next request, a UUID that no other request has."""
        return f"{self._prefix}{next(self._numbers):012x}"


class Connection(asyncio.BufferedProtocol):
    """One connection of a port: requests in, one after the other, and their answers out."""

    transport: asyncio.Transport | None = None
    """None until the TLS handshake has ended."""
    handshake: asyncio.Task[None] | None = None
    has_left = False

    def __init__(self, server: HttpServer, remote: str) -> None:
        self.remote = remote
        self.began = self.active = time.monotonic()
        """When the handshake or the request began that has come in part; when something was last read or written."""
        self._server = server
        self._reader = RequestReader(server.max_body_bytes)
        self._unread = b""  # received, and not parsed
        self._is_queued = False  # for a turn
        self._is_paused = False  # nothing is received
        self._is_full = False  # what was written has not left
        self._unsent = 0  # bytes of that, when it was looked at last
        self._request_id: str | None = None  # of the request whose answer is being made
        self._asked_at = 0.0
        self._task: asyncio.Task[None] | None = None  # makes it
        self._when_left: Callable[[], None] | None = None
        self._continued = False  # 100 Continue was sent for the request in part
        self._has_served = False
        self._was_refused = False
        self._stream: _StreamSender | None = None
        self._lingers: float | None = None  # since when what comes is thrown away
        self._thrown_away = 0

    # What the port asks.

    @property
    def is_busy(self) -> bool:
        """Return whether a request is being served or its answer is on its way."""
        return self._request_id is not None or self._is_full or bool(self._unread)

    @property
    def is_idle(self) -> bool:
        """Return whether it has served a request and nothing is under way, so that closing it loses nothing."""
        return self._has_served and not (self.is_busy or self._reader.has_begun or self._stream)

    def is_late(self, since: float) -> bool:
        """Return whether a peer has kept us waiting for its handshake or request."""
        return not (self.is_busy or self._stream) and self.began <= since

    def is_stalled(self, since: float) -> bool:
        """Return whether a peer has kept us waiting for room to send."""
        return self._is_full and self.active <= since

    def abandon(self) -> None:
        """Close at once."""
        self._server.connections.discard(self)
        if self.transport is not None:
            self._server.aborted.add(self)
            self.transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()

    def end(self) -> None:
        """Close at once; a request of which a part has come is answered before."""
        if self._reader.has_begun and self._request_id is None:
            self._refuse(self._server.closing or shutting_down())
            if self.transport is not None and not self._is_full:
                self.transport.close()
                return
        self.abandon()

    def cancel(self) -> None:
        """Cancel the answer that is being made."""
        if self._task is not None:
            self._task.cancel()

    def close_overdue(self, now: float, limits: Limits) -> bool:
        """Close what takes too long. Returns true when it closed a connection whose peer did not read."""
        if self.transport is None:
            return False  # the loop looks at handshakes
        if self._is_full:
            # Decision: the time counts from the last byte that left, so one that reads slowly gets its answer.
            before, self._unsent = self._unsent, self.transport.get_write_buffer_size()
            if self._unsent < before:
                self.active = now
            elif now - self.active > limits.slow_seconds:
                self.abandon()
                return True
        elif self._lingers is not None:
            if now - self._lingers > limits.linger_seconds:
                self.abandon()
        elif self._request_id is None and self._reader.has_begun:
            if now - self.began > limits.slow_seconds:
                self._refuse(request_timeout(limits.slow_seconds))
        elif self._request_id is None and self._stream is None and now - self.active > limits.idle_seconds:
            self.transport.close()
        return False

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = transport = cast("asyncio.Transport", transport)  # uvloop's is not one
        transport.set_write_buffer_limits(0)  # `pause_writing` says that something has not left
        self.began = time.monotonic()

    def connection_lost(self, _error: Exception | None) -> None:
        """Release what is held. An answer that is being made goes on: its request may have been published."""
        self._server.connections.discard(self)
        self._server.aborted.discard(self)
        self._unread = b""
        if self._stream is not None:
            self._stream.close()
        self._leave()

    def get_buffer(self, _hint: int) -> memoryview:
        """Return what to receive into."""
        return self._server.buffer

    def buffer_updated(self, count: int) -> None:
        """Take what was received, to be parsed in the next turn."""
        if self._lingers is not None:
            self._thrown_away += count
            if self._thrown_away > _LINGER_BYTES:
                self.abandon()
        elif self._stream is None:  # a stream is the last answer on its connection
            self.active = time.monotonic()
            self._unread += bytes(self._server.buffer[:count])
            if self._request_id is None and not self._is_full and not self._is_queued:
                self._queue()
            else:
                self._pause()  # one read at most waits

    def eof_received(self) -> bool:
        """Note that the peer has closed its side; return whether the connection stays open for what it has asked."""
        assert self.transport is not None  # noqa: S101  # something was received
        stays = self.is_busy and self._stream is None and self.transport.get_extra_info("sslcontext") is None
        self._leave()
        return stays

    def pause_writing(self) -> None:
        """Note that the peer does not take what was written."""
        self._is_full, self._unsent = True, 0

    def resume_writing(self) -> None:
        """Go on, once all that was written has left."""
        self._is_full, self.active = False, time.monotonic()
        if self._stream is not None:
            self._stream.wake()
        elif self._request_id is None and self._lingers is None:
            self._go_on()

    # Requests.

    def take_turn(self) -> None:
        """Parse what was received, up to the end of one request, and have that answered."""
        self._is_queued = False
        if self.transport is None or self.transport.is_closing():
            return
        try:
            self._read_on(self.transport)
        except Exception:
            log.exception("A connection is closed because serving it failed")
            self.abandon()

    def _read_on(self, transport: asyncio.Transport) -> None:
        reader = self._reader
        if not reader.has_begun:
            self.began, self._continued = time.monotonic(), False
        self._unread = reader.read(self._unread)
        if reader.is_complete:
            self._serve()
        elif self.has_left:
            transport.close()
        else:
            if reader.wants_to_continue and not self._continued:
                self._continued = True
                transport.write(_CONTINUE)
            self._resume()

    def _refuse(self, refusal: Refusal) -> None:
        """Answer a request of which only a part has come."""
        self._reader.refuse(refusal)
        self._serve()

    def _serve(self) -> None:
        """Answer the request that was read, now or once its answer has been made."""
        server, reader = self._server, self._reader
        refusal = reader.refusal or server.closing
        self._request_id, self._asked_at = server.request_id(), time.monotonic()
        request = Request(
            self._request_id,
            reader.method,
            reader.target,
            reader.target.partition("?")[2],
            reader.headers,
            reader.take_body() if refusal is None else b"",
            refusal,
            self.remote,
            self,
        )
        if refusal is not None and not reader.is_understood:
            self._send(refused(refusal))
            return
        try:
            answer = server.app.answer(request)
            if not isinstance(answer, Response) and server.is_full:
                answer.close()
                answer = server.app.answer(replace(request, body=b"", refusal=overloaded()))
        except Exception:
            log.exception("The application failed on request %s", self._request_id)
            answer = refused(internal_error())
        if isinstance(answer, Response):
            self._send(answer)
        else:
            server.waiting.add(self)
            server.waiting_bytes += reader.size
            self._task = server.loop.create_task(self._finish(answer))

    async def _finish(self, answer: Coroutine[Any, Any, Response]) -> None:
        """Wait for the answer."""
        try:
            response = await answer
        except Exception:
            log.exception("The application failed on request %s", self._request_id)
            response = refused(internal_error())
        finally:
            self._server.waiting.discard(self)
            self._server.waiting_bytes -= self._reader.size
            self._task = self._when_left = None
        self._send(response)

    def when_left(self, action: Callable[[], None]) -> None:
        """Call `action` once the peer has closed its side."""
        self._when_left = action
        if self.has_left:
            action()

    def _leave(self) -> None:
        if not self.has_left:
            self.has_left = True
            if self._when_left is not None:
                self._when_left()

    # Answers.

    def _send(self, response: Response) -> None:
        """Send the answer that was made."""
        reader, server, transport, request_id = self._reader, self._server, self.transport, self._request_id
        assert transport is not None  # noqa: S101  # a request has come
        assert request_id is not None  # noqa: S101
        stream, is_refused = response.stream, reader.refusal is not None
        close = reader.is_last or server.leaving or stream is not None
        now = time.time()
        try:
            head = write_head(response, request_id, int(now), reader.version, close=close)
        except ValueError:
            log.exception("The application failed on request %s", request_id)
            if stream is not None:
                stream.close()
            response, stream = refused(internal_error()), None
            head = write_head(response, request_id, int(now), reader.version, close=close)
        if server.access_log is not None:
            self._log_access(server.access_log, response, now)
        self._request_id, self._has_served, self._was_refused = None, True, response.code is not None
        if transport.is_closing():
            if stream is not None:
                stream.close()
            return
        body = response.body if reader.method != "HEAD" else b""
        if len(body) <= _COPIED_BYTES:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)
        self.active = time.monotonic()
        if close:
            self._unread = b""
        if stream is not None:
            self._stream = _StreamSender(stream, self, transport, server)
        elif is_refused:  # the peer may still send, and is to read the refusal
            self._lingers = self.active
            if transport.can_write_eof():
                transport.write_eof()
            self._resume()
        elif close:
            transport.close()
        else:
            reader.begin()
            if not self._is_full:
                self._go_on()

    def _go_on(self) -> None:
        """Begin the next request."""
        if self._unread:
            self._queue()
        elif self.has_left:
            if self.transport is not None:
                self.transport.close()
        else:
            self._resume()

    def _queue(self) -> None:
        """Wait for a turn."""
        self._is_queued = True
        (self._server.refused if self._was_refused else self._server.ready).append(self)
        self._server.schedule()

    def _pause(self) -> None:
        if not self._is_paused and self.transport is not None:
            self._is_paused = True
            self.transport.pause_reading()

    def _resume(self) -> None:
        if self._is_paused and self.transport is not None and not self.has_left:
            self._is_paused = False
            self.transport.resume_reading()

    def _log_access(self, access_log: AccessLog, response: Response, now: float) -> None:
        reader, seconds, labels = self._reader, time.monotonic() - self._asked_at, dict(response.labels)
        access_log.write(
            {
                "time": rfc3339(now - seconds),
                "request_id": self._request_id,
                "remote": self.remote,
                "method": reader.method,
                "path": reader.target.partition("?")[0],
                "status": int(response.status[:3]),
                "code": response.code,
                **{name: labels.get(name) for name in access_log.labels},
                "request_bytes": reader.size,
                "response_bytes": len(response.body),
                "ms": round(seconds * 1000, 3),
            }
        )


class _StreamSender:
    """The stream of a connection: its next piece leaves once the one before has."""

    def __init__(
        self, stream: Stream, connection: Connection, transport: asyncio.Transport, server: HttpServer
    ) -> None:
        self._stream = stream
        self._connection = connection
        self._transport = transport
        self._server = server
        self._is_due = False  # `send_piece` follows
        self._timer: asyncio.TimerHandle | None = None
        stream.begin(self.wake)
        self.wake()

    def wake(self) -> None:
        """Have the next piece sent, in one of the next turns; once for any number of calls."""
        if not self._is_due:
            self._is_due = True
            self._server.streaming.append(self)
            self._server.schedule()

    def send_piece(self) -> None:
        """Send the next piece, if there is one and room for it."""
        self._is_due = False
        if self._transport.is_closing() or self._transport.get_write_buffer_size():
            return
        try:
            piece = self._stream.take()
        except Exception:
            log.exception("A stream failed and is ended")
            piece = b""
        if not isinstance(piece, bytes):
            self._wake_in(piece)
        elif piece:
            self._transport.write(piece)
            self._connection.active = time.monotonic()
            self.wake()
        else:
            self._transport.close()

    def close(self) -> None:
        """Release the stream."""
        if self._timer is not None:
            self._timer.cancel()
        self._stream.close()

    def _wake_in(self, seconds: float) -> None:
        """Set the timer, unless it is due before; a stream that is asked too early says so again."""
        at = self._server.loop.time() + seconds
        if (
            self._timer is None
            or self._timer.cancelled()
            or self._timer.when() > at
            or self._timer.when() <= at - seconds
        ):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._server.loop.call_at(at, self.wake)

"""One connection of a port: requests in, one after the other, and their answers out; and what all of them share.

A connection takes bounded memory, whatever its peer sends, and even if it reads nothing: at most one request and one
chunk of bytes that are not parsed. The next request is parsed once the last answer has left for the system's buffers.
"""

import asyncio
import itertools
import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from msgspec.structs import replace

from amqtt_rest_bridge.http.access_log import AccessLog
from amqtt_rest_bridge.http.exchange import (
    Application,
    Caller,
    Refusal,
    Request,
    RequestReader,
    Response,
    ResponseStream,
    internal_error,
    overloaded,
    refused,
    request_timeout,
    shutting_down,
    write_head,
)
from amqtt_rest_bridge.times import rfc3339

log = logging.getLogger(__name__)

_READ_BYTES: Final = 16_384
# Of an iteration of the loop, for callers, for those whose last answer was an error, and for streams.
_TURN_SECONDS: Final = 0.001
_REFUSED_SECONDS: Final = 0.00025
_STREAMS_SECONDS: Final = 0.0005

_LINGER_BYTES: Final = 16 * 1024 * 1024
_COPIED_BYTES: Final = 16_384  # of a body, to send it together with its head
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class TakesTurns(Protocol):
    """Something that is to be done for one caller."""

    def take_turn(self) -> None:
        """Do it; called once for each time that it was queued."""
        ...


@dataclass(frozen=True, slots=True)
class PortLimits:
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


class Port:
    """What the connections of a port share: the application, the limits, and the turns.

    Callers are served in *turns*, so that no caller delays the others, and all of them take little of the loop's time.
    In one iteration of the loop each connection has one request at most, and all connections together take a
    millisecond. Callers whose last answer was an error come next, with a quarter of that, so that a flood of them
    delays no other caller. TLS handshakes likewise have a quarter, and streams come last, with half a millisecond.
    """

    def __init__(
        self, app: Application, limits: PortLimits, max_body_bytes: int, access_log: AccessLog | None = None
    ) -> None:
        self.app = app
        self.limits = limits
        self.max_body_bytes = max_body_bytes
        self.access_log = access_log
        self.closing: Refusal | None = None
        """The refusal of all new requests, None while the port serves."""
        self.leaving = False
        """Whether each connection ends after its next answer."""
        self.connections: set[Connection] = set()
        self.aborted: set[Connection] = set()
        """Connections that the loop closes in one of its next iterations; they are no longer in `connections`."""
        self.waiting: set[Connection] = set()
        """The connections whose answers are being made; the peers of some may have gone."""
        self.waiting_bytes = 0
        self.buffer = memoryview(bytearray(_READ_BYTES))
        """All connections read into this buffer, and copy the bytes at once."""
        self.ready: deque[TakesTurns] = deque()
        """Connections with bytes to parse, in order of arrival; those in `refused` got an error last."""
        self.refused: deque[TakesTurns] = deque()
        self.handshakes: deque[TakesTurns] = deque()
        """Connections whose handshakes have received bytes."""
        self.streaming: deque[TakesTurns] = deque()
        """The streams that have a piece, or may have."""
        self._has_turn = False
        # A random start and a number: a whole random UUID for each request takes 2 us.
        self._prefix = str(uuid.uuid4())[:24]
        self._numbers = itertools.count(1)

    @property
    def is_full(self) -> bool:
        """Return whether no more answers may wait."""
        return len(self.waiting) >= self.limits.waiting or self.waiting_bytes >= self.limits.waiting_bytes

    def forget(self, connection: "Connection") -> None:
        """Note that a connection has ended."""
        self.connections.discard(connection)
        self.aborted.discard(connection)

    def request_id(self) -> str:
        """Return the id of the next request, a UUID that no other request has."""
        return f"{self._prefix}{next(self._numbers):012x}"

    def schedule(self) -> None:
        """Take a turn in the next iteration of the loop."""
        if not self._has_turn:
            self._has_turn = True
            asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._has_turn = False
        for callers, seconds in (
            (self.ready, _TURN_SECONDS),
            (self.refused, _REFUSED_SECONDS),
            (self.handshakes, _REFUSED_SECONDS),
            (self.streaming, _STREAMS_SECONDS),
        ):
            until = time.monotonic() + seconds
            for _ in range(len(callers)):
                callers.popleft().take_turn()
                if time.monotonic() >= until:
                    break
        if self.ready or self.refused or self.handshakes or self.streaming:
            self.schedule()


class Connection(asyncio.BufferedProtocol, Caller):
    """One connection of a port: requests in, one after the other, and their answers out."""

    transport: asyncio.Transport | None = None
    """None until the loop has taken the accepted socket, which `opening` does."""
    opening: asyncio.Task[None] | None = None

    def __init__(self, port: Port, remote: str) -> None:
        self.remote = remote
        self.began = self.active = time.monotonic()
        """`began`: start of the present handshake or incomplete request. `active`: last time of a read or write."""
        self._port = port
        self._reader = RequestReader(port.max_body_bytes)
        self._unread = b""  # received, and not parsed
        self._is_queued = False  # for a turn
        self._is_paused = False  # nothing is received
        self._is_full = False  # what was written has not left
        self._unsent = 0  # bytes that had not left at the last check
        self._request_id: str | None = None  # of the request whose answer is being made
        self._asked_at = 0.0
        self._task: asyncio.Task[None] | None = None  # makes it
        self._when_left: Callable[[], None] | None = None
        self._is_shaking_hands = False
        self._continued = False  # 100 Continue was sent for the incomplete request
        self._has_served = False
        self._was_refused = False
        self._stream: _StreamSender | None = None
        self._lingers: float | None = None  # since when received bytes are thrown away
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
        """Return whether the peer has not completed its handshake or request since this time."""
        return not (self.is_busy or self._stream) and self.began <= since

    def is_stalled(self, since: float) -> bool:
        """Return whether the peer has not read its answer since this time."""
        return self._is_full and self.active <= since

    def abandon(self) -> None:
        """Close at once."""
        self._port.connections.discard(self)
        self._port.aborted.add(self)
        if self.transport is not None:
            self.transport.abort()
        elif self.opening is not None:
            self.opening.cancel()

    def end(self) -> None:
        """Close at once; an incomplete request is answered first."""
        if self._request_id is None and self._reader.has_begun:
            self._refuse(self._port.closing or shutting_down())
            if self.transport is not None and not self._is_full:
                self.transport.close()
                return
        self.abandon()

    def cancel(self) -> None:
        """Cancel the answer that is being made."""
        if self._task is not None:
            self._task.cancel()

    def close_overdue(self, now: float) -> bool:
        """Close the connection if its peer is too slow. Returns whether that was because the peer did not read."""
        transport, limits = self.transport, self._port.limits
        if transport is None:
            return False
        if self._is_full:
            # The time counts from the last byte that left, so a peer that reads slowly gets its answer.
            before, self._unsent = self._unsent, transport.get_write_buffer_size()
            if self._unsent < before:
                self.active = now
            is_unread = now - self.active > limits.slow_seconds
            if is_unread:
                self.abandon()
            return is_unread
        if self._lingers is not None:
            if now - self._lingers > limits.linger_seconds:
                self.abandon()
        elif self._request_id is None and (self._reader.has_begun or self._is_shaking_hands):
            if now - self.began > limits.slow_seconds:
                self.abandon() if self._is_shaking_hands else self._refuse(request_timeout(limits.slow_seconds))
        elif self._request_id is None and self._stream is None and now - self.active > limits.idle_seconds:
            transport.close()
        return False

    # What the loop calls.

    def shake_hands(self, transport: asyncio.Transport) -> None:
        """Begin, with a handshake of TLS."""
        self.transport, self._is_shaking_hands = transport, True

    def handshake_over(self) -> None:
        """Expect the first request."""
        self._is_shaking_hands, self.began = False, time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is not one
        self.transport.set_write_buffer_limits(0)  # `pause_writing` says that something has not left

    def connection_lost(self, _error: Exception | None) -> None:
        """Release what is held. An answer that is being made goes on: its request may have been published."""
        self._port.forget(self)
        self._unread = b""
        if self._stream is not None:
            self._stream.close()
        self._note_peer_left()

    def get_buffer(self, _hint: int) -> memoryview:
        """Return what to receive into."""
        return self._port.buffer

    def buffer_updated(self, count: int) -> None:
        """Take what was received."""
        self.receive(bytes(self._port.buffer[:count]))

    def receive(self, data: bytes) -> None:
        """Take what was received, to be parsed in the next turn."""
        if self._lingers is not None:
            self._thrown_away += len(data)
            if self._thrown_away > _LINGER_BYTES:
                self.abandon()
        elif self._stream is None:  # a stream is the last answer on its connection
            self.active = time.monotonic()
            self._unread += data
            if self._request_id is not None or self._is_full or self._is_queued:
                self._pause()  # one read at most waits
            else:
                self._queue()

    def eof_received(self) -> bool:
        """Note that the peer has closed its side; return whether the connection stays open for what it has asked."""
        stays = self.is_busy and self._stream is None
        self._note_peer_left()
        return stays

    def pause_writing(self) -> None:
        """Note that the peer does not take what was written."""
        self._is_full, self._unsent = True, 0

    def resume_writing(self) -> None:
        """Go on, once all that was written has left."""
        self._is_full, self.active = False, time.monotonic()
        if self._stream is not None:
            self._stream.wake()
        if self._request_id is None:
            self._go_on()

    # Requests.

    def take_turn(self) -> None:
        """Parse received bytes up to the end of one request, and answer it; called when its turn comes."""
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
            if self._unread:
                self._pause()  # until the next request is parsed
            self._serve()
        elif self.has_left:
            transport.close()
        else:
            if reader.wants_to_continue and not self._continued:
                self._continued = True
                transport.write(_CONTINUE)
            self._resume()

    def _refuse(self, refusal: Refusal) -> None:
        """Answer an incomplete request with a refusal."""
        self._reader.refuse(refusal)
        self._serve()

    def _serve(self) -> None:
        """Answer the request that was read, now or once its answer has been made."""
        port, reader = self._port, self._reader
        refusal = reader.refusal or port.closing
        self._request_id, self._asked_at = port.request_id(), time.monotonic()
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
            answer = port.app.answer(request)
            if not isinstance(answer, Response) and port.is_full:
                answer.close()
                answer = port.app.answer(replace(request, body=b"", refusal=overloaded()))
        except Exception:
            log.exception("The application failed on request %s", self._request_id)
            answer = refused(internal_error())
        if isinstance(answer, Response):
            self._send(answer)
        else:
            port.waiting.add(self)
            port.waiting_bytes += reader.size
            self._task = asyncio.get_running_loop().create_task(self._finish(answer))

    async def _finish(self, answer: Coroutine[Any, Any, Response]) -> None:
        """Wait for the answer."""
        try:
            response = await answer
        except Exception:
            log.exception("The application failed on request %s", self._request_id)
            response = refused(internal_error())
        finally:
            self._port.waiting.discard(self)
            self._port.waiting_bytes -= self._reader.size
            self._task = self._when_left = None
        self._send(response)

    def when_left(self, action: Callable[[], None]) -> None:
        """Call `action` once the peer has closed its side."""
        self._when_left = action
        if self.has_left:
            action()

    def _note_peer_left(self) -> None:
        if not self.has_left:
            self.has_left = True
            if self._when_left is not None:
                self._when_left()

    # Answers.

    def _send(self, response: Response) -> None:
        """Send the answer that was made."""
        reader, port, transport, request_id = self._reader, self._port, self.transport, self._request_id
        assert transport is not None  # noqa: S101  # a request has come
        assert request_id is not None  # noqa: S101
        close = reader.is_last or port.leaving or response.stream is not None
        now = time.time()
        try:
            head = write_head(response, request_id, int(now), reader.version, close=close)
        except ValueError:
            log.exception("The application failed on request %s", request_id)
            _release_stream(response)
            self._send(refused(internal_error()))
            return
        if port.access_log is not None:
            self._log_access(port.access_log, response, now)
        self._request_id, self._has_served, self._was_refused = None, True, response.code is not None
        if transport.is_closing():
            _release_stream(response)
            return
        body = response.body if reader.method != "HEAD" else b""
        if len(body) <= _COPIED_BYTES:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)
        self.active = time.monotonic()
        is_refused = reader.refusal is not None
        reader.begin()
        if response.stream is not None:
            self._stream = _StreamSender(response.stream, self, transport, port)
        elif is_refused:  # the peer may still send, and is to read the refusal
            self._lingers = self.active
            if transport.can_write_eof():
                transport.write_eof()
        elif close:
            transport.close()
            return
        if not self._is_full:
            self._go_on()

    def _go_on(self) -> None:
        """Begin the next request, or throw away what comes behind the last one."""
        if self._stream is not None or self._lingers is not None:
            self._unread = b""
        if self._unread:
            self._queue()
        elif not self.has_left:
            self._resume()
        elif self.transport is not None:
            self.transport.close()

    def _queue(self) -> None:
        """Wait for a turn."""
        if not self._is_queued:
            self._is_queued = True
            (self._port.refused if self._was_refused else self._port.ready).append(self)
            self._port.schedule()

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


def _release_stream(response: Response) -> None:
    """Release the stream of an answer that is not sent."""
    if response.stream is not None:
        response.stream.close()


class _StreamSender:
    """The stream of a connection: its next piece leaves once the one before has."""

    def __init__(
        self, stream: ResponseStream, connection: Connection, transport: asyncio.Transport, port: Port
    ) -> None:
        self._stream = stream
        self._connection = connection
        self._transport = transport
        self._port = port
        self._is_due = False  # its turn comes
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0
        stream.begin(self.wake)
        self.wake()

    def wake(self) -> None:
        """Ask for a turn to send the next piece. Further calls before that turn add nothing."""
        if not self._is_due:
            self._is_due = True
            self._port.streaming.append(self)
            self._port.schedule()

    def take_turn(self) -> None:
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
        """Wake later, unless an earlier time is set: asked too early, the stream answers again how long to wait."""
        at = time.monotonic() + seconds
        if self._timer is not None:
            if self._due_at <= at:
                return
            self._timer.cancel()
        self._due_at = at
        self._timer = asyncio.get_running_loop().call_later(seconds, self._wake_late)

    def _wake_late(self) -> None:
        self._timer = None
        self.wake()

"""One connection of a port: it reads requests, one after the other, and sends their answers.

`server` has accepted the connection, and its port gives the connection a turn for each request; the application answers
it. The memory of a connection is bounded, even if its peer sends without end or reads nothing: it holds one request,
the head of the last request if it is small, and the bytes of one read that are not parsed. The next request is parsed
once the last answer is in the system's buffers.

llhttp (httptools) parses header fields and chunks, and refuses invalid HTTP. `read_head` reads the request line, since
llhttp knows only some methods and targets, checks Host, and refuses requests that two servers could read differently.
`RequestReader` finds the end of a request, and bounds head, body and chunks.
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping
from email.utils import formatdate
from enum import Enum, auto
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

import httptools
from msgspec import Struct

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.http.access_log import AccessLog
from amqtt_rest_bridge.http.exchange import (
    FAILED,
    SHUTTING_DOWN,
    Caller,
    Headers,
    Later,
    Refusal,
    Request,
    Response,
    ResponseStream,
    refuse,
    refused,
    too_large,
)
from amqtt_rest_bridge.times import rfc3339

if TYPE_CHECKING:
    from amqtt_rest_bridge.http.server import Port

log = logging.getLogger(__name__)

_LINGER_BYTES: Final = 16 * 1024 * 1024  # so many bytes are discarded after a refusal, then the connection is closed
_COPIED_BYTES: Final = 16_384  # a body up to this size is copied, to send it together with its head
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

_MOST_HEAD_BYTES: Final = 65_536  # of the request line and headers together
_LONGEST_KEPT: Final = 1024  # bytes of a head that is kept until the next request
_HEAD_TOO_LARGE: Final = refuse(
    catalogue.HEADERS_TOO_LARGE, f"The request line and headers are over the limit of {_MOST_HEAD_BYTES} bytes"
)
_CHUNK_LINE_TOO_LONG: Final = refuse(
    catalogue.INVALID_REQUEST, "A chunk's size line or the trailer section is too long"
)
_MOST_LINE_BYTES: Final = 16_384  # of size lines and trailers between two pieces of content
_HOST: Final = r"(?:\[[\w.~!$&'()*+;=%:-]+\]|[\w.~!$&'()*+;=%-]*)(?::[0-9]*)?"  # RFC 9110 section 7.2
_HOST_VALUE: Final = re.compile(_HOST, re.ASCII)
_OTHER_TARGET: Final = re.compile(rf"[A-Za-z][A-Za-z0-9+.-]*://{_HOST}(?:[/?].*)?|(?!.*://).*", re.ASCII)
_REQUEST_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Z-]+) ([^\x00-\x20\x7f]+) HTTP/(1\.[01])\r\n")
_CHUNKED_HEAD: Final = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
_CHUNK_SIZE: Final = re.compile(rb"[0-9A-Fa-f]*")
_NO_LENGTH: Final = ("204", "304")


class State(Enum):
    """What a connection does. Each state says what `Connection.began` means in it."""

    SHAKING_HANDS = auto()
    """The TLS handshake runs; it began at `began`."""
    READING = auto()
    """A request is awaited. If a part of it has come, the first part came at `began`."""
    ANSWERING = auto()
    """The answer is being made; the last part of the request came at `began`."""
    STREAMING = auto()
    """A stream is sent, the last answer of the connection. What the peer sends is discarded."""
    LINGERING = auto()
    """A refusal was sent at `began`. What the peer sends is discarded until it closes its side, or time is up."""


# Python 3.11 is slow to look up a member of an enumeration, which each request would ask for six times.
_SHAKING_HANDS, _READING, _ANSWERING, _STREAMING, _LINGERING = State


class Connection(asyncio.BufferedProtocol, Caller):
    """One connection of a port.

    `began` (see `State`) and `active`, the time of the last read or write, are monotonic seconds. `opening` is the task
    that gives the accepted socket to the loop; `transport` is None until it is done.
    """

    transport: asyncio.Transport | None = None
    opening: asyncio.Task[None] | None = None

    def __init__(self, port: "Port", remote: str) -> None:
        self.remote = remote
        self.state = _READING
        self.began = self.active = time.monotonic()
        self._port = port
        self._reader = RequestReader(port.max_body_bytes)
        self._unread = b""  # bytes that were received and not parsed
        self._is_queued = False  # it waits for a turn
        self._is_paused = False  # the socket is not read
        self._is_full = False  # written bytes wait, since the peer reads too slowly
        self._unsent = 0  # bytes that waited to be sent when `close_overdue` last looked
        self._request_id = ""  # of the last request
        self._pending_answer: Later | None = None  # the answer, while it is being made
        self._made_answer: Response | None = None  # then, until its turn to be sent
        self._when_left: Callable[[], None] | None = None  # called when the peer closes its side
        self._has_served = False
        self._was_refused = False  # the last answer was an error
        self._stream: _StreamSender | None = None
        self._discarded = 0  # bytes, while it lingers

    # What the server calls.

    @property
    def is_busy(self) -> bool:
        """Return whether a request is being served or its answer is on its way."""
        return self.state is _ANSWERING or self._is_full or bool(self._unread)

    @property
    def is_idle(self) -> bool:
        """Return whether a request was served and the next one has not begun, so that closing loses nothing."""
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

    def shut_down(self) -> None:
        """Close at once, but answer an incomplete request with a refusal first."""
        if self.state is _READING and self._reader.has_begun:
            self._refuse(self._port.closing or SHUTTING_DOWN)
            if self.transport is not None and not self._is_full:
                self.transport.close()
                return
        self.abandon()

    def cancel_answer(self) -> None:
        """Cancel the answer that is being made."""
        if self._pending_answer is not None:
            self._pending_answer.awaited.cancel()

    def close_overdue(self, now: float) -> bool:
        """Close the connection if its peer is too slow. Return whether the peer was too slow to read an answer.

        The peer has a limited time to read an answer, to read a refusal, to complete its handshake, to send a whole
        request, and to begin the next request.
        """
        transport, limits, state = self.transport, self._port.limits, self.state
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
        seconds = now - self.began
        if (state is _LINGERING and seconds > limits.linger_seconds) or (
            state is _SHAKING_HANDS and seconds > limits.slow_seconds
        ):
            self.abandon()
        elif state is _READING and self._reader.has_begun:
            if seconds > limits.slow_seconds:
                message = f"The request did not arrive within {limits.slow_seconds:g} seconds"
                self._refuse(refuse(catalogue.REQUEST_TIMEOUT, message))
        elif state is _READING and now - self.active > limits.idle_seconds:
            transport.close()
        return False

    # What the loop calls.

    def begin_handshake(self, transport: asyncio.Transport) -> None:
        """Use a TLS transport, and wait for its handshake."""
        self.transport, self.state = transport, _SHAKING_HANDS

    def end_handshake(self) -> None:
        """Wait for the first request: the handshake is complete."""
        self.state, self.began = _READING, time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Use this transport."""
        self.transport = cast("asyncio.Transport", transport)  # not a subclass with uvloop
        self.transport.set_write_buffer_limits(0)  # `pause_writing` is called as soon as bytes wait here

    def connection_lost(self, _error: Exception | None) -> None:
        """Release the stream and unread bytes. An answer is made to its end: its request may have been published."""
        self._port.forget(self)
        self._unread = b""
        if self._stream is not None:
            self._stream.close()
        self._note_peer_left()

    def get_buffer(self, _hint: int) -> memoryview:
        """Return what to receive into."""
        return self._port.buffer

    def buffer_updated(self, count: int) -> None:
        """Take the received bytes from the buffer."""
        self.receive(bytes(self._port.buffer[:count]))

    def receive(self, data: bytes) -> None:
        """Keep received bytes until the next turn. If it cannot come yet, stop reading: one read at most waits."""
        state = self.state
        if state is _LINGERING:
            self._discarded += len(data)
            if self._discarded > _LINGER_BYTES:
                self.abandon()
        elif state is not _STREAMING:
            self.active = time.monotonic()
            self._unread += data
            if state is _ANSWERING or self._is_full or self._is_queued:
                self._pause()
            else:
                self._queue_turn()

    def eof_received(self) -> bool:
        """Note that the peer has closed its side. Return whether the connection stays open to send an answer."""
        stays = self.is_busy and self._stream is None
        self._note_peer_left()
        return stays

    def pause_writing(self) -> None:
        """Note that written bytes wait because the peer reads too slowly."""
        self._is_full, self._unsent = True, 0

    def resume_writing(self) -> None:
        """Send the next piece of a stream, or read the next request: all written bytes have left."""
        self._is_full, self.active = False, time.monotonic()
        if self._stream is not None:
            self._stream.wake()
        if self.state is not _ANSWERING:
            self._read_on()

    # Requests.

    def take_turn(self) -> None:
        """Send the answer that has been made. If there is none, read a request and answer it, or begin its answer."""
        self._is_queued = False
        try:
            if self._made_answer is not None:
                answer, self._made_answer = self._made_answer, None
                self._send_answer(answer)
            elif self.transport is not None and not self.transport.is_closing():
                self._read_request(self.transport)
        except Exception:
            log.exception("A connection is closed because serving it failed")
            self.abandon()

    def _read_request(self, transport: asyncio.Transport) -> None:
        """Parse received bytes up to the end of one request, and answer that request."""
        reader = self._reader
        had_begun = reader.has_begun
        self._unread = reader.read(self._unread)
        if reader.has_begun and not had_begun:  # empty lines before a request do not begin it
            self.began = self.active
        if reader.is_complete:
            if self._unread:
                self._pause()  # until the next request is parsed
            else:
                self._resume()  # so that it is noted if the peer leaves
            self._answer_request()
        elif self.has_left:
            transport.close()
        else:
            if reader.wants_to_continue():
                transport.write(_CONTINUE)
            self._resume()

    def _refuse(self, refusal: Refusal) -> None:
        """Answer an incomplete request with a refusal."""
        self._reader.refuse(refusal)
        self._answer_request()

    def _answer_request(self) -> None:
        """Answer the request that was read.

        1. It was refused before its head could be read: the refusal is sent.
        2. The application answers at once. It also answers a request that was refused later, so that it can log it.
        3. The application takes longer: `_make_answer` continues when it is done.
        """
        port, reader = self._port, self._reader
        refusal = reader.refusal or port.closing
        self.state, self.began, self._request_id = _ANSWERING, self.active, port.request_id()
        if refusal is not None and not reader.is_understood:
            self._send_answer(refused(refusal))
            return
        head, body = reader.head, reader.take_body() if refusal is None else b""
        request = Request(
            self._request_id, head.method, head.target, head.query, head.headers, body, refusal, self.remote, self,
            not port.is_full,
        )  # fmt: skip
        try:
            answer = port.app.answer(request)
        except Exception:
            log.exception("The application failed on request %s", self._request_id)
            answer = refused(FAILED)
        if isinstance(answer, Response):
            self._send_answer(answer)
            return
        port.waiting.add(self)
        port.waiting_bytes += reader.size
        if not isinstance(answer, Later):
            task = asyncio.get_running_loop().create_task(answer)
            answer = Later(task, task.result)
        self._pending_answer = answer
        answer.awaited.add_done_callback(self._make_answer)

    def _make_answer(self, awaited: asyncio.Future[Any]) -> None:
        """Make the answer now that its future is done, and queue for a turn to send it."""
        later, self._pending_answer, self._when_left = self._pending_answer, None, None
        self._port.waiting.discard(self)
        self._port.waiting_bytes -= self._reader.size
        if later is None or awaited.cancelled():  # the port has closed
            return
        try:
            response = later.make()
        except Exception:
            log.exception("The application failed on request %s", self._request_id)
            response = refused(FAILED)
        self._made_answer = response
        self._port.answered.append(self)
        self._port.schedule()

    def when_left(self, action: Callable[[], None]) -> None:
        """Call `action` once the peer has closed its side."""
        self._when_left = action
        if self.has_left:
            action()

    def _note_peer_left(self) -> None:
        """Note once that the peer has closed its side, and call the action of `when_left`."""
        if not self.has_left:
            self.has_left = True
            if self._when_left is not None:
                self._when_left()

    # Answers.

    def _send_answer(self, response: Response) -> None:
        """Send an answer. What comes then depends on the answer.

        - Usually the next request is read.
        - A stream is sent, which is the last answer of the connection.
        - After a refusal the connection lingers, since the peer may still send.
        - After the last answer it is closed.
        """
        reader, port, transport, stream = self._reader, self._port, self.transport, response.stream
        assert transport is not None  # noqa: S101  # a request has come
        close = reader.is_last or port.leaving or stream is not None
        try:
            head = write_head(response, self._request_id, int(time.time()), reader.head.version, close=close)
        except ValueError:
            log.exception("The application failed on request %s", self._request_id)
            _release_stream(response)
            self._send_answer(refused(FAILED))
            return
        if port.access_log is not None:
            self._log_access(port.access_log, response)
        self.state, self._has_served, self._was_refused = _READING, True, response.code is not None
        if transport.is_closing():
            _release_stream(response)
            return
        body = response.body if reader.head.method != "HEAD" else b""
        if len(body) <= _COPIED_BYTES:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)
        self.active = time.monotonic()
        is_refused = reader.refusal is not None
        reader.begin()
        if stream is not None:
            self.state, self._stream = _STREAMING, _StreamSender(stream, self, transport, port)
        elif is_refused:  # the peer may still send, and a close at once could keep it from reading the refusal
            self.state, self.began = _LINGERING, self.active
            if transport.can_write_eof():
                transport.write_eof()
        elif close:
            transport.close()
            return
        if not self._is_full:
            self._read_on()

    def _read_on(self) -> None:
        """Read the next request, or close if the peer has left. Bytes after the last request are discarded."""
        if self.state is not _READING:
            self._unread = b""
        if self._unread:
            self._queue_turn()
        elif not self.has_left:
            self._resume()
        elif self.transport is not None:
            self.transport.close()

    def _queue_turn(self) -> None:
        """Queue for a turn, once."""
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

    def _log_access(self, access_log: AccessLog, response: Response) -> None:
        reader, seconds, labels = self._reader, time.monotonic() - self.began, dict(response.labels)
        access_log.write(
            {
                "time": rfc3339(time.time() - seconds),
                "request_id": self._request_id,
                "remote": self.remote,
                "method": reader.head.method,
                "path": reader.head.target.partition("?")[0],
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


def write_head(response: Response, request_id: str, now: int, version: str = "1.1", *, close: bool) -> bytes:
    """Return the head of an answer; `now` is Unix time.

    Raises `ValueError` for a header value that would break the answer or cannot be written.
    """
    length = None if response.status[:3] in _NO_LENGTH or response.stream is not None else len(response.body)
    head = _head_lines(response.status, response.headers, length, version, close)
    return b"%bX-Request-ID: %b\r\n%b\r\n" % (head, request_id.encode(), _date(now))


@lru_cache(maxsize=64)  # most answers are alike; few are kept, since headers that a caller has sent may take 64 KiB
def _head_lines(status: str, headers: Headers, length: int | None, version: str, close: bool) -> bytes:
    lines = [f"HTTP/{version} {status}"]
    for name, value in headers:
        if "\n" in value or "\r" in value or not value.isascii():
            raise ValueError(f"the value of {name} does not fit into a header")
        lines.append(f"{name}: {value}")
    if length is not None:
        lines.append(f"Content-Length: {length}")
    if close:
        lines.append("Connection: close")
    elif version == "1.0":
        lines.append("Connection: keep-alive")
    return "\r\n".join([*lines, ""]).encode("latin-1")


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    return f"Date: {formatdate(second, usegmt=True)}\r\n".encode()


class _StreamSender:
    """Sends the stream of a connection: each piece once the one before it has left."""

    def __init__(
        self, stream: ResponseStream, connection: Connection, transport: asyncio.Transport, port: "Port"
    ) -> None:
        self._stream = stream
        self._connection = connection
        self._transport = transport
        self._port = port
        self._is_due = False  # queued for a turn
        self._timer: asyncio.TimerHandle | None = None
        stream.begin(self.wake)
        self.wake()

    def wake(self) -> None:
        """Ask for a turn to send the next piece. Further calls before that turn add nothing."""
        if not self._is_due:
            self._is_due = True
            self._port.streaming.append(self)
            self._port.schedule()

    def take_turn(self) -> None:
        """Send the next piece if all earlier ones have left. If there is none yet, wait as long as the stream says."""
        self._is_due = False
        if self._transport.is_closing() or self._transport.get_write_buffer_size():
            return
        try:
            piece = self._stream.take()
        except Exception:
            log.exception("A stream failed and is ended")
            piece = b""
        if not isinstance(piece, bytes):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(piece, self.wake)
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


class RequestHead(Struct, frozen=True):
    """The request line and the header fields of a request.

    Args:
        data: Its bytes, with the blank line.
        method: As sent.
        target: As sent.
        query: The part of `target` after the question mark.
        version: "1.0" or "1.1".
        headers: Values by name in lower case; those of a repeated header are joined by commas.
        length: Bytes of the body; 0 if it comes in chunks.
        is_chunked: Whether the body comes in chunks.
        is_last: Whether the caller expects that the connection is closed after the answer.
        refusal: Why the request is not served, and its body not read.
    """

    data: bytes = b""
    method: str = ""
    target: str = ""
    query: str = ""
    version: str = "1.1"
    headers: Mapping[str, str] = MappingProxyType({})
    length: int = 0
    is_chunked: bool = False
    is_last: bool = False
    refusal: Refusal | None = None


_NO_HEAD: Final = RequestHead()


def read_head(data: bytes) -> RequestHead:
    """Return the head of a request out of its bytes, with the blank line."""
    line = _REQUEST_LINE.match(data)
    if line is None:
        return RequestHead(data, refusal=_invalid("its first line is not one of HTTP/1.1"))
    method, target, version = line[1].decode(), line[2].decode("latin-1"), line[3].decode()
    fields = _HeaderFields(b"POST / HTTP/%b\r\n%b" % (line[3], data[line.end() :]))
    headers, refusal = fields.headers, None if fields.fault is None else _invalid(fields.fault)
    if fields.are_complete:
        refusal = _head_refusal(target, version, headers) or refusal
    return RequestHead(
        data, method, target, target.partition("?")[2], version, headers,
        0 if refusal is not None else int(headers.get("content-length", 0)), "transfer-encoding" in headers,
        not fields.keep_alive, refusal,
    )  # fmt: skip


def _head_refusal(target: str, version: str, headers: Mapping[str, str]) -> Refusal | None:
    """Return the refusal of a request that two servers could read differently, None for any other one."""
    coding, host = headers.get("transfer-encoding"), headers.get("host")
    if not _HOST_VALUE.fullmatch(host or "") or (host is None and version == "1.1"):
        return _invalid("HTTP/1.1 needs exactly one Host header, a host with or without a port")
    if not target.startswith("/") and not _OTHER_TARGET.fullmatch(target):
        return _invalid("the request target holds a user name, or no address")
    if coding is not None and version == "1.0":
        return _invalid("HTTP/1.0 has no Transfer-Encoding")
    if coding is not None and coding.lower() != "chunked":
        return refuse(catalogue.NOT_IMPLEMENTED, "The Transfer-Encoding of the request is not supported")
    return None


class _HeaderFields:
    """The header fields of a request, which llhttp reads after a request line that it knows.

    `fault` is why they are not valid, in words of llhttp. It never holds words of the caller.
    """

    def __init__(self, head: bytes) -> None:
        self.headers: dict[str, str] = {}
        self.are_complete = self.keep_alive = False
        self.fault: str | None = None
        self._llhttp = httptools.HttpRequestParser(self)
        try:
            self._llhttp.feed_data(head)
        except httptools.HttpParserUpgrade:
            pass  # a server may ignore Upgrade, RFC 9110 section 7.8
        except httptools.HttpParserError as error:
            self.fault = str(error)
        finally:
            del self._llhttp  # each refers to the other

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a field."""
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        known = self.headers.get(key)
        self.headers[key] = text if known is None else f"{known}, {text}"

    def on_headers_complete(self) -> None:
        """Note the end."""
        self.are_complete, self.keep_alive = True, self._llhttp.should_keep_alive()


class RequestReader:
    """Reads one request at a time. `begin` forgets it and starts the next one.

    `is_complete`: the request is to be answered, since all of it has come or it has a `refusal`. `is_understood`: its
    head has been read, so that the application can answer, even if the body was refused. `is_last`: the connection is
    to be closed after the answer.

    Args:
        max_body_bytes: A larger body is refused as soon as its size is known.
    """

    def __init__(self, max_body_bytes: int) -> None:
        self._max_body_bytes = max_body_bytes
        self._last_head = _NO_HEAD  # of the last request
        self.begin()

    def begin(self) -> None:
        """Forget the last request and start the next one."""
        self.head = _NO_HEAD
        self.size = 0
        """Bytes of the body that have come."""
        self.refusal: Refusal | None = None
        self.is_complete = self.is_understood = self.is_last = False
        self._partial_head = b""  # the beginning of a head whose end has not come
        self._body = bytearray()
        self._expected = ""  # the value of Expect

    @property
    def has_begun(self) -> bool:
        """Return whether a part of a request has come."""
        return bool(self._partial_head) or self.is_understood

    def wants_to_continue(self) -> bool:
        """Return whether the caller waits for 100 Continue (RFC 9110 section 10.1.1). Further calls return False."""
        expected, self._expected = self._expected, ""
        return self.size == 0 and self.head.version == "1.1" and expected.lower() == "100-continue"

    def take_body(self) -> bytes:
        """Return the body, and keep no copy of it."""
        body, self._body = self._body, bytearray()
        return bytes(body)

    def read(self, data: bytes) -> bytes:
        """Read up to the end of the request, and return the bytes after it."""
        if not self.is_understood:
            data = self._read_head(data)
        while data and not self.is_complete:
            data = self._read_chunked(data) if self.head.is_chunked else self._read_body(data)
        return data

    def _read_head(self, data: bytes) -> bytes:
        """Read the head if all of it has come, else keep its part; return the bytes after the head."""
        held = self._partial_head + data if self._partial_head else data.lstrip(b"\r\n")  # RFC 9112 section 2.2
        last = self._last_head
        if last.data and held.startswith(last.data):  # most callers send the same head again and again
            self._partial_head = b""
            self._use_head(last)
            return held[len(last.data) :]
        blank_line = held.find(b"\r\n\r\n")
        if blank_line < 0:
            self._partial_head = held
            if len(held) >= _MOST_HEAD_BYTES:
                self.refuse(_HEAD_TOO_LARGE)
            elif b"\n\n" in held or (b"\n" in held and not _REQUEST_LINE.match(held)):
                self.refuse(_invalid("its first line is not one of HTTP/1.1"))
            return b""
        self._partial_head, end = b"", blank_line + 4
        if end > _MOST_HEAD_BYTES:
            self.refuse(_HEAD_TOO_LARGE)
            return held[end:]
        head = read_head(held[:end])
        self._last_head = head if end <= _LONGEST_KEPT else _NO_HEAD
        self._use_head(head)
        return held[end:]

    def _use_head(self, head: RequestHead) -> None:
        """Expect the body that a head announces, or refuse the request."""
        self.head = head
        if head.refusal is not None:
            self.refuse(head.refusal)
            return
        self.is_understood, self.is_last, self._expected = True, head.is_last, head.headers.get("expect", "")
        if head.length > self._max_body_bytes:
            self.refuse(too_large(self._max_body_bytes))
        elif head.is_chunked:
            self._begin_chunks()
        else:
            self.is_complete = head.length == 0

    def _read_body(self, data: bytes) -> bytes:
        """Read a part of a body of a known length."""
        piece = data[: self.head.length - self.size]
        self.on_body(piece)
        self.is_complete = self.size == self.head.length
        return data[len(piece) :]

    def _begin_chunks(self) -> None:
        """Prepare for a body in chunks. llhttp reads them after a head that is made for it (`_CHUNKED_HEAD`)."""
        self._bytes_left = 0  # of the present chunk
        self._at_size_line = True  # the next line has the size of a chunk
        self._size_line = b""  # the part of that line that has come
        self._line_bytes = 0  # bytes of such lines and trailers since the last content
        self._llhttp = httptools.HttpRequestParser(self)
        self._llhttp.feed_data(_CHUNKED_HEAD)

    def _read_chunked(self, data: bytes) -> bytes:
        """Read a part of a chunk's content, or one line: the size of a chunk, the end of a chunk, or a trailer."""
        if self._bytes_left:
            self._line_bytes = 0
            piece = data[: self._bytes_left]
            self._bytes_left -= len(piece)
        else:
            piece = data[: data.find(b"\n") + 1 or len(data)]
            self._line_bytes += len(piece)
            if self._at_size_line:
                self._size_line += piece
                size = _CHUNK_SIZE.match(self._size_line)
                if size and size.end() > 16:  # over 64 bits: llhttp would call it invalid
                    self.refuse(too_large(self._max_body_bytes))
            if self._line_bytes > _MOST_LINE_BYTES:
                self.refuse(_CHUNK_LINE_TOO_LONG)
        if self.refusal is None:
            try:
                self._llhttp.feed_data(piece)
            except httptools.HttpParserError as error:
                self.refuse(_invalid(str(error)))
        return data[len(piece) :]

    def refuse(self, refusal: Refusal) -> None:
        """Complete the request with a refusal, unless it has one already."""
        self.refusal = self.refusal or refusal
        self.is_complete = self.is_last = True
        self._body = bytearray()

    # What llhttp calls for a body in chunks; trailers are ignored.

    def on_chunk_header(self) -> None:
        """Note the size of a chunk, and refuse the request if the body becomes too large with it."""
        match = _CHUNK_SIZE.match(self._size_line)
        self._bytes_left = int(match[0], 16) if match else 0
        self._at_size_line, self._size_line = False, b""
        if self.size + self._bytes_left > self._max_body_bytes:
            self.refuse(too_large(self._max_body_bytes))

    def on_chunk_complete(self) -> None:
        """Expect the size of the next chunk."""
        self._at_size_line = True

    def on_body(self, part: bytes) -> None:
        """Add a part of the body."""
        self.size += len(part)
        self._body += part

    def on_message_complete(self) -> None:
        """Note the end of the request."""
        self.is_complete = True


def _invalid(why: str) -> Refusal:
    return refuse(catalogue.INVALID_REQUEST, f"The request is not valid HTTP: {why}")

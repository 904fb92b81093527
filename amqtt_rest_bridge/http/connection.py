"""One connection of a port: requests in, one after the other, and their answers out.

A connection takes bounded memory, whatever its peer sends, and even if it reads nothing: at most one request and one
chunk of bytes that are not parsed. The next request is parsed once the last answer has left for the system's buffers.

llhttp (httptools) reads fields, lengths and chunks of a request, and refuses what is not HTTP. `RequestReader` adds
what llhttp leaves open: the end of a request among the bytes that came, so that the next one waits; bounds for head,
body and chunks; the request line, of which llhttp knows only some methods and targets; Host; what two servers could
read differently.
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable
from email.utils import formatdate
from enum import Enum, auto
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

import httptools

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

_LINGER_BYTES: Final = 16 * 1024 * 1024
_COPIED_BYTES: Final = 16_384  # of a body, to send it together with its head
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

_HEAD_BYTES: Final = 65_536  # of the request line and headers together
_HEAD_TOO_LARGE: Final = refuse(
    catalogue.HEADERS_TOO_LARGE, f"The request line and headers are over the limit of {_HEAD_BYTES} bytes"
)
_CHUNK_LINE_TOO_LONG: Final = refuse(
    catalogue.INVALID_REQUEST, "A chunk's size line or the trailer section is too long"
)
_LINE_BYTES: Final = 16_384  # of size lines and trailers, from one content to the next
_HOST: Final = r"(?:\[[\w.~!$&'()*+;=%:-]+\]|[\w.~!$&'()*+;=%-]*)(?::[0-9]*)?"  # RFC 9110 section 7.2
_IS_HOST: Final = re.compile(_HOST, re.ASCII)
_IS_TARGET: Final = re.compile(rf"[A-Za-z][A-Za-z0-9+.-]*://{_HOST}(?:[/?].*)?|(?!.*://).*", re.ASCII)
_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Z-]+) ([^\x00-\x20\x7f]+) HTTP/1\.([01])\r\n")
_UPGRADE: Final = re.compile(rb"(?i)\r\nupgrade(?=[ \t]*:)")
_SIZE: Final = re.compile(rb"[0-9A-Fa-f]*")
_NO_LENGTH: Final = ("204", "304")


class State(Enum):
    """What a connection does."""

    SHAKING_HANDS = auto()
    """TLS begins; `began` is when."""
    READING = auto()
    """A request is awaited, or a part of it has come; `began` is when its first part was read."""
    ANSWERING = auto()
    """The answer is being made; `began` is when the last part of the request came."""
    STREAMING = auto()
    """A stream is the last answer of its connection: what the peer sends is thrown away."""
    LINGERING = auto()
    """A refusal was sent, at `began`: what the peer sends is thrown away until it has read that."""


class Connection(asyncio.BufferedProtocol, Caller):
    """One connection of a port.

    `began` and `active`, the last time of a read or write, are monotonic seconds. `transport` is None until the loop
    has taken the accepted socket, which `opening` does.
    """

    transport: asyncio.Transport | None = None
    opening: asyncio.Task[None] | None = None

    def __init__(self, port: "Port", remote: str) -> None:
        self.remote = remote
        self.state = State.READING
        self.began = self.active = time.monotonic()
        self._port = port
        self._reader = RequestReader(port.max_body_bytes)
        self._unread = b""  # received, and not parsed
        self._is_queued = False  # for a turn
        self._is_paused = False  # nothing is received
        self._is_full = False  # what was written has not left
        self._unsent = 0  # bytes that had not left at the last check
        self._request_id = ""  # of the last request
        self._later: Later | None = None  # its answer, which is being made
        self._when_left: Callable[[], None] | None = None
        self._has_served = False
        self._was_refused = False
        self._stream: _StreamSender | None = None
        self._thrown_away = 0

    # What the port asks.

    @property
    def is_busy(self) -> bool:
        """Return whether a request is being served or its answer is on its way."""
        return self.state is State.ANSWERING or self._is_full or bool(self._unread)

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
        if self.state is State.READING and self._reader.has_begun:
            self._refuse(self._port.closing or SHUTTING_DOWN)
            if self.transport is not None and not self._is_full:
                self.transport.close()
                return
        self.abandon()

    def cancel(self) -> None:
        """Cancel the answer that is being made."""
        if self._later is not None:
            self._later.awaited.cancel()

    def close_overdue(self, now: float) -> bool:
        """Close the connection if its peer is too slow. Returns whether that was because the peer did not read."""
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
        if (state is State.LINGERING and seconds > limits.linger_seconds) or (
            state is State.SHAKING_HANDS and seconds > limits.slow_seconds
        ):
            self.abandon()
        elif state is State.READING and self._reader.has_begun:
            if seconds > limits.slow_seconds:
                message = f"The request did not arrive within {limits.slow_seconds:g} seconds"
                self._refuse(refuse(catalogue.REQUEST_TIMEOUT, message))
        elif state is State.READING and now - self.active > limits.idle_seconds:
            transport.close()
        return False

    # What the loop calls.

    def shake_hands(self, transport: asyncio.Transport) -> None:
        """Begin, with a handshake of TLS."""
        self.transport, self.state = transport, State.SHAKING_HANDS

    def handshake_over(self) -> None:
        """Expect the first request."""
        self.state, self.began = State.READING, time.monotonic()

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
        state = self.state
        if state is State.LINGERING:
            self._thrown_away += len(data)
            if self._thrown_away > _LINGER_BYTES:
                self.abandon()
        elif state is not State.STREAMING:
            self.active = time.monotonic()
            self._unread += data
            if state is State.ANSWERING or self._is_full or self._is_queued:
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
        if self.state is not State.ANSWERING:
            self._go_on()

    # Requests.

    def take_turn(self) -> None:
        """Parse received bytes up to the end of one request, and answer it; called when its turn comes."""
        self._is_queued = False
        transport, reader = self.transport, self._reader
        if transport is None or transport.is_closing():
            return
        if not reader.has_begun:
            self.began = self.active
        try:
            self._unread = reader.read(self._unread)
            if reader.is_complete:
                if self._unread:
                    self._pause()  # until the next request is parsed
                else:
                    self._resume()  # so that it is noted if the peer leaves
                self._serve()
            elif self.has_left:
                transport.close()
            else:
                if reader.wants_to_continue():
                    transport.write(_CONTINUE)
                self._resume()
        except Exception:
            log.exception("A connection is closed because serving it failed")
            self.abandon()

    def _refuse(self, refusal: Refusal) -> None:
        """Answer an incomplete request with a refusal."""
        self._reader.refuse(refusal)
        self._serve()

    def _serve(self) -> None:
        """Answer the request that was read, now or once its answer has been made."""
        port, reader = self._port, self._reader
        refusal = reader.refusal or port.closing
        self.state, self.began, self._request_id = State.ANSWERING, self.active, port.request_id()
        if refusal is not None and not reader.is_understood:
            self._send(refused(refusal))
            return
        query = reader.target.partition("?")[2]
        body = reader.take_body() if refusal is None else b""
        request = Request(
            self._request_id, reader.method, reader.target, query, reader.headers, body, refusal, self.remote, self,
            not port.is_full,
        )  # fmt: skip
        try:
            answer = port.app.answer(request)
        except Exception:
            log.exception("The application failed on request %s", self._request_id)
            answer = refused(FAILED)
        if isinstance(answer, Response):
            self._send(answer)
            return
        port.waiting.add(self)
        port.waiting_bytes += reader.size
        if not isinstance(answer, Later):
            task = asyncio.get_running_loop().create_task(answer)
            answer = Later(task, task.result)
        self._later = answer
        answer.awaited.add_done_callback(self._finish)

    def _finish(self, awaited: asyncio.Future[Any]) -> None:
        """Send the answer that has been made."""
        later, self._later, self._when_left = self._later, None, None
        self._port.waiting.discard(self)
        self._port.waiting_bytes -= self._reader.size
        if later is None or awaited.cancelled():  # the port has closed
            return
        try:
            response = later.make()
        except Exception:
            log.exception("The application failed on request %s", self._request_id)
            response = refused(FAILED)
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
        reader, port, transport, stream = self._reader, self._port, self.transport, response.stream
        assert transport is not None  # noqa: S101  # a request has come
        close = reader.is_last or port.leaving or stream is not None
        try:
            head = write_head(response, self._request_id, int(time.time()), reader.version, close=close)
        except ValueError:
            log.exception("The application failed on request %s", self._request_id)
            _release_stream(response)
            self._send(refused(FAILED))
            return
        if port.access_log is not None:
            self._log_access(port.access_log, response)
        self.state, self._has_served, self._was_refused = State.READING, True, response.code is not None
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
        if stream is not None:
            self.state, self._stream = State.STREAMING, _StreamSender(stream, self, transport, port)
        elif is_refused:  # the peer may still send, and is to read the refusal
            self.state, self.began = State.LINGERING, self.active
            if transport.can_write_eof():
                transport.write_eof()
        elif close:
            transport.close()
            return
        if not self._is_full:
            self._go_on()

    def _go_on(self) -> None:
        """Begin the next request, or throw away what comes behind the last one."""
        if self.state is not State.READING:
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

    def _log_access(self, access_log: AccessLog, response: Response) -> None:
        reader, seconds, labels = self._reader, time.monotonic() - self.began, dict(response.labels)
        access_log.write(
            {
                "time": rfc3339(time.time() - seconds),
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


def write_head(response: Response, request_id: str, now: int, version: str = "1.1", *, close: bool) -> bytes:
    """Return the head of an answer; `now` is Unix time.

    Raises `ValueError` for a header value that would break the answer or cannot be written.
    """
    length = None if response.status[:3] in _NO_LENGTH or response.stream is not None else len(response.body)
    head = _fields(response.status, response.headers, length, version, close)
    return b"%bX-Request-ID: %b\r\n%b\r\n" % (head, request_id.encode(), _date(now))


@lru_cache(maxsize=64)  # most answers are alike; one may have 64 KiB of headers, which came from its caller
def _fields(status: str, headers: Headers, length: int | None, version: str, close: bool) -> bytes:
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
    """The stream of a connection: its next piece leaves once the one before has."""

    def __init__(
        self, stream: ResponseStream, connection: Connection, transport: asyncio.Transport, port: "Port"
    ) -> None:
        self._stream = stream
        self._connection = connection
        self._transport = transport
        self._port = port
        self._is_due = False  # its turn comes
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
            if self._timer is None:  # else it comes earlier: the stream is asked then, and answers again
                self._timer = asyncio.get_running_loop().call_later(piece, self._wake_late)
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

    def _wake_late(self) -> None:
        self._timer = None
        self.wake()


class RequestReader:
    """Reads one request at a time; `begin` the next one once it `is_complete`. It is also once there is a `refusal`.

    `is_understood`: the head has been read, so that a refusal can be the endpoint's.

    Args:
        max_body_bytes: A larger body is refused as soon as that is known.
    """

    def __init__(self, max_body_bytes: int) -> None:
        self._limit = max_body_bytes
        self._llhttp = httptools.HttpRequestParser(self)
        self.begin()

    def begin(self) -> None:
        """Begin a request."""
        self.method = self.target = ""
        self.version = "1.1"
        self.headers: dict[str, str] = {}
        self.size = 0
        """Bytes of its body that have come."""
        self.refusal: Refusal | None = None
        self.is_complete = self.is_understood = self.is_last = False
        self._held = b""  # of a head that has not come to its end
        self._body = bytearray()
        self._expected = ""  # what Expect asks for

    @property
    def has_begun(self) -> bool:
        """Return whether a part of a request has come."""
        return bool(self._held) or self.is_understood

    def wants_to_continue(self) -> bool:
        """Return once whether the caller waits for 100 Continue before it sends its body (RFC 9110 section 10.1.1)."""
        expected, self._expected = self._expected, ""
        return self.is_understood and self.size == 0 and self.version == "1.1" and expected.lower() == "100-continue"

    def take_body(self) -> bytes:
        """Return the body, and hold it no longer."""
        body, self._body = self._body, bytearray()
        return bytes(body)

    def read(self, data: bytes) -> bytes:
        """Read up to the end of the request; return what is behind it."""
        try:
            if not self.is_understood:
                data = self._read_head(data)
            while data and not self.is_complete:
                data = self._read_chunked(data) if self._is_chunked else self._read_body(data)
        except httptools.HttpParserError as error:
            self.refuse(_invalid(str(error)))  # words of llhttp, never the caller's
        return data

    def _read_head(self, data: bytes) -> bytes:
        held = self._held + data if self._held else data.lstrip(b"\r\n")  # RFC 9112 section 2.2
        end = held.find(b"\r\n\r\n") + 4
        line = _LINE.match(held, 0, _HEAD_BYTES)
        if end == 3:
            self._held = held
            if len(held) >= _HEAD_BYTES:
                self.refuse(_HEAD_TOO_LARGE)
            elif b"\n\n" in held or (b"\n" in held and line is None):
                self.refuse(_invalid("its first line is not one of HTTP/1.1"))
            return b""
        self._held = b""
        if end > _HEAD_BYTES:
            self.refuse(_HEAD_TOO_LARGE)
        elif line is None:
            self.refuse(_invalid("its first line is not one of HTTP/1.1"))
        else:
            method, target, version = line.groups()
            self.method, self.target, self.version = method.decode(), target.decode("latin-1"), f"1.{version.decode()}"
            self._read_fields(b"POST / HTTP/1.%b\r\n" % version + held[line.end() : end])
        return held[end:]

    def _read_fields(self, head: bytes) -> None:
        """Read a head, whose request line is one that llhttp knows."""
        try:
            self._llhttp.feed_data(head)
        except httptools.HttpParserUpgrade:
            # It may be ignored (RFC 9110 section 7.8), but llhttp would read no body behind it.
            self._llhttp = httptools.HttpRequestParser(self)
            self.headers, self.is_complete, self.is_understood = {}, False, False
            self._read_fields(_UPGRADE.sub(b"\r\nIgnored-Upgrade", head))

    def _read_body(self, data: bytes) -> bytes:
        piece = data[: self._left]
        self._left -= len(piece)
        self._llhttp.feed_data(piece)
        return data[len(piece) :]

    def _read_chunked(self, data: bytes) -> bytes:
        """Read a part of a chunk, or of a line: the size of a chunk, its end, a trailer."""
        if self._left:
            self._lines = 0
            return self._read_body(data)
        piece = data[: data.find(b"\n") + 1 or len(data)]
        self._lines += len(piece)
        if self._at_size:
            self._line += piece
            if (size := _SIZE.match(self._line)) and size.end() > 16:  # 64 bits: llhttp would call it invalid
                self.refuse(too_large(self._limit))
        if self._lines > _LINE_BYTES:
            self.refuse(_CHUNK_LINE_TOO_LONG)
        if self.refusal is None:
            self._llhttp.feed_data(piece)
        return data[len(piece) :]

    def refuse(self, refusal: Refusal) -> None:
        """Read no further."""
        self.refusal = self.refusal or refusal
        self.is_complete = self.is_last = True
        self._body = bytearray()

    # What llhttp calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note a field."""
        if self.is_understood:  # a trailer
            return
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        known = self.headers.get(key)
        self.headers[key] = text if known is None else f"{known}, {text}"

    def on_headers_complete(self) -> None:
        """Check what was read of the head."""
        headers = self.headers
        coding, host = headers.get("transfer-encoding"), headers.get("host")
        self._left = int(headers.get("content-length", 0))  # bytes of the body, or of the chunk that is being read
        self._is_chunked = coding is not None
        if self._is_chunked:
            self._at_size = True  # a line that begins now has the size of a chunk
            self._line = b""  # such a line, as far as it has come
            self._lines = 0  # bytes of lines between chunks since there was content
        if not _IS_HOST.fullmatch("" if host is None else host) or (host is None and self.version == "1.1"):
            self.refuse(_invalid("HTTP/1.1 needs exactly one Host header, a host with or without a port"))
        elif not self.target.startswith("/") and not _IS_TARGET.fullmatch(self.target):
            self.refuse(_invalid("the request target holds a user name, or no address"))
        elif coding is not None and self.version == "1.0":
            self.refuse(_invalid("HTTP/1.0 has no Transfer-Encoding"))
        elif coding is not None and coding.lower() != "chunked":
            self.refuse(refuse(catalogue.NOT_IMPLEMENTED, "The Transfer-Encoding of the request is not supported"))
        else:
            self.is_understood, self._expected = True, headers.get("expect", "")
            if self._left > self._limit:
                self.refuse(too_large(self._limit))

    def on_chunk_header(self) -> None:
        """Note the size of a chunk, which counts before it has come."""
        match = _SIZE.match(self._line)
        self._left = int(match[0], 16) if match else 0
        self._at_size, self._line = False, b""
        if self.size + self._left > self._limit:
            self.refuse(too_large(self._limit))

    def on_chunk_complete(self) -> None:
        """Expect the size of the next chunk."""
        self._at_size = True

    def on_body(self, part: bytes) -> None:
        """Note a part of the body."""
        self.size += len(part)
        self._body += part

    def on_message_complete(self) -> None:
        """Note the end of the request."""
        if self.refusal is None:
            self.is_complete, self.is_last = True, not self._llhttp.should_keep_alive()


def _invalid(why: str) -> Refusal:
    return refuse(catalogue.INVALID_REQUEST, f"The request is not valid HTTP: {why}")

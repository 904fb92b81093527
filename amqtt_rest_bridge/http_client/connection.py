"""One connection to a server: a request out and its response in by a deadline; and the pool of those that are kept.

Client workers run it, one exchange at a time over each connection. http.client reads bodies here; heads are written by
`_head` and read by `FinalResponse`, stricter and in a fraction of its time. `DeadlineSocket` below bounds the time and
the bytes of an exchange as a whole: a socket's own timeout starts again with every byte, so a server that drips bytes
is never cut off by it. Knows nothing of proxies, redirects or repeating.
"""

import contextlib
import io
import re
import select
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import lru_cache
from http.client import BadStatusLine, HTTPException, HTTPResponse, IncompleteRead, RemoteDisconnected
from typing import IO, TYPE_CHECKING, Any, Final, cast

from msgspec import Struct

from amqtt_rest_bridge.http.content import ContentTooLargeError, MalformedResponseError, decode_content
from amqtt_rest_bridge.model import Pairs, values_of

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

LONGEST_HEAD: Final = 65_536
"""Bytes of a response's head, interim responses included."""
# Decision: shorter than the 60 s after which common load balancers and servers close an idle connection, so that a
# request rarely meets a connection that is just being closed.
LONGEST_IDLE: Final = 55.0  # seconds
_KEEP_ALIVE_TIMEOUT = re.compile(r"\btimeout\s*=\s*([0-9]{1,6})", re.IGNORECASE)
_CHUNK_OVERHEAD: Final = 8  # bytes on the wire for one of the body, when each has a chunk of its own
_SLACK = 0.01  # seconds that a socket's timeout may lie beyond the deadline, to save a system call for each read
_LATE_LOOK = 0.001  # seconds for a response that may have come while this process was stopped beyond the deadline
_JOINED = 65_536  # bytes of a request that go out in one write
_QUICK_ACK: int | None = getattr(socket, "TCP_QUICKACK", None)  # Linux has it

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_WITHOUT_BODY: Final = frozenset({204, 304})  # with any headers
_LONGEST_NUMBER: Final = 30  # digits of a Content-Length
_MOST_LINES: Final = 100  # of headers, http.client's bound
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_STATUS_LINE = re.compile(r"HTTP/1\.([0-9]) +([1-9][0-9]{2})((?: [^\n]*)?)\r?\n")


class HeadTooLargeError(Exception):
    """The head of a response is larger than `LONGEST_HEAD`."""


class NotHttpError(Exception):
    """What came is not an HTTP/1 response; `first_bytes` is its beginning."""

    def __init__(self, first_bytes: bytes) -> None:
        super().__init__("it does not begin with an HTTP/1 status line")
        self.first_bytes = first_bytes


class Phase(StrEnum):
    """How far an exchange had come when it ended."""

    SENDING = "sending the request"
    WAITING = "waiting for the response"
    HEAD = "reading the response's headers"
    BODY = "reading the response's body"


class Outgoing(Struct, frozen=True):
    """A request as it is sent, its deadline, a time of the clock, and how large its response may be."""

    deadline: float
    method: str
    target: str
    headers: Pairs
    body: bytes | None
    limit: int


class Received(Struct, frozen=True):
    """A response read to its end; `reusable`: its connection may carry another request."""

    status: int
    reason: str
    headers: Pairs
    body: bytes
    reusable: bool
    keep_alive_seconds: int | None


def exchange(wire: "DeadlineSocket", outgoing: Outgoing) -> Received:
    """Send a request and read its response, its content coding undone.

    The connection must have been started; when this raises, it holds how far the exchange had come.

    Raises:
        TimeoutError: the deadline passed.
        OSError: the connection broke or was closed; `ssl.SSLError` among them.
        HTTPException, NotHttpError, MalformedResponseError: it is not a complete response.
        HeadTooLargeError, ContentTooLargeError: head or body is larger than allowed.
        ValueError: target or headers hold what would change the shape of the request.
    """
    response, limit = answered(wire, outgoing), outgoing.limit
    wire.room = wire.received + LONGEST_HEAD + limit * _CHUNK_OVERHEAD
    named = response.named
    content = read_body(response, limit)
    if "content-encoding" in named:
        content = decode_content(content, named["content-encoding"], limit)
    keep_alive = _KEEP_ALIVE_TIMEOUT.search(named.get("keep-alive", ""))
    return Received(
        response.status,
        response.reason,
        response.fields,
        content,
        wire.kept and wire.is_clean(),
        None if keep_alive is None else int(keep_alive[1]),
    )


def answered(wire: "DeadlineSocket", outgoing: Outgoing) -> "FinalResponse":
    """Send a request and read the head of its response; raises as `exchange`."""
    wire.sendall(_head(outgoing))
    if outgoing.body:
        wire.sendall(outgoing.body)
    try:
        # It has what http.client uses of a socket.
        response = FinalResponse(cast(socket.socket, wire), method=outgoing.method)
        response.begin()
    except (ConnectionError, HTTPException):
        if wire.cut_off is not None:
            raise wire.cut_off from None
        raise
    if response.will_close:
        wire.close()
    return response


def _head(outgoing: Outgoing) -> bytes:
    """Return the head of a request with exactly its headers, in UTF-8.

    http.client, with searches of its own in each name and value, takes 23 us for 5 headers where this takes 2.
    """
    start = f"{outgoing.method} {outgoing.target} HTTP/1.1"
    if not (start.isascii() and start.isprintable()) or start.count(" ") != 2:
        raise ValueError("Invalid method or target: it holds spaces, control or other characters than ASCII")
    lines = [start, *(f"{_named(name)}: {value}" for name, value in outgoing.headers), "", ""]
    head = "\r\n".join(lines)
    if head.count("\n") >= len(lines) or head.count("\r") >= len(lines):
        raise ValueError("Invalid header value: it holds a line break")
    return head.encode()


@lru_cache(maxsize=256)
def _named(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError("Invalid header name")
    return name


def phase_of(wire: "DeadlineSocket") -> Phase:
    """Return how far an exchange has come."""
    if not wire.flushed:
        return Phase.SENDING
    if not wire.received:
        return Phase.WAITING
    return Phase.HEAD if wire.room == LONGEST_HEAD else Phase.BODY


class Pool:
    """The idle connections to one server, the one used last on top; never more than there are callers at once."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._idle: list[DeadlineSocket] = []
        self._lock = threading.Lock()
        self._closed = False

    def take(self) -> "DeadlineSocket | None":
        """Return a connection that can be used, None without one; those that cannot be used are closed.

        A connection that its server has closed is found here, before anything is sent (RFC 9112 section 9.6).
        """
        now = self._clock()
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.idle_until > now and connection.is_quiet():
                return connection
            connection.release()

    def exchange(self, connection: "DeadlineSocket", outgoing: Outgoing) -> Received:
        """Send a request and read its response by its deadline, see `exchange`; keep the connection, or close it."""
        keep = False
        connection.start(outgoing.deadline)
        try:
            received = exchange(connection, outgoing)
            keep = received.reusable
        finally:
            if not keep:
                connection.release()
        if keep:
            self.put(connection, received.keep_alive_seconds)
        return received

    def put(self, connection: "DeadlineSocket", keep_alive_seconds: int | None) -> None:
        """Return a connection that may carry another request to the pool; close those that have been idle for too long.

        `keep_alive_seconds` is the server's own idle timeout, where it sends one. A connection is closed one second
        before that, or at half of it when that is later: the server may be closing it already.
        """
        now = self._clock()
        idle = LONGEST_IDLE
        if keep_alive_seconds is not None:
            idle = min(idle, max(keep_alive_seconds - 1.0, keep_alive_seconds / 2))
        connection.idle_until = now + idle
        with self._lock:
            self._idle.append(connection)
            oldest = self._idle[0]
            is_expired = self._closed or oldest.idle_until <= now
            if is_expired:
                del self._idle[0]
        if is_expired:
            oldest.release()

    def expire(self) -> None:
        """Close what has been idle for too long: no later request may come that would do so."""
        now = self._clock()
        with self._lock:
            expired = [old for old in self._idle if old.idle_until <= now]
            if expired:
                self._idle = [connection for connection in self._idle if connection.idle_until > now]
        for old in expired:
            old.release()

    def close(self) -> None:
        """Close what is idle now, and everything that is put back later."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.release()


# The response.


class FinalResponse(HTTPResponse):
    """http.client's response, with its head read here.

    Interim responses (RFC 9110 section 15.2) are passed over; http.client skips only 100.
    """

    fields: Pairs
    named: Mapping[str, str]
    """The fields by lower-case name; of a name that comes twice the last."""

    # http.client's `close` and `flush` expect a file that is there and open. From Python 3.13 on, failures of the
    # `close` that happens when a response is collected are reported.
    fp: Any = None  # the request may fail before there is one

    def __init__(self, sock: socket.socket, debuglevel: int = 0, method: str | None = None) -> None:
        super().__init__(sock, debuglevel, method)
        self._opens_tunnel = method == "CONNECT"

    def flush(self) -> None:
        """No-op: the connection, which owns the file, may have been closed before."""

    def begin(self) -> None:
        """Read the head of the final response."""
        status = 100
        while 100 <= status < 200:
            minor, status, reason = _status(self.fp)
            self.fields = _fields(self.fp)
            if status == 101:
                raise MalformedResponseError("it switches to a protocol that was not asked for")
        self.named = {name.lower(): value for name, value in self.fields}
        self.status, self.reason, self.version = status, reason, 10 if minor == 0 else 11
        self._frame()
        options = ",".join(self._all("connection")).lower()
        closes = "close" in options or (minor == 0 and "keep-alive" not in options)  # RFC 9112 section 9.3
        self.will_close = closes or self._end_is_uncertain()

    def _frame(self) -> None:
        """Determine where the body ends (RFC 9112 section 6.3)."""
        self.chunked, self.chunk_left, self.length = False, None, None
        if self.status in _WITHOUT_BODY or (self._opens_tunnel and 200 <= self.status < 300):
            self.length = 0
        elif "transfer-encoding" in self.named:
            if "content-length" in self.named:  # a proxy on the way may have seen another end of it, section 6.3
                raise MalformedResponseError("it has both a Content-Length and a Transfer-Encoding")
            if {value.lower() for value in self._all("transfer-encoding")} != {"chunked"}:
                raise MalformedResponseError("its Transfer-Encoding is not chunked")
            self.chunked = True
        elif "content-length" in self.named:
            lengths = set(self._all("content-length"))
            if len(lengths) > 1:
                raise MalformedResponseError("it has two different Content-Lengths")
            text = lengths.pop()
            if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER):
                raise MalformedResponseError("its Content-Length is not a number")
            self.length = int(text)

    def _end_is_uncertain(self) -> bool:
        """Return whether more may come, a body that should not be there and would be taken for the next response."""
        if self.status == 204:
            return "transfer-encoding" in self.named or self.named.get("content-length", "0") != "0"
        if self.status == 304:  # its Content-Length is that of the response it replaces
            return "transfer-encoding" in self.named
        return not self.chunked and self.length is None

    def _all(self, wanted: str) -> list[str]:
        if len(self.named) == len(self.fields):  # nearly always, no name comes twice
            return [self.named[wanted]] if wanted in self.named else []
        return values_of(self.fields, wanted)


def _status(file: IO[bytes]) -> tuple[int, int, str]:
    """Read a status line: minor version, status and reason."""
    line = file.readline()
    if not line:
        raise RemoteDisconnected("")
    match = _STATUS_LINE.fullmatch(line.decode("latin-1"))
    if match is None:
        raise BadStatusLine("")
    return int(match[1]), int(match[2]), _text(match[3])


def _fields(file: IO[bytes]) -> Pairs:
    """Read header lines up to the empty one; a line that begins with a space continues the one before (a fold)."""
    fields: list[tuple[str, str]] = []
    name, value, count = "", "", 0
    while (line := file.readline()) not in (b"\r\n", b"\n"):
        count += 1
        if count > _MOST_LINES:
            raise HeadTooLargeError
        if not line.endswith(b"\n"):
            raise IncompleteRead(b"")
        text = line.decode("latin-1").rstrip(" \t\r\n")
        if line[0] in b" \t" and name:
            value += " " + text.strip(" \t")
            continue
        if name:
            fields.append((name, _text(value)))
        name, colon, value = text.partition(":")
        name = name.rstrip(" \t")
        if not colon or not _NAME.fullmatch(name):
            raise MalformedResponseError("one of its header lines has no name that HTTP allows")
    if name:
        fields.append((name, _text(value)))
    return tuple(fields)


def read_body(response: FinalResponse, limit: int) -> bytes:
    """Read a body of `limit` bytes at most."""
    length = response.length
    if response.chunked:
        try:
            content = response.read(limit + 1)
        except ValueError as error:  # http.client takes a negative chunk size for a number of bytes to read
            raise MalformedResponseError("one of its chunks has a negative size") from error
    elif length is not None and length > limit:
        raise ContentTooLargeError
    else:
        content = response.read(limit + 1) if length is None else response.read()
    if len(content) > limit:
        raise ContentTooLargeError
    return content


def _text(value: str) -> str:
    """Return a header as text: as UTF-8 if it is, control characters as spaces (RFC 9110 section 5.5)."""
    if not value.isascii():
        with contextlib.suppress(UnicodeError):  # bytes that are neither ASCII nor UTF-8 stay latin-1
            value = value.encode("latin-1").decode()
    if not value.isprintable():
        value = _CONTROL.sub(" ", value)
    return value.strip()


# The socket below it.


class DeadlineSocket:
    """A connection, plain or TLS, with bounds for one exchange at a time; http.client takes it for a socket.

    `sent`: part of the request has gone out; `flushed`: all of it has; `received`: bytes of the response so far;
    `kept`: the connection may be used again, as far as the socket can see, until `idle_until`, a time of the clock.
    """

    __slots__ = (
        "_clock", "_deadline", "_ended", "_parts", "_pending", "_poller", "_reader", "_sock", "_timeout",
        "cut_off", "flushed", "idle_until", "kept", "received", "room", "sent",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, clock: Callable[[], float], deadline: float = 0.0) -> None:
        self._sock = sock
        self._clock = clock
        self._timeout = -1.0
        self.idle_until = 0.0
        self._reader = _ResponseFile(_RawBytes(self), 16_384)
        self._poller = select.poll()
        self._poller.register(sock, select.POLLIN)
        self._pending: Callable[[], int] | None = sock.pending if isinstance(sock, ssl.SSLSocket) else None
        self.start(deadline)

    def start(self, deadline: float) -> None:
        """Begin an exchange that must be over at `deadline`, a time of the clock."""
        self._deadline = deadline
        self._parts: list[bytes] = []
        self._ended = False
        self.sent = False
        self.flushed = False
        self.received = 0
        self.room = LONGEST_HEAD
        self.cut_off: ConnectionError | None = None
        self.kept = True

    def is_clean(self) -> bool:
        """Return, after an exchange, whether nothing follows the response, which would be taken for the next one."""
        self._ended = True
        return not self._reader.peek(1)

    def is_quiet(self) -> bool:
        """Return whether an idle connection can be used: it is open, and no bytes came without a request."""
        return not self._poller.poll(0) and not (self._pending is not None and self._pending())

    def release(self) -> None:
        """Close the real socket, in any state."""
        with contextlib.suppress(OSError):
            self._sock.close()

    # What http.client calls.

    def sendall(self, data: bytes) -> None:
        """Buffer a part of the request; head and body are sent together when the response is read."""
        self._parts.append(data)

    def makefile(self, _mode: str) -> "_ResponseFile":
        """Send the request and return the file that the response is read from."""
        if self._parts:
            parts, self._parts = self._parts, []
            self._flush(parts)
        return self._reader

    def close(self) -> None:
        """Mark the connection as used up: the response ends with it, its body has still to be read."""
        self.kept = False

    def _flush(self, parts: list[bytes]) -> None:
        if sum(map(len, parts)) <= _JOINED:
            parts = [b"".join(parts)]
        self._limit()
        try:
            count = self._sock.send(parts[0])
        except OSError:
            # A TLS server refuses a client certificate only after our handshake: its alert says why it hung up.
            if isinstance(self._sock, ssl.SSLSocket):
                self._limit()
                self._sock.recv(1)  # raises ssl.SSLError with the server's alert
            raise
        self.sent = True
        try:
            for rest in (parts[0][count:], *parts[1:]):
                if rest:
                    self._limit()
                    self._sock.sendall(rest)
        except ConnectionError as error:
            # A server may refuse a body before it has it all; its response is worth reading.
            self.cut_off = error
            self.kept = False
        self.flushed = True

    def receive_into(self, buffer: "WriteableBuffer") -> int:
        """Wait for bytes until the deadline; 0 at the end of the stream."""
        if self._ended:
            return 0
        self._limit(0.0 if self.received else _LATE_LOOK)
        if self.received and _QUICK_ACK is not None:
            # What has come is acknowledged at once, where the system can. Many small servers send head and body apart,
            # and wait with the second for the acknowledgement of the first, which the system would delay by 40 ms
            # (Nagle's algorithm, RFC 9293 section 3.7.4, meets delayed ones).
            with contextlib.suppress(OSError):
                self._sock.setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)
        count = self._sock.recv_into(buffer)
        if not self.received and count:
            first = bytes(memoryview(buffer)[: min(count, 8)])
            if not b"HTTP/1.".startswith(first[:7]):
                raise NotHttpError(first)  # at once, because such a server may wait for us until the deadline
        self.received += count
        if self.received > self.room:
            raise HeadTooLargeError
        return count

    def _limit(self, least: float = 0.0) -> None:
        remaining = max(self._deadline - self._clock(), least)
        if remaining <= 0:
            raise TimeoutError
        # settimeout is a system call. The usual exchange needs none, because the one before it left the same timeout.
        if not remaining <= self._timeout <= remaining + _SLACK:
            self._sock.settimeout(remaining)
            self._timeout = remaining


class _RawBytes(io.RawIOBase):
    """The receiving side of a `DeadlineSocket`, for a buffered reader."""

    def __init__(self, source: DeadlineSocket) -> None:
        self.readinto = source.receive_into  # type: ignore[method-assign]

    def readable(self) -> bool:
        return True


class _ResponseFile(io.BufferedReader):
    """Stays open between responses, since it may have read ahead."""

    def close(self) -> None:
        """No-op: http.client closes the file at the end of each response."""

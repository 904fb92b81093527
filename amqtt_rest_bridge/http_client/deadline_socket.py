"""A socket with a deadline, as http.client sees it. Client workers use it, one at a time.

A socket's own timeout starts again with every byte, so a server that drips bytes is never cut off by it, and
http.client has no bound on the bytes it takes. Both bounds are set here, below it, so that they hold for all it reads.
"""

import contextlib
import io
import select
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

LONGEST_HEAD = 65_536  # bytes of a response's head, interim responses included
_SLACK = 0.01  # seconds that a socket's timeout may lie beyond the deadline, to save a system call for each read
_JOINED = 65_536  # bytes of a request that go out in one write
_QUICK_ACK: int | None = getattr(socket, "TCP_QUICKACK", None)  # Linux has it


class HeadTooLargeError(Exception):
    """The head of a response is larger than `LONGEST_HEAD`."""


class NotHttpError(Exception):
    """What came is not an HTTP/1 response; `first_bytes` is its beginning."""

    def __init__(self, first_bytes: bytes) -> None:
        super().__init__("it does not begin with an HTTP/1 status line")
        self.first_bytes = first_bytes


class DeadlineSocket:
    """What http.client takes for its socket: a connected one, plain or TLS, with bounds for one exchange at a time.

    `sent`: part of the request has gone out; `flushed`: all of it has; `received`: bytes of the response so far;
    `kept`: the connection may be used again, as far as the socket can see.
    """

    __slots__ = (
        "_clock", "_deadline", "_ended", "_parts", "_pending", "_poller", "_reader", "_sock", "_timeout",
        "cut_off", "flushed", "kept", "received", "room", "sent",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, clock: Callable[[], float], deadline: float = 0.0) -> None:
        self._sock = sock
        self._clock = clock
        self._timeout = -1.0
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
        self._limit()
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

    def _limit(self) -> None:
        remaining = self._deadline - self._clock()
        if remaining <= 0:
            raise TimeoutError
        # settimeout is a system call. The usual exchange needs none, because the one before it left the same timeout.
        if not remaining <= self._timeout <= remaining + _SLACK:
            self._sock.settimeout(remaining)
            self._timeout = remaining


class _RawBytes(io.RawIOBase):
    """The receiving side of a `DeadlineSocket`, for a buffered reader."""

    def __init__(self, source: DeadlineSocket) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        return self._source.receive_into(buffer)


class _ResponseFile(io.BufferedReader):
    """Stays open between responses, since it may have read ahead."""

    def close(self) -> None:
        """No-op: http.client closes the file at the end of each response."""

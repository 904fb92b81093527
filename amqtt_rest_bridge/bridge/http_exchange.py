# LEAD TO SENDER: read tests/bridge/test_http_sender_note_from_lead.py before you go on: this must be urllib3.
"""One request and its response over a socket, every read bounded by one deadline and one size.

Runs on client workers; a connection belongs to one worker at a time. Knows nothing of routes, proxies or retries.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from amqtt_rest_bridge.bridge import http_wire
from amqtt_rest_bridge.bridge.http_connection import Connection
from amqtt_rest_bridge.bridge.http_wire import BodyTooLarge, Head, MalformedResponse

_READ = 65_536  # bytes asked of a socket at once
_LONGEST_LINE = 4_096  # bytes of a chunk's size line or a trailer line
_JOINED = 65_536  # a body up to this size goes out in one write with its head


class Phase(StrEnum):
    """How far an exchange had come when it ended."""

    CONNECTING = "connecting"
    SENDING = "sending the request"
    WAITING = "waiting for the response"
    HEAD = "reading the response's headers"
    BODY = "reading the response's body"


class ConnectionClosed(Exception):  # noqa: N818  # what the server did
    """The server closed the connection before the response was complete."""


@dataclass(slots=True)
class Progress:
    """How far an exchange has come; `first_bytes` is what the server said first, to explain a malformed response."""

    phase: Phase = Phase.SENDING
    sent: bool = False
    first_bytes: bytes = b""


class Inbound:
    """What comes in on a connection until a deadline, taken out in the pieces that the protocol has."""

    __slots__ = ("_clock", "_connection", "_deadline", "_progress", "_reads", "data")

    def __init__(
        self, connection: Connection, deadline: float, clock: Callable[[], float], progress: Progress
    ) -> None:
        self._connection = connection
        self._deadline = deadline
        self._clock = clock
        self._progress = progress
        self._reads = 0
        self.data = b""  # received and not yet taken

    def remaining(self) -> float:
        """Give the seconds until the deadline."""
        return self._deadline - self._clock()

    def receive(self) -> bytes:
        """Wait for more bytes; empty at the end of the stream.

        Raises:
            TimeoutError: the deadline has passed.
        """
        connection = self._connection
        connection.limit(self.remaining())
        self._reads += 1
        if self._reads == 2:
            connection.acknowledge()
        return connection.sock.recv(_READ)

    def head(self) -> Head:
        """Take the head of the final response; interim responses are passed over (RFC 9110 section 15.2)."""
        total = 0
        while True:
            raw = self._raw_head(http_wire.LONGEST_HEAD - total)
            total += len(raw)
            head = http_wire.read_head(raw)
            if head.status >= 200:
                return head
            if head.status == 101:
                raise MalformedResponse("it switches to a protocol that nobody asked for")

    def _raw_head(self, room: int) -> bytes:
        searched = 0
        while (end := http_wire.end_of_head(self.data, searched)) < 0:
            searched = len(self.data)
            if searched > room:
                raise BodyTooLarge
            more = self.receive()
            if not more:
                raise ConnectionClosed
            if self._progress.phase is Phase.WAITING:
                self._progress.phase = Phase.HEAD
                self._progress.first_bytes = more[:64]
                more = more.lstrip(b"\r\n")  # RFC 9112 section 2.2: empty lines before a message are ignored
            self.data = self.data + more if self.data else more
            # Something that will never be a head is told from one at once, not when the deadline passes.
            if not b"HTTP/".startswith(self.data[:5]):
                raise MalformedResponse("it does not begin with an HTTP/1 status line")
        if end > room:
            raise BodyTooLarge
        raw, self.data = self.data[:end], self.data[end:]
        return raw

    def exactly(self, count: int) -> bytes:
        """Take `count` bytes."""
        data = self.data
        if len(data) < count:
            parts, missing = [data], count - len(data)
            while missing > 0:
                more = self.receive()
                if not more:
                    raise ConnectionClosed
                parts.append(more)
                missing -= len(more)
            data = b"".join(parts)
        taken, self.data = data[:count], data[count:]
        return taken

    def line(self) -> bytes:
        """Take a line, without its end."""
        while (end := self.data.find(b"\n")) < 0:
            if len(self.data) > _LONGEST_LINE:
                raise MalformedResponse("a line of its chunked body is endless")
            more = self.receive()
            if not more:
                raise ConnectionClosed
            self.data += more
        taken, self.data = self.data[:end], self.data[end + 1 :]
        return taken.removesuffix(b"\r")

    def rest(self, limit: int) -> bytes:
        """Take everything up to the end of the stream."""
        parts, size = [self.data], len(self.data)
        while size <= limit and (more := self.receive()):
            parts.append(more)
            size += len(more)
        if size > limit:
            raise BodyTooLarge
        self.data = b""
        return b"".join(parts)

    def chunks(self, limit: int) -> bytes:
        """Take a chunked body with its trailer section, which is dropped (RFC 9112 section 7.1)."""
        parts: list[bytes] = []
        room = limit
        while size := http_wire.chunk_size(self.line()):
            if size > room:
                raise BodyTooLarge
            room -= size
            parts.append(self.exactly(size))
            if self.line():
                raise MalformedResponse("a chunk of its body is longer than it says")
        lines = 0
        while self.line():
            lines += 1
            if lines > http_wire.MOST_HEADERS:
                raise MalformedResponse("its trailer section is endless")
        return b"".join(parts)


def exchange(
    connection: Connection,
    head: bytes,
    body: bytes | None,
    *,
    deadline: float,
    limit: int,
    clock: Callable[[], float],
    progress: Progress,
) -> tuple[Head, bytes, bool]:
    """Send a request and read its response: head, body with its content coding undone, may the connection be kept.

    `progress` tells how far it came when this raises.

    Raises:
        TimeoutError: the deadline passed.
        OSError: the connection broke; `ssl.SSLError` among them.
        ConnectionClosed, MalformedResponse: the server's doing.
        BodyTooLarge: head or body are larger than allowed (`progress.phase` tells which).
    """
    inbound = Inbound(connection, deadline, clock, progress)
    cut_off = _send(inbound, connection, head, body, progress)
    progress.phase = Phase.WAITING
    try:
        response = inbound.head()
    except (ConnectionError, ConnectionClosed):
        if cut_off is not None:
            raise cut_off from None
        raise
    progress.phase = Phase.BODY
    content, delimited = _read_body(inbound, response, limit)
    codings = response.fields.get("content-encoding")
    if codings is not None:
        content = http_wire.decode_content(content, codings, limit)
    # Bytes behind the response belong to no request: a later response could not be told from them.
    reusable = delimited and cut_off is None and not inbound.data and response.is_persistent
    return response, content, reusable


def _send(
    inbound: Inbound, connection: Connection, head: bytes, body: bytes | None, progress: Progress
) -> ConnectionError | None:
    """Send the request; give the error that cut it off, because a server may refuse a body before it has it all."""
    if body and len(body) <= _JOINED:
        head, body = head + body, None
    connection.limit(inbound.remaining())
    count = connection.sock.send(head)
    progress.sent = True
    try:
        for rest in (memoryview(head)[count:], body):
            if rest:
                connection.limit(inbound.remaining())
                connection.sock.sendall(rest)
    except ConnectionError as error:
        return error
    return None


def _read_body(inbound: Inbound, head: Head, limit: int) -> tuple[bytes, bool]:
    """Read the body; tell also whether it had an end other than the connection's (RFC 9112 section 6.3)."""
    if not head.has_body:
        return b"", True
    if head.is_chunked:
        return inbound.chunks(limit), True
    length = head.content_length
    if length is None:
        return inbound.rest(limit), False
    if length > limit:
        raise BodyTooLarge
    return inbound.exactly(length), True

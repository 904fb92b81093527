"""Connections to one server: one request and its response over each at a time, and the pool of those that are kept.

http.client does HTTP here, on a socket with a deadline; `response` reads what it returns. Client workers run it. Knows
nothing of proxies, redirects or repeating.
"""

import re
import socket
import threading
from collections.abc import Callable, Iterable
from enum import StrEnum
from http.client import HTTPConnection, HTTPException
from typing import Final, NamedTuple, cast

from amqtt_rest_bridge.http_client.deadline_socket import LONGEST_HEAD, DeadlineSocket
from amqtt_rest_bridge.http_client.response import FinalResponse, Headers, decode_content, read_body

# Decision: shorter than the 60 s after which common load balancers and servers close an idle connection, so that a
# request rarely meets a connection that is just being closed.
LONGEST_IDLE: Final = 55.0  # seconds
_KEEP_ALIVE_TIMEOUT = re.compile(r"\btimeout\s*=\s*([0-9]{1,6})", re.IGNORECASE)
_CHUNK_OVERHEAD: Final = 8  # bytes on the wire for one of the body, when each has a chunk of its own


class Phase(StrEnum):
    """How far an exchange had come when it ended."""

    SENDING = "sending the request"
    WAITING = "waiting for the response"
    HEAD = "reading the response's headers"
    BODY = "reading the response's body"


class Received(NamedTuple):
    """A response read to its end; `reusable`: its connection may carry another request."""

    status: int
    reason: str
    headers: Headers
    body: bytes
    reusable: bool
    keep_alive_seconds: int | None


class Connection:
    """An HTTP connection with the socket below it, and the time of the clock until which it may be used again."""

    __slots__ = ("http", "idle_until", "wire")

    def __init__(self, http: HTTPConnection, wire: DeadlineSocket) -> None:
        self.http = http
        self.wire = wire
        self.idle_until = 0.0


def connect(http: HTTPConnection, wire: DeadlineSocket) -> Connection:
    """Attach a connected socket to an HTTP connection."""
    http.response_class = FinalResponse
    http.sock = cast(socket.socket, wire)  # it has what http.client uses of a socket
    return Connection(http, wire)


def exchange(
    connection: Connection, method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes | None, limit: int
) -> Received:
    """Send a request and read its response, its content coding undone.

    The connection's wire must have been started; when this raises, it holds how far the exchange had come.

    Raises:
        TimeoutError: the deadline passed.
        OSError: the connection broke or was closed; `ssl.SSLError` among them.
        HTTPException, NotHttpError, MalformedResponseError: it is not a complete response.
        HeadTooLargeError, ContentTooLargeError: head or body is larger than allowed.
        ValueError: target or headers hold what would change the shape of the request.
    """
    http, wire = connection.http, connection.wire
    _send(http, method, target, headers, body)
    try:
        response = cast(FinalResponse, HTTPConnection.getresponse(http))
    except (ConnectionError, HTTPException):
        if wire.cut_off is not None:
            raise wire.cut_off from None
        raise
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


def _send(
    http: HTTPConnection, method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes | None
) -> None:
    """Send a request with exactly these headers."""
    http.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
    # Not urllib3's own putheader and getresponse: the one looks for a marker that is never there in each value, the
    # other wraps the response in objects that are not needed here; together they cost 40 us a call.
    put = HTTPConnection.putheader
    for name, value in headers:
        # http.client writes latin-1: this way round, UTF-8 goes out.
        put(http, name, value if value.isascii() else value.encode().decode("latin-1"))
    http.endheaders(body)


def phase_of(wire: DeadlineSocket) -> Phase:
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
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self._closed = False

    def take(self) -> Connection | None:
        """Return a connection that can be used, None without one; those that cannot be used are closed.

        A connection that its server has closed is found here, before anything is sent (RFC 9112 section 9.6).
        """
        now = self._clock()
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.idle_until > now and connection.wire.is_quiet():
                return connection
            connection.wire.release()

    def put(self, connection: Connection, keep_alive_seconds: int | None) -> None:
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
            expired = [old for old in self._idle[:1] if self._closed or old.idle_until <= now]
            del self._idle[: len(expired)]
        for old in expired:
            old.wire.release()

    def expire(self) -> None:
        """Close what has been idle for too long: no later request may come that would do so."""
        now = self._clock()
        with self._lock:
            expired = [old for old in self._idle if old.idle_until <= now]
            if expired:
                self._idle = [connection for connection in self._idle if connection.idle_until > now]
        for old in expired:
            old.wire.release()

    def close(self) -> None:
        """Close what is idle now, and everything that is put back later."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.wire.release()

"""Connections that are kept between requests, and the pool that keeps them. Client workers use it, several at once."""

import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Callable

# Decision: shorter than the 60 s after which common load balancers and servers close an idle connection, so that a
# request rarely meets a connection that is just being closed.
LONGEST_IDLE = 55.0  # seconds
_SLACK = 0.01  # seconds that a socket's timeout may lie beyond the deadline, to save a system call per read
_QUICK_ACK: int | None = getattr(socket, "TCP_QUICKACK", None)  # Linux has it


class Connection:
    """A connected socket, plain or TLS, with what is needed to use it again."""

    __slots__ = ("_pending", "_poller", "_timeout", "idle_until", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.idle_until = 0.0  # not to be used again after this time of the clock
        self._timeout = -1.0
        self._poller = select.poll()
        self._poller.register(sock, select.POLLIN)
        self._pending: Callable[[], int] | None = sock.pending if isinstance(sock, ssl.SSLSocket) else None

    def is_quiet(self) -> bool:
        """Tell that an idle connection can be used: not closed, and nothing came that nobody asked for."""
        return not self._poller.poll(0) and not (self._pending is not None and self._pending())

    def limit(self, remaining: float) -> None:
        """Let no operation on the socket last longer than `remaining` seconds.

        Raises:
            TimeoutError: no time remains.
        """
        if remaining <= 0:
            raise TimeoutError
        # settimeout is a system call: the usual exchange needs none, because the last one set the same.
        if not remaining <= self._timeout <= remaining + _SLACK:
            self.sock.settimeout(remaining)
            self._timeout = remaining

    def acknowledge(self) -> None:
        """Acknowledge at once what has come, where the system can.

        Many small servers send head and body apart and wait with the second for the acknowledgement of the first, which
        the system would delay by 40 ms (Nagle's algorithm, RFC 9293 section 3.7.4, meets the delayed acknowledgement).
        """
        if _QUICK_ACK is not None:
            with contextlib.suppress(OSError):
                self.sock.setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)

    def close(self) -> None:
        """Close the socket, whatever state it is in."""
        with contextlib.suppress(OSError):
            self.sock.close()


class Pool:
    """The idle connections to one server, the one used last on top; never more than there are callers at once."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self._closed = False

    def take(self) -> Connection | None:
        """Take a connection that can be used, None when there is none; the others found on the way are closed.

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
            connection.close()

    def give(self, connection: Connection, keep_alive_seconds: int | None) -> None:
        """Put a connection back that may carry another request; what has been idle for too long is closed.

        `keep_alive_seconds` is the server's Keep-Alive timeout. A connection is given up one second before it ends, or
        at half of it when that is less, rather than raced for.
        """
        now = self._clock()
        idle = LONGEST_IDLE
        if keep_alive_seconds is not None:
            idle = min(idle, max(keep_alive_seconds - 1.0, keep_alive_seconds / 2))
        connection.idle_until = now + idle
        expired: list[Connection] = []
        with self._lock:
            if self._closed:
                expired.append(connection)
            else:
                self._idle.append(connection)
                while self._idle[0].idle_until <= now:
                    expired.append(self._idle.pop(0))
        for old in expired:
            old.close()

    def close(self) -> None:
        """Close what is idle now, and everything that is given back later."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

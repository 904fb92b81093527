"""One attempt of a request on one handle of libcurl, and what libcurl does not know of the connections it keeps.

libcurl checks a kept connection once a second. When a kept connection dies, it repeats the request over a new one,
whatever the method. So each kept connection is checked here just before its request leaves, and the repetition is
stopped.
"""

import re
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, NamedTuple

import pycurl

from amqtt_rest_bridge.http import failures
from amqtt_rest_bridge.http.content import ContentTooLargeError, MalformedResponseError, decode_content
from amqtt_rest_bridge.http.failures import Ended, Phase
from amqtt_rest_bridge.http.head import CutHeadError, Head, HeadTooLargeError, read_head
from amqtt_rest_bridge.http.tls import Settings
from amqtt_rest_bridge.lot.model import HttpRequest, values_of

# Shorter than the 60 s after which common load balancers and servers close an idle connection, so that a request rarely
# meets a connection that is just being closed.
LONGEST_IDLE: Final = 55.0
"""Seconds that an idle connection is kept."""
_LARGE: Final = 65_536  # a handle with a request body of so many bytes is not kept
_KEEP_ALIVE_TIMEOUT: Final = re.compile(r"\btimeout\s*=\s*([0-9]{1,6})", re.IGNORECASE)
# Headers that libcurl would add by itself. A line without a value prevents it; a line that comes before it counts.
_UNASKED: Final = [b"Expect:", b"Accept:", b"User-Agent:", b"Content-Type:"]
_SUPPRESS_CONNECT_HEADERS: Final = 265  # pycurl does not name it
_ALWAYS: Final = (
    (pycurl.NOSIGNAL, 1),
    (pycurl.TCP_KEEPALIVE, 1),
    (pycurl.PATH_AS_IS, 1),
    (pycurl.HTTP09_ALLOWED, 1),  # what is not HTTP comes as a body without a head, by which it is recognised
    (pycurl.DNS_CACHE_TIMEOUT, 0),  # a name that has moved is looked up for the next connection
    (pycurl.HTTP_CONTENT_DECODING, 0),  # libcurl fails with a coding that it does not know; here such a body stays
    (pycurl.MAXAGE_CONN, int(LONGEST_IDLE)),
    (_SUPPRESS_CONNECT_HEADERS, 1),
    (pycurl.HEADEROPT, pycurl.HEADER_SEPARATE),
)
STALE: Final = Ended(0, "the kept connection was closed", Phase.CONNECTING, tls=False)
"""How an attempt ends if the kept connection cannot be used: nothing was sent."""


class ClosedBeforeError(Exception):
    """A server has closed a kept connection and may have seen the request; nothing of a response came."""


class Received(NamedTuple):
    """A response read to its end, its content coding undone."""

    head: Head
    body: bytes


@dataclass(slots=True)
class _Connection:
    """A connection of libcurl: its descriptor, until when it may be used again, and what tells whether bytes came."""

    descriptor: int
    until: float = inf
    poller: select.poll = field(default_factory=select.poll)


class KeptConnections:
    """Whether the kept connections of a client may be used: are they open, quiet and not too old.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: dict[int, _Connection] = {}  # by local port; some may be closed by libcurl

    def opened(self, port: int, descriptors: list[int]) -> None:
        """Note a new connection: the one of these sockets that has this local port."""
        self._known = {known: one for known, one in self._known.items() if one.descriptor not in descriptors}
        for descriptor in descriptors:
            if _local_port(descriptor) == port:
                self._known[port] = connection = _Connection(descriptor)
                connection.poller.register(descriptor, select.POLLIN)

    def may_use(self, port: int) -> bool:
        """Return whether a kept connection is open and not too old, and nothing has come on it unasked."""
        connection = self._known.get(port)
        if connection is None:
            return True
        return self._clock() < connection.until and not connection.poller.poll(0)

    def keep(self, port: int, seconds: float) -> None:
        """Note for how long an idle connection may be used again."""
        if (connection := self._known.get(port)) is not None:
            connection.until = self._clock() + seconds

    def forget(self, port: int) -> None:
        """Stop checking a connection: libcurl alone decides about it."""
        self._known.pop(port, None)

    def clear(self) -> None:
        """Forget all connections, once they are closed."""
        self._known.clear()


class Transfer:
    """One handle of libcurl, and what it gathers of the response to its present request."""

    def __init__(self, kept: KeptConnections, limit: int) -> None:
        self.easy = pycurl.Curl()
        self._kept = kept
        self._lines: list[bytes] = []
        self._parts: list[bytes] = []
        self._settings: Settings | None = None
        self._opened: list[int] = []  # sockets for the present attempt
        self._port = 0
        self._sent = 0  # requests that left, or were about to
        self._ended: Ended | None = None
        self._first_bytes = b""
        self._request: HttpRequest | None = None
        own: tuple[tuple[int, Any], ...] = (
            (pycurl.MAXFILESIZE_LARGE, limit),
            (pycurl.HEADERFUNCTION, self._lines.append),
            (pycurl.WRITEFUNCTION, self._on_body),
            (pycurl.SOCKOPTFUNCTION, self._on_socket),
            (pycurl.PREREQFUNCTION, self._on_request),
        )
        for option, value in (*_ALWAYS, *own):
            self.easy.setopt(option, value)

    def use(self, settings: Settings) -> None:
        """Use the TLS and the proxy of a server from now on."""
        if settings != self._settings:
            for option, value in settings:
                self.easy.setopt(option, value)
            self._settings = settings

    def prepare(self, url: str, request: HttpRequest, lines: list[bytes], seconds: float) -> None:
        """Begin an attempt: a request that has to be done within so many seconds."""
        set_ = self.easy.setopt
        if self._ended is STALE:
            set_(pycurl.FRESH_CONNECT, 0)
        self._request, self._ended = request, None
        set_(pycurl.URL, url)
        set_(pycurl.TIMEOUT_MS, max(1, int(seconds * 1000)))  # for name, connection, TLS, request and response together
        if request.body is None:
            set_(pycurl.HTTPGET, 1)
        else:
            set_(pycurl.POSTFIELDS, request.body)
        set_(pycurl.CUSTOMREQUEST, request.method.value)
        set_(pycurl.HTTPHEADER, lines + _UNASKED)
        self._begin()

    def _begin(self) -> None:
        self._lines.clear()
        self._parts.clear()
        self._opened.clear()
        self._sent, self._first_bytes = 0, b""

    def received(self, ended: Ended | None, where: str, *, seconds: float, limit: int) -> Received:
        """Return the response; raises `CallError`, or `ClosedBeforeError`."""
        self._kept.keep(self._port, 0.0)  # it is not used again, unless the response is complete
        try:
            if ended is None or ended.phase is Phase.BODY or self._first_bytes:
                head = self._head()  # a malformed head says more than how the body ended
            if ended is not None:
                raise failures.attempt_failed(where, ended, seconds=seconds, limit=limit)
            body = b"".join(self._parts)
            for codings in values_of(head.fields, "content-encoding"):
                body = decode_content(body, codings, limit)
        except CutHeadError as error:
            raise failures.connection_ended(where, Phase.HEAD) from error
        except HeadTooLargeError as error:
            raise failures.head_too_large(where) from error
        except ContentTooLargeError as error:
            raise failures.body_too_large(where, limit) from error
        except MalformedResponseError as error:
            phase = Phase.BODY if self._parts else Phase.HEAD
            raise failures.malformed(where, str(error), phase, self._first_bytes) from error
        self._keep_connection(head)
        return Received(head, body)

    def _head(self) -> Head:
        return read_head(
            self._lines, is_http_1=self.easy.getinfo(pycurl.INFO_HTTP_VERSION) != pycurl.CURL_HTTP_VERSION_2_0
        )

    def _keep_connection(self, head: Head) -> None:
        if not head.is_http_1:  # HTTP/2 servers send frames unasked
            self._kept.forget(self._port)
            return
        seconds = LONGEST_IDLE
        for value in values_of(head.fields, "keep-alive"):
            if (found := _KEEP_ALIVE_TIMEOUT.search(value)) is not None:
                seconds = min(seconds, max(int(found[1]) - 1.0, int(found[1]) / 2))
        if head.has_uncertain_end:
            seconds = 0.0
        self._kept.keep(self._port, seconds)

    def is_reusable(self) -> bool:
        """Release the request and the response; return whether the handle is small enough to be kept."""
        request, self._request = self._request, None
        size = 0 if request is None or request.body is None else len(request.body)
        self._parts.clear()
        return size < _LARGE

    def ended(self, code: int, text: str) -> Ended | None:
        """Return how an attempt has failed, `STALE` where nothing was sent; raises `ClosedBeforeError`."""
        if code == pycurl.E_ABORTED_BY_CALLBACK and self._ended is not None:
            if self._ended is STALE:
                self.easy.setopt(pycurl.FRESH_CONNECT, 1)
                self._begin()
                return STALE
            raise ClosedBeforeError
        info = self.easy.getinfo
        if self._sent and not self._opened and code in (pycurl.E_COULDNT_CONNECT, pycurl.E_GOT_NOTHING):
            raise ClosedBeforeError
        return Ended(
            code,
            text,
            self._phase(),
            info(pycurl.EFFECTIVE_URL)[:5] == "https",
            info(pycurl.OS_ERRNO),
            info(pycurl.SSL_VERIFYRESULT),
            info(pycurl.HTTP_CONNECTCODE),
        )

    def _phase(self) -> Phase:
        if self._lines:
            return Phase.BODY if self._parts or self._lines[-1] in (b"\r\n", b"\n") else Phase.HEAD
        if not self._sent:
            return Phase.CONNECTING
        body = None if self._request is None else self._request.body
        is_sent = not body or self.easy.getinfo(pycurl.SIZE_UPLOAD_T) >= len(body)
        return Phase.WAITING if is_sent else Phase.SENDING

    def _on_socket(self, descriptor: int, _purpose: int) -> int:
        self._opened.append(descriptor)
        return int(pycurl.SOCKOPT_OK)

    def _on_request(self, _remote: str, _local: str, _remote_port: int, local_port: int) -> int:
        """Decide whether the request leaves: libcurl sends one of any method again over a new connection by itself."""
        if self._sent:
            self._ended = Ended(0, "", Phase.WAITING, tls=False)
            return int(pycurl.PREREQFUNC_ABORT)
        if self._opened:
            self._kept.opened(local_port, self._opened)
        elif not self._kept.may_use(local_port):
            self._ended = STALE
            return int(pycurl.PREREQFUNC_ABORT)
        self._port = local_port
        self._sent += 1
        return int(pycurl.PREREQFUNC_OK)

    def _on_body(self, data: bytes) -> int | None:
        if not self._lines:
            self._first_bytes = data[:8]
            return -1
        self._parts.append(data)
        return None


def _local_port(descriptor: int) -> int:
    sock = socket.socket(fileno=descriptor)
    try:
        port: int = sock.getsockname()[1]
        return port
    finally:
        sock.detach()

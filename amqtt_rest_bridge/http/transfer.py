"""Attempts with libcurl: `Transfer` is one of them on a handle of libcurl, `Connections` runs all handles on the loop.

The life of an attempt, as `client` calls it:

1. `Connections.take_transfer` returns a free handle, with the TLS and proxy options of the server.
2. `Transfer.prepare` sets the request.
3. `Transfer.run` sends it. libcurl reports each connection that it opens (`on_opened`), and asks whether the request
   may leave (`on_request`). Then come the lines of the response's head and the parts of its body (`on_body`).
4. `Transfer.read_response` returns the response, or raises the reason why there is none.
5. `Connections.release` keeps the handle for the next attempt.

A kept connection may have died. libcurl looks once a second at most, and repeats a request of any method over a new
connection if the kept one fails. So `on_request` checks a kept connection just before the request leaves, and stops
libcurl's repetition.

`Connections` is used instead of pycurl's `AsyncCurlMulti`, which takes a seventh more processor time a message: it sets
the timer twice for each request, and has the loop watch each socket. It also hides which responses are incomplete, and
only these need `_acknowledge`.

The response is read strictly, since libcurl accepts heads that two programs could read differently. They are refused: a
line without a proper name, both a Content-Length and a Transfer-Encoding, a protocol that was not asked for. Content
codings are undone by zlib, within a limit, since urllib3's decoders do not report a compressed body that is cut.
"""

import asyncio
import re
import select
import selectors
import socket
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache
from math import inf
from typing import Any, Final, NamedTuple

import pycurl

from amqtt_rest_bridge.http import failures
from amqtt_rest_bridge.http.failures import AttemptEnd, Phase
from amqtt_rest_bridge.http.tls import Settings
from amqtt_rest_bridge.lot.model import HttpRequest, Method, Pairs

# Shorter than the 60 s after which common load balancers and servers close an idle connection, so that a request rarely
# meets a connection that is just being closed.
LONGEST_IDLE: Final = 55.0
"""Seconds that an idle connection is kept."""
_MOST_CONNECTIONS: Final = 1024
_LARGE: Final = 65_536  # a handle that has sent a body of so many bytes is closed, since it keeps their memory
_QUICK_ACK: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)  # Linux has it
_KEEP_ALIVE_TIMEOUT: Final = re.compile(r"\btimeout\s*=\s*([0-9]{1,6})", re.IGNORECASE)
# A line without a value keeps libcurl from adding the header. A header of the request comes before it, and is sent.
_SUPPRESSED_HEADERS: Final = [b"Expect:", b"Accept:", b"User-Agent:", b"Content-Type:"]
_SUPPRESS_CONNECT_HEADERS: Final = 265  # pycurl does not name it
_COMMON_OPTIONS: Final = (
    (pycurl.NOSIGNAL, 1),
    (pycurl.TCP_KEEPALIVE, 1),
    (pycurl.PATH_AS_IS, 1),
    (pycurl.HTTP09_ALLOWED, 1),  # recognises what is not HTTP: libcurl returns it as a body without a head
    (pycurl.DNS_CACHE_TIMEOUT, 0),  # each connection looks the name up again, since its address may change
    (pycurl.HTTP_CONTENT_DECODING, 0),  # libcurl would fail for a coding that it does not know
    (pycurl.MAXAGE_CONN, int(LONGEST_IDLE)),
    (pycurl.UPLOAD_BUFFERSIZE, 16_384),  # the smallest, since each handle keeps this buffer
    (_SUPPRESS_CONNECT_HEADERS, 1),
    (pycurl.HEADEROPT, pycurl.HEADER_SEPARATE),
)
_END_OF_HEAD: Final = (b"\r\n", b"\n")  # the empty line that ends a head
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_FIELD: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+)[ \t]*:(.*)", re.DOTALL)
_STATUS_LINE: Final = re.compile(rb"HTTP/(1\.[0-9]|2) +([1-9][0-9]{2})((?: [^\n]*)?)\r?\n")
_LONGEST_CACHED: Final = 128  # bytes of a header line whose parsed form is cached
_LONGEST_NUMBER: Final = 30  # digits of a Content-Length
_WITHOUT_BODY: Final = frozenset({204, 304})
_CONTROL_FIELDS: Final = frozenset({"content-encoding", "content-length", "keep-alive", "transfer-encoding"})
_GZIP, _ZLIB, _RAW_DEFLATE = 31, 15, -15  # zlib's window bits, which name the format
_FORMATS: Final = {"gzip": (_GZIP,), "x-gzip": (_GZIP,), "deflate": (_ZLIB, _RAW_DEFLATE)}
_MOST_CODINGS: Final = 5

Fault = tuple[int, str]
"""An error of libcurl: its code and its text."""


class ClosedBeforeError(Exception):
    """A server has closed a kept connection and may have seen the request; nothing of a response came."""


class MalformedResponseError(Exception):
    """The response cannot be read; the message is the reason, without its content."""


class ContentTooLargeError(Exception):
    """The body, decoded or not, is larger than allowed."""


class Head(NamedTuple):
    """The status line and the header fields of a response, in their order.

    `is_http_1` is False for HTTP/2. `control` has the values of the fields that the client itself acts on
    (`_CONTROL_FIELDS`), by name in lower case.
    """

    status: int
    reason: str
    fields: Pairs
    is_http_1: bool
    control: Mapping[str, Sequence[str]]

    @property
    def has_uncertain_end(self) -> bool:
        """Return whether a body may follow although HTTP forbids one. It would be read as the next response."""
        if self.status not in _WITHOUT_BODY:
            return False
        # The Content-Length of a 304 is that of the response it replaces.
        has_length = self.status == 204 and self.control.get("content-length", ["0"]) != ["0"]
        return has_length or "transfer-encoding" in self.control


class AbortReason(Enum):
    """Why `on_request` did not let a request leave."""

    STALE = auto()
    """Its kept connection cannot be used any more; nothing was sent."""
    REPEATED = auto()
    """It had left before on a kept connection, which has failed."""


class Transfer:
    """An attempt of a request on a handle of libcurl, and the parts of its response."""

    def __init__(self, connections: "Connections", limit: int) -> None:
        self.handle = pycurl.Curl()
        self.is_large = False
        """Whether the handle holds too much memory to be kept."""
        self._connections = connections
        self._connection: KeptConnection | None = None  # of this attempt; unknown for a kept one of HTTP/2
        self._limit = limit
        self._settings: Settings | None = None
        self._last_options: tuple[str, Method, int] | None = None  # URL, method and milliseconds that are set
        self._body_size = 0  # of the request
        self._lines: list[bytes] = []  # of the response's head
        self._parts: list[bytes] = []  # of its body
        self._first_bytes = b""  # of a response that is not HTTP
        self._opened_sockets: list[int] = []  # descriptors of sockets opened for this attempt
        self._requests_sent = 0  # how often the request has left
        self._abort_reason: AbortReason | None = None
        own: tuple[tuple[int, Any], ...] = (
            (pycurl.MAXFILESIZE_LARGE, limit),
            (pycurl.HEADERFUNCTION, self._lines.append),
            (pycurl.WRITEFUNCTION, self.on_body),
            (pycurl.SOCKOPTFUNCTION, self.on_opened),
            (pycurl.PREREQFUNCTION, self.on_request),
        )
        for option, value in (*_COMMON_OPTIONS, *own):
            self.handle.setopt(option, value)

    def use(self, settings: Settings) -> None:
        """Set the TLS and proxy options of a server."""
        if settings != self._settings:
            for option, value in settings:
                self.handle.setopt(option, value)
            self._settings = settings

    def prepare(self, url: str, request: HttpRequest, lines: list[bytes], seconds: float) -> None:
        """Set the request of the next attempt.

        Args:
            url: Where it goes: the server of `use`, path and query.
            request: Has the method and the body.
            lines: Its header lines; libcurl adds Host if it is missing.
            seconds: The time of the attempt, from the look-up of the name to the end of the response.
        """
        set_option = self.handle.setopt
        if request.body is None:
            set_option(pycurl.HTTPGET, 1)
        else:
            set_option(pycurl.POSTFIELDS, request.body)
        set_option(pycurl.HTTPHEADER, lines + _SUPPRESSED_HEADERS)
        milliseconds = max(1, int(seconds * 1000))
        if self._last_options != (options := (url, request.method, milliseconds)):
            set_option(pycurl.URL, url)
            set_option(pycurl.CUSTOMREQUEST, request.method.value)
            set_option(pycurl.TIMEOUT_MS, milliseconds)
            self._last_options = options
        self._body_size = 0 if request.body is None else len(request.body)
        self.is_large = self._body_size >= _LARGE
        self._forget_response()

    def _forget_response(self) -> None:
        """Forget all that the last attempt has left."""
        self._lines.clear()
        self._parts.clear()
        self._opened_sockets.clear()
        self._connection, self._requests_sent, self._first_bytes, self._abort_reason = None, 0, b"", None

    async def run(self) -> AttemptEnd | None:
        """Send the prepared request; return None if there is a response, else how the attempt ended.

        If its kept connection cannot be used any more, the request is sent over a new one.

        Raises:
            ClosedBeforeError: `client` decides whether the request may be repeated.
        """
        fault = await self._connections.run(self.handle)
        if self._abort_reason is AbortReason.STALE:
            self._forget_response()
            self.handle.setopt(pycurl.FRESH_CONNECT, 1)
            fault = await self._connections.run(self.handle)
            self.handle.setopt(pycurl.FRESH_CONNECT, 0)
        if fault is None:
            return None
        code, text = fault
        info = self.handle.getinfo
        is_kept = self._requests_sent and not self._opened_sockets
        was_closed = is_kept and code in (pycurl.E_COULDNT_CONNECT, pycurl.E_GOT_NOTHING)
        if was_closed or self._abort_reason is AbortReason.REPEATED:
            raise ClosedBeforeError
        if self._lines:
            phase = Phase.BODY if self._parts or self._lines[-1] in _END_OF_HEAD else Phase.HEAD
        elif not self._requests_sent:
            phase = Phase.CONNECTING
        else:
            is_sent = not self._body_size or info(pycurl.SIZE_UPLOAD_T) >= self._body_size
            phase = Phase.WAITING if is_sent else Phase.SENDING
        return AttemptEnd(
            code,
            text,
            phase,
            tls=info(pycurl.EFFECTIVE_URL)[:5] == "https",
            os_error=info(pycurl.OS_ERRNO),
            verify_result=info(pycurl.SSL_VERIFYRESULT),
            connect_status=info(pycurl.HTTP_CONNECTCODE),
        )

    def read_response(self, end: AttemptEnd | None, where: str, *, seconds: float) -> tuple[Head, bytes]:
        """Return head and body of the response.

        Args:
            end: How the attempt ended, None with a complete response.
            where: The server, for messages.
            seconds: The timeout of the whole call, for messages.

        Raises:
            CallError: There is no response, or one that cannot be read.
        """
        connection = self._connection
        if connection is not None:
            connection.usable_until = 0.0  # unless `keep` is called below
        try:
            if end is None or end.phase is Phase.BODY or self._first_bytes:
                version = self.handle.getinfo(pycurl.INFO_HTTP_VERSION)
                # First, since a malformed head explains a failure better than `end` does.
                head = _read_head(self._lines, where, is_http_1=version != pycurl.CURL_HTTP_VERSION_2_0)
            if end is not None:
                raise failures.attempt_failed(where, end, seconds=seconds, limit=self._limit)
            body = b"".join(self._parts)
            for codings in head.control.get("content-encoding", ()):
                body = _decode_content(body, codings, self._limit)
        except ContentTooLargeError as error:
            raise failures.body_too_large(where, self._limit) from error
        except MalformedResponseError as error:
            phase = Phase.BODY if self._parts else Phase.HEAD
            raise failures.malformed(where, str(error), phase, self._first_bytes) from error
        self._parts.clear()
        if connection is not None:
            self._connections.keep(connection, head)
        return head, body

    # What libcurl calls.

    def on_opened(self, descriptor: int, _purpose: int) -> int:
        """Note a socket that libcurl has opened for this attempt."""
        self._opened_sockets.append(descriptor)
        self._connections.stop_watching(descriptor)  # a closed connection may have had the same number
        return int(pycurl.SOCKOPT_OK)

    def on_request(self, _remote: str, _local: str, _remote_port: int, local_port: int) -> int:
        """Decide whether the request may leave: only once, and not on a kept connection that cannot be used."""
        if self._requests_sent:  # libcurl repeats it, whatever its method
            self._abort_reason = AbortReason.REPEATED
            return int(pycurl.PREREQFUNC_ABORT)
        if self._opened_sockets:
            self._connection = self._connections.add_opened(local_port, self._opened_sockets)
        elif (connection := self._connections.by_port.get(local_port)) is not None:
            if not self._connections.reuse(connection):
                self._abort_reason = AbortReason.STALE
                return int(pycurl.PREREQFUNC_ABORT)
            self._connection = connection
        self._requests_sent += 1
        self._connections.just_sent.append(self)
        return int(pycurl.PREREQFUNC_OK)

    def on_body(self, data: bytes) -> int | None:
        """Add a part of the body; refuse one without a head, which is not HTTP."""
        if not self._lines:
            self._first_bytes = data[:8]
            return -1
        self._parts.append(data)
        return None

    def acknowledge_head(self) -> None:
        """Acknowledge the head if it has come; see `_acknowledge`."""
        if self._lines and self._connection is not None:
            _acknowledge(self._connection.descriptor)


@dataclass(slots=True)
class KeptConnection:
    """A connection of libcurl, which may be used again.

    It may until `usable_until`, by the client's clock, if `poller` then finds that no bytes have come, nor an end.
    """

    descriptor: int
    usable_until: float = inf
    poller: select.poll = field(default_factory=select.poll)


class Connections:
    """The connections of a client, and the handles of libcurl that run on them.

    libcurl names the sockets that it waits for (`on_socket_events`) and when it wants to be called (`on_timer`). The
    loop then calls `run_ready` or `run_timeouts`.

    Args:
        limit: Bytes of the largest response.
        clock: Monotonic seconds.
    """

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self.running: dict[pycurl.Curl, asyncio.Future[Fault | None]] = {}
        """The attempts under way, by handle."""
        self.by_port: dict[int, KeptConnection] = {}
        """Connections of HTTP/1, by local port. libcurl may have closed some of them."""
        self.just_sent: list[Transfer] = []
        """Transfers whose requests have left in the present run of libcurl. A fast server may have answered already."""
        self._clock = clock
        self._limit = limit
        self._free_transfers: list[Transfer] = []
        self._loop = asyncio.get_running_loop()
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self.on_socket_events)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self.on_timer)
        self._multi.setopt(pycurl.M_MAXCONNECTS, _MOST_CONNECTIONS)
        self._sockets = selectors.DefaultSelector()  # watches all sockets of libcurl, and the loop watches it
        self._loop.add_reader(self._sockets, self.run_ready)
        self._watched: dict[int, int] = {}  # the events that are watched, by descriptor
        # Sockets between two requests. They stay watched, which saves 4 us a request.
        self._unused_sockets: set[int] = set()
        self._reused_socket = -1  # the kept socket that a request is leaving on
        self._due_at = inf  # when libcurl wants to be called, by the clock of the loop
        self._fires_at = inf  # when the timer fires, at `_due_at` or earlier
        self._timer: asyncio.Handle | None = None

    def take_transfer(self, settings: Settings) -> Transfer:
        """Return a handle for an attempt, with these TLS and proxy options. `release` has to be called for it."""
        transfer = self._free_transfers.pop() if self._free_transfers else Transfer(self, self._limit)
        transfer.use(settings)
        return transfer

    def run(self, handle: pycurl.Curl) -> "asyncio.Future[Fault | None]":
        """Begin an attempt; the result is None with a response, else the fault."""
        ended = self.running[handle] = self._loop.create_future()
        self._multi.add_handle(handle)  # it begins in the next iteration of the loop, by the timer
        return ended

    def release(self, transfer: Transfer) -> None:
        """Keep a handle for a later attempt. Close it if its attempt was cancelled or it is large."""
        is_cancelled = self.running.pop(transfer.handle, None) is not None
        if is_cancelled:
            self._multi.remove_handle(transfer.handle)
        if is_cancelled or transfer.is_large:
            transfer.handle.close()
        else:
            self._free_transfers.append(transfer)

    def close(self) -> None:
        """Close all connections; none is in use."""
        for transfer in self._free_transfers:
            transfer.handle.close()
        self._loop.remove_reader(self._sockets)
        self._multi.close()
        self._sockets.close()
        if self._timer is not None:
            self._timer.cancel()

    # Kept connections.

    def add_opened(self, port: int, descriptors: list[int]) -> KeptConnection | None:
        """Return a new kept connection: the one of these sockets that has this local port, None if none has it."""
        self.by_port = {known: one for known, one in self.by_port.items() if one.descriptor not in descriptors}
        for descriptor in descriptors:
            sock = socket.socket(fileno=descriptor)
            try:
                has_port = sock.getsockname()[1] == port
            finally:
                sock.detach()
            if has_port:
                connection = self.by_port[port] = KeptConnection(descriptor)
                connection.poller.register(descriptor, select.POLLIN)
                return connection
        return None

    def reuse(self, connection: KeptConnection) -> bool:
        """Use a kept connection for a request; return False if it is closed, too old, or has unexpected bytes."""
        may_use = self._clock() < connection.usable_until and not connection.poller.poll(0)
        self._reused_socket = connection.descriptor if may_use else -1
        return may_use

    def keep(self, connection: KeptConnection, head: Head) -> None:
        """Set how long a connection may be used again, now that a response is complete."""
        if not head.is_http_1:  # HTTP/2 servers send frames between responses, which `reuse` would not expect
            self.by_port = {port: one for port, one in self.by_port.items() if one is not connection}
            return
        seconds = 0.0 if head.has_uncertain_end else LONGEST_IDLE
        for value in head.control.get("keep-alive", ()):
            if (found := _KEEP_ALIVE_TIMEOUT.search(value)) is not None:
                seconds = min(seconds, max(int(found[1]) - 1.0, int(found[1]) / 2))
        connection.usable_until = self._clock() + seconds

    def stop_watching(self, descriptor: int) -> None:
        """Watch a socket no more."""
        self._unused_sockets.discard(descriptor)
        if self._watched.pop(descriptor, None) is not None:
            self._sockets.unregister(descriptor)

    # What the loop calls.

    def run_ready(self) -> None:
        """Run libcurl for the sockets that are ready."""
        for key, events in self._sockets.select(0):
            if key.fd in self._unused_sockets:  # its server has closed it
                self.stop_watching(key.fd)
                continue
            self._multi.socket_action(key.fd, events)  # libcurl's numbers of events are those of `selectors`
            if not self._finish_attempts() and events & pycurl.CSELECT_IN:
                _acknowledge(key.fd)
        self._acknowledge_heads()

    def run_timeouts(self) -> None:
        """Run libcurl's timeouts: it begins attempts, and ends those that take too long."""
        self._fires_at = inf
        self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
        self._finish_attempts()
        self._acknowledge_heads()
        self._start_timer()

    def _finish_attempts(self) -> bool:
        """Set the results of the attempts that libcurl has finished; return whether there were any."""
        _, done, failed = self._multi.info_read()
        for handle, *fault in (*((handle,) for handle in done), *failed):
            self._multi.remove_handle(handle)
            ended = self.running.pop(handle)
            if not ended.done():  # else it was cancelled in this iteration of the loop
                ended.set_result((fault[0], fault[1]) if fault else None)
        return bool(done or failed)

    def _acknowledge_heads(self) -> None:
        just_sent, self.just_sent = self.just_sent, []
        for transfer in just_sent:
            if transfer.handle in self.running:
                transfer.acknowledge_head()

    # What libcurl calls.

    def on_socket_events(self, events: int, descriptor: int, _multi: Any, _data: Any) -> None:
        """Watch a socket for these events, or keep it watched while no request uses it."""
        if not events & pycurl.POLL_INOUT:
            self._unused_sockets.add(descriptor)
            return
        # The descriptor may be that of a new socket: a closed socket's number is used again.
        is_same = descriptor not in self._unused_sockets or descriptor == self._reused_socket
        self._unused_sockets.discard(descriptor)
        self._reused_socket = -1
        if not is_same or self._watched.get(descriptor) != events:
            self.stop_watching(descriptor)
            self._sockets.register(descriptor, events)
            self._watched[descriptor] = events

    def on_timer(self, milliseconds: int) -> None:
        """Note when libcurl wants to be called."""
        self._due_at = inf if milliseconds < 0 else self._loop.time() + milliseconds / 1000
        self._start_timer()

    def _start_timer(self) -> None:
        """Start the timer, unless it fires early enough already; for most requests it does."""
        if self._due_at < self._fires_at:
            if self._timer is not None:
                self._timer.cancel()
            self._fires_at = self._due_at
            self._timer = self._loop.call_later(max(0.0, self._due_at - self._loop.time()), self.run_timeouts)


def _acknowledge(descriptor: int) -> None:
    """Acknowledge received bytes at once, if the system can.

    Many small servers send the body only after the head was acknowledged (Nagle's algorithm, RFC 9293 section 3.7.4).
    The system would delay the acknowledgement by 40 ms.
    """
    if _QUICK_ACK is None:
        return
    with suppress(OSError):  # threads that resolve names have sockets of another kind
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, descriptor)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)
        finally:
            sock.detach()


# The response.


def _read_head(lines: Sequence[bytes], where: str, *, is_http_1: bool) -> Head:
    """Return the head of the final response.

    Args:
        lines: As they came, also those of interim responses before it and of a trailer behind its body.
        where: The server, for messages.
        is_http_1: Whether the version has to be HTTP/1; otherwise it has to be HTTP/2.

    Raises:
        CallError: The end of the head is missing, or the head is too large.
        MalformedResponseError: The head is invalid, can be read in two ways, or has another version.
    """
    first = len(lines) - 1
    while first > 0 and not lines[first].startswith(b"HTTP/"):
        first -= 1
    status = _STATUS_LINE.fullmatch(lines[first]) if lines else None
    if status is None or (status[1] == b"2") is is_http_1:
        raise MalformedResponseError("it does not begin with an HTTP/1 status line")
    fields: list[tuple[str, str]] = []
    control: dict[str, list[str]] = {}
    key = ""  # of the line before in `control`, "" if it is not there
    end = first + 1
    while end < len(lines) and lines[end] not in _END_OF_HEAD:
        end += 1
    if end - first > failures.MOST_LINES + 1 or sum(map(len, lines[first + 1 : end])) > failures.LONGEST_HEAD:
        raise failures.head_too_large(where)
    if end == len(lines):
        raise failures.connection_ended(where, Phase.HEAD)
    for line in lines[first + 1 : end]:
        if line[0] in b" \t" and fields:  # a fold continues the line before
            name, value = fields.pop()
            value = f"{value} {_decode_text(line)}".strip()
            if key:
                control[key].pop()
        else:
            name, value, key = (_parse_field_cached if len(line) <= _LONGEST_CACHED else _parse_field)(line)
        fields.append((name, value))
        if key:
            control.setdefault(key, []).append(value)
    head = Head(int(status[2]), _decode_text(status[3]), tuple(fields), is_http_1, control)
    if is_http_1:
        _check_framing(head)
    return head


def _parse_field(line: bytes) -> tuple[str, str, str]:
    """Return name and value of a header line, and its key in `Head.control`, "" for most fields."""
    field = _FIELD.fullmatch(line.decode("latin-1").rstrip("\r\n"))
    if field is None:
        raise MalformedResponseError("one of its header lines has no name that HTTP allows")
    key = field[1].lower()
    return field[1], _decode_text(field[2].encode("latin-1")), key if key in _CONTROL_FIELDS else ""


_parse_field_cached = lru_cache(maxsize=1024)(_parse_field)  # the responses of a server have most lines in common


def _decode_text(value: bytes) -> str:
    """Decode a header's text as UTF-8, or else as Latin-1. Control characters become spaces (RFC 9110 section 5.5)."""
    text = value.decode("latin-1")
    if not text.isascii():
        with suppress(UnicodeError):  # bytes that are neither ASCII nor UTF-8 stay latin-1
            text = value.decode()
    if not text.isprintable():
        text = _CONTROL.sub(" ", text)
    return text.strip()


def _check_framing(head: Head) -> None:
    """Raise `MalformedResponseError` for a response whose end is uncertain (RFC 9112 section 6.3)."""
    if head.status == 101:
        raise MalformedResponseError("it switches to a protocol that was not asked for")
    if head.status in _WITHOUT_BODY:
        return
    codings, lengths = head.control.get("transfer-encoding", ()), head.control.get("content-length", ())
    if codings and lengths:  # a proxy on the way may have seen another end of it
        raise MalformedResponseError("it has both a Content-Length and a Transfer-Encoding")
    if any(coding.lower() != "chunked" for coding in codings):
        raise MalformedResponseError("its Transfer-Encoding is not chunked")
    if len(set(lengths)) > 1:
        raise MalformedResponseError("it has two different Content-Lengths")
    if lengths and not (lengths[0].isascii() and lengths[0].isdigit() and len(lengths[0]) <= _LONGEST_NUMBER):
        raise MalformedResponseError("its Content-Length is not a number")


def _decode_content(body: bytes, codings: str, limit: int) -> bytes:
    """Return a body without its content codings, gzip and deflate. No step makes more than `limit` bytes.

    A body with any other coding stays as it is: HEADERS of the event must have asked for that coding.

    Raises:
        ContentTooLargeError: The decoded body is larger than `limit`.
        MalformedResponseError: The body does not match its codings.
    """
    names = [name.strip() for name in codings.lower().split(",")]
    names = [name for name in names if name not in ("", "identity")]
    if not body or not all(name in _FORMATS for name in names):
        return body
    if len(names) > _MOST_CODINGS:
        raise MalformedResponseError(f"it has more than {_MOST_CODINGS} content codings")
    for name in reversed(names):
        for window_bits in _FORMATS[name]:  # "deflate" is zlib by RFC 9110 section 8.4.1.2, and raw by mistake
            with suppress(zlib.error):
                body = _inflate(body, window_bits, limit)
                break
        else:
            raise MalformedResponseError(f"its body is not {name}")
    return body


def _inflate(body: bytes, window_bits: int, limit: int) -> bytes:
    """Undo one coding. Only a gzip body may consist of several compressed streams, its members."""
    parts: list[bytes] = []
    room = limit
    while True:
        inflater = zlib.decompressobj(window_bits)
        part = inflater.decompress(body, room + 1)
        if len(part) > room:
            raise ContentTooLargeError
        if not inflater.eof:
            raise MalformedResponseError("its compressed body is cut short")
        parts.append(part)
        room -= len(part)
        body = inflater.unused_data.lstrip(b"\0")  # RFC 1952 section 2.2: members follow one another; some pad them
        if window_bits != _GZIP or not body:
            return b"".join(parts)

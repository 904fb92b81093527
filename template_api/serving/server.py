"""The API's HTTP server on waitress, which is imported here only: its connections, the requests and answers on each.

`Server.run` is the thread that does all socket I/O, channels and parsers run on it; waitress's worker threads run the
application, a request's task each.

The memory of a connection is bounded, for any input and for a client that reads nothing: of what it sends one read is
held unparsed and one request parsed, and the next request is served once the answer before it has left for the
system's buffers. So output waits for one answer at most (waitress keeps what is over 1 MiB of it in a file), no thread
ever waits for a caller to read, and reading from its socket stops meanwhile. waitress 3.0.2 parses all that
it has read, and its threads wait as soon as 16 MiB are unread: four such callers stopped the API for all others.
"""

import contextlib
import logging
import re
import socket
import threading
import time
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import waitress
from waitress import wasyncore
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser, ParsingError
from waitress.task import ErrorTask, WSGITask
from waitress.utilities import BadRequest, RequestEntityTooLarge

from template_api import errors
from template_api.app import CORS_FIELDS, REQUEST_ID, new_request_id
from template_api.config import DEFAULT_THREADS
from template_api.query import MAX_BODY_BYTES
from template_api.replies import JSON, error_body

log = logging.getLogger(__name__)

_UNREAD_SECONDS = 30  # a caller that has read nothing of its answer for so long is cut off
_GRACE_SECONDS = 5  # what running requests get to finish in at a stop
_CONNECTIONS = 1000  # below the 1,024 files that a process may usually have open
MAX_HEADER_BYTES = 65536
REQUEST_SECONDS = 30  # a request must have arrived whole by then; a connection without one is closed
_CROWDED = 900  # from here on each new connection costs the one that has been idle or unread longest
_PATIENCE_SECONDS = 1  # with a caller that reads nothing, when connections are scarce
_UNSENT_BYTES = 131_072  # of answers that the system holds for a caller that does not read; some 2.6 MB without it
_LINGER_SECONDS = 2
_LINGER_BYTES = 4 * 1024 * 1024
_FOLD = re.compile(rb"\r\n[ \t]")
_HOST = re.compile(rb"\r\nhost:[ \t]*([^\r\n]*)", re.IGNORECASE)
_URI_HOST = re.compile(rb"(?:\[[\w.~!$&'()*+,;=%:-]+\]|[\w.~!$&'()*+,;=%-]*)(?::[0-9]*)?[ \t]*")  # RFC 9110 7.2


class Server:
    """Serve one WSGI application on one listening socket, until `stop`.

    Args:
        app: the application.
        listening: a bound socket; closed at the end.
        threads: how many requests are answered at once.
    """

    def __init__(self, app: Any, listening: socket.socket, threads: int = DEFAULT_THREADS) -> None:
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # it would warn per request under load
        self._map: dict[int, Any] = {}
        self._stopping = threading.Event()
        self._server: Any = waitress.create_server(
            app,
            map=self._map,
            sockets=[listening],
            threads=threads,
            ident="template-api",
            max_request_body_size=MAX_BODY_BYTES + 1,  # waitress refuses bodies of this size, not only larger ones
            max_request_header_size=MAX_HEADER_BYTES,
            connection_limit=_CONNECTIONS,
            channel_timeout=REQUEST_SECONDS,
            cleanup_interval=5,
            log_socket_errors=False,
            clear_untrusted_proxy_headers=True,
        )
        self._server.channel_class = Channel

    @property
    def port(self) -> int:
        """The port that is served."""
        return int(self._server.effective_port)

    def run(self) -> None:
        """Serve until `stop`, then wait up to 5 s for running requests."""
        next_check = time.monotonic()
        while not self._stopping.is_set():
            wasyncore.loop(timeout=1, map=self._map, use_poll=True, count=1)
            if time.monotonic() >= next_check:
                next_check = time.monotonic() + 1
                # waitress would wait until it can write to them.
                for channel in list(self._server.active_channels.values()):
                    if channel.is_unread(_UNREAD_SECONDS):
                        log.info("%s has read nothing of its answer for %g s: closed", channel.addr[0], _UNREAD_SECONDS)
                        channel.abandon()
        # Pending connections are accepted and served: closing the socket at once would reset them.
        wasyncore.loop(timeout=0, map=self._map, use_poll=True, count=3)
        wasyncore.dispatcher.close(self._server)
        deadline = time.monotonic() + _GRACE_SECONDS
        channels: Mapping[int, Any] = self._server.active_channels
        while time.monotonic() < deadline and any(
            channel.requests or channel.total_outbufs_len for channel in list(channels.values())
        ):
            wasyncore.loop(timeout=0.02, map=self._map, use_poll=True, count=1)
        self._server.task_dispatcher.shutdown(timeout=1)
        wasyncore.close_all(self._map)

    def stop(self) -> None:
        """Stop `run`; may be called from any thread and from a signal handler."""
        self._stopping.set()
        with contextlib.suppress(OSError):  # it has stopped already
            self._server.pull_trigger()


class Parser(HTTPRequestParser):  # type: ignore[misc]  # waitress has no types
    """Refuse what waitress accepts and another server may read differently (RFC 9112)."""

    def __init__(self, adjustments: Any) -> None:
        super().__init__(adjustments)
        self.began = time.monotonic()

    def parse_header(self, header_plus: bytes) -> None:
        """Parse the header section; raise `ParsingError` when it breaks a rule."""
        super().parse_header(header_plus)
        fault = _fault(header_plus, self.version, self.chunked, self.headers)
        if fault is None and "@" in (self.proxy_netloc or ""):  # RFC 9110 section 4.2.4
            fault = "The request target holds a user name"
        if fault:
            raise ParsingError(fault)
        # waitress 3.0.2 compares the whole field; it is a list (RFC 9110 section 7.6.1).
        options = self.headers.get("CONNECTION", "")
        if "," in options and "close" in {each.strip().lower() for each in options.split(",")}:
            self.headers["CONNECTION"] = "close"

    def received(self, data: bytes) -> int:
        """Parse bytes of one request; return how many belong to it."""
        try:
            consumed: int = super().received(data)
        except ValueError:  # an address or a length that waitress 3.0.2 does not check before it reads it
            self.error, consumed = BadRequest("The address or the Content-Length is invalid"), len(data)
        if self.error is None and self.chunked and self.body_rcv.chunk_remainder > MAX_BODY_BYTES:
            self.error = RequestEntityTooLarge("A chunk is larger than a body may be")  # known before it has come
        if self.error is not None:
            self.completed = True
            # waitress 3.0.2 would ask for the body that it has just refused (100 Continue) and wait for it.
            self.expect_continue = False
        return consumed


def _fault(header_plus: bytes, version: str, is_chunked: bool, headers: Mapping[str, str]) -> str | None:
    """Return what is wrong with a request line and headers that waitress has read."""
    if version not in {"1.0", "1.1"}:
        return "The version is not HTTP/1.0 or HTTP/1.1"
    if _FOLD.search(header_plus):
        return "A header line begins with a blank (obsolete line folding)"
    hosts = _HOST.findall(header_plus)
    if len(hosts) > 1 or (version == "1.1" and not hosts):
        return "A request has one Host header, in HTTP/1.1 exactly one"
    if hosts and not _URI_HOST.fullmatch(hosts[0]):
        return "The Host header is not a host with or without a port"
    if "TRANSFER_ENCODING" in headers:  # where waitress obeys it, it takes it away
        return "HTTP/1.0 has no Transfer-Encoding"
    if is_chunked and "CONTENT_LENGTH" in headers:
        return "Content-Length and Transfer-Encoding exclude each other"
    return None


class _Task(WSGITask):  # type: ignore[misc]  # waitress has no types
    """Keeps the connection open after 204 and 304, which waitress 3.0.2 closes for want of a Content-Length."""

    def set_close_on_finish(self) -> None:
        asked = self.request.headers.get("CONNECTION", "").lower() == "close"
        if self.has_body or asked or self.version != "1.1":
            super().set_close_on_finish()


class _ErrorTask(ErrorTask):  # type: ignore[misc]  # waitress has no types
    """Sends waitress's own refusals in the form of this API."""

    def execute(self) -> None:
        self.channel.refused = True
        text = str(self.request.error.body)
        error: errors.ApiError
        match self.request.error.code:
            case 400:
                error = errors.InvalidRequestError(text)
            case 413:
                error = errors.PayloadTooLargeError(f"The body is larger than {MAX_BODY_BYTES} bytes")
            case 431:
                error = errors.HeadersTooLargeError(f"The header section is larger than {MAX_HEADER_BYTES} bytes")
            case 501:
                error = errors.UnsupportedTransferError(text)
            case _:
                error = errors.InternalError()
        # The headers of some requests could not be read.
        words = getattr(self.request, "first_line", b"").decode("latin-1").split(" ")
        method = getattr(self.request, "command", words[0])
        path = getattr(self.request, "path", words[1].partition("?")[0] if len(words) > 1 else "")
        body = error_body(error, method, path)
        self.status = f"{error.status.value} {error.status.phrase}"
        self.response_headers.extend([("Content-Type", JSON), (REQUEST_ID, new_request_id()), *CORS_FIELDS])
        self.set_close_on_finish()
        self.content_length = len(body)
        self.write(b"" if method == "HEAD" else body)


class Channel(HTTPChannel):  # type: ignore[misc]  # waitress has no types
    """Uses our parser and tasks, serves one request at a time, makes room, and waits until a refusal has arrived.

    A connection that is closed while the caller still sends is reset, and the caller may never read why it was refused.
    So after a refusal our side is closed first, and what still comes is thrown away for a while (RFC 9112 section 9.6).
    """

    parser_class = Parser
    task_class = _Task
    error_task_class = _ErrorTask
    refused = False
    lingering = False
    lingers_until = 0.0
    thrown_away = 0
    request: Parser | None
    sent_continue: bool
    unparsed = b""  # received behind the request that is being served

    def __init__(self, server: Any, *arguments: Any, **named: Any) -> None:
        others = list(server.active_channels.values())
        super().__init__(server, *arguments, **named)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        # Else connections that are idle or unread would keep all others out until they time out.
        if len(others) >= _CROWDED:
            idle = [each for each in others if each.is_idle() or each.is_unread(_PATIENCE_SECONDS)]
            if idle:
                min(idle, key=attrgetter("last_activity")).abandon()

    def is_idle(self) -> bool:
        """Return whether no request has arrived whole and no answer is under way."""
        return not (self.requests or self.writable())

    def is_unread(self, seconds: float) -> bool:
        """Return whether it has waited for room to send for so many seconds."""
        return self.writable() and time.time() - self.last_activity > seconds

    def abandon(self) -> None:
        """Close at once. On the I/O thread."""
        self.unparsed = b""
        super().handle_close()

    def readable(self) -> bool:
        """Return whether to wait for bytes; close what is overdue."""
        now = time.monotonic()
        if self.lingering:
            self.will_close = now > self.lingers_until or self.thrown_away > _LINGER_BYTES
            return not self.will_close
        if self.request is not None and not self.requests and now - self.request.began > REQUEST_SECONDS:
            self.will_close = True
        return bool(not self.unparsed and super().readable())

    def writable(self) -> bool:
        """Return whether to wait for room to send: for output, or for the next request to be served."""
        if self.requests and self.total_outbufs_len <= self.adj.outbuf_high_watermark:
            # Its worker thread sends, and pulls the trigger at the end. The loop could not take the lock on the output:
            # it would turn without a pause and keep the interpreter from that thread, 5 ms for each of its system
            # calls. 64 connections had 96 answers a second then, 4,900 now.
            return bool(self.will_close)
        return bool(super().writable() or self.unparsed)

    def received(self, data: bytes) -> None:
        """Buffer what was read, and serve the first request of it."""
        self.unparsed = data
        self._parse()

    def handle_write(self) -> None:
        """Send what waits; once all has left, serve the next request."""
        super().handle_write()
        if self.connected and not (self.requests or self.total_outbufs_len):
            self._parse()

    def _parse(self) -> None:
        """Parse up to the end of the next request and hand that to a worker thread. On the I/O thread."""
        with self.requests_lock:
            if self.will_close or self.close_when_flushed:
                self.unparsed = b""
            while self.unparsed and not self.requests:
                request: Parser = self.request or Parser(self.adj)
                self.request = request
                self.unparsed = self.unparsed[request.received(self.unparsed) :]
                if request.expect_continue and request.headers_finished and not self.sent_continue:
                    self.send_continue()
                if request.completed:
                    self.sent_continue, self.request = False, None
                    if not request.empty:
                        self.requests.append(request)
                        self.server.add_task(self)

    def handle_read(self) -> None:
        """Read; after a refusal throw it away."""
        if not self.lingering:
            super().handle_read()
            return
        try:
            received = len(self.recv(self.adj.recv_bytes))
        except OSError:
            received = 0
        self.thrown_away += received
        if not received:
            self.abandon()

    def handle_close(self) -> None:
        """Close; after a refusal our side first."""
        if self.refused and not self.lingering and self.connected:
            self.lingering, self.lingers_until = True, time.monotonic() + _LINGER_SECONDS
            self.will_close = self.close_when_flushed = False
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_WR)
        else:
            self.abandon()

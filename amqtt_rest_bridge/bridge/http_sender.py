"""Sends the requests of one route: kept connections, proxies, TLS, redirects. Client workers run it, several at once.

urllib3 makes the connections (TCP, TLS); what goes over them is written and read by `http_exchange`. Of the 100 us that
a call through urllib3's connection takes, 70 go into objects this bridge has no use for, and its timeouts bound single
reads only, so that a server that drips bytes would never be cut off.
"""

import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock
from time import monotonic
from urllib.parse import urlsplit

from urllib3.util.connection import create_connection
from urllib3.util.ssl_ import ssl_wrap_socket

from amqtt_rest_bridge.bridge import http_failures, http_tls, http_wire
from amqtt_rest_bridge.bridge.client_results import describe_status
from amqtt_rest_bridge.bridge.http_connection import Connection, Pool
from amqtt_rest_bridge.bridge.http_exchange import ConnectionClosed, Inbound, Phase, Progress, exchange
from amqtt_rest_bridge.bridge.http_origin import (
    MOST_REDIRECTS,
    REDIRECTS,
    Origin,
    may_follow,
    origin_of,
    printable,
    resolve,
    split_base_address,
)
from amqtt_rest_bridge.bridge.http_proxies import Proxy, find_proxy
from amqtt_rest_bridge.bridge.http_resolver import Resolver
from amqtt_rest_bridge.bridge.http_wire import BodyTooLarge, Head, MalformedResponse
from amqtt_rest_bridge.model import HttpRequest, HttpResponse, Method, RestApiConfig

# Decision: an address that does not answer holds up those after it no longer than this (the idea of RFC 8305).
_PATIENCE = 3.0  # seconds
_SOCKET_OPTIONS: list[tuple[int, int, int | bytes]] = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
]
_SAFE_TO_REPEAT = frozenset({Method.GET, Method.PUT, Method.DELETE})
_CLOSED = (ConnectionError, ConnectionClosed, ssl.SSLEOFError, ssl.SSLZeroReturnError)

_FAILURES = (OSError, ConnectionClosed, MalformedResponse, BodyTooLarge)  # what `exchange` raises

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Outgoing:
    """A request on its way: its head as bytes, and the clock's time by which its response must be there."""

    request: HttpRequest
    head: bytes
    deadline: float


class _Server:
    """Where requests go: an origin, the proxy on the way there, the connections kept to it."""

    def __init__(self, origin: Origin, proxy: Proxy | None, clock: Callable[[], float]) -> None:
        self.origin = origin
        self.proxy = proxy
        self.pool = Pool(clock)
        self.prefix = str(origin)
        self.is_tls = origin.scheme == "https"
        self.address = ""  # the one that connected last; tried first next time
        through = "" if proxy is None else f" through the proxy {proxy.origin.authority}"
        self.where = self.prefix + through
        # An http request goes to its proxy as it is, with the whole URL in its first line (RFC 9112 section 3.2.2).
        self.forwarded = proxy is not None and not self.is_tls
        self.target_prefix = self.prefix if self.forwarded else ""
        self.proxy_headers: Headers = ()
        if proxy is not None and proxy.authorization is not None:
            self.proxy_headers = (("Proxy-Authorization", proxy.authorization),)


class HttpSender:
    """Send requests to the server of a route's BASE_ADDRESS; for any number of threads at once.

    Raises:
        ConfigurationError: BASE_ADDRESS, a file for TLS or a proxy variable of `environment` cannot be used.
    """

    def __init__(
        self,
        config: RestApiConfig,
        *,
        max_response_bytes: int,
        environment: Mapping[str, str],
        clock: Callable[[], float] = monotonic,
        resolver: Resolver | None = None,
    ) -> None:
        self._config = config
        self._limit = max_response_bytes
        self._environment = environment
        self._clock = clock
        self._resolver = resolver or Resolver()
        self._seconds = float(config.request_timeout)
        self._context = http_tls.client_context(config) if http_tls.has_files(config) else None
        self._lock = Lock()
        origin, _ = split_base_address(config.base_address or "")
        self._server = self._server_of(origin)
        self._upgraded: _Server | None = None  # the same host's HTTPS, when a redirect led there

    def send(self, request: HttpRequest) -> HttpResponse:
        """Send a request and read its response, following a GET's redirects on the same host and port.

        Blocks for REQUEST_TIMEOUT at most. Any status is a response, that of a redirect which may not be followed
        among them: `client_results.failure_of` says what is a failure.

        Raises:
            CallFailed: `timeout`, `connection_failed`, `tls_failed` or `response_too_large`.
        """
        started = self._clock()
        deadline = started + self._seconds
        server, target = self._server, self._target(request.url)
        headers = _complete(request, server.origin)
        head, body = self._attempt(server, request, target, headers, deadline)
        if head.status in REDIRECTS and request.method is Method.GET:
            head, body = self._follow(request, head, body, headers, deadline)
        return HttpResponse(head.status, head.reason, head.headers, body, self._clock() - started)

    def close(self) -> None:
        """Close idle connections at once, and those in use when their request is done."""
        for server in (self._server, self._upgraded):
            if server is not None:
                server.pool.close()

    def _target(self, url: str) -> str:
        """Give what stands in the request line for a URL of this sender's server."""
        prefix = self._server.prefix
        if url.startswith(prefix + "/") and url.isascii() and " " not in url:
            return url[len(prefix) :]
        parts = urlsplit(url)
        if origin_of(parts) != self._server.origin:
            raise ValueError("this sender only sends to the server of its route")
        return printable((parts.path or "/") + (f"?{parts.query}" if parts.query else ""))

    def _follow(
        self, request: HttpRequest, head: Head, body: bytes, headers: Headers, deadline: float
    ) -> tuple[Head, bytes]:
        """Follow redirects as far as decisions allow; what may not be followed is the response."""
        url = request.url
        for _ in range(MOST_REDIRECTS):
            location = next((value for name, value in head.headers if name.lower() == "location"), None)
            resolved = None if location is None else resolve(url, location)
            if head.status not in REDIRECTS or resolved is None or not may_follow(self._server.origin, resolved[0]):
                break
            origin, target = resolved
            url = f"{origin}{target}"
            server = self._server if origin == self._server.origin else self._upgrade(origin)
            head, body = self._attempt(server, request, target, headers, deadline)
        return head, body

    def _upgrade(self, origin: Origin) -> _Server:
        with self._lock:
            if self._upgraded is None:
                self._upgraded = self._server_of(origin)
            return self._upgraded

    def _server_of(self, origin: Origin) -> _Server:
        return _Server(origin, find_proxy(origin, self._environment), self._clock)

    def _attempt(
        self, server: _Server, request: HttpRequest, target: str, headers: Headers, deadline: float
    ) -> tuple[Head, bytes]:
        """Send a request over a kept connection, or over a new one when none is kept or the kept one proves closed."""
        if server.forwarded:
            headers = (*headers, *server.proxy_headers)
        head = http_wire.write_head(request.method, server.target_prefix + target, headers)
        outgoing = _Outgoing(request, head, deadline)
        kept = server.pool.take()
        if kept is not None:
            answer = self._exchange(server, kept, outgoing, kept=True)
            if answer is not None:
                return answer
        answer = self._exchange(server, self._connect(server, deadline), outgoing, kept=False)
        assert answer is not None  # noqa: S101  # for mypy: None only says that a kept connection was closed
        return answer

    def _exchange(
        self, server: _Server, connection: Connection, outgoing: _Outgoing, *, kept: bool
    ) -> tuple[Head, bytes] | None:
        """Exchange a request for its response; None when the server had closed a kept connection meanwhile."""
        progress = Progress()
        try:
            head, body, reusable = exchange(
                connection,
                outgoing.head,
                outgoing.request.body,
                deadline=outgoing.deadline,
                limit=self._limit,
                clock=self._clock,
                progress=progress,
            )
        except _FAILURES as error:
            connection.close()
            if kept and _was_closed_before(error, progress, outgoing.request):
                return None
            raise http_failures.exchange_failed(
                server.where, error, progress, seconds=self._seconds, limit=self._limit
            ) from error
        if reusable:
            server.pool.give(connection, head.keep_alive_seconds)
        else:
            connection.close()
        return head, body

    def _connect(self, server: _Server, deadline: float) -> Connection:
        sock = self._dial(server, deadline)
        try:
            if server.is_tls:
                if server.proxy is not None:
                    self._open_tunnel(sock, server, deadline)
                sock = self._start_tls(sock, server, deadline)
        except BaseException:
            sock.close()
            raise
        return Connection(sock)

    def _dial(self, server: _Server, deadline: float) -> socket.socket:
        """Connect to the first address of a server, or of the proxy before it, that takes the connection."""
        origin = server.origin if server.proxy is None else server.proxy.origin
        error: OSError = TimeoutError()
        try:
            addresses = self._resolver.addresses(origin.host, origin.port, deadline - self._clock())
            addresses.sort(key=lambda address: address != server.address)  # the one that worked before goes first
            for number, address in enumerate(addresses, 1):
                remaining = deadline - self._clock()
                if remaining <= 0:
                    raise TimeoutError
                timeout = remaining if number == len(addresses) else min(remaining, _PATIENCE)
                try:
                    sock = create_connection((address, origin.port), timeout, socket_options=_SOCKET_OPTIONS)
                except OSError as refused:
                    error = refused
                else:
                    server.address = address
                    return sock
        except OSError as failed:
            error = failed
        raise http_failures.connecting_failed(server.where, error, self._seconds) from error

    def _open_tunnel(self, sock: socket.socket, server: _Server, deadline: float) -> None:
        """Ask the proxy for a tunnel to the server (RFC 9110 section 9.3.6)."""
        authority = f"{server.origin.authority.removesuffix(':443')}:{server.origin.port}"
        head = http_wire.write_head("CONNECT", authority, (("Host", authority), *server.proxy_headers))
        inbound = Inbound(Connection(sock), deadline, self._clock, Progress(Phase.WAITING))
        try:
            sock.settimeout(max(inbound.remaining(), 0.001))
            sock.sendall(head)
            answer = inbound.head()
        except OSError as error:
            raise http_failures.connecting_failed(server.where, error, self._seconds) from error
        except _FAILURES as error:
            raise http_failures.proxy_failed(server.where, "with something that is not HTTP") from error
        if not 200 <= answer.status < 300:
            raise http_failures.proxy_failed(server.where, describe_status(answer.status))

    def _start_tls(self, sock: socket.socket, server: _Server, deadline: float) -> socket.socket:
        """Do the TLS handshake; the certificate is checked against the name in BASE_ADDRESS, or its address."""
        if self._context is None:
            self._context = http_tls.client_context(self._config)
        try:
            # The handshake as a whole is bounded by the socket's timeout.
            sock.settimeout(max(deadline - self._clock(), 0.001))
            name = server.origin.host.rstrip(".").partition("%")[0]
            return ssl_wrap_socket(sock, server_hostname=name, ssl_context=self._context)
        except TimeoutError as error:
            raise http_failures.connecting_failed(server.where, error, self._seconds) from error
        except OSError as error:
            raise http_failures.tls_failed(server.where, error) from error


def _complete(request: HttpRequest, origin: Origin) -> Headers:
    """Add Host and Content-Length when they are missing; `PreparedEvent.build` has put both in."""
    names = {name.lower() for name, _ in request.headers}
    headers = request.headers
    if "host" not in names:
        headers = (("Host", origin.authority), *headers)
    if request.body is not None and "content-length" not in names:
        headers = (*headers, ("Content-Length", str(len(request.body))))
    return headers


def _was_closed_before(error: Exception, progress: Progress, request: HttpRequest) -> bool:
    """Tell that a kept connection was closed by its server and the request may be sent over another one.

    RFC 9112 section 9.3.1: a client may repeat a request by itself when nothing of a response came and repeating does
    no harm. So a POST or PATCH is repeated only when not one byte of it could be sent, or with an Idempotency-Key.
    """
    if not isinstance(error, _CLOSED) or progress.phase not in (Phase.SENDING, Phase.WAITING):
        return False
    return (
        not progress.sent
        or request.method in _SAFE_TO_REPEAT
        or any(name.lower() == "idempotency-key" for name, _ in request.headers)
    )

"""Sends the requests of one route: kept connections, proxies, TLS, redirects. Client workers run it, several at once.

urllib3's connections are used directly, without its pools: half the time (see `tests/benchmarks/http_sender.py`),
and a deadline can be put below them that bounds a call as a whole (`http_connection`).
"""

import errno
import http.client as http_client
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from threading import Lock
from time import monotonic
from typing import NamedTuple
from urllib.parse import urlsplit

from urllib3.connection import HTTPConnection
from urllib3.util.connection import create_connection

from amqtt_rest_bridge.errors import CallError, ConfigurationError
from amqtt_rest_bridge.http_client import failures, tls
from amqtt_rest_bridge.http_client.connection import Connection, DeadlineSocket, HeadTooLargeError, NotHttpError, Pool
from amqtt_rest_bridge.http_client.content import ContentTooLargeError, MalformedContentError
from amqtt_rest_bridge.http_client.exchange import (
    Headers,
    MalformedResponseError,
    Received,
    connect,
    exchange,
)
from amqtt_rest_bridge.http_client.origin import (
    MOST_REDIRECTS,
    REDIRECTS,
    Origin,
    may_follow,
    origin_of,
    printable,
    resolve,
    split_base_address,
)
from amqtt_rest_bridge.http_client.proxies import Proxy, find_proxy
from amqtt_rest_bridge.http_client.resolver import Resolver
from amqtt_rest_bridge.model import HttpRequest, HttpResponse, Method, RestApiConfig

# Decision: an address that does not answer holds up those after it no longer than this (the idea of RFC 8305).
_PATIENCE = 3.0  # seconds
_SOCKET_OPTIONS: list[tuple[int, int, int | bytes]] = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
]
_SAFE_TO_REPEAT = frozenset({Method.GET, Method.PUT, Method.DELETE})
_CLOSED = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)

_NOT_HTTP = (HTTPException, NotHttpError, MalformedResponseError, MalformedContentError)
_FAILURES = (OSError, HeadTooLargeError, ContentTooLargeError, *_NOT_HTTP)  # what `exchange` raises


class _Outgoing(NamedTuple):
    """A request on its way: what stands in its head, and the time of the clock by which its response must be there."""

    request: HttpRequest
    target: str
    headers: Headers
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
        self.forwarded = proxy is not None and not self.is_tls
        self.proxy_headers: Headers = ()
        if proxy is not None and proxy.authorization is not None:
            self.proxy_headers = (("Proxy-Authorization", proxy.authorization),)


class HttpSender:
    """Send requests to the server of a route's BASE_ADDRESS; for any number of threads at once.

    Files for TLS are looked at for each new connection, so a route whose files are gone costs no other route anything.
    Senders that are given the same `contexts` read a file once.

    Raises:
        ConfigurationError: BASE_ADDRESS or a proxy variable of `environment` cannot be used.
    """

    def __init__(
        self,
        config: RestApiConfig,
        *,
        max_response_bytes: int,
        environment: Mapping[str, str],
        clock: Callable[[], float] = monotonic,
        resolver: Resolver | None = None,
        contexts: tls.Contexts | None = None,
    ) -> None:
        self._config = config
        self._limit = max_response_bytes
        self._environment = environment
        self._clock = clock
        self._resolver = resolver or Resolver()
        self._seconds = float(config.request_timeout)
        self._contexts = contexts or tls.Contexts()
        self._context: ssl.SSLContext | None = None  # of the last new connection
        self._lock = Lock()
        origin, _ = split_base_address(config.base_address or "")
        self._server = self._server_of(origin)
        self._upgraded: _Server | None = None  # the same host's HTTPS, when a redirect led there

    def send(self, request: HttpRequest) -> HttpResponse:
        """Send a request and read its response, following a GET's redirects on the same host and port.

        Blocks for REQUEST_TIMEOUT at most. Any status is a response, that of a redirect which may not be followed
        among them: `client_results.failure_of` says what is a failure.

        Raises:
            CallError: `timeout`, `connection_failed`, `tls_failed` or `response_too_large`.
        """
        started = self._clock()
        deadline = started + self._seconds
        target = self._target(request.url)
        outgoing = _Outgoing(request, target, _complete(request, self._server.origin), deadline)
        received = self._attempt(self._server, outgoing)
        if received.status in REDIRECTS and request.method is Method.GET:
            received = self._follow(outgoing, received)
        return HttpResponse(received.status, received.reason, received.headers, received.body, self._clock() - started)

    def expire(self) -> None:
        """Close connections that have been idle for too long."""
        for server in self._servers():
            server.pool.expire()

    def close(self) -> None:
        """Close idle connections at once, and those in use when their request is done."""
        for server in self._servers():
            server.pool.close()

    def _servers(self) -> list[_Server]:
        return [server for server in (self._server, self._upgraded) if server is not None]

    def _target(self, url: str) -> str:
        """Give what stands in the request line for a URL of this sender's server."""
        prefix = self._server.prefix
        if url.startswith(prefix + "/") and url.isascii() and " " not in url:
            return url[len(prefix) :]
        parts = urlsplit(url)
        if origin_of(parts) != self._server.origin:
            raise ValueError("this sender only sends to the server of its route")
        return printable((parts.path or "/") + (f"?{parts.query}" if parts.query else ""))

    def _follow(self, outgoing: _Outgoing, received: Received) -> Received:
        """Follow redirects as far as decisions allow; the one that may not be followed is the response."""
        url = outgoing.request.url
        for _ in range(MOST_REDIRECTS):
            location = next((value for name, value in received.headers if name.lower() == "location"), None)
            resolved = None if location is None else resolve(url, location)
            if received.status not in REDIRECTS or resolved is None or not may_follow(self._server.origin, resolved[0]):
                break
            origin, target = resolved
            url = f"{origin}{target}"
            server = self._server if origin == self._server.origin else self._upgrade(origin)
            received = self._attempt(server, outgoing._replace(target=target))
        return received

    def _upgrade(self, origin: Origin) -> _Server:
        with self._lock:
            if self._upgraded is None:
                self._upgraded = self._server_of(origin)
            return self._upgraded

    def _server_of(self, origin: Origin) -> _Server:
        return _Server(origin, find_proxy(origin, self._environment), self._clock)

    def _attempt(self, server: _Server, outgoing: _Outgoing) -> Received:
        """Send a request over a kept connection, or over a new one when none is kept or the kept one proves closed."""
        if server.forwarded:
            target = server.prefix + outgoing.target  # RFC 9112 section 3.2.2
            outgoing = outgoing._replace(target=target, headers=(*outgoing.headers, *server.proxy_headers))
        kept = server.pool.take()
        if kept is not None:
            try:
                return self._exchange(server, kept, outgoing)
            except _FAILURES as error:
                if not _was_closed_before(error, kept.wire, outgoing.request):
                    raise self._failed(server, error, kept.wire) from error
        connection = self._connect(server, outgoing.deadline)
        try:
            return self._exchange(server, connection, outgoing)
        except _FAILURES as error:
            raise self._failed(server, error, connection.wire) from error

    def _exchange(self, server: _Server, connection: Connection, outgoing: _Outgoing) -> Received:
        method, body = outgoing.request.method, outgoing.request.body
        keep = False
        connection.wire.start(outgoing.deadline)
        try:
            received = exchange(connection, method, outgoing.target, outgoing.headers, body, self._limit)
            keep = received.reusable
        finally:
            if not keep:
                connection.wire.release()
        if keep:
            server.pool.give(connection, received.keep_alive_seconds)
        return received

    def _failed(self, server: _Server, error: Exception, wire: DeadlineSocket) -> CallError:
        return failures.exchange_failed(server.where, error, wire, seconds=self._seconds, limit=self._limit)

    def _connect(self, server: _Server, deadline: float) -> Connection:
        context = self._tls_context(server.where) if server.is_tls else None
        sock = self._dial(server, deadline)
        try:
            if context is not None:
                if server.proxy is not None:
                    self._open_tunnel(sock, server, deadline)
                sock = self._start_tls(sock, context, server, deadline)
        except BaseException:
            sock.close()
            raise
        return self._over(sock, server.origin, deadline)

    def _over(self, sock: socket.socket, origin: Origin, deadline: float) -> Connection:
        """Make an HTTP connection of a connected socket, with the deadline below it."""
        return connect(HTTPConnection(origin.host, origin.port), DeadlineSocket(sock, self._clock, deadline))

    def _dial(self, server: _Server, deadline: float) -> socket.socket:
        """Connect to the first address of a server, or of the proxy before it, that takes the connection."""
        origin = server.origin if server.proxy is None else server.proxy.origin
        try:
            found = self._resolver.addresses(origin.host, origin.port, deadline - self._clock())
            addresses = sorted(found, key=lambda address: address != server.address)  # the one that worked goes first
            sock, server.address = self._dial_one_of(addresses, origin.port, deadline)
        except OSError as error:
            raise failures.connecting_failed(server.where, error, self._seconds) from error
        return sock

    def _dial_one_of(self, addresses: Sequence[str], port: int, deadline: float) -> tuple[socket.socket, str]:
        error: OSError = socket.gaierror("the name has no address")
        for number, address in enumerate(addresses, 1):
            remaining = deadline - self._clock()
            if remaining <= 0:
                raise TimeoutError
            timeout = remaining if number == len(addresses) else min(remaining, _PATIENCE)
            try:
                return create_connection((address, port), timeout, socket_options=_SOCKET_OPTIONS), address
            except socket.gaierror:  # urllib3's answer to an IPv6 address on a system without IPv6
                if isinstance(error, socket.gaierror):
                    error = OSError(errno.EAFNOSUPPORT, "")
            except OSError as refused:
                error = refused
        raise error

    def _open_tunnel(self, sock: socket.socket, server: _Server, deadline: float) -> None:
        """Ask the proxy for a tunnel to the server (RFC 9110 section 9.3.6)."""
        authority = server.origin.endpoint
        connection = self._over(sock, server.origin, deadline)
        http = connection.http
        try:
            http.putrequest("CONNECT", authority, skip_host=True, skip_accept_encoding=True)
            for name, value in (("Host", authority), *server.proxy_headers):
                http.putheader(name, value)
            http.endheaders()
            status = http_client.HTTPConnection.getresponse(http).status
        except OSError as error:
            raise failures.connecting_failed(server.where, error, self._seconds) from error
        except _FAILURES as error:
            raise failures.proxy_failed(server.where, "with something that is not HTTP") from error
        if not 200 <= status < 300:
            raise failures.proxy_failed(server.where, failures.describe_status(status))
        if not connection.wire.is_clean():
            raise failures.proxy_failed(server.where, "with more than the opening of a tunnel")

    def _tls_context(self, where: str) -> ssl.SSLContext:
        """Return the context for a new connection.

        Decision: while files that were in use cannot be used (gone, or being replaced), what they held goes on.
        """
        try:
            self._context = self._contexts.of(self._config)
        except ConfigurationError as error:
            if self._context is None:
                raise failures.files_unusable(where, error) from error
        return self._context

    def _start_tls(
        self, sock: socket.socket, context: ssl.SSLContext, server: _Server, deadline: float
    ) -> socket.socket:
        """Do the TLS handshake; the certificate is checked against the name in BASE_ADDRESS, or its address."""
        try:
            # The handshake as a whole is bounded by the socket's timeout.
            sock.settimeout(max(deadline - self._clock(), 0.001))
            name = server.origin.host.rstrip(".").partition("%")[0]
            return context.wrap_socket(sock, server_hostname=name)
        except TimeoutError as error:
            raise failures.connecting_failed(server.where, error, self._seconds) from error
        except OSError as error:
            raise failures.tls_failed(server.where, error) from error


def _complete(request: HttpRequest, origin: Origin) -> Headers:
    """Add Host and Content-Length when they are missing; `PreparedEvent.build` has put both in."""
    names = {name.lower() for name, _ in request.headers}
    headers = request.headers
    if "host" not in names:
        headers = (("Host", origin.authority), *headers)
    if request.body is not None and "content-length" not in names:
        headers = (*headers, ("Content-Length", str(len(request.body))))
    return headers


def _was_closed_before(error: Exception, wire: DeadlineSocket, request: HttpRequest) -> bool:
    """Tell that a kept connection was closed by its server and the request may be sent over another one.

    RFC 9112 section 9.3.1: a client may repeat a request by itself when nothing of a response came and repeating does
    no harm. So a POST or PATCH is repeated only when not one byte of it could be sent, or with an Idempotency-Key.
    """
    if wire.received or not isinstance(error, _CLOSED):
        return False
    return (
        not wire.sent
        or request.method in _SAFE_TO_REPEAT
        or any(name.lower() == "idempotency-key" for name, _ in request.headers)
    )

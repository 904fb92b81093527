"""The door: `HttpClient.send`. A request goes over a kept connection or a new one, and follows redirects.

One request may lead to others, so `exchange` is a generator that stops before each: there they can be counted.
Client workers run it, several at once. What a request meets on its way is raised as one `CallError`.
"""

import re
import ssl
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from threading import Lock
from time import monotonic
from typing import Protocol
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.http.origin import (
    MOST_REDIRECTS,
    REDIRECTS,
    Origin,
    find_proxy,
    may_follow,
    origin_of,
    resolve,
    target_of,
)
from amqtt_rest_bridge.http_client import transport_errors
from amqtt_rest_bridge.http_client.connecting import Connector, Resolver, Server
from amqtt_rest_bridge.http_client.connection import DeadlineSocket, Outgoing, Received
from amqtt_rest_bridge.http_client.tls import TlsContexts, TlsOptions
from amqtt_rest_bridge.http_client.transport_errors import EXCHANGE_ERRORS
from amqtt_rest_bridge.model import IDEMPOTENT, HttpRequest, HttpResponse, Method, Pairs, values_of

_RESPONSE = re.compile(r'\bresponse="([0-9a-f]{32,})"')  # of a digest: who has it can try passwords, or send it again
_CLOSED = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """The options of a client: its server, bounds, TLS and the environment in which a proxy is looked up.

    `timeout` is in seconds and bounds a call as a whole, `max_response_bytes` a body before and after decoding.
    `environment` is searched for HTTP_PROXY, HTTPS_PROXY and NO_PROXY; it may hold passwords.
    """

    origin: Origin
    timeout: float = 30.0
    max_response_bytes: int = 262_144
    tls: TlsOptions = field(default_factory=TlsOptions)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)


class Stopwatch(Struct):
    """How long the server has taken so far, in seconds; what passes between requests is not counted."""

    seconds: float = 0.0


Exchange = Generator[None, None, HttpResponse]
"""Yields before each request that it sends, and returns the last response."""


def finish(exchange: Exchange) -> HttpResponse:
    """Send the requests of an exchange one after the other, and return the last response; blocks."""
    while True:
        try:
            next(exchange)
        except StopIteration as end:
            response: HttpResponse = end.value
            return response


class Login(Protocol):
    """What answers the challenges of a server to one request."""

    def authorization(self, method: str, target: str) -> str | None:
        """Return the value of Authorization for the request to a path and query, None for none yet."""
        ...

    def repeats(self, status: int, headers: Pairs) -> bool:
        """Take note of the response; return whether the request is sent again; or `CallError`."""
        ...


class HttpClient:
    """Send requests to one server; for any number of threads at once.

    Files for TLS are read when a connection is opened, and their contents shared by clients with the same `contexts`.

    Args:
        options: Server, bounds, TLS, environment.
        clock: Monotonic seconds.
        resolver: Resolves host names; default: one that asks the system.
        contexts: TLS contexts shared with other clients; default: its own.
        login: Returns what answers the server's challenges to a request without an Authorization of its own; any number
            of threads call it.

    Raises:
        ConfigurationError: A proxy variable of the environment cannot be used.
    """

    def __init__(
        self,
        options: ClientOptions,
        *,
        clock: Callable[[], float] = monotonic,
        resolver: Resolver | None = None,
        contexts: TlsContexts | None = None,
        login: Callable[[], Login] | None = None,
    ) -> None:
        self._options = options
        self._clock = clock
        self._login = login
        self._connector = Connector(
            options.tls, contexts or TlsContexts(), resolver or Resolver(), seconds=options.timeout, clock=clock
        )
        self._lock = Lock()
        self._servers: dict[Origin, Server] = {}  # two at most: the same host's HTTPS, when a redirect led there
        self._server = self._server_of(options.origin)

    def send(self, request: HttpRequest, stopwatch: Stopwatch | None = None) -> HttpResponse:
        """Send a request and read its response, following a GET's redirects on the same host and port.

        Blocks for the timeout at most. Any status is a response, also that of a redirect which may not be followed:
        `redirect_refused` explains it. For `stopwatch` see `exchange`.

        Raises:
            CallError: `timeout`, `connection_failed`, `tls_failed` or `response_too_large`.
            ValueError: the URL is not of this client's server, or a header would change the shape of the request.
        """
        return finish(self.exchange(request, stopwatch or Stopwatch()))

    def exchange(self, request: HttpRequest, stopwatch: Stopwatch) -> Exchange:
        """Send a request as `send` does; stop before it, and before each redirect and repetition that follows it.

        The timeout bounds what `stopwatch` measures, with what it shows already; so pauses between requests are not
        counted, and two exchanges can share one timeout. `HttpResponse.elapsed` is what it shows at the end.
        """
        server, url, repeats = self._server, request.url, False
        target, headers = self._target(url), _complete(request, self._options.origin)
        limit = self._options.max_response_bytes
        redirects = MOST_REDIRECTS if request.method is Method.GET else 0
        login: Login | None = None
        credentials: set[str] = set()
        if self._login is not None and not values_of(headers, "authorization"):
            login = self._login()
        while True:
            yield
            started = self._clock()
            deadline = started + self._options.timeout - stopwatch.seconds
            authorization = None if login is None else login.authorization(request.method, target)
            credentials.update(_RESPONSE.findall(authorization or ""))
            sent = headers if authorization is None else (*headers, ("Authorization", authorization))
            outgoing = Outgoing(deadline, request.method, target, sent, request.body, limit)
            try:
                received = self._attempt(server, outgoing, repeats=repeats)
            finally:
                stopwatch.seconds += self._clock() - started
            repeats = received is None
            if received is None:
                continue
            if login is not None and login.repeats(received.status, received.headers):
                continue
            following = self._following(url, received) if redirects and received.status in REDIRECTS else None
            if following is None:
                return HttpResponse(
                    received.status,
                    received.reason,
                    received.headers,
                    received.body,
                    stopwatch.seconds,
                    server.credentials | credentials,
                )
            origin, target = following
            url, redirects = f"{origin}{target}", redirects - 1
            server = self._server_of(origin)

    def expire(self) -> None:
        """Close connections that have been idle for too long."""
        for server in tuple(self._servers.values()):
            server.pool.expire()

    def close(self) -> None:
        """Close idle connections at once, and those in use when their request is done."""
        for server in tuple(self._servers.values()):
            server.pool.close()

    def _server_of(self, origin: Origin) -> Server:
        with self._lock:
            if origin not in self._servers:
                proxy = find_proxy(origin, self._options.environment)
                self._servers[origin] = Server(origin, proxy, self._clock)
            return self._servers[origin]

    def _target(self, url: str) -> str:
        """Return the target in the request line for a URL of this client's server."""
        prefix = self._server.prefix
        if url.startswith(prefix + "/") and url.isascii() and " " not in url:
            return url[len(prefix) :]
        parts = urlsplit(url)
        if origin_of(parts) != self._server.origin:
            raise ValueError(f"this client only sends to {prefix}")
        return target_of(parts)

    def _following(self, url: str, received: Received) -> tuple[Origin, str] | None:
        """Return where a redirect leads, None when it may not be followed."""
        locations = values_of(received.headers, "location")
        resolved = resolve(url, locations[0]) if locations else None
        return resolved if resolved is not None and may_follow(self._server.origin, resolved[0]) else None

    def _attempt(self, server: Server, outgoing: Outgoing, *, repeats: bool) -> Received | None:
        """Send a request over a kept connection; over a new one when none is kept, or it is repeated.

        Return None when the server has closed the kept connection and may have seen the request, which is to be
        repeated; one that it cannot have seen goes over a new connection at once.
        """
        if server.forwarded:
            target = server.prefix + outgoing.target  # RFC 9112 section 3.2.2
            outgoing = replace(outgoing, target=target, headers=(*outgoing.headers, *server.proxy_headers))
        kept = None if repeats else server.pool.take()
        if kept is not None:
            try:
                return server.pool.exchange(kept, outgoing)
            except EXCHANGE_ERRORS as error:
                if not _was_closed_before(error, kept, outgoing):
                    raise self._failed(server, error, kept) from error
                if kept.sent:
                    return None
        connection = self._connector.connect(server, outgoing.deadline)
        try:
            return server.pool.exchange(connection, outgoing)
        except EXCHANGE_ERRORS as error:
            raise self._failed(server, error, connection) from error

    def _failed(self, server: Server, error: Exception, wire: DeadlineSocket) -> CallError:
        options = self._options
        return transport_errors.exchange_failed(
            server.where, error, wire, seconds=options.timeout, limit=options.max_response_bytes
        )


def _complete(request: HttpRequest, origin: Origin) -> Pairs:
    """Add Host and Content-Length when they are missing."""
    names = set(map(str.lower, dict(request.headers)))
    headers = request.headers
    if "host" not in names:
        headers = (("Host", origin.authority), *headers)
    if request.body is not None and "content-length" not in names:
        headers = (*headers, ("Content-Length", str(len(request.body))))
    return headers


def _was_closed_before(error: Exception, wire: DeadlineSocket, outgoing: Outgoing) -> bool:
    """Return whether a kept connection was closed by its server and the request may be sent over another one.

    RFC 9112 section 9.3.1: a client may repeat a request by itself when nothing of a response came and repeating does
    no harm. So a POST or PATCH is repeated only when not one byte of it could be sent, or with an Idempotency-Key.
    """
    if wire.received or not isinstance(error, _CLOSED):
        return False
    return not wire.sent or outgoing.method in IDEMPOTENT or bool(values_of(outgoing.headers, "idempotency-key"))

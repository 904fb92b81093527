"""`HttpClient.send`: a request to one server out, its response in, on libcurl and the event loop.

libcurl connects, keeps connections, speaks TLS, HTTP/1.1 and HTTP/2, goes through proxies and bounds time and bytes.
Here is what a route's promises add: redirects by our rule, a Digest login, a turn before each request that leaves, and
which request may be sent twice. A kept connection is looked at before it is used, since libcurl looks only once a
second: one that was closed, or on which something came unasked, is replaced.

pycurl 7.47 is the first version with `AsyncCurlMulti`.
"""

import asyncio
import contextlib
import re
import secrets
import select
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import urlsplit

import pycurl

from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.http import failures
from amqtt_rest_bridge.http.content import ContentTooLargeError, MalformedResponseError, decode_content
from amqtt_rest_bridge.http.digest import DigestLogin, RequestLogin
from amqtt_rest_bridge.http.failures import Ended, Phase
from amqtt_rest_bridge.http.head import CutHeadError, Head, HeadTooLargeError, read_head
from amqtt_rest_bridge.http.origin import (
    MOST_REDIRECTS,
    REDIRECTS,
    Origin,
    Proxy,
    find_proxy,
    may_follow,
    origin_of,
    resolve,
    target_of,
)
from amqtt_rest_bridge.http.tls import Settings, TlsOptions, TlsSettings
from amqtt_rest_bridge.masking import credentials_of
from amqtt_rest_bridge.model import (
    IDEMPOTENT,
    AuthScheme,
    HttpRequest,
    HttpResponse,
    Method,
    Pairs,
    RestApiConfig,
    values_of,
)

# Shorter than the 60 s after which common load balancers and servers close an idle connection, so that a request rarely
# meets a connection that is just being closed.
LONGEST_IDLE: Final = 55.0
"""Seconds that an idle connection is kept."""
_MOST_CONNECTIONS: Final = 1024
_QUICK_ACK: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)  # Linux has it
_LARGE: Final = 65_536  # bytes of a body that a handle at rest does not hold
_KEEP_ALIVE_TIMEOUT: Final = re.compile(r"\btimeout\s*=\s*([0-9]{1,6})", re.IGNORECASE)
_DIGEST_RESPONSE: Final = re.compile(r'\bresponse="([0-9a-f]{32,})"')  # who has it can try passwords, or send it again
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_SHAPE: Final = re.compile(r"[\r\n\0]")
_CONTROL: Final = re.compile(r"[\x00-\x20\x7f]")
_SUPPRESS_CONNECT_HEADERS: Final = 265  # pycurl does not name it
_ALWAYS: Final = (
    (pycurl.NOSIGNAL, 1),
    (pycurl.TCP_KEEPALIVE, 1),
    (pycurl.PATH_AS_IS, 1),
    (pycurl.HTTP09_ALLOWED, 1),  # what is no HTTP at all comes as a body without a head, and is told apart
    (pycurl.HTTP_CONTENT_DECODING, 0),  # libcurl fails with a coding that it does not know; here such a body stays
    (pycurl.MAXAGE_CONN, int(LONGEST_IDLE)),
    (_SUPPRESS_CONNECT_HEADERS, 1),
    (pycurl.HEADEROPT, pycurl.HEADER_SEPARATE),
)
# libcurl sends these by itself.
_UNASKED: Final = ["Expect:", "Accept:", "User-Agent:"]

Turn = Callable[[], Awaitable[None]]
"""Returns when the next request may leave."""


def client_for(
    config: RestApiConfig, server: str, *, max_response_bytes: int, environment: Mapping[str, str]
) -> "HttpClient":
    """Return what sends requests to a server, with the timeout, TLS files, proxies and Digest login of a route.

    Args:
        config: That of the route.
        server: BASE_ADDRESS or OAUTH2_TOKEN_URL; only the former gets a Digest login.
        max_response_bytes: A larger body is refused.
        environment: For HTTP_PROXY, HTTPS_PROXY, NO_PROXY.

    Raises:
        ConfigurationError: The address or a proxy variable cannot be used.
    """
    try:
        origin = origin_of(urlsplit(server))
    except ValueError as error:
        raise ConfigurationError(f"{server.split('?')[0]} is not an address: {error}") from error
    tls = TlsOptions(not config.ignore_cert_errors, config.ca_file, config.client_cert_file, config.client_key_file)
    options = ClientOptions(origin, float(config.request_timeout), max_response_bytes, tls, environment)
    if config.auth_scheme is not AuthScheme.DIGEST or server != config.base_address:
        return HttpClient(options)
    login = DigestLogin(config, lambda: secrets.token_hex(16))
    return HttpClient(options, login=lambda: RequestLogin(login))


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """The options of a client: its server, bounds, TLS and the environment in which a proxy is looked up.

    `timeout` is in seconds and bounds an attempt as a whole, `max_response_bytes` a body before and after decoding.
    `environment` is searched for HTTP_PROXY, HTTPS_PROXY and NO_PROXY; it may hold passwords. `addresses` are those of
    host names, by name and port, in place of the system's; for tests.
    """

    origin: Origin
    timeout: float = 30.0
    max_response_bytes: int = 262_144
    tls: TlsOptions = field(default_factory=TlsOptions)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    addresses: Mapping[tuple[str, int], tuple[str, ...]] = field(default_factory=dict, hash=False)


class Login(Protocol):
    """What answers the challenges of a server to one request; `digest.RequestLogin` does."""

    def authorization(self, method: str, target: str) -> str | None:
        """Return the value of Authorization for the request to a path and query, None for none yet."""
        ...

    def repeats(self, status: int, headers: Pairs) -> bool:
        """Take note of the response; return whether the request is sent again; or `CallError`."""
        ...


class HttpClient:
    """Sends requests to one server; any number at once, on one event loop.

    Args:
        options: Server, bounds, TLS, environment.
        login: Returns what answers the server's challenges to a request without an Authorization of its own.
        clock: Monotonic seconds.

    Raises:
        ConfigurationError: A proxy variable of the environment cannot be used.
    """

    def __init__(
        self,
        options: ClientOptions,
        *,
        login: Callable[[], Login] | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._options = options
        self._login = login
        self._connections = _Connections(options, clock)
        self._origin = options.origin
        self._server = _Server(options.origin, options)
        self._servers = {options.origin: self._server}  # two at most: a redirect may lead to the same host's HTTPS
        self._clock = clock

    async def send(self, request: HttpRequest, *, turn: Turn | None = None) -> HttpResponse:
        """Send a request and read its response, following a GET's redirects on the same host and port.

        Any status is a response, also that of a redirect which may not be followed: `failures.redirect_refused`
        explains it.

        Args:
            request: What is sent.
            turn: Awaited before each request that leaves: redirects and repetitions are requests too. The time of that
                wait is neither part of the timeout nor of `HttpResponse.elapsed`.

        Raises:
            CallError: `timeout`, `connection_failed`, `tls_failed` or `response_too_large`.
            ValueError: The URL is not of this client's server, or a header would change the shape of the request.
        """
        server, url, spent, is_repeated = self._server, request.url, 0.0, False
        target, lines = self._target(url), _header_lines(request)
        redirects = MOST_REDIRECTS if request.method is Method.GET else 0
        login = self._login() if self._login is not None and not values_of(request.headers, "authorization") else None
        credentials = server.credentials
        while True:
            if turn is not None:
                await turn()
            authorization = None if login is None else login.authorization(request.method, target)
            sent = lines
            if authorization is not None:
                sent = [*lines, f"Authorization: {authorization}"]
                credentials = credentials.union(_DIGEST_RESPONSE.findall(authorization))
            began = self._clock()
            try:
                received = await self._attempt(server, target, request, sent, self._options.timeout - spent)
            except _ClosedBeforeError:  # a kept connection, by its server, before anything of a response came
                if is_repeated or not _may_repeat(request):
                    raise failures.closed_before(server.where) from None
                is_repeated = True
                continue
            finally:
                spent += self._clock() - began
            if login is not None and login.repeats(received.head.status, received.head.fields):
                continue
            following = self._following(url, received.head) if redirects else None
            if following is None:
                status, reason, fields, _ = received.head
                return HttpResponse(status, reason, fields, received.body, spent, credentials)
            origin, target = following
            url, redirects = f"{origin}{target}", redirects - 1
            if origin not in self._servers:
                self._servers[origin] = _Server(origin, self._options)
            server = self._servers[origin]
            credentials = credentials | server.credentials

    def close(self) -> None:
        """Close idle connections; requests under way go on, and later ones are possible."""
        self._connections.close()

    def _target(self, url: str) -> str:
        """Return path and query of a URL of this client's server."""
        prefix = self._server.prefix
        if url.startswith(prefix + "/") and url.isascii() and "#" not in url:
            target = url[len(prefix) :]
        elif origin_of(parts := urlsplit(url)) == self._origin:
            target = target_of(parts)
        else:
            raise ValueError(f"this client only sends to {prefix}")
        if _CONTROL.search(target):
            raise ValueError("Invalid method or target")
        return target

    def _following(self, url: str, head: Head) -> tuple[Origin, str] | None:
        """Return where a redirect leads, None when it may not be followed."""
        locations = values_of(head.fields, "location") if head.status in REDIRECTS else []
        resolved = resolve(url, locations[0]) if locations else None
        return resolved if resolved is not None and may_follow(self._origin, resolved[0]) else None

    async def _attempt(
        self, server: "_Server", target: str, request: HttpRequest, lines: list[str], seconds: float
    ) -> "_Received":
        where, limit = server.where, self._options.max_response_bytes
        try:
            transfer = self._connections.transfer(server)
        except ConfigurationError as error:
            raise failures.files_unusable(where, error) from error
        transfer.prepare(server.base + target, request, lines, seconds)
        ended = await self._connections.run(transfer)
        while ended is _STALE:  # a kept connection that could not be used; nothing was sent
            ended = await self._connections.run(transfer)
        try:
            return transfer.received(ended, where, seconds=self._options.timeout, limit=limit)
        finally:
            self._connections.release(transfer)


class _ClosedBeforeError(Exception):
    """A server has closed a kept connection and may have seen the request; nothing of a response came."""


class _Received(NamedTuple):
    """A response read to its end, its content coding undone."""

    head: Head
    body: bytes


class _Server:
    """One origin as libcurl is told of it: what URLs begin with, the proxy on the way, and the settings of both."""

    def __init__(self, origin: Origin, options: ClientOptions) -> None:
        proxy = find_proxy(origin, options.environment)
        self.is_tls = origin.scheme == "https"
        self.prefix = str(origin)
        name, _, zone = origin.host.partition("%")  # of an IPv6 address; libcurl reads its zone as RFC 6874 writes it
        self.base = self.prefix if not zone else f"{origin.scheme}://[{name}%25{zone}]:{origin.port}"
        self.where = self.prefix if proxy is None else f"{self.prefix} through the proxy {proxy.origin.authority}"
        self.credentials = frozenset() if proxy is None or self.is_tls else credentials_of(_proxy_headers(proxy))
        named = {f"{host}:{port}:{','.join(found)}" for (host, port), found in options.addresses.items()}
        self.settings: Settings = (*_proxy_settings(proxy), *([(pycurl.RESOLVE, sorted(named))] if named else ()))


def _proxy_settings(proxy: Proxy | None) -> Settings:
    if proxy is None:
        return ((pycurl.PROXY, ""),)  # else libcurl reads the environment by rules of its own
    lines = [f"{name}: {value}" for name, value in _proxy_headers(proxy)]
    return (pycurl.PROXY, str(proxy.origin)), (pycurl.NOPROXY, ""), (pycurl.PROXYHEADER, lines)


def _proxy_headers(proxy: Proxy) -> Pairs:
    return () if proxy.authorization is None else (("Proxy-Authorization", proxy.authorization),)


@dataclass(slots=True)
class _Connection:
    """A connection of libcurl: its descriptor, and until when it may be used again."""

    descriptor: int
    until: float = inf


class _Connections:
    """The connections of a client: libcurl's, with the handles that use them; closed when none was used for long.

    libcurl keeps a connection by itself. `_known` is for what libcurl does not look at: what came on a connection while
    it was idle, and for how long its server wants to keep it.
    """

    def __init__(self, options: ClientOptions, clock: Callable[[], float]) -> None:
        self._tls = TlsSettings(options.tls)
        self._clock = clock
        self._limit = options.max_response_bytes
        self._multi: pycurl.AsyncCurlMulti | None = None
        self._free: list[_Transfer] = []
        self._running = 0
        self._used = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._known: dict[int, _Connection] = {}  # by local port; those that libcurl has closed among them

    def transfer(self, server: "_Server") -> "_Transfer":
        """Return a handle for a request. Raises `ConfigurationError` for TLS files that cannot be used."""
        settings = (*self._tls.current(), *server.settings) if server.is_tls else server.settings
        transfer = self._free.pop() if self._free else _Transfer(self, self._limit)
        transfer.use(settings)
        return transfer

    async def run(self, transfer: "_Transfer") -> Ended | None:
        """Send what a handle was prepared with; return how it ended: `_STALE`, or None with a response."""
        if self._multi is None:
            self._multi = pycurl.AsyncCurlMulti()
            self._multi.setopt(pycurl.M_MAXCONNECTS, _MOST_CONNECTIONS)
        self._running += 1
        try:
            await self._multi.perform(transfer.easy)
        except pycurl.error as error:
            return transfer.ended(*error.args)
        finally:
            self._running -= 1
        return None

    def release(self, transfer: "_Transfer") -> None:
        """Keep a handle, and its connection, for a later request."""
        self._used = self._clock()
        if transfer.is_reusable():
            self._free.append(transfer)
        else:
            transfer.easy.close()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LONGEST_IDLE, self._look)

    def opened(self, port: int, descriptors: list[int]) -> None:
        """Note a new connection with a local port: that of one of the sockets that were opened for it."""
        self._known = {known: one for known, one in self._known.items() if one.descriptor not in descriptors}
        for descriptor in descriptors:
            if _local_port(descriptor) == port:
                self._known[port] = _Connection(descriptor)

    def may_use(self, port: int) -> bool:
        """Return whether a kept connection is open, and nothing has come on it without a request."""
        connection = self._known.get(port)
        if connection is None:
            return True
        poller = select.poll()
        poller.register(connection.descriptor, select.POLLIN)
        return self._clock() < connection.until and not poller.poll(0)

    def acknowledge(self, port: int) -> None:
        """Have what has come acknowledged at once, where the system can.

        Many small servers send head and body apart, and wait with the second for the acknowledgement of the first,
        which the system would delay by 40 ms (Nagle's algorithm, RFC 9293 section 3.7.4, meets delayed ones).
        """
        if _QUICK_ACK is not None and (connection := self._known.get(port)) is not None:
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, connection.descriptor)
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)
            sock.detach()

    def keep(self, port: int, seconds: float) -> None:
        """Note for how long an idle connection may be used again."""
        if (connection := self._known.get(port)) is not None:
            connection.until = self._clock() + seconds

    def forget(self, port: int) -> None:
        """Leave a connection to libcurl alone."""
        self._known.pop(port, None)

    def close(self) -> None:
        """Close all connections once no request is under way."""
        if self._timer is not None:
            self._timer.cancel()
        self._used = -LONGEST_IDLE
        self._look()

    def _look(self) -> None:
        """Close all connections when none was used for `LONGEST_IDLE`; else look again."""
        loop = asyncio.get_running_loop()
        left = 1.0 if self._running else self._used + LONGEST_IDLE - self._clock()
        if left > 0:
            self._timer = loop.call_later(left, self._look)
            return
        self._timer = None
        multi, self._multi = self._multi, None
        for transfer in self._free:
            transfer.easy.close()
        self._free.clear()
        self._known.clear()
        if multi is not None:
            self._closing = loop.create_task(multi.aclose())


class _Transfer:
    """One handle of libcurl, and what it gathers of the response to its present request."""

    def __init__(self, connections: _Connections, limit: int) -> None:
        self.easy = pycurl.Curl()
        self._connections = connections
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
            (pycurl.HEADERFUNCTION, self._on_line),
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

    def prepare(self, url: str, request: HttpRequest, lines: list[str], seconds: float) -> None:
        """Begin an attempt: a request that has to be done within so many seconds."""
        set_, self._request, self._ended = self.easy.setopt, request, None
        set_(pycurl.URL, url)
        set_(pycurl.TIMEOUT_MS, max(1, int(seconds * 1000)))  # for name, connection, TLS, request and response together
        set_(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_2TLS if url[:5] == "https" else pycurl.CURL_HTTP_VERSION_1_1)
        set_(pycurl.FRESH_CONNECT, 0)
        if request.body is None:
            set_(pycurl.HTTPGET, 1)
        else:
            set_(pycurl.POSTFIELDS, request.body)
        set_(pycurl.CUSTOMREQUEST, request.method.value)
        set_(pycurl.HTTPHEADER, [line.encode() for line in lines])
        self._begin()

    def _begin(self) -> None:
        self._lines.clear()
        self._parts.clear()
        self._opened.clear()
        self._sent, self._first_bytes = 0, b""

    def received(self, ended: Ended | None, where: str, *, seconds: float, limit: int) -> _Received:
        """Return the response; raises `CallError`, or `_ClosedBeforeError`."""
        self._connections.keep(self._port, 0.0)  # unless all is well
        try:
            if ended is None or ended.phase is Phase.BODY or self._first_bytes:
                head = self._head()  # one that is malformed says more than how the body ended
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
        return _Received(head, body)

    def _head(self) -> Head:
        return read_head(
            self._lines, is_http_1=self.easy.getinfo(pycurl.INFO_HTTP_VERSION) != pycurl.CURL_HTTP_VERSION_2_0
        )

    def _keep_connection(self, head: Head) -> None:
        if not head.is_http_1:  # on which much comes unasked
            self._connections.forget(self._port)
            return
        seconds = LONGEST_IDLE
        for value in values_of(head.fields, "keep-alive"):
            if (found := _KEEP_ALIVE_TIMEOUT.search(value)) is not None:
                seconds = min(seconds, max(int(found[1]) - 1.0, int(found[1]) / 2))
        if head.has_uncertain_end:
            seconds = 0.0
        self._connections.keep(self._port, seconds)

    def is_reusable(self) -> bool:
        """Return whether the handle holds little; it is at rest."""
        request, self._request = self._request, None
        size = 0 if request is None or request.body is None else len(request.body)
        self._parts.clear()
        return size < _LARGE

    def ended(self, code: int, text: str) -> Ended | None:
        """Return how an attempt has failed, `_STALE` where nothing was sent; raises `_ClosedBeforeError`."""
        if code == pycurl.E_ABORTED_BY_CALLBACK and self._ended is not None:
            if self._ended is _STALE:
                self.easy.setopt(pycurl.FRESH_CONNECT, 1)
                self._begin()
                return _STALE
            raise _ClosedBeforeError
        info = self.easy.getinfo
        if self._sent and not self._opened and code in (pycurl.E_COULDNT_CONNECT, pycurl.E_GOT_NOTHING):
            raise _ClosedBeforeError
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
            self._connections.opened(local_port, self._opened)
        elif not self._connections.may_use(local_port):
            self._ended = _STALE
            return int(pycurl.PREREQFUNC_ABORT)
        self._port = local_port
        self._sent += 1
        return int(pycurl.PREREQFUNC_OK)

    def _on_line(self, line: bytes) -> None:
        if not self._lines:
            self._connections.acknowledge(self._port)
        self._lines.append(line)

    def _on_body(self, data: bytes) -> int | None:
        if not self._lines:
            self._first_bytes = data[:8]
            return -1
        self._parts.append(data)
        return None


_STALE: Final = Ended(0, "the kept connection was closed", Phase.CONNECTING, tls=False)


def _local_port(descriptor: int) -> int:
    sock = socket.socket(fileno=descriptor)
    try:
        port: int = sock.getsockname()[1]
        return port
    finally:
        sock.detach()


def _header_lines(request: HttpRequest) -> list[str]:
    """Return the header lines of a request, and the names of those that libcurl would add and must not."""
    lines: list[str] = []
    has_type = request.body is None
    for name, value in request.headers:
        if not _NAME.fullmatch(name):
            raise ValueError("Invalid header name")
        if _SHAPE.search(value):
            raise ValueError("Invalid header value")
        lines.append(f"{name}: {value}" if value.strip() else f"{name};")
        has_type = has_type or name.lower() == "content-type"
    names = {name.lower() for name, _ in request.headers}
    lines += [line for line in _UNASKED if line[:-1].lower() not in names]
    return lines if has_type else [*lines, "Content-Type:"]


def _may_repeat(request: HttpRequest) -> bool:
    """Return whether a request may be sent again that its server may have seen (RFC 9110 section 9.2.2)."""
    return request.method in IDEMPOTENT or bool(values_of(request.headers, "idempotency-key"))

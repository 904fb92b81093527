"""`HttpClient` sends requests to one server and returns their responses, on libcurl and the event loop.

`engine.event` has built the request, and judges the response. libcurl connects, keeps connections, speaks TLS, HTTP/1.1
and HTTP/2, goes through proxies, and bounds time and bytes; `transfer` runs it for one attempt. This module adds what
routes promise: it follows the redirects that `origin.may_follow` allows, logs in with Digest, waits for a turn before
each request, and decides which request may be sent twice.
"""

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from time import monotonic
from typing import Final
from urllib.parse import urlsplit

import pycurl

from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.http import failures
from amqtt_rest_bridge.http.digest import DigestLogin, RequestLogin
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
from amqtt_rest_bridge.http.tls import Settings, TlsOptions, TlsSettings
from amqtt_rest_bridge.http.transfer import LONGEST_IDLE, ClosedBeforeError, Connections, Head
from amqtt_rest_bridge.lot.masking import credentials_of
from amqtt_rest_bridge.lot.model import (
    IDEMPOTENT,
    AuthScheme,
    HttpRequest,
    HttpResponse,
    Method,
    RestApiConfig,
    values_of,
)

_DIGEST_RESPONSE: Final = re.compile(r'\bresponse="([0-9a-f]{32,})"')  # a secret: it allows to guess the password
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LINE_END: Final = re.compile(r"[\r\n\0]")
_CONTROL: Final = re.compile(r"[\x00-\x20\x7f]")
Turn = Callable[[], Awaitable[None]]
"""Returns when the next request may leave."""


def client_for(
    config: RestApiConfig, server: str, *, max_response_bytes: int, environment: Mapping[str, str]
) -> "HttpClient":
    """Return a client for a server, with the timeout, TLS files, proxies and Digest login of a route.

    Args:
        config: The configuration of the route.
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
    options = ClientOptions(origin, float(config.request_timeout), max_response_bytes, tls_of(config), environment)
    is_digest = config.auth_scheme is AuthScheme.DIGEST and server == config.base_address
    return HttpClient(options, digest=DigestLogin(config, lambda: secrets.token_hex(16)) if is_digest else None)


def tls_of(config: RestApiConfig) -> TlsOptions:
    """Return which certificates a route trusts, and which one it shows."""
    return TlsOptions(not config.ignore_cert_errors, config.ca_file, config.client_cert_file, config.client_key_file)


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """The options of a client: its server, bounds, TLS and the environment in which a proxy is looked up.

    `timeout` is in seconds and bounds an attempt as a whole, `max_response_bytes` a body before and after decoding.
    `environment` is searched for HTTP_PROXY, HTTPS_PROXY and NO_PROXY; it may hold passwords. `addresses` replaces the
    addresses that the system knows of a host name and port, for tests.
    """

    origin: Origin
    timeout: float = 30.0
    max_response_bytes: int = 262_144
    tls: TlsOptions = field(default_factory=TlsOptions)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    addresses: Mapping[tuple[str, int], tuple[str, ...]] = field(default_factory=dict, hash=False)


class HttpClient:
    """Sends requests to one server; any number at once, on one event loop.

    Args:
        options: Server, bounds, TLS, environment.
        digest: Answers the server's challenges to requests without an Authorization of their own.
        clock: Monotonic seconds.

    Raises:
        ConfigurationError: A proxy variable of the environment cannot be used.
    """

    def __init__(
        self, options: ClientOptions, *, digest: DigestLogin | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        self._options = options
        self._digest = digest
        self._clock = clock
        self._server = _Server(options.origin, options)
        self._servers = {options.origin: self._server}  # two at most: a redirect may lead to HTTPS of the host
        self._tls = TlsSettings(options.tls)
        self._connections: Connections | None = None  # None while none is open
        self._last_used = 0.0  # when a connection was used, by `clock`
        self._timer: asyncio.TimerHandle | None = None

    async def send(self, request: HttpRequest, *, turn: Turn | None = None) -> HttpResponse:
        """Send a request and read its response, following a GET's redirects on the same host and port.

        Any status is a response, also that of a redirect which may not be followed: `failures.redirect_refused`
        explains it.

        Args:
            request: What is sent.
            turn: Awaited before each request; redirects and repetitions are requests too. This wait counts neither for
                the timeout nor for `HttpResponse.elapsed`.

        Raises:
            CallError: `timeout`, `connection_failed`, `tls_failed` or `response_too_large`.
            ValueError: The URL is not of this client's server, or a header would change the shape of the request.
        """
        _check_names(tuple([name for name, _ in request.headers]))
        if _LINE_END.search("".join([value for _, value in request.headers])):
            raise ValueError("Invalid header value")
        lines = [(f"{name}: {value}" if value.strip() else f"{name};").encode() for name, value in request.headers]
        server, url, spent, is_repeated = self._server, request.url, 0.0, False
        target = self._target(url)
        redirects = MOST_REDIRECTS if request.method is Method.GET else 0
        login = None
        if self._digest is not None and not values_of(request.headers, "authorization"):
            login = RequestLogin(self._digest)
        credentials = server.credentials  # which the server may echo, so they are masked in failures
        while True:
            if turn is not None:
                await turn()
            sent = lines
            if login is not None and (authorization := login.authorization(request.method, target)) is not None:
                sent = [*lines, f"Authorization: {authorization}".encode()]
                credentials = credentials.union(_DIGEST_RESPONSE.findall(authorization))
            began = self._clock()
            try:
                head, body = await self._attempt(server, target, request, sent, self._options.timeout - spent)
            except ClosedBeforeError:  # the server may have seen the request, RFC 9110 section 9.2.2
                may_repeat = request.method in IDEMPOTENT or values_of(request.headers, "idempotency-key")
                if is_repeated or not may_repeat:
                    raise failures.closed_before(server.where) from None
                is_repeated = True
                continue
            finally:
                spent += self._clock() - began
            if login is not None and login.must_repeat(head.status, head.fields):
                continue
            locations = values_of(head.fields, "location") if redirects and head.status in REDIRECTS else []
            following = resolve(url, locations[0]) if locations else None
            if following is None or not may_follow(self._options.origin, following[0]):
                return HttpResponse(head.status, head.reason, head.fields, body, spent, credentials)
            origin, target = following
            url, redirects = f"{origin}{target}", redirects - 1
            if origin not in self._servers:
                self._servers[origin] = _Server(origin, self._options)
            server = self._servers[origin]
            credentials = credentials | server.credentials

    def close(self) -> None:
        """Close idle connections; requests under way go on, and later ones are possible."""
        if self._timer is not None:
            self._timer.cancel()
        self._last_used = -LONGEST_IDLE
        self._close_idle()

    def _target(self, url: str) -> str:
        """Return path and query of a URL of this client's server."""
        prefix = self._server.prefix
        if url.startswith(prefix + "/") and url.isascii() and "#" not in url:
            target = url[len(prefix) :]
        elif origin_of(parts := urlsplit(url)) == self._options.origin:
            target = target_of(parts)
        else:
            raise ValueError(f"this client only sends to {prefix}")
        if _CONTROL.search(target):
            raise ValueError("Invalid method or target")
        return target

    async def _attempt(
        self, server: "_Server", target: str, request: HttpRequest, lines: list[bytes], seconds: float
    ) -> tuple[Head, bytes]:
        settings = server.settings
        if server.is_tls:
            try:
                settings = (*self._tls.current(), *settings)
            except ConfigurationError as error:
                raise failures.files_unusable(server.where, error) from error
        if self._connections is None:
            self._connections = Connections(self._options.max_response_bytes, self._clock)
        connections = self._connections
        transfer = connections.take_transfer(settings)
        try:
            transfer.prepare(server.base + target, request, lines, seconds)
            end = await transfer.run()
            return transfer.read_response(end, server.where, seconds=self._options.timeout)
        finally:
            connections.release(transfer)
            self._last_used = self._clock()
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(LONGEST_IDLE, self._close_idle)

    def _close_idle(self) -> None:
        """Close all connections when none was used for `LONGEST_IDLE`; else look again later."""
        is_idle = self._connections is None or not self._connections.running
        left = self._last_used + LONGEST_IDLE - self._clock() if is_idle else 1.0
        if left > 0:
            self._timer = asyncio.get_running_loop().call_later(left, self._close_idle)
            return
        self._timer = None
        if self._connections is not None:
            self._connections.close()
            self._connections = None


class _Server:
    """A server for libcurl: what its URLs begin with, the proxy on the way, and the settings of both.

    `where` is what messages call it, `credentials` are those of the proxy.
    """

    def __init__(self, origin: Origin, options: ClientOptions) -> None:
        proxy = find_proxy(origin, options.environment)
        self.is_tls = origin.scheme == "https"
        self.prefix = str(origin)
        name, _, zone = origin.host.partition("%")  # of an IPv6 address; libcurl reads its zone as RFC 6874 writes it
        self.base = self.prefix if not zone else f"{origin.scheme}://[{name}%25{zone}]:{origin.port}"
        self.where = self.prefix
        self.credentials = frozenset[str]()
        version = pycurl.CURL_HTTP_VERSION_2TLS if self.is_tls else pycurl.CURL_HTTP_VERSION_1_1
        self.settings: Settings = ((pycurl.HTTP_VERSION, version),)
        if proxy is None:
            self.settings += ((pycurl.PROXY, ""),)  # else libcurl reads the environment by rules of its own
        else:
            self.where = f"{self.prefix} through the proxy {proxy.origin.authority}"
            login = () if proxy.authorization is None else (("Proxy-Authorization", proxy.authorization),)
            self.credentials = frozenset() if self.is_tls else credentials_of(login)
            lines = [f"{name}: {value}" for name, value in login]
            self.settings += (pycurl.PROXY, str(proxy.origin)), (pycurl.NOPROXY, ""), (pycurl.PROXYHEADER, lines)
        if options.addresses:
            named = sorted(f"{host}:{port}:{','.join(to)}" for (host, port), to in options.addresses.items())
            self.settings += ((pycurl.RESOLVE, named),)


@lru_cache(maxsize=1024)
def _check_names(names: tuple[str, ...]) -> None:
    if not all(map(_NAME.fullmatch, names)):
        raise ValueError("Invalid header name")

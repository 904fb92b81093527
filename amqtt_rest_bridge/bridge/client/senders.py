"""What sends the requests of a route: its HTTP client with the route's settings, with OAuth2 one that adds the token.

OAuth2 client credentials: one access token for all requests of a route. `engine.stages.oauth2` decides which one, when
it is renewed and what a 401 means; here are the thread that fetches it and those that wait. Client workers run it,
several at once; the token is in no message, log line or failure.
"""

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from http import HTTPStatus
from typing import Protocol
from urllib.parse import urlsplit

from amqtt_rest_bridge.calls.requests import RequestBuilder
from amqtt_rest_bridge.catalogue import TOKEN_LATE
from amqtt_rest_bridge.engine.requests import has_own_authorization, split_base_address
from amqtt_rest_bridge.engine.stages.oauth2 import AccessTokens, authorized, unsent
from amqtt_rest_bridge.errors import CallError, ConfigurationError
from amqtt_rest_bridge.http.digest import DigestLogin, RequestLogin
from amqtt_rest_bridge.http_client import (
    ClientOptions,
    Exchange,
    HttpClient,
    Login,
    Stopwatch,
    TlsContexts,
    TlsOptions,
    check_files,
    finish,
    origin_of,
)
from amqtt_rest_bridge.model import AuthScheme, HttpRequest, HttpResponse, Pairs, RestApiConfig, Route
from amqtt_rest_bridge.settings import BridgeSettings


class Sender(Protocol):
    """What sends the requests of a route; see `http_client.HttpClient`."""

    def exchange(self, request: HttpRequest, stopwatch: Stopwatch) -> Exchange:
        """Send a request and what has to follow it, stopping before each; raises `CallError`."""

    def send(self, request: HttpRequest, stopwatch: Stopwatch | None = None) -> HttpResponse:
        """Do the same without a stop."""

    def expire(self) -> None:
        """Close connections that have been idle for too long; must not block."""

    def close(self) -> None:
        """Close idle connections."""


def client_options(config: RestApiConfig, *, max_response_bytes: int, environment: Mapping[str, str]) -> ClientOptions:
    """Return the options of the client that sends the requests of a route.

    Raises:
        ConfigurationError: BASE_ADDRESS cannot be used.
    """
    tls = TlsOptions(
        verify=not config.ignore_cert_errors,
        ca_file=config.ca_file,
        client_cert_file=config.client_cert_file,
        client_key_file=config.client_key_file,
    )
    origin, _ = split_base_address(config.base_address or "")
    return ClientOptions(origin, float(config.request_timeout), max_response_bytes, tls, environment)


def sender_of(
    config: RestApiConfig,
    *,
    max_response_bytes: int,
    environment: Mapping[str, str],
    contexts: TlsContexts | None = None,
) -> Sender:
    """Return what sends the requests of a route: an HTTP client, with OAuth2 one that adds the access token.

    With Digest the client answers the server's challenges.

    The token is fetched with the route's timeout, TLS settings and proxies.

    Raises:
        ConfigurationError: BASE_ADDRESS, OAUTH2_TOKEN_URL or a proxy variable cannot be used.
    """
    options = client_options(config, max_response_bytes=max_response_bytes, environment=environment)
    login = logins_of(config) if config.auth_scheme is AuthScheme.DIGEST else None
    client = HttpClient(options, contexts=contexts, login=login)
    if config.oauth2_token_url is None:
        return client
    try:
        issuer = replace(options, origin=origin_of(urlsplit(config.oauth2_token_url)))
    except ValueError as error:
        raise ConfigurationError(f"OAUTH2_TOKEN_URL is not an address: {error}") from error
    return AuthorizedSender(client, HttpClient(issuer, contexts=contexts), config, options.timeout)


def unusable_routes(
    routes: Iterable[Route], settings: BridgeSettings, environment: Mapping[str, str]
) -> Iterator[tuple[Route, ConfigurationError]]:
    """Return the routes whose calls could not be sent, with the reason; reads each set of TLS files once."""
    faults: dict[TlsOptions, ConfigurationError | None] = {}
    for route in routes:
        if not route.client_events:
            continue
        try:
            RequestBuilder(route, route.client_events[0], max_body_bytes=settings.max_body_bytes)
            limit = settings.max_response_bytes
            options = client_options(route.config, max_response_bytes=limit, environment=environment)
            sender_of(route.config, max_response_bytes=limit, environment=environment).close()
        except ConfigurationError as error:
            yield route, error
            continue
        if options.tls not in faults:
            faults[options.tls] = None
            try:
                check_files(options.tls)
            except ConfigurationError as error:
                faults[options.tls] = error
        fault = faults[options.tls]
        if fault is not None:
            yield route, fault


def logins_of(config: RestApiConfig) -> Callable[[], Login]:
    """Return what makes the `Login` of each request of a route, in any thread."""
    route, lock = DigestLogin(config, lambda: secrets.token_hex(16)), threading.Lock()
    return lambda: LockedLogin(RequestLogin(route), lock)


class LockedLogin:
    """Answers the challenges to a request with the route's USERNAME and PASSWORD; fulfils `Login`.

    Args:
        login: What answers them.
        lock: That of the route, whose requests share the challenge which the server has accepted.
    """

    def __init__(self, login: RequestLogin, lock: threading.Lock) -> None:
        self._login = login
        self._lock = lock

    def authorization(self, method: str, target: str) -> str | None:
        """Return the value of Authorization for the request; each has the next count of the nonce."""
        with self._lock:
            return self._login.authorization(method, target)

    def repeats(self, status: int, headers: Pairs) -> bool:
        """Return whether the request is sent again; see `RequestLogin.repeats`."""
        with self._lock:
            return self._login.repeats(status, headers)


class TokenSource:
    """The access token of a route, fetched by one thread while the others that need it wait.

    Args:
        config: The OAUTH2 settings are what it is asked for with.
        sender: Sends requests to the server that issues it.
        seconds: How long a thread waits at most for the request of another one.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        config: RestApiConfig,
        sender: Sender,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokens = AccessTokens(config)
        self._sender = sender
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._fetching: Future[str] | None = None

    @property
    def issued(self) -> frozenset[str]:
        """Return the last tokens, for masking: a response may name the token of an earlier request."""
        with self._lock:
            return frozenset(self._tokens.issued)

    def token(self) -> str:
        """Return the token, fetching it when there is none that is good for a while; blocks.

        Raises:
            CallError: `oauth2_failed`.
        """
        with self._lock:
            token = self._tokens.current(self._clock())
            if token is not None:
                return token
            fetching, is_ours = self._fetching, self._fetching is None
            if fetching is None:
                fetching = self._fetching = Future()
        if is_ours:
            self._fetch(fetching)
        try:
            return fetching.result(2 * self._seconds)
        except TimeoutError as error:
            raise TOKEN_LATE.error("there is no access token: its server has not answered", unsent=True) from error

    def refuse(self, token: str) -> None:
        """Forget a token that the server did not accept."""
        with self._lock:
            self._tokens.refuse(token)

    def _fetch(self, fetching: "Future[str]") -> None:
        """Fetch the token for all that wait; they share a failure too, so that no server is asked by each in turn."""
        try:
            started, in_body = self._clock(), self._tokens.in_body
            response = self._ask(in_body=in_body)
            if self._tokens.may_want_form(response):
                other = self._ask(in_body=True)
                if other.status < 300:
                    response, in_body = other, True
            with self._lock:
                token = self._tokens.take(response, started, in_body=in_body)
                self._fetching = None
        except Exception as error:  # noqa: BLE001  # each that waits raises it
            with self._lock:
                self._fetching = None
            fetching.set_exception(error)
        else:
            fetching.set_result(token)

    def _ask(self, *, in_body: bool) -> HttpResponse:
        try:
            return self._sender.send(self._tokens.request(in_body=in_body))
        except CallError as error:
            raise unsent(error) from error


class AuthorizedSender:
    """Sends the requests of a route with its access token, which `issuer` asks for; fulfils `Sender`."""

    def __init__(self, sender: Sender, issuer: Sender, config: RestApiConfig, seconds: float) -> None:
        self._sender = sender
        self._issuer = issuer
        self._tokens = TokenSource(config, issuer, seconds)

    def send(self, request: HttpRequest, stopwatch: Stopwatch | None = None) -> HttpResponse:
        """Send a request; after a 401 once more, with a new token, as the server has not processed it."""
        return finish(self.exchange(request, stopwatch or Stopwatch()))

    def exchange(self, request: HttpRequest, stopwatch: Stopwatch) -> Exchange:
        """Do what `send` does, stopping before each request but those for a token, which go to another server."""
        if has_own_authorization(request):
            return (yield from self._sender.exchange(request, stopwatch))
        token = self._tokens.token()
        sent = {token}
        response = yield from self._sender.exchange(authorized(request, token), stopwatch)
        if response.status == HTTPStatus.UNAUTHORIZED:  # it has not processed the request
            self._tokens.refuse(token)
            token = self._tokens.token()
            sent.add(token)
            response = yield from self._sender.exchange(authorized(request, token), stopwatch)
        return replace(response, credentials=response.credentials | self._tokens.issued | sent)

    def expire(self) -> None:
        """Close connections that have been idle for too long."""
        self._sender.expire()
        self._issuer.expire()

    def close(self) -> None:
        """Close idle connections."""
        self._sender.close()
        self._issuer.close()

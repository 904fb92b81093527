"""What sends the requests of a route: its HTTP client with the route's settings, with OAuth2 one that adds the token.

OAuth2 client credentials (RFC 6749 section 4.4): one access token for all requests of a route. It is fetched when it is
first needed, by one thread, while the others that need it wait for that thread. It is renewed before it expires, and
once for a request that the server answers with 401. Client workers run it, several at once; the token is in no message,
log line or failure.
"""

import json
import math
import re
import threading
import time
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol
from urllib.parse import quote_plus, urlencode, urlsplit

from amqtt_rest_bridge.calls.requests import RequestBuilder, split_base_address
from amqtt_rest_bridge.catalogue import NOT_A_TOKEN, OAUTH2_FAILED, TOKEN_LATE, TOKEN_REFUSED
from amqtt_rest_bridge.errors import CallError, ConfigurationError
from amqtt_rest_bridge.http_client import (
    ClientOptions,
    Exchange,
    HttpClient,
    Stopwatch,
    TlsContexts,
    TlsOptions,
    check_files,
    check_urllib3,
    describe_status,
    finish,
    origin_of,
)
from amqtt_rest_bridge.model import BridgeSettings, HttpRequest, HttpResponse, Method, RestApiConfig, Route

_MARGIN_SECONDS: Final = 30.0  # renewed so long before it expires, but after nine tenths of a short life
_REMEMBERED: Final = 4
_NOT_ACCEPTED: Final = (400, 401)
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")  # RFC 6749 appendix A.12, without spaces: it becomes part of a header
_ERROR: Final = re.compile(r"[a-z_]{1,40}")  # RFC 6749 section 5.2


class Sender(Protocol):
    """What sends the requests of a route; see `http_client.HttpClient`."""

    def exchange(self, request: HttpRequest, stopwatch: Stopwatch) -> Exchange:
        """Send a request and what has to follow it, stopping before each; raises `CallError`."""

    def send(self, request: HttpRequest) -> HttpResponse:
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

    The token is fetched with the route's timeout, TLS settings and proxies.

    Raises:
        ConfigurationError: BASE_ADDRESS, OAUTH2_TOKEN_URL or a proxy variable cannot be used.
    """
    options = client_options(config, max_response_bytes=max_response_bytes, environment=environment)
    client = HttpClient(options, contexts=contexts)
    if config.oauth2_token_url is None:
        return client
    try:
        issuer = replace(options, origin=origin_of(urlsplit(config.oauth2_token_url)))
    except ValueError as error:
        raise ConfigurationError(f"OAUTH2_TOKEN_URL is not an address: {error}") from error
    tokens = TokenSource(config, HttpClient(issuer, contexts=contexts), options.timeout)
    return AuthorizedSender(client, tokens)


def unusable_routes(
    routes: Iterable[Route], settings: BridgeSettings, environment: Mapping[str, str]
) -> Iterator[tuple[Route, ConfigurationError]]:
    """Return the routes whose calls could not be sent, with the reason; reads each set of TLS files once.

    Raises:
        ConfigurationError: No route could send any: the installed urllib3 cannot be used.
    """
    faults: dict[TlsOptions, ConfigurationError | None] = {}
    for route in routes:
        if not route.client_events:
            continue
        check_urllib3()
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


@dataclass(frozen=True, slots=True)
class _Token:
    value: str = field(repr=False)
    renewed_at: float  # monotonic time


class TokenSource:
    """The access token of a route.

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
        self._config = config
        self._sender = sender
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._token: _Token | None = None
        self._fetching: Future[_Token] | None = None
        self._in_body = False  # the server wants the client's credentials there, not as Basic
        self._issued: deque[str] = deque(maxlen=_REMEMBERED)

    @property
    def issued(self) -> frozenset[str]:
        """Return the last tokens, for masking: a request may still be on its way with one of them."""
        with self._lock:
            return frozenset(self._issued)

    def token(self) -> str:
        """Return the token, fetching it when there is none that is good for a while; blocks.

        Raises:
            CallError: `oauth2_failed`.
        """
        with self._lock:
            if self._token is not None and self._clock() < self._token.renewed_at:
                return self._token.value
            fetching, is_ours = self._fetching, self._fetching is None
            if fetching is None:
                fetching = self._fetching = Future()
        if is_ours:
            self._fetch(fetching)
        try:
            return fetching.result(2 * self._seconds).value
        except TimeoutError as error:
            raise TOKEN_LATE.error(_without_token("its server has not answered"), unsent=True) from error

    def refuse(self, token: str) -> None:
        """Forget a token that the server did not accept."""
        with self._lock:
            if self._token is not None and self._token.value == token:
                self._token = None

    def expire(self) -> None:
        """Close connections that have been idle for too long."""
        self._sender.expire()

    def close(self) -> None:
        """Close idle connections."""
        self._sender.close()

    def _fetch(self, fetching: "Future[_Token]") -> None:
        """Fetch the token for all that wait; they share a failure too, so that no server is asked by each in turn."""
        try:
            token = self._request()
        except Exception as error:  # noqa: BLE001  # each that waits raises it
            with self._lock:
                self._fetching = None
            fetching.set_exception(error)
        else:
            with self._lock:
                self._issued.append(token.value)
                self._token, self._fetching = token, None
            fetching.set_result(token)

    def _request(self) -> _Token:
        started = self._clock()
        response = self._ask(in_body=self._in_body)
        if response.status in _NOT_ACCEPTED and not self._in_body:
            # Decision: Basic first, as RFC 6749 section 2.3.1 has it; some servers take the form's fields alone.
            other = self._ask(in_body=True)
            if other.status < 300:
                response, self._in_body = other, True
        return _read_token(response, started)

    def _ask(self, *, in_body: bool) -> HttpResponse:
        own, form = self._config, {"grant_type": "client_credentials"}
        client_id, secret = own.oauth2_client_id or "", own.oauth2_client_secret or ""
        optional = {"scope": own.oauth2_scope, "audience": own.oauth2_audience}
        form |= {name: text for name, text in optional.items() if text is not None}
        headers = [("Content-Type", "application/x-www-form-urlencoded"), ("Accept", "application/json")]
        if in_body:
            form |= {"client_id": client_id, "client_secret": secret}
        else:
            pair = f"{quote_plus(client_id)}:{quote_plus(secret)}"
            headers.append(("Authorization", f"Basic {b64encode(pair.encode()).decode()}"))
        try:
            url = own.oauth2_token_url or ""
            return self._sender.send(HttpRequest(Method.POST, url, tuple(headers), urlencode(form).encode()))
        except CallError as error:
            hint = error.hint.replace("BASE_ADDRESS", "OAUTH2_TOKEN_URL")
            raise OAUTH2_FAILED.error(_without_token(error.message), hint=hint, unsent=True) from error


class AuthorizedSender:
    """Sends the requests of a route with its access token; fulfils `Sender`.

    Decision: a request with an Authorization of the event's own HEADERS is sent as it is.
    """

    def __init__(self, sender: Sender, tokens: TokenSource) -> None:
        self._sender = sender
        self._tokens = tokens

    def send(self, request: HttpRequest) -> HttpResponse:
        """Send a request; after a 401 once more, with a new token, as the server has not processed it."""
        return finish(self.exchange(request, Stopwatch()))

    def exchange(self, request: HttpRequest, stopwatch: Stopwatch) -> Exchange:
        """Do what `send` does, stopping before each request but those for a token, which go to another server."""
        if any(name.lower() == "authorization" for name, _ in request.headers):
            return (yield from self._sender.exchange(request, stopwatch))
        token = self._tokens.token()
        response = yield from self._sender.exchange(_authorized(request, token), stopwatch)
        if response.status == 401:
            self._tokens.refuse(token)
            response = yield from self._sender.exchange(_authorized(request, self._tokens.token()), stopwatch)
        return replace(response, credentials=response.credentials | self._tokens.issued)

    def expire(self) -> None:
        """Close connections that have been idle for too long."""
        self._sender.expire()
        self._tokens.expire()

    def close(self) -> None:
        """Close idle connections."""
        self._sender.close()
        self._tokens.close()


def _authorized(request: HttpRequest, token: str) -> HttpRequest:
    return replace(request, headers=(*request.headers, ("Authorization", f"Bearer {token}")))


def _read_token(response: HttpResponse, started: float) -> _Token:
    """Read an answer of the token's server (RFC 6749 sections 5.1 and 5.2)."""
    answer = _json_object(response.body)
    if response.status >= 300:
        error = answer.get("error")
        named = f" ({error})" if isinstance(error, str) and _ERROR.fullmatch(error) else ""
        refused = 400 <= response.status < 500 and response.status != 429
        message = _without_token(f"its server answered {describe_status(response.status)}{named}")
        raise TOKEN_REFUSED.error(message, unsent=not refused)
    token, kind, seconds = answer.get("access_token"), answer.get("token_type", "bearer"), answer.get("expires_in")
    if not isinstance(token, str) or not _TOKEN.fullmatch(token) or str(kind).lower() != "bearer":
        raise NOT_A_TOKEN.error(_without_token("its server answered without a bearer token"))
    if isinstance(seconds, bool) or not isinstance(seconds, int | float | str):
        return _Token(token, float("inf"))  # until the first 401
    try:
        life = float(seconds)
    except (ValueError, OverflowError):
        life = math.inf
    if math.isnan(life):  # it would never be a good token, and each request would fetch another
        life = math.inf
    return _Token(token, started + max(life - _MARGIN_SECONDS, life * 0.9))


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _without_token(reason: str) -> str:
    return f"there is no access token: {reason}"

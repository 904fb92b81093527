"""From the settings of a route to the options of its HTTP client, and the check that both can be used.

Pure, but `unusable_routes` reads the TLS files that routes name. Any thread.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from amqtt_rest_bridge.bridge.client.oauth2 import AuthorizedSender, Sender, TokenSource
from amqtt_rest_bridge.calls.requests import RequestBuilder, split_base_address
from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.http_client import (
    ClientOptions,
    HttpClient,
    TlsContexts,
    TlsOptions,
    check_files,
    check_urllib3,
    origin_of,
)
from amqtt_rest_bridge.model import BridgeSettings, RestApiConfig, Route


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

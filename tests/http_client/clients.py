"""What the tests of the HTTP client share: clients with given settings."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from amqtt_rest_bridge.bridge.client.senders import client_options
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.http_client import HttpClient, Resolver
from amqtt_rest_bridge.model import HttpRequest, HttpResponse, Method, RestApiConfig
from tests.support.http_target import Target

LIMIT = 1_000  # bytes that a response to `call` may have


@contextmanager
def client_of(base: str, *, seconds: int = 5, limit: int = 300_000, **others: object) -> Iterator[HttpClient]:
    config = RestApiConfig(base_address=base, request_timeout=seconds)
    options = client_options(config, max_response_bytes=limit, environment={})
    client = HttpClient(options, **others)  # type: ignore[arg-type]
    try:
        yield client
    finally:
        client.close()


def base_of(target: Target) -> str:
    return f"http://127.0.0.1:{target.port}"


def call(target: Target, method: Method = Method.GET) -> HttpResponse:
    with client_of(base_of(target), limit=LIMIT) as client:
        return client.send(HttpRequest(method, f"{base_of(target)}/path"))


def chunked(*chunks: bytes, trailer: bytes = b"") -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n" + trailer + b"\r\n"


@contextmanager
def client_by(config: RestApiConfig, environment: dict[str, str] | None = None) -> Iterator[HttpClient]:
    resolver = Resolver(lambda host, port: ["127.0.0.1"])
    options = client_options(
        replace(config, request_timeout=5), max_response_bytes=1_000, environment=environment or {}
    )
    client = HttpClient(options, resolver=resolver)
    yield client
    client.close()


def get(config: RestApiConfig, path: str = "/", environment: dict[str, str] | None = None) -> HttpResponse:
    with client_by(config, environment) as client:
        return client.send(HttpRequest(Method.GET, f"{config.base_address}{path}"))


def failure_of(config: RestApiConfig, environment: dict[str, str] | None = None) -> CallError:
    with pytest.raises(CallError) as caught:
        get(config, environment=environment)
    assert caught.value.hint
    return caught.value

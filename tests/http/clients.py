"""What the tests of `HttpClient` share: clients with given settings, driven without a running loop."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from amqtt_rest_bridge.engine.requests import split_base_address
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.http.client import ClientOptions, HttpClient, Turn, tls_of
from amqtt_rest_bridge.lot.model import HttpRequest, HttpResponse, Method, RestApiConfig
from tests.support.http_target import Target

LIMIT = 1_000  # bytes that a response to `call` may have


class Client:
    """A client whose `send` returns when there is a response."""

    def __init__(self, client: HttpClient) -> None:
        self.loop = asyncio.new_event_loop()
        self.client = client

    def send(self, request: HttpRequest, *, turn: Turn | None = None) -> HttpResponse:
        return self.loop.run_until_complete(self.client.send(request, turn=turn))

    def send_all(self, requests: Sequence[HttpRequest]) -> list[HttpResponse]:
        async def send_all() -> list[HttpResponse]:
            return await asyncio.gather(*map(self.client.send, requests))

        return self.loop.run_until_complete(send_all())

    def run(self, seconds: float = 0.0) -> None:
        """Run what is due on the loop."""
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def close_idle(self) -> None:
        async def close() -> None:
            self.client.close()
            await asyncio.sleep(0.01)

        self.loop.run_until_complete(close())

    def close(self) -> None:
        self.close_idle()
        self.loop.close()


def options_of(
    config: RestApiConfig,
    *,
    max_response_bytes: int = 1_000,
    environment: dict[str, str] | None = None,
    addresses: dict[tuple[str, int], tuple[str, ...]] | None = None,
) -> ClientOptions:
    (origin, _), seconds = split_base_address(config.base_address or ""), float(config.request_timeout)
    return ClientOptions(origin, seconds, max_response_bytes, tls_of(config), environment or {}, addresses or {})


@contextmanager
def client_of(
    base: str,
    *,
    seconds: int = 5,
    limit: int = 300_000,
    addresses: dict[tuple[str, int], tuple[str, ...]] | None = None,
    **others: Any,
) -> Iterator[Client]:
    config = RestApiConfig(base_address=base, request_timeout=seconds)
    client = Client(HttpClient(options_of(config, max_response_bytes=limit, addresses=addresses), **others))
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
def client_by(config: RestApiConfig, environment: dict[str, str] | None = None) -> Iterator[Client]:
    """Make a client for which `target.test` is this machine."""
    ports = (80, 443)
    addresses: dict[tuple[str, int], tuple[str, ...]] = {("target.test", port): ("127.0.0.1",) for port in ports}
    options = options_of(replace(config, request_timeout=5), environment=environment, addresses=addresses)
    client = Client(HttpClient(options))
    try:
        yield client
    finally:
        client.close()


def get(config: RestApiConfig, path: str = "/", environment: dict[str, str] | None = None) -> HttpResponse:
    with client_by(config, environment) as client:
        return client.send(HttpRequest(Method.GET, f"{config.base_address}{path}"))


def failure_of(config: RestApiConfig, environment: dict[str, str] | None = None) -> CallError:
    with pytest.raises(CallError) as caught:
        get(config, environment=environment)
    assert caught.value.hint
    return caught.value

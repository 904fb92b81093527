"""What the tests of `HttpClient` share: clients with given settings, driven without a running loop."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from amqtt_rest_bridge.engine.requests import split_base_address
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.http.client import ClientOptions, HttpClient, Turn, tls_of
from amqtt_rest_bridge.lot.model import HttpRequest, HttpResponse, Method, Pairs, RestApiConfig
from tests.support.http_target import Target

LIMIT = 1_000
"""Bytes that a response may have in tests of this bound."""
Server = Target | RestApiConfig | str
"""A server, or the configuration of a route to it, or its address."""
Addresses = Mapping[tuple[str, int], tuple[str, ...]]
_ADDRESSES: Addresses = {("target.test", port): ("127.0.0.1",) for port in (80, 443)}


class Client:
    """A client whose `send` returns when there is a response."""

    def __init__(self, client: HttpClient, base: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.client, self.base = client, base

    def send(self, request: HttpRequest, *, turn: Turn | None = None) -> HttpResponse:
        return self.loop.run_until_complete(self.client.send(request, turn=turn))

    def ask(
        self, method: Method = Method.GET, path: str = "/", headers: Pairs = (), body: bytes | None = None,
        turn: Turn | None = None,
    ) -> HttpResponse:  # fmt: skip
        return self.send(HttpRequest(method, self.base + path, headers, body), turn=turn)

    def send_all(self, requests: Sequence[HttpRequest]) -> list[HttpResponse]:
        async def send_all() -> list[HttpResponse]:
            return await asyncio.gather(*map(self.client.send, requests))

        return self.loop.run_until_complete(send_all())

    def run(self, seconds: float = 0.0) -> None:
        """Run what is due on the loop."""
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def close_idle(self) -> None:
        self.loop.call_soon(self.client.close)
        self.run(0.01)

    def close(self) -> None:
        self.close_idle()
        self.loop.close()


def options_of(
    config: RestApiConfig, limit: int = 300_000, environment: Mapping[str, str] | None = None,
    addresses: Addresses = _ADDRESSES,
) -> ClientOptions:  # fmt: skip
    (origin, _), seconds = split_base_address(config.base_address or ""), float(config.request_timeout)
    return ClientOptions(origin, seconds, limit, tls_of(config), environment or {}, addresses)


@contextmanager
def client_of(
    server: Server, *, seconds: int = 5, limit: int = 300_000, environment: Mapping[str, str] | None = None,
    addresses: Addresses = _ADDRESSES, **others: Any,
) -> Iterator[Client]:  # fmt: skip
    """Make a client; by default `target.test` is this machine."""
    if not isinstance(server, RestApiConfig):
        server = RestApiConfig(base_address=server.url if isinstance(server, Target) else server)
    config = replace(server, request_timeout=seconds)
    client = Client(HttpClient(options_of(config, limit, environment, addresses), **others), server.base_address or "")
    try:
        yield client
    finally:
        client.close()


def get(server: Server, path: str = "/", **options: Any) -> HttpResponse:
    with client_of(server, **options) as client:
        return client.ask(path=path)


def failure_of(server: Server, path: str = "/", body: bytes | None = None, **options: Any) -> CallError:
    with client_of(server, **options) as client, pytest.raises(CallError) as caught:
        client.ask(Method.POST, path, (), body)
    assert caught.value.hint
    return caught.value


def chunked(*chunks: bytes, trailer: bytes = b"") -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n" + trailer + b"\r\n"

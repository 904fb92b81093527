"""Which redirects the client follows, and what becomes of the others."""

import asyncio

import pytest

from amqtt_rest_bridge.engine.failures import failure_of
from amqtt_rest_bridge.errors import CallError, FailureCode
from amqtt_rest_bridge.lot.model import HttpRequest, Method, RestApiConfig
from tests.http import clients
from tests.http.clients import client_of
from tests.support.http_target import AUTHORITY, ConnectProxy, Peer, Script, Target, answering, reply, server_tls


def pages(**answers: bytes) -> Script:
    """Serve pages by the last part of their path."""

    def script(peer: Peer) -> None:
        while (seen := peer.request()) is not None:
            peer.send(answers[seen.path.rpartition("/")[2].partition("?")[0]])

    return script


def to(location: str, status: str = "302 Found") -> bytes:
    return reply(b"moved", status, f"Location: {location}")


def refused(target: Target, path: str = "/a", method: Method = Method.GET) -> CallError:
    """Return the failure that a redirect becomes which is not followed."""
    with client_of(target) as client:
        response = client.ask(method, path)
    failure = failure_of(HttpRequest(method, target.url + path), response)
    assert failure is not None
    assert (failure.code, response.status) == (FailureCode.REDIRECT_REFUSED, 302)
    return failure


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
def test_redirect_of_a_get_is_followed_on_the_same_server_with_its_headers(status: str) -> None:
    with Target(pages(a=to("../x/b?q=1 2", status), b=reply(b"there"))) as target, client_of(target) as client:
        response = client.ask(path="/y/a", headers=(("Authorization", "Basic abc"),))
    assert (response.status, response.body) == (200, b"there")
    assert [seen.line for seen in target.requests] == ["GET /y/a HTTP/1.1", "GET /x/b?q=1%202 HTTP/1.1"]
    assert target.requests[1].values("Authorization") == ["Basic abc"]
    assert target.connections == 1


def test_five_redirects_are_followed_and_the_sixth_is_refused() -> None:
    five = {f"p{number}": to(f"p{number + 1}") for number in range(5)}
    with Target(pages(**five, p5=reply(b"there"))) as target:
        assert clients.get(target, "/p0").body == b"there"
    with Target(pages(a=to("a"))) as target:
        assert "circle" in refused(target).hint
        assert len(target.requests) == 6


@pytest.mark.parametrize(
    "location",
    [
        *("http://127.0.0.1:1/", "http://localhost:{port}/", "https://127.0.0.1:{port}/"),
        *("http://u:p@127.0.0.1:{port}/", "ftp://x/"),
    ],
)
def test_redirect_elsewhere_is_not_followed(location: str) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(to(location.format(port=peer.server.port)))

    with Target(script) as target:
        refused(target)
        assert len(target.requests) == target.connections == 1


@pytest.mark.parametrize("method", [Method.POST, Method.PUT, Method.DELETE, Method.PATCH])
def test_redirect_of_another_method_is_not_followed(method: Method) -> None:
    with Target(pages(a=to("b"), b=reply())) as target:
        assert f"{method} is not redirected" in refused(target, method=method).message
        assert len(target.requests) == 1


def test_redirect_from_http_on_80_to_https_on_443_is_followed() -> None:
    """Both ports are the tests' own here: proxies lead there, because 80 and 443 are not for tests to take."""
    with (
        Target(answering(reply(b"secure")), tls=server_tls()) as secure,
        ConnectProxy(secure.port) as tunnel,
        Target(answering(to("https://target.test/there"))) as plain,
    ):
        environment = {"HTTP_PROXY": plain.url, "HTTPS_PROXY": tunnel.url}
        config = RestApiConfig(base_address="http://target.test", ca_file=AUTHORITY)
        with client_of(config, environment=environment) as client:
            assert [client.ask(path="/here").body for _ in range(2)] == [b"secure"] * 2
    assert [seen.line for seen in secure.requests] == ["GET /there HTTP/1.1"] * 2
    assert secure.requests[0].values("Host") == ["target.test"]


def test_a_turn_is_awaited_before_each_request_and_takes_no_time_of_the_attempt() -> None:
    with Target(pages(a=to("b"), b=reply(b"there"))) as target, client_of(target, seconds=1) as client:
        seen: list[int] = []

        async def turn() -> None:
            seen.append(len(target.requests))
            await asyncio.sleep(0.6)

        response = client.ask(path="/a", turn=turn)
    assert (response.body, seen) == (b"there", [0, 1])
    assert response.elapsed < 0.6


def test_all_requests_of_one_attempt_share_its_timeout() -> None:
    def slow(peer: Peer) -> None:
        while peer.request() is not None:
            peer.server.stopping.wait(0.4)
            peer.send(to("a"))

    with Target(slow) as target, client_of(target, seconds=1) as client:
        with pytest.raises(CallError) as caught:
            client.ask()
        assert caught.value.code is FailureCode.TIMEOUT
        assert len(target.requests) <= 3

"""Which redirects the client follows, and what becomes of the others."""

import asyncio

import pytest

from amqtt_rest_bridge.engine.failures import failure_of
from amqtt_rest_bridge.errors import CallError, FailureCode
from amqtt_rest_bridge.lot.model import HttpRequest, Method, RestApiConfig
from tests.http.clients import base_of, client_by, client_of, get
from tests.support.http_target import AUTHORITY, ConnectProxy, Peer, Script, Target, answering, reply, server_tls


def pages(**answers: bytes) -> Script:
    """Serve pages by the last part of their path."""

    def script(peer: Peer) -> None:
        while (seen := peer.request()) is not None:
            peer.send(answers[seen.line.split()[1].rpartition("/")[2].partition("?")[0]])

    return script


def to(location: str, status: str = "302 Found") -> bytes:
    return reply(b"moved", status, f"Location: {location}")


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
def test_redirect_of_a_get_is_followed_on_the_same_server_with_its_headers(status: str) -> None:
    with Target(pages(a=to("../x/b?q=1 2", status), b=reply(b"there"))) as target:
        base = f"http://127.0.0.1:{target.port}"
        with client_by(RestApiConfig(base_address=base)) as client:
            response = client.send(HttpRequest(Method.GET, base + "/y/a", (("Authorization", "Basic abc"),)))
    assert (response.status, response.body) == (200, b"there")
    assert [seen.line for seen in target.requests] == ["GET /y/a HTTP/1.1", "GET /x/b?q=1%202 HTTP/1.1"]
    assert target.requests[1].values("Authorization") == ["Basic abc"]
    assert target.connections == 1


def test_five_redirects_are_followed_and_the_sixth_is_refused() -> None:
    five = {f"p{number}": to(f"p{number + 1}") for number in range(5)}
    with Target(pages(**five, p5=reply(b"there"))) as target:
        assert get(RestApiConfig(base_address=f"http://127.0.0.1:{target.port}"), "/p0").body == b"there"
    with Target(pages(a=to("a"))) as target:
        request = HttpRequest(Method.GET, f"http://127.0.0.1:{target.port}/a")
        response = get(RestApiConfig(base_address=f"http://127.0.0.1:{target.port}"), "/a")
        assert len(target.requests) == 6
    failure = failure_of(request, response)
    assert failure is not None
    assert failure.code is FailureCode.REDIRECT_REFUSED
    assert "circle" in failure.hint


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.1:1/",
        "http://localhost:{port}/",
        "https://127.0.0.1:{port}/",
        "http://u:p@127.0.0.1:{port}/",
        "ftp://x/",
    ],
)
def test_redirect_elsewhere_is_not_followed(location: str) -> None:
    with Target(answering(reply())) as other, Target(pages(a=to(location.format(port=0)))) as target:
        there = location.format(port=target.port)
        target._script = pages(a=to(there))
        base = f"http://127.0.0.1:{target.port}"
        response = get(RestApiConfig(base_address=base), "/a")
        assert len(target.requests) == 1
        assert not other.connections
    failure = failure_of(HttpRequest(Method.GET, base + "/a"), response)
    assert failure is not None
    assert (failure.code, response.status) == (FailureCode.REDIRECT_REFUSED, 302)


@pytest.mark.parametrize("method", [Method.POST, Method.PUT, Method.DELETE, Method.PATCH])
def test_redirect_of_another_method_is_not_followed(method: Method) -> None:
    with Target(pages(a=to("b"), b=reply())) as target:
        base = f"http://127.0.0.1:{target.port}"
        with client_by(RestApiConfig(base_address=base)) as client:
            response = client.send(HttpRequest(method, base + "/a"))
        assert len(target.requests) == 1
    failure = failure_of(HttpRequest(method, base + "/a"), response)
    assert failure is not None
    assert failure.code is FailureCode.REDIRECT_REFUSED
    assert f"{method} is not redirected" in failure.message


def test_redirect_from_http_on_80_to_https_on_443_is_followed() -> None:
    """Both ports are the tests' own here: proxies lead there, because 80 and 443 are not for tests to take."""
    with (
        Target(answering(reply(b"secure")), tls=server_tls()) as secure,
        ConnectProxy(secure.port) as tunnel,
        Target(answering(to("https://target.test/there"))) as plain,
    ):
        environment = {
            "HTTP_PROXY": f"http://127.0.0.1:{plain.port}",
            "HTTPS_PROXY": f"http://127.0.0.1:{tunnel.port}",
        }
        config = RestApiConfig(base_address="http://target.test", ca_file=AUTHORITY)
        with client_by(config, environment) as client:
            for _ in range(2):
                assert client.send(HttpRequest(Method.GET, "http://target.test/here")).body == b"secure"
    assert [seen.line for seen in secure.requests] == ["GET /there HTTP/1.1"] * 2
    assert secure.requests[0].values("Host") == ["target.test"]


def test_a_turn_is_awaited_before_each_request_and_takes_no_time_of_the_attempt() -> None:
    with Target(pages(a=to("b"), b=reply(b"there"))) as target:
        seen: list[int] = []

        async def turn() -> None:
            seen.append(len(target.requests))
            await asyncio.sleep(0.7)

        with client_of(base_of(target), seconds=1) as client:
            response = client.send(HttpRequest(Method.GET, f"{base_of(target)}/a"), turn=turn)
    assert (response.body, seen) == (b"there", [0, 1])
    assert response.elapsed < 0.7


def test_all_requests_of_one_attempt_share_its_timeout() -> None:
    def slow(peer: Peer) -> None:
        while peer.request() is not None:
            peer.server.stopping.wait(0.4)
            peer.send(to("a"))

    with Target(slow) as target, client_of(base_of(target), seconds=1) as client:
        with pytest.raises(CallError) as caught:
            client.send(HttpRequest(Method.GET, f"{base_of(target)}/a"))
        assert caught.value.code is FailureCode.TIMEOUT
        assert len(target.requests) == 3

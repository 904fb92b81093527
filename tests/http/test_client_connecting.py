"""How the client finds a server, and how REQUEST_TIMEOUT ends what takes too long."""

import socket
import sys
from time import monotonic

import pytest

from amqtt_rest_bridge.errors import CallError, FailureCode
from amqtt_rest_bridge.lot.model import HttpRequest, Method
from tests.http.clients import base_of, client_of
from tests.support.http_target import Peer, Script, Target, closing, echo, reply


def refused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def test_refused_connection_says_so_and_that_nothing_was_sent() -> None:
    base = f"http://127.0.0.1:{refused_port()}"
    with client_of(base) as client, pytest.raises(CallError, match="refused the connection") as caught:
        client.send(HttpRequest(Method.POST, base + "/secret?key=value"))
    assert (caught.value.code, caught.value.unsent) == (FailureCode.CONNECTION_FAILED, True)
    assert "secret" not in caught.value.message


def test_unknown_host_name_says_so() -> None:
    with client_of("http://nowhere.invalid") as client, pytest.raises(CallError) as caught:
        client.send(HttpRequest(Method.POST, "http://nowhere.invalid/"))
    assert caught.value.message == "the host name of http://nowhere.invalid is not known"
    assert (caught.value.code, caught.value.unsent) == (FailureCode.CONNECTION_FAILED, True)


def test_next_address_of_a_name_is_tried_and_the_good_one_remembered() -> None:
    with Target(closing(reply())) as target:
        base = f"http://two.test:{target.port}"
        with client_of(base, addresses={("two.test", target.port): ("::1", "127.0.0.1")}) as client:
            for _ in range(3):
                assert client.send(HttpRequest(Method.GET, base + "/")).status == 200
        assert len(target.requests) == 3


def test_system_resolver_knows_localhost() -> None:
    with Target(echo) as target, client_of(f"http://localhost:{target.port}") as client:
        assert client.send(HttpRequest(Method.GET, f"http://localhost:{target.port}/")).status == 200


def never_answers(peer: Peer) -> None:
    peer.request()
    peer.wait()


def deaf(peer: Peer) -> None:
    peer.server.stopping.wait()


def drips(data: bytes) -> Script:
    def script(peer: Peer) -> None:
        peer.request()
        peer.drip(data)

    return script


@pytest.mark.parametrize(
    ("script", "body", "said", "unsent"),
    [
        pytest.param(never_answers, b"", "waiting for the response", False, id="never answers"),
        pytest.param(deaf, b"x" * 20_000_000, "sending the request", False, id="never reads"),
        pytest.param(drips(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200), b"", "the response", False, id="drips headers"),
        pytest.param(
            drips(b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 50), b"", "the response", False, id="drips lines of headers"
        ),
        pytest.param(drips(reply(b"x" * 200)), b"", "the response", False, id="drips head and body"),
        pytest.param(
            drips(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 50),
            b"",
            "the response",
            False,
            id="drips chunks",
        ),
    ],
)
def test_request_timeout_bounds_the_attempt_as_a_whole(script: Script, body: bytes, said: str, unsent: bool) -> None:
    started = monotonic()
    with Target(script) as target, client_of(base_of(target), seconds=1) as client:
        with pytest.raises(CallError, match="was not done within 1 s") as caught:
            client.send(HttpRequest(Method.POST, base_of(target) + "/", (), body))
        assert monotonic() - started > 0.9
    assert (caught.value.code, caught.value.unsent) == (FailureCode.TIMEOUT, unsent)
    assert said in caught.value.message


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse what does not fit into a queue")
def test_connecting_that_takes_too_long_is_a_timeout_with_nothing_sent() -> None:
    """A listener that accepts nothing, with its queue full: the system leaves further connections unanswered."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        base = f"http://127.0.0.1:{listener.getsockname()[1]}"
        started = monotonic()
        with client_of(base, seconds=1) as client, pytest.raises(CallError, match="no connection to") as caught:
            client.send(HttpRequest(Method.POST, base + "/"))
        assert monotonic() - started > 0.9
    assert (caught.value.code, caught.value.unsent) == (FailureCode.TIMEOUT, True)


def test_a_call_after_a_slow_one_has_its_whole_time_again() -> None:
    def script(peer: Peer) -> None:
        for seconds in (0.7, 0.7, 0.7):
            peer.request()
            peer.server.stopping.wait(seconds)
            peer.send(reply(b"ok"))

    with Target(script) as target, client_of(base_of(target), seconds=1) as client:
        for _ in range(3):
            assert client.send(HttpRequest(Method.GET, base_of(target) + "/")).status == 200
        assert target.connections == 1

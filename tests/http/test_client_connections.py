"""How the client keeps connections and replaces those that their server has closed."""

import socket
import threading
from collections.abc import Callable
from time import monotonic

import pytest

from amqtt_rest_bridge.errors import CallError, FailureCode
from amqtt_rest_bridge.lot.model import HttpRequest, Method
from tests.http.clients import base_of, client_of
from tests.support.clock import Clock
from tests.support.http_target import Peer, Script, Target, answering, echo, reply
from tests.support.waiting import SECONDS

WITH_KEY = (("Idempotency-Key", "k1"),)


def test_connection_is_used_again() -> None:
    with Target(echo) as target, client_of(base_of(target)) as client:
        for number in range(20):
            body = b"%d" % number
            assert client.send(HttpRequest(Method.POST, base_of(target) + "/", (), body)).body == body
        assert target.connections == 1


def test_many_requests_share_a_client() -> None:
    with Target(echo) as target, client_of(base_of(target)) as client:
        for _ in range(20):
            bodies = [b"%d" % number * 100 for number in range(16)]
            requests = [HttpRequest(Method.POST, base_of(target) + "/", (), body) for body in bodies]
            assert [response.body for response in client.send_all(requests)] == bodies
        assert target.connections <= 16


@pytest.mark.parametrize(
    "response",
    [
        pytest.param(reply(b"x", "200 OK", "Connection: close"), id="connection close"),
        pytest.param(reply(b"x", "200 OK", "Connection: close", "Connection: Upgrade"), id="close among others"),
        pytest.param(b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", id="HTTP/1.0"),
        pytest.param(reply(b"x") + reply(b"y"), id="a second response not asked for"),
    ],
)
def test_connection_is_not_used_again_after(response: bytes) -> None:
    with Target(answering(response)) as target, client_of(base_of(target)) as client:
        for _ in range(3):
            assert client.send(HttpRequest(Method.POST, base_of(target) + "/")).body == b"x"
        assert target.connections == 3


@pytest.mark.parametrize("first", [0, 1], ids=["Content-Length first", "Transfer-Encoding first"])
def test_a_response_with_two_kinds_of_length_fails_and_its_connection_is_closed(first: int) -> None:
    """RFC 9112 section 6.3: a proxy on the way may have seen another end of it."""
    lines = ["Content-Length: 1", "Transfer-Encoding: chunked"]
    head = "\r\n".join(["HTTP/1.1 200 OK", lines[first], lines[1 - first], "", ""])
    with Target(answering(head.encode() + b"1\r\nx\r\n0\r\n\r\n")) as target, client_of(base_of(target)) as client:
        for _ in range(2):
            with pytest.raises(CallError, match="both a Content-Length and a Transfer-Encoding") as caught:
                client.send(HttpRequest(Method.POST, base_of(target) + "/"))
            assert caught.value.code is FailureCode.CONNECTION_FAILED
        assert target.connections == 2


@pytest.mark.parametrize(
    ("response", "seconds", "connections"),
    [
        pytest.param(reply(), 54, 1, id="idle for 54 s"),
        pytest.param(reply(), 56, 2, id="idle for 56 s"),
        pytest.param(reply(b"", "200 OK", "Keep-Alive: timeout=5, max=9"), 3, 1, id="within the server's timeout"),
        pytest.param(reply(b"", "200 OK", "Keep-Alive: timeout=5, max=9"), 4.5, 2, id="close to the server's timeout"),
        pytest.param(reply(b"", "200 OK", "Keep-Alive: timeout=1"), 0.7, 2, id="close to a short timeout"),
    ],
)
def test_connection_is_not_used_when_its_server_may_be_closing_it(
    response: bytes, seconds: float, connections: int
) -> None:
    clock = Clock(monotonic())
    with Target(answering(response)) as target, client_of(base_of(target), clock=clock) as client:
        for _ in range(2):
            client.send(HttpRequest(Method.GET, base_of(target) + "/"))
            clock.now += seconds
        assert target.connections == connections


def test_connections_are_closed_without_another_request_once_none_was_used_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("amqtt_rest_bridge.http.client.LONGEST_IDLE", 0.2)
    gone = threading.Semaphore(0)
    together = threading.Barrier(3)

    def script(peer: Peer) -> None:
        while peer.request() is not None:
            together.wait(SECONDS)
            peer.send(reply())
        gone.release()

    with Target(script) as target, client_of(base_of(target)) as client:
        client.send_all([HttpRequest(Method.GET, base_of(target) + "/")] * 3)
        assert not gone.acquire(blocking=False)
        client.run(0.4)
        assert all(gone.acquire(timeout=SECONDS) for _ in range(3))


def closed_after_the_first(closed: threading.Event) -> Script:
    """Close each connection after its first response, without having said so."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(reply(b"ok"))
        peer.sock.shutdown(socket.SHUT_RDWR)
        closed.set()

    return script


@pytest.mark.parametrize(
    ("field", "connections"),
    [("X-A: 1", 1), ("Content-Length: 0", 1), ("Content-Length: 1", 3), ("Transfer-Encoding: chunked", 3)],
)
def test_connection_is_not_used_again_after_a_204_that_promises_a_body(field: str, connections: int) -> None:
    response = f"HTTP/1.1 204 No Content\r\n{field}\r\n\r\n".encode()
    with Target(answering(response)) as target, client_of(base_of(target)) as client:
        for _ in range(3):
            assert client.send(HttpRequest(Method.POST, base_of(target) + "/")).status == 204
        assert target.connections == connections


@pytest.mark.parametrize("method", list(Method))
def test_kept_connection_found_closed_is_replaced_for_every_method(method: Method) -> None:
    closed = threading.Event()
    with Target(closed_after_the_first(closed)) as target, client_of(base_of(target)) as client:
        for _ in range(3):
            assert client.send(HttpRequest(method, base_of(target) + "/")).status == 200
            assert closed.wait(SECONDS)
            closed.clear()
        assert len(target.requests) == target.connections == 3


def closed_on_the_second(how: Callable[[Peer], None]) -> Script:
    """Answer the first request of the first connection and end it on the second: it looked alive when it was used."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(reply(b"ok"))
        if peer.number == 1:
            peer.request()
            how(peer)
        else:
            while peer.request():
                peer.send(reply(b"ok"))

    return script


ENDS = [pytest.param(Peer.reset, id="reset"), pytest.param(lambda peer: peer.sock.close(), id="closed")]


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize(
    ("method", "headers"),
    [(Method.GET, ()), (Method.PUT, ()), (Method.DELETE, ()), (Method.POST, WITH_KEY), (Method.PATCH, WITH_KEY)],
)
def test_request_lost_on_a_kept_connection_is_repeated_at_once_when_that_does_no_harm(
    method: Method, headers: tuple[tuple[str, str], ...], how: Callable[[Peer], None]
) -> None:
    with Target(closed_on_the_second(how)) as target, client_of(base_of(target)) as client:
        for _ in range(2):
            assert client.send(HttpRequest(method, base_of(target) + "/", headers)).status == 200
        assert len(target.requests) == 3


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("method", [Method.POST, Method.PATCH])
def test_request_that_may_have_been_processed_is_not_repeated(method: Method, how: Callable[[Peer], None]) -> None:
    with Target(closed_on_the_second(how)) as target, client_of(base_of(target)) as client:
        client.send(HttpRequest(method, base_of(target) + "/"))
        with pytest.raises(CallError) as caught:
            client.send(HttpRequest(method, base_of(target) + "/"))
        assert len(target.requests) == 2
    assert (caught.value.code, caught.value.unsent) == (FailureCode.CONNECTION_FAILED, False)


def test_request_whose_response_had_begun_is_not_repeated() -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(reply(b"ok"))
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")

    with Target(script) as target, client_of(base_of(target)) as client:
        client.send(HttpRequest(Method.GET, base_of(target) + "/"))
        with pytest.raises(CallError, match="closed the connection"):
            client.send(HttpRequest(Method.GET, base_of(target) + "/"))
        assert target.connections == 1


def test_close_ends_idle_connections_and_a_later_request_opens_another() -> None:
    gone = threading.Event()

    def script(peer: Peer) -> None:
        while peer.request() is not None:
            peer.send(reply())
        gone.set()

    with Target(script) as target, client_of(base_of(target)) as client:
        for _ in range(2):
            client.send(HttpRequest(Method.GET, base_of(target) + "/"))
            client.close_idle()
            assert gone.wait(SECONDS)
            gone.clear()
        assert target.connections == 2

"""How the client keeps connections and replaces those that their server has closed."""

import socket
import threading
from collections.abc import Callable
from time import monotonic

import pytest

from amqtt_rest_bridge.errors import CallError, FailureCode
from amqtt_rest_bridge.lot.model import HttpRequest, Method, Pairs
from tests.http.clients import client_of
from tests.support.clock import Clock
from tests.support.http_target import Peer, Target, answering, echo, reply
from tests.support.waiting import SECONDS

GET, POST, PUT, DELETE, PATCH = Method.GET, Method.POST, Method.PUT, Method.DELETE, Method.PATCH
WITH_KEY = (("Idempotency-Key", "k1"),)


def test_many_requests_share_a_client() -> None:
    with Target(echo) as target, client_of(target) as client:
        for _ in range(20):
            bodies = [b"%d" % number * 100 for number in range(16)]
            requests = [HttpRequest(POST, target.url + "/", (), body) for body in bodies]
            assert [response.body for response in client.send_all(requests)] == bodies
        assert target.connections <= 16


@pytest.mark.parametrize(
    ("response", "connections"),
    [
        pytest.param(reply(b"x"), 1, id="usual"),
        pytest.param(reply(b"x", "200 OK", "Connection: close"), 3, id="connection close"),
        pytest.param(reply(b"x", "200 OK", "Connection: close", "Connection: Upgrade"), 3, id="close among others"),
        pytest.param(b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", 3, id="HTTP/1.0"),
        pytest.param(reply(b"x") + reply(b"y"), 3, id="a second response not asked for"),
        pytest.param(b"HTTP/1.1 204 No\r\nX-A: 1\r\n\r\n", 1, id="204"),
        pytest.param(b"HTTP/1.1 204 No\r\nContent-Length: 0\r\n\r\n", 1, id="204, length 0"),
        pytest.param(b"HTTP/1.1 204 No\r\nContent-Length: 1\r\n\r\n", 3, id="204 that promises a body"),
        pytest.param(b"HTTP/1.1 204 No\r\nTransfer-Encoding: chunked\r\n\r\n", 3, id="204 that promises chunks"),
    ],
)
def test_connection_is_used_again_unless_the_response_ends_it_or_its_own_end_is_uncertain(
    response: bytes, connections: int
) -> None:
    with Target(answering(response)) as target, client_of(target) as client:
        assert {client.ask(POST).body for _ in range(3)} == {b"" if b" 204 " in response else b"x"}
        assert target.connections == connections


@pytest.mark.parametrize("first", [0, 1], ids=["Content-Length first", "Transfer-Encoding first"])
def test_a_response_with_two_kinds_of_length_fails_and_its_connection_is_closed(first: int) -> None:
    """RFC 9112 section 6.3: a proxy on the way may have seen another end of it."""
    lines = ["Content-Length: 1", "Transfer-Encoding: chunked"]
    head = "\r\n".join(["HTTP/1.1 200 OK", lines[first], lines[1 - first], "", ""])
    with Target(answering(head.encode() + b"1\r\nx\r\n0\r\n\r\n")) as target, client_of(target) as client:
        for _ in range(2):
            with pytest.raises(CallError, match="both a Content-Length and a Transfer-Encoding") as caught:
                client.ask(POST)
            assert caught.value.code is FailureCode.CONNECTION_FAILED
        assert target.connections == 2


@pytest.mark.parametrize(
    ("keep_alive", "seconds", "connections"),
    [
        pytest.param("X: y", 54, 1, id="idle for 54 s"),
        pytest.param("X: y", 56, 2, id="idle for 56 s"),
        pytest.param("Keep-Alive: timeout=5, max=9", 3, 1, id="within the server's timeout"),
        pytest.param("Keep-Alive: timeout=5, max=9", 4.5, 2, id="close to the server's timeout"),
        pytest.param("Keep-Alive: timeout=1", 0.7, 2, id="close to a short timeout"),
    ],
)
def test_connection_is_not_used_when_its_server_may_be_closing_it(
    keep_alive: str, seconds: float, connections: int
) -> None:
    clock = Clock(monotonic())
    with Target(answering(reply(b"", "200 OK", keep_alive))) as target, client_of(target, clock=clock) as client:
        for _ in range(2):
            client.ask()
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

    with Target(script) as target, client_of(target) as client:
        client.send_all([HttpRequest(GET, target.url + "/")] * 3)
        assert not gone.acquire(blocking=False)
        client.run(0.4)
        assert all(gone.acquire(timeout=SECONDS) for _ in range(3))


@pytest.mark.parametrize("method", list(Method))
def test_kept_connection_found_closed_is_replaced_for_every_method(method: Method) -> None:
    closed = threading.Event()

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(reply(b"ok"))
        peer.sock.shutdown(socket.SHUT_RDWR)  # without having said so
        closed.set()

    with Target(script) as target, client_of(target) as client:
        for _ in range(3):
            assert client.ask(method).status == 200
            assert closed.wait(SECONDS)
            closed.clear()
        assert len(target.requests) == target.connections == 3


def cut_short(peer: Peer) -> None:
    peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
    peer.sock.close()


ENDS: dict[str, Callable[[Peer], None]] = {"reset": Peer.reset, "closed": lambda peer: peer.sock.close()}


@pytest.mark.parametrize(
    ("method", "headers", "how", "is_repeated"),
    [
        *(
            pytest.param(method, headers, how, is_repeated, id=f"{method}, {'a' if headers else 'no'} key, {name}")
            for name, how in ENDS.items()
            for method, headers, is_repeated in [
                (GET, (), True), (PUT, (), True), (DELETE, (), True), (POST, WITH_KEY, True), (PATCH, WITH_KEY, True),
                (POST, (), False), (PATCH, (), False),
            ]
        ),
        pytest.param(GET, (), cut_short, False, id="a response that had begun"),
    ],
)  # fmt: skip
def test_request_lost_on_a_kept_connection_is_repeated_at_once_only_when_that_does_no_harm(
    method: Method, headers: Pairs, how: Callable[[Peer], None], is_repeated: bool
) -> None:
    def script(peer: Peer) -> None:
        """End the first connection on its second request: it looked alive when it was used."""
        peer.request()
        peer.send(reply(b"ok"))
        if peer.number == 1:
            peer.request()
            how(peer)
        else:
            while peer.request():
                peer.send(reply(b"ok"))

    turns: list[None] = []

    async def turn() -> None:
        turns.append(None)

    with Target(script) as target, client_of(target) as client:
        assert client.ask(method, headers=headers, turn=turn).status == 200
        if is_repeated:
            assert client.ask(method, headers=headers, turn=turn).status == 200
        else:
            with pytest.raises(CallError) as caught:
                client.ask(method, headers=headers, turn=turn)
            assert (caught.value.code, caught.value.unsent) == (FailureCode.CONNECTION_FAILED, False)
        assert len(target.requests) == len(turns) == 2 + is_repeated


def test_close_ends_idle_connections_and_a_later_request_opens_another() -> None:
    gone = threading.Event()

    def script(peer: Peer) -> None:
        while peer.request() is not None:
            peer.send(reply())
        gone.set()

    with Target(script) as target, client_of(target) as client:
        for _ in range(2):
            client.ask()
            client.close_idle()
            assert gone.wait(SECONDS)
            gone.clear()
        assert target.connections == 2

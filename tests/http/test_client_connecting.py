"""How the client finds a server, and how REQUEST_TIMEOUT ends what takes too long."""

import socket
import sys
from time import monotonic

import pytest

from amqtt_rest_bridge.errors import FailureCode
from tests.http.clients import client_of, failure_of
from tests.support.http_target import Peer, Script, Target, closing, reply


def test_refused_connection_says_so_and_that_nothing_was_sent(unused_port: int) -> None:
    failure = failure_of(f"http://127.0.0.1:{unused_port}", "/secret?key=value")
    assert "refused the connection" in failure.message
    assert (failure.code, failure.unsent) == (FailureCode.CONNECTION_FAILED, True)
    assert "secret" not in failure.message


def test_unknown_host_name_says_so() -> None:
    failure = failure_of("http://nowhere.invalid")
    assert failure.message == "the host name of http://nowhere.invalid is not known"
    assert (failure.code, failure.unsent) == (FailureCode.CONNECTION_FAILED, True)


def test_next_address_of_a_name_is_tried_and_the_good_one_remembered() -> None:
    with Target(closing(reply())) as target:
        addresses = {("two.test", target.port): ("::1", "127.0.0.1")}
        with client_of(f"http://two.test:{target.port}", addresses=addresses) as client:
            assert [client.ask().status for _ in range(3)] == [200] * 3
        assert len(target.requests) == 3


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


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("script", "body", "said"),
    [
        pytest.param(never_answers, b"", "waiting for the response", id="never answers"),
        pytest.param(deaf, b"x" * 20_000_000, "sending the request", id="never reads"),
        pytest.param(drips(OK + b"X: 1\r\n" * 50), b"", "the response", id="drips headers"),
        pytest.param(drips(reply(b"x" * 200)), b"", "the response", id="drips head and body"),
        pytest.param(
            drips(OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 50), b"", "response", id="drips chunks"
        ),
    ],
)
def test_request_timeout_bounds_the_attempt_as_a_whole(script: Script, body: bytes, said: str) -> None:
    started = monotonic()
    with Target(script) as target:
        failure = failure_of(target, body=body, seconds=1)
        assert monotonic() - started > 0.9
    assert (failure.code, failure.unsent) == (FailureCode.TIMEOUT, False)
    assert "was not done within 1 s" in failure.message and said in failure.message


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse what does not fit into a queue")
def test_connecting_that_takes_too_long_is_a_timeout_with_nothing_sent() -> None:
    """A listener that accepts nothing, with its queue full: the system leaves further connections unanswered."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        started = monotonic()
        failure = failure_of(f"http://127.0.0.1:{listener.getsockname()[1]}", seconds=1)
        assert monotonic() - started > 0.9
    assert (failure.code, failure.unsent) == (FailureCode.TIMEOUT, True)
    assert "no connection to" in failure.message


def test_a_call_after_a_slow_one_has_its_whole_time_again() -> None:
    def script(peer: Peer) -> None:
        while peer.request() is not None:
            peer.server.stopping.wait(1.1)
            peer.send(reply(b"ok"))

    with Target(script) as target, client_of(target, seconds=2) as client:
        assert [client.ask().status for _ in range(2)] == [200] * 2
        assert target.connections == 1

"""How the client finds a server, and how REQUEST_TIMEOUT ends what takes too long."""

import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import pytest

from amqtt_rest_bridge.errors import CallError, FailureCode
from amqtt_rest_bridge.http_client import Resolver
from amqtt_rest_bridge.model import HttpRequest, Method
from tests.http_client.clients import base_of, client_of
from tests.support.http_target import Peer, Script, Target, closing, echo, reply
from tests.support.waiting import SECONDS


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


def has_no_name(host: str, port: int) -> list[str]:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def has_no_address(host: str, port: int) -> list[str]:
    return []


@pytest.mark.parametrize("look_up", [has_no_name, has_no_address])
def test_unknown_host_name_says_so(look_up: Callable[[str, int], list[str]]) -> None:
    with client_of("http://nowhere.test", resolver=Resolver(look_up)) as client, pytest.raises(CallError) as caught:
        client.send(HttpRequest(Method.POST, "http://nowhere.test/"))
    assert caught.value.message == "the host name of http://nowhere.test is not known"
    assert (caught.value.code, caught.value.unsent) == (FailureCode.CONNECTION_FAILED, True)


def test_next_address_of_a_name_is_tried_and_the_good_one_remembered() -> None:
    with Target(closing(reply())) as target:
        base = f"http://two.test:{target.port}"
        with client_of(base, resolver=Resolver(lambda *_: ["::1", "127.0.0.1"])) as client:
            for _ in range(3):
                assert client.send(HttpRequest(Method.GET, base + "/")).status == 200
        assert target.connections == 3


@pytest.mark.parametrize(
    ("addresses", "said"),
    [(["127.0.0.1", "::1"], "refused"), (["::1", "127.0.0.1"], "refused"), (["::1"], "Address family not supported")],
)
def test_ipv6_address_on_a_system_without_ipv6_does_not_hide_the_reason(
    addresses: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("urllib3.util.connection.HAS_IPV6", False)
    base = f"http://two.test:{refused_port()}"
    with client_of(base, resolver=Resolver(lambda *_: addresses)) as client, pytest.raises(CallError, match=said):
        client.send(HttpRequest(Method.GET, base + "/"))


def test_system_resolver_knows_localhost() -> None:
    with Target(echo) as target, client_of(f"http://localhost:{target.port}") as client:
        assert client.send(HttpRequest(Method.GET, f"http://localhost:{target.port}/")).status == 200
    assert "127.0.0.1" in Resolver().addresses("localhost", 80, 5)


def test_a_name_is_looked_up_once_for_all_who_wait() -> None:
    asked: list[str] = []
    answer = threading.Event()

    def look_up(host: str, port: int) -> list[str]:
        asked.append(host)
        answer.wait(SECONDS)
        return ["192.0.2.1"]

    resolver = Resolver(look_up)
    with pytest.raises(TimeoutError):
        resolver.addresses("slow.test", 80, 0.01)
    with ThreadPoolExecutor(8) as threads:
        waiting = [threads.submit(resolver.addresses, "slow.test", 80, 5) for _ in range(8)]
        answer.set()
        assert all(future.result() == ["192.0.2.1"] for future in waiting)
    assert len(asked) <= 2  # the second only when the first was done before the last one asked


def test_name_that_cannot_be_written_is_an_unknown_one() -> None:
    def look_up(host: str, port: int) -> list[str]:
        raise UnicodeError("label too long")

    with pytest.raises(OSError, match="label too long"):
        Resolver(look_up).addresses("x.test", 80, 5)


def test_a_name_is_looked_up_again_after_a_machine_had_no_thread_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    resolver = Resolver(lambda host, port: ["192.0.2.1"])
    with monkeypatch.context() as full, pytest.raises(OSError, match="can't start new thread"):
        full.setattr(threading.Thread, "start", no_thread)
        resolver.addresses("x.test", 80, 5)
    assert resolver.addresses("x.test", 80, 5) == ["192.0.2.1"]


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
        pytest.param(drips(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200), b"", "headers", False, id="drips headers"),
        pytest.param(
            drips(b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 50), b"", "headers", False, id="drips lines of headers"
        ),
        pytest.param(drips(reply(b"x" * 200)), b"", "the response's", False, id="drips head and body"),
        pytest.param(
            drips(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 50),
            b"",
            "the response's",
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


def test_name_server_that_does_not_answer_is_a_timeout_with_nothing_sent() -> None:
    over = threading.Event()

    def look_up(host: str, port: int) -> list[str]:
        over.wait(SECONDS)
        return []

    resolver = Resolver(look_up)
    with client_of("http://slow.test", seconds=1, resolver=resolver) as client, pytest.raises(CallError) as caught:
        client.send(HttpRequest(Method.POST, "http://slow.test/"))
    over.set()
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

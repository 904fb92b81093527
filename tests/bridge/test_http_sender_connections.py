"""What the sender sends, how it keeps and replaces connections, and how REQUEST_TIMEOUT ends what takes too long."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from time import monotonic
from typing import TYPE_CHECKING, cast

import pytest

from amqtt_rest_bridge.bridge.http_connection import Connection, DeadlineSocket
from amqtt_rest_bridge.bridge.http_exchange import Received, exchange
from amqtt_rest_bridge.bridge.http_resolver import Resolver
from amqtt_rest_bridge.bridge.http_sender import HttpSender
from amqtt_rest_bridge.errors import CallFailed, ConfigurationError, FailureCode
from amqtt_rest_bridge.model import HttpRequest, Method, RestApiConfig
from tests.bridge.http_target import AUTHORITY, Peer, Script, Target, answering, closing, echo, reply, server_tls

if TYPE_CHECKING:
    from typing_extensions import Buffer

WITH_KEY = (("Idempotency-Key", "k1"),)


class Clock:
    """The real clock, which a test can put forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return monotonic() + self.ahead


@contextmanager
def sender_of(base: str, *, seconds: int = 5, limit: int = 300_000, **others: object) -> Iterator[HttpSender]:
    config = RestApiConfig(base_address=base, request_timeout=seconds)
    sender = HttpSender(config, max_response_bytes=limit, environment={}, **others)  # type: ignore[arg-type]
    yield sender
    sender.close()


def base_of(target: Target) -> str:
    return f"http://127.0.0.1:{target.port}"


def refused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


# What is sent.


def test_request_arrives_as_it_was_built() -> None:
    headers = (("Host", "elsewhere.test"), ("X-B", "1"), ("x-a", "grüß"), ("X-B", "2"), ("Content-Length", "3"))
    with Target(echo) as target, sender_of(base_of(target)) as sender:
        response = sender.send(HttpRequest(Method.PUT, base_of(target) + "/a/../b%20c?d={e}", headers, b"\x00\xffz"))
    (seen,) = target.requests
    assert seen.line == "PUT /a/../b%20c?d={e} HTTP/1.1"
    assert seen.headers == headers
    assert seen.body == response.body == b"\x00\xffz"


def test_host_and_content_length_are_added_when_they_are_missing() -> None:
    with Target(echo) as target, sender_of(base_of(target)) as sender:
        sender.send(HttpRequest(Method.POST, base_of(target) + "/", (), b"abc"))
        sender.send(HttpRequest(Method.GET, base_of(target)))
    first, second = target.requests
    assert first.headers == (("Host", f"127.0.0.1:{target.port}"), ("Content-Length", "3"))
    assert second.headers == (("Host", f"127.0.0.1:{target.port}"),)
    assert second.line == "GET / HTTP/1.1"


def test_what_cannot_stand_in_a_request_line_is_percent_encoded() -> None:
    with Target(echo) as target, sender_of(base_of(target)) as sender:
        sender.send(HttpRequest(Method.GET, base_of(target) + "/käse kuchen#top"))
    assert target.requests[0].line == "GET /k%C3%A4se%20kuchen HTTP/1.1"


@pytest.mark.parametrize("value", ["a\r\nX-Injected: 1", "a\nb", "a\rb"])
def test_line_break_in_a_header_is_never_sent(value: str) -> None:
    with Target(echo) as target, sender_of(base_of(target)) as sender:
        with pytest.raises(ValueError, match="Invalid header value"):
            sender.send(HttpRequest(Method.GET, base_of(target) + "/", (("X-A", value),)))
        assert not target.requests


def test_another_server_than_the_route_names_is_refused() -> None:
    with Target(echo) as target, sender_of(base_of(target)) as sender:
        with pytest.raises(ValueError, match="server of its route"):
            sender.send(HttpRequest(Method.GET, base_of(target).replace("127.0.0.1", "127.0.0.1.test") + "/"))
        assert not target.connections


def test_large_body_and_response_go_through_whole() -> None:
    body = bytes(range(256)) * 1_024
    with Target(echo) as target, sender_of(base_of(target)) as sender:
        assert sender.send(HttpRequest(Method.POST, base_of(target) + "/", (), body)).body == body


def test_ipv6_address_is_reached_and_stands_in_brackets() -> None:
    with Target(echo, host="::1") as target, sender_of(f"http://[::1]:{target.port}") as sender:
        assert sender.send(HttpRequest(Method.GET, f"http://[::1]:{target.port}/x")).status == 200
    assert target.requests[0].values("Host") == [f"[::1]:{target.port}"]


# Connections.


def test_connection_is_used_again() -> None:
    with Target(echo) as target, sender_of(base_of(target)) as sender:
        for number in range(20):
            body = b"%d" % number
            assert sender.send(HttpRequest(Method.POST, base_of(target) + "/", (), body)).body == body
        assert target.connections == 1


def test_sixteen_threads_share_a_sender() -> None:
    def call(number: int) -> bool:
        body = b"%d" % number * 100
        return sender.send(HttpRequest(Method.POST, base_of(target) + "/", (), body)).body == body

    with Target(echo) as target, sender_of(base_of(target)) as sender, ThreadPoolExecutor(16) as threads:
        assert all(threads.map(call, range(800)))
        assert target.connections <= 16


@pytest.mark.parametrize(
    "response",
    [
        pytest.param(reply(b"x", "200 OK", "Connection: close"), id="connection close"),
        pytest.param(b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", id="HTTP/1.0"),
        pytest.param(reply(b"x") + reply(b"y"), id="a second response nobody asked for"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
            id="two lengths of different kinds",
        ),
    ],
)
def test_connection_is_not_used_again_after(response: bytes) -> None:
    with Target(answering(response)) as target, sender_of(base_of(target)) as sender:
        for _ in range(3):
            assert sender.send(HttpRequest(Method.POST, base_of(target) + "/")).body == b"x"
        assert target.connections == 3


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
    clock = Clock()
    with Target(answering(response)) as target, sender_of(base_of(target), clock=clock) as sender:
        for _ in range(2):
            sender.send(HttpRequest(Method.GET, base_of(target) + "/"))
            clock.ahead += seconds
        assert target.connections == connections


def closed_after_the_first(closed: threading.Event) -> Script:
    """Close each connection after its first response, without having said so."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(reply(b"ok"))
        peer.sock.shutdown(socket.SHUT_RDWR)
        closed.set()

    return script


@pytest.mark.parametrize("method", list(Method))
def test_kept_connection_found_closed_is_replaced_for_every_method(method: Method) -> None:
    closed = threading.Event()
    with Target(closed_after_the_first(closed)) as target, sender_of(base_of(target)) as sender:
        for _ in range(3):
            assert sender.send(HttpRequest(method, base_of(target) + "/")).status == 200
            assert closed.wait(5)
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
    with Target(closed_on_the_second(how)) as target, sender_of(base_of(target)) as sender:
        for _ in range(2):
            assert sender.send(HttpRequest(method, base_of(target) + "/", headers)).status == 200
        assert (target.connections, len(target.requests)) == (2, 3)


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("method", [Method.POST, Method.PATCH])
def test_request_that_may_have_been_processed_is_not_repeated(method: Method, how: Callable[[Peer], None]) -> None:
    with Target(closed_on_the_second(how)) as target, sender_of(base_of(target)) as sender:
        sender.send(HttpRequest(method, base_of(target) + "/"))
        with pytest.raises(CallFailed) as caught:
            sender.send(HttpRequest(method, base_of(target) + "/"))
        assert len(target.requests) == 2
    assert (caught.value.code, caught.value.unsent) == (FailureCode.CONNECTION_FAILED, False)


def test_request_whose_response_had_begun_is_not_repeated() -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(reply(b"ok"))
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")

    with Target(script) as target, sender_of(base_of(target)) as sender:
        sender.send(HttpRequest(Method.GET, base_of(target) + "/"))
        with pytest.raises(CallFailed, match="closed the connection"):
            sender.send(HttpRequest(Method.GET, base_of(target) + "/"))
        assert target.connections == 1


class RefusedSocket(socket.socket):
    """A socket whose other end stops reading after the first bytes: it broke between two writes."""

    other_end: socket.socket

    def send(self, data: "Buffer", flags: int = 0, /) -> int:
        count = super().send(memoryview(data)[:100], flags)
        self.other_end.recv(100)
        self.other_end.shutdown(socket.SHUT_RD)
        return count


def send_to_refusing_server(response: bytes) -> tuple[Received, DeadlineSocket]:
    """Exchange over a Unix socket, because TCP may lose the response to the reset that follows it."""
    ours, theirs = socket.socketpair()
    with RefusedSocket(fileno=ours.detach()) as sock, theirs:
        sock.other_end = theirs
        theirs.sendall(response)
        theirs.shutdown(socket.SHUT_WR)
        http = HTTPConnection("refusing.test")
        wire = DeadlineSocket(sock, monotonic, monotonic() + 5)
        http.sock = cast(socket.socket, wire)
        return exchange(Connection(http, wire), "POST", "/", (), b"x" * 500_000, 100), wire


def test_response_to_a_body_that_was_refused_half_way_is_read() -> None:
    """A server may answer 413 and stop reading: what it says is worth more than the broken pipe."""
    received, wire = send_to_refusing_server(reply(b"too much", "413 Content Too Large"))
    assert isinstance(wire.cut_off, BrokenPipeError)
    assert (received.status, received.body, received.reusable) == (413, b"too much", False)


def test_body_that_was_refused_half_way_without_a_response_is_a_broken_connection() -> None:
    with pytest.raises(BrokenPipeError):
        send_to_refusing_server(b"")


class BrokenTlsSocket(ssl.SSLSocket):
    """A TLS socket whose connection is gone by the time something is sent."""

    def send(self, data: "Buffer", flags: int = 0) -> int:
        raise BrokenPipeError


def test_tls_server_that_hung_up_before_the_request_is_asked_why() -> None:
    """It refuses a client certificate only after our handshake is done: the reason waits to be read."""
    with Target(lambda peer: None, tls=server_tls()) as target:
        context = ssl.create_default_context(cafile=AUTHORITY)
        context.sslsocket_class = BrokenTlsSocket
        plain = socket.create_connection(("127.0.0.1", target.port))
        with context.wrap_socket(plain, server_hostname="localhost") as sock:
            http = HTTPConnection("localhost")
            wire = DeadlineSocket(sock, monotonic, monotonic() + 5)
            http.sock = cast(socket.socket, wire)
            with pytest.raises(BrokenPipeError):  # here it closed in order, which says nothing more
                exchange(Connection(http, wire), "POST", "/", (), None, 100)
    assert not wire.sent


def test_close_ends_idle_connections_and_those_in_use_after_their_call() -> None:
    gone = threading.Event()

    def script(peer: Peer) -> None:
        while peer.request() is not None:
            peer.send(reply())
        gone.set()

    with Target(script) as target, sender_of(base_of(target)) as sender:
        sender.send(HttpRequest(Method.GET, base_of(target) + "/"))
        sender.close()
        assert gone.wait(5)
        gone.clear()
        sender.send(HttpRequest(Method.GET, base_of(target) + "/"))
        assert gone.wait(5)


# No connection.


def test_refused_connection_says_so_and_that_nothing_was_sent() -> None:
    base = f"http://127.0.0.1:{refused_port()}"
    with sender_of(base) as sender, pytest.raises(CallFailed, match="refused the connection") as caught:
        sender.send(HttpRequest(Method.POST, base + "/secret?key=value"))
    assert (caught.value.code, caught.value.unsent) == (FailureCode.CONNECTION_FAILED, True)
    assert "secret" not in caught.value.message


def has_no_name(host: str, port: int) -> list[str]:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def has_no_address(host: str, port: int) -> list[str]:
    return []


@pytest.mark.parametrize("look_up", [has_no_name, has_no_address])
def test_unknown_host_name_says_so(look_up: Callable[[str, int], list[str]]) -> None:
    with sender_of("http://nowhere.test", resolver=Resolver(look_up)) as sender, pytest.raises(CallFailed) as caught:
        sender.send(HttpRequest(Method.POST, "http://nowhere.test/"))
    assert caught.value.message == "the host name of http://nowhere.test is not known"
    assert (caught.value.code, caught.value.unsent) == (FailureCode.CONNECTION_FAILED, True)


def test_next_address_of_a_name_is_tried_and_the_good_one_remembered() -> None:
    with Target(closing(reply())) as target:
        base = f"http://two.test:{target.port}"
        with sender_of(base, resolver=Resolver(lambda *_: ["::1", "127.0.0.1"])) as sender:
            for _ in range(3):
                assert sender.send(HttpRequest(Method.GET, base + "/")).status == 200
        assert target.connections == 3


def test_system_resolver_knows_localhost() -> None:
    with Target(echo) as target, sender_of(f"http://localhost:{target.port}") as sender:
        assert sender.send(HttpRequest(Method.GET, f"http://localhost:{target.port}/")).status == 200
    assert "127.0.0.1" in Resolver().addresses("localhost", 80, 5)


def test_a_name_is_looked_up_once_for_all_who_wait() -> None:
    asked: list[str] = []
    answer = threading.Event()

    def look_up(host: str, port: int) -> list[str]:
        asked.append(host)
        answer.wait(5)
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


# REQUEST_TIMEOUT.


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
    with Target(script) as target, sender_of(base_of(target), seconds=1) as sender:
        with pytest.raises(CallFailed, match="was not done within 1 s") as caught:
            sender.send(HttpRequest(Method.POST, base_of(target) + "/", (), body))
        assert 0.9 < monotonic() - started < 1.8
    assert (caught.value.code, caught.value.unsent) == (FailureCode.TIMEOUT, unsent)
    assert said in caught.value.message


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
        with sender_of(base, seconds=1) as sender, pytest.raises(CallFailed, match="no connection to") as caught:
            sender.send(HttpRequest(Method.POST, base + "/"))
        assert 0.9 < monotonic() - started < 1.8
    assert (caught.value.code, caught.value.unsent) == (FailureCode.TIMEOUT, True)


def test_name_server_that_does_not_answer_is_a_timeout_with_nothing_sent() -> None:
    over = threading.Event()

    def look_up(host: str, port: int) -> list[str]:
        over.wait(10)
        return []

    resolver = Resolver(look_up)
    with sender_of("http://slow.test", seconds=1, resolver=resolver) as sender, pytest.raises(CallFailed) as caught:
        sender.send(HttpRequest(Method.POST, "http://slow.test/"))
    over.set()
    assert (caught.value.code, caught.value.unsent) == (FailureCode.TIMEOUT, True)


def test_a_call_after_a_slow_one_has_its_whole_time_again() -> None:
    def script(peer: Peer) -> None:
        for seconds in (0.7, 0.7, 0.7):
            peer.request()
            peer.server.stopping.wait(seconds)
            peer.send(reply(b"ok"))

    with Target(script) as target, sender_of(base_of(target), seconds=1) as sender:
        for _ in range(3):
            assert sender.send(HttpRequest(Method.GET, base_of(target) + "/")).status == 200
        assert target.connections == 1


# Settings that cannot be used are found when the sender is made.


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ("http://user:secret@host", "USERNAME and PASSWORD"),
        ("http://host/path?query=1", "query"),
        ("http://host/#top", "query or a fragment"),
        ("ftp://host", "http and https"),
        ("host", "http and https"),
        ("http://", "no host"),
        ("http://ho st", "not a host name"),
        ("http://host:0", "port"),
        ("http://host:99999", "ort"),
        ("http://[::1", "not an address"),
        ("http://[::zz]", "not an address"),
        ("http://faß.test", "xn--"),
        (f"http://{'a' * 64}.test", "not a host name"),
    ],
)
def test_unusable_base_address_is_refused(base: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match="BASE_ADDRESS") as caught:
        HttpSender(RestApiConfig(base_address=base), max_response_bytes=1, environment={})
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


def test_non_ascii_host_is_sent_as_its_a_label() -> None:
    with Target(echo) as target:
        resolver = Resolver(lambda host, _: ["127.0.0.1"] if host == "xn--kse-qla.test" else [])
        base = f"http://KÄSE.test:{target.port}"
        with sender_of(base, resolver=resolver) as sender:
            sender.send(HttpRequest(Method.GET, f"http://xn--kse-qla.test:{target.port}/"))
    assert target.requests[0].values("Host") == [f"xn--kse-qla.test:{target.port}"]

"""What the sender makes of responses, good and bad: every case is bytes on a real socket."""

import gzip
import socket
import zlib
from collections.abc import Callable
from http.client import HTTPConnection
from time import monotonic
from typing import TYPE_CHECKING, cast

import pytest

from amqtt_rest_bridge.bridge.http_connection import Connection, DeadlineSocket
from amqtt_rest_bridge.bridge.http_exchange import FinalResponse, Received, exchange
from amqtt_rest_bridge.bridge.http_sender import HttpSender
from amqtt_rest_bridge.errors import CallFailed, FailureCode
from amqtt_rest_bridge.model import HttpRequest, HttpResponse, Method, RestApiConfig
from tests.bridge.http_target import Peer, Target, answering, closing, reply

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

LIMIT = 1_000


def call(target: Target, method: Method = Method.GET) -> HttpResponse:
    base = f"http://127.0.0.1:{target.port}"
    sender = HttpSender(RestApiConfig(base_address=base, request_timeout=5), max_response_bytes=LIMIT, environment={})
    try:
        return sender.send(HttpRequest(method, f"{base}/path"))
    finally:
        sender.close()


def chunked(*chunks: bytes, trailer: bytes = b"") -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n" + trailer + b"\r\n"


def raw_deflate(data: bytes) -> bytes:
    deflater = zlib.compressobj(wbits=-15)
    return deflater.compress(data) + deflater.flush()


BODY = b"some body \x00\xff, byte for byte"


@pytest.mark.parametrize(
    ("response", "status", "body"),
    [
        pytest.param(reply(BODY), 200, BODY, id="content-length"),
        pytest.param(reply(b""), 200, b"", id="empty"),
        pytest.param(reply(b"x" * LIMIT), 200, b"x" * LIMIT, id="exactly the limit"),
        pytest.param(chunked(BODY[:5], BODY[5:]), 200, BODY, id="chunked"),
        pytest.param(chunked(b"x" * LIMIT), 200, b"x" * LIMIT, id="chunked, exactly the limit"),
        pytest.param(chunked(*[b"x"] * LIMIT), 200, b"x" * LIMIT, id="chunks of one byte"),
        pytest.param(chunked(), 200, b"", id="chunked and empty"),
        pytest.param(chunked(BODY, trailer=b"Checksum: 1\r\n"), 200, BODY, id="chunked with a trailer"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;name=value\r\nabc\r\n0\r\n\r\n",
            200,
            b"abc",
            id="chunk extension",
        ),
        pytest.param(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + BODY, 200, BODY, id="until the end"),
        pytest.param(b"HTTP/1.0 200 OK\r\n\r\n" + BODY, 200, BODY, id="HTTP/1.0"),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", id="204"),
        pytest.param(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", 304, b"", id="304"),
        pytest.param(b"HTTP/1.1 300 Multiple Choices\r\nContent-Length: 1\r\n\r\nx", 300, b"x", id="300, no Location"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" + reply(BODY), 200, BODY, id="100 before it"),
        pytest.param(
            b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n" + reply(BODY),
            200,
            BODY,
            id="102 and 103 before it",
        ),
        pytest.param(b"HTTP/1.1 200\r\nContent-Length: 1\r\n\r\nx", 200, b"x", id="no reason phrase"),
        pytest.param(b"HTTP/1.1 200 OK\nContent-Length: 1\n\nx", 200, b"x", id="bare line feeds"),
        pytest.param(reply(b"gone", "404 Not Found"), 404, b"gone", id="404 is a response"),
        pytest.param(reply(b"", "599 Whatever"), 599, b"", id="unknown status"),
        pytest.param(reply(gzip.compress(BODY), "200 OK", "Content-Encoding: gzip"), 200, BODY, id="gzip"),
        pytest.param(reply(gzip.compress(BODY), "200 OK", "Content-Encoding: X-GZip"), 200, BODY, id="x-gzip"),
        pytest.param(
            reply(gzip.compress(b"a") + gzip.compress(b"b") + b"\0", "200 OK", "Content-Encoding: gzip"),
            200,
            b"ab",
            id="gzip in two members",
        ),
        pytest.param(reply(zlib.compress(BODY), "200 OK", "Content-Encoding: deflate"), 200, BODY, id="deflate"),
        pytest.param(reply(raw_deflate(BODY), "200 OK", "Content-Encoding: deflate"), 200, BODY, id="raw deflate"),
        pytest.param(
            reply(gzip.compress(zlib.compress(BODY)), "200 OK", "Content-Encoding: deflate, gzip"),
            200,
            BODY,
            id="deflate in gzip",
        ),
        pytest.param(reply(b"", "200 OK", "Content-Encoding: gzip"), 200, b"", id="nothing, gzipped"),
        pytest.param(reply(BODY, "200 OK", "Content-Encoding: br"), 200, BODY, id="a coding nobody offered"),
        pytest.param(reply(BODY, "200 OK", "Content-Encoding: identity"), 200, BODY, id="identity"),
        pytest.param(
            reply(gzip.compress(b"x" * LIMIT), "200 OK", "Content-Encoding: gzip"),
            200,
            b"x" * LIMIT,
            id="gzip, exactly the limit",
        ),
    ],
)
def test_response_is_read_to_its_end(response: bytes, status: int, body: bytes) -> None:
    with Target(closing(response)) as target:
        received = call(target)
    assert (received.status, received.body) == (status, body)


def test_headers_arrive_in_order_with_their_names_as_sent_and_their_text_clean() -> None:
    head = b"HTTP/1.1 200 F\xc3\xbcr Dich\r\nX-B: 1\r\nx-a:  caf\xc3\xa9 \r\nX-B: 2\r\n"
    odd = b"X-F: a\r\n b\r\nX-L: caf\xe9\r\nX-N: \x01\r\nContent-Length: 0\r\n\r\n"
    with Target(closing(head + odd)) as target:
        received = call(target)
    assert received.reason == "Für Dich"
    assert received.headers == (
        ("X-B", "1"),
        ("x-a", "café"),
        ("X-B", "2"),
        ("X-F", "a b"),
        ("X-L", "café"),
        ("X-N", ""),
        ("Content-Length", "0"),
    )


def test_elapsed_is_the_time_from_sending_to_the_last_byte() -> None:
    def slow(peer: Peer) -> None:
        peer.request()
        peer.server.stopping.wait(0.1)
        peer.send(reply(b"ab"))

    with Target(slow) as target:
        assert 0.1 <= call(target).elapsed < 2


def not_http(data: bytes) -> Callable[[Peer], None]:
    """Say something and keep the connection open: it must be found out at once, not at the deadline."""

    def script(peer: Peer) -> None:
        peer.send(data)
        peer.wait()

    return script


def endless_headers(peer: Peer) -> None:
    peer.request()
    peer.send(b"HTTP/1.1 200 OK\r\n")
    while not peer.server.stopping.is_set():
        peer.send(b"X: " + b"x" * 1_000 + b"\r\n")


def endless_interim(peer: Peer) -> None:
    peer.request()
    while not peer.server.stopping.is_set():
        peer.send(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")


def endless_trailer(peer: Peer) -> None:
    peer.request()
    peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n")
    while not peer.server.stopping.is_set():
        peer.send(b"X: " + b"x" * 1_000 + b"\r\n")


def reset_mid_body(peer: Peer) -> None:
    peer.request()
    peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")
    peer.reset()


def reset_at_once(peer: Peer) -> None:
    peer.request()
    peer.reset()


def head(*lines: str) -> bytes:
    return "\r\n".join(("HTTP/1.1 200 OK", *lines, "", "")).encode()


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        pytest.param(reset_at_once, FailureCode.CONNECTION_FAILED, "while waiting for", id="reset before a response"),
        pytest.param(reset_mid_body, FailureCode.CONNECTION_FAILED, "broke off", id="reset mid-body"),
        pytest.param(closing(b""), FailureCode.CONNECTION_FAILED, "closed the connection", id="closed without a word"),
        pytest.param(closing(b"HTTP/1.1 200 OK\r\nX-A"), FailureCode.CONNECTION_FAILED, "", id="closed in the headers"),
        pytest.param(
            closing(head("Content-Length: 9") + b"abc"),
            FailureCode.CONNECTION_FAILED,
            "while reading the response's body",
            id="closed in the body",
        ),
        pytest.param(
            closing(head("Transfer-Encoding: chunked") + b"9\r\nabc"),
            FailureCode.CONNECTION_FAILED,
            "while reading the response's body",
            id="closed in a chunk",
        ),
        pytest.param(
            not_http(b"SSH-2.0-OpenSSH_9\r\n"), FailureCode.CONNECTION_FAILED, "not HTTP", id="another protocol"
        ),
        pytest.param(
            not_http(b"\x15\x03\x03\x00\x02\x02\x50"), FailureCode.CONNECTION_FAILED, "expects TLS", id="TLS alert"
        ),
        pytest.param(closing(b"HTTP/1.1 abc\r\n\r\n"), FailureCode.CONNECTION_FAILED, "not HTTP", id="no status"),
        pytest.param(
            closing(b"HTTP/2 200\r\n\r\n"), FailureCode.CONNECTION_FAILED, "not HTTP", id="HTTP/2 in plain text"
        ),
        pytest.param(
            closing(head("nonsense", "Content-Length: 1") + b"x"),
            FailureCode.CONNECTION_FAILED,
            "header line",
            id="header without colon",
        ),
        pytest.param(
            closing(head("Content-Length: abc")), FailureCode.CONNECTION_FAILED, "not a number", id="odd length"
        ),
        pytest.param(
            closing(head("Content-Length: -1")), FailureCode.CONNECTION_FAILED, "not a number", id="negative length"
        ),
        pytest.param(
            closing(head("Content-Length: 1_0") + b"x" * 10),
            FailureCode.CONNECTION_FAILED,
            "not a number",
            id="length only Python understands",
        ),
        pytest.param(
            closing(head("Content-Length: 1", "Content-Length: 2") + b"ab"),
            FailureCode.CONNECTION_FAILED,
            "two different",
            id="two lengths",
        ),
        pytest.param(
            closing(head("Transfer-Encoding: gzip, chunked") + b"0\r\n\r\n"),
            FailureCode.CONNECTION_FAILED,
            "not chunked",
            id="unknown transfer coding",
        ),
        pytest.param(
            closing(head("Transfer-Encoding: chunked") + b"zz\r\nabc"),
            FailureCode.CONNECTION_FAILED,
            "",
            id="odd chunk",
        ),
        pytest.param(
            closing(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"),
            FailureCode.CONNECTION_FAILED,
            "protocol",
            id="101",
        ),
        pytest.param(
            closing(reply(b"not gzip", "200 OK", "Content-Encoding: gzip")),
            FailureCode.CONNECTION_FAILED,
            "not gzip",
            id="gzip that is none",
        ),
        pytest.param(
            closing(reply(gzip.compress(b"x" * 50)[:-9], "200 OK", "Content-Encoding: gzip")),
            FailureCode.CONNECTION_FAILED,
            "cut short",
            id="gzip cut short",
        ),
        pytest.param(
            closing(reply(b"x", "200 OK", "Content-Encoding: " + ", ".join(["gzip"] * 6))),
            FailureCode.CONNECTION_FAILED,
            "codings",
            id="too many codings",
        ),
        pytest.param(endless_headers, FailureCode.RESPONSE_TOO_LARGE, "headers", id="endless headers"),
        pytest.param(endless_interim, FailureCode.RESPONSE_TOO_LARGE, "headers", id="endless interim responses"),
        pytest.param(endless_trailer, FailureCode.RESPONSE_TOO_LARGE, "larger", id="endless trailer"),
        pytest.param(
            closing(head(*[f"X-{n}: 1" for n in range(101)])),
            FailureCode.RESPONSE_TOO_LARGE,
            "headers",
            id="101 headers",
        ),
        pytest.param(
            closing(reply(b"x" * (LIMIT + 1))),
            FailureCode.RESPONSE_TOO_LARGE,
            "1000 bytes",
            id="one byte over the limit",
        ),
        pytest.param(
            closing(head("Content-Length: 99999999999999999999")), FailureCode.RESPONSE_TOO_LARGE, "", id="huge length"
        ),
        pytest.param(closing(chunked(b"x" * (LIMIT + 1))), FailureCode.RESPONSE_TOO_LARGE, "", id="a chunk too large"),
        pytest.param(
            closing(chunked(*[b"x"] * (LIMIT + 1))), FailureCode.RESPONSE_TOO_LARGE, "", id="a chunk too many"
        ),
        pytest.param(
            closing(b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * (LIMIT + 1)),
            FailureCode.RESPONSE_TOO_LARGE,
            "",
            id="too large, until the end",
        ),
        pytest.param(
            closing(reply(gzip.compress(b"x" * 500_000), "200 OK", "Content-Encoding: gzip")),
            FailureCode.RESPONSE_TOO_LARGE,
            "",
            id="gzip bomb",
        ),
    ],
)
def test_bad_response_fails_with_its_code(script: Callable[[Peer], None], code: FailureCode, said: str) -> None:
    with Target(script) as target, pytest.raises(CallFailed) as caught:
        call(target)
    failure = caught.value
    assert failure.code is code
    assert said in failure.message
    assert f"http://127.0.0.1:{target.port}" in failure.message
    assert failure.hint
    assert "/path" not in failure.message
    assert not failure.unsent


def test_a_body_is_read_up_to_the_limit_and_no_further() -> None:
    """The endless body stops the test if more is read than the limit allows."""
    sent = 0

    def endless(peer: Peer) -> None:
        nonlocal sent
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\n\r\n")
        while not peer.server.stopping.is_set():
            peer.send(b"x" * 10_000)
            sent += 10_000

    with Target(endless) as target, pytest.raises(CallFailed, match="larger than 1000 bytes"):
        call(target)
    assert sent < 10_000_000  # what the system's buffers take


def test_a_slow_head_and_body_do_not_wait_for_delayed_acknowledgements() -> None:
    """A server that sends its head and body apart, with Nagle's algorithm on, costs 40 ms a call otherwise."""

    def script(peer: Peer) -> None:
        while peer.request() is not None:
            peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
            peer.send(b"ok")

    with Target(script) as target:
        base = f"http://127.0.0.1:{target.port}"
        sender = HttpSender(RestApiConfig(base_address=base), max_response_bytes=LIMIT, environment={})
        elapsed = sorted(sender.send(HttpRequest(Method.GET, base + "/")).elapsed for _ in range(30))
        sender.close()
    assert elapsed[15] < 0.03


def test_responses_of_one_connection_are_told_apart() -> None:
    with Target(answering(reply(b"one"))) as target:
        base = f"http://127.0.0.1:{target.port}"
        sender = HttpSender(RestApiConfig(base_address=base), max_response_bytes=LIMIT, environment={})
        bodies = [sender.send(HttpRequest(Method.GET, base + "/")).body for _ in range(3)]
        sender.close()
        assert (bodies, target.connections) == ([b"one"] * 3, 1)


class PiecesSocket(socket.socket):
    """A socket on which a response arrives in given pieces, whatever the network would make of them."""

    pieces: list[bytes]

    def recv_into(self, buffer: "WriteableBuffer", nbytes: int = 0, flags: int = 0) -> int:
        piece = self.pieces.pop(0) if self.pieces else b""
        memoryview(buffer)[: len(piece)] = piece
        return len(piece)


def exchange_in_pieces(pieces: list[bytes]) -> Received:
    ours, theirs = socket.socketpair()
    with PiecesSocket(fileno=ours.detach()) as sock, theirs:
        sock.pieces = pieces
        http = HTTPConnection("pieces.test")
        http.response_class = FinalResponse
        wire = DeadlineSocket(sock, monotonic, monotonic() + 5)
        http.sock = cast(socket.socket, wire)
        return exchange(Connection(http, wire), "GET", "/", (), None, LIMIT)


@pytest.mark.parametrize(
    "response",
    [
        pytest.param(reply(BODY, "200 OK", "X-A: b"), id="content-length"),
        pytest.param(chunked(BODY[:5], BODY[5:], trailer=b"X: y\r\n"), id="chunked"),
        pytest.param(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + reply(BODY), id="interim"),
        pytest.param(reply(gzip.compress(BODY), "200 OK", "Content-Encoding: gzip"), id="gzip"),
        pytest.param(b"HTTP/1.0 200 OK\nServer: x\n\n" + BODY, id="until the end"),
    ],
)
def test_response_is_the_same_wherever_it_is_cut(response: bytes) -> None:
    whole = exchange_in_pieces([response])
    assert (whole.status, whole.body) == (200, BODY)
    assert exchange_in_pieces([bytes([byte]) for byte in response]) == whole
    for cut in range(1, len(response)):
        assert exchange_in_pieces([response[:cut], response[cut:]]) == whole

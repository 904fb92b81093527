"""What the client makes of good responses: every case is bytes on a real socket."""

import gzip
import socket
import zlib
from time import monotonic, sleep
from typing import Any

import pycurl
import pytest

from amqtt_rest_bridge.http import transfer
from tests.http.clients import LIMIT, chunked, client_of, get
from tests.support.http_target import Peer, Target, answering, closing, reply

BODY = b"some body \x00\xff, byte for byte"
OK = b"HTTP/1.1 200 OK\r\n"
_deflater = zlib.compressobj(wbits=-15)
RAW_DEFLATED = _deflater.compress(BODY) + _deflater.flush()


def coded(body: bytes, coding: str) -> bytes:
    return reply(body, "200 OK", f"Content-Encoding: {coding}")


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
        pytest.param(chunked(b"abc").replace(b"\r\n3\r", b"\r\n3;name=value\r"), 200, b"abc", id="chunk extension"),
        pytest.param(chunked(BODY).replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n", 1), 200, BODY,
                     id="chunked, said twice"),
        pytest.param(OK + b"Connection: close\r\n\r\n" + BODY, 200, BODY, id="until the end"),
        pytest.param(b"HTTP/1.0 200 OK\r\n\r\n" + BODY, 200, BODY, id="HTTP/1.0"),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", id="204"),
        pytest.param(b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", 204, b"", id="204, chunked"),
        pytest.param(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", 304, b"", id="304"),
        pytest.param(OK + b"Content-Length : 1\r\n\r\nx", 200, b"x", id="space before the colon"),
        pytest.param(OK + b"Content-Length:\r\n 1\r\n\r\nx", 200, b"x", id="folded length"),
        pytest.param(reply(b"x", "300 Multiple Choices"), 300, b"x", id="300, no Location"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" + reply(BODY), 200, BODY, id="100 before it"),
        pytest.param(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n" + reply(BODY),
                     200, BODY, id="102 and 103 before it"),
        pytest.param(b"HTTP/1.1 200\r\nContent-Length: 1\r\n\r\nx", 200, b"x", id="no reason phrase"),
        pytest.param(b"HTTP/1.1 200 OK\nContent-Length: 1\n\nx", 200, b"x", id="bare line feeds"),
        pytest.param(reply(b"gone", "404 Not Found"), 404, b"gone", id="404 is a response"),
        pytest.param(reply(b"", "599 Whatever"), 599, b"", id="unknown status"),
        pytest.param(coded(gzip.compress(BODY), "gzip"), 200, BODY, id="gzip"),
        pytest.param(coded(gzip.compress(BODY), "X-GZip"), 200, BODY, id="x-gzip"),
        pytest.param(coded(gzip.compress(b"a") + gzip.compress(b"b") + b"\0", "gzip"), 200, b"ab", id="two members"),
        pytest.param(coded(gzip.compress(b"x" * LIMIT), "gzip"), 200, b"x" * LIMIT, id="gzip, exactly the limit"),
        pytest.param(coded(b"", "gzip"), 200, b"", id="nothing, gzipped"),
        pytest.param(coded(zlib.compress(BODY), "deflate"), 200, BODY, id="deflate"),
        pytest.param(coded(RAW_DEFLATED, "deflate"), 200, BODY, id="raw deflate"),
        pytest.param(coded(gzip.compress(zlib.compress(BODY)), "deflate, gzip"), 200, BODY, id="deflate in gzip"),
        pytest.param(coded(BODY, "br"), 200, BODY, id="a coding that was not offered"),
        pytest.param(coded(BODY, "identity"), 200, BODY, id="identity"),
    ],
)  # fmt: skip  # a table reads best as a table
def test_response_is_read_to_its_end(response: bytes, status: int, body: bytes) -> None:
    with Target(closing(response)) as target:
        received = get(target, limit=LIMIT)
    assert (received.status, received.body) == (status, body)


def test_headers_arrive_in_order_with_their_names_as_sent_and_their_text_clean() -> None:
    head = b"HTTP/1.1 200 F\xc3\xbcr Dich\r\nX-B: 1\r\nx-a:  caf\xc3\xa9 \r\nX-B: 2\r\n"
    odd = b"X-F: voil\xc3\xa0\r\n \xc3\xa0\r\nX-L: caf\xe9\r\nX-N: \x01\r\nContent-Length: 0\r\n\r\n"
    with Target(closing(head + odd)) as target:
        received = get(target)
    assert received.reason == "Für Dich"
    assert received.headers == (
        *(("X-B", "1"), ("x-a", "café"), ("X-B", "2"), ("X-F", "voilà à"), ("X-L", "café"), ("X-N", "")),
        ("Content-Length", "0"),
    )


def test_elapsed_is_the_time_from_sending_to_the_last_byte() -> None:
    def slow(peer: Peer) -> None:
        peer.request()
        peer.server.stopping.wait(0.1)
        peer.send(reply(b"ab"))

    with Target(slow) as target:
        began = monotonic()
        elapsed = get(target).elapsed
        assert 0.1 <= elapsed <= monotonic() - began


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="this system cannot acknowledge at once")
@pytest.mark.parametrize("is_fast", [False, True])
def test_a_slow_head_and_body_do_not_wait_for_delayed_acknowledgements(
    is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that sends its head and body apart, with Nagle's algorithm on, costs 40 ms a call otherwise.

    A fast one has sent the head before libcurl, which sends the request, looks for an answer.
    """

    def script(peer: Peer) -> None:
        while peer.request() is not None:
            peer.send(OK + b"Content-Length: 2\r\n\r\n")
            peer.send(b"ok")

    def wait_once_sent(kind: int, _: bytes) -> None:
        if kind == pycurl.INFOTYPE_HEADER_OUT:
            sleep(0.002)

    def prepare(self: transfer.Transfer, *args: Any) -> None:
        prepare_as_usual(self, *args)
        if is_fast:
            self.handle.setopt(pycurl.VERBOSE, 1)
            self.handle.setopt(pycurl.DEBUGFUNCTION, wait_once_sent)

    prepare_as_usual = transfer.Transfer.prepare
    monkeypatch.setattr(transfer.Transfer, "prepare", prepare)
    with Target(script) as target, client_of(target) as client:
        elapsed = [client.ask().elapsed for _ in range(30)]
    assert min(elapsed[20:]) < 0.03  # the first ones are acknowledged at once in any case; a delay would hold for all


def test_responses_of_one_connection_are_kept_apart() -> None:
    with Target(answering(reply(b"one"))) as target, client_of(target) as client:
        bodies = [client.ask().body for _ in range(3)]
        assert (bodies, target.connections) == ([b"one"] * 3, 1)


@pytest.mark.parametrize(
    "response",
    [
        pytest.param(reply(BODY, "200 OK", "X-A: b"), id="content-length"),
        pytest.param(chunked(BODY[:5], BODY[5:], trailer=b"X: y\r\n"), id="chunked"),
        pytest.param(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + reply(BODY), id="interim"),
        pytest.param(coded(gzip.compress(BODY), "gzip"), id="gzip"),
        pytest.param(b"HTTP/1.0 200 OK\nServer: x\n\n" + BODY, id="until the end"),
    ],
)
def test_response_is_the_same_wherever_it_is_cut(response: bytes) -> None:
    def in_two(peer: Peer) -> None:
        cut = peer.number
        peer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.request()
        peer.send(response[:cut])
        peer.server.stopping.wait(0.001)
        peer.send(response[cut:])

    with Target(in_two) as target, client_of(target, limit=LIMIT) as client:
        for _ in range(1, len(response)):
            received = client.ask(headers=(("Connection", "close"),))
            assert (received.status, received.body) == (200, BODY)

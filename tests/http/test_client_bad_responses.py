"""What the client makes of responses that are broken, endless or no HTTP: each is bytes on a real socket."""

import gzip
from collections.abc import Callable

import pytest

from amqtt_rest_bridge.errors import CallError, FailureCode
from tests.http.clients import LIMIT, chunked, failure_of
from tests.support.http_target import Peer, Script, Target, closing, reply


def head(*lines: str) -> bytes:
    return "\r\n".join(("HTTP/1.1 200 OK", *lines, "", "")).encode()


def coded(body: bytes, codings: str = "gzip") -> bytes:
    return reply(body, "200 OK", f"Content-Encoding: {codings}")


def not_http(data: bytes) -> Script:
    """Send something and keep the connection open: it must be detected at once, not at the deadline."""

    def script(peer: Peer) -> None:
        peer.send(data)
        peer.wait()

    return script


def endless(beginning: bytes, piece: bytes) -> Script:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(beginning)
        while not peer.server.stopping.is_set():
            peer.send(piece)

    return script


def reset_after(data: bytes) -> Script:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(data)
        peer.reset()

    return script


CHUNKED = "Transfer-Encoding: chunked"
LINE = b"X: " + b"x" * 1_000 + b"\r\n"
BROKEN = [
    pytest.param(reset_after(b""), "while waiting for", id="reset before a response"),
    pytest.param(reset_after(head("Content-Length: 100") + b"abc"), "broke off", id="reset mid-body"),
    pytest.param(b"", "closed the connection", id="closed without a word"),
    pytest.param(b"HTTP/1.1 200 OK\r\nX-A", "", id="closed in the headers"),
    pytest.param(b"HTTP/1.1 200 OK\r\nX-A: 1\r\n", "while reading the response's headers", id="closed between headers"),
    pytest.param(head(" folded: 1", " : 1"), "header line", id="header without name"),
    pytest.param(head("Transfer-Encoding: gzip", CHUNKED) + b"0\r\n\r\n", "not chunked", id="two transfer codings"),
    pytest.param(head("Bad\rName: 1", "Content-Length: 1") + b"x", "in header", id="control character in a name"),
    pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length\xa0: 1\r\n\r\nx", "header line", id="name that is not ASCII"),
    pytest.param(head("Content-Length: 9") + b"abc", "while reading the response's body", id="closed in the body"),
    pytest.param(head(CHUNKED) + b"9\r\nabc", "while reading the response's body", id="closed in a chunk"),
    pytest.param(not_http(b"SSH-2.0-OpenSSH_9\r\n"), "not HTTP", id="another protocol"),
    pytest.param(not_http(b"\x15\x03\x03\x00\x02\x02\x50"), "expects TLS", id="TLS alert"),
    pytest.param(b"HTTP/1.1 abc\r\n\r\n", "not HTTP", id="no status"),
    pytest.param(b"HTTP/2 200\r\n\r\n", "not HTTP", id="HTTP/2 in plain text"),
    pytest.param(head("nonsense", "Content-Length: 1") + b"x", "without colon", id="header without colon"),
    pytest.param(head("Content-Length: abc"), "Content-Length", id="odd length"),
    pytest.param(head("Content-Length: -1"), "Content-Length", id="negative length"),
    pytest.param(head("Content-Length: 1_0") + b"x" * 10, "Content-Length", id="length only Python understands"),
    pytest.param(head("Content-Length: 1", "Content-Length: 2") + b"ab", "Content-Length", id="two lengths"),
    pytest.param(head(CHUNKED) + b"-5\r\nhello\r\n0\r\n\r\n", "no proper size", id="negative chunk"),
    pytest.param(head("Transfer-Encoding: gzip, chunked") + b"0\r\n\r\n", "not chunked", id="unknown transfer coding"),
    pytest.param(head(CHUNKED) + b"zz\r\nabc", "", id="odd chunk"),
    pytest.param(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", "protocol", id="101"),
    pytest.param(coded(b"not gzip"), "not gzip", id="gzip that is none"),
    pytest.param(coded(gzip.compress(b"x" * 50)[:-9]), "cut short", id="gzip cut short"),
    pytest.param(coded(b"x", ", ".join(["gzip"] * 6)), "codings", id="too many codings"),
]
TOO_LARGE = [
    pytest.param(endless(head()[:-2], LINE), "headers", id="endless headers"),
    pytest.param(endless(b"", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"), "headers", id="endless interim ones"),
    pytest.param(endless(head(CHUNKED) + b"0\r\n", LINE), "headers", id="endless trailer"),
    pytest.param(head(*[f"X-{n}: 1" for n in range(101)]), "headers", id="101 headers"),
    pytest.param(reply(b"x" * (LIMIT + 1)), "1000 bytes", id="one byte over the limit"),
    pytest.param(head("Content-Length: " + "9" * 5_000) + b"x", "larger", id="length that Python refuses to read"),
    pytest.param(head("Content-Length: 99999999999999999999"), "", id="huge length"),
    pytest.param(chunked(b"x" * (LIMIT + 1)), "", id="a chunk too large"),
    pytest.param(chunked(*[b"x"] * (LIMIT + 1)), "", id="a chunk too many"),
    pytest.param(b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * (LIMIT + 1), "", id="too large, until the end"),
    pytest.param(coded(gzip.compress(b"x" * 500_000)), "", id="gzip bomb"),
]


def failure(script: bytes | Callable[[Peer], None]) -> CallError:
    with Target(closing(script) if isinstance(script, bytes) else script) as target:
        failure = failure_of(target, "/path", limit=LIMIT)
        assert target.url in failure.message
    assert "/path" not in failure.message
    assert not failure.unsent
    return failure


@pytest.mark.parametrize(("script", "said"), BROKEN)
def test_a_broken_response_is_a_failed_connection(script: bytes | Script, said: str) -> None:
    failed = failure(script)
    assert (failed.code, said in failed.message) == (FailureCode.CONNECTION_FAILED, True), failed.message


@pytest.mark.parametrize(("script", "said"), TOO_LARGE)
def test_a_response_beyond_its_bounds_is_refused(script: bytes | Script, said: str) -> None:
    failed = failure(script)
    assert (failed.code, said in failed.message) == (FailureCode.RESPONSE_TOO_LARGE, True), failed.message


def test_a_body_is_read_up_to_the_limit_and_no_further() -> None:
    sent = 0

    def script(peer: Peer) -> None:
        nonlocal sent
        peer.request()
        peer.send(head())
        while not peer.server.stopping.is_set():
            peer.send(b"x" * 10_000)
            sent += 10_000

    with Target(script) as target:
        assert "larger than 1000 bytes" in failure_of(target, limit=LIMIT).message
    assert sent < 10_000_000  # what the system's buffers take

"""What the client makes of responses that are broken, endless or no HTTP: each is bytes on a real socket."""

import gzip
from collections.abc import Callable

import pytest

from amqtt_rest_bridge.errors import CallError, FailureCode
from tests.http.clients import LIMIT, call, chunked
from tests.support.http_target import Peer, Target, closing, reply


def not_http(data: bytes) -> Callable[[Peer], None]:
    """Send something and keep the connection open: it must be detected at once, not at the deadline."""

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
            closing(b"HTTP/1.1 200 OK\r\nX-A: 1\r\n"),
            FailureCode.CONNECTION_FAILED,
            "while reading the response's headers",
            id="closed between two headers",
        ),
        pytest.param(
            closing(b"HTTP/1.1 200 OK\r\n folded: 1\r\n : 1\r\n\r\n"),
            FailureCode.CONNECTION_FAILED,
            "header line",
            id="header without name",
        ),
        pytest.param(
            closing(head("Transfer-Encoding: gzip", "Transfer-Encoding: chunked") + b"0\r\n\r\n"),
            FailureCode.CONNECTION_FAILED,
            "not chunked",
            id="two transfer codings",
        ),
        pytest.param(
            closing(head("Bad\rName: 1", "Content-Length: 1") + b"x"),
            FailureCode.CONNECTION_FAILED,
            "in header",
            id="control character in a name",
        ),
        pytest.param(
            closing(b"HTTP/1.1 200 OK\r\nContent-Length\xa0: 1\r\n\r\nx"),
            FailureCode.CONNECTION_FAILED,
            "header line",
            id="name that is not ASCII",
        ),
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
            "without colon",
            id="header without colon",
        ),
        pytest.param(
            closing(head("Content-Length: abc")), FailureCode.CONNECTION_FAILED, "Content-Length", id="odd length"
        ),
        pytest.param(
            closing(head("Content-Length: -1")), FailureCode.CONNECTION_FAILED, "Content-Length", id="negative length"
        ),
        pytest.param(
            closing(head("Content-Length: 1_0") + b"x" * 10),
            FailureCode.CONNECTION_FAILED,
            "Content-Length",
            id="length only Python understands",
        ),
        pytest.param(
            closing(head("Content-Length: " + "9" * 5_000) + b"x"),
            FailureCode.RESPONSE_TOO_LARGE,
            "larger",
            id="length that Python refuses to read",
        ),
        pytest.param(
            closing(head("Transfer-Encoding: chunked") + b"-5\r\nhello\r\n0\r\n\r\n"),
            FailureCode.CONNECTION_FAILED,
            "no proper size",
            id="negative chunk",
        ),
        pytest.param(
            closing(head("Content-Length: 1", "Content-Length: 2") + b"ab"),
            FailureCode.CONNECTION_FAILED,
            "Content-Length",
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
        pytest.param(endless_trailer, FailureCode.RESPONSE_TOO_LARGE, "headers", id="endless trailer"),
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
    with Target(script) as target, pytest.raises(CallError) as caught:
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

    with Target(endless) as target, pytest.raises(CallError, match="larger than 1000 bytes"):
        call(target)
    assert sent < 10_000_000  # what the system's buffers take

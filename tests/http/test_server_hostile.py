"""Hostile and broken input over real sockets: none of it is published, none of it delays others."""

import ssl
import threading
import time
from pathlib import Path

import pytest

from amqtt_rest_bridge.http.server import PortLimits
from amqtt_rest_bridge.lot.model import Publication
from tests.support.http_ports import PATIENCE, Raw, Served, certificate, error_code_of, hook_route, post, served

HEAD = b"POST /hook HTTP/1.1\r\nHost: localhost\r\n"


CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
INVALID = {
    "length and chunks": HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n",
    "length and no coding": HEAD + b"Transfer-Encoding: \r\nContent-Length: 1\r\n\r\na",
    "two lengths": HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "the same length twice": HEAD + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\na",
    "negative length": HEAD + b"Content-Length: -1\r\n\r\n",
    "negative length that overflows": HEAD + b"Content-Length: -123456789123456789123456789\r\n\r\n",
    "length in letters": HEAD + b"Content-Length: abc\r\n\r\n",
    "length with a sign": HEAD + b"Content-Length: +1\r\n\r\na",
    "hexadecimal length": HEAD + b"Content-Length: 0x1\r\n\r\na",
    "empty length": HEAD + b"Content-Length:\r\n\r\n",
    "absurd length": HEAD + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
    "smuggled coding": HEAD + b"Transfer-Encoding: \x0bchunked\r\n\r\n",
    "list of codings": HEAD + b"Transfer-Encoding: chunked, gzip\r\n\r\n",
    "chunked twice": HEAD + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "two transfer codings": HEAD + b"Transfer-Encoding: chunked\r\nTRANSFER-ENCODING: chunked\r\n\r\n0\r\n\r\n",
    "chunks in 1.0": b"POST /hook HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunk size no number": CHUNKED + b"xyz\r\n",
    "negative chunk": CHUNKED + b"-1\r\n",
    "chunk too long": CHUNKED + b"1\r\nabc",
    "chunk extension": CHUNKED + b"1;=\"\x00\r\na",
    "endless size line": CHUNKED + b"5;" + b"a" * 20_000,
    "endless trailer": CHUNKED + b"0\r\nX: " + b"a" * 20_000,
    "no host": b"POST /hook HTTP/1.1\r\nContent-Length: 1\r\n\r\na",
    "two hosts": HEAD + b"Host: other\r\nContent-Length: 1\r\n\r\na",
    "two hosts in one": b"POST /hook HTTP/1.1\r\nHost: a,b\r\n\r\n",
    "two hosts in 1.0": b"POST /hook HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n",
    "brackets in a name": HEAD + b"X-Invalid[]: test\r\n\r\n",
    "space before a colon": HEAD + b"X : y\r\nContent-Length: 1\r\n\r\na",
    "NUL in a header": HEAD + b"X: a\x00b\r\n\r\n",
    "bell in a header": HEAD + b"X: a\x07\r\n\r\n",
    "bare line feed": HEAD + b"X: a\nY: b\r\n\r\n",
    "bare carriage return": HEAD + b"X: a\rY: b\r\n\r\n",
    "carriage return before a name": HEAD + b"\rX: a\r\n\r\n",
    "folded first line": b"POST /hook HTTP/1.1\r\n folded\r\n\r\n",
    "folded header": HEAD + b"X: a\r\n b\r\n\r\n",
    "header folded with a tab": HEAD + b"X: a\r\n\tb\r\n\r\n",
    "folded length": HEAD + b"Content-Length: 1\r\n 0\r\n\r\na",
    "HTTP/0.9": b"POST /hook\r\n\r\n",
    "no version": b"GET / \r\n\r\n",
    "HTTP/2": b"POST /hook HTTP/2.0\r\nHost: x\r\n\r\n",
    "HTTP/9.9": b"POST /hook HTTP/9.9\r\nHost: x\r\n\r\n",
    "method in lower case": b"post /hook HTTP/1.1\r\nHost: x\r\n\r\n",
    "words before the method": b"Extra line" + HEAD + b"\r\n",
    "space in the path": b"POST /ho ok HTTP/1.1\r\nHost: x\r\n\r\n",
    "NUL in the path": b"POST /hook\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
    "control in the path": b"POST /hook\x1b[0m HTTP/1.1\r\nHost: x\r\n\r\n",
    "encoded control": b"POST /hook%0a HTTP/1.1\r\nHost: x\r\n\r\n",
    "broken address": b"POST http://[ HTTP/1.1\r\nHost: x\r\n\r\n",
    "no request at all": b"GARBAGE\r\n\r\n",
    "TLS to a plain port": b"\x16\x03\x01\x02\x00\r\n\r\n",
    **{f"host {host!r}": b"POST /hook HTTP/1.1\r\nHost: " + host + b"\r\n\r\n"
       for host in (b"a b", b"bob@x", b"x/y", b"x?y", b"x#y", b"x:80:80", b"x:y", b"[::1", b"\xc3\xa9")},
    **{f"target {target!r}": b"POST " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n"
       for target in (b"http://bob@x/hook", b"http://bob:pw@x/hook", b"https://@x/hook", b"http://x@y:1/hook")},
    **{f"{lead!r} before it": lead + HEAD + b"Content-Length: 1\r\n\r\na"
       for lead in (b" ", b"\t", b"\x0b", b"\x0c", b"\r\n ", b"\r\n\r\n\t")},
    **{f"{tail!r} behind the request line": HEAD.replace(b"\r", tail + b"\r", 1) + b"Content-Length: 1\r\n\r\na"
       for tail in (b" ", b"\t", b"\x0b")},
}  # fmt: skip  # a table reads best as a table


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        *(pytest.param(data, 400, "invalid_request", id=name) for name, data in INVALID.items()),
        pytest.param(HEAD + b"Content-Length: 99999999999\r\n\r\n", 413, "payload_too_large", id="too large"),
        pytest.param(CHUNKED + b"ffffffffff\r\n" + b"x" * 2000, 413, "payload_too_large", id="chunk too large"),
        pytest.param(CHUNKED + b"ffffffffffffffff\r\n", 413, "payload_too_large", id="announced chunk too large"),
        pytest.param(CHUNKED + b"1\r\na\r\n" + b"f" * 9000 + b"\r\n", 413, "payload_too_large",
                     id="absurd chunk size"),
        pytest.param(HEAD + b"Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\na", 415, "unsupported_media_type",
                     id="encoded"),
        pytest.param(HEAD + b"X: " + b"a" * 70_000 + b"\r\n\r\n", 431, "headers_too_large", id="header too long"),
        pytest.param(HEAD + b"X: a\r\n" * 12_000 + b"\r\n", 431, "headers_too_large", id="too many headers"),
        pytest.param(b"GET /" + b"a" * 70_000, 431, "headers_too_large", id="endless request line"),
        pytest.param(HEAD + b"Transfer-Encoding: gzip\r\n\r\n", 501, "not_implemented", id="unknown transfer coding"),
    ],
)  # fmt: skip
def test_bad_requests_are_refused_and_publish_nothing(
    hooks: Served, request_bytes: bytes, status: int, code: str
) -> None:
    answer = hooks.ask(request_bytes)
    assert (answer.status, error_code_of(answer)) == (status, code)
    assert hooks.bodies == []
    assert hooks.ask(post()).status == 200  # others go on


def test_empty_lines_before_a_request_line_are_skipped_however_they_come(hooks: Served, raw: Raw) -> None:
    """RFC 9112 section 2.2: some clients send one behind a body."""
    assert raw.ask(b"\r\n\r\n" + post()).status == 200
    for byte in b"\r\n":
        raw.send(bytes([byte]))
    assert raw.ask(post()).status == 200
    raw.send(b"\r\n")
    assert (raw.ask(b" " + post()).status, len(hooks.broker.published)) == (400, 2)


def test_what_cannot_be_read_ends_the_connection(hooks: Served, raw: Raw) -> None:
    smuggled = HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + post(body=b"smuggled")
    answer = raw.ask(smuggled)
    assert (answer.status, answer.headers["Connection"]) == (400, "close")
    assert raw.is_closed_by_peer()
    assert hooks.broker.published == []


def test_the_callers_bytes_are_not_repeated_in_the_error_nor_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"), served() as hooks:
        assert b"evil" not in hooks.ask(HEAD + b"X: evil\nY: b\r\n\r\n").body
        assert b"evil" not in hooks.ask(b"POST http://bob:evil@x/hook HTTP/1.1\r\nHost: x\r\n\r\n").body
    assert "evil" not in caplog.text


def test_headers_with_underscores_never_pass_for_others() -> None:
    with served(hook_route(server_username="bob", server_password="x")) as hooks:
        assert hooks.ask(post("/hook", b"x", "Authorization_: Basic Ym9iOng=")).status == 401


def test_a_refusal_has_the_headers_of_the_endpoint() -> None:
    page = "https://app.example.net"
    with served(hook_route(enable_cors=True, cors_origins=(page,)), max_body_bytes=10) as hooks:
        answer = hooks.ask(HEAD + f"Origin: {page}\r\nContent-Length: 11\r\n\r\n".encode())
        assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (413, page)
        assert hooks.broker.counted == [("Hooks", "payload_too_large")]


def test_a_caller_that_goes_on_sending_still_gets_the_refusal(raw: Raw) -> None:
    raw.send(HEAD + b"Content-Length: 1000000\r\n\r\n")
    for _ in range(50):
        raw.send(b"x" * 20_000)
    assert raw.answer().status == 413
    assert raw.is_closed_by_peer()


@pytest.mark.parametrize(
    "partial",
    [
        pytest.param(b"POST /hook HT", id="request line"),
        pytest.param(HEAD + b"X: y", id="headers"),
        pytest.param(HEAD + b"Content-Length: 5\r\n\r\nabc", id="body"),
        pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab", id="chunk"),
    ],
)
def test_a_slow_sender_is_cut_off_and_others_are_served_meanwhile(partial: bytes) -> None:
    with served(limits=PortLimits(slow_seconds=0.3)) as hooks, hooks.connect() as slow:
        slow.send(partial)
        assert hooks.ask(post()).status == 200
        answer = slow.answer()
        assert (answer.status, error_code_of(answer)) == (408, "request_timeout")
        assert slow.is_closed_by_peer()
        assert hooks.bodies == [b"x"]


def test_dripping_bytes_does_not_help_a_slow_sender() -> None:
    with served(limits=PortLimits(slow_seconds=0.3)) as hooks, hooks.connect() as slow:
        slow.send(HEAD + b"Content-Length: 100000\r\n\r\n"[:-2])
        slow.sock.settimeout(0.02)
        answer = b""
        began = time.monotonic()
        while not answer and time.monotonic() - began < 10:
            try:
                answer = slow.sock.recv(100)
            except TimeoutError:
                slow.send(b"X: y\r\n")
        assert answer.startswith(b"HTTP/1.1 408 ")


def test_an_idle_connection_is_closed_after_a_while_without_an_answer() -> None:
    with served(limits=PortLimits(idle_seconds=0.2)) as hooks, hooks.connect() as fresh, hooks.connect() as used:
        assert used.ask(post()).status == 200
        assert fresh.is_closed_by_peer()
        assert used.is_closed_by_peer()


def test_a_caller_that_sends_on_after_the_refusal_is_cut_off() -> None:
    with served(limits=PortLimits(slow_seconds=1.0, linger_seconds=0.1)) as hooks, hooks.connect() as raw:
        assert raw.ask(HEAD + b"Content-Length: 1000000\r\n\r\n").status == 413
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            while True:
                raw.send(b"x")
                threading.Event().wait(0.01)


def test_many_requests_in_one_piece_delay_no_other_caller() -> None:
    with served() as hooks, hooks.connect() as many, hooks.connect() as other:
        first_is_served, other_has_sent = threading.Event(), threading.Event()

        def hold_the_first(publication: Publication) -> None:
            if publication.payload == b"000":
                first_is_served.set()
                other_has_sent.wait(PATIENCE)

        hooks.broker.on_publish = hold_the_first
        many.send(b"".join(post(body=b"%03d" % number) for number in range(200)))
        assert first_is_served.wait(PATIENCE)
        other.send(post(body=b"other"))
        other_has_sent.set()
        assert other.answer().status == 200
        assert [many.answer().status for _ in range(200)] == [200] * 200
        assert hooks.bodies.index(b"other") < 5
        hooks.broker.published.pop(hooks.bodies.index(b"other"))
        assert hooks.bodies == [b"%03d" % number for number in range(200)]


def test_a_handshake_that_stalls_delays_no_other_caller_and_ends(tmp_path: Path) -> None:
    files = certificate(tmp_path)
    context = ssl.create_default_context(cafile=files.certfile)
    with served(tls=files, limits=PortLimits(slow_seconds=0.5)) as hooks:
        stalled = Raw(hooks.port).send(b"\x16\x03\x01\x02\x00")  # the start of a ClientHello
        silent = Raw(hooks.port)
        with hooks.connect(context) as raw:
            assert raw.ask(post()).status == 200
            assert raw.ask(post()).status == 200
        assert stalled.is_closed_by_peer()
        assert silent.is_closed_by_peer()
        stalled.__exit__()
        silent.__exit__()

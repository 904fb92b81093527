"""Hostile and broken input over real sockets: none of it is published, none of it delays others."""

import socket
import ssl
import threading
import time
from pathlib import Path

import pytest

from amqtt_rest_bridge.http.server import PortLimits
from amqtt_rest_bridge.lot.model import Publication
from tests.support.http_ports import PATIENCE, Raw, certificate, error_code_of, get, hook_route, post, served
from tests.support.waiting import eventually

HEAD = b"POST /hook HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        pytest.param(HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "invalid_request",
                     id="length and chunks"),
        pytest.param(HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n", 400, "invalid_request",
                     id="chunks and length"),
        pytest.param(HEAD + b"Transfer-Encoding: \r\nContent-Length: 1\r\n\r\na", 400, "invalid_request",
                     id="length and no coding"),
        pytest.param(HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400, "invalid_request",
                     id="two lengths"),
        pytest.param(HEAD + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\na", 400, "invalid_request",
                     id="the same length twice"),
        pytest.param(HEAD + b"Content-Length: -1\r\n\r\n", 400, "invalid_request", id="negative length"),
        pytest.param(HEAD + b"Content-Length: +1\r\n\r\na", 400, "invalid_request", id="length with a sign"),
        pytest.param(HEAD + b"Content-Length: 0x1\r\n\r\na", 400, "invalid_request", id="hexadecimal length"),
        pytest.param(HEAD + b"Content-Length:\r\n\r\n", 400, "invalid_request", id="empty length"),
        pytest.param(HEAD + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", 400, "invalid_request",
                     id="absurd length"),
        pytest.param(HEAD + b"Content-Length: 99999999999\r\n\r\n", 413, "payload_too_large", id="announced too large"),
        pytest.param(HEAD + b"Transfer-Encoding: gzip\r\n\r\n", 501, "not_implemented", id="unknown transfer coding"),
        pytest.param(HEAD + b"Transfer-Encoding: \x0bchunked\r\n\r\n", 400, "invalid_request", id="smuggled coding"),
        pytest.param(HEAD + b"Transfer-Encoding: chunked, gzip\r\n\r\n", 400, "invalid_request",
                     id="list of codings"),
        pytest.param(HEAD + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 400, "invalid_request",
                     id="chunked twice"),
        pytest.param(HEAD + b"Transfer-Encoding: chunked\r\nTRANSFER-ENCODING: chunked\r\n\r\n0\r\n\r\n", 400,
                     "invalid_request", id="two transfer codings"),
        pytest.param(b"POST /hook HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "invalid_request",
                     id="chunks in 1.0"),
        pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400, "invalid_request",
                     id="chunk size no number"),
        pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n", 400, "invalid_request", id="negative chunk"),
        pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc", 400, "invalid_request", id="chunk too long"),
        pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;=\"\x00\r\na", 400, "invalid_request",
                     id="chunk extension"),
        pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffff\r\n" + b"x" * 2000, 413, "payload_too_large",
                     id="chunk over the limit"),
        pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", 413, "payload_too_large",
                     id="announced chunk over the limit"),
        pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n" + b"f" * 9000 + b"\r\n", 413,
                     "payload_too_large", id="absurd chunk size"),
        pytest.param(HEAD + b"Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\na", 415, "unsupported_media_type",
                     id="encoded"),
        pytest.param(HEAD + b"X: " + b"a" * 70_000 + b"\r\n\r\n", 431, "headers_too_large", id="header too long"),
        pytest.param(HEAD + b"X: a\r\n" * 12_000 + b"\r\n", 431, "headers_too_large", id="too many headers"),
        pytest.param(b"GET /" + b"a" * 70_000, 431, "headers_too_large", id="endless request line"),
        pytest.param(b"POST /hook HTTP/1.1\r\nContent-Length: 1\r\n\r\na", 400, "invalid_request", id="no host"),
        pytest.param(HEAD + b"Host: other\r\nContent-Length: 1\r\n\r\na", 400, "invalid_request", id="two hosts"),
        pytest.param(HEAD + b"X : y\r\nContent-Length: 1\r\n\r\na", 400, "invalid_request", id="space before a colon"),
        pytest.param(HEAD + b"X: a\x00b\r\n\r\n", 400, "invalid_request", id="NUL in a header"),
        pytest.param(HEAD + b"X: a\nY: b\r\n\r\n", 400, "invalid_request", id="bare line feed"),
        pytest.param(HEAD + b"X: a\rY: b\r\n\r\n", 400, "invalid_request", id="bare carriage return"),
        pytest.param(b"POST /hook HTTP/1.1\r\n folded\r\n\r\n", 400, "invalid_request", id="folded first line"),
        pytest.param(b"POST /hook HTTP/2.0\r\nHost: x\r\n\r\n", 400, "invalid_request", id="HTTP/2"),
        pytest.param(b"POST /hook HTTP/9.9\r\nHost: x\r\n\r\n", 400, "invalid_request", id="HTTP/9.9"),
        pytest.param(b"POST /hook HTTP/1.1\r\nHost: a,b\r\n\r\n", 400, "invalid_request", id="two hosts in one"),
        *(pytest.param(b"POST /hook HTTP/1.1\r\nHost: " + host + b"\r\n\r\n", 400, "invalid_request", id=f"{host!r}")
          for host in (b"a b", b"bob@x", b"x/y", b"x?y", b"x#y", b"x:80:80", b"x:y", b"[::1", b"\xc3\xa9")),
        pytest.param(b"POST /hook HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", 400, "invalid_request",
                     id="two hosts in 1.0"),
        pytest.param(HEAD + b"X: a\r\n b\r\n\r\n", 400, "invalid_request", id="folded header"),
        pytest.param(HEAD + b"X: a\r\n\tb\r\n\r\n", 400, "invalid_request", id="header folded with a tab"),
        pytest.param(HEAD + b"Content-Length: 1\r\n 0\r\n\r\na", 400, "invalid_request", id="folded length"),
        pytest.param(b"POST /hook\r\n\r\n", 400, "invalid_request", id="HTTP/0.9"),
        pytest.param(b"post /hook HTTP/1.1\r\nHost: x\r\n\r\n", 400, "invalid_request", id="method in lower case"),
        pytest.param(b"POST /ho ok HTTP/1.1\r\nHost: x\r\n\r\n", 400, "invalid_request", id="space in the path"),
        pytest.param(b"POST /hook\x00 HTTP/1.1\r\nHost: x\r\n\r\n", 400, "invalid_request", id="NUL in the path"),
        pytest.param(b"POST /hook\x1b[0m HTTP/1.1\r\nHost: x\r\n\r\n", 400, "invalid_request",
                     id="control in the path"),
        pytest.param(b"POST /hook%0a HTTP/1.1\r\nHost: x\r\n\r\n", 400, "invalid_request", id="encoded control"),
        *(pytest.param(b"POST " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n", 400, "invalid_request", id=f"{target!r}")
          for target in (b"http://bob@x/hook", b"http://bob:pw@x/hook", b"https://@x/hook", b"http://x@y:1/hook")),
        pytest.param(b"POST http://[ HTTP/1.1\r\nHost: x\r\n\r\n", 400, "invalid_request", id="broken address"),
        *(pytest.param(lead + HEAD + b"Content-Length: 1\r\n\r\na", 400, "invalid_request", id=f"{lead!r} before it")
          for lead in (b" ", b"\t", b"\x0b", b"\x0c", b"\r\n ", b"\r\n\r\n\t")),
        *(pytest.param(HEAD.replace(b"\r", tail + b"\r", 1) + b"Content-Length: 1\r\n\r\na", 400, "invalid_request",
                       id=f"{tail!r} behind the request line") for tail in (b" ", b"\t", b"\x0b")),
        pytest.param(b"GARBAGE\r\n\r\n", 400, "invalid_request", id="no request at all"),
        pytest.param(b"\x16\x03\x01\x02\x00\r\n\r\n", 400, "invalid_request", id="TLS to a plain port"),
    ],
)  # fmt: skip  # a table reads best as a table
def test_bad_requests_are_refused_and_publish_nothing(request_bytes: bytes, status: int, code: str) -> None:
    with served() as hooks:
        answer = hooks.ask(request_bytes)
        assert (answer.status, error_code_of(answer)) == (status, code)
        assert hooks.broker.published == []
        assert hooks.ask(post()).status == 200  # others go on


def test_empty_lines_before_a_request_line_are_skipped_however_they_come() -> None:
    """RFC 9112 section 2.2: some clients send one behind a body."""
    with served() as hooks, hooks.connect() as raw:
        assert raw.ask(b"\r\n\r\n" + post()).status == 200
        for byte in b"\r\n":
            raw.send(bytes([byte]))
        assert raw.ask(post()).status == 200
        raw.send(b"\r\n")
        assert (raw.ask(b" " + post()).status, len(hooks.broker.published)) == (400, 2)


def test_what_cannot_be_read_ends_the_connection() -> None:
    with served() as hooks, hooks.connect() as raw:
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


def test_a_caller_that_goes_on_sending_still_gets_the_refusal() -> None:
    with served() as hooks, hooks.connect() as raw:
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


def test_a_caller_that_does_not_take_its_answer_is_let_go() -> None:
    with served(limits=PortLimits(slow_seconds=0.3)) as hooks:
        hooks.broker.changed("last", b"x" * 10_000_000)
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", hooks.port))
            sock.sendall(get("/last"))
            assert hooks.ask(post()).status == 200
            eventually(lambda: not hooks.connections)
        hooks.broker.changed("last", b"ok")
        assert hooks.ask(get("/last"), "GET").body == b"ok"


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

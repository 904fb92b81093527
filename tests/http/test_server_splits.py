"""However a stream of requests is cut into packets, it is read in the same way; noise never breaks the port."""

import socket

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amqtt_rest_bridge.http.connection import RequestReader
from tests.support.http_ports import Raw, Served, get, post, served

CHUNKED = b"POST /hook HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKED += b"2\r\nab\r\n1;x=y\r\nc\r\n0\r\nT: x\r\n\r\n"
STREAM = post(body=b"first") + post(body=b"again") + CHUNKED + CHUNKED + get("/last") + b"\r\n"
STREAM += post(body=b"") + get("/none", "Connection: close")


def outcome_of(pieces: list[bytes]) -> list[tuple[str, str, str, bytes]]:
    """Read a stream that comes in pieces: method, path, code of an error, and body of each request."""
    found = []
    reader = RequestReader(1000)
    for piece in pieces:
        data = piece
        while data:
            data = reader.read(data)
            if reader.is_complete:
                code = "" if reader.refusal is None else reader.refusal.code
                found.append((reader.head.method, reader.head.target, code, reader.take_body()))
                if reader.is_last:
                    return found
                reader.begin()
    return found


WHOLE = [
    ("POST", "/hook", "", b"first"),
    ("POST", "/hook", "", b"again"),
    ("POST", "/hook", "", b"abc"),
    ("POST", "/hook", "", b"abc"),
    ("GET", "/last", "", b""),
    ("POST", "/hook", "", b""),
    ("GET", "/none", "", b""),
]


def test_a_stream_cut_in_two_anywhere_is_read_like_the_whole() -> None:
    for at in range(len(STREAM)):
        assert outcome_of([STREAM[:at], STREAM[at:]]) == WHOLE, STREAM[:at]


def test_a_stream_in_single_bytes_is_served_over_a_socket() -> None:
    with served() as hooks, hooks.connect() as raw:
        raw.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(STREAM)):
            raw.send(STREAM[at : at + 1])
        assert [raw.answer().status for _ in range(7)] == [200, 200, 200, 200, 200, 200, 404]
        assert raw.is_closed_by_peer()
        assert hooks.bodies == [b"first", b"again", b"abc", b"abc", b"{}"]


@pytest.fixture(scope="module")
def port() -> object:
    with served() as hooks:
        yield hooks


SCRAPS = st.sampled_from(
    [
        *(b"POST /hook HTTP/1.1\r\n", b"GET /last HTTP/1.1\r\n", b"Host: x\r\n", b"Content-Length: 3\r\n", b"\r\n"),
        *(b"Transfer-Encoding: chunked\r\n", b"3\r\nabc\r\n", b"Expect: 100-continue\r\n", b"X: y\r\n", b"abc"),
        *(b"0\r\n\r\n", b"\n", b"\r", b"\x00", b" "),
    ]
)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(scraps=st.lists(SCRAPS | st.binary(max_size=20), max_size=25))
def test_noise_never_breaks_the_port_and_nothing_odd_is_published(port: Served, scraps: list[bytes]) -> None:
    before = len(port.bodies)
    with Raw(port.port) as raw:
        raw.send(b"".join(scraps))
        raw.sock.shutdown(socket.SHUT_WR)
        answers = raw.read_to_the_end()
    assert answers.count(b'"published"') == len(port.bodies) - before
    assert b"internal_error" not in answers
    assert all(body in (b"abc", b"{}") or len(body) == 3 for body in port.bodies[before:])
    assert port.ask(get("/last"), "GET").body == b"21.5"

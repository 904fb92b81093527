"""WSGI applications behind the port: what they are given, what becomes of what they return."""

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from amqtt_rest_bridge.http_server import HttpServer, Request, Response, WsgiDoor
from tests.support.http_ports import Raw
from tests.support.waiting import SECONDS

Start = Callable[..., Callable[[bytes], None]]


@contextmanager
def served(app: Callable[[dict[str, Any], Any], Iterable[bytes]]) -> Iterator[int]:
    """Serve an application on a port."""

    def refuse(request: Request) -> Response:
        assert request.refusal is not None
        return Response(request.refusal.status, body=f"{request.method} {request.refusal.code}".encode())

    with socket.create_server(("127.0.0.1", 0)) as listening:
        door = WsgiDoor(app, 1, listening.getsockname(), refuse)
        server = HttpServer(listening, door, max_body_bytes=1000, refuse=refuse)
        server.start()
        yield server.bound_port
        server.stop(5)
        door.close(5)


def test_the_environment_holds_the_request() -> None:
    seen: dict[str, Any] = {}

    def app(environ: dict[str, Any], start: Start) -> list[bytes]:
        seen.update(environ, body=environ["wsgi.input"].read())
        start("200 OK", [])
        return []

    with served(app) as port, Raw(port) as raw:
        raw.send(
            b"POST http://elsewhere/a%20b/%C3%A9?q=%20&r HTTP/1.1\r\nHost: x\r\nContent-Type: text/a\r\nX-Two: 1\r\n"
            b"X-Two: 2\r\nX_Two: 3\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
        )
        assert raw.answer().status == 200
    expected = {
        "REQUEST_METHOD": "POST", "SCRIPT_NAME": "", "PATH_INFO": "/a b/\u00c3\u00a9", "QUERY_STRING": "q=%20&r",
        "CONTENT_TYPE": "text/a", "CONTENT_LENGTH": "3", "HTTP_X_TWO": "1, 2", "HTTP_HOST": "x", "body": b"abc",
        "REMOTE_ADDR": "127.0.0.1", "SERVER_PORT": str(port), "wsgi.url_scheme": "http",
    }  # fmt: skip
    assert {name: seen[name] for name in expected} == expected


def written(_environ: object, start: Start) -> list[bytes]:
    start("200 OK", [("X-Request-ID", "mine"), ("Content-Length", "99")])(b"ab")
    return [b"c"]


def generated(_environ: object, start: Start) -> Iterator[bytes]:
    start("200 OK", [("X-Request-ID", "mine"), ("Connection", "close")])
    yield b"a"
    yield b"bc"


@pytest.mark.parametrize("app", [written, generated])
def test_an_answer_is_sent_whole_with_its_own_id(app: Any) -> None:
    with served(app) as port, Raw(port) as raw:
        for _ in range(2):
            answer = raw.ask(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert answer.body == b"abc"
            assert answer.headers.get_all("X-Request-ID") == ["mine"]
            assert answer.headers.get_all("Content-Length") == ["3"]


def test_an_answer_to_head_has_the_length_that_the_application_names() -> None:
    def app(_environ: object, start: Start) -> list[bytes]:
        start("200 OK", [("Content-Length", "12345")])
        return []

    with served(app) as port, Raw(port) as raw:
        answer = raw.send(b"HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").read_to_the_end()
    assert b"\r\nContent-Length: 12345\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


def test_a_body_is_asked_for_and_one_that_is_too_large_is_not() -> None:
    def app(environ: dict[str, Any], start: Start) -> list[bytes]:
        start("200 OK", [])
        return [environ["wsgi.input"].read()]

    head = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: "
    with served(app) as port:
        with Raw(port) as raw:
            assert raw.send(head + b"3\r\n\r\n").sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
            assert raw.ask(b"abc").body == b"abc"
        with Raw(port) as raw:
            answer = raw.ask(head + b"1001\r\n\r\n")
            assert (answer.status, answer.body) == (413, b"POST payload_too_large")


class Failing:
    """An answer that fails at its second piece; `closed` is set once it is closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self._pieces = 0

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        self._pieces += 1
        if self._pieces == 2:
            raise ZeroDivisionError
        return b"a"

    def close(self) -> None:
        self.closed.set()


def test_an_application_that_fails_is_answered_for_and_its_answer_closed(caplog: pytest.LogCaptureFixture) -> None:
    failing = Failing()

    def app(_environ: object, start: Start) -> Iterable[bytes]:
        start("200 OK", [])
        return failing

    with served(app) as port, Raw(port) as raw:
        answer = raw.ask(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (answer.status, answer.body) == (500, b"GET internal_error")
    assert failing.closed.is_set()
    assert "ZeroDivisionError" in caplog.text


def test_a_call_whose_caller_has_left_before_its_turn_is_not_made() -> None:
    asked, woken, go_on = list[str](), threading.Event(), threading.Event()

    def app(environ: dict[str, Any], start: Start) -> list[bytes]:
        asked.append(environ["PATH_INFO"])
        go_on.wait(SECONDS)
        start("200 OK", [])
        return []

    door = WsgiDoor(app, 1, ("127.0.0.1", 80), lambda _request: Response("500 Internal Server Error"))
    calls = [door.answer(Request("id", "GET", path, "", {}), woken.set) for path in ("/first", "/left", "/last")]
    for call in calls:
        assert not isinstance(call, Response)
        call.resume()
        if call is calls[1]:
            call.cancel()
    go_on.set()
    door.close(20)
    assert asked == ["/first", "/last"]
    assert woken.is_set()

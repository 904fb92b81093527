"""The server around any WSGI application: slow callers, faults below the application, running requests at a stop."""

import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from amqtt_rest_bridge.http_server import Limits
from template_api.serving.service import Server
from template_api.serving.supervisor import listening_socket

StartResponse = Callable[..., object]


def answering(_environ: object, start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]


@contextmanager
def running(app: Any, limits: Limits | None = None) -> Iterator[Server]:
    with listening_socket("127.0.0.1", 0) as listening:
        server = Server(app, listening, threads=2, limits=limits or Limits())
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            yield server
        finally:
            server.stop()
            thread.join(20)
            assert not thread.is_alive()


def connected(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def received(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def test_a_request_that_does_not_arrive_is_given_up() -> None:
    with running(answering, Limits(slow_seconds=0.01)) as server, connected(server) as slow:
        slow.sendall(b"POST /api/search HTTP/1.1\r\nHo")
        head, _, body = received(slow).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert json.loads(body)["error"]["code"] == "request_timeout"


def failing(_environ: object, _start_response: StartResponse) -> Iterable[bytes]:
    raise ZeroDivisionError("secret")


def with_a_bad_field(_environ: object, start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [("X-A", "a\r\nsecret: b")])
    return [b"ok"]


@pytest.mark.parametrize("app", [failing, with_a_bad_field])
def test_a_fault_below_the_application_is_answered_in_json(app: Any) -> None:
    with running(app) as server, connected(server) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        head, _, body = received(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 500 ")
    assert json.loads(body)["error"]["code"] == "internal_error"
    assert b"secret" not in head + body


def test_a_request_on_an_open_connection_is_refused_at_a_stop() -> None:
    entered, go_on = threading.Event(), threading.Event()

    def slow(environ: object, start_response: StartResponse) -> Iterable[bytes]:
        entered.set()
        go_on.wait(20)
        return answering(environ, start_response)

    with running(slow) as server, connected(server) as running_one, connected(server) as late:
        late.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        running_one.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert entered.wait(20)
        server.stop()
        with pytest.raises(OSError):  # its listening socket is closed
            while True:
                connected(server).close()
        late.sendall(b"\r\n")
        head, _, body = received(late).partition(b"\r\n\r\n")
        go_on.set()
        assert received(running_one).endswith(b"\r\n\r\nok")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"Retry-After: 1" in head
    assert json.loads(body)["error"]["code"] == "shutting_down"


def test_a_running_request_is_finished_at_a_stop() -> None:
    entered, go_on = threading.Event(), threading.Event()

    def slow(environ: object, start_response: StartResponse) -> Iterable[bytes]:
        entered.set()
        go_on.wait(20)
        return answering(environ, start_response)

    with running(slow) as server, connected(server) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert entered.wait(20)
        server.stop()
        go_on.set()
        assert received(connection).endswith(b"\r\n\r\nok")


@pytest.mark.parametrize("options", ["close", "keep-alive, close", "Close ,x", "TE,\tCLOSE"])
def test_a_connection_ends_when_one_of_its_options_is_close(options: str) -> None:
    with running(answering) as server, connected(server) as connection:
        connection.sendall(f"GET / HTTP/1.1\r\nHost: x\r\nConnection: {options}\r\n\r\n".encode())
        assert b"\r\nConnection: close\r\n" in received(connection)  # all that came until its end

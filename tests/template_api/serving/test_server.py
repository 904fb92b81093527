"""The server around any WSGI application: slow callers, faults below the application, running requests at a stop."""

import json
import select
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from template_api.serving import server as server_module
from template_api.serving.server import Server
from template_api.serving.supervisor import listening_socket

StartResponse = Callable[..., object]


def answering(_environ: object, start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]


@contextmanager
def running(app: Any) -> Iterator[Server]:
    listening = listening_socket("127.0.0.1", 0)
    server = Server(app, listening, threads=2)
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


def test_a_request_that_does_not_arrive_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "REQUEST_SECONDS", 0.01)
    with running(answering) as server, connected(server) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nHo")
        assert received(slow) == b""


def test_a_fault_below_the_application_is_answered_in_json() -> None:
    def failing(_environ: object, _start_response: StartResponse) -> Iterable[bytes]:
        raise ZeroDivisionError("secret")

    with running(failing) as server, connected(server) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        head, _, body = received(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 500 ")
    assert json.loads(body)["error"]["code"] == "internal_error"
    assert b"secret" not in body


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


def test_who_keeps_sending_after_a_refusal_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_LINGER_BYTES", 100_000)
    with running(answering) as server, connected(server) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 413"
        with pytest.raises(OSError):  # a reset or a broken pipe
            for _ in range(10_000):
                connection.sendall(b"x" * 10_000)


def test_who_stays_silent_after_a_refusal_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_LINGER_SECONDS", 0.01)
    with running(answering) as server, connected(server) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n")
        assert received(connection).startswith(b"HTTP/1.1 413")
        watcher = select.poll()
        watcher.register(connection, select.POLLRDHUP | select.POLLHUP)
        connection.sendall(b"x")
        assert watcher.poll(20_000)


@pytest.mark.parametrize("options", ["close", "keep-alive, close", "Close ,x", "TE,\tCLOSE"])
def test_a_connection_ends_when_one_of_its_options_is_close(options: str) -> None:
    with running(answering) as server, connected(server) as connection:
        connection.sendall(f"GET / HTTP/1.1\r\nHost: x\r\nConnection: {options}\r\n\r\n".encode())
        assert b"\r\nConnection: close\r\n" in received(connection)  # all that came until its end

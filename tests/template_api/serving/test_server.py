"""waitress around the application as `template-api serve` sets it: large, slow, unread and many requests, a stop."""

import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from waitress import wasyncore

from template_api.serving.service import ApiServer
from template_api.serving.supervisor import listening_socket
from tests.support.served_api import Served
from tests.support.waiting import eventually
from tests.template_api.library.imports import write_lines

Serve = Callable[..., AbstractContextManager[Served]]
StartResponse = Callable[..., object]
ANSWER = b"x" * 500_000
MIB = 1 << 20


class Application:
    """Answer 500,000 bytes; `/small` with two, `/slow` with two after `go_on`, `/stop` with the end of the server."""

    def __init__(self) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/slow":
            self.entered.set()
            self.go_on.wait(20)
        body = ANSWER if environ["PATH_INFO"] == "/" else b"ok"
        start_response("200 OK", [("Content-Length", str(len(body)))])
        return [body]


@contextmanager
def running(app: Any, **limits: Any) -> Iterator[ApiServer]:
    """Run a server on a thread, until the end."""
    with listening_socket("127.0.0.1", 0) as listening:
        server = ApiServer(app, listening, threads=2, **limits)
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            yield server
        finally:
            server.stop()
            thread.join(20)
            assert not thread.is_alive()
            wasyncore.close_all(server._waited_for)


def connected(server: ApiServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def received(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(MIB):
        parts.append(part)
    return b"".join(parts)


def get(path: str, *fields: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *fields, "", ""]).encode()


def test_a_running_request_is_finished_at_a_stop() -> None:
    app = Application()
    with running(app) as server, connected(server) as connection:
        connection.sendall(get("/slow"))
        assert app.entered.wait(20)
        server.stop()
        # The loop has ended, and one thread still answers.
        eventually(lambda: server._waitress.task_dispatcher.stop_count == 1)
        app.go_on.set()
        answer = b""
        while not answer.endswith(b"\r\n\r\nok"):
            part = connection.recv(1000)
            assert part
            answer += part


def test_callers_that_never_read_hold_no_thread() -> None:
    with running(Application()) as server, ExitStack() as unread:
        for _ in range(8):  # four for each thread
            unread.enter_context(connected(server)).sendall(get("/") * 200)
        with connected(server) as other:
            other.sendall(get("/small") * 49 + get("/small", "Connection: close"))
            assert received(other).count(b"200 OK") == 50


def test_requests_that_come_in_one_piece_are_answered_in_order() -> None:
    with running(Application()) as server, connected(server) as late:
        late.sendall(b"".join(get("/") + get("/small") for _ in range(20)) + get("/small", "Connection: close"))
        answers = received(late).split(b"HTTP/1.1 200 OK")[1:]
    assert [len(each.partition(b"\r\n\r\n")[2]) for each in answers] == [len(ANSWER), 2] * 20 + [2]


@pytest.mark.parametrize(
    "sent", [pytest.param(b"POST /api/search HTTP/1.1\r\nHo", id="no request"), pytest.param(get("/"), id="no reading")]
)
def test_a_connection_on_which_nothing_moves_is_closed(sent: bytes) -> None:
    with running(Application(), channel_timeout=0, cleanup_interval=0) as server, connected(server) as idle:
        idle.sendall(sent)
        eventually(lambda: not server._waitress.active_channels, "it is not closed")


def test_connections_that_make_room_let_the_next_ones_in() -> None:
    limits = {"connection_limit": 20, "channel_timeout": 1, "cleanup_interval": 1}
    with running(Application(), **limits) as server, ExitStack() as opened:
        for _ in range(40):
            opened.enter_context(connected(server))

        def is_let_in() -> bool:
            with suppress(OSError), connected(server) as other:
                other.sendall(get("/small", "Connection: close"))
                return b"200 OK" in received(other)
            return False

        eventually(is_let_in, "connections make no room")


def exchange(port: int, request: bytes) -> tuple[int, bytes]:
    """Send bytes as they are, and read until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(request)
        answer = received(connection)
    return int(answer.split()[1]), answer


POST = b"POST /api/search HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        pytest.param(POST + b"Content-Length: 1073741824\r\n\r\n", 413, id="a gigabyte announced and never sent"),
        pytest.param(POST + b"Transfer-Encoding: gzip\r\n\r\n", 501, id="another transfer coding"),
        pytest.param(b"GET / HTTP/1.1\r\nX: ".ljust(65536, b"x"), 431, id="endless header"),
        pytest.param(b"GET /api/templates HTTP/1.1\r\nbad header\r\n\r\n", 400, id="bad header"),
    ],
)
def test_what_cannot_be_a_request_is_refused_before_the_application(
    api: Served, request_bytes: bytes, status: int
) -> None:
    assert exchange(api.port, request_bytes)[0] == status


def test_a_body_of_64_kib_passes_and_a_larger_one_is_refused_in_the_form_of_the_api(api: Served) -> None:
    body = json.dumps({"query": "webhook", "x": ""})
    body = body[:-2] + "y" * (65536 - len(body)) + body[-2:]
    json_type = {"Content-Type": "application/json"}
    assert api.ask("POST", "/api/search", body.encode(), json_type).status == 200
    for larger in (body.encode() + b" ", body.encode().ljust(900_000)):
        refused = api.ask("POST", "/api/search", larger, json_type)
        assert (refused.status, refused.json["code"]) == (413, "payload_too_large")


def memory(process_id: int) -> int:
    """Return the most memory that a process has had, in bytes."""
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


@pytest.mark.parametrize("count", [10, pytest.param(100, marks=pytest.mark.long)])
def test_many_callers_that_never_read_cost_a_bounded_amount_of_memory(
    serve: Serve, sqlite_url: str, tmp_path: Path, count: int
) -> None:
    texts = ({"slug": slug, "title": "Receive a webhook", "content": "word " * 60_000} for slug in ("one", "two"))
    library = write_lines(tmp_path / "library.jsonl", *texts)
    paths = ("/api/templates?limit=1", "/api/search?q=webhook", "/api/templates/one")
    with serve("--database-url", sqlite_url, "--library", str(library)) as api, ExitStack() as unread:
        for path in paths:
            answer = api.get(path)
        before = memory(api.process.pid)
        for number in range(count):
            connection = unread.enter_context(socket.create_connection(("127.0.0.1", api.port), timeout=60))
            connection.sendall(get(paths[number % 3]) * 1000)
        for _ in range(40):
            assert api.get("/api/search?q=webhook").status == 200
        assert memory(api.process.pid) - before < count * 1024 // len(get(paths[0])) * 2 * len(answer.body)

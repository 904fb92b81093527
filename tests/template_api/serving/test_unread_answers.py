"""Callers that send many requests in one piece and never read: a bounded cost, and no other caller's answer."""

import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from amqtt_rest_bridge.http_server import Limits
from template_api.serving.service import Server
from template_api.serving.supervisor import listening_socket
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.support.served_api import Served

Serve = Callable[..., "AbstractContextManager[Served]"]
ANSWER = b"x" * 500_000
MIB = 1 << 20
LISTS = b"GET /api/templates?limit=1 HTTP/1.1\r\nHost: x\r\n\r\n"
SEARCHES = b"GET /api/search?q=webhook HTTP/1.1\r\nHost: x\r\n\r\n"
TEMPLATES = b"GET /api/templates/one HTTP/1.1\r\nHost: x\r\n\r\n"


class Application:
    """Answer 500,000 bytes, and count the requests; `/small` is answered in two bytes."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
        self.asked += 1
        body = b"ok" if environ["PATH_INFO"] == "/small" else ANSWER
        start_response("200 OK", [("Content-Length", str(len(body)))])
        return [body]


@contextmanager
def running(app: Application, limits: Limits | None = None) -> Iterator[int]:
    with listening_socket("127.0.0.1", 0) as listening:
        served = Server(app, listening, threads=2, limits=limits or Limits())
        thread = threading.Thread(target=served.run)
        thread.start()
        try:
            yield served.port
        finally:
            served.stop()
            thread.join(20)
            assert not thread.is_alive()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def read_all(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(MIB):
        parts.append(part)
    return b"".join(parts)


def get(path: str, *fields: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *fields, "", ""]).encode()


def test_callers_that_never_read_hold_no_thread() -> None:
    with running(Application()) as port, ExitStack() as unread:
        for _ in range(8):  # four for each thread
            unread.enter_context(connect(port)).sendall(get("/") * 200)
        with connect(port) as other:
            other.sendall(get("/small") * 49 + get("/small", "Connection: close"))
            assert read_all(other).count(b"200 OK") == 50


def test_a_caller_that_does_not_read_is_served_one_request_at_a_time() -> None:
    app = Application()
    with running(app) as port, connect(port) as unread, connect(port) as other:
        unread.sendall(get("/") * 200)
        other.sendall(get("/small") * 199 + get("/small", "Connection: close"))
        read_all(other)
        asked = app.asked - 200
        assert asked * len(ANSWER) < 2 * MIB  # what the two systems' buffers take, and one answer


def test_what_waits_behind_an_unread_answer_is_answered_in_order_once_it_is_read() -> None:
    with running(Application()) as port, connect(port) as late, connect(port) as other:
        late.sendall(b"".join(get("/") + get("/small") for _ in range(40)) + get("/small", "Connection: close"))
        other.sendall(get("/small", "Connection: close"))
        read_all(other)
        answers = read_all(late).split(b"HTTP/1.1 200 OK")[1:]
    assert [len(each.partition(b"\r\n\r\n")[2]) for each in answers] == [len(ANSWER), 2] * 40 + [2]


def test_a_caller_that_takes_nothing_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    with running(Application(), Limits(slow_seconds=0.1)) as port, connect(port) as unread:
        unread.sendall(get("/") * 200)
        eventually(lambda: "did not read their answers" in caplog.text, "it is not closed")
        with pytest.raises(OSError):  # what was not sent is gone
            while unread.recv(MIB):
                unread.sendall(get("/"))


def test_callers_that_never_read_keep_no_new_one_out() -> None:
    with running(Application(), Limits(connections=20, patience_seconds=0.0)) as port, ExitStack() as opened:
        unread = [opened.enter_context(connect(port)) for _ in range(40)]
        for each in unread:
            with suppress(OSError):  # it has made room already
                each.sendall(get("/") * 100)
        for _ in range(40):
            with connect(port) as other:
                other.sendall(get("/small", "Connection: close"))
                assert b"200 OK" in read_all(other)


def memory(process_id: int) -> int:
    """Return the most memory that a process has had, in bytes."""
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.long)])
def test_many_callers_that_never_read_cost_a_bounded_amount_of_memory(
    serve: Serve, sqlite_url: str, tmp_path: Path, count: int
) -> None:
    library = tmp_path / "library.jsonl"
    texts = ({"slug": slug, "title": "Receive a webhook", "content": "word " * 60_000} for slug in ("one", "two"))
    library.write_text("".join(json.dumps(each) + "\n" for each in texts))
    with serve("--database-url", sqlite_url, "--library", str(library)) as api, ExitStack() as unread:
        for path in ("/api/templates?limit=1", "/api/search?q=webhook", "/api/templates/one"):
            answer = api.get(path)
        before = memory(api.process.pid)
        for number in range(count):
            connection = unread.enter_context(connect(api.port))
            connection.sendall((SEARCHES, TEMPLATES, LISTS)[number % 3] * 1000)
        for _ in range(40):
            assert api.get("/api/search?q=webhook").status == 200
        assert memory(api.process.pid) - before < count * (MIB + len(answer.content))

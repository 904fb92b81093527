"""Callers that send many requests in one piece and do not read the answers: a bounded cost, and only their own."""

import contextlib
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from amqtt_rest_bridge.http.server import PortLimits
from amqtt_rest_bridge.http.server_tls import TlsFiles
from tests.support.http_ports import Raw, Served, get, post, served
from tests.support.http_target import CERTIFICATES
from tests.support.waiting import eventually

PAYLOAD = b'"' + b"x" * 36_000 + b'"'
BURST = 585  # requests in one write of 16 kB

schemes = pytest.mark.parametrize("tls", [pytest.param(False, id="plain"), pytest.param(True, id="tls")])
events = pytest.mark.parametrize(
    "request_bytes", [pytest.param(get("/last"), id="read event"), pytest.param(post("/ask"), id="reply event")]
)


@contextlib.contextmanager
def port(
    *, tls: bool = False, limits: PortLimits | None = None, payload: bytes = PAYLOAD
) -> Iterator[tuple[Served, ssl.SSLContext | None]]:
    """A port whose /last has a large payload and whose /ask gets large replies, each an object of its own."""
    context = ssl.create_default_context(cafile=str(CERTIFICATES / "authority.pem")) if tls else None
    server = TlsFiles(str(CERTIFICATES / "server.pem"), str(CERTIFICATES / "server.pem")) if tls else None
    with served(tls=server, limits=limits) as hooks:
        hooks.broker.changed("last", payload)
        hooks.broker.on_wait = lambda _topic: bytes(bytearray(payload))
        yield hooks, context


def stalled(hooks: Served, count: int = 1) -> bool:
    """Return whether so many connections wait for their peers to read."""
    connections = hooks.connections
    return sum(1 for each in connections if each._is_full and each._unread) == count


@schemes
@events
def test_one_that_never_reads_delays_no_other_caller(tls: bool, request_bytes: bytes) -> None:
    with port(tls=tls, payload=2 * PAYLOAD) as (hooks, context), hooks.connect(context) as unread:
        unread.send(request_bytes * BURST)
        eventually(lambda: stalled(hooks))
        with hooks.connect(context) as other:
            assert [other.ask(post()).status for _ in range(BURST)] == [200] * BURST


@schemes
@events
def test_what_waited_behind_an_unread_answer_is_answered_in_order_once_it_is_read(
    tls: bool, request_bytes: bytes
) -> None:
    with port(tls=tls) as (hooks, context), hooks.connect(context) as late:
        late.send(request_bytes * BURST + post("/hook", b"last"))
        eventually(lambda: stalled(hooks))
        assert all(late.answer().body == PAYLOAD for _ in range(BURST))
        assert late.answer().status == 200
    assert hooks.bodies[-1] == b"last"


def test_behind_an_unread_answer_heads_conditions_and_continues_are_answered_too() -> None:
    with port() as (hooks, _), hooks.connect() as late:
        tag = late.ask(get("/last"), "GET").headers["ETag"]
        head, unchanged = get("/last", method="HEAD"), get("/last", f"If-None-Match: {tag}")
        late.send(get("/last") * 300 + head + unchanged + post("/hook", b"", "Expect: 100-continue"))
        late.send(b"POST /hook HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
        eventually(lambda: stalled(hooks))
        assert all(late.answer("GET").body == PAYLOAD for _ in range(300))
        assert (late.answer("HEAD").headers["Content-Length"], late.answer("GET").status) == (str(len(PAYLOAD)), 304)
        assert late.answer().status == 200
        assert late._file.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert late._file.readline() == b"\r\n"
        assert late.ask(b"body").status == 200
        assert hooks.bodies[-1] == b"body"


@schemes
@events
def test_one_that_reads_nothing_for_the_time_given_is_closed(
    tls: bool, request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with port(tls=tls, limits=PortLimits(slow_seconds=0.3)) as (hooks, context), hooks.connect(context) as unread:
        unread.send(request_bytes * BURST)
        eventually(lambda: "did not read" in caplog.text)
        assert not hooks.connections
    assert "closed 1 connection(s) that did not read their answers for 0.3 s" in caplog.text


def test_one_that_does_not_read_its_reply_is_not_counted_as_waiting_and_does_not_delay_the_stop() -> None:
    with port() as (hooks, _), hooks.connect() as unread:
        unread.send(post("/ask") * BURST)
        eventually(lambda: stalled(hooks) and not hooks.in_turn)
        hooks.server.stop(0.1)
        assert not hooks.connections


def test_with_too_many_connections_one_that_does_not_read_makes_room() -> None:
    with port(limits=PortLimits(connections=1, patience_seconds=0.0)) as (hooks, _), hooks.connect() as unread:
        unread.send(get("/last") * BURST)
        eventually(lambda: hooks.ask(post()).status == 200)  # the system's buffers fill up before


SERVE = """
import sys
from collections import deque
from tests.support.waiting import eventually
from tests.http.test_server_unread import port, resident_mb, stalled
with port(tls=sys.argv[1] == "tls") as (hooks, _):
    hooks.broker.published = hooks.broker.records.requests = hooks.broker.log = deque(maxlen=1)
    print(hooks.port, flush=True)
    for line in sys.stdin:
        eventually(lambda: stalled(hooks, int(line)))
        print(resident_mb(), flush=True)
"""


def resident_mb() -> float:
    """Return the resident memory of this process in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


@pytest.mark.parametrize(
    ("tls", "request_bytes", "count"),
    [
        pytest.param(False, get("/last"), 20, id="plain, read event"),
        pytest.param(True, post("/ask"), 20, id="tls, reply event"),
        *(
            pytest.param(tls, request_bytes, 500, marks=pytest.mark.long)
            for tls in (False, True)
            for request_bytes in (get("/last"), post("/ask"))
        ),
    ],
)
def test_many_that_never_read_cost_little_memory(tls: bool, request_bytes: bytes, count: int) -> None:
    command = [sys.executable, "-c", SERVE, "tls" if tls else "plain"]
    context = ssl._create_unverified_context() if tls else None
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process,
        contextlib.ExitStack() as connections,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        listening = int(process.stdout.readline())
        with Raw(listening, context) as first:
            assert first.ask(request_bytes).body == PAYLOAD
            sizes = []
            for stalling in (0, count):
                for _ in range(stalling):
                    connections.enter_context(Raw(listening, context)).send(request_bytes * BURST)
                process.stdin.write(f"{stalling}\n")
                sizes.append(float(process.stdout.readline()))
            assert first.ask(request_bytes).body == PAYLOAD
        process.stdin.close()
    allowed = 10 + 60 * count / 500
    assert sizes[1] - sizes[0] < allowed, sizes

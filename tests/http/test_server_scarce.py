"""More connections than a port has room for: new callers are served all the same."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from amqtt_rest_bridge.http.server import PortLimits
from tests.support.http_ports import Raw, error_code_of, post, served
from tests.support.waiting import eventually

HEAD = b"POST /hook HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize("count", [300, pytest.param(1000, marks=pytest.mark.long)])
def test_idle_connections_are_kept_and_others_served_beside_them(count: int) -> None:
    with served(limits=PortLimits(connections=2000)) as hooks, contextlib.ExitStack() as connections:
        idle = [connections.enter_context(Raw(hooks.port)) for _ in range(count)]
        with hooks.connect() as raw:
            assert [raw.ask(post()).status for _ in range(50)] == [200] * 50
        assert [each.ask(post()).status for each in (idle[0], idle[-1])] == [200, 200]


def test_with_too_many_connections_the_longest_idle_makes_room() -> None:
    with served(limits=PortLimits(connections=3)) as hooks:
        connections = [Raw(hooks.port) for _ in range(3)]
        for raw in connections:
            assert raw.ask(post()).status == 200
        with hooks.connect() as newest:
            assert newest.ask(post()).status == 200
        assert connections[0].is_closed_by_peer()
        for raw in connections:
            raw.__exit__()


def test_with_too_many_busy_connections_a_new_one_is_refused_with_the_reason() -> None:
    with served(limits=PortLimits(connections=1)) as hooks, hooks.connect() as busy:
        busy.send(HEAD)
        eventually(lambda: bool(hooks.connections))
        with hooks.connect() as second:
            answer = second.answer()
        assert (answer.status, error_code_of(answer), answer.headers["Retry-After"]) == (503, "overloaded", "1")
        assert busy.ask(b"Content-Length: 1\r\n\r\na").status == 200


def test_with_too_many_connections_one_that_keeps_us_waiting_makes_room() -> None:
    limits = PortLimits(connections=2, patience_seconds=0.0)
    with served(limits=limits) as hooks, hooks.connect() as slow, hooks.connect() as slower:
        slower.send(HEAD)
        slow.send(HEAD)
        eventually(lambda: sum(1 for each in hooks.connections if each._reader.has_begun) == 2)
        assert hooks.ask(post()).status == 200
        assert slower.is_closed_by_peer()


def test_with_too_many_connections_one_that_sends_only_empty_lines_makes_room() -> None:
    limits = PortLimits(connections=2, patience_seconds=3600.0)
    with served(limits=limits) as hooks, hooks.connect() as first, hooks.connect() as second:
        eventually(lambda: len(hooks.connections) == 2)
        for each in hooks.connections:
            each.began = each.active = each.began - 7200.0
        for raw in (first, second):
            raw.send(b"\r\n")
        eventually(lambda: all(each.active > each.began and not each.is_busy for each in hooks.connections))
        assert hooks.ask(post()).status == 200


OUT_OF_DESCRIPTORS = """
import resource, sys
from amqtt_rest_bridge.http.server import PortLimits
from tests.support.http_ports import served
with served(limits=PortLimits(connections=1000)) as hooks:
    print(hooks.port, flush=True)
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def scarce_port() -> Iterator[int]:
    """A port whose process may open 40 files and no more."""
    command = [sys.executable, "-c", OUT_OF_DESCRIPTORS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.stdin.close()  # it ends


def test_a_process_out_of_descriptors_still_serves_new_callers(scarce_port: int) -> None:
    with contextlib.ExitStack() as connections:
        statuses = [connections.enter_context(Raw(scarce_port)).ask(post()).status for _ in range(100)]
    assert statuses == [200] * 100


def test_out_of_descriptors_and_all_of_them_busy_new_callers_wait(scarce_port: int) -> None:
    with contextlib.ExitStack() as connections:
        busy = [connections.enter_context(Raw(scarce_port)).send(HEAD) for _ in range(60)]  # there is no room for all
        late = connections.enter_context(Raw(scarce_port)).send(post())
        assert [raw.ask(b"Content-Length: 1\r\n\r\na").status for raw in busy[:10]] == [200] * 10
        assert late.answer().status == 200

"""What the admin port says of many routes is whole or 503, however slow the broker's loop is."""

import contextlib
import http.client
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.admin_client import Admin, admin_of, server_route
from tests.support.asking import Answered
from tests.support.embedded_broker import Host, configuration, hosting
from tests.support.ports import free_port
from tests.support.waiting import eventually

COUNT = 100
ROUTES = "".join(server_route(f"R{number:03}").replace("/hook", f"/hook{number}") for number in range(COUNT))
PATHS = ["/metrics", "/api/routes", "/"]


def routes_in(answer: Answered, path: str) -> int:
    if path == "/api/routes":
        return len(answer.json["routes"])
    return answer.text.count("rest_bridge_health{" if path == "/metrics" else "<tbody data-route")


@contextlib.contextmanager
def slow_loop(host: Host, seconds: float) -> Iterator[None]:
    """Make each iteration of the broker's loop take so long."""
    ended = threading.Event()

    def block() -> None:
        if not ended.is_set():
            time.sleep(seconds)  # what a message of many megabytes, or another plugin, does
            host._loop.call_soon(block)

    host._loop.call_soon_threadsafe(block)
    try:
        yield
    finally:
        ended.set()


@pytest.mark.parametrize("processes", [0, 1])
def test_while_the_broker_is_slow_an_answer_has_all_routes_or_is_503(processes: int) -> None:
    with hosting(ROUTES, admin_port=0, processes=processes) as host:
        admin = admin_of(host)
        seen = []
        with slow_loop(host, 0.2):
            for path in PATHS:
                answer = admin.get(path)
                seen.append((answer.status, routes_in(answer, path) if answer.status == 200 else 0))
                if answer.status != 200:
                    assert answer.headers["Retry-After"]
        assert set(seen) <= {(200, COUNT), (503, 0)}
        for path in PATHS:
            assert routes_in(admin.get(path), path) == COUNT


def test_right_after_the_start_an_answer_has_all_routes_or_is_503(tmp_path: Path) -> None:
    path, port = tmp_path / "a.lot", free_port()
    path.write_text(ROUTES)
    seen: list[tuple[int, int]] = []
    ended = threading.Event()

    def ask(path: str) -> None:
        while not ended.wait(0.02):  # which lets the broker, a thread of this process, start on a starved machine
            with contextlib.suppress(OSError, http.client.HTTPException):  # it does not listen yet
                answer = Admin(port).get(path)
                seen.append((answer.status, routes_in(answer, path) if answer.status == 200 else 0))

    asking = [threading.Thread(target=ask, args=(path,)) for path in PATHS]
    for thread in asking:
        thread.start()
    try:
        host = Host(configuration(path, admin_port=port, processes=1))
        try:
            with slow_loop(host, 0.1):
                eventually(lambda: len(seen) > 8)
            eventually(lambda: (200, COUNT) in seen[-3:])
        finally:
            host.stop()
    finally:
        ended.set()
        for thread in asking:
            thread.join()
    assert set(seen) <= {(200, COUNT), (503, 0)}

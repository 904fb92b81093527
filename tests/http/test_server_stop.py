"""How a server stops, and how several share a socket."""

import contextlib
import itertools
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.answering import FakeBroker, RealClock
from tests.support.http_ports import (
    PATIENCE,
    Answer,
    Loop,
    Raw,
    RunningServer,
    error_code_of,
    event_loop,
    hook_route,
    listening_socket,
    post,
    served,
)
from tests.support.waiting import eventually


def server_on(loop: Loop, sock: socket.socket, broker: FakeBroker) -> RunningServer:
    broker.mode.use_routes([hook_route()])
    return RunningServer(loop, sock, broker.mode.application(8080))


def test_a_quiet_listener_stops_at_once_and_its_socket_serves_the_next() -> None:
    with event_loop() as loop, listening_socket() as sock:
        for turn in range(3):
            broker = FakeBroker(RealClock())
            with Raw(sock.getsockname()[1]).send(post(body=b"%d" % turn)) as raw:  # it comes between two listeners
                server = server_on(loop, sock, broker)
                server.start()
                assert raw.answer().status == 200
                server.stop(PATIENCE)
                assert raw.is_closed_by_peer()
            assert [publication.payload for publication in broker.published] == [b"%d" % turn]


def test_a_running_request_is_finished_and_new_ones_are_refused() -> None:
    with served() as hooks, hooks.connect() as running, hooks.connect() as other:
        assert other.ask(post(body=b"before")).status == 200
        running.send(post("/ask"))
        reply = hooks.waiting()
        with ThreadPoolExecutor(1) as threads:
            stopping = threads.submit(hooks.server.stop, PATIENCE)
            eventually(lambda: hooks.is_stopping)
            answer = other.ask(post(body=b"after"))
            assert (answer.status, error_code_of(answer)) == (503, "shutting_down")
            assert (answer.headers["Retry-After"], answer.headers["Connection"]) == ("1", "close")
            assert other.is_closed_by_peer()
            reply.arrive(b"reply")
            answer = running.answer()
            assert (answer.status, answer.body, answer.headers["Connection"]) == (200, b"reply", "close")
            stopping.result(PATIENCE)
        assert hooks.bodies == [b"before", b"x"]


def test_after_the_grace_everything_is_closed() -> None:
    with served() as hooks, hooks.connect() as running:
        running.send(post("/ask"))
        reply = hooks.waiting()
        hooks.server.stop(0.05)
        assert running.is_closed_by_peer()
        assert hooks.broker.log[-1].startswith("done answers/")  # nothing is left that waits
        reply.arrive(b"reply")


def test_a_half_sent_request_is_answered_that_the_bridge_closes() -> None:
    with served() as hooks, hooks.connect() as raw:
        raw.send(post()[:-1])
        eventually(lambda: any(connection._reader.has_begun for connection in hooks.connections))
        hooks.server.stop(0.05)
        answer = raw.answer()
        assert (answer.status, error_code_of(answer)) == (503, "shutting_down")
        assert hooks.bodies == []


def test_a_listener_that_never_started_can_be_stopped() -> None:
    with event_loop() as loop, listening_socket() as sock:
        server_on(loop, sock, FakeBroker(RealClock())).stop(0)
        server = server_on(loop, sock, FakeBroker(RealClock()))
        server.start()
        server.stop(0)
        server.stop(0)  # twice is once


@pytest.mark.parametrize("servers", [2, 3])
def test_servers_share_a_socket_and_every_request_is_served_once(servers: int) -> None:
    brokers = [FakeBroker(RealClock()) for _ in range(servers)]
    with event_loop() as loop, listening_socket() as sock:
        running = [server_on(loop, sock, broker) for broker in brokers]
        for server in running:
            server.start()

        def call(number: int) -> int:
            with Raw(sock.getsockname()[1]) as raw:
                return raw.ask(post(body=b"%d" % number)).status

        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(call, range(200))) == [200] * 200
        running[0].stop(PATIENCE)
        assert [call(number) for number in range(200, 220)] == [200] * 20
        for server in running[1:]:
            server.stop(PATIENCE)
    bodies = sorted(publication.payload for broker in brokers for publication in broker.published)
    assert bodies == sorted(b"%d" % number for number in range(220))


def shared_socket(port: int = 0) -> socket.socket:
    return socket.create_server(("127.0.0.1", port), reuse_port=True)


def test_a_server_that_leaves_its_port_to_others_serves_who_has_connected_once_more() -> None:
    with served() as hooks, hooks.connect() as used, hooks.connect() as fresh, ThreadPoolExecutor(1) as threads:
        assert used.ask(post(body=b"before")).status == 200
        stopping = threads.submit(hooks.server.stop, PATIENCE, serve_seconds=PATIENCE)
        eventually(lambda: hooks.server.port.leaving)
        for number, raw in enumerate((used, fresh)):
            answer = raw.ask(post(body=b"%d" % number))
            assert (answer.status, answer.headers["Connection"]) == (200, "close")
            assert raw.is_closed_by_peer()
        stopping.result(PATIENCE)  # which has no connection left to wait for
        assert hooks.bodies == [b"before", b"0", b"1"]


def test_a_server_that_leaves_its_port_to_others_closes_at_last_who_asks_nothing() -> None:
    with served() as hooks, hooks.connect() as idle:
        assert idle.ask(post()).status == 200
        hooks.server.stop(PATIENCE, serve_seconds=0.05)
        assert idle.is_closed_by_peer()


def test_connections_that_wait_in_the_socket_of_a_server_that_leaves_are_served() -> None:
    count = 50
    with event_loop() as loop, shared_socket() as sock, contextlib.ExitStack() as callers:
        broker = FakeBroker(RealClock())
        server = server_on(loop, sock, broker)
        server.start()
        blocked = threading.Event()
        loop.loop.call_soon_threadsafe(blocked.wait, PATIENCE)
        raws = [callers.enter_context(Raw(sock.getsockname()[1])).send(post()) for _ in range(count)]
        sock.close()  # so that the server has the last one
        with ThreadPoolExecutor(1) as threads:
            stopping = threads.submit(server.stop, PATIENCE, serve_seconds=0.5)
            blocked.set()
            assert [raw.answer().status for raw in raws] == [200] * count
            stopping.result(PATIENCE)


def answers_of(raw: Raw) -> Iterator[Answer]:
    """Ask until the connection's last answer; raises `OSError` when that did not say so."""
    while True:
        answer = raw.ask(post())
        yield answer
        if answer.headers["Connection"] == "close":
            return


@pytest.mark.parametrize("turns", [5, pytest.param(100, marks=pytest.mark.long)])
def test_callers_notice_nothing_while_the_servers_of_a_port_are_replaced_one_by_one(turns: int) -> None:
    broker = FakeBroker(RealClock())
    failures: list[Answer] = []
    is_over = threading.Event()
    loop = Loop()

    def start(port: int = 0) -> tuple[RunningServer, int]:
        with shared_socket(port) as sock:
            server = server_on(loop, sock, broker)
            server.start()
            return server, sock.getsockname()[1]

    first, port = start()
    servers = [first, start(port)[0]]

    def call(most: int) -> None:
        while not is_over.is_set():
            with Raw(port) as raw:
                for answer in itertools.islice(answers_of(raw), most):
                    failures.extend([answer] * (answer.status != 200))
                    if is_over.is_set():
                        break

    with ThreadPoolExecutor(4) as threads:
        calling = [threads.submit(call, most) for most in (1_000_000, 1, 1, 1)]
        for _ in range(turns):
            servers.append(start(port)[0])
            servers.pop(0).stop(PATIENCE, serve_seconds=PATIENCE)
        is_over.set()
        for one in calling:
            one.result(PATIENCE)
    for server in servers:
        server.stop(0)
    loop.close()
    assert failures == []

"""How a server stops, and how several share a socket."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from amqtt_rest_bridge.bridge.server.app import RouteApplication
from amqtt_rest_bridge.http_server import HttpServer
from tests.support.http_ports import PATIENCE, Raw, hook_route, listening_socket, post, served
from tests.support.server_mode import FakeBroker
from tests.support.waiting import eventually


def server_on(sock: object, broker: FakeBroker) -> HttpServer:
    return HttpServer(sock, RouteApplication([hook_route()], broker))  # type: ignore[arg-type]  # a socket


def test_a_quiet_listener_stops_at_once_and_its_socket_serves_the_next() -> None:
    with listening_socket() as sock:
        for turn in range(3):
            broker = FakeBroker()
            server = server_on(sock, broker)
            server.start()
            with Raw(sock.getsockname()[1]) as raw:
                assert raw.ask(post(body=b"%d" % turn)).status == 200
                server.stop(PATIENCE)
                assert raw.is_closed_by_peer()
            assert [publication.payload for publication in broker.published] == [b"%d" % turn]


def test_a_connection_that_came_between_two_listeners_is_served_by_the_second() -> None:
    with listening_socket() as sock:
        first = server_on(sock, FakeBroker())
        first.start()
        first.stop(PATIENCE)
        with Raw(sock.getsockname()[1]) as raw:
            raw.send(post())
            second = server_on(sock, FakeBroker())
            second.start()
            assert raw.answer().status == 200
            second.stop(PATIENCE)


def test_a_running_request_is_finished_and_new_ones_are_refused() -> None:
    with served() as hooks, hooks.connect() as running, hooks.connect() as other:
        assert other.ask(post(body=b"before")).status == 200
        running.send(post("/ask"))
        reply = hooks.waiting()
        with ThreadPoolExecutor(1) as threads:
            stopping = threads.submit(hooks.server.stop, PATIENCE)
            eventually(lambda: hooks.is_stopping)
            answer = other.ask(post(body=b"after"))
            assert (answer.status, json.loads(answer.body)["error"]["code"]) == (503, "shutting_down")
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
        eventually(lambda: any(connection.request for connection in hooks.connections))
        hooks.server.stop(0.05)
        answer = raw.answer()
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (503, "shutting_down")
        assert hooks.bodies == []


def test_a_listener_that_never_started_can_be_stopped() -> None:
    with listening_socket() as sock:
        server_on(sock, FakeBroker()).stop(0)
        server = server_on(sock, FakeBroker())
        server.start()
        server.stop(0)
        server.stop(0)  # twice is once


@pytest.mark.parametrize("servers", [2, 3])
def test_servers_share_a_socket_and_every_request_is_served_once(servers: int) -> None:
    brokers = [FakeBroker() for _ in range(servers)]
    with listening_socket() as sock:
        running = [server_on(sock, broker) for broker in brokers]
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

"""Bridges that die or hang, reloads and shutdowns in between: in a real broker, with real processes."""

import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amqtt_rest_bridge.broker.statuses import AWAY
from amqtt_rest_bridge.supervised_tasks import Times
from tests.support.admin_client import admin_of
from tests.support.commands import accepts
from tests.support.embedded_broker import Client, Host, hosting
from tests.support.gate import Gate
from tests.support.http_recorder import Recorder, echo
from tests.support.spawning import Spawning
from tests.support.waiting import SECONDS, eventually

LOSSLESS = 'ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "lossless"'
LISTENING = """
    DEFINE ROUTE Listening WITH TYPE REST_API
        ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT '0'
        ADD EVENT E WITH METHOD "POST" WITH ENDPOINT "/x" WITH DESTINATION_TOPIC "hook"
"""


def route(target: Recorder, config: str = "", event: str = "") -> str:
    return f"""DEFINE ROUTE R WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "{target.url}" WITH ENABLE_CLIENT "true"
        ADD EVENT E
            WITH SOURCE_TOPIC "in/#" WITH METHOD "POST" WITH ENDPOINT "/x" WITH BODY "{{payload}}"
            WITH DESTINATION_TOPIC "out" {event}
        {config}
    """


@pytest.fixture
def gate(target: Recorder) -> Iterator[Gate]:
    """Requests to the target wait here."""
    gate = Gate()
    target.answer = gate.before(echo)
    yield gate
    gate.open.set()


def kill(host: Host) -> None:
    """Kill the bridge and wait until the broker knows."""
    pid = host.child.pid
    os.kill(pid or 0, signal.SIGKILL)
    eventually(lambda: not host.plugin.endpoint.ready.is_set(), "the broker does not notice")


def await_ready(host: Host) -> None:
    eventually(host.plugin.endpoint.ready.is_set, "the bridge does not come back")


def messages(host: Host) -> Any:
    """Return the counts of the route's messages; waits for the admin port, which is away with the bridge."""
    await_ready(host)
    (status,) = admin_of(host).get("/api/routes").json["routes"]
    return status["messages"]


def message_of(client: Client) -> Any:
    """Wait for a message of JSON."""
    return json.loads(client.message()[1])


def test_a_message_under_way_fails_once_when_its_bridge_dies_and_the_next_one_is_called(
    target: Recorder, gate: Gate
) -> None:
    with hosting(route(target), processes=1) as host:
        client = host.client("out")
        client.publish("in/1", b"1")
        assert gate.entered.get(timeout=SECONDS).body == b"1"
        kill(host)
        gate.open.set()
        assert message_of(client)["error"]["code"] == "bridge_restarted"
        client.publish("in/1", b"2")
        assert client.message() == ("out", b"2")


def test_a_lossless_message_under_way_is_called_again_with_the_same_key(
    target: Recorder, gate: Gate, tmp_path: Path
) -> None:
    with hosting(route(target, LOSSLESS), processes=1, spool=str(tmp_path / "spool.db")) as host:
        client = host.client("out")
        client.publish("in/1", b"1")
        first = gate.entered.get(timeout=SECONDS)
        kill(host)
        again = gate.entered.get(timeout=SECONDS)
        gate.open.set()
        assert client.message() == ("out", b"1")
        assert again.headers["Idempotency-Key"] == first.headers["Idempotency-Key"]


def test_while_the_bridge_is_away_messages_wait_and_its_routes_are_red(target: Recorder) -> None:
    spawning = Spawning()
    with hosting(route(target), processes=1, status_seconds=3600, **spawning.options) as host:
        client = host.client(host.status_filter)
        assert message_of(client)["health"] == "Green"
        with spawning.failing():
            kill(host)
            red = message_of(client)
            assert (red["health"], red["health_reason"], red["last_error"]["code"]) == ("Red", AWAY, "bridge_restarted")
            client.publish("in/1", b"waits")
        client.subscribe("out")
        seen = [client.message() for _ in range(3)]
        assert ("out", b"waits") in seen
        assert json.loads(next(payload for topic, payload in reversed(seen) if topic != "out"))["health"] == "Green"


def test_route_files_that_are_broken_by_then_cost_a_bridge_that_starts_again_nothing(target: Recorder) -> None:
    with hosting(route(target), processes=1, admin_port=0) as host:
        client = host.client("out")
        host.path.write_text("DEFINE ROUTE")
        port = host.admin_port
        kill(host)
        await_ready(host)
        client.publish("in/1", b"1")
        assert client.message() == ("out", b"1")
        assert port is not None
        admin_of(host).await_value(1, "rest_bridge_restarts_total")


def test_signals_to_the_whole_group_do_not_end_the_bridge(target: Recorder) -> None:
    with hosting(route(target), processes=1) as host:
        client = host.client("out")
        pid = host.child.pid
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(pid or 0, number)
        client.publish("in/1", b"1")
        assert client.message() == ("out", b"1")
        assert host.child.pid == pid


def test_a_bridge_that_dies_while_a_message_waits_for_its_next_try_leaves_nothing_open(target: Recorder) -> None:
    target.answer = lambda _: (503, b"")
    with hosting(route(target), processes=1, admin_port=0) as host:
        client = host.client("out")
        client.publish("in/1", b"1")
        eventually(lambda: messages(host)["retried"] == 1, "not tried again")
        kill(host)
        assert message_of(client)["error"]["code"] == "bridge_restarted"
        counts = messages(host)
        assert (counts["queued"], counts["in_flight"], counts["failed"]) == (0, 0, 1)


def test_messages_that_come_while_the_bridge_is_away_outlive_a_reload_of_their_route(target: Recorder) -> None:
    spawning = Spawning()
    with hosting(route(target), processes=1, **spawning.options) as host:
        client = host.client("out", "other")
        with spawning.failing():
            kill(host)
            client.publish("in/1", b"held")
            host.path.write_text(route(target).replace('"out"', '"other"'))
            host.reload()
        assert client.message()[1] == b"held"

        def is_reloaded() -> bool:
            client.publish("in/1", b"1")
            return client.message() == ("other", b"1")

        eventually(is_reloaded, "a reload that was asked for meanwhile is forgotten")


def test_a_bridge_that_hangs_is_killed_and_started_again(target: Recorder, caplog: pytest.LogCaptureFixture) -> None:
    with hosting(route(target), processes=1, times=Times(ping=0.5)) as host:
        client, pid = host.client("out"), host.child.pid or 0
        os.kill(pid, signal.SIGSTOP)
        client.publish("in/1", b"1")
        eventually(lambda: f"the bridge process (pid {pid}) hangs and is killed" in caplog.text, "it goes on")
        host.child._times = Times()  # the next one may be idle
        assert message_of(client)["error"]["code"] == "bridge_restarted"
        client.publish("in/1", b"2")
        assert client.message() == ("out", b"2")


def test_tls_files_that_cannot_be_used_change_nothing_on_a_reload(
    target: Recorder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    with hosting(route(target), processes=1) as host:
        client, pid = host.client("out"), host.child.pid
        other = route(target).replace('"true"', f'"true" WITH CA_FILE "{tmp_path}/ca.pem"').replace("http:", "https:")
        host.path.write_text(other)
        host.reload()
        assert "reload failed, keeping the current routes: route R: CA_FILE" in caplog.text
        client.publish("in/1", b"as before")
        assert client.message() == ("out", b"as before")
        assert host.child.pid == pid


@pytest.mark.parametrize("processes", [0, 1])
def test_a_broker_that_stops_lets_requests_finish_and_counts_what_it_leaves(
    target: Recorder, gate: Gate, caplog: pytest.LogCaptureFixture, processes: int
) -> None:
    routes = route(target) + LISTENING
    with hosting(routes, processes=processes, workers=2) as host, caplog.at_level(logging.WARNING):
        client, port = host.client("out"), host.http_port
        for number in range(5):
            client.publish("in/1", b"%d" % number)
        running = {gate.entered.get(timeout=SECONDS).body for _ in range(2)}
        stopping = host.begin(host.plugin.on_broker_pre_shutdown())
        eventually(lambda: not accepts(port), "the bridge is not stopping")
        client.publish("in/1", b"too late")
        gate.open.set()
        assert {payload for _, payload in client.messages(2)} == running
        stopping.result(SECONDS)
        assert caplog.text.count("route R: 4 message(s) had not been answered when the broker stopped") == 1
        assert gate.entered.empty(), "a request began during the shutdown"


@pytest.mark.parametrize("processes", [0, 1])
def test_a_broker_that_stops_waits_for_a_hanging_request_no_longer_than_its_grace(
    target: Recorder, gate: Gate, caplog: pytest.LogCaptureFixture, processes: int
) -> None:
    gate.patience = None
    with hosting(route(target), processes=processes, times=Times(grace=0.1)) as host:
        host.client().publish("in/1", b"1")
        gate.entered.get(timeout=SECONDS)
    assert "route R: 1 message(s) had not been answered" in caplog.text


def test_what_a_dead_bridge_held_is_called_by_the_next_one_in_order(
    target: Recorder, gate: Gate, tmp_path: Path
) -> None:
    spawning = Spawning()
    ordered = route(target, LOSSLESS, 'WITH ORDERED "true"')
    with hosting(ordered, processes=1, spool=str(tmp_path / "spool.db"), **spawning.options) as host:
        client = host.client("out")
        bodies = [b"%d " % number + b"x" * 20_000 for number in range(60)]
        for body in bodies[:50]:
            client.publish("in/1", body)
        assert gate.entered.get(timeout=SECONDS).body == bodies[0]
        with spawning.failing():
            kill(host)
            for body in bodies[50:]:
                client.publish("in/1", body)
        gate.open.set()
        assert [payload for _, payload in client.messages(60)] == bodies


def test_a_start_waits_for_the_port_of_a_bridge_that_has_yet_to_end(unused_port: int) -> None:
    taken = socket.create_server(("127.0.0.1", unused_port))
    threading.Timer(0.3, taken.close).start()
    with hosting(LISTENING.replace("'0'", f"'{unused_port}'"), processes=1) as host:
        assert host.http_port == unused_port
        assert accepts(unused_port)

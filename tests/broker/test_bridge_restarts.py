"""Bridges that die, reloads and shutdowns in between: in a real broker, with real processes."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.admin_client import admin_of
from tests.support.embedded_broker import Client, Host, hosting
from tests.support.gate import Gate
from tests.support.http_recorder import Recorder, echo
from tests.support.spawning import Spawning
from tests.support.waiting import SECONDS, eventually


def route(target: Recorder, config: str = "") -> str:
    return f"""DEFINE ROUTE R WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "{target.url}" WITH ENABLE_CLIENT "true"
        ADD EVENT E
            WITH SOURCE_TOPIC "in/#" WITH METHOD "POST" WITH ENDPOINT "/x" WITH BODY "{{payload}}"
            WITH DESTINATION_TOPIC "out"
        {config}
    """


def kill(host: Host) -> None:
    """Kill the bridge and wait until the broker knows."""
    pid = host.child.pid
    os.kill(pid or 0, signal.SIGKILL)
    eventually(lambda: not host.plugin.endpoint.ready.is_set(), "the broker does not notice")


def await_ready(host: Host) -> None:
    eventually(host.plugin.endpoint.ready.is_set, "the bridge does not come back")


def test_a_message_under_way_fails_once_when_its_bridge_dies_and_the_next_one_is_called(target: Recorder) -> None:
    gate = Gate()
    target.answer = gate.before(echo)
    with hosting(route(target), processes=1) as host:
        client = host.client("out")
        client.publish("in/1", b"1")
        assert gate.entered.get(timeout=SECONDS).body == b"1"
        kill(host)
        gate.open.set()
        assert json.loads(client.message()[1])["error"]["code"] == "bridge_restarted"
        client.publish("in/1", b"2")
        assert client.message() == ("out", b"2")


def test_a_lossless_message_under_way_is_called_again_with_the_same_key(target: Recorder, tmp_path: Path) -> None:
    gate = Gate()
    target.answer = gate.before(echo)
    lossless = route(target, 'ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "lossless"')
    with hosting(lossless, processes=1, spool=str(tmp_path / "spool.db")) as host:
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
        assert health(client) == "Green"
        with spawning.failing():
            kill(host)
            assert health(client) == "Red"
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


@pytest.mark.parametrize("processes", [0, 1])
def test_a_reload_uses_the_new_routes(target: Recorder, processes: int) -> None:
    with hosting(route(target), processes=processes) as host:
        client = host.client("other")
        host.path.write_text(route(target).replace('"out"', '"other"'))
        host.reload()
        eventually(lambda: _answers(client), "the new route is not used")


def _answers(client: Client) -> Any:
    client.publish("in/1", b"1")
    return client.message() == ("other", b"1")


@pytest.mark.parametrize("processes", [0, 1])
def test_a_stop_publishes_the_result_of_a_request_under_way(target: Recorder, processes: int) -> None:
    gate = Gate()
    target.answer = gate.before(echo)
    with hosting(route(target), processes=processes) as host:
        client = host.client("out")
        client.publish("in/1", b"1")
        gate.entered.get(timeout=SECONDS)
        stopping = host.begin(host.plugin.on_broker_pre_shutdown())
        gate.open.set()
        assert client.message() == ("out", b"1")
        stopping.result(SECONDS)


def test_signals_to_the_whole_group_do_not_end_the_bridge(target: Recorder) -> None:
    with hosting(route(target), processes=1) as host:
        client = host.client("out")
        pid = host.child.pid
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(pid or 0, number)
        client.publish("in/1", b"1")
        assert client.message() == ("out", b"1")
        assert host.child.pid == pid


def health(client: Client) -> Any:
    return json.loads(client.message()[1])["health"]

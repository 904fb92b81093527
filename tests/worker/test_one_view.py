"""What is seen of a group from outside: the status of all workers as one, and the metrics of one."""

import json
from typing import Any

import pytest

from amqtt_rest_bridge.__main__ import main
from tests.support.asking import ask
from tests.support.http_target import Target
from tests.support.waiting import eventually
from tests.worker.mosquitto import Mosquitto
from tests.worker.relay import Relay
from tests.worker.workers import LOSSLESS, Group, client_route, hanging

pytestmark = pytest.mark.mosquitto


def seen(mosquitto: Mosquitto, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return what `rest-bridge status --group` shows."""
    assert main(["status", "--group", "plant", "--json", "--broker", mosquitto.url]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def metrics(port: int) -> dict[str, float]:
    """Return the metrics of a worker that concern no route, without `rest_bridge_`."""
    lines = [line for line in ask(port, "/metrics").text.splitlines() if not line.startswith("#")]
    found = (line.removeprefix("rest_bridge_").rsplit(" ", 1) for line in lines if "route=" not in line)
    return {name: float(value) for name, value in found}


def test_the_status_of_a_group_is_one_view_of_its_workers_and_the_dead_are_away(
    group: Group, target: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    group.routes(client_route("Echo", target.port, "in"))
    workers = [group.start(slot, status_seconds=1).ready() for slot in (0, 1)]
    low, high = (worker.id() for worker in workers)
    eventually(lambda: [one["worker"] for one in seen(group.broker, capsys)["slots"]] == [low, high])
    for _ in range(10):
        group.client.publish("in", b"x")
    group.client.collect(10)

    def route() -> Any:
        return seen(group.broker, capsys)["routes"][0]

    eventually(lambda: route()["messages"]["succeeded"] == 10)
    assert (route()["health"], route()["workers"]) == ("Green", sorted([low, high]))
    workers[1].kill()
    eventually(lambda: route()["workers"] == [low])
    away = {one["worker"]: one["away_since"] is not None for one in seen(group.broker, capsys)["workers"]}
    assert away == {low: False, high: True}
    workers[0].kill()
    eventually(lambda: route()["health"] == "away")
    assert main(["status", "--group", "plant", "--broker", group.broker.url]) == 0
    shown = capsys.readouterr().out
    assert shown.count("away, last seen") == 5 and "Green" not in shown, shown  # two slots, two workers, a route


def test_a_worker_that_was_stopped_leaves_nothing_to_see(group: Group, capsys: pytest.CaptureFixture[str]) -> None:
    group.routes(client_route("Echo", 9, "in"))
    worker = group.start(status_seconds=1).ready()
    eventually(lambda: len(seen(group.broker, capsys)["routes"]) == 1)
    worker.stop()
    found = seen(group.broker, capsys)
    assert (found["workers"], found["routes"]) == ([], [])
    assert [one["worker"] for one in found["slots"]] == [None, None]


def test_the_metrics_of_a_worker_have_its_slots_and_what_cuts_and_a_broker_that_was_away_did(group: Group) -> None:
    with Target(hanging) as target, Relay(group.broker.port) as relay:
        group.routes(client_route("Slow", target.port, "in", config=LOSSLESS))
        worker = group.start(0, admin_port=0, broker=relay.url).ready()
        port = worker.admin_port()

        def shown(*names: str) -> list[float]:
            return [metrics(port)[name] for name in names]

        counts = ("unacknowledged", "redelivered_total", "reconnects_total", "lease_changes_total")
        assert shown('slot_held{slot="0"}', 'slot_held{slot="1"}', *counts) == [1, 1, 0, 0, 0, 2]
        group.client.publish("in", b"held")
        eventually(lambda: shown("unacknowledged") == [1])
        relay.cut(b"plant-0:Slow")
        relay.cut(b"plant-1:Slow")
        eventually(lambda: shown(*counts) == [1, 1, 2, 2])
        assert len(target.requests) == 1
        group.start(1).ready()
        eventually(lambda: shown('slot_held{slot="0"}', 'slot_held{slot="1"}') == [1, 0])
        assert shown("lease_changes_total") == [3]
        group.broker.kill()
        worker.wrote("lost its connection")
        group.broker.start()
        eventually(lambda: shown("reconnects_total") >= [4])

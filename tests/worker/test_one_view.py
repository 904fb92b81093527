"""What is seen of a group from outside: the status of all workers as one, their metrics, and route sets that differ."""

import json
from typing import Any
from urllib.request import urlopen

import pytest

from amqtt_rest_bridge.__main__ import main
from tests.support.http_target import Target, echo
from tests.support.ports import free_port
from tests.support.waiting import eventually
from tests.worker.mosquitto import Mosquitto
from tests.worker.workers import Group, Worker, client_route

pytestmark = pytest.mark.mosquitto

POLL = """
DEFINE ROUTE Poll WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_CLIENT "true" WITH BASE_ADDRESS "http://127.0.0.1:{port}"
    ADD EVENT Ask WITH EVERY "1s" WITH METHOD "GET" WITH ENDPOINT "/"
"""


def start(group: Group, routes: str, slot: int, **settings: Any) -> Worker:
    """Start a worker with routes of its own, in a folder named for how many were started before."""
    path = group.folder / f"own-{len(group.workers)}" / "own.lot"
    path.parent.mkdir()
    path.write_text(routes)
    return group.start(slot, routes=str(path), status_seconds=1, **settings).ready()


def seen(mosquitto: Mosquitto, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["status", "--group", "plant", "--json", "--broker", mosquitto.url]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def metrics(port: int) -> dict[str, float]:
    """Return the metrics of a worker that concern no route."""
    with urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        lines = [line for line in response.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines) if "route=" not in name}


def route_sets(port: int) -> dict[str, float]:
    """Return how many workers have each route set, by its hash, as a worker's metrics have it."""
    start, end = 'rest_bridge_route_sets{hash="', '"}'
    return {
        name.removeprefix(start).removesuffix(end): count
        for name, count in metrics(port).items()
        if name.startswith(start)
    }


def test_the_status_of_a_group_is_one_view_of_its_workers_and_the_dead_are_away(
    group: Group, mosquitto: Mosquitto, capsys: pytest.CaptureFixture[str]
) -> None:
    with Target(echo) as target:
        routes = client_route("Echo", target.port, "in")
        low, high = (start(group, routes, slot).id() for slot in (0, 1))
        eventually(lambda: [one["worker"] for one in seen(mosquitto, capsys)["slots"]] == [low, high])
        client = mosquitto.client().subscribe("results/#")
        for _ in range(10):
            client.publish("in", b"x")
        client.collect(10)
        eventually(lambda: seen(mosquitto, capsys)["routes"][0]["messages"]["succeeded"] == 10)
        (route,) = seen(mosquitto, capsys)["routes"]
        assert (route["health"], route["workers"]) == ("Green", sorted([low, high]))
        group.workers[1].kill()
        eventually(lambda: seen(mosquitto, capsys)["routes"][0]["workers"] == [low])
        away = {one["worker"]: one["away_since"] is not None for one in seen(mosquitto, capsys)["workers"]}
        assert away == {low: False, high: True}
        group.workers[0].kill()
        eventually(lambda: seen(mosquitto, capsys)["routes"][0]["health"] == "away")
        assert main(["status", "--group", "plant", "--broker", mosquitto.url]) == 0
        shown = capsys.readouterr().out
        assert shown.count("away, last seen") == 5 and "Green" not in shown, shown  # two slots, two workers, a route


def test_a_worker_that_was_stopped_leaves_nothing_to_see(
    group: Group, mosquitto: Mosquitto, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = start(group, client_route("Echo", 9, "in"), 0)
    eventually(lambda: len(seen(mosquitto, capsys)["routes"]) == 1)
    assert worker.stop() == 0
    found = seen(mosquitto, capsys)
    assert (found["workers"], found["routes"]) == ([], [])
    assert [one["worker"] for one in found["slots"]] == [None, None]


def test_route_sets_that_differ_are_warned_of_on_every_worker_and_seen_until_they_agree(
    group: Group, mosquitto: Mosquitto, capsys: pytest.CaptureFixture[str]
) -> None:
    echo_route, port = client_route("Echo", 9, "in"), free_port()
    first = start(group, echo_route, 0, admin_port=port)
    second = start(group, echo_route + client_route("More", 9, "more"), 1, reload_seconds=0.1)
    for worker in (first, second):
        worker.wrote("WARNING - route sets differ: ")
    eventually(lambda: list(route_sets(port).values()) == [1, 1])
    sets = seen(mosquitto, capsys)["route_sets"]
    assert sorted(sets.values()) == sorted([[first.id()], [second.id()]])
    assert route_sets(port).keys() == sets.keys()
    (group.folder / "own-1" / "own.lot").write_text(echo_route)
    for worker in (first, second):
        worker.wrote("all workers of group plant have the same routes")
    (same,) = [routes for routes, workers in sets.items() if workers == [first.id()]]
    eventually(lambda: route_sets(port) == {same: 2})


def test_the_metrics_of_a_worker_have_its_slots_and_what_the_broker_sent_again(
    group: Group, mosquitto: Mosquitto
) -> None:
    with Target(echo) as target:
        port = free_port()
        group.routes(client_route("Echo", target.port, "in"))
        worker = group.start(0, admin_port=port).ready()
        found = metrics(port)
        assert [found[f'rest_bridge_slot_held{{slot="{slot}"}}'] for slot in (0, 1)] == [1, 1]
        names = ("unacknowledged", "redelivered_total", "reconnects_total", "lease_changes_total")
        assert [found[f"rest_bridge_{name}"] for name in names] == [0, 0, 0, 2]
        assert list(route_sets(port).values()) == [1]
        group.start(1).ready()
        eventually(lambda: metrics(port)['rest_bridge_slot_held{slot="1"}'] == 0)
        assert metrics(port)["rest_bridge_lease_changes_total"] == 3
        mosquitto.kill()
        worker.line("lost its connection")
        mosquitto.start()
        eventually(lambda: metrics(port)["rest_bridge_reconnects_total"] >= 2)


def test_an_interval_runs_on_the_worker_that_has_the_event_though_another_has_the_lowest_id(group: Group) -> None:
    with Target(echo) as first, Target(echo) as second:
        start(group, POLL.format(port=first.port).replace("Poll", "First"), 0)
        start(group, POLL.format(port=second.port), 1)
        for target in (first, second):
            before = len(target.requests)
            eventually(lambda target=target, before=before: len(target.requests) >= before + 2)  # type: ignore[misc]

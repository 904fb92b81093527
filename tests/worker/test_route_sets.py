"""What follows of route sets that differ: who runs an interval, and what the workers say and show of it."""

import logging
from collections.abc import Iterable

import pytest

from amqtt_rest_bridge.group.leases import GroupView, Presence, parse
from amqtt_rest_bridge.group.overview import Warnings, scheduled_events
from tests.support.http_target import Target
from tests.support.route_text import load_text
from tests.support.waiting import eventually
from tests.worker.relay import Relay
from tests.worker.test_group import POLL
from tests.worker.test_one_view import metrics, seen
from tests.worker.workers import Group, client_route


def presence(worker: str, routes: str = "same", slots: int = 4, names: tuple[str, ...] = ()) -> Presence:
    return Presence(worker, 0, routes, "1", 0, slots, None, names, leaves=False)


def view(**routes: str) -> GroupView:
    """Return a group of workers with the hashes of their routes."""
    return GroupView("a", {worker: presence(worker, one) for worker, one in routes.items()})


def slots_view(**slots: int) -> GroupView:
    """Return a group of workers with their settings `slots`."""
    return GroupView("a", {worker: presence(worker, slots=one) for worker, one in slots.items()})


def test_the_lowest_worker_that_has_an_event_runs_it() -> None:
    events = {"a": ("R/Old",), "b": ("R/Old", "R/New"), "c": ("R/Old", "R/New")}
    group = GroupView("a", {worker: presence(worker, names=names) for worker, names in events.items()})
    assert (group.leader("R/Old"), group.leader("R/New"), group.leader("R/None")) == ("a", "b", None)


def test_a_presence_names_the_events_with_an_interval() -> None:
    routes = load_text(client_route("Echo", 9, "in") + POLL.format(port=9)).routes
    own = presence("a", names=scheduled_events(routes))
    assert own.every == ("Poll/Ask",)
    assert parse(own.payload, Presence) == own
    for replaced in (b', "every": ["Poll/Ask"]', b', "slots": 4', b', "leaves": false'):
        assert parse(own.payload.replace(replaced, b""), Presence) is None
    assert parse(own.payload.replace(b'["Poll/Ask"]', b"1"), Presence) is None


@pytest.mark.parametrize(
    ("groups", "surplus", "lines"),
    [
        pytest.param(
            [view(a="old"), *[view(a="old", b="new")] * 2, view(a="old", b="new", c="new"), *[view(a="old")] * 2], (),
            ["route sets differ: new on b; old on a", "route sets differ: new on b, c; old on a",
             "all workers of group plant have the same routes"],
            id="route sets, at each change and once when they agree",
        ),
        pytest.param(
            [slots_view(a=4, c=4), slots_view(a=4, b=2), slots_view(b=2, a=4), slots_view(a=4, c=4)], (),
            ["slots differ: 2 on b; 4 on a", "all workers of group plant have the same slots"],
            id="slots alike",
        ),
        pytest.param(
            [view(a="same")] * 3, {4, 5},
            ["the broker may keep sessions of slots up to 5 of group plant, which has slots: 4;"],
            id="sessions of slots that are no more, once",
        ),
    ],
)  # fmt: skip
def test_what_workers_warn_of(
    groups: Iterable[GroupView], surplus: set[int], lines: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    warnings = Warnings("plant", 4)
    for second, group in enumerate(groups):
        warnings.check(group, surplus, second)
    assert [found[: len(line)] for found, line in zip(caplog.messages, lines, strict=True)] == lines


def test_what_is_logged_of_many_forged_records_is_bounded_and_on_one_line(caplog: pytest.LogCaptureFixture) -> None:
    warnings = Warnings("plant", 4)
    for number in range(200):
        forged = {f"{worker}\nready: x" * 20: f"hash\n{worker}" * 20 for worker in range(number)}
        warnings.check(view(**forged), (), number / 100)
    assert len(caplog.messages) == 2
    assert all(message.isprintable() and len(message) < 5000 for message in caplog.messages), caplog.messages


@pytest.mark.mosquitto
def test_route_sets_that_differ_are_warned_of_on_every_worker_and_seen_until_they_agree(
    group: Group, capsys: pytest.CaptureFixture[str]
) -> None:
    echo_route = client_route("Echo", 9, "in")
    second_routes = group.folder / "second.lot"
    second_routes.write_text(echo_route + client_route("More", 9, "more"))
    group.routes(echo_route)
    first = group.start(0, admin_port=0).ready()
    second = group.start(1, routes=str(second_routes), reload_seconds=0.1).ready()
    for worker in (first, second):
        worker.wrote("WARNING - route sets differ: ")
    prefix, port = 'route_sets{hash="', first.admin_port()

    def shown() -> dict[str, float]:
        """Return how many workers have each route set, by its hash."""
        return {name[len(prefix) : -2]: count for name, count in metrics(port).items() if name.startswith(prefix)}

    eventually(lambda: list(shown().values()) == [1, 1])
    sets = seen(group.broker, capsys)["route_sets"]
    assert sorted(sets.values()) == sorted([[first.id()], [second.id()]])
    assert shown().keys() == sets.keys()
    second_routes.write_text(echo_route)
    for worker in (first, second):
        worker.wrote("all workers of group plant have the same routes")
    (same,) = [routes for routes, workers in sets.items() if workers == [first.id()]]
    eventually(lambda: shown() == {same: 2})


BOTH = """
DEFINE ROUTE Echo WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_CLIENT "true" WITH BASE_ADDRESS "http://127.0.0.1:{port}"
    ADD EVENT Old WITH SOURCE_TOPIC "old" WITH METHOD "POST" WITH ENDPOINT "/" WITH DESTINATION_TOPIC "results/Echo"
        WITH BODY "{{payload}}"
    ADD EVENT New WITH SOURCE_TOPIC "new" WITH METHOD "POST" WITH ENDPOINT "/" WITH DESTINATION_TOPIC "results/Echo"
        WITH BODY "{{payload}}"
"""


@pytest.mark.mosquitto
def test_messages_of_an_event_that_a_worker_lacks_wait_while_another_has_it_and_are_not_dropped_in_silence(
    group: Group, target: Target
) -> None:
    """They wait over a cut too."""
    both = BOTH.format(port=target.port)
    own = group.folder / "own.lot"
    own.write_text(both.partition("    ADD EVENT New")[0])
    group.routes(both)
    first = group.start(0, slots=1).ready()
    first.kill()  # its session keeps both subscriptions
    with Relay(group.broker.port) as relay:
        second = group.start(0, slots=1, routes=str(own), broker=relay.url, reload_seconds=0.1)
        second.wrote("slot 0 of group plant has lost its worker")
        group.client.publish("new", b"no worker has it")
        second.wrote("no event here takes a message on new; no other worker has one: it is acknowledged")
        third = group.start(0, slots=1)
        for worker in (second, third):
            worker.wrote("WARNING - route sets differ: ")
        group.client.publish("new", b"waits")
        relay.cut(b"plant-0:Echo")
        second.wrote("plant-0:Echo is connected again")
        group.client.publish("old", b"goes on")
        assert group.client.next() == ("results/Echo", b"goes on")
        own.write_text(both)
        assert group.client.next() == ("results/Echo", b"waits")
        assert [seen.body for seen in target.requests] == [b"goes on", b"waits"]

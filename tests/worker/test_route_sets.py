"""What follows of route sets that differ: who runs an interval, and what the workers say of it."""

import logging

import pytest

from amqtt_rest_bridge.group.leases import GroupView, Presence, parse
from amqtt_rest_bridge.group.overview import Warnings, every
from tests.support.http_target import Target, echo
from tests.support.route_text import load_text
from tests.worker.mosquitto import Mosquitto
from tests.worker.test_one_view import POLL, start
from tests.worker.workers import Group, client_route


def view(**workers: tuple[str, tuple[str, ...]]) -> GroupView:
    """Return a group of workers with the hashes of their routes, and their events with EVERY."""
    presences = {
        name: Presence(name, 0, routes, "1", 0, 4, None, events, leaves=False)
        for name, (routes, events) in workers.items()
    }
    return GroupView("a", presences)


def test_the_lowest_worker_that_has_an_event_runs_it() -> None:
    group = view(a=("old", ("R/Old",)), b=("new", ("R/Old", "R/New")), c=("new", ("R/Old", "R/New")))
    assert (group.leader("R/Old"), group.leader("R/New"), group.leader("R/None")) == ("a", "b", None)


def test_a_presence_names_the_events_with_an_interval() -> None:
    routes = load_text(client_route("Echo", 9, "in") + POLL.format(port=9)).routes
    presence = Presence("a", 0, "hash", "1", 0, 4, None, every(routes), False)
    assert presence.every == ("Poll/Ask",)
    assert parse(presence.payload, Presence) == presence
    for replaced in (b', "every": ["Poll/Ask"]', b', "slots": 4', b', "leaves": false'):
        assert parse(presence.payload.replace(replaced, b""), Presence) is None
    assert parse(presence.payload.replace(b'["Poll/Ask"]', b"1"), Presence) is None


def test_sets_that_differ_are_warned_of_at_each_change_and_once_when_they_agree(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    warnings = Warnings("plant", 4)
    both, alone = view(a=("old", ()), b=("new", ())), view(a=("old", ()))
    three = view(a=("old", ()), b=("new", ()), c=("new", ()))
    for second, group in enumerate((alone, both, both, three, alone, alone)):
        warnings.look(group, (), second)
    assert caplog.messages == [
        "route sets differ: new on b; old on a",
        "route sets differ: new on b, c; old on a",
        "all workers of group plant have the same routes",
    ]


def test_slots_that_differ_are_warned_of_like_route_sets(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    four, two, other = (Presence(worker, 0, "same", "1", 0, slots, None, (), False) for worker, slots in SLOTS.items())
    warnings = Warnings("plant", 4)
    for second, workers in enumerate(((four, other), (four, two), (two, four), (four, other))):
        warnings.look(GroupView("a", {one.worker: one for one in workers}), (), second)
    assert caplog.messages == ["slots differ: 2 on b; 4 on a", "all workers of group plant have the same slots"]
    assert parse(four.payload, Presence) == four


def test_what_is_logged_of_many_forged_records_is_bounded_and_on_one_line(caplog: pytest.LogCaptureFixture) -> None:
    warnings = Warnings("plant", 4)
    for number in range(200):
        forged = {f"{worker}\nready: x" * 20: (f"hash\n{worker}" * 20, ()) for worker in range(number)}
        warnings.look(view(**forged), (), number / 100)
    assert len(caplog.messages) == 2
    assert all(message.isprintable() and len(message) < 5000 for message in caplog.messages), caplog.messages


def test_sessions_of_slots_that_are_no_more_are_warned_of_once_with_what_to_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    warnings = Warnings("plant", 2)
    for second in range(3):
        warnings.look(view(a=("same", ())), {2, 3}, second)
    (message,) = caplog.messages
    assert message.startswith("the broker may keep sessions of slots up to 3 of group plant, which has slots: 2;")


SLOTS = {"a": 4, "b": 2, "c": 4}


BOTH = """
DEFINE ROUTE Echo WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_CLIENT "true" WITH BASE_ADDRESS "http://127.0.0.1:{port}"
    ADD EVENT Old WITH SOURCE_TOPIC "old" WITH METHOD "POST" WITH ENDPOINT "/" WITH DESTINATION_TOPIC "results"
        WITH BODY "{{payload}}"
    ADD EVENT New WITH SOURCE_TOPIC "new" WITH METHOD "POST" WITH ENDPOINT "/" WITH DESTINATION_TOPIC "results"
        WITH BODY "{{payload}}"
"""


@pytest.mark.mosquitto
def test_messages_of_an_event_that_a_worker_lacks_wait_while_another_has_it_and_are_not_dropped_in_silence(
    group: Group, mosquitto: Mosquitto
) -> None:
    with Target(echo) as target:
        both = BOTH.format(port=target.port)
        old = both.partition("    ADD EVENT New")[0]
        first = start(group, both, 0, slots=1)
        client = mosquitto.client().subscribe("results")
        first.kill()  # its session keeps both subscriptions
        second = start(group, old, 0, slots=1, adopt_seconds=1, reload_seconds=0.1)
        second.wrote("slot 0 of group plant has lost its worker")
        client.publish("new", b"no worker has it")
        second.wrote("no event here takes a message on new; no other worker has one: it is acknowledged")
        third = start(group, both, 0, slots=1, adopt_seconds=1)
        for worker in (second, third):
            worker.wrote("WARNING - route sets differ: ")
        client.publish("new", b"waits")
        client.publish("old", b"goes on")
        assert client.next() == ("results", b"goes on")
        (group.folder / "own-1" / "own.lot").write_text(both)
        assert client.next() == ("results", b"waits")
        assert [seen.body for seen in target.requests] == [b"goes on", b"waits"]

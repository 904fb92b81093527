"""What follows of route sets that differ: who runs an interval, and what the workers say of it."""

import logging

import pytest

from amqtt_rest_bridge.worker.group import RouteSets, every
from amqtt_rest_bridge.worker.leases import GroupView, Presence, parse_presence
from tests.support.route_text import load_text
from tests.worker.test_one_view import POLL
from tests.worker.workers import client_route


def view(**workers: tuple[str, tuple[str, ...]]) -> GroupView:
    """Return a group of workers with the hashes of their routes, and their events with EVERY."""
    presences = {name: Presence(name, 0, routes, "1", 0, None, events) for name, (routes, events) in workers.items()}
    return GroupView("a", presences, {})


def test_the_lowest_worker_that_has_an_event_runs_it() -> None:
    group = view(a=("old", ("R/Old",)), b=("new", ("R/Old", "R/New")), c=("new", ("R/Old", "R/New")))
    assert (group.leader("R/Old"), group.leader("R/New"), group.leader("R/None")) == ("a", "b", None)


def test_a_presence_names_the_events_with_an_interval_and_those_without_a_list_have_none() -> None:
    routes = load_text(client_route("Echo", 9, "in") + POLL.format(port=9)).routes
    presence = Presence("a", 0, "hash", "1", 0, None, every(routes))
    assert presence.every == ("Poll/Ask",)
    assert parse_presence(presence.payload) == presence
    before = presence.payload.replace(b', "every": ["Poll/Ask"]', b"")
    assert (found := parse_presence(before)) is not None and found.every == ()
    assert parse_presence(presence.payload.replace(b'["Poll/Ask"]', b"1")) is None


def test_sets_that_differ_are_warned_of_at_each_change_and_once_when_they_agree(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    sets = RouteSets("plant")
    both, alone = view(a=("old", ()), b=("new", ())), view(a=("old", ()))
    for group in (alone, both, both, view(a=("old", ()), b=("new", ()), c=("new", ())), alone, alone):
        sets.changed(group)
    assert caplog.messages == [
        "route sets differ: new on b; old on a",
        "route sets differ: new on b, c; old on a",
        "all workers of group plant have the same routes",
    ]

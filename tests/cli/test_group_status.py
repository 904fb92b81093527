"""`rest-bridge status --group`: the records of a group as one view, whatever is retained there."""

import json
import re
from typing import Any

import pytest
from rich.console import Console

from amqtt_rest_bridge.cli import status_table
from amqtt_rest_bridge.cli.status import parse_status
from amqtt_rest_bridge.group.leases import Lease, Presence
from amqtt_rest_bridge.group.overview import GroupNotices, GroupOverview, merge
from amqtt_rest_bridge.times import rfc3339
from tests.cli.test_status_table import status

NOW = 1_000_000_000.0


def lease(worker: str, since: float = NOW) -> bytes:
    return Lease(worker, NOW + 30, "aaaa", "1.0", 1, since).payload


def presence(worker: str, routes: str = "aaaa", until: float = NOW + 30) -> bytes:
    return Presence(worker, until, routes, "1.0", NOW - 60, 4, None, (), False).payload


def overview(records: dict[str, bytes], *later: tuple[str, bytes]) -> GroupOverview:
    """Take records that were retained, then some that come a second later."""
    group = GroupNotices("plant")
    for topic, payload in records.items():
        group.receive(f"bridge/plant/{topic}", payload, parse_status(payload), NOW)
    for topic, payload in later:
        group.receive(f"bridge/plant/{topic}", payload, parse_status(payload), NOW + 1)
    return group.overview(NOW + 1)


def of_route(**members: Any) -> bytes:
    return json.dumps(status("Echo") | {"timestamp": rfc3339(NOW)} | members).encode()


def shown(group: GroupOverview, width: int = 100) -> list[str]:
    console = Console(width=width, highlight=False)
    with console.capture() as captured:
        console.print(status_table.group_tables(group))
    return [line.rstrip() for line in captured.get().splitlines()]


TWO = {
    "0/lease": lease("a"),
    "1/lease": lease("b", NOW - 5),
    "workers/a/presence": presence("a"),
    "workers/b/presence": presence("b"),
    "workers/a/routes/Echo/status": of_route(health="Green"),
    "workers/b/routes/Echo/status": of_route(health="Yellow"),
}


def test_slots_have_their_holders_and_routes_are_one_for_all_workers() -> None:
    group = overview(TWO)
    assert [(one.slot, one.worker, one.since, one.away_since) for one in group.slots] == [
        (0, "a", rfc3339(NOW), None), (1, "b", rfc3339(NOW - 5), None),
    ]  # fmt: skip
    assert [(one.worker, one.routes, one.away_since) for one in group.workers] == [
        (name, "aaaa", None) for name in "ab"
    ]
    (route,) = group.routes
    assert (route["health"], route["workers"]) == ("Yellow", ["a", "b"])
    assert not any("differ" in line for line in shown(group))


@pytest.mark.parametrize(
    "gone", [pytest.param({"workers/b/presence": b""}, id="its will"), pytest.param({}, id="expired at the broker")]
)
def test_a_worker_that_is_gone_is_away_with_its_slots_and_its_routes_are_those_of_the_others(
    gone: dict[str, bytes],
) -> None:
    records = TWO if gone else {topic: record for topic, record in TWO.items() if topic != "workers/b/presence"}
    group = overview(records, *gone.items())
    since = rfc3339(NOW + 1 if gone else NOW)  # the time of its last status
    assert [one.away_since for one in group.slots] == [None, since]
    assert [one.away_since for one in group.workers] == [None, since]
    (route,) = group.routes
    assert (route["health"], route["workers"]) == ("Green", ["a"])
    assert any(re.match("1 +b +away, last seen ", line) for line in shown(group))


def test_a_worker_that_falls_silent_while_it_is_watched_is_away_whatever_its_clock_says() -> None:
    group = GroupNotices("plant")
    group.receive("bridge/plant/workers/a/presence", presence("a", until=NOW - 3600), None, NOW)
    for seconds, away_since in ((1, None), (30, None), (40, rfc3339(NOW + 30))):
        assert [one.away_since for one in group.overview(NOW + seconds).workers] == [away_since]


def test_a_route_whose_workers_are_all_away_is_never_green() -> None:
    (route,) = overview({"workers/b/routes/Echo/status": of_route(health="Green")}).routes
    assert (route["health"], route["away_since"], route["workers"]) == ("away", rfc3339(NOW), [])


def test_a_slot_that_was_released_has_no_holder() -> None:
    group = overview({"0/lease": lease(""), "workers/a/presence": presence("a")})
    assert [(one.worker, one.since) for one in group.slots] == [(None, None)]
    assert shown(group)[1].split() == ["0", "none", "-"]


def test_route_sets_that_differ_are_named_with_their_workers() -> None:
    group = overview(TWO | {"workers/b/presence": presence("b", "bbbb")})
    assert group.to_json()["route_sets"] == {"aaaa": ["a"], "bbbb": ["b"]}
    assert "route sets differ: aaaa on a; bbbb on b" in shown(group)


def test_nothing_is_cut_in_a_console_of_50_columns() -> None:
    worker = "a-host-with-a-long-name-in-a-large-factory-0123abcd"
    group = overview({"0/lease": lease(worker), f"workers/{worker}/presence": presence(worker)})
    lines = shown(group, width=50)
    assert "".join(line.split("  ")[0].strip() for line in lines).count(worker) == 1
    assert "".join(line[6:].split("  ")[0].strip() for line in lines).count(worker) == 1


def test_counts_are_sums_latencies_the_slowest_and_the_error_is_the_newest() -> None:
    first = status("Echo") | {
        "messages": {"total": 2, "failed": 1},
        "latency_ms": {"p99": 5.0},
        "connection": "failing",
    }
    second = status("Echo") | {"messages": {"total": 3, "queued": 4}, "latency_ms": {"p99": None}, "connection": "idle"}
    first |= {"health": "Green", "last_error": {"time": "2026-01-01T00:00:00Z", "code": "old"}}
    second |= {"health": "Red", "last_error": {"time": "2026-01-02T00:00:00Z", "code": "new"}}
    merged = merge([first, second])
    assert merged["messages"] == {"total": 5, "failed": 1, "queued": 4}
    assert merged["latency_ms"] == {"p99": 5.0}
    assert (merged["health"], merged["connection"], merged["last_error"]["code"]) == ("Red", "failing", "new")


@pytest.mark.parametrize("payload", [b"", b"1", b"{}", b'{"name": "x"}', b'{"worker": 1}', b"[" * 5000, b"\xff"])
def test_what_is_not_a_record_is_passed_over(payload: bytes) -> None:
    topics = [
        "0/lease",
        "-1/lease",
        "x/lease",
        "0/0/lease",
        "workers/a/presence",
        "workers/presence",
        "workers/a/routes",
    ]
    group = overview(dict.fromkeys(topics, payload), ("workers/a/presence", payload))
    assert (group.slots, group.workers, group.routes) == ([], [], [])
    overview({"workers/a/routes/Echo/status": payload})


def test_numbers_that_are_not_times_are_shown_as_none() -> None:
    group = overview({"0/lease": Lease("a", 1e300, "r", "1", 1, 1e300).payload, "workers/a/presence": presence("a")})
    assert group.slots[0].since is None

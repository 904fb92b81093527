"""The bad days of a group behind a relay that stalls its connections to the broker and cuts them."""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from amqtt_rest_bridge.times import Backoff
from tests.support.http_target import Peer, Target, reply
from tests.support.waiting import eventually
from tests.worker.mosquitto import Mosquitto
from tests.worker.relay import Relay
from tests.worker.test_rolling_http import Callers, server_route
from tests.worker.workers import (
    LOSSLESS,
    TOPICS,
    Group,
    Worker,
    client_route,
    in_order,
    ordered_topic,
    publish_all,
    slowly,
    wait_for_calls,
)

pytestmark = pytest.mark.mosquitto

SOON = {"amqtt_rest_bridge.mqtt.reconnecting._BACKOFF": Backoff(0.1, 0.2)}
"""A worker that connects again at once, so that a test can cut it often."""
SESSIONS = b"plant-0:", b"plant-1:"
"""The client ids of slots. A worker whose first connection, that for records, is lost while it starts ends."""
PUBACK_BYTES = 4
CAPACITY = 50
BOUNDED = f"{LOSSLESS} WITH OVERLOAD_CAPACITY {CAPACITY}"


@pytest.fixture
def relay(mosquitto: Mosquitto) -> Iterator[Relay]:
    with Relay(mosquitto.port, keeps=True) as between:
        yield between


def start(group: Group, relay: Relay, slot: int = 0, **settings: Any) -> Worker:
    return group.start(slot, constants=SOON, broker=relay.url, **settings)


def called_again(relay: Relay) -> int:
    """Return how many messages may be called again: those whose PUBACK was lost, with the relay or in a worker.

    A worker loses as many at a cut as its route holds. The relay may lose more: Mosquitto 2.0.11 does not stop at
    Receive Maximum, so that a worker goes on with what it has in its socket while the connection stalls.
    """
    return relay.lost // PUBACK_BYTES + CAPACITY * relay.cuts


def places_sent(relay: Relay, route: str, slots: int = 2) -> dict[int, int]:
    """Return the place at which the broker first sent each message to the session of the slot that calls it.

    Mosquitto 2.0.11 at times sends a message that is published soon after a client is connected again before 200 older
    ones of its topic, which it has never sent.
    """
    places: dict[int, int] = {}
    for slot in range(slots):
        for message in relay.published(f"plant-{slot}:{route}".encode()):
            if crc32(message.topic.encode()) % slots == slot:
                places.setdefault(int(message.payload), len(places))
    return places


def check_first_calls(target: Target, count: int, *, doubled: int, places: Mapping[int, int] | None = None) -> None:
    """None was lost, those of a topic were called in their order, and few again.

    With the `places` at which the broker sent them, those may be called early that it sent early.
    """
    called = [int(seen.body) for seen in target.requests]
    assert set(called) == set(range(count)), f"{count - len(set(called))} lost"
    assert len(called) - count <= doubled, Counter(called).most_common(5)
    first = list(dict.fromkeys(called))
    of_topics = [[number for number in first if number % TOPICS == topic] for topic in range(TOPICS)]
    unsorted = (numbers for numbers in of_topics if numbers != sorted(numbers))
    early = [(newer, older) for numbers in unsorted for newer, older in combinations(numbers, 2) if older < newer]
    print(f"{len(early)} times a message was called before an older one")
    assert [one for one in early if places is None or places[one[1]] < places[one[0]]] == []


@pytest.mark.parametrize("waiting", [800, pytest.param(60_000, marks=pytest.mark.long)])
def test_a_backlog_is_worked_off_in_order_over_stalls_and_cuts(
    group: Group, relay: Relay, target: Target, waiting: int
) -> None:
    group.routes(in_order(target, config=BOUNDED))
    group.start().ready().stop()
    publish_all(group.client, ordered_topic, range(waiting))
    with relay.disturbing(0.2, *SESSIONS):
        start(group, relay)
        wait_for_calls(target, waiting, 30 + waiting / 100)
    check_first_calls(target, waiting, doubled=called_again(relay))


@pytest.mark.parametrize("count", [400, pytest.param(10_000, marks=pytest.mark.long)])
def test_hand_overs_over_stalls_and_cuts_lose_and_disorder_nothing(group: Group, relay: Relay, count: int) -> None:
    """A second worker joins, the first one stops, a third one joins and the second one stops."""
    with Target(slowly(0.005)) as target:
        group.routes(in_order(target, config=BOUNDED, timeout=2))
        first = start(group, relay).ready()
        quarters = [range(start, start + count // 4) for start in range(0, count, count // 4)]
        with relay.disturbing(0.2, *SESSIONS):
            publish_all(group.client, ordered_topic, quarters[0])
            second = start(group, relay, 1).ready()
            publish_all(group.client, ordered_topic, quarters[1])
            relay.cut(first.id().encode())
            first.wrote(f"plant-{first.id()} is connected again")
            first.stop()
            publish_all(group.client, ordered_topic, quarters[2])
            start(group, relay, 0).ready()
            publish_all(group.client, ordered_topic, quarters[3])
            second.stop()
        wait_for_calls(target, count, 60)
        check_first_calls(target, count, doubled=called_again(relay), places=places_sent(relay, "InOrder"))


def test_a_fresh_group_with_one_of_four_slots_up_misses_nothing_that_comes_while_it_is_cut_off(
    group: Group, relay: Relay, target: Target
) -> None:
    """The first worker holds all slots, so every subscription exists from the beginning."""
    group.routes(in_order(target, config=""))
    start(group, relay, 3, slots=4).ready()
    relay.stall()
    publish_all(group.client, ordered_topic, range(40))
    relay.cut()
    publish_all(group.client, ordered_topic, range(40, 80))
    wait_for_calls(target, 80)
    check_first_calls(target, 80, doubled=0)


def test_workers_of_which_one_is_cut_off_stay_within_the_rate_of_the_group(group: Group, relay: Relay) -> None:
    """The others take its part once it has been silent for `adopt_seconds`, when it begins no call any more."""
    rate, count = 30, 60
    arrived: list[float] = []

    def script(peer: Peer) -> None:
        while peer.request() is not None:
            arrived.append(time.monotonic())
            peer.send(reply(b""))

    with Target(script) as target:
        paced = f'{LOSSLESS} WITH RATE_LIMIT "{rate}/s"'
        group.routes(client_route("Paced", target.port, "in/+", config=paced))
        stalled = start(group, relay, 0, slots=3, adopt_seconds=2).ready()
        others = [group.start(slot, slots=3, adopt_seconds=2).ready() for slot in (1, 2)]
        for worker in (stalled, *others):
            worker.wrote("each RATE_LIMIT is shared by 3 workers")
        publish_all(group.client, lambda number: f"in/{number}", range(count))
        eventually(lambda: len(arrived) > count // 4)
        relay.stall()
        wait_for_calls(target, count)
        relay.resume()
        others[0].stop()
        others[1].wrote("each RATE_LIMIT is shared by 2 workers")
    most = max(sum(begin <= moment < begin + 1 for moment in arrived) for begin in arrived)
    assert most <= rate + 3 + 3  # each worker may begin one at once, and again with its new part


def test_a_stop_of_a_worker_that_has_just_been_cut_off_has_others_take_over(
    group: Group, relay: Relay, target: Target
) -> None:
    """Its will has named its slots as free; `adopt_seconds` is 30."""
    group.routes(in_order(target, timeout=1))
    first, second = start(group, relay, 0).ready(), group.start(1, constants=SOON).ready()
    second.wrote("is taken here")
    relay.cut()
    first.send(signal.SIGTERM)
    publish_all(group.client, ordered_topic, range(40))
    wait_for_calls(target, 40, 20)
    first.ended()
    check_first_calls(target, 40, doubled=0)


def test_http_callers_get_200_for_what_the_broker_has_over_cuts_and_a_rolling_restart(
    group: Group, relay: Relay, unused_port: int
) -> None:
    """503 while a worker is cut off, and nothing else; each 200 is a message."""
    group.routes(server_route(unused_port))
    watcher = group.broker.client("watcher").subscribe("hooks")
    running = [start(group, relay, slot).ready() for slot in (0, 1)]
    callers = Callers(unused_port, 1, 1, 1_000_000, 1_000_000)
    for slot in (1, 0):
        relay.cut()
        running[slot].stop()
        running[slot] = start(group, relay, slot).ready()
    callers.stop()
    assert set(callers.failures) <= {503}
    watcher.collect(callers.answered)


def test_a_worker_that_is_heard_and_hears_nothing_leaves_its_slots_to_others(tmp_path: Path, target: Target) -> None:
    """Who runs the broker forbids one user to read the records, and lets it publish them."""
    acl = tmp_path / "acl"
    acl.write_text("topic readwrite #\nuser deaf\ntopic readwrite #\n")
    quick = {**SOON, "amqtt_rest_bridge.mqtt.connection.KEEP_ALIVE_SECONDS": 2}
    with Mosquitto(tmp_path, f"acl_file {acl}\n") as broker, Group(tmp_path, broker) as group:
        group.routes(in_order(target, timeout=1))
        url = broker.url.replace("mqtt://", "mqtt://deaf@")
        deaf = group.start(0, constants=quick, adopt_seconds=3, broker=url).ready()
        other = group.start(1, constants=quick, adopt_seconds=3).ready()
        other.wrote("slot 1 of group plant is taken here")
        acl.write_text("topic readwrite #\nuser deaf\ntopic write #\ntopic readwrite in/#\n")
        os.kill(broker.pid, signal.SIGHUP)
        deaf.wrote("group plant does not hear this worker: its slots are left to others")
        other.wrote("slot 0 of group plant has lost its worker")
        publish_all(broker.client(), ordered_topic, range(40))
        wait_for_calls(target, 40)

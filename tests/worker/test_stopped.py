"""Processes of a worker that are stopped (SIGSTOP) and go on: their ORDERED calls keep their order, nothing is lost."""

import os
import signal
import threading
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

import pytest

from tests.support.http_target import Peer, Target, reply
from tests.support.waiting import eventually
from tests.worker.mosquitto import Mosquitto
from tests.worker.test_handing_over import ORDERED, TOPICS, are_called, check, ordered_topic, publish_all
from tests.worker.workers import LOSSLESS, Group, Worker, client_route

pytestmark = pytest.mark.mosquitto

PARTS = ["worker", "bridge process", "both"]


def slowly(peer: Peer) -> None:
    """Answer each request after 40 ms, so that few are about to be sent when their process is stopped.

    And so that the bridge process of a stopped worker has calls left when its lease ends: 300 on 4 topics take 3 s.
    """
    while (seen := peer.request()) is not None:
        peer.server.stopping.wait(0.04)
        peer.send(reply(seen.body))


def processes(worker: Worker, part: str) -> list[int]:
    """Return the processes of a part, the bridge process first: it goes on before its worker does."""
    return (worker.children() if part != "worker" else []) + ([worker.process.pid] if part != "bridge process" else [])


def send(number: signal.Signals, pids: Iterable[int]) -> None:
    for pid in pids:
        os.kill(pid, number)


def steps_back(numbers: Iterable[int]) -> dict[int, int]:
    """Return how often the numbers of each topic go back."""
    by_topic: dict[int, list[int]] = defaultdict(list)
    for number in numbers:
        by_topic[number % TOPICS].append(number)
    return {topic: sum(second < first for first, second in pairwise(own)) for topic, own in by_topic.items()}


@pytest.mark.parametrize("part", ["worker", "both"])
@pytest.mark.parametrize("count", [600, pytest.param(1600, marks=pytest.mark.long)])
def test_what_is_stopped_beyond_its_lease_begins_no_ordered_call_until_its_worker_knows_its_slots(
    group: Group, mosquitto: Mosquitto, part: str, count: int
) -> None:
    with Target(slowly) as target:
        group.routes(client_route("InOrder", target.port, "in/+", config=LOSSLESS, event=ORDERED, timeout=1))
        workers = [group.start(slot, slots=4, adopt_seconds=2).ready() for slot in (0, 1)]
        client = mosquitto.client("publisher")
        publish_all(client, ordered_topic, range(count))
        eventually(lambda: len(target.requests) > 50, "nothing is called")
        stopped = processes(workers[0], part)
        send(signal.SIGSTOP, stopped)
        workers[1].wrote("has lost its worker and is taken here")
        eventually(are_called(target, count), "not all were called", 60)
        # The second worker repeats what the first one could not acknowledge, and the first one calls none beside it.
        back = steps_back(int(seen.body) for seen in target.requests)
        assert max(back.values()) <= 1, back
        before = len(target.requests)
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
            threading.Event().wait(0.5)
        gone = "was taken by another worker", "are left to others"
        eventually(lambda: any(text in line for line in workers[0].lines for text in gone), "it has kept its slots")
        publish_all(client, ordered_topic, range(count, count + 100))
        eventually(are_called(target, count + 100), "not all were called", 60)
        assert not any("has lost its worker" in line for line in workers[0].lines), "it took slots of one that lives"
        assert [worker.stop() for worker in workers] == [0, 0]
        after = [int(seen.body) for seen in target.requests[before:]]
        late = [number for number in after if number < count]  # that were about to be sent
        assert len(late) <= TOPICS, late
        assert max(steps_back(dict.fromkeys(number for number in after if number >= count)).values()) == 0


@pytest.mark.parametrize("part", PARTS)
def test_what_is_stopped_within_its_lease_goes_on_as_if_nothing_was(
    group: Group, mosquitto: Mosquitto, part: str
) -> None:
    with Target(slowly) as target:
        group.routes(client_route("InOrder", target.port, "in/+", config=LOSSLESS, event=ORDERED, timeout=2))
        workers = [group.start(slot, adopt_seconds=30).ready() for slot in (0, 1)]
        publish_all(mosquitto.client("publisher"), ordered_topic, range(240))
        eventually(lambda: len(target.requests) > 50, "nothing is called")
        stopped = processes(workers[0], part)
        send(signal.SIGSTOP, stopped)
        threading.Event().wait(1)
        send(signal.SIGCONT, stopped)
        eventually(are_called(target, 240), "not all were called", 60)
        assert [worker.stop() for worker in workers] == [0, 0]
        check(target, 240)


def test_a_bridge_process_that_is_stopped_for_longer_than_a_lease_goes_on_in_order(
    group: Group, mosquitto: Mosquitto
) -> None:
    """Its worker lives, and keeps the slots."""
    with Target(slowly) as target:
        group.routes(client_route("InOrder", target.port, "in/+", config=LOSSLESS, event=ORDERED, timeout=2))
        worker = group.start(adopt_seconds=2).ready()
        publish_all(mosquitto.client("publisher"), ordered_topic, range(240))
        eventually(lambda: len(target.requests) > 50, "nothing is called")
        stopped = processes(worker, "bridge process")
        send(signal.SIGSTOP, stopped)
        threading.Event().wait(3)
        send(signal.SIGCONT, stopped)
        eventually(are_called(target, 240), "not all were called", 60)
        assert worker.stop() == 0
        check(target, 240)

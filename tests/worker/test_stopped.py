"""Processes of a worker that are stopped (SIGSTOP) and go on: their ORDERED calls keep their order, nothing is lost."""

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
from tests.worker.workers import LOSSLESS, Group, client_route

pytestmark = pytest.mark.mosquitto


def slowly(peer: Peer) -> None:
    """Answer each request after 40 ms, so that few are about to be sent when their process is stopped.

    And so that a worker that was stopped has calls left when its lease ends: 300 on 4 topics take 3 s.
    """
    while (seen := peer.request()) is not None:
        peer.server.stopping.wait(0.04)
        peer.send(reply(seen.body))


def steps_back(numbers: Iterable[int]) -> dict[int, int]:
    """Return how often the numbers of each topic go back."""
    by_topic: dict[int, list[int]] = defaultdict(list)
    for number in numbers:
        by_topic[number % TOPICS].append(number)
    return {topic: sum(second < first for first, second in pairwise(own)) for topic, own in by_topic.items()}


@pytest.mark.parametrize("count", [600, pytest.param(1600, marks=pytest.mark.long)])
def test_what_is_stopped_beyond_its_lease_begins_no_ordered_call_until_its_worker_knows_its_slots(
    group: Group, mosquitto: Mosquitto, count: int
) -> None:
    with Target(slowly) as target:
        group.routes(client_route("InOrder", target.port, "in/+", config=LOSSLESS, event=ORDERED, timeout=1))
        workers = [group.start(slot, slots=4, adopt_seconds=2).ready() for slot in (0, 1)]
        client = mosquitto.client("publisher")
        publish_all(client, ordered_topic, range(count))
        eventually(lambda: len(target.requests) > 50, "nothing is called")
        workers[0].send(signal.SIGSTOP)
        workers[1].wrote("has lost its worker and is taken here")
        eventually(are_called(target, count), "not all were called", 60)
        # The second worker repeats what the first one could not acknowledge, and the first one calls none beside it.
        back = steps_back(int(seen.body) for seen in target.requests)
        assert max(back.values()) <= 1, back
        before = len(target.requests)
        workers[0].send(signal.SIGCONT)
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


def test_what_is_stopped_within_its_lease_goes_on_as_if_nothing_was(group: Group, mosquitto: Mosquitto) -> None:
    with Target(slowly) as target:
        group.routes(client_route("InOrder", target.port, "in/+", config=LOSSLESS, event=ORDERED, timeout=2))
        workers = [group.start(slot, adopt_seconds=30).ready() for slot in (0, 1)]
        publish_all(mosquitto.client("publisher"), ordered_topic, range(240))
        eventually(lambda: len(target.requests) > 50, "nothing is called")
        workers[0].send(signal.SIGSTOP)
        threading.Event().wait(1)
        workers[0].send(signal.SIGCONT)
        eventually(are_called(target, 240), "not all were called", 60)
        assert [worker.stop() for worker in workers] == [0, 0]
        check(target, 240)

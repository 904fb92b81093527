"""SIGTERM to a worker while messages come, and a bridge process that is killed while a worker starts."""

import threading
from functools import partial

import pytest

from tests.support.http_target import Target, echo
from tests.support.waiting import eventually
from tests.worker.mosquitto import Mosquitto
from tests.worker.workers import Group, client_route

pytestmark = pytest.mark.mosquitto

COUNT = 200  # messages of a round


def has_requests(target: Target, count: int) -> bool:
    return len(target.requests) >= count


@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.long)])
def test_every_message_has_a_result_although_workers_stop_in_the_middle(
    group: Group, mosquitto: Mosquitto, rounds: int
) -> None:
    with Target(echo) as target:
        group.routes(client_route("Echo", target.port, "in"))
        watcher = mosquitto.client("watcher").subscribe("results/#")
        publisher = mosquitto.client("publisher")
        for number in range(rounds):
            worker = group.start(slots=1).ready()
            enough = len(target.requests) + COUNT // 4

            def publish(first: int = number * COUNT) -> None:
                for one in range(first, first + COUNT):
                    publisher.publish("in", b"%d" % one, wait=False)

            publishing = threading.Thread(target=publish)
            publishing.start()
            eventually(partial(has_requests, target, enough))
            assert worker.stop() == 0, "\n".join(worker.lines)
            publishing.join()
        group.start(slots=1).ready()
        left = {b"%d" % one for one in range(rounds * COUNT)}
        while left:
            left.discard(watcher.next()[1])
        repeated = len(target.requests) - rounds * COUNT
    assert repeated == 0  # what a worker that stops has been answered is acknowledged, and not sent again


def test_a_worker_that_is_stopped_while_it_starts_ends_gracefully(group: Group) -> None:
    group.routes(client_route("Echo", 1, "in"))
    worker = group.start()
    worker.wrote("event loop")
    assert worker.stop() == 0
    assert any("SIGTERM: shutting down" in line for line in worker.lines), "\n".join(worker.lines)

"""SIGTERM to a worker, while messages come and while it starts."""

import threading

import pytest

from tests.support.http_target import Target
from tests.worker.workers import Group, client_route, publish_all, wait_for_calls

pytestmark = pytest.mark.mosquitto

COUNT = 200  # messages of a round


@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.long)])
def test_every_message_has_a_result_although_workers_stop_in_the_middle(
    group: Group, target: Target, rounds: int
) -> None:
    group.routes(client_route("Echo", target.port, "in"))
    publisher = group.broker.client("publisher")
    left = {b"%d" % one for one in range(rounds * COUNT)}
    for number in range(rounds):
        worker = group.start(slots=1).ready()
        numbers = range(number * COUNT, (number + 1) * COUNT)
        publishing = threading.Thread(target=publish_all, args=(publisher, lambda _: "in", numbers))
        publishing.start()
        wait_for_calls(target, len(target.requests) + COUNT // 4)
        worker.stop()
        publishing.join()
    group.start(slots=1).ready()
    while left:
        left.discard(group.client.next()[1])
    assert len(target.requests) == rounds * COUNT  # what was answered is acknowledged, and not sent again


def test_a_worker_that_is_stopped_while_it_starts_ends_gracefully(group: Group) -> None:
    group.routes(client_route("Echo", 1, "in"))
    worker = group.start()
    worker.wrote("event loop")
    worker.stop()
    assert worker.has_written("SIGTERM: shutting down"), "\n".join(worker.lines)

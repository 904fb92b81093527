"""Processes of a worker that are stopped (SIGSTOP) and go on: their ORDERED calls keep their order, nothing is lost."""

import signal
import threading

import pytest

from tests.support.http_target import Target
from tests.support.waiting import eventually
from tests.worker.workers import (
    TOPICS,
    Group,
    check,
    in_order,
    ordered_topic,
    publish_all,
    slowly,
    steps_back,
    wait_for_calls,
)

pytestmark = pytest.mark.mosquitto

CALL_SECONDS = 0.04
"""Few calls are about to be sent when their process is stopped, and some are left when its lease ends."""


@pytest.mark.parametrize("count", [600, pytest.param(1600, marks=pytest.mark.long)])
def test_what_is_stopped_beyond_its_lease_begins_no_ordered_call_until_its_worker_knows_its_slots(
    group: Group, count: int
) -> None:
    with Target(slowly(CALL_SECONDS)) as target:
        group.routes(in_order(target, timeout=1))
        stopped, other = workers = [group.start(slot, slots=4, adopt_seconds=2).ready() for slot in (0, 1)]
        publish_all(group.client, ordered_topic, range(count))
        eventually(lambda: len(target.requests) > 50, "nothing is called")
        stopped.send(signal.SIGSTOP)
        other.wrote("has lost its worker and is taken here")
        wait_for_calls(target, count, 60)
        # The other worker repeats what the stopped one could not acknowledge, and that one calls none beside it.
        back = steps_back([int(seen.body) for seen in target.requests])
        assert all(len(steps) <= 1 for steps in back.values()), back
        before = len(target.requests)
        stopped.send(signal.SIGCONT)
        stopped.wrote("was taken by another worker", "are left to others")
        publish_all(group.client, ordered_topic, range(count, count + 100))
        wait_for_calls(target, count + 100, 60)
        assert not stopped.has_written("has lost its worker"), "it took slots of one that lives"
        for worker in workers:
            worker.stop()
        after = [int(seen.body) for seen in target.requests[before:]]
        late = [number for number in after if number < count]  # that were about to be sent
        assert len(late) <= TOPICS, late
        assert not any(steps_back(list(dict.fromkeys(number for number in after if number >= count))).values())


def test_what_is_stopped_within_its_lease_goes_on_as_if_nothing_was(group: Group) -> None:
    with Target(slowly(CALL_SECONDS)) as target:
        group.routes(in_order(target, timeout=2))
        workers = [group.start(slot, adopt_seconds=30).ready() for slot in (0, 1)]
        publish_all(group.client, ordered_topic, range(240))
        eventually(lambda: len(target.requests) > 50, "nothing is called")
        workers[0].send(signal.SIGSTOP)
        threading.Event().wait(1)
        workers[0].send(signal.SIGCONT)
        wait_for_calls(target, 240, 60)
        for worker in workers:
            worker.stop()
        check(target, 240)

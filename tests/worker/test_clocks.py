"""Workers on machines whose clocks are wrong: no slot is taken from its holder, none is left without one."""

from collections import Counter
from typing import Any

import pytest

from tests.support.clock import WrongClock
from tests.support.http_target import Target
from tests.support.waiting import eventually
from tests.worker.test_one_view import seen
from tests.worker.workers import Group, check, in_order, ordered_topic, publish_all, wait_for_calls

pytestmark = pytest.mark.mosquitto


def test_workers_whose_clocks_are_an_hour_off_share_the_slots_and_take_those_of_the_dead(
    group: Group, target: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    group.routes(in_order(target, timeout=1))
    first, *others = workers = [
        group.start(slot, slots=3, status_seconds=1, constants={"time.time": WrongClock(3600 * hours)}).ready()
        for slot, hours in enumerate((0, -1, 1))
    ]
    ids = [worker.id() for worker in workers]

    def shown(what: str, key: str) -> list[Any]:
        return [one[key] for one in seen(group.broker, capsys)[what]]

    eventually(lambda: shown("slots", "worker") == ids)
    publish_all(group.client, ordered_topic, range(200))
    wait_for_calls(target, 200)
    assert shown("workers", "worker") == sorted(ids)
    assert shown("workers", "away_since") == shown("slots", "away_since") == [None] * 3
    assert shown("routes", "workers") == [sorted(ids)]
    assert not any(worker.has_written("lost its worker", "was taken by another") for worker in workers)
    check(target, 200)
    for worker in others:
        worker.kill()
    for slot in (1, 2):
        first.wrote(f"slot {slot} of group plant has lost its worker")
    publish_all(group.client, ordered_topic, range(200, 300))
    wait_for_calls(target, 300)
    eventually(lambda: Counter(shown("slots", "worker")) == {ids[0]: 3})
    away = dict(zip(shown("workers", "worker"), shown("workers", "away_since"), strict=True))
    assert [one for one in away if away[one] is None] == ids[:1] and away.keys() == set(ids)
    check(target, 300, doubled=64)  # what a killed worker had not acknowledged

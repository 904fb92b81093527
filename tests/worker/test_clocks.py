"""Workers on machines whose clocks are wrong: no slot is taken from its holder, none is left without one."""

from collections import Counter

import pytest

from tests.support.clock import WrongClock
from tests.support.http_target import Target, echo
from tests.support.waiting import eventually
from tests.worker.mosquitto import Mosquitto
from tests.worker.test_handing_over import ORDERED, are_called, check, ordered_topic, publish_all
from tests.worker.test_one_view import seen
from tests.worker.workers import LOSSLESS, Group, client_route

pytestmark = pytest.mark.mosquitto

HOURS = (0, -1, 1)


def test_workers_whose_clocks_are_an_hour_off_share_the_slots_and_take_those_of_the_dead(
    group: Group, mosquitto: Mosquitto, capsys: pytest.CaptureFixture[str]
) -> None:
    with Target(echo) as target:
        group.routes(client_route("InOrder", target.port, "in/+", config=LOSSLESS, event=ORDERED, timeout=1))
        workers = [
            group.start(
                slot, slots=3, status_seconds=1,
                constants={"time.time": WrongClock(3600 * hours), "amqtt_rest_bridge.group.leases.GONE_SECONDS": 1.0},
            ).ready()
            for slot, hours in enumerate(HOURS)
        ]  # fmt: skip
        ids = [worker.id() for worker in workers]
        eventually(lambda: [one["worker"] for one in seen(mosquitto, capsys)["slots"]] == ids)
        client = mosquitto.client("publisher")
        publish_all(client, ordered_topic, range(200))
        eventually(are_called(target, 200), "not all were called")
        shown = seen(mosquitto, capsys)
        assert [(one["worker"], one["away_since"]) for one in shown["workers"]] == [(one, None) for one in sorted(ids)]
        assert [one["away_since"] for one in shown["slots"]] == [None] * 3
        assert shown["routes"][0]["workers"] == sorted(ids)
        lines = [line for worker in workers for line in worker.lines]
        assert not any("lost its worker" in line or "was taken by another" in line for line in lines)
        check(target, 200)
        for worker in workers[1:]:
            worker.kill()
        for slot in (1, 2):
            workers[0].wrote(f"slot {slot} of group plant has lost its worker")
        publish_all(client, ordered_topic, range(200, 300))
        eventually(are_called(target, 300), "not all were called")
        eventually(lambda: Counter(one["worker"] for one in seen(mosquitto, capsys)["slots"]) == {ids[0]: 3})
        away = {one["worker"]: one["away_since"] is not None for one in seen(mosquitto, capsys)["workers"]}
        assert away == {ids[0]: False, ids[1]: True, ids[2]: True}
        check(target, 300, doubled=64)  # what a killed worker had not acknowledged

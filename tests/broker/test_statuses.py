"""Statuses of routes that the broker's side amends, while the bridge is away or a task of its own is broken."""

import asyncio
import json
from typing import Any

from amqtt_rest_bridge.broker.statuses import Statuses
from amqtt_rest_bridge.lot.model import Publication
from tests.broker.conftest import on_a_loop

TOPIC = "$SYS/broker/routes/R/status"


def status(**members: Any) -> Publication:
    payload = json.dumps({"name": "R", "health": "Green", "health_reason": None, "last_error": None, **members})
    return Publication(TOPIC, payload.encode(), retain=True)


class Queue(list[Publication]):
    """Publications that wait for their turn, in place of `Publisher`."""

    def put(self, publication: Publication, _hops: int, *, own: bool) -> None:
        assert own
        self.append(publication)


@on_a_loop
async def test_a_newer_status_is_not_overtaken_by_an_older_one_that_waits_for_its_turn() -> None:
    statuses, waiting = Statuses(), Queue()
    running = asyncio.create_task(statuses.run(asyncio.Event(), waiting))  # type: ignore[arg-type]
    before = status(uptime_s=1)
    assert statuses.amended(before) is before
    statuses.report_broken("a task failed")
    while not waiting:
        await asyncio.sleep(0)
    statuses.amended(status(uptime_s=2))
    members = json.loads(statuses.amended(waiting[0]).payload)
    assert (members["health"], members["uptime_s"]) == ("Red", 2)
    running.cancel()
    await asyncio.wait((running,))


@on_a_loop
async def test_other_publications_stay_as_they_are_and_a_route_that_is_gone_is_not_brought_back() -> None:
    statuses, waiting = Statuses(), Queue()
    running = asyncio.create_task(statuses.run(asyncio.Event(), waiting))  # type: ignore[arg-type]
    statuses.bridge_went_away()
    assert json.loads(statuses.amended(status()).payload)["health"] == "Red"
    gone = Publication(TOPIC, b"", retain=True)
    others = [
        Publication("$SYS/broker/routes/reload", b'{"errors":1}', retain=True),
        Publication("$SYS/Coreflux/Command/Output", b"{}"),
    ]
    assert [statuses.amended(one) for one in (gone, *others)] == [gone, *others]
    for _ in range(10):
        await asyncio.sleep(0)
    assert waiting == []
    running.cancel()
    await asyncio.wait((running,))

"""The status of routes while the bridge is away, and while a task of the broker's side is broken."""

import asyncio
import json
from typing import Any, cast

from amqtt_rest_bridge.broker.statuses import AWAY, Statuses
from amqtt_rest_bridge.lot.model import Publication
from tests.broker.conftest import on_a_loop

TOPIC = "$SYS/broker/routes/R/status"


def status(**members: Any) -> Publication:
    payload = json.dumps({"name": "R", "health": "Green", "health_reason": None, "last_error": None, **members})
    return Publication(TOPIC, payload.encode(), retain=True)


class Shown:
    """What becomes of the statuses of a bridge."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.ready.set()
        self.published: list[Publication] = []
        self.waiting: list[Publication] | None = None
        self.statuses = Statuses()

    def put(self, publication: Publication, _hops: int, *, own: bool) -> None:
        """Publish a status in its turn, which comes at once unless it is to wait."""
        assert own
        if self.waiting is None:
            self.published.append(self.statuses.amended(publication))
        else:
            self.waiting.append(publication)

    async def __aenter__(self) -> "Shown":
        self._task = asyncio.create_task(self.statuses.run(self.ready, cast("Any", self)))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(10):
            while not self.published:
                await asyncio.sleep(0)
        members: dict[str, Any] = json.loads(self.published.pop(0).payload)
        return members


@on_a_loop
async def test_routes_are_red_while_the_bridge_is_away_and_as_it_says_afterwards() -> None:
    async with Shown() as shown:
        before = status()
        assert shown.statuses.amended(before) is before
        shown.ready.clear()
        shown.statuses.bridge_went_away()
        red = await shown.next()
        assert (red["name"], red["health"], red["health_reason"]) == ("R", "Red", AWAY)
        assert (red["last_error"]["code"], red["last_error"]["message"]) == ("bridge_restarted", AWAY)
        late = json.loads(shown.statuses.amended(status(uptime_s=1)).payload)  # by the bridge that starts
        assert (late["health"], late["uptime_s"]) == ("Red", 1)
        shown.ready.set()
        green = await shown.next()
        assert (green["health"], green["uptime_s"]) == ("Green", 1)


@on_a_loop
async def test_a_newer_status_is_not_overtaken_by_an_older_one_that_waits_for_its_turn() -> None:
    shown = Shown()
    waiting = shown.waiting = list[Publication]()
    async with shown:
        shown.statuses.amended(status(uptime_s=1))
        shown.statuses.report_broken("a task failed")
        while not waiting:
            await asyncio.sleep(0)
        shown.statuses.amended(status(uptime_s=2))
        members = json.loads(shown.statuses.amended(waiting[0]).payload)
        assert (members["health"], members["uptime_s"]) == ("Red", 2)


@on_a_loop
async def test_routes_are_red_while_the_brokers_side_is_broken() -> None:
    async with Shown() as shown:
        shown.statuses.amended(status())
        shown.statuses.report_broken("a task failed")
        assert (await shown.next())["last_error"]["code"] == "internal_error"
        assert json.loads(shown.statuses.amended(status()).payload)["health_reason"] == "a task failed"
        shown.statuses.report_broken(None)
        assert (await shown.next())["health"] == "Green"


@on_a_loop
async def test_other_publications_stay_as_they_are_and_a_route_that_is_gone_is_not_brought_back() -> None:
    async with Shown() as shown:
        shown.statuses.bridge_went_away()
        gone = Publication(TOPIC, b"", retain=True)
        reload = Publication("$SYS/broker/routes/reload", b'{"errors":1}', retain=True)
        answer = Publication("$SYS/Coreflux/Command/Output", b"{}")
        assert [shown.statuses.amended(one) for one in (status(), gone, reload, answer)][1:] == [
            gone,
            reload,
            answer,
        ]
        for _ in range(10):
            await asyncio.sleep(0)
        assert shown.published == []

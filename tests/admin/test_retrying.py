"""Retries alone: how many run at once, which are refused, and what becomes of the message of a request."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, cast

import pytest

from amqtt_rest_bridge.admin.kept_runs import KeptRun
from amqtt_rest_bridge.admin.queries import RetryQuery
from amqtt_rest_bridge.admin.recorder import RunRecorder
from amqtt_rest_bridge.admin.retries import Retried, Retries
from amqtt_rest_bridge.admin.runs import Run
from amqtt_rest_bridge.engine.client_mode import ClientMode
from amqtt_rest_bridge.engine.needs import Host, Limits
from amqtt_rest_bridge.engine.outcome import Outcomes
from amqtt_rest_bridge.errors import BridgeError
from amqtt_rest_bridge.lot.model import EventName, Message, MessageProperties, Publication, RunIds
from amqtt_rest_bridge.times import LoopClock
from tests.support.server_mode import event, route

T = TypeVar("T")

HOOKS = route(event(retain=True), event("GET", destination=None, source="latest", name="Read"))


class Rig:
    """Retries of a bridge whose calls do not end; a test decides what becomes of publications."""

    def __init__(self) -> None:
        self.published: list[Publication] = []
        self.called: list[str] = []
        """The topics of messages that were called again."""
        self.on_call: Callable[[Message], object] = lambda _: None
        self.acknowledged: Callable[[], Awaitable[object]] = asyncio.Event().wait
        runs = RunIds()
        self.records = RunRecorder(runs)
        self.records.use_routes([HOOKS])
        host = Host(cast(Any, self), cast(Any, None), cast(Any, None), LoopClock(), lambda: 0.5, Limits(), runs,
                    self.records)  # fmt: skip
        outcomes = Outcomes(host)
        outcomes.use_routes([HOOKS])
        mode = cast(ClientMode, self)
        self._retries = Retries(self.records, mode, cast(Any, self), outcomes, runs)
        self._retries.routes = [HOOKS]

    def run_event(self, _: EventName, message: Message, delivery: Any, __: str) -> int:
        self.called.append(message.topic)
        delivery.hold()  # as a call does that has not ended
        self.on_call(message)
        return len(self.called)

    async def publish(self, publication: Publication, **_: Any) -> None:
        self.published.append(publication)
        await self.acknowledged()

    def keep(self, name: str, topic: str, *, route: str = "R", event: str = "Event", kind: str = "call") -> None:
        record = Run(1.0, kind, name, route, event, topic, code="http_status" if kind == "call" else "no_room")
        self.records.kept.add(KeptRun(record, topic, 1.0, b"{}", None, MessageProperties((("a", "b"),))))

    async def retry(self, *names: str) -> Retried:
        return await self._retries.retry(RetryQuery(list(names)))

    async def retry_all(self) -> Retried:
        return await self._retries.retry(RetryQuery(None))


def running(work: Callable[[Rig], Coroutine[Any, Any, T]]) -> T:
    async def run() -> T:
        return await work(Rig())

    return asyncio.run(run())


def test_a_thousand_are_retried_at_once_at_most_and_none_of_them_twice() -> None:
    async def work(rig: Rig) -> None:
        for number in range(1200):
            rig.keep(str(number), f"in/{number}", route=f"R{number // 100}")
        answers = await asyncio.gather(rig.retry_all(), rig.retry_all())
        assert sum(len(answer.started) for answer in answers) == 1000
        assert len(set(rig.called)) == len(rig.called) == 1000

    running(work)


def test_none_that_is_named_is_lost_to_those_that_fail_again_at_once() -> None:
    async def work(rig: Rig) -> None:
        for number in range(100):
            rig.keep(str(number), f"in/{number}")
        rig.on_call = lambda message: rig.keep(f"again {len(rig.called)}", message.topic)
        answer = await rig.retry(*(str(number) for number in reversed(range(100))))  # the newest first
        assert (len(answer.started), answer.refused) == (100, [])
        assert {kept.topic for kept in rig.records.kept.newest()} == {f"in/{number}" for number in range(100)}

    running(work)


def test_the_message_of_a_request_is_published_as_the_event_is_defined_now_with_its_properties() -> None:
    async def work(rig: Rig) -> None:
        acknowledged = asyncio.Event()
        rig.acknowledged = acknowledged.wait
        rig.keep("one", "in", route="Hooks", kind="request")
        ((run, of),) = (await rig.retry("one")).started
        assert of == "one"
        ((_, code, message),) = (await rig.retry("one")).refused
        assert (code, message) == ("retry_runs", "a retry of this failure has not ended yet")
        assert rig.records.kept.get(run) is None  # it has not ended
        acknowledged.set()
        await asyncio.sleep(0.01)
        (sent,) = rig.published
        assert (sent.topic, sent.payload, sent.retain) == ("in", b"{}", True)
        assert sent.properties == MessageProperties((("a", "b"),))
        new, old = rig.records.kept.get(run), rig.records.kept.get("one")
        assert new is not None and old is not None
        assert (new.run.status, new.run.code, new.run.retry_of) == (200, None, "one")
        assert old.run.retried_as == run

    running(work)


def test_a_broker_that_does_not_take_the_message_of_a_request_makes_a_failure_that_can_be_retried_in_turn() -> None:
    async def refuse() -> None:
        raise BridgeError("no room")

    async def work(rig: Rig) -> None:
        rig.acknowledged = refuse
        rig.keep("one", "in", route="Hooks", kind="request")
        ((run, _),) = (await rig.retry("one")).started
        await asyncio.sleep(0.01)
        new = rig.records.kept.get(run)
        assert new is not None
        assert (new.run.status, new.run.code, new.is_failure) == (503, "broker_unavailable", True)
        assert rig.records.counts()["Hooks"]["Event"].statuses == {"503": 1}
        assert (await rig.retry(run)).started
        assert (await rig.retry("one")).started

    running(work)


@pytest.mark.parametrize("name", ["Read", "Other"])
def test_a_request_whose_event_publishes_nothing_any_more_is_refused(name: str) -> None:
    async def work(rig: Rig) -> None:
        rig.keep("one", "in", route="Hooks", event=name, kind="request")
        answer = await rig.retry("one")
        assert (answer.started, answer.refused) == (
            [], [("one", "route_gone", f"route Hooks has no event {name} any more")],
        )  # fmt: skip

    running(work)

"""The delivery of a message is released once, when all that came of it has ended: then its source acknowledges it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from amqtt_rest_bridge.link.frames import CallResult, FailedTry
from amqtt_rest_bridge.model import Message, OverloadPolicy, Publication, Route, RouteConfig, RunIds
from amqtt_rest_bridge.records.broker_records import BrokerRecords
from amqtt_rest_bridge.routing.calls import MAX_HOPS, Call
from tests.support.dispatching import Rig, route

MESSAGE = Message("in/1", b"payload", 0.0)
RESULT = Publication("out", b"result")


class Acknowledgement:
    """Counts what holds a message back."""

    is_dropped = is_bounded = False

    def __init__(self) -> None:
        self.held = 0
        self.acknowledged = 0

    @property
    def state(self) -> tuple[int, int]:
        return self.held, self.acknowledged

    def abandon(self) -> None:
        raise AssertionError("nothing was dropped")

    def hold(self) -> None:
        assert not self.acknowledged, "held after the acknowledgement"
        self.held += 1

    def release(self) -> None:
        self.held -= 1
        assert self.held >= 0
        self.acknowledged += not self.held

    def key(self, _event: tuple[str, str]) -> None:
        return None


class FullStore:
    """Takes nothing."""

    trouble = None
    refusing = None

    def keep(self, route: str, event: str, message: Message, *_: object) -> str:
        raise OSError("no room")

    def forget(self, key: str) -> None:
        raise AssertionError(key)


class EndlessStore(FullStore):
    """Takes everything."""

    def keep(self, route: str, event: str, message: Message, *_: object) -> str:
        return "key"

    def forget(self, key: str) -> None:
        """Keep it."""


def end(rig: Rig, call: Call, code: str | None = None, publication: Publication | None = None) -> None:
    rig.dispatcher.done(call, CallResult(call.id, 200, code, "", 0.0, 0.1, publication), lambda _: None)


def lossless(made: Route) -> Route:
    return replace(made, route_config=RouteConfig(10, OverloadPolicy.LOSSLESS))


def offer(rig: Rig, *, hops: int = 0) -> Acknowledgement:
    delivery = Acknowledgement()
    rig.dispatcher.offer(MESSAGE, hops=hops, delivery=delivery)
    return delivery


Outcome = Callable[[Rig, Call], None]


@pytest.mark.parametrize(
    "outcome",
    [
        pytest.param(lambda rig, call: end(rig, call, publication=RESULT), id="a success with a result"),
        pytest.param(end, id="a success without a result"),
        pytest.param(lambda rig, call: end(rig, call, "timeout", RESULT), id="a failure with its payload"),
        pytest.param(lambda rig, call: rig.dispatcher.lost(call), id="a bridge process that died"),
    ],
)
def test_a_message_is_acknowledged_when_its_call_has_ended_and_its_result_is_published(outcome: Outcome) -> None:
    rig = Rig()
    delivery = offer(rig)
    assert delivery.state == (1, 0)
    outcome(rig, rig.bridge.calls[0])
    assert delivery.state == ((1, 0) if rig.queue.publications else (0, 1))
    rig.queue.publish()
    assert delivery.state == (0, 1)


def test_a_call_that_is_replayed_holds_its_message_until_it_has_ended() -> None:
    rig = Rig()
    delivery = offer(rig)
    rig.dispatcher.replay(rig.bridge.calls[0])
    assert delivery.state == (1, 0)
    end(rig, rig.bridge.calls[0])
    assert delivery.state == (0, 1)


def test_a_call_that_the_store_keeps_for_a_route_that_is_gone_is_acknowledged() -> None:
    rig = Rig(EndlessStore())
    rig.use(lossless(route()))
    delivery = offer(rig)
    rig.use()
    rig.dispatcher.replay(rig.bridge.calls[0])
    assert (rig.dispatcher.orphans, delivery.acknowledged) == (["key"], 1)


class Dropped(Acknowledgement):
    """Belongs to a source that has taken its message back."""

    is_dropped = True

    def abandon(self) -> None:
        self.held -= 1


def drop(rig: Rig, call: Call) -> None:
    call.delivery = Dropped()
    assert not rig.dispatcher.renew(call)


def leave_on_disk(rig: Rig, call: Call) -> None:
    rig.use(route(name="Other"))
    rig.dispatcher.replay(call)
    assert rig.dispatcher.orphans == ["key"]


@pytest.mark.parametrize(
    ("outcome", "counted"),
    [
        pytest.param(end, {}, id="succeeds"),
        pytest.param(lambda rig, call: end(rig, call, "timeout"), {"timeout": (1, 0)}, id="fails"),
        pytest.param(lambda rig, call: end(rig, call, "tls_failed"), {"tls_failed": (1, 0)}, id="fails otherwise"),
        pytest.param(lambda rig, call: rig.dispatcher.lost(call), {"bridge_restarted": (1, 0)}, id="is lost"),
        pytest.param(lambda rig, call: rig.dispatcher.replay(call), {"timeout": (1, 1)}, id="is replayed"),
        pytest.param(drop, {}, id="is dropped"),
        pytest.param(leave_on_disk, {}, id="stays on disk"),
    ],
)
def test_a_call_counts_as_tried_again_until_it_goes_on_no_more(
    outcome: Outcome, counted: dict[str, tuple[int, int]]
) -> None:
    records = BrokerRecords(RunIds())
    rig = Rig(EndlessStore(), records=records)
    rig.use(lossless(route()))
    offer(rig)
    (call,) = rig.bridge.calls
    rig.dispatcher.try_failed([call], FailedTry("timeout", "too late", "wait", None))
    assert list(records.problems.retrying) == [call.id]
    outcome(rig, call)
    assert {one.code: (one.count, one.retrying) for one in records.problems.listed(0.0, {})} == counted
    still = int(counted == {"timeout": (1, 1)})
    assert (len(records.problems.retrying), call.listening.statistics.retrying) == (still, still)


def test_each_event_of_two_holds_the_message() -> None:
    rig = Rig()
    rig.use(route(), route(name="Other"))
    delivery = offer(rig)
    end(rig, rig.bridge.calls[0], publication=RESULT)
    rig.queue.publish()
    assert delivery.state == (1, 0)
    end(rig, rig.bridge.calls[1])
    assert delivery.state == (0, 1)


def test_a_message_that_no_event_listens_to_is_acknowledged_at_once() -> None:
    rig = Rig()
    rig.use()
    assert offer(rig).acknowledged == 1


@pytest.mark.parametrize(
    ("made", "others", "hops", "published"),
    [
        pytest.param(replace(route(), route_config=RouteConfig(1)), 1, 0, 1, id="the route is overloaded"),
        pytest.param(route(), 0, MAX_HOPS, 0, id="too many hops"),
        pytest.param(lossless(route()), 0, 0, 1, id="the store is full"),
    ],
)
def test_a_refused_message_is_acknowledged_when_its_failure_is_published(
    made: Route, others: int, hops: int, published: int
) -> None:
    rig = Rig(FullStore())
    rig.use(made)
    rig.offer(others)
    delivery = offer(rig, hops=hops)
    assert len(rig.queue.publications) == published
    rig.queue.publish()
    assert delivery.state == (0, 1)


def test_a_message_that_waits_for_room_is_held_until_it_is_refused_or_its_call_ends() -> None:
    rig = Rig()
    waits = replace(route(), route_config=RouteConfig(1, OverloadPolicy.BALANCED, 1000))
    rig.use(waits)
    first, second = offer(rig), offer(rig)
    assert len(rig.bridge.calls) == 1
    end(rig, rig.bridge.calls[0])
    assert (first.acknowledged, second.held) == (1, 1)
    third = offer(rig)
    rig.use()  # refuses what waits
    rig.queue.publish()
    assert (second.acknowledged, third.acknowledged) == (0, 1)
    rig.dispatcher.lost(rig.bridge.calls[1])
    rig.queue.publish()
    assert second.state == (0, 1)

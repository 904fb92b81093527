"""OVERLOAD_TIMEOUT: a message of a full balanced route waits for room before it is refused."""

from dataclasses import replace

import pytest

from amqtt_rest_bridge.link.frames import CallResult
from amqtt_rest_bridge.model import Message, OverloadPolicy, Route, RouteConfig
from amqtt_rest_bridge.routing.calls import Call
from tests.support.clock import Clock
from tests.support.dispatching import Rig as DispatcherRig
from tests.support.dispatching import route


class Rig(DispatcherRig):
    """A dispatcher of one route with room for two messages, which waits for a second."""

    def __init__(self) -> None:
        self.clock = Clock()
        super().__init__(clock=self.clock)

    def use(  # type: ignore[override]
        self, *routes: Route, capacity: int = 2, timeout: int = 1000, policy: str = "balanced"
    ) -> None:
        config = RouteConfig(capacity, OverloadPolicy(policy), timeout)
        super().use(*[replace(item, route_config=config) for item in routes])

    def offer(self, *payloads: bytes) -> None:  # type: ignore[override]
        for payload in payloads:
            self.dispatcher.offer(Message("in/1", payload, 0.0))

    def end(self, number: int) -> None:  # type: ignore[override]
        call: Call = self.bridge.calls[number]
        self.dispatcher.done(call, CallResult(call.id, 200, None, "", 0.0, 0.1, None), lambda _: None)

    @property
    def dispatched(self) -> list[bytes]:
        return [call.message.payload for call in self.bridge.calls]

    @property
    def counts(self) -> tuple[int, int, int]:
        messages = self.outcomes.statistics["R"].status(0.0)["messages"]
        return messages["queued"] + messages["in_flight"], messages["refused"], messages["total"]


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_message_waits_for_room_and_goes_when_a_call_ends(rig: Rig) -> None:
    rig.offer(b"1", b"2", b"3", b"4")
    assert (rig.dispatched, rig.counts) == ([b"1", b"2"], (4, 0, 2))
    rig.end(0)
    assert rig.dispatched == [b"1", b"2", b"3"]
    rig.offer(b"5")  # behind the fourth
    rig.clock.advance(0.9)
    rig.end(1)
    rig.end(2)
    assert rig.dispatched == [b"1", b"2", b"3", b"4", b"5"]
    rig.clock.advance(9)
    assert (rig.queue.publications, rig.counts) == ([], (2, 0, 5))


def test_a_message_that_finds_no_room_in_time_is_refused(rig: Rig) -> None:
    rig.offer(b"1", b"2", b"3")
    rig.clock.advance(0.6)
    rig.offer(b"4")
    rig.clock.advance(0.5)
    assert rig.counts == (3, 1, 3)
    rig.clock.advance(0.5)
    assert rig.counts == (2, 2, 4)
    assert [b'"overloaded"' in publication.payload for publication in rig.queue.publications] == [True, True]
    rig.end(0)
    assert rig.dispatched == [b"1", b"2"]


def test_as_many_messages_wait_as_the_route_has_room_for(rig: Rig) -> None:
    rig.offer(*[b"x"] * 5)
    assert rig.counts == (4, 1, 3)


def test_messages_whose_time_is_over_are_refused_a_hundred_at_a_time(rig: Rig) -> None:
    rig.use(route(), capacity=250)
    rig.offer(*[b"x"] * 500)
    rig.clock.now = 1.0
    refused = []
    for _ in range(3):
        rig.clock.fire()
        refused.append(len(rig.queue.publications))
    assert refused == [100, 200, 250]


@pytest.mark.parametrize("policy", ["realtime", "lossless"])
def test_only_a_balanced_route_waits(rig: Rig, policy: str) -> None:
    rig.use(route(), policy=policy)
    rig.offer(b"1", b"2", b"3")
    assert rig.counts == (2, 1, 3)


def test_a_reload_lets_waiting_messages_go_by_the_new_definition(rig: Rig) -> None:
    rig.offer(b"1", b"2", b"3", b"4", b"5")
    rig.queue.publications.clear()
    rig.use(route("/changed"), capacity=3)
    assert [call.listening.event.endpoint.source for call in rig.bridge.calls] == ["/x", "/x", "/changed"]
    rig.clock.advance(1)  # since the message came
    assert rig.counts == (3, 2, 5)


def test_a_reload_does_not_prolong_the_time_that_a_message_waits(rig: Rig) -> None:
    rig.offer(b"1", b"2", b"3")
    rig.clock.advance(0.6)
    rig.use(route("/changed"))
    rig.clock.advance(0.5)
    assert rig.counts == (2, 1, 3)


def test_a_waiting_message_whose_route_is_gone_is_answered(rig: Rig) -> None:
    rig.offer(b"1", b"2", b"3")
    rig.use(route(name="Other", source="elsewhere"))
    assert len(rig.queue.publications) == 1


def test_waiting_messages_whose_route_is_gone_are_refused_a_hundred_at_a_time(rig: Rig) -> None:
    rig.use(route(), capacity=250)
    rig.offer(*[b"x"] * 500)
    rig.use()
    refused = [len(rig.queue.publications)]
    for _ in range(2):
        rig.clock.fire()
        refused.append(len(rig.queue.publications))
    assert refused == [100, 200, 250]
    assert all(b"its route or event was removed" in one.payload for one in rig.queue.publications)
    assert rig.held.held == 250


def test_messages_that_wait_at_the_end_are_counted(rig: Rig) -> None:
    rig.offer(b"1", b"2", b"3")
    assert rig.dispatcher.abandon() == {"R": 1}
    rig.clock.advance(2)
    assert rig.queue.publications == []


def test_a_call_whose_bridge_process_died_makes_room(rig: Rig) -> None:
    rig.offer(b"1", b"2", b"3")
    rig.dispatcher.lost(rig.bridge.calls[0])
    assert rig.dispatched == [b"1", b"2", b"3"]

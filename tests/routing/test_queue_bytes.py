"""Bounds in bytes at the dispatcher: max_message_bytes, OVERLOAD_BYTES, queue_bytes, and what is counted meanwhile."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from amqtt_rest_bridge.link.frames import CallResult
from amqtt_rest_bridge.model import Message, OverloadPolicy, Route, RouteConfig
from amqtt_rest_bridge.routing.calls import MOST_WAITING_BYTES, Call
from tests.support.clock import Clock
from tests.support.dispatching import Rig, route


def bounded(most: int, name: str = "R", policy: OverloadPolicy = OverloadPolicy.BALANCED, timeout: int = 0) -> Route:
    config = RouteConfig(overload_bytes=most, overload_policy=policy, overload_timeout=timeout)
    return replace(route(name=name, source=f"{name}/#"), route_config=config)


def offer(rig: Rig, size: int, name: str = "R") -> bool:
    """Offer a message of `size` bytes; return whether it was dispatched."""
    before = len(rig.bridge.calls)
    rig.dispatcher.offer(Message(f"{name}/1", b"x" * size, 0.0))
    return len(rig.bridge.calls) > before


def refusals(rig: Rig) -> list[str]:
    found = [json.loads(one.payload)["error"] for one in rig.queue.publications]
    assert {error["code"] for error in found} <= {"overloaded", "payload_too_large"}
    return [error["message"] for error in found]


@pytest.mark.parametrize("policy", list(OverloadPolicy))
def test_a_route_takes_payloads_up_to_overload_bytes(policy: OverloadPolicy) -> None:
    rig = Rig()
    rig.use(bounded(1000, policy=policy))
    assert [offer(rig, size) for size in (600, 400, 1, 0)] == [True, True, False, True]
    assert rig.statistics.status(0.0)["messages"]["held_bytes"] == 1000
    rig.end(rig.bridge.calls[0])
    assert [offer(rig, size) for size in (601, 600)] == [False, True]
    assert refusals(rig) == [
        "the route is overloaded: its OVERLOAD_BYTES of 1000 bytes have no room for a payload of 1 byte",
        "the route is overloaded: its OVERLOAD_BYTES of 1000 bytes have no room for a payload of 601 bytes",
    ]


def test_a_message_that_finds_no_room_behind_large_ones_is_refused_for_their_bytes() -> None:
    clock = Clock()
    rig = Rig(clock=clock)
    rig.use(bounded(1000, timeout=1000))
    assert [offer(rig, size) for size in (600, 600, 300, 200)] == [True, False, False, False]
    assert refusals(rig) == [
        "the route is overloaded: its OVERLOAD_BYTES of 1000 bytes have no room for a payload of 200 bytes"
    ]


def test_a_message_larger_than_overload_bytes_is_taken_where_nothing_is_queued() -> None:
    rig = Rig()
    rig.use(bounded(1000))
    assert [offer(rig, size) for size in (5000, 1)] == [True, False]
    rig.end(rig.bridge.calls[0])
    assert [offer(rig, size) for size in (1, 5000)] == [True, False]


def test_the_payloads_of_all_routes_are_bounded_together_and_no_route_is_silenced() -> None:
    rig = Rig(queue_bytes=1000)
    rig.use(bounded(800, "R"), bounded(800, "S"), bounded(800, "T"))
    assert [offer(rig, 400, name) for name in "RRRSS"] == [True, True, False, True, False]
    assert rig.held.held == 1200  # S had nothing queued
    what = "the bridge is overloaded: its queue_bytes of 1000 bytes have no room for a payload of 400 bytes"
    assert refusals(rig)[1] == what
    for call in list(rig.bridge.calls):
        rig.end(call)
    assert rig.held.held == 0
    assert offer(rig, 400, "S")


def test_a_message_over_max_message_bytes_takes_no_call() -> None:
    rig = Rig(max_message_bytes=1000)
    rig.offer()
    rig.dispatcher.offer(Message("in/1", b"x" * 1001, 0.0))
    rig.dispatcher.offer(Message("in/1", b"x" * 1000, 0.0))
    assert [len(call.message.payload) for call in rig.bridge.calls] == [7, 1000]
    assert refusals(rig) == ["the message has 1001 bytes, max_message_bytes allows 1000"]
    assert rig.statistics.status(0.0)["messages"]["refused"] == 1


def test_refused_messages_are_in_their_failures_while_there_is_room_for_them_and_never_when_too_large() -> None:
    rig = Rig(max_message_bytes=100_000)
    one = bounded(1000)
    rig.use(replace(one, client_events=(replace(one.client_events[0], failure_payload=True),)))
    offer(rig, 1000)
    offer(rig, 50_000)
    rig.queue.waiting_bytes = MOST_WAITING_BYTES + 1
    offer(rig, 50_000)
    rig.queue.waiting_bytes = 0
    offer(rig, 100_001)
    found = [json.loads(one.payload) for one in rig.queue.publications]
    assert [failure["error"]["code"] for failure in found] == ["overloaded", "overloaded", "payload_too_large"]
    assert [len(failure.get("payload", "")) for failure in found] == [50_000, 0, 0]


def test_read_events_keep_what_they_have_before_a_message_over_max_message_bytes() -> None:
    rig = Rig(max_message_bytes=10)
    rig.use(reads=("seen",))
    for payload in (b"small", b"x" * 11):
        rig.dispatcher.offer(Message("seen", payload, 0.0))
        rig.dispatcher.remember("seen", payload)
    assert rig.newest() == {"seen": b"small"}
    assert rig.bridge.seen == [("seen", b"small")] * 2


def ended(rig: Rig, call: Call) -> None:
    rig.end(call)


def lost(rig: Rig, call: Call) -> None:
    rig.dispatcher.lost(call)


def skipped(rig: Rig, call: Call) -> None:
    rig.dispatcher.done(call, CallResult(call.id, None, "skipped", "", 0.0, 0.0, None), lambda _: None)


def gone(rig: Rig, call: Call) -> None:
    rig.use()
    rig.dispatcher.replay(call)


def removed(rig: Rig, call: Call) -> None:
    rig.use()
    assert not rig.dispatcher.renew(call)
    assert b"route or event was removed" in rig.queue.publications[0].payload


@pytest.mark.parametrize("end", [ended, lost, skipped, gone, removed])
def test_however_a_call_ends_its_bytes_are_free_again(end: Callable[[Rig, Call], None]) -> None:
    rig = Rig()
    (call,) = rig.offer()
    assert (rig.held.held, rig.statistics.admission.held_bytes) == (7, 7)
    end(rig, call)
    assert rig.held.held == 0


def test_messages_wait_for_room_in_bytes_and_their_bytes_are_bounded_too() -> None:
    clock = Clock()
    rig = Rig(clock=clock)
    rig.use(bounded(1000, timeout=50))
    assert [offer(rig, size) for size in (1000, 600, 400, 1)] == [True, False, False, False]
    assert len(refusals(rig)) == 1
    assert rig.statistics.status(0.0)["messages"]["held_bytes"] == 2000
    rig.end(rig.bridge.calls[0])
    assert [len(call.message.payload) for call in rig.bridge.calls] == [1000, 600, 400]
    assert offer(rig, 1) is False  # it waits
    clock.advance(1)
    assert refusals(rig)[1].endswith("its OVERLOAD_BYTES of 1000 bytes have no room for a payload of 1 byte")
    for call in rig.bridge.calls[1:]:
        rig.end(call)
    assert rig.held.held == 0

"""Calls that the broker process takes back: what runs ends, everything else is returned, and begins nothing more."""

import pytest

from amqtt_rest_bridge.bridge.client.route_runner import RouteRunner
from amqtt_rest_bridge.calls.call import OpenCall
from amqtt_rest_bridge.link.frames import Returned, Waiting, Withdraw
from tests.bridge.engine_rig import BUSY, FINE, Rig, route
from tests.support.gate import Gate
from tests.support.waiting import SECONDS


def test_a_call_that_waits_for_its_next_try_is_returned_at_once_and_tried_no_more(rig: Rig) -> None:
    rig.network.answer = lambda _: BUSY
    rig.use(route(lossless=True))
    number = rig.call(b"1", key="k1")
    rig.frame(Waiting)
    rig.end.send_now(Withdraw([number]))
    assert rig.frame(Returned).call == number
    rig.network.answer = lambda _: FINE
    later = rig.call(b"2", key="k2")
    assert rig.ended(1) == [later]
    assert rig.network.bodies(2) == [b"1", b"2"] and rig.network.requests.empty()


def test_a_call_that_runs_ends_and_those_behind_it_are_returned(rig: Rig) -> None:
    gate = Gate()
    gated = gate.before(lambda _: FINE)
    rig.network.answer = lambda request: gated(request) if request.body == b"0" else FINE
    rig.use(route(ordered=True))
    calls = [rig.call(b"%d" % number) for number in range(3)]
    assert rig.network.bodies(1) == [b"0"]
    rig.end.send_now(Withdraw(calls))
    after = rig.call(b"after", topic="other")
    assert rig.ended(1) == [after]  # so the frame before was read
    gate.open.set()
    assert rig.ended(1) == [calls[0]]
    assert [rig.frame(Returned).call for _ in calls[1:]] == calls[1:]
    assert rig.network.bodies(1) == [b"after"] and rig.network.requests.empty()


def test_a_retry_that_is_withdrawn_while_a_reload_takes_it_over_leaves_no_definition_open(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_over = RouteRunner._take_over

    def withdrawn_first(runner: RouteRunner, call: OpenCall, *more: RouteRunner) -> bool:
        context = runner._context
        with context.lock:
            waiting = context.calls.withdraw([call.id])
        for give_back in waiting:
            give_back()
        return take_over(runner, call, *more)

    monkeypatch.setattr(RouteRunner, "_take_over", withdrawn_first)
    rig.network.answer = lambda _: BUSY
    rig.use(route("/wrong", lossless=True))
    number = rig.call(b"1", key="k1")
    rig.frame(Waiting)
    rig.use(route("/mended", lossless=True))
    assert rig.frame(Returned).call == number
    assert rig.network.closed.acquire(timeout=SECONDS), "the old definition is still there"
    rig.use()
    assert rig.network.closed.acquire(timeout=SECONDS), "the new definition is still there"

"""ORDERED calls of a worker's bridge process: they begin while its lease lasts, and wait for it beyond."""

import math

from amqtt_rest_bridge.link.frames import InGroup, Returned, Waiting, Withdraw
from amqtt_rest_bridge.times import lease_time
from tests.bridge.engine_rig import BUSY, FINE, Rig, route


def test_an_ordered_call_begins_once_the_lease_is_renewed_and_others_wait_for_nothing(rig: Rig) -> None:
    rig.end.send_now(InGroup(1, lease_time()))
    rig.use(route(ordered=True))
    calls = [rig.call(b"%d" % number) for number in range(2)]
    assert rig.frame(Waiting).call == calls[0]
    assert rig.network.requests.empty()
    rig.end.send_now(InGroup(1, lease_time() + 60))
    assert rig.ended(2) == calls
    assert rig.network.bodies(2) == [b"0", b"1"]
    rig.end.send_now(InGroup(1, lease_time()))
    rig.use(route())
    later = rig.call(b"not ordered")
    assert rig.ended(1) == [later]


def test_a_retry_waits_for_the_lease_too_and_is_returned_when_it_is_withdrawn(rig: Rig) -> None:
    rig.network.answer = lambda _: BUSY
    rig.use(route(ordered=True, lossless=True))
    number = rig.call(b"0", key="k0")
    assert (rig.frame(Waiting).call, rig.network.bodies(1)) == (number, [b"0"])
    rig.end.send_now(InGroup(1, lease_time()))
    assert [rig.frame(Waiting).change for _ in range(2)] == [-1, 1]  # the try is due, and waits again
    rig.end.send_now(Withdraw([number]))
    assert rig.frame(Returned).call == number
    rig.network.answer = lambda _: FINE
    rig.end.send_now(InGroup(1, math.inf))
    later = rig.call(b"1", key="k1")
    assert rig.ended(1) == [later]
    assert rig.network.bodies(1) == [b"1"] and rig.network.requests.empty()

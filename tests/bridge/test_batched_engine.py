"""The engine at its link with BATCH_SIZE: batches that wait are withdrawn, reloaded and stopped call by call."""

from dataclasses import replace

import pytest

from amqtt_rest_bridge.link.frames import Results, Returned, Stop, Stopped, Waiting, Withdraw
from amqtt_rest_bridge.model import HttpResponse, Route
from amqtt_rest_bridge.placeholders import Mode, Place, parse
from tests.bridge.engine_rig import BUSY, FINE, Rig, route

LATER = HttpResponse(503, "Slow down", (("Retry-After", "3600"),), b"", 0.0)


def batched(endpoint: str = "/x", size: int = 3, *, lossless: bool = True, ordered: bool = False) -> Route:
    made = route(endpoint, lossless=lossless, ordered=ordered)
    (event,) = made.client_events
    body = parse("{batch}", Place.JSON, Mode.BATCH)
    return replace(made, client_events=(replace(event, body=body, batch_size=size, batch_seconds=3600),))


def returned(rig: Rig, count: int) -> list[int]:
    return sorted(rig.frame(Returned).call for _ in range(count))


def keyed(rig: Rig, count: int) -> list[int]:
    return [rig.call(b"%d" % one, key=f"00000000-0000-4000-8000-80000000{one:04x}") for one in range(count)]


def test_one_result_ends_all_calls_of_a_batch(rig: Rig) -> None:
    rig.use(batched(lossless=False))
    calls = [rig.call(b"%d" % number) for number in range(3)]
    (result,) = rig.frame(Results).results
    assert [result.call, *result.also] == calls
    assert rig.network.bodies(1) == [b"[0,1,2]"]


def test_every_call_of_a_batch_that_waits_is_given_back_when_all_are_withdrawn(rig: Rig) -> None:
    rig.network.answer = lambda _: LATER
    rig.use(batched())
    calls = keyed(rig, 3)
    rig.frame(Waiting)
    rig.end.send_now(Withdraw(calls))
    assert returned(rig, 3) == calls


def test_the_calls_of_a_batch_that_were_not_withdrawn_go_on_without_the_others(rig: Rig) -> None:
    rig.network.answer = lambda _: LATER
    rig.use(batched())
    calls = keyed(rig, 3)
    rig.frame(Waiting)
    rig.network.bodies(1)
    rig.network.answer = lambda _: FINE
    rig.end.send_now(Withdraw(calls[:1]))
    assert returned(rig, 1) == calls[:1]
    (result,) = rig.frame(Results).results
    assert [result.call, *result.also] == calls[1:]
    assert rig.network.bodies(1) == [b"[1,2]"]


def test_calls_of_an_open_batch_that_are_withdrawn_are_given_back_at_once(rig: Rig) -> None:
    rig.use(batched(size=100), workers=1)
    calls = keyed(rig, 3)
    rig.end.send_now(Withdraw(calls))
    assert returned(rig, 3) == calls
    assert rig.network.requests.empty()


@pytest.mark.parametrize("ordered", [False, True], ids=["any order", "ordered"])
def test_the_calls_of_a_lossless_batch_that_waits_are_given_back_where_a_reload_changes_it(
    rig: Rig, ordered: bool
) -> None:
    rig.network.answer = lambda _: BUSY
    rig.use(batched(ordered=ordered))
    calls = keyed(rig, 3)
    rig.frame(Waiting)
    rig.use(batched(size=4, ordered=ordered))
    assert returned(rig, 3) == calls


@pytest.mark.parametrize("ordered", [False, True], ids=["any order", "ordered"])
def test_a_lossless_batch_that_waits_goes_on_by_the_definition_that_a_reload_brings(rig: Rig, ordered: bool) -> None:
    rig.network.answer = lambda _: BUSY
    rig.use(batched(ordered=ordered))
    calls = keyed(rig, 3)
    rig.frame(Waiting)
    rig.use(batched("/mended", ordered=ordered))
    rig.network.answer = lambda request: FINE if request.url.endswith("/mended") else BUSY
    (result,) = rig.frame(Results).results
    assert [result.call, *result.also] == calls


def test_a_stop_leaves_an_open_batch_of_lossless_calls_with_the_broker(rig: Rig) -> None:
    rig.use(batched())
    keyed(rig, 2)
    rig.end.send_now(Stop(2.0))
    rig.frame(Stopped)
    assert rig.network.requests.empty()

"""How long to wait before what failed is tried or started again, and before a line is logged again."""

import asyncio

import pytest

from amqtt_rest_bridge.times import Backoff, LineLimit, in_lull
from tests.support.clock import Clock


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        pytest.param(Backoff(), [1, 2, 4, 8, 16, 30, 30], id="connections"),
        pytest.param(Backoff(at_once=True), [0, 1, 2, 4, 8, 16, 30], id="processes"),
        pytest.param(Backoff(0.1), [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4], id="tasks"),
    ],
)
def test_delays_double_up_to_the_longest(backoff: Backoff, delays: list[float]) -> None:
    assert [backoff.delay(failures) for failures in range(1, 8)] == pytest.approx(delays)
    assert backoff.delay(10_000) == 30


def test_a_limit_writes_the_first_line_at_once_and_counts_the_others_until_the_next_is_due() -> None:
    clock = Clock(1000.0)
    limit = LineLimit(60.0, clock)
    assert [limit.count() for _ in range(3)] == [1, 0, 0]
    clock.advance(59.9)
    assert limit.count() == 0
    clock.advance(0.1)
    assert [limit.count(), limit.count()] == [4, 0]


def test_what_waits_for_a_lull_again_before_it_came_is_done_once() -> None:
    async def use() -> None:
        done = list[int]()

        def action() -> None:
            done.append(1)

        in_lull(action)
        in_lull(action)
        for _ in range(100):
            await asyncio.sleep(0)
        assert done == [1]
        in_lull(action)
        for _ in range(100):
            await asyncio.sleep(0)
        assert done == [1, 1]

    asyncio.run(use())

"""Work in slices: in order, bounded between two iterations of the loop, and never forgotten."""

import asyncio
from collections.abc import Callable

import pytest

from amqtt_rest_bridge.processes.bridge_pool import Slices


async def until(holds: Callable[[], bool]) -> int:
    """Run the loop until something holds; count its iterations."""
    iterations = 0
    while not holds():
        await asyncio.sleep(0)
        iterations += 1
    return iterations


def test_what_moves_many_bytes_lets_the_loop_go_on_in_between() -> None:
    async def main() -> None:
        done: list[int] = []
        slices: Slices[int] = Slices(asyncio.get_running_loop(), done.append, lambda _: 20_000)
        slices.put_last(range(1000))
        assert await until(lambda: len(done) == 1000) >= 100
        assert done == list(range(1000))

    asyncio.run(main())


def test_what_is_put_first_goes_before_what_waits_and_in_its_order() -> None:
    async def main() -> None:
        done: list[int] = []
        slices: Slices[int] = Slices(asyncio.get_running_loop(), done.append, lambda _: 1)
        slices.put_last([3, 4])
        slices.put_first([1, 2])
        await until(lambda: len(done) == 4)
        assert done == [1, 2, 3, 4]

    asyncio.run(main())


def test_one_item_that_fails_costs_itself_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        done: list[int] = []

        def work(item: int) -> None:
            if item == 2:
                raise ValueError("bad item")
            done.append(item)

        slices: Slices[int] = Slices(asyncio.get_running_loop(), work, lambda _: 1)
        slices.put_last([1, 2, 3])
        await until(lambda: done == [1, 3])

    asyncio.run(main())
    assert "bad item" in caplog.text


def test_a_slice_waits_while_it_may_not_go() -> None:
    async def main() -> None:
        done: list[int] = []
        paused = True
        slices: Slices[int] = Slices(asyncio.get_running_loop(), done.append, lambda _: 1, paused=lambda: paused)
        slices.put_last([1])
        for _ in range(100):
            await asyncio.sleep(0)
        assert not done
        paused = False
        await until(lambda: done == [1])

    asyncio.run(main())

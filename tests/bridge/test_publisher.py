"""The pace at which results reach the broker's queue, on a real loop with a queue that the test fills and empties."""

import asyncio
from collections.abc import Callable

from amqtt_rest_bridge.broker.publisher import Publisher
from amqtt_rest_bridge.model import Publication


def published_after(iterations: int, queued: Callable[[], int]) -> list[bytes]:
    """Give what a publisher with three publications has sent after some iterations of the loop."""
    sent: list[bytes] = []

    async def broadcast(_topic: str, payload: bytes) -> None:
        sent.append(payload)

    async def keep(_topic: str, _payload: bytes) -> None:
        raise AssertionError("nothing here is retained")

    async def run() -> None:
        publisher = Publisher(broadcast, keep, queued)
        for payload in (b"1", b"2", b"3"):
            assert publisher.put(Publication("topic", payload), 1)
        task = asyncio.create_task(publisher.run())
        for _ in range(iterations):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    return sent


def test_a_broker_with_nothing_queued_gets_a_publication_each_iteration() -> None:
    assert published_after(3, lambda: 0) == [b"1", b"2", b"3"]


def test_a_long_queue_is_waited_for() -> None:
    assert published_after(10, lambda: 2) == [b"1"]


def test_a_queue_that_stays_long_does_not_hold_results_up_for_ever() -> None:
    assert published_after(30, lambda: 1000) == [b"1", b"2", b"3"]


def test_publishing_goes_on_as_soon_as_the_queue_is_short() -> None:
    lengths = iter([2, 2, 1])
    assert published_after(5, lambda: next(lengths, 2)) == [b"1", b"2"]

"""The pace at which results reach the broker's queue: with a queue that a test makes up, and in a real broker."""

import asyncio
import statistics
from collections.abc import Callable
from typing import Any

from amqtt_rest_bridge.broker.messages import Publisher
from amqtt_rest_bridge.model import Publication
from amqtt_rest_bridge.routing.calls import LARGE_FAILURE
from tests.benchmarks import client_mode, rig
from tests.support.embedded_broker import hosting


async def never(_waiting: Callable[[], int], _seconds: float) -> int:
    raise AssertionError("the broker goes on")


def published_after(iterations: int, queued: Callable[[], int]) -> list[bytes]:
    """Return what a publisher with three publications has sent after some iterations of the loop."""
    sent: list[bytes] = []

    async def broadcast(_topic: str, payload: bytes, _qos: int | None) -> None:
        sent.append(payload)

    async def keep(_topic: str, _payload: bytes, _qos: int | None) -> None:
        raise AssertionError("nothing here is retained")

    async def run() -> None:
        publisher = Publisher(broadcast, keep, queued, never)
        for payload in (b"1", b"2", b"3"):
            assert publisher.put(Publication("topic", payload), 1)
        task = asyncio.create_task(publisher.run())
        for _ in range(iterations):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    return sent


def test_large_failures_have_no_room_beside_many_bytes_that_wait() -> None:
    publisher = Publisher(lambda *_: asyncio.sleep(0), lambda *_: asyncio.sleep(0), lambda: 0, never)
    large, small = Publication("topic", b"x" * (9 << 20)), Publication("topic", b"x" * LARGE_FAILURE)
    taken = [publisher.put(one, 1) for one in (large, large, large, small)]
    assert taken == [True, True, False, True]
    assert publisher.put(large, 1, release_credits=lambda _: None)


def test_an_idle_broker_gets_a_publication_every_fourth_iteration() -> None:
    assert published_after(8, lambda: 0) == [b"1", b"2"]
    assert published_after(9, lambda: 0) == [b"1", b"2", b"3"]


def test_a_long_queue_is_waited_for() -> None:
    assert published_after(12, lambda: 2) == [b"1"]


def test_a_queue_that_stays_long_does_not_hold_results_up_for_ever() -> None:
    assert published_after(30, lambda: 1000) == [b"1", b"2", b"3"]


def test_publishing_goes_on_as_soon_as_the_queue_is_short() -> None:
    lengths = iter([5, 3, 1])
    assert published_after(7, lambda: next(lengths, 5)) == [b"1", b"2"]


def test_results_leave_the_broker_room_for_other_clients_messages() -> None:
    with rig.echo_server() as target, hosting(client_mode.route(target), processes=1) as host:
        broker: Any = host.broker
        forward, depths = broker._broadcast_message, list[int]()

        async def broadcast(*message: Any) -> None:
            depths.append(broker._broadcast_queue.qsize())
            await forward(*message)

        broker._broadcast_message = broadcast
        measured = client_mode.result(client_mode.load("window", host.mqtt_port, 60, 64, 800))
    assert measured["lost"] == measured["doubled"] == 0
    assert statistics.median(depths) < 16, "with results published every fourth iteration: 40 and more"

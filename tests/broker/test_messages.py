"""The pace at which results reach the broker's queue: by itself, and in a real broker."""

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


def published_after(iterations: int) -> list[bytes]:
    """Return what a publisher with three publications has sent after some iterations of the loop."""
    sent: list[bytes] = []

    async def broadcast(_topic: str, payload: bytes, _qos: int | None) -> None:
        sent.append(payload)

    async def keep(_topic: str, _payload: bytes, _qos: int | None) -> None:
        raise AssertionError("nothing here is retained")

    async def run() -> None:
        publisher = Publisher(broadcast, keep, never)
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
    publisher = Publisher(lambda *_: asyncio.sleep(0), lambda *_: asyncio.sleep(0), never)
    large, small = Publication("topic", b"x" * (9 << 20)), Publication("topic", b"x" * LARGE_FAILURE)
    taken = [publisher.put(one, 1) for one in (large, large, large, small)]
    assert taken == [True, True, False, True]
    assert publisher.put(large, 1, release_credits=lambda _: None)


def test_a_publication_is_sent_every_third_iteration() -> None:
    assert published_after(6) == [b"1", b"2"]
    assert published_after(7) == [b"1", b"2", b"3"]


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
    assert statistics.median(depths) < 16, "where amqtt forwards in three iterations: 40 and more"

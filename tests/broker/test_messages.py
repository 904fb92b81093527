"""The pace at which results reach the broker's queue, in a real broker."""

import statistics
from typing import Any

from tests.benchmarks import rig
from tests.support.embedded_broker import hosting


def test_results_leave_the_broker_room_for_other_clients_messages() -> None:
    with rig.echo_server() as target, hosting(rig.client_route(target), processes=1) as host:
        broker: Any = host.broker
        forward, depths = broker._broadcast_message, list[int]()

        async def broadcast(*message: Any) -> None:
            depths.append(broker._broadcast_queue.qsize())
            await forward(*message)

        broker._broadcast_message = broadcast
        measured = rig.result(rig.load("window", host.mqtt_port, 60, 64, 800))
    assert measured["lost"] == measured["doubled"] == 0
    assert statistics.median(depths) < 16, "where amqtt forwards in three iterations: 40 and more"

"""The broker's word on what callers have published: it leaves as soon as it is there."""

import asyncio
import socket

from amqtt_rest_bridge.link.bridge_end import BridgeEnd
from amqtt_rest_bridge.link.broker_end import BrokerEnd
from amqtt_rest_bridge.link.frames import Confirmed
from amqtt_rest_bridge.processes.caller_feed import CallerFeed


def test_confirmations_of_one_iteration_of_the_loop_leave_in_one_frame_and_wait_for_no_others() -> None:
    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        broker, bridge = BrokerEnd(ours, coalesce_seconds=60.0), BridgeEnd(theirs)
        loop = asyncio.get_running_loop()
        broker.attach(loop)
        feed = CallerFeed(loop, broker)
        feed.confirm(1, True)
        feed.confirm(2, False)
        feed.confirm(3, True)
        await asyncio.sleep(0)
        assert bridge.receive(5.0) == [Confirmed([1, 3], [2])]
        feed.confirm(4, True)
        await asyncio.sleep(0)
        assert bridge.receive(5.0) == [Confirmed([4], [])]
        broker.close()
        bridge.close()

    asyncio.run(scenario())

"""`drain`: the end of the plugin, once no client can connect any more. The broker's loop only.

Messages that clients have published by now are passed on; the bridge finishes its requests; their results reach the
subscribers. What does not get so far within the time is counted in the log.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from amqtt_rest_bridge.broker.lossless import Lossless
from amqtt_rest_bridge.broker.publisher import Publisher
from amqtt_rest_bridge.broker.repairs.shutdown import Draining
from amqtt_rest_bridge.processes.supervisor import Times

if TYPE_CHECKING:
    from amqtt_rest_bridge.broker.endpoint import Endpoint

log = logging.getLogger(__name__)


class StopsInTime(Protocol):
    """A bridge."""

    async def stop(self, grace: float) -> None:
        """Take no more messages, give running requests `grace` seconds, and end."""
        ...


async def drain(
    clients: Draining, bridge: StopsInTime, endpoint: "Endpoint", lossless: Lossless | None, publisher: Publisher,
    times: Times,
) -> None:  # fmt: skip
    """Stop the bridge, and wait until what it has published is delivered."""
    loop = asyncio.get_running_loop()
    await clients.passed_on()
    deadline = loop.time() + times.grace + times.publish
    await bridge.stop(times.grace)
    for route, count in endpoint.unfinished().items():
        log.warning("route %s: %d message(s) had not been answered when the broker stopped", route, count)
    for route, count in ({} if lossless is None else lossless.rows).items():
        log.info("route %s: %d message(s) stay in the spool for a start with this route", route, count)
    if undelivered := await publisher.settled(max(times.publish, deadline - loop.time())):
        log.warning("%d message(s) had not reached their subscribers when the broker stopped", undelivered)

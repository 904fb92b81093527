"""Defect, amqtt 0.12.1 before Python 3.12: a client that sends all the time keeps the broker from shutting down.

amqtt cancels once the task that reads a connection, and waits for its end. `asyncio.wait_for`, in which that task
waits, drops a cancellation that comes together with a packet, so the shutdown waits until the client ends by itself.

Mended: a connection that is read on is cut off.

Upstream: none of amqtt; https://github.com/python/cpython/issues/86296 is that of `wait_for`.
"""

import asyncio
from typing import Any, Final

from amqtt_rest_bridge.broker import amqtt_broker

_STOP_SECONDS: Final = 0.05  # what the reading of a connection that was cancelled gets to end before it is cut off


def mend(broker: Any) -> None:
    """Cut off a connection that is being stopped and reads on."""

    def cutting_off(stop: amqtt_broker.Step) -> amqtt_broker.Step:
        async def stop_reading(handler: Any) -> None:
            stopping = asyncio.ensure_future(stop(handler))
            try:
                while not (await asyncio.wait((stopping,), timeout=_STOP_SECONDS))[0]:
                    amqtt_broker.end_reading(handler)
            finally:
                stopping.cancel()
            await stopping

        return stop_reading

    amqtt_broker.replace(broker, amqtt_broker.Steps.STOP_HANDLER, cutting_off)

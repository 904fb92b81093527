"""Defect, amqtt 0.12.1 before Python 3.12: a client that sends without a pause keeps the broker from shutting down.

amqtt cancels the task that reads a connection, and waits for its end. That task is in `asyncio.wait_for`, which loses a
cancellation that comes together with a packet. So the shutdown waits until the client ends the connection.

Mended: the connection is aborted, and the task cancelled again, until the task ends.

Upstream: none of amqtt; https://github.com/python/cpython/issues/86296 is that of `wait_for`.
"""

import asyncio
from typing import Any, Final

from amqtt_rest_bridge.broker import amqtt_broker

_STOP_SECONDS: Final = 0.05  # how long the task that reads may take to end


def mend(broker: Any) -> None:
    """Abort a connection that is still read while amqtt waits for its handler to stop."""

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

"""Defect, amqtt 0.12.1: a TCP connection without a CONNECT, or whose CONNECT was refused, is left open.

So each port scan costs a file descriptor for ever. From Python 3.12.1 on (seen in 3.12.1 and 3.13.0) asyncio's
`Server.wait_closed` waits until every connection is closed; before, and with uvloop 0.23, it returns at once. So one
such connection, or one client that reads nothing, keeps `Broker.shutdown` from ending.

Mended: a connection is closed when amqtt has finished with it, and aborted when the broker ends.

Upstream: https://github.com/python/cpython/issues/104344 is the change of `wait_closed`; of amqtt no issue is known.
"""

import asyncio
import logging
from functools import partial
from typing import Any, Final
from weakref import WeakSet

from amqtt_rest_bridge.broker import amqtt_broker

log = logging.getLogger(__name__)

_KEPT: Final = "_kept_writer"  # the attribute by which a connection's protocol keeps its writer


def mend(broker: Any) -> None:
    """Close connections that amqtt has finished with, and abort the others when the broker ends."""
    writers: WeakSet[asyncio.StreamWriter] = WeakSet()  # of the connections that are open; see `_KEPT`
    amqtt_broker.replace(broker, amqtt_broker.Steps.SERVE_STREAM, partial(_closing, writers))
    amqtt_broker.replace(broker, amqtt_broker.Steps.LISTEN, partial(_cutting_off, writers))


def _closing(writers: "WeakSet[asyncio.StreamWriter]", serve: amqtt_broker.Step) -> amqtt_broker.Step:
    """Return the step that serves a connection, with the connection closed after it."""

    async def serve_and_close(reader: Any, writer: asyncio.StreamWriter, listener_name: str) -> None:
        writers.add(writer)
        # From Python 3.12 on nothing else keeps the writer after `serve`, and the connection may still be open.
        setattr(writer.transport.get_protocol(), _KEPT, writer)
        try:
            await serve(reader, writer, listener_name)
        except asyncio.CancelledError:
            # The loop ends, and no CONNECT has come. asyncio of Python 3.11 logs a stack trace for a task that ends as
            # cancelled here.
            pass
        except (OSError, RuntimeError) as error:  # RuntimeError: uvloop, when the transport is closed
            if not writer.transport.is_closing():
                raise
            log.debug("a client of listener %s has gone while its CONNECT was answered: %s", listener_name, error)
        finally:
            writer.close()

    return serve_and_close


def _cutting_off(writers: "WeakSet[asyncio.StreamWriter]", listen: amqtt_broker.Step) -> amqtt_broker.Step:
    """Return the step that makes a listener, whose `wait_closed` first aborts what is still connected."""

    async def listen_and_cut_off(*arguments: Any) -> Any:
        server = await listen(*arguments)
        if isinstance(server, asyncio.Server):
            wait_closed = server.wait_closed

            async def cut_off() -> None:
                for writer in list(writers):
                    writer.transport.abort()
                await wait_closed()

            server.wait_closed = cut_off  # type: ignore[method-assign]
        return server

    return listen_and_cut_off

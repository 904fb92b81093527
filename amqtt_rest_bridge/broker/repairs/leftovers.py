"""Defect, amqtt 0.12.1: a TCP connection on which no CONNECT came, or whose CONNECT was refused, is left open.

Each port scan then costs a file descriptor for ever. From Python 3.12.1 on (seen in 3.12.1 and 3.13.0) asyncio's
`Server.wait_closed` waits until every connection is gone, where it returned at once before: one such connection, or a
client that reads nothing, keeps `Broker.shutdown` from ending. uvloop 0.23 does not wait.

Mended: a connection is closed once amqtt is done with it, and cut off when the broker ends.

Upstream: https://github.com/python/cpython/issues/104344 is the change of `wait_closed`; of amqtt no issue is known.
"""

import asyncio
import logging
from functools import partial
from typing import Any, Final
from weakref import WeakSet

from amqtt_rest_bridge.broker import amqtt_broker

log = logging.getLogger(__name__)

_KEPT: Final = "_kept_writer"  # an attribute of protocols


def mend(broker: Any) -> None:
    """Close and cut off connections."""
    writers: WeakSet[asyncio.StreamWriter] = WeakSet()  # each is kept by its protocol while its connection is open
    amqtt_broker.replace(broker, amqtt_broker.Steps.SERVE_STREAM, partial(_closing, writers))
    amqtt_broker.replace(broker, amqtt_broker.Steps.LISTEN, partial(_cutting_off, writers))


def _closing(writers: "WeakSet[asyncio.StreamWriter]", serve: amqtt_broker.Step) -> amqtt_broker.Step:
    """Return the step that serves a connection, with the connection closed after it."""

    async def serve_and_close(reader: Any, writer: asyncio.StreamWriter, listener_name: str) -> None:
        writers.add(writer)
        # From Python 3.12 on a protocol does not keep its writer; the connection may outlive what serves it.
        setattr(writer.transport.get_protocol(), _KEPT, writer)
        try:
            await serve(reader, writer, listener_name)
        except asyncio.CancelledError:
            # At the loop's end, of a connection on which no CONNECT came. Python 3.11's asyncio would ask this task for
            # its exception, and log a stack trace where there is none.
            pass
        except (OSError, RuntimeError) as error:  # the latter is uvloop's, of a transport that is closed
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

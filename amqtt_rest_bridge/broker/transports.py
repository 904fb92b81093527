"""The TCP connections of the broker's listeners: closed once amqtt is done with them, cut off when the broker ends.

amqtt 0.12.1 leaves a connection open on which no CONNECT came or whose CONNECT was refused, so each port scan costs a
file descriptor for ever. From Python 3.12.1 on (seen in 3.12.1 and 3.13.0) asyncio's `Server.wait_closed` waits until
every connection is gone, where it returned at once before. One such connection, or a client that reads nothing, then
keeps `Broker.shutdown` from ending. uvloop 0.23 does not wait.

amqtt cancels once the task that reads a connection, and waits for its end. Before Python 3.12 `asyncio.wait_for`, in
which that task waits, drops a cancellation that comes together with a packet: a client that sends all the time then
keeps the broker from shutting down until it ends by itself.

Of a client that sends all the time amqtt reads all that has come, 128 KiB or more, in one iteration of the loop when it
has no keep-alive, and from Python 3.12 on in any case. That may be 10,000 packets, and everything else, SIGTERM too,
waits for seconds on a busy machine. So reading pauses after a few packets.

amqtt also logs a stack trace at its end for each message that such a client has not read. The broker's loop alone.
"""

import asyncio
import logging
from collections import deque
from functools import partial
from typing import Any, Final
from weakref import WeakSet

from amqtt_rest_bridge.broker import amqtt_broker

log = logging.getLogger(__name__)

_END_SECONDS: Final = 1.0  # what a delivery that was cancelled gets to end
_STOP_SECONDS: Final = 0.05  # what the reading of a connection that was cancelled gets to end before it is cut off

_READS: Final = 16  # of a connection in one iteration of the loop; about three packets


def close_leftover_connections(broker: Any) -> None:
    """Close and cut off the connections of an amqtt broker; before it starts, once or more."""
    if not isinstance(getattr(broker.stream_connected, "__self__", None), _Transports):
        _Transports(broker)


class _Transports:
    """Wraps the steps of amqtt that serve connections and open listeners."""

    def __init__(self, broker: Any) -> None:
        self._transports: WeakSet[asyncio.WriteTransport] = WeakSet()
        amqtt_broker.replace_serve_stream(broker, self._serving)
        amqtt_broker.replace_listen(broker, self._listening)
        amqtt_broker.replace_stop_handler(broker, _stopping)
        amqtt_broker.replace_end_of_forwarding(broker, partial(_dropping_unread, amqtt_broker.deliveries(broker)))

    def _serving(self, serve: amqtt_broker.Step) -> amqtt_broker.Step:
        self._serve = serve
        return self.serve

    def _listening(self, listen: amqtt_broker.Step) -> amqtt_broker.Step:
        self._listen = listen
        return self.listen

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, listener_name: str) -> None:
        """Call amqtt to serve a connection, then close it."""
        self._transports.add(writer.transport)
        try:
            await self._serve(_PausingReader(reader), writer, listener_name)
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

    async def listen(self, *arguments: Any) -> Any:
        """Open a listener by amqtt; its `wait_closed` first aborts what is still connected."""
        server = await self._listen(*arguments)
        if isinstance(server, asyncio.Server):
            wait_closed = server.wait_closed

            async def cut_off() -> None:
                for transport in list(self._transports):
                    transport.abort()
                await wait_closed()

            server.wait_closed = cut_off  # type: ignore[method-assign]
        return server


class _PausingReader:
    """A stream as amqtt reads it, with a pause after some reads, in which the loop does everything else."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._reads = 0

    async def readexactly(self, size: int) -> bytes:
        """Read so many bytes."""
        self._reads += 1
        if self._reads % _READS == 0:
            await asyncio.sleep(0)
        return await self._reader.readexactly(size)

    async def read(self, size: int = -1) -> bytes:
        """Read up to so many bytes, or all."""
        return await self._reader.read(size)

    def feed_eof(self) -> None:
        """End the stream."""
        self._reader.feed_eof()


def _stopping(stop: amqtt_broker.Step) -> amqtt_broker.Step:
    """Return the step that stops a connection's handler; one that reads on is cut off."""

    async def stop_reading(handler: Any) -> None:
        stopping = asyncio.ensure_future(stop(handler))
        try:
            while not (await asyncio.wait((stopping,), timeout=_STOP_SECONDS))[0]:
                amqtt_broker.end_reading(handler)
        finally:
            stopping.cancel()
        await stopping

    return stop_reading


def _dropping_unread(deliveries: "deque[asyncio.Task[Any]]", end: amqtt_broker.Step) -> amqtt_broker.Step:
    """Return the end of forwarding with the deliveries dropped before that their clients have not read."""

    async def drop_and_end() -> None:
        unread = [delivery for delivery in deliveries if not delivery.done()]
        for delivery in unread:
            deliveries.remove(delivery)  # first: amqtt, which may still forward, logs those that have ended
            delivery.cancel()
        if unread:
            ended, _ = await asyncio.wait(unread, timeout=_END_SECONDS)
            for delivery in ended:
                delivery.cancelled() or delivery.exception()  # else asyncio logs that nothing has asked for it
            log.warning("%d message(s) are dropped: their clients had not read them at the shutdown", len(unread))
        await end()

    return drop_and_end

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
waits for seconds on a busy machine. So reading pauses after a dozen packets.

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

_READS: Final = 64  # of a connection in one iteration of the loop; about twelve packets, two milliseconds
_CHUNK: Final = 16 << 10  # bytes that are taken out of a stream at once


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
            await self._serve(_Reader(reader), writer, listener_name)
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


class _Reader:
    """A stream as amqtt reads it: what has come is taken out of it at once, with a pause after some reads.

    amqtt reads a PUBLISH in five steps. Out of a buffer of its own they take half as long as out of a `StreamReader`,
    which pays for the pauses. In a pause the loop does everything else.
    """

    __slots__ = ("_at", "_buffer", "_reader", "_reads")

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._buffer = b""
        self._at = 0
        self._reads = 0

    async def readexactly(self, size: int) -> bytes:
        """Read so many bytes; raises `asyncio.IncompleteReadError` at the end. Cancelled, it takes none."""
        self._reads += 1
        if self._reads == _READS:
            self._reads = 0
            await asyncio.sleep(0)
        while (end := self._at + size) > len(self._buffer):
            rest = self._buffer[self._at :]
            if size > _CHUNK:
                rest += await self._reader.readexactly(size - len(rest))
            elif chunk := await self._reader.read(_CHUNK):
                rest += chunk
            else:
                raise asyncio.IncompleteReadError(rest, size)
            self._buffer, self._at = rest, 0
        data = self._buffer[self._at : end]
        if end == len(self._buffer):
            self._buffer, self._at = b"", 0  # an idle connection keeps nothing
        else:
            self._at = end
        return data

    async def read(self, size: int = -1) -> bytes:
        """Read up to so many bytes, or all."""
        if not self._buffer:
            return await self._reader.read(size)
        end = len(self._buffer) if size < 0 else self._at + size
        data, self._at = self._buffer[self._at : end], min(end, len(self._buffer))
        return data + await self._reader.read(-1) if size < 0 else data

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

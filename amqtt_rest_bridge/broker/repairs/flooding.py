"""Defect, amqtt 0.12.1: a client that sends all the time keeps everything else of the broker waiting.

amqtt reads all that has come of it, 128 KiB or more, in one iteration of the loop when it has no keep-alive, and from
Python 3.12 on in any case. That may be 10,000 packets, and everything else, SIGTERM too, waits for seconds on a busy
machine. amqtt also reads a PUBLISH in five steps, each with the cost of a `StreamReader`.

Mended: reading pauses after a dozen packets. `Reader` reads WebSockets, too (see `web_sockets`).

Upstream: no issue is known.
"""

import asyncio
from typing import Any, Final, Protocol

from amqtt_rest_bridge.broker import amqtt_broker

_READS: Final = 64  # of a connection in one iteration of the loop; about twelve packets, two milliseconds
_CHUNK: Final = 16 << 10  # bytes that are taken out of a stream at once


def mend(broker: Any) -> None:
    """Pause between the packets of a TCP connection."""

    def pausing(serve: amqtt_broker.Step) -> amqtt_broker.Step:
        # No coroutine of its own: amqtt resumes what serves a connection with each message.
        return lambda reader, *arguments: serve(Reader(reader), *arguments)

    amqtt_broker.replace(broker, amqtt_broker.Steps.SERVE_STREAM, pausing)


class Source(Protocol):
    """A stream of what a connection sends."""

    async def read(self, size: int = -1) -> bytes:
        """Read the next bytes, or all; returns none at the end."""

    async def readexactly(self, size: int) -> bytes:
        """Read so many bytes; raises `asyncio.IncompleteReadError` at the end."""

    def read_rest(self, size: int) -> bytes:
        """Read up to so many bytes behind the end; returns none when there are no more, and never blocks."""

    def feed_eof(self) -> None:
        """End the stream."""


class Reader:
    """A stream as amqtt reads it: what has come is taken out of it at once, with a pause after some reads.

    amqtt reads a PUBLISH in five steps. Out of a buffer of its own they take half as long as out of a `StreamReader`,
    which pays for the pauses. In a pause the loop does everything else.
    """

    __slots__ = ("_at", "_buffer", "_reader", "_reads")

    def __init__(self, reader: Source) -> None:
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
                chunk = await self._read_large(size - len(rest))
            else:
                chunk = await self._reader.read(_CHUNK) or self._reader.read_rest(_CHUNK)
            if not chunk:
                # Nothing stays: amqtt reads on, and would take what is left of a packet that was cut off for packets.
                self._buffer, self._at = b"", 0
                raise asyncio.IncompleteReadError(rest, size)
            self._buffer, self._at = rest + chunk, 0
        data = self._buffer[self._at : end]
        if end == len(self._buffer):
            self._buffer, self._at = b"", 0  # an idle connection keeps nothing
        else:
            self._at = end
        return data

    async def _read_large(self, size: int) -> bytes:
        """Read so many bytes; returns none when there are fewer."""
        try:
            return await self._reader.readexactly(size)
        except asyncio.IncompleteReadError as error:
            data = bytearray(error.partial)
        while len(data) < size and (chunk := self._reader.read_rest(size - len(data))):
            data += chunk
        return bytes(data) if len(data) == size else b""

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

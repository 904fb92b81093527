"""Defect, amqtt 0.12.1: a client that sends without a pause keeps all others waiting.

amqtt reads everything that a client has sent, 128 KiB or more, in one iteration of the loop: always from Python 3.12
on, before that if the client has no keep-alive. These may be 10,000 packets. All else, SIGTERM too, waits for them, for
seconds on a busy machine.

Mended: the reader pauses after about twelve packets. It also has a buffer of its own: amqtt reads a PUBLISH in five
steps, which take half as long there as in a `StreamReader`, and that pays for the pauses. `web_sockets`
reads by it, too.

Upstream: no issue is known.
"""

import asyncio
from typing import Any, Final, Protocol

from amqtt_rest_bridge.broker import amqtt_broker

_READS: Final = 64  # calls of `readexactly` between two pauses; about twelve packets, two milliseconds
_CHUNK: Final = 16 << 10  # bytes that are moved from the stream to the buffer at once


def mend(broker: Any) -> None:
    """Pause between the packets of a TCP connection."""

    def pausing(serve: amqtt_broker.Step) -> amqtt_broker.Step:
        # Not a coroutine that awaits amqtt's own: each message would resume both.
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
    """A buffered stream that yields to the loop after each `_READS` reads."""

    __slots__ = ("_at", "_buffer", "_reader", "_reads")

    def __init__(self, reader: Source) -> None:
        self._reader = reader
        self._buffer = b""
        self._at = 0
        self._reads = 0

    async def readexactly(self, size: int) -> bytes:
        """Return `size` bytes; raise `asyncio.IncompleteReadError` at the end. A cancelled call consumes none."""
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
        """Return up to `size` bytes; all until the end if it is negative."""
        if not self._buffer:
            return await self._reader.read(size)
        end = len(self._buffer) if size < 0 else self._at + size
        data, self._at = self._buffer[self._at : end], min(end, len(self._buffer))
        return data + await self._reader.read(-1) if size < 0 else data

    def feed_eof(self) -> None:
        """End the stream."""
        self._reader.feed_eof()

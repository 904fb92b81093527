"""Defect, amqtt 0.12.1: packets that arrived before their connection was reset are dropped.

Many clients close their connection while PUBACKs are unread, and the kernel then resets it. The packets before that are
in asyncio's stream and in the kernel's buffer. But the stream raises the error before it returns what it holds, and
asyncio closes the socket, and the kernel's buffer with it.

Mended: a reset ends the stream without an error, and a duplicate of the socket keeps the kernel's buffer. `flooding`
reads the stream to its end, then that buffer. With TLS only the stream can be read.

Upstream: none of amqtt; https://github.com/python/cpython/issues/75044 is that of the streams.
"""

import asyncio
import contextlib
import os
import socket
from functools import partial
from typing import Any

from amqtt.contexts import ListenerType

from amqtt_rest_bridge.broker import amqtt_broker


def mend(broker: Any) -> None:
    """Make TCP connections readable up to their reset."""

    def listening(listen: amqtt_broker.Step) -> amqtt_broker.Step:
        async def listen_for_streams(
            name: str, kind: ListenerType, address: str | None, port: int, context: Any
        ) -> Any:
            if kind is not ListenerType.TCP:
                return await listen(name, kind, address, port, context)
            loop, serve = asyncio.get_running_loop(), partial(broker.stream_connected, listener_name=name)
            return await loop.create_server(
                lambda: _Protocol(Stream(loop=loop), serve, loop), address, port, reuse_address=True, ssl=context
            )

        return listen_for_streams

    def closing(serve: amqtt_broker.Step) -> amqtt_broker.Step:
        async def serve_and_close(reader: Stream, writer: Any, listener_name: str) -> None:
            try:
                await serve(reader, writer, listener_name)
            finally:
                reader.close()

        return serve_and_close

    amqtt_broker.replace(broker, amqtt_broker.Steps.LISTEN, listening)
    amqtt_broker.replace(broker, amqtt_broker.Steps.SERVE_STREAM, closing)


class Stream(asyncio.StreamReader):
    """A stream, and the bytes of a reset connection that are still in the kernel's buffer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._is_closed = False
        self._rest: socket.socket | None = None

    def keep_rest(self, sock: Any) -> None:
        """Keep a duplicate of a socket that asyncio is about to close."""
        if not self._is_closed:
            with contextlib.suppress(OSError):  # too many open files
                self._rest = socket.socket(fileno=os.dup(sock.fileno()))
                self._rest.setblocking(False)

    def read_rest(self, size: int) -> bytes:
        """Return up to `size` bytes from behind the end of the stream, b"" when there are none; never blocks."""
        if self._rest is not None:
            with contextlib.suppress(OSError):
                return self._rest.recv(size)
        return b""

    def close(self) -> None:
        """Close the duplicate of the socket."""
        self._is_closed = True
        if self._rest is not None:
            self._rest.close()
            self._rest = None


class _Protocol(asyncio.StreamReaderProtocol):
    """The protocol of a `Stream`, which ends the stream without an error when the connection is reset."""

    def __init__(self, stream: Stream, serve: Any, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(stream, serve, loop=loop)
        self._stream = stream
        self._connection: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve a connection."""
        self._connection = transport
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the stream."""
        if exc is not None and self._connection is not None and self._connection.get_extra_info("sslcontext") is None:
            self._stream.keep_rest(self._connection.get_extra_info("socket"))
        super().connection_lost(None)

"""Defect, amqtt 0.12.1: what a client has sent before its connection is reset is dropped, read or not.

The kernel resets the connection of a client that closes it with PUBACKs unread, as many do. It still has what came
before, but asyncio's streams, in which amqtt reads, raise the error in front of what they have, and close the socket.

Mended: the stream of a connection that is reset ends as any other; behind its end `flooding`, which reads it, goes on
with what the kernel has. With TLS that is not readable any more, what asyncio has read is.

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
    """Read TCP connections to their ends."""

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
    """A stream, and what the kernel has of a connection that was reset behind what asyncio has read."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._is_closed = False
        self._rest: socket.socket | None = None

    def keep_rest(self, sock: Any) -> None:
        """Keep the rest of a socket that asyncio is about to close."""
        if not self._is_closed:
            with contextlib.suppress(OSError):  # too many open files
                self._rest = socket.socket(fileno=os.dup(sock.fileno()))
                self._rest.setblocking(False)

    def read_rest(self, size: int) -> bytes:
        """Read up to so many bytes behind the end; returns none when there are no more, and never blocks."""
        if self._rest is not None:
            with contextlib.suppress(OSError):
                return self._rest.recv(size)
        return b""

    def close(self) -> None:
        """Close what is kept."""
        self._is_closed = True
        if self._rest is not None:
            self._rest.close()
            self._rest = None


class _Protocol(asyncio.StreamReaderProtocol):
    """The protocol of a stream, for which a connection that is reset ends as any other."""

    def __init__(self, stream: Stream, serve: Any, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(stream, serve, loop=loop)
        self._stream = stream
        self._of: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve a connection."""
        self._of = transport
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the stream."""
        if exc is not None and self._of is not None and self._of.get_extra_info("sslcontext") is None:
            self._stream.keep_rest(self._of.get_extra_info("socket"))
        super().connection_lost(None)

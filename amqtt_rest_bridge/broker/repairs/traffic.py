"""Repairs of how amqtt 0.12.1 listens, reads connections, and forwards messages to subscribers.

Listeners and TCP connections (`_Streams`):

- A TCP connection without a CONNECT is left open: each port scan costs a descriptor. From Python 3.12.1 on
  `Server.wait_closed` waits for such connections, so that `Broker.shutdown` never returns
  (https://github.com/python/cpython/issues/104344). Mended: a connection is closed when amqtt has finished with it, and
  aborted when the broker ends.
- A listener cannot be bound to an IPv6 address, since amqtt keeps its brackets. Mended: it is bound without them.
  Upstream: https://github.com/Yakifo/amqtt/pull/72, open; no issue is known for the others.

Reading (`Reader`, which gets the bytes of TCP from `Stream`, and those of WebSockets from `_WebSocketStream`):

- Everything that a client has sent, 128 KiB or more, is read in one iteration of the loop (with Python 3.11 only if the
  client has no keep-alive). Other clients, and SIGTERM, wait for these packets, for seconds on a busy machine. Mended:
  `Reader` pauses after about twelve packets. It has a buffer, since amqtt reads a PUBLISH in five steps.
- Packets that arrived before their connection was reset are dropped. Many clients close their connection while PUBACKs
  are unread, and the kernel then resets it. asyncio's stream raises the error before it returns what it holds, and the
  kernel's buffer is closed with the socket (https://github.com/python/cpython/issues/75044). Mended: a reset ends
  `Stream` without an error, and a duplicate of the socket keeps that buffer. With TLS only the stream can be read.
- When a WebSocket closes in the middle of a packet, amqtt appends the last message again and again until the packet
  has its length: a wrong payload, or a loop that is busy for minutes. Also, each read of amqtt copies all bytes that
  have come. Mended: a WebSocket is read by `Reader`, too.

Forwarding to subscribers (`_Forwarding`, `CopiedWhenRead`):

- The broker takes three iterations of the loop, and a task, to forward one message. Each client can queue a message in
  three iterations, too. So with two clients that send without a pause the queue grows, and every other message waits
  behind it. Mended: queued messages are forwarded one after the other in one iteration, for a millisecond at most.
- amqtt starts a task, a delivery, for each subscriber of a message, and drops ended deliveries only from the front of
  their list. So while one client does not read, amqtt keeps every message that is sent to any client. Mended: ended
  deliveries are dropped wherever they are in the list.
- amqtt awaits the ACL, and the delivery of retained messages, inside loops over the subscriptions. If a client
  subscribes or leaves meanwhile, the loop fails with "dictionary changed size during iteration": a message does not
  reach its subscribers, or the connection of a new client ends. Mended: a loop goes over a copy, which is used until
  the subscriptions change.
"""

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Final
from weakref import WeakSet

from amqtt.adapters import StreamReaderAdapter, WebSocketsWriter
from amqtt.contexts import ListenerType
from amqtt.session import Session
from websockets.exceptions import ConnectionClosed

from amqtt_rest_bridge.broker import amqtt_broker
from amqtt_rest_bridge.errors import reason
from amqtt_rest_bridge.times import LineLimit

log = logging.getLogger(__name__)

_READS_BETWEEN_PAUSES: Final = 64  # calls of `readexactly` between two pauses; about twelve packets, two milliseconds
_CHUNK: Final = 16 << 10  # bytes that are moved from the stream to the buffer at once
_FORWARDING_SECONDS: Final = 0.001  # in one iteration of the loop; the next one runs the deliveries
_QUIET_SECONDS: Final = 1.0  # between two lines about the same kind of failure
_WRITER_ATTRIBUTE: Final = "_kept_writer"  # of a connection's protocol


def mend(broker: Any) -> None:
    """Replace the steps that listen, serve a connection and forward messages, and the mapping of subscriptions."""

    async def serve_websocket(websocket: Any, listener_name: str) -> None:
        reader: Any = Reader(_WebSocketStream(websocket))
        await broker.external_connected(StreamReaderAdapter(reader), WebSocketsWriter(websocket), listener_name)

    _Streams(broker)
    amqtt_broker.replace(broker, amqtt_broker.Steps.SERVE_WEBSOCKET, serve_websocket)
    _Forwarding(broker)
    amqtt_broker.replace_subscriptions(broker, CopiedWhenRead(broker.subscriptions))


class _Streams:
    """Makes the listeners of a broker, and serves its TCP connections: two steps of amqtt, replaced."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self._writers: WeakSet[asyncio.StreamWriter] = WeakSet()  # of open connections
        self._listen_as_amqtt = amqtt_broker.replace(broker, amqtt_broker.Steps.LISTEN, self.listen)
        self._serve_as_amqtt = amqtt_broker.replace(broker, amqtt_broker.Steps.SERVE_STREAM, self.serve)

    async def listen(self, name: str, kind: ListenerType, address: str | None, port: int, context: Any) -> Any:
        """Make a listener. When a TCP listener is closed, connections that are still open are aborted."""
        address = amqtt_broker.bare_address(address)
        if kind is not ListenerType.TCP:
            return await self._listen_as_amqtt(name, kind, address, port, context)
        loop, serve = asyncio.get_running_loop(), partial(self._broker.stream_connected, listener_name=name)
        server = await loop.create_server(
            lambda: _Protocol(Stream(loop=loop), serve, loop), address, port, reuse_address=True, ssl=context
        )
        if isinstance(server, asyncio.Server):  # a server of uvloop does not wait for connections
            wait_closed = server.wait_closed

            async def abort_and_wait() -> None:
                for writer in list(self._writers):
                    writer.transport.abort()
                await wait_closed()

            server.wait_closed = abort_and_wait  # type: ignore[method-assign]
        return server

    async def serve(self, reader: "Stream", writer: asyncio.StreamWriter, listener_name: str) -> None:
        """Serve a TCP connection, then close it."""
        self._writers.add(writer)
        # Until the connection is lost its protocol has to hold the writer: from Python 3.12 on nothing else does.
        setattr(writer.transport.get_protocol(), _WRITER_ATTRIBUTE, writer)
        try:
            await self._serve_as_amqtt(Reader(reader), writer, listener_name)
        except asyncio.CancelledError:
            # The loop ends before a CONNECT has come. asyncio of Python 3.11 would log a stack trace for this task if
            # it ended as cancelled.
            pass
        except (OSError, RuntimeError) as error:  # RuntimeError: uvloop, when the transport is closed
            if not writer.transport.is_closing():
                raise
            log.debug("a client of listener %s has gone while its CONNECT was answered: %s", listener_name, error)
        finally:
            reader.close()
            writer.close()


class Reader:
    """Reads a stream through a buffer, and yields to the loop after each `_READS_BETWEEN_PAUSES` reads."""

    __slots__ = ("_buffer", "_position", "_reader", "_reads")

    def __init__(self, reader: "Stream | _WebSocketStream") -> None:
        self._reader = reader
        self._buffer = b""
        self._position = 0
        self._reads = 0

    async def readexactly(self, size: int) -> bytes:
        """Return `size` bytes; raise `asyncio.IncompleteReadError` at the end. A cancelled call consumes none."""
        self._reads += 1
        if self._reads == _READS_BETWEEN_PAUSES:
            self._reads = 0
            await asyncio.sleep(0)
        while (end := self._position + size) > len(self._buffer):
            rest = self._buffer[self._position :]
            if size > _CHUNK:
                chunk = await self._read_large(size - len(rest))
            else:
                chunk = await self._reader.read(_CHUNK) or self._reader.read_rest(_CHUNK)
            if not chunk:
                # Drop the bytes of the packet that was cut off: amqtt reads on, and would take them for packets.
                self._buffer, self._position = b"", 0
                raise asyncio.IncompleteReadError(rest, size)
            self._buffer, self._position = rest + chunk, 0
        data = self._buffer[self._position : end]
        if end == len(self._buffer):
            self._buffer, self._position = b"", 0  # so that an idle connection has no buffer
        else:
            self._position = end
        return data

    async def _read_large(self, size: int) -> bytes:
        """Return `size` bytes, or none if there are fewer."""
        try:
            return await self._reader.readexactly(size)
        except asyncio.IncompleteReadError as error:
            data = bytearray(error.partial)
        while len(data) < size and (chunk := self._reader.read_rest(size - len(data))):
            data += chunk
        return bytes(data) if len(data) == size else b""

    async def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes; if `size` is negative, all until the end."""
        if not self._buffer:
            return await self._reader.read(size)
        end = len(self._buffer) if size < 0 else self._position + size
        data, self._position = self._buffer[self._position : end], min(end, len(self._buffer))
        return data + await self._reader.read(-1) if size < 0 else data

    def feed_eof(self) -> None:
        """End the stream."""
        self._reader.feed_eof()


class Stream(asyncio.StreamReader):
    """A stream of a TCP connection, with the bytes that are in the kernel's buffer when the connection is reset."""

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
        """Return up to `size` bytes that the kernel still has after the end of the stream; never blocks."""
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


class _WebSocketStream:
    """The bytes of a WebSocket's messages as a stream, with the methods of `Stream` that `Reader` calls."""

    def __init__(self, websocket: Any) -> None:
        self._websocket = websocket
        self._rest = b""

    async def read(self, size: int = -1) -> bytes:  # noqa: ARG002  # a message has come as a whole
        """Return the next bytes, perhaps more than `size`; none at the end."""
        data, self._rest = self._rest, b""
        while not data:
            try:
                message = await self._websocket.recv()
            except ConnectionClosed:
                return b""
            data = message.encode() if isinstance(message, str) else message
        return data

    async def readexactly(self, size: int) -> bytes:
        """Return `size` bytes; raise `asyncio.IncompleteReadError` at the end."""
        data = bytearray()
        while len(data) < size:
            chunk = await self.read()
            if not chunk:
                raise asyncio.IncompleteReadError(bytes(data), size)
            data += chunk
        self._rest = bytes(data[size:])
        return bytes(data[:size])

    def read_rest(self, _: int) -> bytes:
        """Return nothing: bytes that the kernel may still have are frames, not the contents of messages."""
        return b""

    def feed_eof(self) -> None:
        """Do nothing; amqtt does not call it."""


class _Forwarding:
    """Forwards the queued messages of a broker to its subscribers: amqtt's step FORWARD, replaced."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self._forward = amqtt_broker.forward_next(broker)
        self._queued = amqtt_broker.queue_length(broker)
        self._deliveries = amqtt_broker.deliveries(broker)
        self._failed = LineLimit(_QUIET_SECONDS)
        self._undelivered = LineLimit(_QUIET_SECONDS)
        self._forward_as_amqtt = amqtt_broker.replace(broker, amqtt_broker.Steps.FORWARD, self.forward_until_shutdown)

    async def forward_until_shutdown(self) -> None:
        """Forward messages until the broker's shutdown begins, then cancel the deliveries."""
        forwarding = asyncio.create_task(self._forward_all())
        try:
            shutdown = amqtt_broker.forwarding_shutdown(self._broker)
            await asyncio.wait((forwarding, shutdown), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            log.error("forwarding was cancelled")  # noqa: TRY400  # `serve` ends, and refers to the log for the reason
            raise
        finally:
            forwarding.cancel()
            await asyncio.gather(forwarding, return_exceptions=True)
        await self._forward_as_amqtt()  # as the shutdown has begun, amqtt's step only cancels the deliveries

    async def _forward_all(self) -> None:
        """Forward messages until cancelled."""
        while True:
            await self._forward_next()
            end = time.perf_counter() + _FORWARDING_SECONDS
            while self._queued() and time.perf_counter() < end:
                await self._forward_next()
            await asyncio.sleep(0)

    async def _forward_next(self) -> None:
        """Wait for a message, start a delivery to each of its subscribers, and drop deliveries that have ended.

        For each new delivery, two deliveries at the front of the list are examined: one that has ended is dropped,
        another one moves to the end. So at most half of the list has ended.
        """
        deliveries = self._deliveries
        before = len(deliveries)
        try:
            await self._forward()
        except (Exception, asyncio.CancelledError) as error:  # of a topic plugin
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            if count := self._failed.count():
                log.exception("%d message(s) did not reach all subscribers; the last one failed so", count)
        for _ in range(min(2 * (len(deliveries) - before) + 1, len(deliveries))):
            delivery = deliveries.popleft()
            if not delivery.done():
                deliveries.append(delivery)
                continue
            failure = None if delivery.cancelled() else delivery.exception()
            if failure is not None and (count := self._undelivered.count()):
                log.warning("%d message(s) did not reach a client, the last one: %s", count, reason(failure))


class CopiedWhenRead(dict[str, list[tuple[Session, int]]]):
    """Subscribers by filter; a loop over them sees those that there were when it began.

    amqtt loops over `items` for each message, so one copy serves until the subscriptions change. Each look-up drops the
    copy too, since amqtt changes the list of a filter right after it has looked it up.
    """

    def __iter__(self) -> Iterator[str]:
        return iter(list(self.keys()))

    def items(self) -> Any:
        """Return each filter and its subscribers."""
        copy = [(topic_filter, subscribers[:]) for topic_filter, subscribers in super().items()]
        # The attribute hides this method, so that further calls return the copy at once, until `_drop_copy` removes it.
        self.items = copy.__iter__  # type: ignore[method-assign]
        return iter(copy)

    def _drop_copy(self) -> None:
        vars(self).clear()

    def __getitem__(self, topic_filter: str) -> list[tuple[Session, int]]:
        self._drop_copy()
        return super().__getitem__(topic_filter)

    def __setitem__(self, topic_filter: str, subscribers: list[tuple[Session, int]]) -> None:
        self._drop_copy()
        super().__setitem__(topic_filter, subscribers)

    def __delitem__(self, topic_filter: str) -> None:
        self._drop_copy()
        super().__delitem__(topic_filter)

    def clear(self) -> None:
        """Remove all: the broker starts again."""
        self._drop_copy()
        super().clear()

"""Defect, amqtt 0.12.1: a WebSocket that closes in the middle of a packet has amqtt make up the rest of the packet.

amqtt's reader appends the last WebSocket message again and again, until the packet has its length. The broker then
passes on a message with a wrong payload. If the packet announces 256 MiB, the loop is busy for minutes.
amqtt also copies all that has come for each of its reads, and reads without a pause: a WebSocket message of 1 MiB with
small packets keeps the loop busy for a long time.

Mended: a WebSocket is read as a TCP connection is, by the reader of `flooding`.

Upstream: no issue is known.
"""

import asyncio
from typing import Any, Final

from amqtt.adapters import StreamReaderAdapter, WebSocketsWriter
from websockets.exceptions import ConnectionClosed

from amqtt_rest_bridge.broker import amqtt_broker
from amqtt_rest_bridge.broker.repairs.flooding import Reader

_ALL: Final = -1


def mend(broker: Any) -> None:
    """Read WebSockets as streams."""

    def as_streams(_: amqtt_broker.Step) -> amqtt_broker.Step:
        async def serve(websocket: Any, listener_name: str) -> None:
            reader: Any = Reader(_Messages(websocket))
            await broker.external_connected(StreamReaderAdapter(reader), WebSocketsWriter(websocket), listener_name)

        return serve

    amqtt_broker.replace(broker, amqtt_broker.Steps.SERVE_WEBSOCKET, as_streams)


class _Messages:
    """What has come in the messages of a WebSocket, as a stream."""

    def __init__(self, websocket: Any) -> None:
        self._websocket = websocket
        self._rest = b""

    async def read(self, size: int = _ALL) -> bytes:  # noqa: ARG002  # a message has come as a whole
        """Read the next bytes, also more than `size`; returns none at the end."""
        data, self._rest = self._rest, b""
        while not data:
            try:
                message = await self._websocket.recv()
            except ConnectionClosed:
                return b""
            data = message.encode() if isinstance(message, str) else message
        return data

    async def readexactly(self, size: int) -> bytes:
        """Read so many bytes; raises `asyncio.IncompleteReadError` at the end."""
        data = bytearray()
        while len(data) < size:
            chunk = await self.read()
            if not chunk:
                raise asyncio.IncompleteReadError(bytes(data), size)
            data += chunk
        self._rest = bytes(data[size:])
        return bytes(data[:size])

    def read_rest(self, _: int) -> bytes:
        """Return nothing: the kernel may have more bytes behind the end, but they are in frames."""
        return b""

    def feed_eof(self) -> None:
        """Do nothing; amqtt does not call it."""

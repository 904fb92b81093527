"""MQTT over WebSockets (MQTT 5 section 6), for `MqttConnection` as over a socket. The event loop only."""

import asyncio
from typing import Final

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.typing import Subprotocol

from amqtt_rest_bridge.addresses import in_url
from amqtt_rest_bridge.mqtt.values import Address

_SUBPROTOCOL: Final = Subprotocol("mqtt")  # [MQTT-6.0.0-3]
_LARGEST_FRAME: Final = 1 << 28  # as the largest packet


class WebSocketTransport(asyncio.Transport):
    """Sends and receives a stream of bytes in binary frames; it has the methods that `MqttConnection` calls."""

    def __init__(self, socket: ClientConnection, protocol: asyncio.Protocol) -> None:
        super().__init__({"socket": socket.transport.get_extra_info("socket")})
        self._socket = socket
        self._protocol = protocol
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._unsent: list[bytes] = []
        self._sending: asyncio.Task[None] | None = None
        self._reading = asyncio.ensure_future(self._read())

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes in a frame, after those that are on their way."""
        self._unsent.append(bytes(data))
        if self._sending is None:
            self._sending = asyncio.ensure_future(self._send())

    def pause_reading(self) -> None:
        """Read one more frame at most."""
        self._may_read.clear()

    def resume_reading(self) -> None:
        """Read again."""
        self._may_read.set()

    def close(self) -> None:
        """Send what is on its way, and close."""
        self._reading.cancel()

    def abort(self) -> None:
        """Close at once."""
        self._socket.transport.abort()
        self._reading.cancel()

    async def _read(self) -> None:
        error: Exception | None = None
        try:
            async for frame in self._socket:
                if isinstance(frame, str):  # [MQTT-6.0.0-1]
                    break
                await self._may_read.wait()
                self._protocol.data_received(frame)
        except ConnectionClosed as closed:
            error = closed
        finally:
            if self._sending is not None and not self._socket.transport.is_closing():
                await asyncio.wait([self._sending], timeout=1)
            self._socket.transport.abort()
            self._protocol.connection_lost(error)

    async def _send(self) -> None:
        try:
            while self._unsent:
                data, self._unsent = b"".join(self._unsent), []
                await self._socket.send(data)
        except ConnectionClosed:  # which `_read` reports
            self._unsent.clear()
        self._sending = None


async def open_websocket(address: Address, protocol: asyncio.Protocol) -> None:
    """Connect a protocol through a WebSocket.

    Raises:
        OSError: It cannot be reached, or answers something else.
    """
    uri = f"{'ws' if address.tls is None else 'wss'}://{in_url(address.host)}:{address.port}{address.path}"
    try:
        socket = await connect(
            uri, ssl=address.tls, subprotocols=[_SUBPROTOCOL], max_size=_LARGEST_FRAME, compression=None,
            ping_interval=None,
        )  # fmt: skip
    except WebSocketException as error:
        raise OSError(str(error)) from error
    protocol.connection_made(WebSocketTransport(socket, protocol))

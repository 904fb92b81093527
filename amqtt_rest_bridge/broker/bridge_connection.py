"""One connection of the bridge to the endpoint of its broker: bytes to packets, and back. The broker's loop only.

What the packets mean is in `endpoint`. Packets of one iteration of the loop are written at once, and those that are not
urgent at most every three milliseconds. The socket is not read while the bridge publishes faster than amqtt takes it,
and no more is written than its buffer has room for.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from amqtt_rest_bridge.mqtt import packets, served
from amqtt_rest_bridge.mqtt.packets import Disconnect
from amqtt_rest_bridge.mqtt.private import GATHERED_SECONDS
from amqtt_rest_bridge.mqtt.wire import PacketError

log = logging.getLogger(__name__)

_UNSENT_BYTES: Final = 1 << 20  # in the buffer of the socket; beyond it messages wait in their session
_MOST_WRITTEN: Final = 64  # packets written in one iteration of the loop ...
_MOST_WRITTEN_BYTES: Final = 64 << 10  # ... and their bytes; the last one may exceed them
_MOST_PACKETS: Final = 32  # taken in one iteration of the loop, which has clients to serve


class TakesPackets(Protocol):
    """What a connection needs of the endpoint."""

    def opened(self, connection: "BridgeConnection") -> None:
        """Note a new connection."""

    def received(self, connection: "BridgeConnection", packet: Any) -> None:
        """Take a packet; raises `PacketError` for one that may not come now."""

    def ended(self, connection: "BridgeConnection") -> None:
        """Note that a connection has ended."""

    def has_room(self) -> bool:
        """Return whether the bridge may publish more."""


class BridgeConnection(asyncio.Protocol):
    """A connection that the bridge has opened.

    Args:
        endpoint: Takes its packets.
    """

    def __init__(self, endpoint: TakesPackets) -> None:
        self.on_writable: Callable[[], None] = lambda: None
        """Called when the socket takes more again."""
        self.is_leaving = False
        """Whether the bridge has said that it ends the connection."""
        self._endpoint = endpoint
        self._decoder = served.decoder()
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._is_due = False  # to be written at the end of this iteration
        self._flushed_at = 0.0
        self._is_full = False
        self._is_reading = True
        self._take_due = False

    @property
    def takes_more(self) -> bool:
        """Return whether a message may be written now; else `on_writable` is called once one may."""
        is_room = len(self._unsent) < _MOST_WRITTEN and self._unsent_bytes < _MOST_WRITTEN_BYTES
        return is_room and not self._is_full

    @property
    def is_reading(self) -> bool:
        """Return whether the socket is read."""
        return self._is_reading

    def write(self, packet: bytes, *, is_urgent: bool = True) -> None:
        """Send a packet at the end of this iteration of the loop; one that is not urgent may wait for others."""
        is_first = not self._unsent
        self._unsent.append(packet)
        self._unsent_bytes += len(packet)
        if is_urgent or not self.takes_more:
            if not self._is_due:
                self._is_due = True
                self._loop.call_soon(self._flush)
        elif is_first:
            self._loop.call_later(self._flushed_at + GATHERED_SECONDS - self._loop.time(), self._flush)

    def take(self) -> None:
        """Take packets that have come, some at a time, while the bridge may publish."""
        self._take_due = False
        left = _MOST_PACKETS
        try:
            while left and not self._transport.is_closing() and self._endpoint.has_room():
                if (packet := self._decoder.next()) is None:
                    break
                left -= 1
                self.is_leaving = self.is_leaving or isinstance(packet, Disconnect)
                self._endpoint.received(self, packet)
        except PacketError as error:
            log.error("the bridge sent its broker what MQTT does not allow: %s", error)  # noqa: TRY400  # the fact is enough
            self.write(packets.disconnect(error.code))
            self._flush()
            self._transport.close()
            return
        if self.is_leaving:
            self._transport.close()
            return
        if not left:
            self._take_soon()
        self._read(left > 0 and self._endpoint.has_room())

    def resume(self) -> None:
        """Take packets again, since the bridge may publish."""
        if not self._is_reading:
            self._take_soon()

    def abort(self) -> None:
        """End the connection at once."""
        self._transport.abort()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Write on this transport."""
        self._loop = asyncio.get_running_loop()
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(_UNSENT_BYTES)
        self._endpoint.opened(self)

    def data_received(self, data: bytes) -> None:
        """Take what the bridge sends."""
        self._decoder.feed(data)
        if not self._take_due:
            self.take()

    def pause_writing(self) -> None:
        """Write no more: messages wait in their session."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Send them."""
        self._is_full = False
        self.on_writable()

    def connection_lost(self, _error: Exception | None) -> None:
        """End."""
        self._endpoint.ended(self)

    def _flush(self) -> None:
        unsent, self._unsent, self._unsent_bytes, self._is_due = self._unsent, [], 0, False
        if unsent and not self._transport.is_closing():
            self._flushed_at = self._loop.time()
            self._transport.write(b"".join(unsent))
            if not self._is_full:
                self.on_writable()

    def _take_soon(self) -> None:
        if not self._take_due:
            self._take_due = True
            self._loop.call_soon(self.take)

    def _read(self, wanted: bool) -> None:
        if wanted != self._is_reading and not self._transport.is_closing():
            self._is_reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

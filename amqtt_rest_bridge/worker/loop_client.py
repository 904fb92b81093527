"""A paho-mqtt client on an asyncio loop: reading, writing, keep-alive. The loop alone, once it is attached."""

import asyncio
import socket
import ssl
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

_MOST_PACKETS: Final = 32  # read in one iteration of the loop
_TICK_SECONDS: Final = 1.0


class LoopClient(paho.Client):
    """An MQTT 5 client that acknowledges nothing by itself, and may leave what comes unread.

    Args:
        client_id: Its client id.
        loop: The loop.
        ping_seconds: How often PINGREQ is sent while nothing is read.
    """

    def __init__(self, client_id: str, loop: asyncio.AbstractEventLoop, ping_seconds: int) -> None:
        super().__init__(
            CallbackAPIVersion.VERSION2, client_id, protocol=paho.MQTTv5, reconnect_on_failure=False, manual_ack=True
        )
        self._asyncio = loop
        self._ping_seconds = ping_seconds
        self._open: socket.socket | None = None
        self._paused = self._reading = self._writing = self._write_due = False
        self._ticks = 0
        self.on_socket_register_write = self._want_write
        self.on_socket_close = self._detach

    def attach(self) -> bool:
        """Read and write on the loop from now on; return False when the socket is closed already."""
        sock: Any = self.socket()
        if sock is None:
            return False
        self._open = sock
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._watch_reading()
        self._write()
        self._asyncio.call_later(_TICK_SECONDS, self._tick)
        return True

    def pause(self) -> None:
        """Leave what comes unread."""
        self._paused = True
        self._watch_reading()

    def resume(self) -> None:
        """Read again."""
        if self._paused:
            self._paused = False
            self._ping_t = 0.0  # the answer to a ping may be behind much that was not read
            self._watch_reading()
            self._asyncio.call_soon(self._read_rest)

    def close(self) -> None:
        """Close the socket, without a word to the broker."""
        sock = self._open
        self._detach()
        if sock is not None:
            sock.close()

    def _detach(self, *_: Any) -> None:
        """Forget the socket, which is about to be closed."""
        sock, self._open = self._open, None
        if sock is not None and self._reading:
            self._asyncio.remove_reader(sock)
        if sock is not None and self._writing:
            self._asyncio.remove_writer(sock)
        self._reading = self._writing = False

    def _watch_reading(self) -> None:
        sock = self._open
        wanted = not self._paused and sock is not None
        if sock is not None and wanted and not self._reading:
            self._asyncio.add_reader(sock, self._read)
        elif sock is not None and self._reading and not wanted:
            self._asyncio.remove_reader(sock)
        self._reading = wanted

    def _read(self) -> None:
        for _ in range(_MOST_PACKETS):
            self.loop_read()
            if self._paused or self._open is None or not _has_more(self._open):
                return
        self._asyncio.call_soon(self._read_rest)

    def _read_rest(self) -> None:
        """Read what no selector reports: bytes that TLS has decrypted, and the end of what uvloop polls no more."""
        if self._reading and self._open is not None and _has_more(self._open):
            self._read()

    def _want_write(self, *_: Any) -> None:
        if not self._write_due and self._open is not None:  # on the thread that connects there is none yet
            self._write_due = True
            self._asyncio.call_soon(self._write)

    def _write(self) -> None:
        self._write_due = False
        if self._open is None:
            return
        self.loop_write()
        sock = self._open
        wanted = sock is not None and self.want_write()
        if sock is not None and wanted != self._writing:
            self._writing = wanted
            if wanted:
                self._asyncio.add_writer(sock, self._write)
            else:
                self._asyncio.remove_writer(sock)

    def _tick(self) -> None:
        """Send PINGREQ when it is due, and end a connection whose broker does not answer it."""
        if self._open is None:
            return
        if not self._paused:
            self.loop_misc()
        elif self._ticks % self._ping_seconds == 0:
            self._send_pingreq()  # whose answer is not awaited, as `loop_misc` would
        self._ticks += 1
        self._asyncio.call_later(_TICK_SECONDS, self._tick)


def _has_more(sock: socket.socket) -> bool:
    """Return whether a read would get something, or the end of the connection.

    uvloop (0.23) stops to poll a socket with an error, as of a broker that was killed, after it has reported it once.
    """
    if isinstance(sock, ssl.SSLSocket) and sock.pending():
        return True
    try:
        socket.socket.recv(sock, 1, socket.MSG_PEEK)  # of an SSLSocket too: what has not been decrypted
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True

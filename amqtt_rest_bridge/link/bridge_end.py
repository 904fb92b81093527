"""The bridge process's end of the link: `receive` for one thread at a time, `send` for any thread. Both block."""

import array
import select
import socket
import threading
from collections import deque
from typing import Final

from amqtt_rest_bridge.link.frames import CHUNK, FrameDecoder, ToBridge, ToBroker, encode

_MAX_DESCRIPTORS: Final = 250  # Linux passes at most 253 in one message (SCM_MAX_FD)


class BridgeEnd:
    """Receive frames and the sockets beside them (SCM_RIGHTS), and send frames."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._decoder: FrameDecoder[ToBridge] = FrameDecoder(ToBridge)
        # One buffer for all reads: one of this size for each is mapped and unmapped, which interrupts other threads.
        self._chunk = memoryview(bytearray(CHUNK))
        self._send_lock = threading.Lock()
        self._descriptors: deque[int] = deque()

    def fileno(self) -> int:
        """Return the descriptor that is readable when `receive` would not block."""
        return self._sock.fileno()

    def receive(self, timeout: float | None) -> list[ToBridge] | None:
        """Return the frames that arrive within `timeout` seconds (None: no limit), [] when none is complete by then.

        None means that the link is closed; frames that a closing broker sent before are returned first.
        """
        try:
            if timeout is not None and not self._poll.poll(timeout * 1000):
                return []
            size, ancillary, _flags, _address = self._sock.recvmsg_into(
                (self._chunk,), socket.CMSG_SPACE(_MAX_DESCRIPTORS * 4)
            )
        except OSError:
            return None
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors = array.array("i")
                descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
                self._descriptors.extend(descriptors)
        return self._decoder.feed(self._chunk[:size]) if size else None

    def take_socket(self) -> socket.socket:
        """Return the next socket that travelled with a `Listen` frame; the caller owns it."""
        return socket.socket(fileno=self._descriptors.popleft())

    def send(self, *frames: ToBroker) -> None:
        """Send frames; blocks while the broker is behind. A closed link is ignored: `receive` reports it."""
        data = b"".join(map(encode, frames))
        with self._send_lock:
            try:
                self._sock.sendall(data)
            except OSError:
                return

    def close(self) -> None:
        """Close the link and the sockets that were never taken."""
        while self._descriptors:
            self.take_socket().close()
        self._sock.close()

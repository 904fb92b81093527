"""What waits to be sent on one connection: pieces in order, sent as far as the peer takes them. Never blocks.

A piece is kept as it is and never copied, so a thousand callers that read the latest payload of one topic share its
bytes. On the port's thread.
"""

import socket
from collections import deque
from typing import Final

_SEND_BYTES: Final = 262_144  # of a piece with one call
_TURN_BYTES: Final = 1_048_576  # sent in a row before others get their turn


class Output:
    """The unsent part of one connection's answers; true while there is any.

    The connection bounds it: it makes no further answer while one waits.
    """

    __slots__ = ("_pieces", "_sock")

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._pieces: deque[memoryview] = deque()

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def send(self, *pieces: bytes) -> None:
        """Send pieces after what waits already; raises `OSError` when the connection is broken."""
        self._pieces.extend(memoryview(piece) for piece in pieces if piece)
        self.flush()

    def flush(self) -> int:
        """Send what the peer takes now; returns the number of bytes. Raises `OSError` when the connection is broken."""
        pieces, total = self._pieces, 0
        try:
            while pieces and total < _TURN_BYTES:
                piece = pieces[0]
                # TLS requires that a failed write is repeated with the same bytes in the same length.
                sent = self._sock.send(piece[:_SEND_BYTES])
                total += sent
                if sent == len(piece):
                    pieces.popleft()
                else:
                    pieces[0] = piece[sent:]
        except BlockingIOError:
            pass
        return total

    def drop(self) -> None:
        """Forget what waits."""
        self._pieces.clear()

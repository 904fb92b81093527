"""Answers on their way out of one connection: their bytes as HTTP/1.1 (RFC 9112), what waits to be sent, streams.

Nothing blocks: pieces are sent in order, as far as the peer takes them. A piece is kept as it is and never copied, so a
thousand callers that read the latest payload of one topic share its bytes. A stream is sent piece by piece, each once
the one before has left. On the port's thread.
"""

import socket
import time
from collections import deque
from collections.abc import Callable
from email.utils import formatdate
from functools import lru_cache
from typing import Final

from amqtt_rest_bridge.http_server.application import Response, Stream
from amqtt_rest_bridge.http_server.channel_loop import Timer

_SEND_BYTES: Final = 262_144  # of a piece with one call
_TURN_BYTES: Final = 1_048_576  # sent in a row before others get their turn
_COPIED_BYTES: Final = 16_384  # of a body, to send it together with its head; larger ones are sent as they are


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


def response_pieces(
    response: Response, request_id: str, *, method: str = "GET", version: str = "1.1", close: bool
) -> tuple[bytes, ...]:
    """Return an answer in one piece, one packet mostly, unless it is large.

    Raises `ValueError` for a header value that would break the answer or cannot be written.
    """
    head = _head(response, request_id, version, close=close)
    if method == "HEAD":
        return (head,)
    body = response.body
    return (head + body,) if len(body) <= _COPIED_BYTES else (head, body)


def _head(response: Response, request_id: str, version: str, *, close: bool) -> bytes:
    """Write an answer's head.

    waitress's own takes three times as long, and closes the connection after every 204 and 304 (3.0.2).
    """
    lines = [f"HTTP/{version} {response.status}"]
    for name, value in response.headers:
        if "\n" in value or "\r" in value or not value.isascii():
            raise ValueError(f"the value of {name} does not fit into a header")
        lines.append(f"{name}: {value}")
    if response.status[:3] not in ("204", "304") and response.stream is None:
        length = len(response.body) if response.content_length is None else response.content_length
        lines.append(f"Content-Length: {length}")
    lines.append(f"X-Request-ID: {response.request_id or request_id}")
    lines.append(_date(int(time.time())))
    if close:
        lines.append("Connection: close")
    elif version == "1.0":
        lines.append("Connection: keep-alive")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return f"Date: {formatdate(second, usegmt=True)}"


class StreamSender:
    """Send a stream.

    Args:
        stream: Where the pieces come from.
        output: Where they go.
        later: Calls an action after so many seconds.
        resume: Has `send` called; the action of the timers.
    """

    def __init__(
        self,
        stream: Stream,
        output: Output,
        later: Callable[[float, Callable[[], None]], Timer],
        resume: Callable[[], None],
    ) -> None:
        self._stream = stream
        self._output = output
        self._later = later
        self._resume = resume
        self._timer: Timer | None = None

    def send(self) -> bool:
        """Send the next piece, if there is one and room for it; return False at the end of the stream.

        One piece a turn, so that other connections get theirs. Raises `OSError` when the connection is broken.
        """
        if self._output:
            return True
        self._cancel_timer()
        piece, seconds = self._stream.take(), 0.0
        if piece == b"":
            return False
        if isinstance(piece, bytes):
            self._output.send(piece)
        else:
            seconds = piece
        if not self._output:
            self._timer = self._later(seconds, self._resume)
        return True

    def close(self) -> None:
        """Release the stream."""
        self._cancel_timer()
        self._stream.close()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

"""The broker's end of the link: on the broker's loop, and never blocking it.

What leaves waits in one queue, since a bridge process may be slow to read or hang. The loop writes it in chunks, two
an iteration, so that 100 MB for one bridge process delay no client. Listening sockets travel beside the bytes of their
frame (SCM_RIGHTS).

Frames of many items are gathered here: after a quiet moment items leave at once, so a lone message waits for nothing;
under load they wait two milliseconds at most and cost one frame of each kind. A frame holds `FRAME_BYTES` and the items
of one `gather` at most, so its length never comes near the 4 GiB that the link can say.
"""

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from amqtt_rest_bridge.link.frames import CHUNK, FrameDecoder, ToBridge, ToBroker, encode, encode_parts

log = logging.getLogger(__name__)

T = TypeVar("T")

FRAME_BYTES: Final = 1 << 20
_CHUNKS_AT_ONCE: Final = 2  # sent in one iteration of the broker's loop, even if the bridge reads as fast


class BrokerEnd:
    """Send frames, in the order of the calls; call `on_frame` for each one that arrives.

    Before `attach` (no loop runs in a plugin's constructor) the end is used blocking, by `send_now` and `receive_now`.

    Args:
        sock: Owned by this end from now on.
        on_frame: Called with each frame that arrives on the loop.
        on_closed: Called when the other end has closed the link, or sent what is not a frame.
        on_sent: Called when some of a backlog has left.
        coalesce_seconds: What is gathered less than this after a flush leaves in one frame when it has passed.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_frame: Callable[[ToBroker], None] = lambda _: None,
        on_closed: Callable[[], None] = lambda: None,
        on_sent: Callable[[], None] = lambda: None,
        coalesce_seconds: float = 0.002,
    ) -> None:
        self._sock = sock
        self._decoder: FrameDecoder[ToBroker] = FrameDecoder(ToBroker)
        # Bytes, and descriptors that leave with the first of them.
        self._out: deque[tuple[bytes | memoryview, list[int]]] = deque()
        self.backlog = 0
        """Bytes that wait until the bridge reads."""
        self.sent = 0
        """Bytes that have left since the beginning."""
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._on_sent = on_sent
        self._coalesce_seconds = coalesce_seconds
        self._loop: asyncio.AbstractEventLoop | None = None  # while attached
        self._writing = False
        # Items by what makes a frame of them; about how many bytes they take together.
        self._gathered: dict[Callable[[list[Any]], ToBridge], list[Any]] = {}
        self._size = 0
        self._flushed = 0.0  # when that happened last, by the loop's clock
        self._is_due = False  # a flush, by a timer
        self._looks_again = False

    def send_now(self, frame: ToBridge, sockets: Sequence[socket.socket] = ()) -> None:
        """Send one frame, with sockets beside it; blocks, so only before `attach`."""
        data = encode(frame)
        if sockets:
            sent = socket.send_fds(self._sock, [data], [sock.fileno() for sock in sockets])
            data = data[sent:]
        self._sock.sendall(data)

    def receive_now(self, timeout: float) -> list[ToBroker] | None:
        """Return the frames that arrive within `timeout` seconds: [] without a complete one, None on a closed link."""
        self._sock.settimeout(timeout)
        try:
            data = self._sock.recv(CHUNK)
        except TimeoutError:
            return []
        except OSError:
            return None
        return self._decoder.feed(data) if data else None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Attach to the loop: from now on nothing here blocks."""
        self._loop = loop
        self._sock.setblocking(False)
        loop.add_reader(self._sock.fileno(), self._readable)

    def gather(self, frame_of: Callable[[list[T]], ToBridge], items: Sequence[T], size: int) -> None:
        """Send items of about `size` bytes: at once after a quiet moment, else with those of the next 2 ms.

        `frame_of` makes the frame. Items of several kinds wait side by side: where calls and replies came in turns, a
        frame for each took five times as long. That a lone message leaves within the same iteration of the loop takes a
        sixth off the median latency at 200 messages/s: the bridge works while the loop does the rest.
        """
        if self._loop is None:
            return
        self._gathered.setdefault(frame_of, []).extend(items)
        self._size += size
        quiet = self._loop.time() - self._flushed > self._coalesce_seconds
        if quiet or self._size > FRAME_BYTES:
            self.flush()
        elif not self._is_due:  # one timer: with one left from before, frames would be half as large
            self._is_due = True
            self._loop.call_at(self._flushed + self._coalesce_seconds, self._flush_due)

    def flush(self) -> None:
        """Send what is gathered, a frame of each kind."""
        if self._gathered and self._loop is not None:
            gathered, self._gathered, self._size = self._gathered, {}, 0
            self._flushed = self._loop.time()
            for frame_of, items in gathered.items():
                self._queue(frame_of(items))

    def _flush_due(self) -> None:
        self._is_due = False
        self.flush()

    def send(self, frame: ToBridge, sockets: Sequence[socket.socket] = ()) -> None:
        """Queue one frame; what is queued is bounded by what the callers admit.

        Raises:
            OSError: There are too few file descriptors for the sockets; nothing is queued.
        """
        self.flush()
        self._queue(frame, sockets)

    def _queue(self, frame: ToBridge, sockets: Sequence[socket.socket] = ()) -> None:
        if self._loop is None:
            return
        # Duplicates, since the caller may close its sockets while the frame waits.
        descriptors = _duplicates(sockets) if sockets else []
        length, body = encode_parts(frame)
        if len(body) < CHUNK:
            self._out.append((length + body, descriptors))
        else:  # not joined, which would copy it
            self._out.extend(((length, descriptors), (body, [])))
        self.backlog += len(length) + len(body)
        if not self._writing:
            self._write()

    def close(self) -> None:
        """Close the link; the bridge process at the other end then ends by itself."""
        if self._loop is not None:
            self._loop.remove_reader(self._sock.fileno())
            if self._writing:
                self._loop.remove_writer(self._sock.fileno())
            self._loop = None
        for _, descriptors in self._out:
            _close_all(descriptors)
        self._out.clear()
        self.backlog = 0
        self._sock.close()

    def _has_room(self) -> None:
        self._write()
        self._on_sent()

    def _write(self) -> None:
        try:
            for _ in range(_CHUNKS_AT_ONCE):
                if not self._out:
                    break
                self._send_some()
        except BlockingIOError:
            pass
        except OSError:
            return  # the link is closed: `_readable` reports it
        is_left = bool(self._out)
        if self._loop is None or is_left == self._writing:
            return
        self._writing = is_left
        if is_left:
            self._loop.add_writer(self._sock.fileno(), self._has_room)
        else:
            self._loop.remove_writer(self._sock.fileno())

    def _send_some(self) -> None:
        data, descriptors = self._out.popleft()
        if not descriptors:
            parts, size = [data], len(data)
            while size < CHUNK and self._out and not self._out[0][1] and len(self._out[0][0]) < CHUNK:
                parts.append(self._out.popleft()[0])
                size += len(parts[-1])
            data = b"".join(parts) if len(parts) > 1 else data
        sent = 0
        try:
            sent = socket.send_fds(self._sock, [data], descriptors) if descriptors else self._sock.send(data)
            if descriptors:
                _close_all(descriptors)
                descriptors = []
        finally:
            self.backlog -= sent
            self.sent += sent
            if sent < len(data):  # a view, since copying what a hanging bridge leaves would take the loop's time
                self._out.appendleft((memoryview(data)[sent:], descriptors))

    def _readable(self) -> None:
        """Handle what has arrived, then look once more whether there is nothing left and the link is open.

        uvloop (0.23) stops to poll a socket with an error after it has called this once. A bridge process that dies
        with frames unread leaves such an error behind what it had sent: without the second look its end goes unseen.
        """
        if not self._looks_again:  # or each report of the selector would add one look to all later iterations
            self._look()

    def _look(self) -> None:
        self._looks_again = self._read() and self._read() and self._loop is not None
        if self._looks_again and self._loop is not None:
            self._loop.call_soon(self._look)  # others have their turn first

    def _read(self) -> bool:
        """Handle what has arrived; return False when nothing has, or the link is closed."""
        if self._loop is None:
            return False
        try:
            data = self._sock.recv(CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        try:
            for frame in self._decoder.feed(data):
                self._on_frame(frame)
        except Exception:  # results may be lost in it, so every call that the bridge process holds ends or is replayed
            log.exception("a frame of the bridge process cannot be handled: the process is restarted")
            data = b""
        if not data:
            self.close()
            self._on_closed()
        return bool(data)


def _duplicates(sockets: Iterable[socket.socket]) -> list[int]:
    descriptors: list[int] = []
    try:
        descriptors.extend(os.dup(sock.fileno()) for sock in sockets)
    except OSError:
        _close_all(descriptors)
        raise
    return descriptors


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)

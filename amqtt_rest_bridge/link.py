"""The link between the broker process and a bridge process: framed messages over a socket pair.

A frame is a four-byte length and a marshalled tuple whose first item is one of the `Op` numbers. marshal is the
fastest codec of the standard library that carries bytes (0.17 us a message of 100 bytes there and back, in batches of
eight; pickle 0.26), and both ends are the same interpreter and trust each other. Listening sockets travel beside the
bytes (SCM_RIGHTS).

`BridgeEnd` blocks and belongs to the threads of the bridge process; `BrokerEnd` belongs to the broker's loop and never
blocks it.
"""

import array
import asyncio
import logging
import marshal
import os
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

log = logging.getLogger(__name__)

Frame = tuple[Any, ...]

_LENGTH: Final = struct.Struct("<I")
_CHUNK: Final = 256 * 1024
_CHUNKS_AT_ONCE: Final = 2  # sent in one iteration of the broker's loop, even if the bridge reads as fast
_MAX_DESCRIPTORS: Final = 250  # Linux passes at most 253 in one message (SCM_MAX_FD)


class Op:
    """What a frame is. The comment gives the items behind the number; plain integers, as marshal wants them."""

    # broker to bridge
    ROUTES: Final = 1  # pickled bridge settings and routes, [port to serve, ...]
    LISTEN: Final = 2  # [port, ...]; their sockets travel beside it, one for each port, in this order
    CALLS: Final = 3  # [(call, event number, topic, payload, timestamp, idempotency key or None), ...]
    SEEN: Final = 4  # [(topic, payload), ...] of messages that may be replies
    CREDIT: Final = 5  # how many more credits the bridge may spend on publications
    STOP: Final = 6  # seconds of grace for what is running
    PING: Final = 7  # no items; answered by PONG, or STALLED
    LATEST: Final = 8  # [(topic filter, payload), ...]: the newest message of read events
    # bridge to broker
    READY: Final = 20  # no items
    FAILED: Final = 21  # reason
    DONE: Final = 22  # [(call, status or None, failure code or None, message, seconds, [publication, ...]), ...]
    PUBLISH: Final = 23  # [(route, topic, payload, retain), ...]
    WAITING: Final = 24  # call, +1 when it begins to wait for its next try, -1 when that try is due
    # Since the last such frame: {route: (answered, refused, last code, last message)}, [(route, event, requests, how
    # the last one was answered), ...]; the second only when the broker logs at INFO.
    SERVED: Final = 25
    LOG: Final = 26  # level, logger name, text
    STOPPED: Final = 27  # no items
    RETURNED: Final = 28  # call that has not ended and whose event is gone from the bridge
    TRY_FAILED: Final = 29  # lossless call that is tried until it succeeds, failure code, message
    PONG: Final = 30  # no items; every port has taken a turn
    STALLED: Final = 31  # [(SERVER_PORT, bound port), ...] that have taken no turn since the last PING


def credits_for(payload: bytes) -> int:
    """Say what a publication costs: one credit, and one more for every 16 KiB of payload."""
    return 1 + len(payload) // 16384


INITIAL_CREDITS: Final = 512  # publications under way to the broker: some 8 MiB at most


def encode(frame: Frame) -> bytes:
    """Turn a frame into its bytes on the link."""
    body = marshal.dumps(frame)
    return _LENGTH.pack(len(body)) + body


class _Decoder:
    """Cut a stream of bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        buffer = self._buffer
        buffer += data
        frames: list[Frame] = []
        start, size = 0, len(buffer)
        with memoryview(buffer) as view:
            while size - start >= 4:
                end = start + 4 + _LENGTH.unpack_from(view, start)[0]
                if end > size:
                    break
                frames.append(marshal.loads(view[start + 4 : end]))  # noqa: S302  # the other end is our own process
                start = end
        del buffer[:start]
        return frames


class BridgeEnd:
    """The bridge process's end: `receive` for one thread at a time, `send` for any thread."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._decoder = _Decoder()
        self._send_lock = threading.Lock()
        self._descriptors: deque[int] = deque()

    def receive(self, timeout: float | None) -> list[Frame] | None:
        """Wait at most `timeout` seconds (None: for ever) for frames; [] when no whole one came.

        None means that the link is closed; frames that a closing broker sent before are given first.
        """
        try:
            if timeout is not None and not self._poll.poll(timeout * 1000):
                return []
            data, ancillary, _flags, _address = self._sock.recvmsg(_CHUNK, socket.CMSG_SPACE(_MAX_DESCRIPTORS * 4))
        except OSError:
            return None
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors = array.array("i")
                descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
                self._descriptors.extend(descriptors)
        return self._decoder.feed(data) if data else None

    def take_socket(self) -> socket.socket:
        """Give the next socket that travelled with a LISTEN frame; the caller owns it."""
        return socket.socket(fileno=self._descriptors.popleft())

    def send(self, *frames: Frame) -> None:
        """Send frames; blocks while the broker is behind. A closed link is ignored: `receive` tells of it."""
        data = b"".join(map(encode, frames))
        with self._send_lock:
            try:
                self._sock.sendall(data)
            except OSError:
                return

    def close(self) -> None:
        """Close the link and whatever sockets were never taken."""
        while self._descriptors:
            self.take_socket().close()
        self._sock.close()


class BrokerEnd:
    """The broker's end, on its loop: frames go out in batches, `on_frame` is called for each one that comes in.

    Before `attach` (no loop runs in a plugin's constructor) the end is used blocking, by `send_now` and `receive_now`.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._decoder = _Decoder()
        # Bytes, and descriptors that leave with the first of them.
        self._out: deque[tuple[bytes | memoryview, list[int]]] = deque()
        self.backlog = 0
        """Bytes that wait until the bridge reads."""
        self.sent = 0
        """Bytes that have left since the beginning."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_frame: Callable[[Frame], None] = _ignore
        self._on_closed: Callable[[], None] = _nothing
        self._on_sent: Callable[[], None] = _nothing
        self._writing = False

    def send_now(self, frame: Frame, sockets: Sequence[socket.socket] = ()) -> None:
        """Send one frame, with sockets beside it; blocks, so only before `attach`."""
        data = encode(frame)
        if sockets:
            sent = socket.send_fds(self._sock, [data], [sock.fileno() for sock in sockets])
            data = data[sent:]
        self._sock.sendall(data)

    def receive_now(self, timeout: float) -> list[Frame] | None:
        """Wait at most `timeout` seconds for frames; [] when no whole one came, None when the link is closed."""
        self._sock.settimeout(timeout)
        try:
            data = self._sock.recv(_CHUNK)
        except TimeoutError:
            return []
        except OSError:
            return None
        return self._decoder.feed(data) if data else None

    def attach(
        self,
        loop: asyncio.AbstractEventLoop,
        on_frame: Callable[[Frame], None],
        on_closed: Callable[[], None],
        on_sent: Callable[[], None] | None = None,
    ) -> None:
        """Go over to the loop: from now on nothing here blocks; `on_sent` is called when some of a backlog has left."""
        self._loop, self._on_frame, self._on_closed, self._on_sent = loop, on_frame, on_closed, on_sent or _nothing
        self._sock.setblocking(False)
        loop.add_reader(self._sock.fileno(), self._readable)

    def send(self, frame: Frame, sockets: Sequence[socket.socket] = ()) -> None:
        """Queue one frame; what is queued is bounded by what the callers admit."""
        if self._loop is None:
            return
        # Duplicates, since the caller may close its sockets while the frame waits.
        descriptors = [os.dup(sock.fileno()) for sock in sockets]
        body = marshal.dumps(frame)
        length = _LENGTH.pack(len(body))
        if len(body) < _CHUNK:
            self._out.append((length + body, descriptors))
        else:  # not joined: copying 40 MB takes 10 ms of the loop's time
            self._out.extend(((length, descriptors), (body, [])))
        self.backlog += len(length) + len(body)
        if not self._writing:
            self._writable()

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
        self._writable()
        self._on_sent()

    def _writable(self) -> None:
        try:
            for _ in range(_CHUNKS_AT_ONCE):
                if not self._out:
                    break
                self._send_some()
        except BlockingIOError:
            pass
        except OSError:
            return  # the link is closed: the reader will tell
        self._wait_writable(bool(self._out))

    def _send_some(self) -> None:
        data, descriptors = self._out.popleft()
        if not descriptors:
            parts, size = [data], len(data)
            while size < _CHUNK and self._out and not self._out[0][1] and len(self._out[0][0]) < _CHUNK:
                parts.append(self._out.popleft()[0])
                size += len(parts[-1])
            data = b"".join(parts) if len(parts) > 1 else data
        sent = 0
        try:
            sent = socket.send_fds(self._sock, [data], descriptors) if descriptors else self._sock.send(data)
            _close_all(descriptors)
            descriptors = []
        finally:
            self.backlog -= sent
            self.sent += sent
            if sent < len(data):  # a view, since copying what a hanging bridge leaves would take the loop's time
                self._out.appendleft((memoryview(data)[sent:], descriptors))

    def _wait_writable(self, wanted: bool) -> None:
        if self._loop is None or wanted == self._writing:
            return
        self._writing = wanted
        if wanted:
            self._loop.add_writer(self._sock.fileno(), self._has_room)
        else:
            self._loop.remove_writer(self._sock.fileno())

    def _readable(self) -> None:
        try:
            data = self._sock.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end()
            return
        try:
            for frame in self._decoder.feed(data):
                self._on_frame(frame)
        except Exception:  # of calls that it may have told of, no one would hear again
            log.exception("what the bridge process says cannot be taken: it is started again")
            self._end()

    def _end(self) -> None:
        on_closed = self._on_closed
        self.close()
        on_closed()


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _ignore(_frame: Frame) -> None:
    """Before `attach` nobody listens."""


def _nothing() -> None:
    """Before `attach` nobody minds."""

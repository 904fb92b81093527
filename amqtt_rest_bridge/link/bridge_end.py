"""The bridge process's end of the link: frames in, on two threads in turn; results and publications out, by credits.

Publications cost credits (see `frames.credits_for`), which the broker returns as it publishes, so that a fast server
or many callers never fill the broker's memory. What the link carries beside them, such as `Pong`, passes what waits.

`receive` is for one thread at a time, everything that sends for any thread; both block.
"""

import array
import select
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from msgspec import Struct

from amqtt_rest_bridge.link.frames import (
    CHUNK,
    INITIAL_CREDITS,
    CallResult,
    Calls,
    DispatchedCall,
    FrameDecoder,
    Publications,
    PublishOnce,
    Results,
    ToBridge,
    ToBroker,
    credits_for,
    encode_parts,
)
from amqtt_rest_bridge.model import Publication
from amqtt_rest_bridge.records.values import SHOWN_BYTES

_MAX_DESCRIPTORS: Final = 250  # Linux passes at most 253 in one message (SCM_MAX_FD)
_BATCH: Final = 32  # results that may wait for company
_COMPANY_SECONDS: Final = 0.002  # ... and for how long
_MOST_GATHERED: Final = 4  # publications of one turn of a port: more would keep the broker's side waiting for the first
_MOST_RESULT_BYTES: Final = 8 << 20  # of results without credits; a worker with one more waits until some have left


class Entry(Struct, eq=False):
    """A result, a publication or another frame on its way to the broker, in order."""

    item: CallResult | Publication | ToBroker
    cost: int
    size: int = 0  # bytes of a result
    confirmed: bool = False  # whether its outcome is what `Confirmed` says
    once: tuple[bytes, float, bytes] | None = None  # key, seconds and answer of a claim, see `PublishOnce`
    sent: bool = False
    outcome: bool | None = None
    """Whether the broker has it; None while that is not known."""
    wake: Callable[[], None] | None = None  # called when it is sent late, and when its outcome comes later


class BridgeEnd:
    """Receive frames and the sockets beside them (SCM_RIGHTS), and send frames.

    What waits for credits is bounded by what the broker admitted and by the requests that wait in `enqueue`. A server
    that answers faster than the broker publishes stops the workers: 10,000 messages of a few bytes may have answers of
    gigabytes.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._decoder: FrameDecoder[ToBridge] = FrameDecoder(ToBridge)
        # One buffer for all reads: one of this size for each is mapped and unmapped, which interrupts other threads.
        self._chunk = memoryview(bytearray(CHUNK))
        self._send_lock = threading.Lock()
        self._descriptors: deque[int] = deque()
        self._lock = threading.Lock()
        self._entries: deque[Entry] = deque()
        self._frames: list[ToBroker] = []  # of entries that have credits, and leave with the next ones
        self._gathered = 0  # confirmed publications since something left
        self._result_bytes = 0  # in them
        self._has_room = threading.Condition(self._lock)
        self._holds = True  # workers, until there is room
        self._credits = INITIAL_CREDITS
        self._since = 0.0  # when the oldest entry was put in
        self._numbers = 0  # of publications whose outcome is confirmed, so far
        self._unconfirmed: dict[int, Entry] = {}

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
        """Send frames now; blocks while the broker is behind. A closed link is ignored: `receive` reports it."""
        parts: list[bytes] = []
        for frame in frames:
            parts += encode_parts(frame)
        data = b"".join(parts)
        with self._send_lock:
            try:
                self._sock.sendall(data)
            except OSError:
                return

    # In order, at the broker's pace.

    @property
    def is_behind(self) -> bool:
        """Return whether anything waits to be sent."""
        return bool(self._entries or self._frames)

    def done(self, result: CallResult, *, at_once: bool) -> None:
        """Send the result of a call; with `at_once` it leaves at once, else soon. Blocks while too many wait."""
        entry = Entry(result, 0)
        if result.publication is not None:
            payload = result.publication.payload
            entry.cost, entry.size = credits_for(payload), len(payload)
        if result.evidence is not None:
            entry.size += SHOWN_BYTES
        with self._lock:
            while self._result_bytes > _MOST_RESULT_BYTES and entry.size and self._holds:
                self._has_room.wait()
            self._result_bytes += entry.size
            now = time.monotonic()
            if not self._entries:
                self._since = now
            self._entries.append(entry)
            if at_once or len(self._entries) >= _BATCH or now - self._since > _COMPANY_SECONDS:
                self._flush()

    def publish(self, publication: Publication) -> bool:
        """Send a publication of server mode; return False when there is no room for it now."""
        return self.offer(publication, credits_for(publication.payload))

    def offer(self, item: Publication | ToBroker, cost: int) -> bool:
        """Send what costs credits, after all that came before it; return False when there is no room for it now."""
        with self._lock:
            if self._credits > 0 and not (self._entries or self._frames):  # as nearly always
                self._credits -= cost
                self.send(Publications([item]) if isinstance(item, Publication) else item)
                return True
            entry = Entry(item, cost)
            self._entries.append(entry)
            self._flush()
            if not entry.sent:
                self._entries.remove(entry)
            return entry.sent

    def enqueue(
        self,
        publication: Publication,
        wake: Callable[[], None],
        *,
        confirmed: bool,
        once: tuple[bytes, float, bytes] | None = None,
    ) -> Entry:
        """Send a publication as soon as there is room; `wake` is called, under the lock, if that is later.

        With `confirmed` its outcome is known, and `wake` called, once the broker has acknowledged it. It may leave with
        others, at the latest by `end_turn`: a frame for each takes the port's thread and the broker process longer.
        `once` is for a publication that ends a claim.
        """
        entry = Entry(publication, credits_for(publication.payload), confirmed=confirmed, once=once)
        with self._lock:
            gathers = confirmed and not self._entries and self._gathered + 1 < _MOST_GATHERED
            self._entries.append(entry)
            if gathers:
                self._admit()
                self._gathered += 1
            else:
                self._flush()
            entry.wake = wake
        return entry

    def end_turn(self) -> None:
        """Send what a port's thread has gathered, before it waits."""
        if self._gathered:
            with self._lock:
                self._flush()

    def withdraw(self, entry: Entry) -> bool:
        """Remove an entry from what waits; return False when it has been sent, or was removed before."""
        with self._lock:
            if entry.sent or entry not in self._entries:
                return False
            self._entries.remove(entry)
            return True

    def confirm(self, numbers: Iterable[int], *, published: bool) -> None:
        """Take the broker's word on publications."""
        with self._lock:
            for number in numbers:
                entry = self._unconfirmed.pop(number)
                entry.outcome = published
                if entry.wake is not None:
                    entry.wake()

    def send_in_order(self, frame: ToBroker) -> None:
        """Send a frame that costs nothing, after all that came before it.

        The broker process relies on that order: the next call of an ORDERED event waits for its turn, or its next try,
        after the one before has ended.
        """
        with self._lock:
            self._entries.append(Entry(frame, 0))
            self._flush()

    def credit(self, count: int) -> None:
        """Add credits that the broker has returned."""
        with self._lock:
            self._credits += count
            self._flush()
            self._has_room.notify_all()

    def release_workers(self) -> None:
        """Release the workers that wait for room: nothing leaves any more."""
        with self._lock:
            self._holds = False
            self._has_room.notify_all()

    def flush(self) -> None:
        """Send what is ready to leave."""
        if self._entries:
            with self._lock:
                self._flush()

    def _flush(self) -> None:
        late = self._admit()
        frames, self._frames, self._gathered = self._frames, [], 0
        if frames:
            self.send(*frames)
        for wake in late:
            wake()

    def _admit(self) -> list[Callable[[], None]]:
        """Make frames of all that has credits; return what is to be called once they have left."""
        entries, frames = self._entries, self._frames
        late: list[Callable[[], None]] = []
        while entries and (self._credits > 0 or not entries[0].cost):
            entry = entries.popleft()
            entry.sent = True
            self._credits -= entry.cost
            self._result_bytes -= entry.size
            if entry.wake is not None:
                late.append(entry.wake)
            frame = self._frame(entry, frames[-1] if frames else None)
            if frame is not None:
                frames.append(frame)
        return late

    def _frame(self, entry: Entry, last: ToBroker | None) -> ToBroker | None:
        """Return the frame of an entry; None where it leaves with the last one, which is of its kind."""
        item = entry.item
        if isinstance(item, CallResult):
            if not isinstance(last, Results):
                return Results([item])
            last.results.append(item)
        elif isinstance(item, Publication):
            number = 0
            if entry.confirmed:
                number = self._numbers = self._numbers + 1
                self._unconfirmed[number] = entry
            else:
                entry.outcome = True
            if entry.once is not None:
                return PublishOnce(item, *entry.once, number)
            if not isinstance(last, Publications) or bool(last.first) != entry.confirmed:
                return Publications([item], number)
            last.publications.append(item)
        else:
            return item
        return None

    def close(self) -> None:
        """Close the link and the sockets that were never taken."""
        while self._descriptors:
            self.take_socket().close()
        self._sock.close()


class Runnable(Protocol):
    """Work that a thread has to begin."""

    def wake(self) -> None:
        """Begin on another thread."""

    def work(self) -> None:
        """Begin on the calling thread; blocks until nothing is left to do."""


class Turn:
    """The right to read, which one thread has at a time. This one the waiting thread takes at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def take(self) -> None:
        """Wait for the turn."""
        self._lock.acquire()

    def pass_on(self) -> None:
        """Offer the turn to the thread that waits, or will wait."""
        self._lock.release()

    def end(self) -> None:
        """Wake the other thread, which returns from `take`; each of the two threads calls this at its end."""
        self._lock.release()


class SocketTurn(Turn):
    """A turn that the waiting thread takes once there is something to read.

    With a lock the other thread wakes for nothing but to wait for the next frame, and it needs the interpreter lock in
    the moment in which a lone call builds its request. At 200 messages/s the bridge process switched threads 6 times a
    message with `Turn`, and takes 410 us of CPU time in place of 450. Needs Linux: epoll wakes one of the threads
    that wait, and none until the turn is passed on.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._turn = select.epoll()
        self._turn.register(descriptor, select.EPOLLIN | select.EPOLLONESHOT)
        end, other_end = socket.socketpair()
        self._turn.register(end, select.EPOLLIN)
        self._open: list[select.epoll | socket.socket] = [self._turn, end, other_end]
        self._is_ended = False

    def take(self) -> None:
        """Wait until there is something to read and no other thread has the turn."""
        self._turn.poll()

    def pass_on(self) -> None:
        """Offer the turn to the thread that waits, or will wait."""
        self._turn.modify(self._descriptor, select.EPOLLIN | select.EPOLLONESHOT)

    def end(self) -> None:
        """Wake the other thread, which returns from `take`; the last call closes what is open."""
        self._open.pop().close()  # of the socket pair: the thread that waits reads its end
        if self._is_ended:
            for one in self._open:
                one.close()
        self._is_ended = True


class LinkReaders:
    """Two threads that take turns at reading.

    Either a call or the reading has to go to another thread, which takes a tenth of a lone message's time to wake: the
    call would be delayed by that, the reading of a later frame is not.

    Args:
        link: What they read, until it closes.
        take: Takes calls, on one thread at a time, and returns what has to begin.
        handle: Handles any other frame, on one thread at a time.
        turn: Decides which thread reads; default: the best one that the system has.
    """

    def __init__(
        self,
        link: BridgeEnd,
        take: Callable[[list[DispatchedCall]], Sequence[Runnable]],
        handle: Callable[[ToBridge], None],
        turn: Turn | None = None,
    ) -> None:
        self._link = link
        self._take = take
        self._handle = handle
        self._turn = turn or (SocketTurn(link.fileno()) if sys.platform == "linux" else Turn())
        self._away = False  # whether one of the two runs a call: then the other one reads
        self._over = False
        self._ended = threading.Event()
        self._error: Exception | None = None

    def run(self) -> None:
        """Read until the end, or until `take` or `handle` raises; blocks, but not for work that a thread is at."""
        for number in (1, 2):
            threading.Thread(target=self._take_turns, name=f"link-{number}", daemon=True).start()
        self._ended.wait()
        if self._error is not None:
            raise self._error

    def _take_turns(self) -> None:
        while True:
            self._turn.take()
            worker = self._next()
            if worker is None:
                break
            self._turn.pass_on()
            worker.work()
            self._away = False
        self._turn.end()
        self._ended.set()

    def _next(self) -> Runnable | None:
        """Read until there is a lone piece of work for this thread; None at the end."""
        try:
            while not self._over and (frames := self._link.receive(None)) is not None:
                workers: list[Runnable] = []
                for frame in frames:
                    if not isinstance(frame, Calls):
                        self._handle(frame)
                        continue
                    for worker in self._take(frame.calls):
                        if worker not in workers:
                            workers.append(worker)
                if len(workers) == 1 and not self._away:
                    self._away = True
                    return workers[0]
                for worker in workers:
                    worker.wake()
        except Exception as error:  # noqa: BLE001  # `run` raises it
            self._error = error
        self._over = True
        return None

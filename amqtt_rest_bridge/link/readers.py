"""The reading of the bridge's end: two threads in turn, so that the one which reads a lone call can run it itself."""

import select
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from amqtt_rest_bridge.link.bridge_end import BridgeEnd
from amqtt_rest_bridge.link.frames import ToBridge


class Runnable(Protocol):
    """Work that a thread has to begin."""

    def wake(self) -> None:
        """Begin on another thread."""

    def work(self) -> None:
        """Begin on the calling thread; blocks until nothing is left to do."""


class Turn(Protocol):
    """The right to read, which one thread has at a time."""

    def take(self) -> None:
        """Wait for the turn."""

    def pass_on(self) -> None:
        """Offer the turn to the thread that waits, or will wait."""

    def end(self) -> None:
        """Wake the other thread, which returns from `take`; each of the two threads calls this at its end."""


class LockTurn:
    """A turn that the waiting thread takes at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def take(self) -> None:
        """Wait for the turn."""
        self._lock.acquire()

    def pass_on(self) -> None:
        """Offer the turn to the thread that waits, or will wait."""
        self._lock.release()

    def end(self) -> None:
        """Wake the other thread, which returns from `take`."""
        self._lock.release()


class SocketTurn:
    """A turn that the waiting thread takes once there is something to read.

    With a lock the other thread wakes for nothing but to wait for the next frame, and it needs the interpreter lock in
    the moment in which a lone call builds its request. At 200 messages/s the bridge process switched threads 6 times a
    message with `LockTurn`, and takes 410 us of CPU time in place of 450. Needs Linux: epoll wakes one of the threads
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
        handle: Handles frames, on one thread at a time, and returns what has to begin.
        turn: Decides which thread reads; default: the best one that the system has.
    """

    def __init__(
        self, link: BridgeEnd, handle: Callable[[Sequence[ToBridge]], Sequence[Runnable]], turn: Turn | None = None
    ) -> None:
        self._link = link
        self._handle = handle
        self._turn = turn or (SocketTurn(link.fileno()) if sys.platform == "linux" else LockTurn())
        self._away = False  # whether one of the two runs a call: then the other one reads
        self._over = False
        self._ended = threading.Event()
        self._error: Exception | None = None

    def run(self) -> None:
        """Read until the end, or until `handle` raises; blocks. Work that a thread is at is not waited for."""
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
                workers = self._handle(frames)
                if len(workers) == 1 and not self._away:
                    self._away = True
                    return workers[0]
                for worker in workers:
                    worker.wake()
        except Exception as error:  # noqa: BLE001  # `run` raises it
            self._error = error
        self._over = True
        return None

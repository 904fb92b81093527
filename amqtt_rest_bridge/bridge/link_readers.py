"""The reading of the link: two threads in turn, so that the one which reads a lone call can run it itself."""

import threading
from collections.abc import Callable, Sequence
from typing import Protocol


class Worker(Protocol):
    """Work that a thread has to begin."""

    def wake(self) -> None:
        """Begin on another thread."""

    def work(self) -> None:
        """Begin on the calling thread; blocks until nothing is left to do."""


class LinkReaders:
    """Two threads that take turns at reading.

    Either a call or the reading has to go to another thread, which takes a tenth of a lone message's time to wake: the
    call would be delayed by that, the reading of a later frame is not.

    Args:
        read: Reads and handles frames, on one thread at a time; blocks. Returns what has to begin, None at the end.
    """

    def __init__(self, read: Callable[[], Sequence[Worker] | None]) -> None:
        self._read = read
        self._turn = threading.Lock()
        self._away = False  # whether one of the two runs a call: then the other one reads
        self._ended = threading.Event()
        self._error: Exception | None = None

    def run(self) -> None:
        """Read until the end, or until `read` raises; blocks. Does not wait for the work of the two threads."""
        for number in (1, 2):
            threading.Thread(target=self._take_turns, name=f"link-{number}", daemon=True).start()
        self._ended.wait()
        if self._error is not None:
            raise self._error

    def _take_turns(self) -> None:
        while True:
            with self._turn:
                worker = self._next()
            if worker is None:
                return
            worker.work()
            self._away = False

    def _next(self) -> Worker | None:
        """Read until there is a lone piece of work for this thread; None at the end."""
        try:
            while not self._ended.is_set() and (workers := self._read()) is not None:
                if len(workers) == 1 and not self._away:
                    self._away = True
                    return workers[0]
                for worker in workers:
                    worker.wake()
        except Exception as error:  # noqa: BLE001  # `run` raises it
            self._error = error
        self._ended.set()
        return None

"""Timed actions on one thread of their own: retries that are due, queues that wait too long."""

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)


class Timers:
    """Run actions after a delay, on a thread of their own; an action must not block."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="bridge-timers", daemon=True)
        self._thread.start()

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Run `action` once, `seconds` from now; any thread may call. After `close` it never runs."""
        with self._changed:
            entry = (time.monotonic() + seconds, next(self._order), action)
            heapq.heappush(self._due, entry)
            if self._due[0] is entry:
                self._changed.notify()

    def close(self) -> None:
        """Drop what is left and end the thread."""
        with self._changed:
            self._closed = True
            self._due.clear()
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while (action := self._next()) is not None:
            try:
                action()
            except Exception:
                log.exception("a timed action ended with an unexpected error")

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._closed:
                if not self._due:
                    self._changed.wait()
                    continue
                remaining = self._due[0][0] - time.monotonic()
                if remaining <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(remaining)
            return None

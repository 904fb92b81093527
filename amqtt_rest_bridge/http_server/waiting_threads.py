"""Threads for requests that have to wait, so that the port's own thread never does. Nothing of HTTP."""

import logging
import queue
import threading
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

_IDLE_SECONDS: Final = 20.0


class WaitingThreads:
    """Run jobs at once, each on a thread of its own, `limit` at most; idle threads are used again, then end."""

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._threads = 0
        self._busy = 0

    @property
    def busy(self) -> int:
        """Say how many jobs run."""
        return self._busy

    def run(self, job: Callable[[], None]) -> bool:
        """Start a job; False when `limit` jobs run already."""
        with self._lock:
            if self._busy >= self._limit:
                return False
            self._busy += 1
            if self._busy > self._threads:
                self._threads += 1
                threading.Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True).start()
        self._jobs.put(job)
        return True

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                if self._may_end():
                    return
                continue
            try:
                job()
            except Exception:
                log.exception("A request that waited failed")
            with self._lock:
                self._busy -= 1

    def _may_end(self) -> bool:
        with self._lock:
            if self._busy >= self._threads:  # a job is on its way to this thread
                return False
            self._threads -= 1
            return True

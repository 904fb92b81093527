"""One after the other: the calls of ORDERED events, by topic. Pure but for its lock; any thread may use it."""

import threading
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Lanes(Generic[T]):
    """Let one item of each lane through at a time, the others in order of arrival."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[Hashable, deque[T]] = {}

    def enter(self, lane: Hashable, item: T) -> bool:
        """Say whether the item may go now; if not, `leave` gives it when its turn comes."""
        with self._lock:
            if lane in self._waiting:
                self._waiting[lane].append(item)
                return False
            self._waiting[lane] = deque()
            return True

    def leave(self, lane: Hashable) -> T | None:
        """Note that the item which went has ended; give the next one, which may go now."""
        with self._lock:
            waiting = self._waiting[lane]
            if waiting:
                return waiting.popleft()
            del self._waiting[lane]
            return None

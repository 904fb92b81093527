"""The queue by which calls of ORDERED events run one after the other, by key. Any thread may use it."""

import threading
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class KeyedQueue(Generic[T]):
    """Admits one item of each key at a time, the others in order of arrival.

    It holds an entry for each key that is in use, so its size is bounded by the items that were admitted.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[Hashable, deque[T]] = {}

    def enter(self, key: Hashable, item: T) -> bool:
        """Return whether the item may run now; if not, `leave` returns it when its turn comes."""
        with self._lock:
            if key in self._waiting:
                self._waiting[key].append(item)
                return False
            self._waiting[key] = deque()
            return True

    def leave(self, key: Hashable) -> T | None:
        """End the running item of a key; return the next one, which may run now."""
        with self._lock:
            waiting = self._waiting[key]
            if waiting:
                return waiting.popleft()
            del self._waiting[key]
            return None

"""Work on many items without taking the loop's time from others: a slice between two of its iterations."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

# A client's message takes some ten iterations from its PUBLISH to the subscriber: it waits for ten slices.
_SLICE_SECONDS: Final = 0.001
_SLICE_BYTES: Final = 64 * 1024
_PAUSE_SECONDS: Final = 0.005


class Slices(Generic[T]):
    """Items that wait for their turn, the first one first; a slice takes a millisecond, or 64 KiB.

    Args:
        loop: Where they are worked on.
        work: Called with each item; an exception is logged and costs that item alone.
        size: Returns the bytes that an item moves.
        end: Called at the end of each slice.
        paused: Returns whether the next slice has to wait.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Callable[[T], None],
        size: Callable[[T], int],
        end: Callable[[], None] = lambda: None,
        paused: Callable[[], bool] = lambda: False,
    ) -> None:
        self.items: deque[T] = deque()
        """What waits."""
        self.working = False
        """Whether a slice is being worked on right now."""
        self._work = work
        self._size = size
        self._end = end
        self._paused = paused
        self._loop = loop
        self._is_due = False

    def put_first(self, items: Iterable[T]) -> None:
        """Queue items, in their order, before all that wait."""
        self.items.extendleft(reversed(list(items)))
        self._schedule()

    def put_last(self, items: Iterable[T]) -> None:
        """Queue items after all that wait."""
        self.items.extend(items)
        self._schedule()

    def _schedule(self) -> None:
        if self.items and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        if self._paused():
            self._loop.call_later(_PAUSE_SECONDS, self._run)
            return
        self._is_due = False
        self.working = True
        try:
            self._run_slice()
        finally:
            self.working = False
            self._schedule()

    def _run_slice(self) -> None:
        deadline, size = time.perf_counter() + _SLICE_SECONDS, 0
        while self.items and size < _SLICE_BYTES and time.perf_counter() < deadline:
            item = self.items.popleft()
            size += self._size(item)
            try:
                self._work(item)
            except Exception:
                log.exception("a message was left behind")
        self._end()

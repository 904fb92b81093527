"""The Idempotency-Keys of the spool: UUIDs whose last 12 hexadecimal digits count.

| last digits | of a message |
|---|---|
| `0` and a number | of an event without BATCH_SIZE |
| `8` to `f`, together 8 digits, and 4 digits | of an event with BATCH_SIZE: its batch, and its place in it from 0 |
"""

import itertools
import uuid
from collections.abc import Iterator
from typing import Final

_IN_BATCH: Final = 1 << 47


class BatchNumbers:
    """Numbers the messages of an event with BATCH_SIZE: the batch of each, and its place in that batch.

    The numbers are on disk, so that a batch is the same after a kill and has the same key. Messages that WHEN skips
    have a place, too. A batch ends a little before its BATCH_SECONDS, so that its last message has reached the bridge
    when the bridge closes the batch.
    """

    def __init__(self, size: int, seconds: float) -> None:
        self._size = size
        self._seconds = 0.8 * seconds
        self._since = 0.0
        self._batch = 0
        self._place = size

    def next(self, now: float, batches: Iterator[int]) -> int:
        """Return the number of the next message, for its Unix time; `batches` gives the number of a new batch."""
        if self._place == self._size or not 0 <= now - self._since < self._seconds:
            self._since, self._batch, self._place = now, next(batches), 0
        self._place += 1
        return _IN_BATCH | self._batch << 16 | self._place - 1


class CallKeys:
    """Makes keys: a random start and a number, since a random UUID for each message would take too long."""

    def __init__(self) -> None:
        self._run = str(uuid.uuid4())[:24]
        self._numbers, self._batches = itertools.count(), itertools.count()

    def next(self, batch: BatchNumbers | None, now: float) -> str:
        """Return the key of a message of this Unix time; `batch` is None for an event without BATCH_SIZE."""
        number = next(self._numbers) if batch is None else batch.next(now, self._batches)
        return f"{self._run}{number:012x}"

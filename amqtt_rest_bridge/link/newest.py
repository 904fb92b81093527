"""The newest message of each topic that the filter of a read event matches, bounded in number and bytes. No I/O.

The broker process has them for bridge processes that start later, and each bridge process for its callers. Both change
by the same messages in the same way.

A bridge process changes them on one thread and answers on others. So one message at a time takes the place of another:
what is looked up by topic is there before, while and after, and `seen` has a change whole or not at all.
"""

import itertools
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sized
from itertools import takewhile
from typing import Final, Generic, TypeVar

V = TypeVar("V", bound=Sized)

MOST_TOPICS: Final = 10_000
MOST_BYTES: Final = 16 << 20  # of topics and payloads; the newest message is always kept
MOST_RECENT: Final = 64
"""Messages that are kept although newer ones of their topics have come, up to `RECENT_BYTES`."""
RECENT_BYTES: Final = 32 << 10
INCOMPLETE: Final = ""
"""In the place of a topic: the sender has dropped some, for want of room."""
AGAIN: Final = "#"
"""Likewise, and no topic is called so: the sender has all again, and sends them from here on."""
COMPLETE: Final = "+"
"""Likewise: it has sent them all. What was here before `AGAIN` and has not come since is gone."""
MARKS: Final = (INCOMPLETE, AGAIN, COMPLETE)

_SERIES: Final = itertools.count(1)


class Newest(Generic[V]):
    """The newest messages of one filter.

    `topics` holds them by topic, in the order in which they came. With too many the oldest empty one goes, else the
    oldest; `is_complete` is false once that was not an empty one, until `COMPLETE`. `number` counts the changes,
    `series` tells those of one object from others'.
    """

    __slots__ = (
        "_bytes",
        "_empty",
        "_has_forgotten",
        "_lock",
        "_old",
        "_recent",
        "_recent_bytes",
        "is_complete",
        "number",
        "series",
        "topic_filter",
        "topics",
    )

    def __init__(self, topic_filter: str) -> None:
        self.topic_filter: Final = topic_filter
        # The oldest of a dict is found behind all that were removed before it: with 10,000 a message took 35 us.
        self.topics: dict[str, V] = OrderedDict()
        self.is_complete = True
        self.number = 0
        self.series: Final = next(_SERIES)
        self._bytes = 0
        self._empty: dict[str, None] = OrderedDict()  # topics that were removed, in the order in which they were
        self._old: set[str] = set()  # topics that have not come since `AGAIN`
        self._recent: deque[tuple[str, V]] = deque()
        self._recent_bytes = 0
        self._has_forgotten = False  # recent ones
        self._lock = threading.Lock()

    def put(self, topic: str, payload: V) -> None:
        """Store a message, or take note of a mark."""
        with self._lock:
            self.number += 1
            if topic in MARKS:
                self._mark(topic)
                return
            self._remove(topic)
            self.topics[topic] = payload
            self._bytes += len(topic) + len(payload)
            if not payload:
                self._empty[topic] = None
            self._remember(topic, payload)
            while len(self.topics) > MOST_TOPICS or (self._bytes > MOST_BYTES and len(self.topics) > 1):
                self.is_complete = not self._remove(next(iter(self._empty or self.topics))) and self.is_complete

    def get(self, topic: str) -> V | None:
        """Return the newest message on a topic, None for none; any thread."""
        with self._lock:
            return self.topics.get(topic)

    def seen(self) -> tuple[int, list[tuple[str, V]]]:
        """Return the number of the last change, and all messages with their topics, as they are with it; any thread."""
        with self._lock:
            return self.number, list(self.topics.items())

    def since(self, is_new: Callable[[V], bool]) -> tuple[int, list[tuple[str, V]]]:
        """Return the same of what came after the last message that is not new; any thread.

        These are all messages, in order; where some are not kept any more, the newest of each topic.
        """
        with self._lock:
            recent = [*takewhile(lambda one: is_new(one[1]), reversed(self._recent))]
            if len(recent) == len(self._recent) and self._has_forgotten:
                recent = [*takewhile(lambda one: is_new(one[1]), reversed(self.topics.items()))]
            return self.number, recent[::-1]

    def _remember(self, topic: str, payload: V) -> None:
        self._recent.append((topic, payload))
        self._recent_bytes += len(topic) + len(payload)
        while len(self._recent) > MOST_RECENT or (self._recent_bytes > RECENT_BYTES and len(self._recent) > 1):
            topic, payload = self._recent.popleft()
            self._recent_bytes -= len(topic) + len(payload)
            self._has_forgotten = True

    def _mark(self, mark: str) -> None:
        if mark == COMPLETE:
            for topic in tuple(self._old):
                self._remove(topic)
        self._old = set(self.topics) if mark == AGAIN else set()
        self.is_complete = mark == COMPLETE

    def _remove(self, topic: str) -> int:
        """Return how large the payload was that is removed."""
        removed = self.topics.pop(topic, None)
        if removed is None:
            return 0
        self._bytes -= len(topic) + len(removed)
        self._empty.pop(topic, None)
        self._old.discard(topic)
        return len(removed)

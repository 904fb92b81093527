"""Topic filters whose messages the bridge processes have to see: those of read events and of replies. Pure.

A request that waits for a reply ends by the definition that it began with. So the reply filters that a reload removes
stay in use until the last of their requests has ended.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Watched:
    """A topic filter in use.

    `latest` is the last payload of a read event (`keep`), for bridge processes that start later. `seconds` is how long
    a request may wait for a reply, `until` when the last one that waits by a definition of before ends.
    """

    topic_filter: str
    keep: bool
    seconds: float = 0.0
    until: float = math.inf
    latest: bytes | None = None


class Watching:
    """All topic filters in use; `monotonic` gives any steady seconds."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._reads: dict[str, Watched] = {}
        self._replies: dict[str, Watched] = {}

    def replace(self, reads: Iterable[str], replies: Mapping[str, float]) -> None:
        """Use the filters of read events and replies, the latter with the seconds that a request may wait."""
        self._reads = {one: self._reads.get(one) or Watched(one, keep=True) for one in reads}
        now = self._monotonic()
        left = {one: min(watched.until - now, watched.seconds) for one, watched in self._replies.items()}
        self._replies = {
            one: Watched(one, keep=False, seconds=seconds, until=now + seconds)
            for one, seconds in left.items()
            if seconds > 0 and one not in replies
        }
        for one, seconds in replies.items():
            self._replies[one] = Watched(one, keep=False, seconds=max(seconds, left.get(one, 0.0)))

    def entries(self) -> list[tuple[str, Watched]]:
        """Return every filter with what is known of it; one may occur twice."""
        return [*self._reads.items(), *self._replies.items()]

    def latest(self) -> list[tuple[str, bytes]]:
        """Return the topic filters of read events with the payload of their latest message."""
        return [(one, watched.latest) for one, watched in self._reads.items() if watched.latest is not None]

    def is_due(self, watched: Watched) -> bool:
        """Return whether a request may still wait for messages of a filter."""
        return watched.until > self._monotonic()

"""Records of now, as server-sent events (WHATWG HTML section 9.2): one for each message and request. Any thread.

A follower that does not read costs a bounded queue: what has no room is counted, and the count is sent in its place.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from amqtt_rest_bridge.admin.history import History
from amqtt_rest_bridge.admin.numbers import Numbers
from amqtt_rest_bridge.admin.pages import CHANGE_SECONDS
from amqtt_rest_bridge.admin.rows import Row, rows, summary
from amqtt_rest_bridge.admin.shown import shown
from amqtt_rest_bridge.bridge.questions import NumbersCache
from amqtt_rest_bridge.http.event_stream import RETRY, Pulse, event_of
from amqtt_rest_bridge.link.admin_frames import MOST_LIVE, LiveRecords, WantLive
from amqtt_rest_bridge.records.values import Record
from amqtt_rest_bridge.topics import filter_matches

MOST_FOLLOWERS: Final = 16  # of a kind
_PIECE_BYTES: Final = 65_536


def event(name: str | None, value: object) -> bytes:
    """Return one event with a value as JSON."""
    return event_of(msgspec.json.encode(value).decode(), name=name)


Kind = Literal["caller", "pages"]


class Follower:
    """A stream of the records that one caller wants; see `http_server.Stream`.

    Args:
        kind: "caller", or "pages" of a browser.
        wake: Has `take` called.
        leave: Called when the caller has gone.
        routes: Only records of these routes; None: all.
        topic_filter: Only records with a topic that it matches; None: all.
    """

    def __init__(
        self,
        kind: Kind,
        wake: Callable[[], None],
        leave: "Callable[[Follower], None]",
        routes: frozenset[str] | None,
        topic_filter: str | None,
    ) -> None:
        self.kind: Final = kind
        self._wake = wake
        self._leave = leave
        self._routes = routes
        self._filter = topic_filter
        self._lock = threading.Lock()
        self._events: deque[bytes] = deque([RETRY])
        self._dropped = 0
        self._pulse = Pulse(time.monotonic)

    @property
    def wants_any(self) -> bool:
        """Return whether there can be records that the caller asked for."""
        return self._routes is None or bool(self._routes)

    def wants(self, record: Record) -> bool:
        """Return whether a record is one of those that the caller asked for."""
        if self._routes is not None and record.route not in self._routes:
            return False
        return self._filter is None or (record.topic is not None and filter_matches(self._filter, record.topic))

    def put(self, events: list[bytes], dropped: int) -> None:
        """Queue events, as far as there is room; `dropped` more have been left out before. Any thread."""
        with self._lock:
            room = max(0, MOST_LIVE - len(self._events))
            self._events.extend(events[:room])
            self._dropped += dropped + len(events[room:])
        self._wake()

    def begin(self, wake: Callable[[], None]) -> None:
        """No-op: `wake` was given before."""

    def take(self) -> bytes | float:
        """Return what waits, or a comment when there was nothing for a while."""
        with self._lock:
            parts, size = [], 0
            while self._events and size < _PIECE_BYTES:
                parts.append(self._events.popleft())
                size += len(parts[-1])
            if self._dropped and not self._events:
                parts.append(event("dropped", {"count": self._dropped}))
                self._dropped = 0
        return self._pulse.of(b"".join(parts))

    def close(self) -> None:
        """Cease to follow."""
        self._leave(self)


class Followers:
    """All followers; while one wants records, `send` has every process send its records."""

    def __init__(self, send: Callable[[WantLive], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._followers: tuple[Follower, ...] = ()
        self._number = 0  # of the last record

    def follow(
        self, kind: Kind, wake: Callable[[], None], routes: frozenset[str] | None, topic_filter: str | None = None
    ) -> Follower | None:
        """Return a new follower; None when there are too many of its kind."""
        with self._lock:
            if sum(one.kind == kind for one in self._followers) >= MOST_FOLLOWERS:
                return None
            follower = Follower(kind, wake, self._leave, routes, topic_filter)
            self._use((*self._followers, follower))
        return follower

    def take(self, live: LiveRecords) -> None:
        """Pass records on; each is written as JSON once."""
        followers = self._followers
        if not followers:
            return
        first = self._number + 1
        self._number += len(live.records)
        events = [
            (record, b"id: %d\n" % number + event(None, shown(record)))
            for number, record in enumerate(live.records, first)
        ]
        for follower in followers:
            wanted = [text for record, text in events if follower.wants(record)]
            if wanted or live.dropped:
                follower.put(wanted, live.dropped)

    def _leave(self, follower: Follower) -> None:
        with self._lock:
            self._use(tuple(one for one in self._followers if one is not follower))

    def _use(self, followers: tuple[Follower, ...]) -> None:
        before, self._followers = self._followers, followers
        wanted = any(one.wants_any for one in followers)
        if wanted is not any(one.wants_any for one in before):
            self._send(WantLive(on=wanted))


class Changes:
    """A stream of the rows that have changed, every two seconds, and of calls; see `http_server.Stream`."""

    def __init__(
        self,
        numbers: NumbersCache,
        samples: History,
        sections: Callable[[Numbers], dict[str, str]],
        wake: Callable[[], None],
        follower: Follower,
    ) -> None:
        self._numbers = numbers
        self._samples = samples
        self._sections = sections
        self._wake = wake
        self._follower = follower
        self._known: dict[str, Row] = {}
        self._shown: dict[str, str] = {}
        self._asked = 0.0
        self._sent = time.monotonic()

    def begin(self, wake: Callable[[], None]) -> None:
        """No-op: `wake` was given before."""

    def take(self) -> bytes | float:
        """Return the rows that have changed, or calls, or the seconds after which to ask again."""
        changed = self._changed_rows()
        if changed is not None:
            return changed
        calls = self._follower.take()
        return calls if isinstance(calls, bytes) else min(calls, CHANGE_SECONDS)

    def close(self) -> None:
        """Cease to follow."""
        self._follower.close()

    def _changed_rows(self) -> bytes | None:
        now = time.monotonic()
        numbers = self._numbers.fresh(self._asked, statuses=True) if self._asked else None
        if numbers is not None:
            self._asked = 0.0
            changed = self._changed(rows(numbers, self._samples), self._sections(numbers))
            if changed is not None:
                self._sent = now
                return event("routes", changed)
        if not self._asked and now - self._sent >= CHANGE_SECONDS:
            self._asked = self._sent = now
            self._numbers.ask(self._wake, statuses=True)
        return None

    def _changed(self, present: list[Row], sections: dict[str, str]) -> dict[str, Any] | None:
        changed = [one for one in present if self._known.get(one["name"]) != one]
        if not changed and len(present) == len(self._known) and sections == self._shown:
            return None
        self._known, self._shown = {one["name"]: one for one in present}, sections
        names = [one["name"] for one in present]
        return {"summary": summary(present), "sections": sections, "names": names, "rows": changed}

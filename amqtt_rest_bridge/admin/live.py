"""Runs as they are noted, as server-sent events (WHATWG HTML section 9.2) to each caller who follows them.

The recorder notes runs; `app` begins the streams. The queue of a follower is bounded: events without room are dropped,
and their count is sent instead.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from amqtt_rest_bridge.admin.runs import Run, UnmaskedRun
from amqtt_rest_bridge.http.event_stream import STREAM_BEGINNING, Pulse, event_of
from amqtt_rest_bridge.times import rfc3339
from amqtt_rest_bridge.topics import filter_matches

MOST_FOLLOWERS: Final = 16  # of a kind
_MOST_WAITING: Final = 1000  # runs that were noted since they were passed on last, and that wait for one follower
_SECONDS: Final = 0.1  # in which runs are gathered before they are passed on
_PIECE_BYTES: Final = 65_536

_NOT_LIVE: Final = frozenset({"time", "batch", "attempts", "retry_of", "retried_as", "retry_outcome"})

Kind = Literal["caller", "pages"]
"""Who follows: a caller of the API, or a page in a browser."""


def event(name: str | None, value: object) -> bytes:
    """Return one event with a value as JSON."""
    return event_of(msgspec.json.encode(value).decode(), name=name)


def live_object(run: Run) -> dict[str, Any]:
    """Return a run as the live stream and the last calls of a route have it."""
    own = {name: getattr(run, name) for name in Run.__struct_fields__ if name not in _NOT_LIVE}
    return {"time": rfc3339(run.time), **own}


class Follower:
    """A stream of the runs that one caller wants; see `http.exchange.ResponseStream`.

    Args:
        kind: Who follows.
        followers: All of them, which it leaves when the caller has gone.
        routes: Only runs of these routes; None: all, and messages that concern no route.
        topic_filter: Only runs with a topic that it matches; None: all.
    """

    def __init__(
        self,
        kind: Kind,
        followers: "Followers",
        routes: frozenset[str] | None,
        topic_filter: str | None,
    ) -> None:
        self.kind: Final = kind
        self.routes: Final = routes
        self._wake: Callable[[], None] = lambda: None
        self._followers = followers
        self._filter = topic_filter
        self._events: deque[bytes] = deque([STREAM_BEGINNING])
        self._dropped = 0
        self._pulse = Pulse(time.monotonic)

    def wants(self, run: Run) -> bool:
        """Return whether a run is one of those that the caller asked for."""
        if self.routes is not None and run.route not in self.routes:
            return False
        return self._filter is None or (run.topic is not None and filter_matches(self._filter, run.topic))

    def put(self, events: list[bytes], dropped: int) -> None:
        """Queue events as far as there is room; `dropped` counts events that were left out before."""
        room = max(0, _MOST_WAITING - len(self._events))
        self._events.extend(events[:room])
        self._dropped += dropped + len(events[room:])
        self._wake()

    def begin(self, wake: Callable[[], None]) -> None:
        """Begin: `wake` has the next piece taken."""
        self._wake = wake

    def take(self) -> bytes | float:
        """Return what waits, or a comment when there was nothing for a while."""
        parts, size = [], 0
        while self._events and size < _PIECE_BYTES:
            parts.append(self._events.popleft())
            size += len(parts[-1])
        if self._dropped and not self._events:
            parts.append(event("dropped", {"count": self._dropped}))
            self._dropped = 0
        return self._pulse.beat(b"".join(parts))

    def close(self) -> None:
        """Cease to follow."""
        self._followers.remove(self)


class Followers:
    """All followers. Runs that are noted are passed on ten times a second; `mask` takes their secrets out then."""

    def __init__(self, mask: Callable[[UnmaskedRun], Run]) -> None:
        self._mask = mask
        self._followers: tuple[Follower, ...] = ()
        self._number = 0  # of the last run that was passed on, its event id
        self._noted: deque[UnmaskedRun] = deque(maxlen=_MOST_WAITING)
        self._count = 0  # of the runs that were noted since they were passed on last, those without room too
        self._timer: asyncio.TimerHandle | None = None
        self.are_any = False
        """Whether there is a follower: without one nothing needs to be noted."""
        self._want_unmatched = False
        self._changed = asyncio.Event()  # `_want_unmatched` has

    def follow(self, kind: Kind, routes: frozenset[str] | None, topic_filter: str | None = None) -> Follower | None:
        """Return a new follower; None when there are too many of its kind."""
        if sum(one.kind == kind for one in self._followers) >= MOST_FOLLOWERS:
            return None
        follower = Follower(kind, self, routes, topic_filter)
        self._use((*self._followers, follower))
        return follower

    async def unmatched_changed(self) -> bool:
        """Wait until the answer changes, then return whether any follower wants messages that concern no route."""
        await self._changed.wait()
        self._changed.clear()
        return self._want_unmatched

    def note(self, run: UnmaskedRun) -> None:
        """Pass on a run soon."""
        self._noted.append(run)
        self._count += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_SECONDS, self._pass_on)

    def _pass_on(self) -> None:
        """Queue the noted runs at the followers who want them."""
        self._timer = None
        runs, count = [self._mask(run) for run in self._noted], self._count
        self._noted.clear()
        self._count = 0
        first = self._number + 1
        self._number += len(runs)
        events = [(run, b"id: %d\n" % number + event(None, live_object(run))) for number, run in enumerate(runs, first)]
        for follower in self._followers:
            wanted = [text for run, text in events if follower.wants(run)]
            if wanted or count > len(runs):
                follower.put(wanted, count - len(runs))

    def remove(self, follower: Follower) -> None:
        """Pass nothing on to a follower any more."""
        self._use(tuple(one for one in self._followers if one is not follower))

    def _use(self, followers: tuple[Follower, ...]) -> None:
        self._followers = followers
        wanted = [one.routes for one in followers]
        self.are_any = None in wanted or any(wanted)
        before, self._want_unmatched = self._want_unmatched, None in wanted
        if self._want_unmatched != before:
            self._changed.set()

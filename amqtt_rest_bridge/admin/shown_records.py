"""Records as the admin port shows them: the last of a route, gathered from every process, and those of now. Any thread.

What each process records is in `records/`; what of it travels, in `link.admin_frames`. Those of now are server-sent
events (WHATWG HTML section 9.2), one for each message and request, to each follower. One that does not read costs a
bounded queue: what has no room is counted, and the count is sent in its place.
"""

import itertools
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from amqtt_rest_bridge.admin.numbers import Numbers
from amqtt_rest_bridge.catalogue import METHOD_NOT_ALLOWED, NOT_FOUND
from amqtt_rest_bridge.link.admin_frames import (
    MOST_LIVE,
    SHOWN_FAILURES,
    SHOWN_RUNS,
    FoundRuns,
    LiveRecords,
    Problem,
    Record,
    Retried,
    RunDetail,
    RunQuery,
    WantLive,
    WantRetry,
    WantRuns,
)
from amqtt_rest_bridge.records.bridge_records import BridgeRecords
from amqtt_rest_bridge.records.problems import LISTED_SECONDS
from amqtt_rest_bridge.times import rfc3339
from amqtt_rest_bridge.topics import filter_matches

MOST_FOLLOWERS: Final = 16  # of a kind
_PIECE_BYTES: Final = 65_536
_MEMBERS: Final = [
    name for name in Record.__struct_fields__ if name not in ("time", "attempts", "retry_of", "retried_as")
]
"""What there is to see of a record in the live stream and among the last calls; the others are those of a run."""
_BEAT_SECONDS: Final = 15.0  # between comments that keep the connection open through proxies
_BEAT: Final = b": still here\n\n"


@dataclass(slots=True, eq=False)
class Runs:
    """What is found of a question; `awaited` is how many processes have to answer, None before the broker has."""

    query: RunQuery
    wake: Callable[[], None]
    found: list[Record]
    kept: list[Record] = field(default_factory=list)
    detail: RunDetail | None = None
    awaited: int | None = None
    answers: int = 0

    @property
    def is_complete(self) -> bool:
        """Return whether every process has answered."""
        return self.answers == self.awaited

    def newest(self) -> list[Record]:
        """Return the runs, the newest first; of those that the broker keeps, which process ran them does not matter."""
        kept = {record.id: record for record in self.kept}
        known = set()
        runs = []
        for record in self.found:
            own = kept.get(record.id)
            if own is not None and record.kind != "retry":
                known.add(record.id)
                url = own.url or record.url  # without what the message brought, too
                record = replace(record, url=url, retry_of=own.retry_of, retried_as=own.retried_as)  # noqa: PLW2901
            runs.append(record)
        runs += [record for name, record in kept.items() if name not in known]
        return sorted(runs, key=lambda record: record.time, reverse=True)[: self.query.limit]

    def recent(self) -> list[Record]:
        """Return the last runs of a route."""
        return [record for record in self.newest() if record.kind != "retry"][:SHOWN_RUNS]

    def last_failures(self) -> list[Record]:
        """Return the last failures of a route, failed tries among them."""
        return [record for record in self.newest() if record.code is not None][:SHOWN_FAILURES]


class RunQuestions:
    """Ask every process for runs, and the broker to send messages again.

    Args:
        records: Of this process.
        send: Asks the broker, which asks the other processes.
    """

    def __init__(self, records: BridgeRecords, send: Callable[[WantRuns | WantRetry], None]) -> None:
        self._records = records
        self._send = send
        self._lock = threading.Lock()
        self._numbers = itertools.count(random.getrandbits(40))  # not those of a process that served the port before
        self._open: dict[int, Runs] = {}
        self._retries: dict[int, tuple[Callable[[], None], list[Retried]]] = {}

    def begin(self, query: RunQuery, wake: Callable[[], None]) -> tuple[int, Runs]:
        """Ask for runs; `wake` is called when the last process has answered."""
        runs = Runs(query, wake, self._records.find(query))
        with self._lock:
            number = next(self._numbers)
            self._open[number] = runs
        self._send(WantRuns(number, query))
        return number, runs

    def retry(self, wanted: WantRetry, wake: Callable[[], None]) -> tuple[int, list[Retried]]:
        """Ask for retries; the list holds the broker's answer once `wake` is called."""
        answer: list[Retried] = []
        with self._lock:
            number = next(self._numbers)
            self._retries[number] = wake, answer
        self._send(replace(wanted, number=number))
        return number, answer

    def end(self, number: int) -> None:
        """Wait no longer."""
        with self._lock:
            self._open.pop(number, None)
            self._retries.pop(number, None)

    def take(self, frame: FoundRuns | Retried) -> None:
        """Take an answer."""
        with self._lock:
            if isinstance(frame, Retried):
                wake, answer = self._retries.get(frame.number, (lambda: None, []))
                answer.append(frame)
            else:
                wake = self._take_runs(frame)
        wake()

    def _take_runs(self, found: FoundRuns) -> Callable[[], None]:
        runs = self._open.get(found.number)
        if runs is None:
            return lambda: None
        if found.awaited is None:
            runs.found += found.runs
            runs.answers += 1
        else:
            runs.kept, runs.detail, runs.awaited = found.runs, found.detail, found.awaited
        return runs.wake if runs.is_complete else lambda: None


def shown(record: Record) -> dict[str, Any]:
    """Return a record as the members of its JSON object."""
    return {
        "time": rfc3339(record.time),
        **{name: getattr(record, name) for name in _MEMBERS},
    }


def problem_members(numbers: Numbers) -> list[dict[str, Any]]:
    """Return what is wrong now as the members of JSON objects, most messages first.

    Requests that led to no endpoint are among it where there is one that was probably meant.
    """
    broker = numbers.broker
    unmatched = [
        Problem(
            (NOT_FOUND if one.status == 404 else METHOD_NOT_ALLOWED).code, f"{one.method} :{one.port}{one.path}",
            one.status, [one.nearest.route], one.count, one.first, one.last, "no endpoint has this method and path",
            f"the nearest endpoint is {one.nearest.method} {one.nearest.path} of route {one.nearest.route}", None,
        )
        for one in broker.unmatched_paths
        if one.nearest is not None and one.status in (404, 405) and time.time() - one.last < LISTED_SECONDS
    ]  # fmt: skip
    return [
        msgspec.structs.asdict(one) | {"first": rfc3339(one.first), "last": rfc3339(one.last)}
        for one in sorted([*broker.problems, *unmatched], key=lambda one: one.count, reverse=True)
    ]


def event(name: str | None, value: object) -> bytes:
    """Return one event with a value as JSON, which has no line breaks."""
    head = b"" if name is None else f"event: {name}\n".encode()
    return head + b"data: " + msgspec.json.encode(value) + b"\n\n"


Kind = Literal["caller", "pages"]


class Follower:
    """A stream of the records that one caller wants; see `http_server.Stream`.

    Args:
        kind: "caller", or "pages" of a browser.
        wake: Has `take` called.
        leave: Called when the caller has gone.
        routes: Only records of these routes; None: all.
        topic_filter: Only records with a topic that it matches; None: all.
        monotonic: The clock, in seconds.
    """

    def __init__(
        self,
        kind: Kind,
        wake: Callable[[], None],
        leave: "Callable[[Follower], None]",
        routes: frozenset[str] | None,
        topic_filter: str | None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.kind: Final = kind
        self._wake = wake
        self._leave = leave
        self._routes = routes
        self._filter = topic_filter
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._events: deque[bytes] = deque([b"retry: 2000\n\n"])
        self._dropped = 0
        self._sent_at = monotonic()

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
        now = self._monotonic()
        if not parts and now - self._sent_at < _BEAT_SECONDS:
            return self._sent_at + _BEAT_SECONDS - now
        self._sent_at = now
        return b"".join(parts) or _BEAT

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

"""What the broker process counts of every event, and records of what no bridge process sees, for the admin port.

That is: messages that were refused, lost with a bridge process, or matched no route. There are such records only
where there is an admin port. The broker's loop alone.
"""

import time
from collections import deque
from collections.abc import Collection, Iterable
from typing import Final

from amqtt_rest_bridge.catalogue import FAILURES
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.link import admin_frames
from amqtt_rest_bridge.link.admin_frames import (
    BUCKETS,
    MOST_LIVE,
    RECENT,
    Durations,
    EventCounts,
    LastRecords,
    LiveRecords,
    Record,
)
from amqtt_rest_bridge.link.frames import SKIPPED, CallResult, RequestCount, RequestTimes
from amqtt_rest_bridge.model import ClientEvent, Message, Run, RunIds
from amqtt_rest_bridge.topics import loggable

SUCCEEDED: Final = "succeeded"

EventName = tuple[str, str]
"""A route's name and its event's."""


class BrokerRecords:
    """Count, and keep the last records of each route; `runs` makes the ids of calls."""

    def __init__(self, runs: RunIds) -> None:
        self._runs = runs
        self.following = False
        """Whether every message is recorded for those that follow; see `take_live`."""
        self._counts: dict[EventName, EventCounts] = {}
        self._records: dict[str, deque[Record]] = {}
        self._kept: dict[str, deque[Record]] = {}  # failures of calls, which a bridge process has recorded too
        self._live: list[Record] = []
        self._dropped = 0

    def keep(self, names: Collection[EventName]) -> None:
        """Forget every event but these, those of the present routes."""
        routes = {route for route, _ in names}
        self._counts = {
            name: self._counts.get(name)
            or EventCounts({}, Durations([0] * (len(BUCKETS) + 1)), Durations([0]), statuses={})
            for name in names
        }
        self._records = {route: kept for route, kept in self._records.items() if route in routes}
        self._kept = {route: kept for route, kept in self._kept.items() if route in routes}

    def counts(self) -> dict[str, dict[str, EventCounts]]:
        """Return what was counted, by route and event."""
        by_route: dict[str, dict[str, EventCounts]] = {}
        for (route, event), counts in self._counts.items():
            by_route.setdefault(route, {})[event] = counts
        return by_route

    def ended(self, name: EventName, event: ClientEvent, run: Run, message: Message, result: CallResult) -> None:
        """Count a call that has ended, and keep a failure: the bridge process that has recorded it may die."""
        self._count(name, result.code or SUCCEEDED, result.waited, result.took)
        if result.code is None or result.code == SKIPPED or name not in self._counts:
            return
        route = name[0]
        record = Record(
            time.time(), "call", self._runs.of(run, *name), *name, loggable(message.topic), event.method.value,
            status=result.status or None, code=result.code, message=result.message,
            hint=FAILURES[result.code].hint,
        )  # fmt: skip
        kept = self._kept.get(route)
        if kept is None:
            kept = self._kept[route] = deque(maxlen=admin_frames.FAILURES)
        kept.append(record)

    def lost(self, name: EventName, event: ClientEvent, run: Run, message: Message, failure: CallError) -> None:
        """Count and record a call whose bridge process died."""
        waited = max(0.0, time.time() - message.timestamp)  # and what its requests took, which is not known
        self._count(name, failure.code.value, waited, 0.0)
        self._record("call", name, event, run, message, failure, round(1000 * waited, 1))

    def refused(self, name: EventName, event: ClientEvent, run: Run, message: Message, failure: CallError) -> None:
        """Count and record a message that was not admitted."""
        counts = self._counts.get(name)
        if counts is not None:
            counts.refused += 1
        self._record("refused", name, event, run, message, failure)

    def unmatched(self, message: Message) -> None:
        """Record a message that concerns no route, while that is followed; not the broker's own on `$SYS`."""
        if not message.topic.startswith("$SYS/"):
            self._follow(Record(message.timestamp, "message", topic=loggable(message.topic)))

    def served(self, requests: Iterable[RequestCount], times: Iterable[RequestTimes]) -> None:
        """Count requests of server mode, and how long they took."""
        for request in requests:
            counts = self._counts.get((request.route, request.event))
            if counts is not None:
                counts.statuses[request.status] = counts.statuses.get(request.status, 0) + request.count
        for own in times:
            counts = self._counts.get((own.route, own.event))
            if counts is not None:
                counts.took.buckets = [sum(pair) for pair in zip(counts.took.buckets, own.buckets, strict=True)]
                counts.took.seconds += own.seconds

    def last(self, route: str, awaited: int) -> LastRecords:
        """Return the last records of a route; all of them are failures."""
        records = list(self._records.get(route, ()))
        return LastRecords(route, records, records, awaited, list(self._kept.get(route, ())))

    def take_live(self) -> LiveRecords | None:
        """Return what was recorded since the last time, None without any."""
        if not self._live:
            return None
        records, self._live = self._live, []
        dropped, self._dropped = self._dropped, 0
        return LiveRecords(records, dropped)

    def _count(self, name: EventName, outcome: str, waited: float, took: float) -> None:
        counts = self._counts.get(name)
        if counts is None:  # the end of a call whose event is gone counts nowhere
            return
        counts.outcomes[outcome] = counts.outcomes.get(outcome, 0) + 1
        if outcome != SKIPPED:
            counts.waited.add(waited)
            if took:  # else nothing was sent, which would make the server look fast
                counts.took.add(took, BUCKETS)

    def _record(
        self,
        kind: str,
        name: EventName,
        event: ClientEvent,
        run: Run,
        message: Message,
        failure: CallError,
        waited_ms: float | None = None,
    ) -> None:
        route = name[0]
        record = Record(
            time.time(), kind, self._runs.of(run, *name), *name, loggable(message.topic), event.method.value,
            code=failure.code.value, message=failure.message, hint=failure.hint, waited_ms=waited_ms,
        )  # fmt: skip
        records = self._records.get(route)
        if records is None:
            records = self._records[route] = deque(maxlen=RECENT)
        records.append(record)
        self._follow(record)

    def _follow(self, record: Record) -> None:
        if not self.following:
            return
        if len(self._live) < MOST_LIVE:
            self._live.append(record)
        else:
            self._dropped += 1

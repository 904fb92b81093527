"""The routes in use: which events a topic concerns, which topics server mode watches, the statistics of each route.

The broker's loop only. A request that waits for a reply ends by the definition that it began with. So the reply filters
that a reload removes stay in use until the last of their requests has ended.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from amqtt_rest_bridge.link.newest import Newest
from amqtt_rest_bridge.model import EventName, NumberedRoute, OverloadPolicy
from amqtt_rest_bridge.routing.admission import QueueBytes
from amqtt_rest_bridge.routing.calls import BatchNumbers, Listening
from amqtt_rest_bridge.routing.outcomes import described
from amqtt_rest_bridge.routing.statistics import RouteStatistics
from amqtt_rest_bridge.topics import TopicIndex, schedule_topic


@dataclass(slots=True, eq=False)
class Watched:
    """A topic filter in use.

    `newest` has what a read event (`keep`) answers with, for bridge processes that start later. `seconds` is how long
    a request may wait for a reply, `until` when the last one that waits by a definition of before ends.
    """

    topic_filter: str
    keep: bool
    seconds: float = 0.0
    until: float = math.inf
    newest: Newest[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.newest = Newest(self.topic_filter)


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

    def newest(self) -> list[Newest[bytes]]:
        """Return the newest messages of read events."""
        return [watched.newest for watched in self._reads.values()]

    def is_due(self, watched: Watched) -> bool:
        """Return whether a request may still wait for messages of a filter."""
        return watched.until > self._monotonic()


@dataclass(frozen=True, slots=True)
class RouteTable:
    """Client events by topic and by name; a reload replaces the table.

    `listeners` holds the topic filters of server mode too. `lossless` holds the events of lossless routes alone:
    packets have to be looked at before their PUBACK exactly while it is not None.
    """

    listeners: TopicIndex[Listening | Watched] = field(default_factory=lambda: TopicIndex(()))
    lossless: TopicIndex[Listening] | None = None
    by_name: Mapping[EventName, Listening] = field(default_factory=dict)


def build_table(
    routes: Sequence[NumberedRoute],
    watched: Iterable[tuple[str, Watched]],
    statistics: dict[str, RouteStatistics],
    workers: int,
    queue: QueueBytes,
) -> RouteTable:
    """Build the table of routes.

    Args:
        routes: The present ones.
        watched: Server mode's topic filters.
        statistics: By route; changed in place. A route that keeps its name keeps its statistics.
        workers: How many requests a route can have in flight, over all bridge processes.
        queue: Counts the payloads of all routes together.
    """
    before = dict(statistics)
    statistics.clear()
    entries: list[tuple[str, Listening]] = []
    for numbered in routes:
        route = numbered.route
        own = statistics[route.name] = before.get(route.name) or RouteStatistics(route, workers, time.time(), queue)
        own.update(route)
        lossless = route.route_config.overload_policy is OverloadPolicy.LOSSLESS
        bounds = route.route_config.rate_limit, route.route_config.breaker
        for number, event in zip(numbered.numbers, route.client_events, strict=True):
            is_single = any(one is not None for one in (*bounds, event.batch_size))
            name, request, is_bound = (route.name, event.name), described(route, event), is_single or event.is_in_order
            listening = Listening(number, route.name, event, own, lossless, name, request, is_single, is_bound)
            if lossless and event.batch_size is not None:
                listening.numbering = BatchNumbers(event.batch_size, event.batch_seconds).next
            entries.append((event.source_topic, listening))
    # An event that has only a schedule is run by that alone, whatever is published on its topic.
    listened = [entry for entry in entries if entry[0] != schedule_topic(*entry[1].name)]
    kept = [entry for entry in listened if entry[1].lossless]
    return RouteTable(
        TopicIndex([*listened, *watched]), TopicIndex(kept) if kept else None, {one.name: one for _, one in entries}
    )

"""The routes in use: which events a topic concerns, and the statistics of each route. The broker's loop alone."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from amqtt_rest_bridge.model import NumberedRoute, OverloadPolicy
from amqtt_rest_bridge.routing.calls import EventName, Listening
from amqtt_rest_bridge.routing.quiet_log import described
from amqtt_rest_bridge.routing.statistics import QueueBytes, RouteStatistics
from amqtt_rest_bridge.routing.watching import Watched
from amqtt_rest_bridge.topics import TopicIndex, schedule_topic


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
        is_paced = route.route_config.rate_limit is not None
        for number, event in zip(numbered.numbers, route.client_events, strict=True):
            name, request, is_bound = (route.name, event.name), described(route, event), is_paced or event.ordered
            listening = Listening(number, route.name, event, own, lossless, name, request, is_paced, is_bound)
            entries.append((event.source_topic, listening))
    # An event that has only a schedule is run by that alone, whatever is published on its topic.
    listened = [entry for entry in entries if entry[0] != schedule_topic(*entry[1].name)]
    kept = [entry for entry in listened if entry[1].lossless]
    return RouteTable(
        TopicIndex([*listened, *watched]), TopicIndex(kept) if kept else None, {one.name: one for _, one in entries}
    )

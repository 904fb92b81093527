"""The routes in use: which events a topic concerns, and the statistics of each route. The broker's loop alone."""

from collections.abc import Callable, Iterable, Sequence

from amqtt_rest_bridge.model import NumberedRoute, OverloadPolicy
from amqtt_rest_bridge.routing.calls import EventName, Listening
from amqtt_rest_bridge.routing.quiet_log import described
from amqtt_rest_bridge.routing.statistics import RouteStatistics
from amqtt_rest_bridge.routing.watching import Watched
from amqtt_rest_bridge.topics import TopicIndex, schedule_topic


class RouteTable:
    """Client events by topic and by name.

    Args:
        statistics: Changed in place by `replace`, by the names of the present routes.
        workers: How many requests a route can have in flight, over all bridge processes.
        clock: Unix seconds.
    """

    def __init__(self, statistics: dict[str, RouteStatistics], workers: int, clock: Callable[[], float]) -> None:
        self.statistics = statistics
        self._workers = workers
        self._clock = clock
        self._index: TopicIndex[Listening | Watched] = TopicIndex(())
        self._lossless: TopicIndex[Listening] = TopicIndex(())
        self._by_name: dict[EventName, Listening] = {}

    @property
    def has_lossless(self) -> bool:
        """Return whether any route is lossless, so that packets have to be looked at before their PUBACK."""
        return any(listening.lossless for listening in self._by_name.values())

    def replace(self, routes: Sequence[NumberedRoute], watched: Iterable[tuple[str, Watched]]) -> None:
        """Use other routes; one that keeps its name keeps its statistics. `watched` are server mode's topic filters."""
        present: dict[str, RouteStatistics] = {}
        entries: list[tuple[str, Listening]] = []
        for numbered in routes:
            route = numbered.route
            statistics = self.statistics.get(route.name) or RouteStatistics(route, self._workers, self._clock())
            statistics.update(route)
            present[route.name] = statistics
            lossless = route.route_config.overload_policy is OverloadPolicy.LOSSLESS
            for number, event in zip(numbered.numbers, route.client_events, strict=True):
                name, request = (route.name, event.name), described(route, event)
                is_paced = route.route_config.rate_limit is not None
                is_bound = is_paced or event.ordered
                listening = Listening(
                    number, route.name, event, statistics, lossless, name, request, is_paced, is_bound
                )
                entries.append((event.source_topic, listening))
        self.statistics.clear()
        self.statistics.update(present)
        self._by_name = {listening.name: listening for _, listening in entries}
        # An event that has only a schedule is run by that alone, whatever is published on its topic.
        listened = [entry for entry in entries if entry[0] != schedule_topic(*entry[1].name)]
        self._index = TopicIndex([*listened, *watched])
        self._lossless = TopicIndex([entry for entry in listened if entry[1].lossless])

    def find(self, topic: str) -> tuple[Listening | Watched, ...]:
        """Return everything that listens to a topic."""
        return self._index.find(topic)

    def find_lossless(self, topic: str) -> tuple[Listening, ...]:
        """Return the lossless events that listen to a topic."""
        return self._lossless.find(topic)

    def named(self, name: EventName) -> Listening | None:
        """Return an event by its names, None when there is no such client event."""
        return self._by_name.get(name)

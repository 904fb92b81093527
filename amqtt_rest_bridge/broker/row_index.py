"""The index of the rows that lossless routes have on disk; in memory, without their messages. Pure."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from amqtt_rest_bridge.lot.model import EventName


@dataclass(slots=True)
class RouteRows:
    """How much the present events of a route have on disk together: rows, and bytes of their payloads."""

    count: int = 0
    size: int = 0


class RowIndex:
    """The rows by event, in order of arrival, and by key; how much each route has.

    Decision: rows of an event that is gone take no room from the other events of its route, which go on.
    """

    def __init__(self) -> None:
        self._sizes: dict[EventName, dict[str, int]] = {}  # bytes by key, the oldest row first
        self._names: dict[str, EventName] = {}
        self._present: set[EventName] = set()
        self._routes: dict[str, RouteRows] = {}  # of present events

    def use(self, name: EventName) -> None:
        """Count the rows of an event for its route from now on."""
        if name not in self._present:
            self._present.add(name)
            self._count(name, +1)

    def leave(self, name: EventName) -> None:
        """Count them no longer: the event is gone."""
        if name in self._present:
            self._present.remove(name)
            self._count(name, -1)

    def _count(self, name: EventName, sign: int) -> None:
        rows, sizes = self._routes.setdefault(name[0], RouteRows()), self._sizes.get(name, {})
        rows.count += sign * len(sizes)
        rows.size += sign * sum(sizes.values())

    def add(self, key: str, name: EventName, size: int) -> None:
        """Add the newest row of an event; `size` is that of its payload, in bytes."""
        self._sizes.setdefault(name, {})[key] = size
        self._names[key] = name
        if name in self._present:
            route = self._routes[name[0]]
            route.count += 1
            route.size += size

    def remove(self, key: str) -> EventName | None:
        """Remove a row and return the name of its event, None if there is no such row."""
        name = self._names.pop(key, None)
        if name is not None:
            size = self._sizes[name].pop(key)
            if name in self._present:
                route = self._routes[name[0]]
                route.count -= 1
                route.size -= size
        return name

    def name_of(self, key: str) -> EventName | None:
        """Return the name of the event of a row, None if there is no such row."""
        return self._names.get(key)

    def keys(self, name: EventName) -> list[str]:
        """Return the keys of an event's rows, the oldest first."""
        return list(self._sizes.get(name, ()))

    def of_route(self, route: str) -> RouteRows:
        """Return how much the present events of a route have."""
        return self._routes.get(route) or RouteRows()

    def by_route(self) -> dict[str, int]:
        """Return how many rows each route has that has any, those of events that are gone too."""
        rows = Counter[str]()
        for (route, _), count in self.by_event():
            rows[route] += count
        return dict(rows)

    def by_event(self) -> Iterator[tuple[EventName, int]]:
        """Yield the name of each event that has rows, and how many."""
        return ((name, len(sizes)) for name, sizes in self._sizes.items() if sizes)

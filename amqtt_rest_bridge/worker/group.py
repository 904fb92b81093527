"""What follows of the routes of a group's workers: who runs events with EVERY; warnings where workers differ. Pure."""

import logging
from collections.abc import Iterable, Mapping

from amqtt_rest_bridge.model import Route
from amqtt_rest_bridge.worker.leases import GroupView

log = logging.getLogger(__name__)


def event_name(route: str, event: str) -> str:
    """Return the name of an event in records; neither part can hold a slash."""
    return f"{route}/{event}"


def every(routes: Iterable[Route]) -> tuple[str, ...]:
    """Return the names of the events with EVERY, which one worker of the group runs: the lowest that has the event."""
    return tuple(
        event_name(route.name, event.name)
        for route in routes
        for event in route.client_events
        if event.every is not None
    )


class Differences:
    """Warn of route sets and `slots` that differ, once for each change, and say when they agree again."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._shown: dict[str, str] = {}

    def changed(self, view: GroupView) -> None:
        """Look at the group as it is now."""
        self._compare("route sets", "routes", view.route_sets)
        self._compare("slots", "slots", view.slot_counts)

    def _compare(self, values: str, same: str, found: Mapping[str, Iterable[str]]) -> None:
        parts = [f"{value} on {', '.join(workers)}" for value, workers in sorted(found.items())]
        before, shown = self._shown.get(values, ""), "; ".join(parts) if len(parts) > 1 else ""
        if shown and shown != before:
            log.warning("%s differ: %s", values, shown)
        elif before and not shown:
            log.info("all workers of group %s have the same %s", self._group, same)
        self._shown[values] = shown

"""What follows of the routes of a group's workers: who runs events with EVERY, and warnings where they differ. Pure."""

import logging
from collections.abc import Iterable

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


class RouteSets:
    """Warn of route sets that differ, once for each change, and say when they agree again."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._shown = ""

    def changed(self, view: GroupView) -> None:
        """Look at the group as it is now."""
        sets = [f"{routes} on {', '.join(workers)}" for routes, workers in sorted(view.route_sets.items())]
        shown = "; ".join(sets) if len(sets) > 1 else ""
        if shown and shown != self._shown:
            log.warning("route sets differ: %s", shown)
        elif self._shown and not shown:
            log.info("all workers of group %s have the same routes", self._group)
        self._shown = shown

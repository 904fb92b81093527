"""Route status on `$SYS/broker/routes/<route>/status`, retained: every so often and on change of health."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from amqtt_rest_bridge.failures import rfc3339
from amqtt_rest_bridge.model import Publication
from amqtt_rest_bridge.routing.statistics import RouteStatistics

STATUS_TOPICS: Final = "$SYS/broker/routes/"
"""What the topics of all status begin with; no one else publishes there."""


def status_topic(route: str) -> str:
    """Return the topic of a route's status."""
    return f"{STATUS_TOPICS}{route}/status"


def status_publication(route: str, status: Mapping[str, Any]) -> Publication:
    """Return the status of a route as it is published."""
    payload = json.dumps(status, ensure_ascii=False, separators=(",", ":"))
    return Publication(status_topic(route), payload.encode("utf-8", "backslashreplace"), retain=True)


class StatusReporter:
    """Publish the status of all routes.

    Args:
        statistics: Those of the present routes, by name.
        publish: Queues a status; see `Publisher.put_status`.
    """

    def __init__(
        self, statistics: Mapping[str, RouteStatistics], publish: Callable[[Publication], bool]
    ) -> None:
        self._statistics = statistics
        self._publish = publish
        self._reports = False
        self._fault: str | None = None  # why no route can be well, and ...
        self._broken_since = 0.0  # ... since when (Unix time)

    def report_broken(self, fault: str | None) -> None:
        """Report all routes Red for this reason from now on; None: as they are themselves."""
        self._fault, self._broken_since = fault, time.time()
        if self._reports:
            self.report_all()

    def health_changed(self, statistics: RouteStatistics) -> None:
        """Publish a route's status, once the status is published at all."""
        if self._reports:
            self.report(statistics)

    def report(self, statistics: RouteStatistics) -> None:
        """Publish one route's status now."""
        now = time.time()
        status = statistics.status(now)
        if self._fault is not None:
            error = {"time": rfc3339(self._broken_since), "code": "internal_error", "message": self._fault}
            status |= {"health": "Red", "last_error": error}
        self._publish(status_publication(statistics.name, status))

    def report_all(self) -> None:
        """Publish the status of all routes now."""
        for statistics in list(self._statistics.values()):
            self.report(statistics)

    async def run(self, seconds: float) -> None:
        """Publish all every `seconds` until cancelled."""
        self._reports = True
        while True:
            for statistics in list(self._statistics.values()):
                self.report(statistics)
                await asyncio.sleep(0)
            await asyncio.sleep(seconds)

"""The status of each route, published at intervals and when its health changes.

It is made of `statistics`, and retained on `$SYS/broker/routes/<route>/status`. One event loop.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from amqtt_rest_bridge.catalogue import INTERNAL_ERROR, OVERLOADED
from amqtt_rest_bridge.engine.statistics import RouteError, RouteStatistics
from amqtt_rest_bridge.lot.model import OverloadPolicy, Publication
from amqtt_rest_bridge.times import rfc3339

STATUS_TOPICS: Final = "$SYS/broker/routes/"
"""The prefix of the topics of all statuses; what others publish below it is dropped."""


@dataclass(frozen=True, slots=True)
class ReloadFailure:
    """Why the routes in use differ from the route files: the number of errors in the files, and the first error.

    `time` is Unix time in seconds. `errors` is 0 if the files have none, but could not be read or used.
    """

    time: float
    errors: int
    message: str

    def members(self) -> dict[str, Any]:
        """Return the members of the payload."""
        return {"time": rfc3339(self.time), "errors": self.errors, "message": self.message}


def status_topic(route: str) -> str:
    """Return the topic of a route's status."""
    return f"{STATUS_TOPICS}{route}/status"


def spool_refuses(why: str) -> str:
    """Return the sentence for a spool that refuses messages."""
    return f"the spool refuses messages, and can keep none until there is room on its disk: {why}"


def reload_topic(topic: Callable[[str], str] = status_topic) -> str:
    """Return the topic on which a failed reload is retained until one succeeds, from what makes those of routes."""
    return topic("").removesuffix("/status") + "reload"


class StatusReporter:
    """Publish the status of all routes.

    Args:
        statistics: The statistics of the present routes, by name.
        publish: Queues a status.
        topic: Returns the status topic of a route.
    """

    def __init__(
        self,
        statistics: Mapping[str, RouteStatistics],
        publish: Callable[[Publication], bool],
        topic: Callable[[str], str] = status_topic,
    ) -> None:
        self._statistics = statistics
        self._publish = publish
        self._topic = topic
        self.reload_failure: ReloadFailure | None = None
        """The last reload, if it failed; see `reloaded`."""
        self.on_published: Callable[[str, bytes], None] | None = None
        """Called with each status too: the name of the route, and the payload, empty for a route that is gone."""
        self._is_running = False
        self._seconds = 0.0
        self.fault: RouteError | None = None
        """The fault that makes all routes Red, None without one."""
        self._refusing: RouteError | None = None

    def report_broken(self, fault: str | None) -> None:
        """Report all routes as Red for this reason from now on; with None, report their own health again."""
        self.fault = None if fault is None else RouteError(time.time(), INTERNAL_ERROR.code, fault)
        if self._is_running:
            self.report_all()

    def report_refusing(self, why: str | None) -> None:
        """Report lossless routes as Red for this reason: the spool refuses messages. With None, it takes them again."""
        self._refusing = None if why is None else RouteError(time.time(), OVERLOADED.code.value, spool_refuses(why))
        if self._is_running:
            for statistics in list(self._statistics.values()):
                if statistics.admission.policy is OverloadPolicy.LOSSLESS:
                    self.report(statistics)

    def fault_of(self, statistics: RouteStatistics) -> RouteError | None:
        """Return the fault that makes a route Red whatever its own health is, None without one."""
        if self.fault is None and statistics.admission.policy is OverloadPolicy.LOSSLESS:
            return self._refusing
        return self.fault

    def health_changed(self, statistics: RouteStatistics) -> None:
        """Publish a route's status, if statuses are published."""
        if self._is_running:
            self.report(statistics)

    def reloaded(self, failure: ReloadFailure | None) -> None:
        """Note how a reload ended, and publish a failure until a reload succeeds."""
        before, self.reload_failure = self.reload_failure, failure
        if self._is_running and (failure, before) != (None, None):
            payload = b"" if failure is None else _json(failure.members())
            self._publish(Publication(reload_topic(self._topic), payload, retain=True))

    def status(self, statistics: RouteStatistics) -> dict[str, Any]:
        """Return one route's status as it is now."""
        status = statistics.status(time.time())
        fault = self.fault_of(statistics)
        if fault is not None:
            status |= {"health": "Red", "health_reason": fault.message, "last_error": fault.members()}
        return status

    def report(self, statistics: RouteStatistics) -> None:
        """Publish one route's status now."""
        status = self.status(statistics) | {"status_seconds": self._seconds}
        self._publish_status(statistics.name, _json(status))

    def remove(self, route: str) -> None:
        """Remove the retained status of a route that is gone; subscribers receive the empty payload too."""
        self._publish_status(route, b"")

    def _publish_status(self, route: str, payload: bytes) -> None:
        self._publish(Publication(self._topic(route), payload, retain=True))
        if self.on_published is not None:
            self.on_published(route, payload)

    def report_all(self) -> None:
        """Publish the status of all routes now."""
        for statistics in list(self._statistics.values()):
            self.report(statistics)

    async def run(self, seconds: float) -> None:
        """Publish all every `seconds` until cancelled."""
        self._is_running, self._seconds = True, seconds
        while True:
            for statistics in list(self._statistics.values()):
                self.report(statistics)
                await asyncio.sleep(0)
            await asyncio.sleep(seconds)


def _json(members: Mapping[str, Any]) -> bytes:
    return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")

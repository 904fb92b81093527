"""The routes' status, published at intervals and when a health changes. The event loop only.

It is retained on `$SYS/broker/routes/<route>/status`.
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
"""What the topics of all status begin with; other publications there are dropped."""


@dataclass(frozen=True, slots=True)
class ReloadFailure:
    """Why the routes in use are not those of the route files: how many errors these have, and the first of them.

    `time` is Unix time in seconds; `errors` is 0 when the files are sound, but could not be used or read.
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
    """Return the topic on which a failed reload is retained until one succeeds; it is beside those of the routes."""
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
        self.mirror: Callable[[str, bytes], None] | None = None
        """Receives each status too: the route's name, and the payload, which is empty for a route that is gone."""
        self._reports = False
        self._seconds = 0.0
        self.fault: RouteError | None = None
        """Why no route can be well, None while they can."""
        self._refusing: RouteError | None = None

    def report_broken(self, fault: str | None) -> None:
        """Report all routes Red for this reason from now on; None: as they are themselves."""
        self.fault = None if fault is None else RouteError(time.time(), INTERNAL_ERROR.code, fault)
        if self._reports:
            self.report_all()

    def report_refusing(self, why: str | None) -> None:
        """Report lossless routes Red from now on, whose messages the spool refuses; None: it has kept one again."""
        self._refusing = None if why is None else RouteError(time.time(), OVERLOADED.code.value, spool_refuses(why))
        if self._reports:
            for statistics in list(self._statistics.values()):
                if statistics.admission.policy is OverloadPolicy.LOSSLESS:
                    self.report(statistics)

    def fault_of(self, statistics: RouteStatistics) -> RouteError | None:
        """Return the fault that makes a route Red whatever its calls do, None without one."""
        if self.fault is None and statistics.admission.policy is OverloadPolicy.LOSSLESS:
            return self._refusing
        return self.fault

    def health_changed(self, statistics: RouteStatistics) -> None:
        """Publish a route's status, if statuses are published."""
        if self._reports:
            self.report(statistics)

    def reloaded(self, failure: ReloadFailure | None) -> None:
        """Note how a reload ended, and publish a failure until a reload succeeds."""
        before, self.reload_failure = self.reload_failure, failure
        if self._reports and (failure, before) != (None, None):
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
        self._put(statistics.name, _json(status))

    def remove(self, route: str) -> None:
        """Remove the retained status of a route that is gone; subscribers receive the empty payload too."""
        self._put(route, b"")

    def _put(self, route: str, payload: bytes) -> None:
        self._publish(Publication(self._topic(route), payload, retain=True))
        if self.mirror is not None:
            self.mirror(route, payload)

    def report_all(self) -> None:
        """Publish the status of all routes now."""
        for statistics in list(self._statistics.values()):
            self.report(statistics)

    async def run(self, seconds: float) -> None:
        """Publish all every `seconds` until cancelled."""
        self._reports, self._seconds = True, seconds
        while True:
            for statistics in list(self._statistics.values()):
                self.report(statistics)
                await asyncio.sleep(0)
            await asyncio.sleep(seconds)


def _json(members: Mapping[str, Any]) -> bytes:
    return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")

"""Route status on `$SYS/broker/routes/<route>/status`, retained: every so often and on change of health."""

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from amqtt_rest_bridge.failures import rfc3339
from amqtt_rest_bridge.model import Publication
from amqtt_rest_bridge.routing.statistics import RouteAccount

STATUS_TOPICS: Final = "$SYS/broker/routes/"
"""What the topics of all status begin with; no one else publishes there."""


def status_topic(route: str) -> str:
    """Give the topic of a route's status."""
    return f"{STATUS_TOPICS}{route}/status"


def status_publication(route: str, status: Mapping[str, Any]) -> Publication:
    """Return the status of a route as it is published."""
    payload = json.dumps(status, ensure_ascii=False, separators=(",", ":"))
    return Publication(status_topic(route), payload.encode("utf-8", "backslashreplace"), retain=True)


class StatusReporter:
    """Publish the status of all routes.

    Args:
        accounts: Gives the routes' accounts.
        publish: Queues a status; see `Publisher.put_status`.
    """

    def __init__(
        self, accounts: Callable[[], Iterable[RouteAccount]], publish: Callable[[Publication], bool]
    ) -> None:
        self._accounts = accounts
        self._publish = publish
        self._reports = False
        self._fault: str | None = None  # why no route can be well, and ...
        self._broken_since = 0.0  # ... since when (Unix time)

    def tell_broken(self, fault: str | None) -> None:
        """Report all routes Red for this reason from now on; None: as they are themselves."""
        self._fault, self._broken_since = fault, time.time()
        if self._reports:
            self.report_all()

    def report(self, account: RouteAccount) -> None:
        """Publish one route's status now."""
        now = time.time()
        status = account.status(now)
        if self._fault is not None:
            error = {"time": rfc3339(self._broken_since), "code": "internal_error", "message": self._fault}
            status |= {"health": "Red", "last_error": error}
        self._publish(status_publication(account.name, status))

    def report_all(self) -> None:
        """Publish the status of all routes now."""
        for account in list(self._accounts()):
            self.report(account)

    async def run(self, seconds: float) -> None:
        """Publish all every `seconds` until cancelled."""
        self._reports = True
        while True:
            for account in list(self._accounts()):
                self.report(account)
                await asyncio.sleep(0)
            await asyncio.sleep(seconds)

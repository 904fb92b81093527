"""Route status on `$SYS/broker/routes/<route>/status`, retained: every so often and on change of health."""

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from typing import Final

from amqtt_rest_bridge.broker.account import RouteAccount
from amqtt_rest_bridge.model import Publication

STATUS_TOPICS: Final = "$SYS/broker/routes/"
"""What the topics of all status begin with; no one else publishes there."""


def status_topic(route: str) -> str:
    """Give the topic of a route's status."""
    return f"{STATUS_TOPICS}{route}/status"


def status_publication(account: RouteAccount, now: float) -> Publication:
    """Give a route's status as it is published; `now` is Unix time in seconds."""
    payload = json.dumps(account.status(now), ensure_ascii=False, separators=(",", ":"))
    return Publication(status_topic(account.name), payload.encode("utf-8", "backslashreplace"), retain=True)


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

    def report(self, account: RouteAccount) -> None:
        """Publish one route's status now."""
        self._publish(status_publication(account, time.time()))

    def report_all(self) -> None:
        """Publish the status of all routes now."""
        for account in list(self._accounts()):
            self.report(account)

    async def run(self, seconds: float) -> None:
        """Publish all every `seconds` until cancelled."""
        while True:
            for account in list(self._accounts()):
                self.report(account)
                await asyncio.sleep(0)
            await asyncio.sleep(seconds)

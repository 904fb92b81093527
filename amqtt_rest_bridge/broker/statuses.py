"""The statuses of routes, as they are published while the bridge is away or broken. The broker's loop only."""

import asyncio
import json
import logging
import time
from typing import TYPE_CHECKING, Final

from amqtt_rest_bridge.catalogue import BRIDGE_RESTARTED, INTERNAL_ERROR
from amqtt_rest_bridge.engine.statistics import RouteError
from amqtt_rest_bridge.engine.status_reporter import STATUS_TOPICS
from amqtt_rest_bridge.lot.model import Publication
from amqtt_rest_bridge.times import rfc3339

if TYPE_CHECKING:
    from amqtt_rest_bridge.broker.publisher import Publisher

log = logging.getLogger(__name__)

AWAY: Final = "the bridge is away, and being started again; until then messages wait"
_STATUS: Final = "/status"
_LAST: Final = b"last"  # a payload that `amended` replaces by the last status, when the publication has its turn


class Statuses:
    """Keep the last status of each route, and publish it with health Red while there is a fault.

    While the bridge is away, or a task of the broker's side keeps failing, only this side can say so.
    A bridge that publishes no statuses (`status_seconds: 0`) has none that could be Red.
    """

    def __init__(self) -> None:
        self._last: dict[str, Publication] = {}  # by topic, as the bridge published it
        self._away: RouteError | None = None
        self._broken: RouteError | None = None
        self._changed = asyncio.Event()

    def amended(self, publication: Publication) -> Publication:
        """Return a publication of the bridge as it is to be published: a status is Red while there is a fault."""
        topic = publication.topic
        if not (publication.retain and topic.startswith(STATUS_TOPICS) and topic.endswith(_STATUS)):
            return publication
        if publication.payload == _LAST:
            publication = self._last.get(topic) or Publication(topic, b"", retain=True)
        if not publication.payload:  # its route is gone
            self._last.pop(topic, None)
            return publication
        self._last[topic] = publication
        return self._with_fault(publication)

    def bridge_went_away(self) -> None:
        """Report all routes Red until the bridge is ready again."""
        self._away = RouteError(time.time(), BRIDGE_RESTARTED.code.value, AWAY)
        self._changed.set()

    def report_broken(self, fault: str | None) -> None:
        """Report all routes Red for this reason from now on; None: as the bridge reports them."""
        self._broken = None if fault is None else RouteError(time.time(), INTERNAL_ERROR.code, fault)
        self._changed.set()

    async def run(self, ready: asyncio.Event, publisher: "Publisher") -> None:
        """Publish the status of all routes after each change, until cancelled. `ready` is set while the bridge is."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            for topic in list(self._last):
                publisher.put(Publication(topic, _LAST, retain=True), 1, own=True)
                await asyncio.sleep(0)
            if self._away is not None:
                await ready.wait()
                self._away = None
                self._changed.set()

    def _with_fault(self, publication: Publication) -> Publication:
        fault = self._broken or self._away
        if fault is None:
            return publication
        try:
            status = json.loads(publication.payload)
        except ValueError:
            log.warning("the status on %s is not JSON", publication.topic)
            return publication
        status |= {
            "health": "Red", "health_reason": fault.message, "last_error": fault.members(),
            "timestamp": rfc3339(time.time()),
        }  # fmt: skip
        payload = json.dumps(status, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")
        return Publication(publication.topic, payload, retain=True)

"""What the broker process reports: the statuses of routes while the bridge is away, and to the bridge its own state.

The broker's loop only.
"""

import asyncio
import json
import logging
import time
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from amqtt_rest_bridge.catalogue import BRIDGE_RESTARTED, INTERNAL_ERROR
from amqtt_rest_bridge.engine.statistics import RouteError
from amqtt_rest_bridge.engine.status_reporter import STATUS_TOPICS
from amqtt_rest_bridge.lot.model import Publication
from amqtt_rest_bridge.mqtt.private import BROKER_TOPIC, BrokerState
from amqtt_rest_bridge.times import rfc3339

if TYPE_CHECKING:
    from amqtt_rest_bridge.broker.endpoint import PrivateEndpoint
    from amqtt_rest_bridge.broker.lossless import Lossless
    from amqtt_rest_bridge.broker.publisher import Publisher

log = logging.getLogger(__name__)

AWAY: Final = "the bridge is away, and being started again; until then messages wait"
_STATUS: Final = "/status"
_QUIET_SECONDS: Final = 1.0  # between two states
_MOST_ERRORS: Final = 100  # that wait to be sent; further ones are not reported
_LAST: Final = b"last"  # a payload that `amended` replaces by the last status, when the publication has its turn


class Statuses:
    """Keeps the last status of each route, and publishes it with health Red while there is a fault.

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


class StateReports:
    """Sends the bridge the state of the broker process after a change, at most once a second; the bridge shows it.

    Args:
        endpoint: Sends it.
        lossless: Has the messages on disk; None without a spool.
    """

    def __init__(self, endpoint: "PrivateEndpoint", lossless: "Lossless | None") -> None:
        self._endpoint = endpoint
        self._lossless = lossless
        self._restarts = 0
        self._errors: list[tuple[str, str, str]] = []  # since the last state
        self._last: BrokerState | None = None
        self._sent_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def note_restart(self) -> None:
        """Count a restart of the bridge."""
        self._restarts += 1
        self.send_soon()

    def report_error(self, route: str, code: str, message: str) -> None:
        """Report an error of a route, for its status."""
        if len(self._errors) < _MOST_ERRORS:
            self._errors.append((route, code, message))
        self.send_soon()

    def begin(self) -> None:
        """Send the state to a bridge that has just subscribed to it."""
        self._last = None
        self.send_soon()

    def send_soon(self) -> None:
        """Send the state, if it has changed, within a second."""
        if self._timer is None:
            wait = max(0.0, self._sent_at + _QUIET_SECONDS - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(wait, self._send)

    def _send(self) -> None:
        self._timer = None
        lossless = self._lossless
        if not self._endpoint.has_receivers(BROKER_TOPIC):
            return
        state = BrokerState(self._endpoint.dropped, self._restarts, {}, errors=tuple(self._errors))
        if lossless is not None:
            state = replace(state, spool=dict(lossless.rows), refusing=lossless.refusing, trouble=lossless.trouble)
        self._sent_at = time.monotonic()
        if state != self._last:
            self._last = replace(state, errors=())
            self._errors.clear()
            self._endpoint.offer(BROKER_TOPIC, msgspec.json.encode(state))
        if lossless is not None:  # its rows change without a call of `send_soon`
            self.send_soon()

    def close(self) -> None:
        """Send no more."""
        if self._timer is not None:
            self._timer.cancel()

"""What the runners of routes share, and what spaces and stops the requests of each: RATE_LIMIT and BREAKER.

The link's readers use it, one at a time; `bridge.timers` has the locks.
"""

import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from amqtt_rest_bridge.bridge.claims import KeyClaims
from amqtt_rest_bridge.bridge.client.worker_pool import ThreadBudget
from amqtt_rest_bridge.bridge.timers import Breaker, Lease, Pace, Timers
from amqtt_rest_bridge.calls.open_calls import OpenCalls
from amqtt_rest_bridge.link.bridge_end import BridgeEnd
from amqtt_rest_bridge.link.frames import BreakerChange
from amqtt_rest_bridge.model import Route

if TYPE_CHECKING:  # it imports this module
    from amqtt_rest_bridge.bridge.client.route_runner import RouteRunner

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RouteContext:
    """What the runners of routes share.

    `pace` spaces the requests of a route with a RATE_LIMIT, `breaker` is that of a route with a BREAKER, ORDERED calls
    begin while the `lease` lasts; `successor` returns the runner of its present definition. `calls` are those of all
    routes, used under `lock`. `parsing` is held while a large payload is parsed and filled in: 4 MB of small JSON
    objects are 100 MB of Python's, and the interpreter lock lets one thread at a time parse anyway.
    """

    link: BridgeEnd
    claims: KeyClaims
    timers: Timers
    threads: ThreadBudget
    calls: OpenCalls
    lock: threading.Lock
    lease: Lease
    pace: Pace | None
    breaker: Breaker | None
    successor: Callable[[], "RouteRunner | None"]
    parsing: threading.Lock


class Targets:
    """The pace and the breaker of each route that has, or had, one, whichever of its definitions a call follows.

    Args:
        timers: For turns and probes.
        link: Carries the news of breakers that open and close.
    """

    def __init__(self, timers: Timers, link: BridgeEnd) -> None:
        self._timers = timers
        self._link = link
        self._paces: dict[str, Pace] = {}
        self._breakers: dict[str, Breaker] = {}
        self._workers = 1  # that share them

    def keep(self, names: Collection[str]) -> None:
        """Forget those of all other routes; start what waits for a target that a reload has changed."""
        self._paces = {name: pace for name, pace in self._paces.items() if name in names}
        for name, breaker in list(self._breakers.items()):
            if name not in names:
                self._breakers.pop(name).change(None, None)
            breaker.release()

    def share(self, workers: int) -> None:
        """Leave the others of so many workers their part of each from now on."""
        self._workers = workers
        for pace in self._paces.values():
            pace.share(workers)
        for breaker in self._breakers.values():
            breaker.share(workers)

    def pace(self, route: Route) -> Pace | None:
        """Return the pace of a route with a RATE_LIMIT, changed to that limit."""
        seconds = route.route_config.rate_limit
        pace = self._paces.get(route.name)
        if pace is None and seconds is not None:
            pace = self._paces[route.name] = Pace(self._timers)
            pace.share(self._workers)
        if pace is not None:
            pace.change(seconds or 0.0)
        return None if seconds is None else pace

    def breaker(self, route: Route) -> Breaker | None:
        """Return the breaker of a route; its state lasts while BREAKER and the server of BASE_ADDRESS do."""
        rule = route.route_config.breaker
        breaker = self._breakers.get(route.name)
        if breaker is None and rule is not None:
            breaker = self._breakers[route.name] = Breaker(self._timers, partial(self._changed, route.name))
            breaker.share(self._workers)
        if breaker is not None:
            breaker.change(route.config.server, rule)
        return None if rule is None else breaker

    def _changed(self, route: str, reason: str | None) -> None:
        log.warning("route %s: %s", route, reason or "the target answers again, the breaker is closed")
        self._link.send_in_order(BreakerChange(route, reason))

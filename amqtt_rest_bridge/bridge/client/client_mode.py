"""Client mode in the bridge process: the routes, which of them a call that arrives belongs to, and their targets."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from amqtt_rest_bridge.bridge.claims import KeyClaims
from amqtt_rest_bridge.bridge.client.dedupe_runner import runner_class
from amqtt_rest_bridge.bridge.client.route_runner import RouteContext, RouteRunner
from amqtt_rest_bridge.bridge.client.senders import Sender
from amqtt_rest_bridge.bridge.client.worker_pool import ThreadBudget, WorkerPool
from amqtt_rest_bridge.bridge.timers import Breaker, Lease, Pace, Timers
from amqtt_rest_bridge.calls.call import OpenCall
from amqtt_rest_bridge.calls.open_calls import OpenCalls
from amqtt_rest_bridge.link.bridge_end import BridgeEnd
from amqtt_rest_bridge.link.frames import BreakerChange, DispatchedCall
from amqtt_rest_bridge.model import NumberedRoute, RestApiConfig, Route
from amqtt_rest_bridge.records.bridge_records import BridgeRecords
from amqtt_rest_bridge.settings import BridgeSettings

log = logging.getLogger(__name__)


class ClientMode:
    """The routes of client mode, and the calls that they run; a reload replaces runners, not their calls.

    Args:
        link: Where results go.
        claims: On keys of DEDUPE_KEY.
        timers: For retries and turns.
        sender: Returns the sender for the requests of a route.
        threads: Admits the threads of all routes.
    """

    def __init__(
        self,
        link: BridgeEnd,
        claims: KeyClaims,
        timers: Timers,
        sender: Callable[[RestApiConfig, BridgeSettings], Sender],
        threads: ThreadBudget,
    ) -> None:
        self._link, self._claims, self._timers = link, claims, timers
        self._sender, self._threads = sender, threads
        self._runners: dict[int, RouteRunner] = {}  # by event number
        self._by_route: dict[str, RouteRunner] = {}  # the present runner of each route
        self._retired: deque[RouteRunner] = deque()  # a reload replaced them; closed once their calls have ended
        self._calls, self._lock = OpenCalls(), threading.Lock()
        self._parsing, self._lease = threading.Lock(), Lease()
        self._targets = Targets(timers, link)

    def take(self, calls: list[DispatchedCall]) -> list[WorkerPool[OpenCall]]:
        """Queue calls that have arrived; return the pools that have some, and of which no thread runs."""
        by_runner: dict[RouteRunner, list[DispatchedCall]] = {}
        for call in calls:
            if self._calls.due:  # calls that have waited, whose payloads come again
                with self._lock:
                    waiting = self._calls.arrived(call.id, call.message)
                if waiting is not None:
                    waiting.start(waiting)
                    continue
            by_runner.setdefault(self._runners[call.event], []).append(call)
        idle: list[WorkerPool[OpenCall]] = []
        for runner, own in by_runner.items():
            pool = runner.take(own)
            if pool is not None:
                idle.append(pool)
        return idle

    def use_routes(
        self, routes: Sequence[NumberedRoute], settings: BridgeSettings, records: BridgeRecords | None
    ) -> None:
        """Run the events of these routes from now on.

        Raises:
            ConfigurationError: BASE_ADDRESS or USERNAME of a route cannot be used.
        """
        runners: dict[int, RouteRunner] = {}
        for numbered in filter(lambda one: one.numbers, routes):
            runner = self._runners.get(numbered.numbers[0]) or self._make_runner(numbered, settings, records)
            runners |= dict.fromkeys(numbered.numbers, runner)
        gone = set(self._runners.values()) - set(runners.values())
        self._runners, self._by_route = runners, {runner.name: runner for runner in runners.values()}
        for runner in gone:
            runner.retire()
        self._retired.extend(gone)
        self._targets.keep(self._by_route.keys())

    def withdraw(self, numbers: Iterable[int]) -> None:
        """Begin none of these calls any more, and give back those that wait."""
        with self._lock:
            waiting = self._calls.withdraw(numbers)
        for give_back in waiting:
            give_back()
        for runner in self._all():
            runner.close_batches()

    def in_group(self, workers: int, ordered_until: float) -> None:
        """Divide RATE_LIMITs, and probes of targets, among so many workers; begin ORDERED calls until a time."""
        self._targets.share(workers)
        self._lease.renew(ordered_until)

    def close_retired(self) -> None:
        """Close the runners of earlier definitions whose calls have ended."""
        for _ in range(len(self._retired)):  # while the reader may put more in
            runner = self._retired.popleft()
            if runner.is_idle:
                runner.close()
            else:
                self._retired.append(runner)

    def expire(self) -> None:
        """Close connections that have been idle for too long."""
        for runner in list(self._by_route.values()):
            runner.expire()

    @property
    def is_busy(self) -> bool:
        """Return whether a worker runs a call."""
        return any(runner.is_busy for runner in self._all())

    def stop(self) -> None:
        """Start no more requests; see `RouteRunner.stop`."""
        for runner in self._all():
            runner.stop()

    def close(self) -> None:
        """End all; does not wait."""
        for runner in self._all():
            runner.stop()
            runner.close()

    def _all(self) -> set[RouteRunner]:
        return {*self._runners.values(), *self._retired}

    def _make_runner(
        self, numbered: NumberedRoute, settings: BridgeSettings, records: BridgeRecords | None
    ) -> RouteRunner:
        route = numbered.route
        context = RouteContext(
            settings, records, self._link, self._claims, self._timers, self._threads, self._calls, self._lock,
            self._lease, self._targets.pace(route), self._targets.breaker(route),
            lambda: self._by_route.get(route.name), self._parsing,
        )  # fmt: skip
        return runner_class(route)(numbered, self._sender(route.config, settings), context)


class Targets:
    """The pace and the breaker of each route that has, or had, one, whichever of its definitions a call follows.

    The link's readers use it, one at a time; `bridge.timers` has the locks.

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

"""The present figures of all routes, which pages, `/metrics` and `/readyz` show.

They are gathered for some routes at a time, so that the loop does other work between; callers that ask meanwhile share
them.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from msgspec import Struct

from amqtt_rest_bridge.admin.recorder import EventCounts, RunRecorder
from amqtt_rest_bridge.admin.runs import Problem
from amqtt_rest_bridge.engine.outcome import Outcomes
from amqtt_rest_bridge.engine.server.unmatched import Unmatched, UnmatchedPath
from amqtt_rest_bridge.engine.statistics import RouteStatistics
from amqtt_rest_bridge.engine.status_reporter import StatusReporter, spool_refuses
from amqtt_rest_bridge.lot.model import OverloadPolicy
from amqtt_rest_bridge.mqtt.private import BrokerState

SAMPLE_SECONDS: Final = 10.0
"""From one sample of the figures, for the charts, to the next."""


class RouteNumbers(Struct, frozen=True):
    """The numbers of one route; `status` is what its status topic says, where that was asked for.

    `spooled` is the number of its messages on disk, without a spool of those that have not ended, None for a route that
    is not lossless; `breaker` is `open` or `closed`, None for a route without one; `readers` are those of its streams,
    None for a route without STREAM.
    """

    name: str
    health: str
    events: dict[str, EventCounts]
    succeeded: int
    failed: int
    refused: int
    retried: int
    queued: int
    held_bytes: int
    in_flight: int
    spooled: int | None
    breaker: str | None
    readers: int | None
    status: dict[str, Any] | None


class GroupNumbers(Struct, frozen=True):
    """What a worker counts of its group: whether it holds each slot, by number, and the rest as `/metrics` has it.

    `route_sets` are the living workers by the hash of their route set.
    """

    held: list[bool]
    unacknowledged: int
    redelivered: int
    reconnects: int
    lease_changes: int
    route_sets: dict[str, int]


class BridgeNumbers(Struct, frozen=True):
    """What concerns no route: restarts of bridge processes, errors of the last reload, and why it is not ready.

    `unmatched` are requests that led to no endpoint, by port; `unmatched_paths` the most frequent ones.
    `spool_refusing` is whether messages of lossless routes are refused for a full disk. `problems` are those of now.
    `group` is that of a worker, None beside amqtt. `pids` are the process ids by name: `main`, `bridge-0` ...
    `dropped` are messages that were dropped while the bridge was away.
    """

    restarts: int
    reload_errors: int
    reasons: list[str]
    unmatched: dict[int, int] = {}
    unmatched_paths: list[UnmatchedPath] = []
    spool_refusing: bool = False
    problems: list[Problem] = []
    group: GroupNumbers | None = None
    pids: dict[str, int] = {}
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Numbers:
    """The figures; the routes by name, in order."""

    routes: dict[str, RouteNumbers]
    bridge: BridgeNumbers


_ROUTES_AT_ONCE: Final = 20  # in one iteration of the loop: a millisecond at most
_MOST_PROBLEMS: Final = 100


class Figures:
    """Gather them.

    Args:
        outcomes: Has the statistics of routes.
        recorder: Have what was counted of events, and the problems.
        reporter: Has the status of routes, and whether the last reload failed.
        unmatched: Requests that led to no endpoint.
        troubles: Returns why the bridge is not ready, beside what `reporter` knows.
        group: Returns what a worker counts of its group, None beside amqtt.
        broker: Returns what the broker's side of the plugin counts.
        pids: Process ids by name.
    """

    def __init__(
        self,
        outcomes: Outcomes,
        recorder: RunRecorder,
        reporter: StatusReporter,
        unmatched: Unmatched,
        troubles: Callable[[], list[str]],
        group: Callable[[], GroupNumbers | None],
        broker: Callable[[], BrokerState],
        pids: Mapping[str, int],
    ) -> None:
        self._statistics = outcomes.statistics
        self._recorder = recorder
        self._reporter = reporter
        self._unmatched = unmatched
        self._troubles = troubles
        self._group = group
        self._broker = broker
        self._pids = dict(pids)
        self._gathering: dict[bool, asyncio.Task[Numbers]] = {}  # by whether statuses are among them

    async def now(self, *, statuses: bool) -> Numbers:
        """Return the figures of all routes, with `statuses` what their status topics say, too."""
        task = self._gathering.get(statuses)
        if task is None:
            task = self._gathering[statuses] = asyncio.create_task(self._gather(statuses=statuses))
            task.add_done_callback(lambda _: self._gathering.pop(statuses, None))
        return await asyncio.shield(task)

    async def _gather(self, *, statuses: bool) -> Numbers:
        counts, found = self._recorder.counts(), dict[str, RouteNumbers]()
        for number, name in enumerate(sorted(self._statistics, key=str.lower), 1):
            if (statistics := self._statistics.get(name)) is not None:
                found[name] = self._route(statistics, counts.get(name, {}), statuses=statuses)
            if number % _ROUTES_AT_ONCE == 0:
                await asyncio.sleep(0)
        while not self._unmatched.prepare():
            await asyncio.sleep(0)
        return Numbers(found, self._whole())

    def _route(self, statistics: RouteStatistics, events: dict[str, EventCounts], *, statuses: bool) -> RouteNumbers:
        admission, spooled = statistics.admission, None
        if admission.policy is OverloadPolicy.LOSSLESS:
            spool = self._broker().spool
            spooled = admission.outstanding if spool is None else spool.get(statistics.name, 0)
        return RouteNumbers(
            statistics.name,
            statistics.health if self._reporter.fault_of(statistics) is None else "Red",
            events,
            statistics.succeeded,
            statistics.failed,
            statistics.refused,
            statistics.retried,
            admission.queued,
            admission.bytes,
            admission.in_flight,
            spooled,
            statistics.breaker,
            statistics.readers,
            self._reporter.status(statistics) if statuses else None,
        )

    def _whole(self) -> BridgeNumbers:
        reporter, failure, broker = self._reporter, self._reporter.reload_failure, self._broker()
        reasons = [] if reporter.fault is None else [reporter.fault.message]
        if failure is not None:
            reasons.append(f"the last reload failed, the routes before it are in use: {failure.message}")
        if broker.refusing is not None:
            reasons.append(spool_refuses(broker.refusing))
        elif broker.trouble is not None:
            reasons.append(f"the spool cannot be written: {broker.trouble}")
        reasons += self._troubles()
        successes = {name: statistics.last_success for name, statistics in self._statistics.items()}
        problems = self._recorder.problems.listed(time.time(), successes)[:_MOST_PROBLEMS]
        errors = 0 if failure is None else max(1, failure.errors)
        return BridgeNumbers(
            broker.restarts, errors, reasons, self._unmatched.totals(), self._unmatched.most(),
            broker.refusing is not None, problems, self._group(), self._pids, broker.dropped,
        )  # fmt: skip

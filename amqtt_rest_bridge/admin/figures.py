"""The present figures of all routes, which pages, `/metrics` and `/readyz` show. Event loop only.

They are gathered for some routes at a time, so that the loop does other work between. Callers who ask meanwhile get the
same ones.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from amqtt_rest_bridge.admin.problems import LISTED_SECONDS, target_of_event
from amqtt_rest_bridge.admin.recorder import EventCounts, RunRecorder
from amqtt_rest_bridge.admin.runs import Problem
from amqtt_rest_bridge.engine.outcome import Outcomes
from amqtt_rest_bridge.engine.server.unmatched import UnmatchedPath, UnmatchedRequests
from amqtt_rest_bridge.engine.status_reporter import StatusReporter, spool_refuses
from amqtt_rest_bridge.lot.model import OverloadPolicy
from amqtt_rest_bridge.lot.placeholders.conditions import WHEN_UNUSABLE
from amqtt_rest_bridge.mqtt.private import BrokerState

SAMPLE_SECONDS: Final = 10.0
"""From one sample of the figures, for the charts, to the next."""


class RouteNumbers(Struct, frozen=True):
    """The numbers of one route; `status` is what its status topic says, None if that was not asked for.

    `spooled` counts the messages of a lossless route on disk, or without a spool those that have not ended; it is None
    for any other route. `breaker` is `open` or `closed`, None for a route without BREAKER. `readers` counts the readers
    of its streams, None for a route without STREAM. `open_failures` counts kept failures that wait for a retry.
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
    open_failures: int
    status: dict[str, Any] | None


class GroupNumbers(Struct, frozen=True):
    """What a worker counts of its group, as `/metrics` has it.

    `held` says of each slot, by its number, whether this worker holds it. `route_sets` counts the living workers by the
    hash of their route set.
    """

    held: list[bool]
    unacknowledged: int
    redelivered: int
    reconnects: int
    lease_changes: int
    route_sets: dict[str, int]


class BridgeNumbers(Struct, frozen=True):
    """What concerns the bridge as a whole; `reasons` say why it is not ready.

    `restarts` counts starts after a crash, `reload_errors` the errors of the last reload, `dropped` the messages that
    were dropped while the bridge was away. `unmatched` counts requests that led to no endpoint, by port;
    `unmatched_paths` are the most frequent ones. `spool_refusing` says whether messages of lossless routes are refused
    because the disk is full. `problems` are the present ones. `group` is None beside amqtt. `pids` are the process ids
    by name: `main`, `bridge-0` ...
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
    """The figures of all routes, by name and in order, and of the bridge."""

    routes: dict[str, RouteNumbers]
    bridge: BridgeNumbers


class RunningBridge(Protocol):
    """What the figures show of the bridge beside its routes."""

    @property
    def troubles(self) -> list[str]:
        """Return why the bridge is not ready, beside faults of its routes."""

    @property
    def group_numbers(self) -> GroupNumbers | None:
        """Return what a worker counts of its group, None beside amqtt."""

    @property
    def broker_state(self) -> BrokerState:
        """Return what the broker's side of the plugin counts."""


_ROUTES_AT_ONCE: Final = 20  # in one iteration of the loop: a millisecond at most
_MOST_PROBLEMS: Final = 100


class Figures:
    """Gathers the figures.

    Args:
        outcomes: Has the statistics of routes.
        recorder: Has what was counted of events, and the problems.
        reporter: Has the status of routes, and whether the last reload failed.
        unmatched: Requests that led to no endpoint.
        bridge: What the routes run on.
        pids: Process ids by name.
    """

    def __init__(
        self,
        outcomes: Outcomes,
        recorder: RunRecorder,
        reporter: StatusReporter,
        unmatched: UnmatchedRequests,
        bridge: RunningBridge,
        pids: Mapping[str, int],
    ) -> None:
        self._statistics = outcomes.statistics
        self._recorder = recorder
        self._reporter = reporter
        self._unmatched = unmatched
        self._bridge = bridge
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
        kept = self._recorder.kept
        counts, spooled, found = self._recorder.counts(), self._bridge.broker_state.spool, dict[str, RouteNumbers]()
        for number, name in enumerate(sorted(self._statistics, key=str.lower), 1):
            if (statistics := self._statistics.get(name)) is not None:
                admission, on_disk, waiting = statistics.admission, None, len(kept.open(name))
                if admission.policy is OverloadPolicy.LOSSLESS:
                    on_disk = admission.outstanding if spooled is None else spooled.get(name, 0)
                found[name] = RouteNumbers(
                    name=name,
                    health=statistics.health if self._reporter.fault_of(statistics) is None else "Red",
                    events=counts.get(name, {}),
                    succeeded=statistics.succeeded,
                    failed=statistics.failed,
                    refused=statistics.refused,
                    retried=statistics.retried,
                    queued=admission.queued,
                    held_bytes=admission.bytes,
                    in_flight=admission.in_flight,
                    spooled=on_disk,
                    breaker=statistics.breaker,
                    readers=statistics.readers,
                    open_failures=waiting,
                    status=self._reporter.status(statistics) | {"open_failures": waiting} if statuses else None,
                )
            if number % _ROUTES_AT_ONCE == 0:
                await asyncio.sleep(0)
        while not self._unmatched.find_one_nearest():
            await asyncio.sleep(0)
        return Numbers(found, self._bridge_numbers())

    def _bridge_numbers(self) -> BridgeNumbers:
        reporter, failure, broker = self._reporter, self._reporter.reload_failure, self._bridge.broker_state
        reasons = [] if reporter.fault is None else [reporter.fault.message]
        if failure is not None:
            reasons.append(f"the last reload failed, the routes before it are in use: {failure.message}")
        if broker.refusing is not None:
            reasons.append(spool_refuses(broker.refusing))
        elif broker.trouble is not None:
            reasons.append(f"the spool cannot be written: {broker.trouble}")
        reasons += self._bridge.troubles
        waiting = Counter(map(self._recorder.problems.kind_of, (one.run for one in self._recorder.kept.open())))
        successes = {name: statistics.last_success for name, statistics in self._statistics.items()}
        problems = [
            one if one.run is None or self._recorder.is_known(one.run, one.routes) else replace(one, run=None)
            for one in self._recorder.problems.present(time.time(), successes, waiting)
        ]
        return BridgeNumbers(
            restarts=broker.restarts,
            reload_errors=0 if failure is None else max(1, failure.errors),
            reasons=reasons,
            unmatched=self._unmatched.totals(),
            unmatched_paths=self._unmatched.most_frequent(),
            spool_refusing=broker.refusing is not None,
            problems=sorted([*problems, *self._unusable_whens()], key=lambda one: one.place)[:_MOST_PROBLEMS],
            group=self._bridge.group_numbers,
            pids=self._pids,
            dropped=broker.dropped,
        )

    def _unusable_whens(self) -> Iterator[Problem]:
        """Yield a problem for each WHEN that fits no message, until one fits or ten minutes have passed."""
        now, since_start = time.monotonic(), time.time() - time.monotonic()
        for name, statistics in self._statistics.items():
            for event, when in statistics.whens.by_event.items():
                if when.fits_none() and now - when.failures[-1] < LISTED_SECONDS:
                    yield Problem(
                        code=WHEN_UNUSABLE,
                        target=target_of_event(name, event),
                        status=None,
                        routes=[name],
                        counts=[when.count],
                        count=when.count,
                        first=since_start + when.first,
                        last=since_start + when.failures[-1],
                        message=f"event {event} skips each message: {when.fault}",
                        hint="Compare WHEN with the payloads: a name in another letter case is another member",
                        run=None,
                    )

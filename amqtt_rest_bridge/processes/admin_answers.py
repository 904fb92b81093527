"""The broker's end of the admin port: answers the bridge process that serves it. The broker's loop alone.

The numbers of a thousand routes are gathered in parts, so that they delay no client, and only when they are asked for.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from amqtt_rest_bridge.admin.numbers import BridgeNumbers, EventCounts, GroupNumbers, RouteNumbers
from amqtt_rest_bridge.engine.status import StatusReporter, spool_refuses
from amqtt_rest_bridge.link.admin_frames import (
    LIVE_SECONDS,
    FoundRuns,
    FromAdmin,
    LiveRecords,
    NumbersPart,
    WantLive,
    WantNumbers,
    WantRetry,
    WantRuns,
)
from amqtt_rest_bridge.link.broker_end import BrokerEnd
from amqtt_rest_bridge.model import OverloadPolicy
from amqtt_rest_bridge.processes.bridge_pool import BridgePool
from amqtt_rest_bridge.processes.bridge_process import BridgeProcess
from amqtt_rest_bridge.processes.failure_retries import FailureRetries
from amqtt_rest_bridge.records.broker_records import BrokerRecords
from amqtt_rest_bridge.records.kept_runs import KeptRun
from amqtt_rest_bridge.records.runs import is_wanted
from amqtt_rest_bridge.records.values import Record
from amqtt_rest_bridge.routing.calls import Store
from amqtt_rest_bridge.routing.server_reports import ServerReports
from amqtt_rest_bridge.routing.statistics import RouteStatistics

_RUNS_AT_ONCE: Final = 500
_ROUTES_AT_ONCE: Final = 20  # in one iteration of the loop: a millisecond at most
_MOST_PROBLEMS: Final = 100
_MOST_UNREAD: Final = 1 << 20  # bytes that the bridge process has to read before more records are sent to it


class AdminAnswers:
    """Answer, and pass on what bridge processes answer each other.

    Args:
        pool: The bridge processes, of which the first one serves the admin port.
        records: What the broker's side has counted and recorded.
        reporter: The status of the routes, and how the last reload ended.
        statistics: Those of the present routes, by name.
        server: Knows the ports that are not served.
        store: Keeps the calls of lossless routes; None where there are none.
        retries: Sends messages of failures again.
        loop: The broker's, which may not run yet.
        troubles: Returns why the MQTT side is not ready; nothing when it is.
        group: Returns what a worker counts of its group, None beside amqtt.
    """

    def __init__(
        self,
        pool: BridgePool,
        records: BrokerRecords,
        reporter: StatusReporter,
        statistics: Mapping[str, RouteStatistics],
        server: ServerReports,
        store: Store | None,
        retries: FailureRetries,
        loop: asyncio.AbstractEventLoop,
        troubles: Callable[[], Iterable[str]],
        group: Callable[[], GroupNumbers | None],
    ) -> None:
        self._pool = pool
        self._records = records
        self._reporter = reporter
        self._statistics = statistics
        self._server = server
        self._store = store
        self._retries = retries
        self._loop = loop
        self._troubles = troubles
        self._group = group
        self._timer: asyncio.TimerHandle | None = None
        self._followed_by: BrokerEnd | None = None
        self._answering: tuple[BrokerEnd, int] | None = None  # the question whose answer is gathered
        pool.on_admin, pool.on_ready = self.take, self.became_ready

    def take(self, frame: FromAdmin) -> None:
        """Handle a frame of a bridge process."""
        first, *others = self._pool.processes
        match frame:
            case WantNumbers():
                if (first.link, frame.number) != self._answering:  # else it is asked again
                    self._gather(frame, first.link)
            case WantRuns():
                asked = [bridge for bridge in others if bridge.ready]
                for bridge in asked:
                    bridge.link.send(frame)
                self._find(frame, self._records.kept.newest(frame.query.route), [], len(asked), first.link)
            case FoundRuns():
                first.link.send(frame)
            case WantRetry():
                self._retries.take(frame, first.link.send)
            case LiveRecords():
                self._pass_on(frame, first)
            case WantLive(on):
                self._followed_by = first.link
                self._follow(on)

    def became_ready(self, bridge: BridgeProcess) -> None:
        """Note a bridge process that has been started, or has taken new routes.

        Those that followed a predecessor of the first one are gone; its own may have come before it was ready.
        """
        if bridge is self._pool.processes[0] and bridge.link is not self._followed_by:
            self._follow(False)
        elif self._records.following:
            bridge.link.send(WantLive(on=True))

    def _find(
        self, wanted: WantRuns, kept: Iterator[KeptRun], found: list[Record], awaited: int, link: BrokerEnd
    ) -> None:
        """Look through some more of the kept runs, and answer once there are enough or no more."""
        query, detail = wanted.query, None
        if query.id is not None:
            own, kept = self._records.kept.get(query.id), iter(())
            if own is not None:
                again = self._records.kept.get(own.record.retried_as or "")
                kept, detail = iter((own,)), own.detail(again)
            elif query.tries and (failed := self._records.problems.newest_try(query.id)) is not None:
                found.append(failed)
        for looked, run in enumerate(kept, 1):
            record = run.record
            if is_wanted(query, record.time, record.kind, record.code, record.topic):
                found.append(record)
                if len(found) == query.limit:
                    break
            if looked == _RUNS_AT_ONCE:
                self._loop.call_soon(self._find, wanted, kept, found, awaited, link)
                return
        link.send(FoundRuns(wanted.number, found, awaited, detail))

    def _gather(self, question: WantNumbers, link: BrokerEnd) -> None:
        """Send an answer in parts; `link` is that of the process which has asked, not that of its successor."""
        routes, counts = list(self._statistics), self._records.counts()

        def send_part() -> None:
            self._answering = None
            part, routes[:_ROUTES_AT_ONCE] = routes[:_ROUTES_AT_ONCE], []
            numbers = [
                self._route(statistics, counts.get(name, {}), question.statuses)
                for name in part
                if (statistics := self._statistics.get(name)) is not None
            ]
            is_last = self._server.unmatched.prepare() and not routes
            link.send(NumbersPart(question.number, numbers, self._broker() if is_last else None))
            if not is_last:
                self._answering = link, question.number
                self._loop.call_soon(send_part)

        send_part()

    def _route(self, statistics: RouteStatistics, events: dict[str, EventCounts], statuses: bool) -> RouteNumbers:
        admission = statistics.admission
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
            admission.outstanding if admission.policy is OverloadPolicy.LOSSLESS else None,
            statistics.breaker,
            statistics.readers,
            self._reporter.status(statistics) if statuses else None,
        )

    def _broker(self) -> BridgeNumbers:
        processes = self._pool.processes
        failure = self._reporter.reload_failure
        away = [str(index) for index, bridge in enumerate(processes) if not bridge.ready]
        reasons = [f"bridge process {', '.join(away)} is away and being started again"] if away else []
        if self._reporter.fault is not None:
            reasons.append(self._reporter.fault.message)
        if failure is not None:
            reasons.append(f"the last reload failed, the routes before it are in use: {failure.message}")
        refusing = None if self._store is None else self._store.refusing
        if refusing is not None:
            reasons.append(spool_refuses(refusing))
        elif self._store is not None and self._store.trouble is not None:
            reasons.append(f"the spool cannot be written: {self._store.trouble}")
        errors = 0 if failure is None else max(1, failure.errors)
        reasons += [*self._server.troubles(), *self._troubles()]
        unmatched = self._server.unmatched
        successes = {name: statistics.last_success for name, statistics in self._statistics.items()}
        own = os.getpid()
        pids = {"main": own} | {f"bridge-{one.index}": one.pid for one in processes if one.pid != own}
        problems = self._records.problems.listed(time.time(), successes)[:_MOST_PROBLEMS]
        return BridgeNumbers(
            self._pool.restarts, errors, reasons, unmatched.totals(), unmatched.most(), refusing is not None, problems,
            self._group(), pids,
        )  # fmt: skip

    def _follow(self, on: bool) -> None:
        if on == self._records.following:
            return
        self._records.following = on
        for bridge in self._pool.processes:
            if bridge.ready:
                bridge.link.send(WantLive(on))
        if on:
            self._look()
        elif self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        processes = self._pool.processes
        if not processes:  # all have been closed
            return
        self._timer = self._loop.call_later(LIVE_SECONDS, self._look)
        live = self._records.take_live()
        if live is not None:
            self._pass_on(live, processes[0])

    def _pass_on(self, live: LiveRecords, first: BridgeProcess) -> None:
        if first.ready and first.link.backlog < _MOST_UNREAD:
            first.link.send(live)

"""The routes of a configuration and all that runs them, the same for every MQTT side. Its event loop alone.

An MQTT side (`broker` for amqtt, `worker` for any other) brings its publisher, and offers messages to the `dispatcher`
of its `RouteService`. It calls `start` (which blocks, before the loop runs or on a thread), `attach`, `begin`, and in
the end `drain` and `close`. No MQTT library here.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from amqtt_rest_bridge.addresses import in_url
from amqtt_rest_bridge.admin.numbers import GroupNumbers
from amqtt_rest_bridge.engine.status import ReloadFailure, StatusReporter, status_topic
from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.language.load_result import LoadResult
from amqtt_rest_bridge.model import Capture, EventName, OverloadPolicy, Route, RunIds
from amqtt_rest_bridge.processes.admin_answers import AdminAnswers
from amqtt_rest_bridge.processes.bridge_pool import BridgePool
from amqtt_rest_bridge.processes.bridge_process import Spawn, spawn_process, thread_spawner
from amqtt_rest_bridge.processes.failure_retries import FailureRetries
from amqtt_rest_bridge.processes.listening_sockets import ListeningSockets
from amqtt_rest_bridge.processes.reload import Reloader, load_first, reloading_on_sighup, usable_routes
from amqtt_rest_bridge.processes.route_loader import RunLoader, run_loader
from amqtt_rest_bridge.processes.supervisor import Supervisor, Times, Work
from amqtt_rest_bridge.records.broker_records import BrokerRecords
from amqtt_rest_bridge.records.kept_file import FailureFile
from amqtt_rest_bridge.records.kept_runs import KeptRuns
from amqtt_rest_bridge.route_set import Numbering, changes, read_filters, reply_filters, server_ports
from amqtt_rest_bridge.routing.admission import QueueBytes
from amqtt_rest_bridge.routing.calls import RoutesPublisher
from amqtt_rest_bridge.routing.claims import Claims
from amqtt_rest_bridge.routing.dispatcher import Dispatcher
from amqtt_rest_bridge.routing.outcomes import Outcomes, QuietLog
from amqtt_rest_bridge.routing.schedule import Schedule
from amqtt_rest_bridge.routing.server_reports import ServerReports
from amqtt_rest_bridge.routing.statistics import RouteStatistics
from amqtt_rest_bridge.settings import BridgeSettings, Settings, bridge_settings
from amqtt_rest_bridge.spool import SeenKeys, Spool
from amqtt_rest_bridge.system import return_large_blocks

log = logging.getLogger(__name__)

_TIMES: Final = Times()
_NO_TASKS: Final[Mapping[str, Work]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class BridgeCode:
    """The code of a bridge process, which nothing here imports.

    `check_routes` raises `ConfigurationError` for routes that no bridge process could run; it reads TLS files. `run`
    serves the other end of a socket until that closes, and blocks; for `processes: 0`. `spawn` starts a process that
    runs it. `load` runs `route_loader` in a process.
    """

    check_routes: Callable[[Iterable[Route], BridgeSettings], None]
    run: Callable[[socket.socket], None]
    spawn: Spawn = spawn_process
    load: RunLoader = run_loader


class RouteService:
    """The routes of a configuration: loaded, started, reloaded, reported and stopped.

    The constructor loads them, binds their ports and opens the files; it blocks. Nothing is started, but the allocator
    returns large blocks from now on. Messages are offered to `dispatcher`, tasks are run by `supervisor`; `pool` has
    the bridge processes, `spool` the messages of lossless routes, where the configuration names a file for them.

    Args:
        settings: The configuration's, checked.
        code: What bridge processes run.
        publisher: Where results and status go.
        loop: The event loop, which may not run yet.
        on_reload: Called after each reload that changed the routes in use.
        topic: Returns the status topic of a route.
        leads: Returns whether this process runs an event that has an interval; for the lowest of several workers.
        troubles: Returns why the MQTT side is not ready; nothing when it is.
        group: Returns what a worker counts of its group, None beside amqtt.
        times: What the service waits for.

    Raises:
        RouteFilesError: A route file has an error; every fault has been logged.
        ConfigurationError: A file cannot be read or used, a port is taken, or no bridge process could run a route.
    """

    def __init__(
        self,
        settings: Settings,
        code: BridgeCode,
        publisher: RoutesPublisher,
        loop: asyncio.AbstractEventLoop,
        *,
        on_reload: Callable[[], None] = lambda: None,
        topic: Callable[[str], str] = status_topic,
        leads: Callable[[EventName], bool] = lambda _: True,
        troubles: Callable[[], Iterable[str]] = tuple,
        group: Callable[[], GroupNumbers | None] = lambda: None,
        times: Times = _TIMES,
    ) -> None:
        self._settings = settings
        self._code = code
        self._publisher = publisher
        self._on_reload = on_reload
        self._times = times
        self._troubles = troubles
        self._closed = False
        self._listening = contextlib.ExitStack()
        self._numbering = Numbering()
        self._admin = ListeningSockets(settings.admin_host, "admin_port")
        self._sockets = ListeningSockets(settings.server_host, shared=settings.is_mqtt_5)
        with contextlib.ExitStack() as opened:
            opened.callback(self._sockets.close)
            loaded = load_first(settings, lambda routes: code.check_routes(routes, bridge_settings(settings)))
            self._sockets.open(server_ports(loaded.routes))
            self.spool: Spool | None = None
            if settings.spool is not None:
                self.spool = Spool(Path(settings.spool))
                opened.callback(self.spool.close)
            self._file: FailureFile | None = None
            if settings.failures is not None:
                self._file = FailureFile(Path(settings.failures))
                opened.callback(self._file.close)
            seen = SeenKeys(Path(f"{settings.spool}-seen") if settings.spool is not None else None)
            opened.callback(seen.close)
            self._assemble(loop, Claims(seen), topic, group)
            self.supervisor = Supervisor(self.reporter.report_broken, times.tasks)
            self._schedule = Schedule(self.dispatcher.run, leads)
            self._numbered = self._numbering.number(loaded.routes)
            self._dispatch_to(loaded.routes)
            self._reloader = Reloader(
                settings, self._replace, self._check_new, loaded, self.reporter.reloaded, code.load
            )
            return_large_blocks()
            self._opened = opened.pop_all()

    def _assemble(
        self,
        loop: asyncio.AbstractEventLoop,
        claims: Claims,
        topic: Callable[[str], str],
        group: Callable[[], GroupNumbers | None],
    ) -> None:
        """Construct the parts that messages pass."""
        settings, code, store = self._settings, self._code, self.spool
        processes = max(1, settings.processes)
        spawn = code.spawn if settings.processes else thread_spawner(code.run)
        self.statistics: dict[str, RouteStatistics] = {}
        """Those of the present routes, by name."""
        runs = RunIds(unique_keys=store is not None)
        self._quiet_log = QuietLog(runs)
        self.reporter = StatusReporter(self.statistics, self._publisher.put_status, topic)
        records = None
        if settings.recorded:
            kept = KeptRuns() if self._file is None else KeptRuns(self._file.put, self._file.loaded)
            records = BrokerRecords(runs, Capture(settings.capture), kept, lambda: self._sockets.bound)
        outcomes = Outcomes(
            self._publisher, self.statistics, runs, self.reporter.health_changed, self._quiet_log, records
        )
        server = self._server = ServerReports(outcomes, claims)
        for_bridges = replace(bridge_settings(settings), runs=runs)
        self.pool = BridgePool(processes, spawn, for_bridges, server, loop, settings.start_seconds, self._times)
        queue, largest = QueueBytes(int(settings.queue_bytes)), int(settings.max_message_bytes)
        self.dispatcher = Dispatcher(
            self.pool, outcomes, server, settings.workers * processes, store=store, queue=queue,
            max_message_bytes=largest,
        )  # fmt: skip
        if records is not None:
            retries = FailureRetries(records, self.dispatcher.run, server.publish_again, runs, loop)
            AdminAnswers(
                self.pool, records, self.reporter, self.statistics, server, store, retries, loop, self._all_troubles,
                group,
            )  # fmt: skip

    def _all_troubles(self) -> Iterator[str]:
        """Return the troubles of the MQTT side, and of the file of failures."""
        yield from self._troubles()
        if self._file is not None and self._file.trouble is not None:
            yield f"failures cannot be written: {self._file.trouble}"

    @property
    def server_ports(self) -> dict[int, int]:
        """Return the bound port for each configured SERVER_PORT; they differ where 0 asked for a free one."""
        return self._sockets.bound

    @property
    def admin_port(self) -> int | None:
        """Return the bound port of the status page and the metrics, None without the setting admin_port."""
        return next(iter(self._admin.bound.values()), None)

    @property
    def by_name(self) -> Mapping[str, Route]:
        """Return the present routes."""
        return {numbered.route.name: numbered.route for numbered in self._numbered}

    def start(self) -> None:
        """Start the bridge processes and wait until they serve; blocks for `start_seconds` at most.

        Raises:
            ConfigurationError: One of them cannot start, or the admin port is taken; none is left.
        """
        if self._settings.admin_port is not None:
            self._admin.open([self._settings.admin_port])
        admin = next(iter(self._admin.sockets.values()), None)
        try:
            self.pool.start(self._numbered, self._sockets.sockets, admin)
        except ConfigurationError:
            self._admin.close()
            raise
        self._log_ports(self._sockets.bound)
        if self.admin_port is not None:
            log.info("status page and metrics: http://%s:%d", in_url(self._settings.admin_host), self.admin_port)

    def attach(self) -> None:
        """Attach to the loop, which runs."""
        if self._closed:
            log.error("a broker that has been stopped cannot serve routes again: make a new one")
            return
        self.pool.attach()

    def begin(self, tasks: Mapping[str, Work] = _NO_TASKS) -> None:
        """Begin to watch route files, to report, and the tasks of the MQTT side, by their names in the log."""
        if self._closed:
            return
        keep, settings = self.supervisor.keep, self._settings
        for name, work in tasks.items():
            keep(name, work)
        keep("schedule", self._schedule.run)
        self._listening.enter_context(reloading_on_sighup(self._reloader.ask))
        keep("reloading", lambda: self._reloader.run(settings.reload_seconds))
        if settings.status_seconds:
            keep("status", lambda: self.reporter.run(settings.status_seconds))

    async def reload(self) -> ReloadFailure | None:
        """Read the route files again now; why not is logged and returned, and the present routes stay."""
        return await self._reloader.reload(look=True)

    async def trial(self, instead: Mapping[str, str | None]) -> LoadResult:
        """Return what a reload would load with some texts in the place of files; see `Reloader.trial`."""
        loaded = await self._reloader.trial(instead)
        needed = [fault for route in loaded.routes for fault in self._settings.faults_of(route)]
        return replace(loaded, faults=(*loaded.faults, *needed))

    def report(self, route: str) -> None:
        """Publish the status of a present route now, where status is published at all."""
        if self._settings.status_seconds and (statistics := self.statistics.get(route)) is not None:
            self.reporter.report(statistics)

    def status(self, route: str) -> dict[str, Any]:
        """Return the status of a present route as it is now."""
        return self.reporter.status(self.statistics[route])

    async def drain(self) -> None:
        """Wait for running requests and publish their results; new connections are refused from now on."""
        loop, times = asyncio.get_running_loop(), self._times
        redelivers = self._settings.is_mqtt_5  # the broker of a worker, what is not acknowledged
        deadline = loop.time() + times.grace + times.publish
        self._reloader.end()
        self._sockets.close()
        self._schedule.replace(())
        self._admin.close()
        left = await self.pool.stop(times.grace)
        self._quiet_log.flush()
        self._server.unmatched.flush()
        for route, count in self.dispatcher.abandon().items():
            lost, kept = left.get(route, (0, 0))
            left[route] = (lost + count, kept)
        for route, (lost, kept) in left.items():
            if redelivers:
                log.info("route %s: %d message(s) have not ended: the broker sends them again", route, lost + kept)
            elif lost:
                log.warning("route %s: %d message(s) had not been answered when the broker stopped", route, lost)
            if kept and not redelivers:
                log.info("route %s: %d message(s) stay in the spool for a start with this route", route, kept)
        undelivered = await self._publisher.settled(max(times.publish, deadline - loop.time()))
        if undelivered and redelivers:
            log.info("%d message(s) were not acknowledged by the broker when the worker stopped", undelivered)
        elif undelivered:
            log.warning("%d message(s) had not reached their subscribers when the broker stopped", undelivered)

    async def close(self) -> None:
        """End all tasks and bridge processes, and close ports and files."""
        self._closed = True
        self._listening.close()
        await self.supervisor.stop()
        self.pool.disconnect()
        await asyncio.to_thread(self.pool.close)
        if self._file is not None:
            await asyncio.to_thread(self._file.close)
        self._admin.close()
        self.release()

    def release(self) -> None:
        """Close ports and files; by itself for a service that is not started. Blocks."""
        self._opened.close()

    def _check_new(self, routes: Sequence[Route]) -> None:
        known = {numbered.route for numbered in self._numbered}
        self._code.check_routes([route for route in routes if route not in known], bridge_settings(self._settings))

    def _replace(self, loaded: LoadResult) -> None:
        """Use changed route files; on an error everything stays as it was."""
        routes = usable_routes(loaded, self._settings)
        gone = set(self.statistics) - {route.name for route in routes}
        changed = changes([numbered.route for numbered in self._numbered], routes)
        ports, before = server_ports(routes), set(self._sockets.bound)
        self._sockets.open(ports)
        sockets = {port: sock for port, sock in self._sockets.sockets.items() if port in ports}
        numbered = self._numbering.number(routes)
        try:
            self.pool.replace_routes(numbered, sockets)
        except OSError:
            self._sockets.close(keep=before)
            raise
        self._warn_of_removed(gone)
        self._numbered = numbered
        self._dispatch_to(routes)
        self._sockets.close(keep=ports)
        self._log_ports(ports - before)
        for name in gone:
            self.reporter.remove(name)
        self._on_reload()
        if self._settings.status_seconds:
            self.reporter.report_all()
        log.info("routes reloaded: %d route(s); %s", len(routes), changed)

    def _warn_of_removed(self, names: Iterable[str]) -> None:
        """Warn of routes that a reload removes, where messages may be lost by it."""
        lossless = {
            one.route.name for one in self._numbered
            if one.route.route_config.overload_policy is OverloadPolicy.LOSSLESS
        }  # fmt: skip
        for name in sorted(names):
            admission = self.statistics[name].admission
            count = admission.queued + admission.in_flight
            if name in lossless:
                log.warning(
                    "route %s was removed: it is lossless, and from now on nothing is kept for it; %d message(s) that "
                    "it has taken had not ended", name, count,
                )  # fmt: skip
            elif count:
                log.warning("route %s was removed: %d message(s) that it has taken had not ended", name, count)

    def _dispatch_to(self, routes: Sequence[Route]) -> None:
        self._schedule.replace(self._numbered)
        self.dispatcher.set_routes(self._numbered, read_filters(routes), reply_filters(routes))

    def _log_ports(self, ports: Iterable[int]) -> None:
        scheme = "http" if self._settings.server_certfile is None else "https"
        for port in ports:
            host = in_url(self._settings.server_host)
            log.info("server mode listens on %s://%s:%d", scheme, host, self._sockets.bound[port])

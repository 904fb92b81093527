"""The bridge as a program: makes its parts from the settings, loads, starts, reloads and stops them. One event loop.

    broker ── place (sessions) ──> engine.client_mode ──> http.client ──> HTTP servers
           <── mqtt.publisher ──────── results, status            │
           ── place (sessions) ──> read events, replies ──> engine.server_mode <── http.server <── HTTP callers

`Program` only connects the parts; what happens to a message is decided in them. One part is the *place*, by which a
program reaches its broker and shares the work: `group.member` for a worker, `group.plugin_member` for the plugin.
`worker` runs the program of a worker, `plugin_bridge` that of the plugin.
"""

import asyncio
import contextlib
import gc
import logging
import os
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from amqtt_rest_bridge.admin.admin import Admin
from amqtt_rest_bridge.engine.client_mode import ClientMode
from amqtt_rest_bridge.engine.needs import Host, Limits
from amqtt_rest_bridge.engine.outcome import Outcomes
from amqtt_rest_bridge.engine.server_mode import PortApplication, ServerMode
from amqtt_rest_bridge.engine.statistics import RouteStatistics
from amqtt_rest_bridge.engine.status_reporter import ReloadFailure, StatusReporter
from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.http.client import client_for
from amqtt_rest_bridge.http.ports import PortOptions, Ports
from amqtt_rest_bridge.http.server_tls import TlsFiles
from amqtt_rest_bridge.lot.model import EventName, LoadResult, Message, Route, RunIds
from amqtt_rest_bridge.lot.route_set import changes, longest_request, server_ports, with_bound_ports
from amqtt_rest_bridge.mqtt.private import BrokerState
from amqtt_rest_bridge.mqtt.publisher import MqttPublisher
from amqtt_rest_bridge.reload import LoadedRoutes, Reloader, load_first_in_child, usable_routes
from amqtt_rest_bridge.settings import Settings, WorkerSettings
from amqtt_rest_bridge.store import SeenKeys
from amqtt_rest_bridge.supervised_tasks import Supervisor
from amqtt_rest_bridge.system import return_large_blocks, use_all_descriptors
from amqtt_rest_bridge.times import LoopClock

if TYPE_CHECKING:  # each takes memory that the other's process can do without
    from amqtt_rest_bridge.admin.figures import GroupNumbers
    from amqtt_rest_bridge.group.member import Member
    from amqtt_rest_bridge.group.plugin_member import PluginMember

log = logging.getLogger(__name__)

_GRACE_SECONDS: Final = 5.0  # for running requests at the end
_REPLY_LEAD_SECONDS: Final = 0.5  # so long before that end, requests that wait for a reply are answered 503
_SUBSCRIBE_SECONDS: Final = 5.0  # for the subscriptions that a reload needs
_PUBLISH_SECONDS: Final = 2.0  # for the results of requests, at the end


MakePlace = Callable[[MqttPublisher, ClientMode, ServerMode, Supervisor], "PluginMember | Member"]
"""Makes a place from the publisher, the two modes, to which the place offers messages, and the supervisor of its tasks.

The program calls, in this order:

- at the start `connect`, `use_routes`, `begin` (subscribe for server mode, start its tasks), `catch_up` (wait for
  subscriptions without which messages would be missed) and `settle` (wait until it has its share of the work);
- at each reload `use_routes` and `subscribe`;
- at the end `stop_taking` (take no more messages), `leave` (end the sessions of events) and `close`.
"""


class Program:
    """A bridge: its parts, connected. It is loaded (`load` or `use_first`), started, reloaded, and stopped.

    Args:
        settings: The settings of the worker or the plugin, checked.
        publisher: Publishes results, requests and statuses.
        make_place: Makes the place, by which the program reaches its broker.
        on_reload: Called after each reload with the routes in use; with None after one that failed.
        owns_process: Whether nothing else runs in this process. Memory, descriptors and garbage collection of the whole
            process are set up then.
        pids: Process ids for the admin port, by name.
    """

    def __init__(
        self,
        settings: Settings,
        publisher: MqttPublisher,
        make_place: MakePlace,
        *,
        on_reload: Callable[[LoadedRoutes | None], None] = lambda _: None,
        owns_process: bool = True,
        pids: Mapping[str, int] | None = None,
    ) -> None:
        self._settings = settings
        self._on_reload = on_reload
        self._owns_process = owns_process
        self._routes: tuple[Route, ...] = ()
        self._reloader: Reloader | None = None
        self.broker_state = BrokerState()
        """What the broker's side of the plugin counts."""
        self.supervisor = Supervisor(self._report_broken)
        """Runs the tasks."""
        self._publisher = publisher
        with contextlib.ExitStack() as opened:
            self._ports = Ports(_port_options(settings), self)
            opened.callback(self._ports.close)
            seen = SeenKeys(None if settings.spool is None else Path(f"{settings.spool}-seen"))
            opened.callback(seen.close)
            runs = RunIds(unique_keys=settings.spool is not None)
            self._admin = Admin(settings, runs, pids or {"main": os.getpid()})
            opened.callback(self._admin.close)
            most_bytes = int(settings.max_response_bytes)
            connect = partial(client_for, max_response_bytes=most_bytes, environment=os.environ)
            limits = Limits(**{one.name: int(getattr(settings, one.name)) for one in fields(Limits)})
            self._host = host = Host(
                publisher, connect, seen, LoopClock(), random.SystemRandom().random,
                limits, runs, self._admin.recorder if settings.records_runs else None,
                keys_have_groups=not settings.is_mqtt_5,  # the plugin's spool makes such keys
            )  # fmt: skip
            self._outcomes = Outcomes(host, self._report_health)
            self._client_mode = ClientMode(host, self._outcomes, self._runs_schedule)
            self._server_mode = ServerMode(
                host, self._outcomes, is_mqtt_5=settings.is_mqtt_5, openapi=settings.openapi
            )  # fmt: skip
            self.place = make_place(publisher, self._client_mode, self._server_mode, self.supervisor)
            """How it reaches its broker."""
            self._opened = opened.pop_all()
        self.reporter = StatusReporter(self._outcomes.statistics, self.place.announce, self.place.status_topic)
        """Publishes the status of the routes."""
        self.reporter.on_published = self.place.status_published
        if owns_process:
            return_large_blocks(few_arenas=True)
            use_all_descriptors()

    @property
    def server_ports(self) -> Mapping[int, int]:
        """Return the bound port for each configured SERVER_PORT; they differ where 0 asked for a free one."""
        return self._ports.bound

    @property
    def admin_port(self) -> int | None:
        """Return the bound port of the status page and the metrics, None without the setting admin_port."""
        return self._admin.port

    # Loaded, started and stopped.

    async def load(self) -> LoadedRoutes:
        """Load the routes in a process of their own, and bind their ports.

        Raises:
            RouteFilesError: A route file has an error; every fault has been logged.
            ConfigurationError: A file cannot be used, a port is taken, or a route cannot run.
        """
        first = await load_first_in_child(self._settings)
        self.use_first(first)
        return first

    def use_first(self, first: LoadedRoutes, *, before: Mapping[int, int] | None = None) -> None:
        """Use routes that have been loaded already, and bind their ports; called instead of `load`.

        Args:
            first: The routes.
            before: The ports that an earlier bridge had bound for these routes, None at the first start. After the
                first start an unusable certificate raises no error, but the ports that need it stay closed.

        Raises:
            ConfigurationError: A port is taken, or the certificate of server mode cannot be used.
        """
        self._routes = first.routes
        self._reloader = Reloader(self._settings, self._use_reloaded, first, self._report_reload)
        ports = server_ports(self._routes)
        self._ports.bind(ports, before or {})
        tls = _port_options(self._settings).tls
        if ports and tls is not None and before is None:
            tls.load()

    @property
    def _loaded_reloader(self) -> Reloader:
        if self._reloader is None:
            raise RuntimeError("routes are asked for before they have been loaded")
        return self._reloader

    async def start(self) -> None:
        """Connect, take messages, and serve the ports. Returns once the place has its share of the work.

        Raises:
            BridgeError: The broker cannot be used, or a route cannot run.
        """
        settings, reloader, place, supervisor = self._settings, self._loaded_reloader, self.place, self.supervisor
        await place.connect(self)  # first: a broker that cannot be used ends the start at once
        self._use(self._routes)
        self._admin.count_earlier_failures(self._outcomes.statistics)
        await place.begin()
        await place.catch_up()  # before the ports: their callers are answered that their requests are published
        self._ports.serve(_seconds_by_port(self._routes))
        self._admin.serve(self._host, self._outcomes, self._client_mode, self._server_mode, self.reporter, self)
        if self.admin_port is not None:
            supervisor.keep_running("samples of the figures", self._admin.sample)
        supervisor.keep_running("unmatched messages", self._watch_unmatched)
        supervisor.keep_running("reloading", lambda: reloader.run(settings.reload_seconds))
        if settings.status_seconds:
            supervisor.keep_running("status", lambda: self.reporter.run(settings.status_seconds))
        await place.settle()
        self._freeze_garbage()

    async def stop(self, grace: float = _GRACE_SECONDS) -> None:
        """Take no more messages, give running requests so many seconds, publish their results, and disconnect."""
        await self.place.stop_taking()
        if self._reloader is not None:
            self._reloader.end()
        self._client_mode.stop()
        self._server_mode.reads.end_streams()
        asyncio.get_running_loop().call_later(max(0.0, grace - _REPLY_LEAD_SECONDS), self._server_mode.stop)
        await asyncio.gather(self._client_mode.drain(grace), self._ports.stop(grace))
        self._server_mode.stop()
        if unpublished := await self._publisher.settled(_PUBLISH_SECONDS):
            log.info("%d message(s) were not acknowledged by the broker when the bridge stopped", unpublished)
        await self.place.leave()
        await self._admin.stop()
        await self.supervisor.stop()
        await self.place.close()
        self._opened.close()

    def release(self) -> None:
        """Close ports and files of a program that was never started; `stop` does it too. Blocks for seconds at most."""
        self._opened.close()

    # Routes.

    @property
    def by_name(self) -> Mapping[str, Route]:
        """Return the present routes."""
        return {route.name: route for route in self._routes}

    def reload_soon(self) -> None:
        """Read the route files again soon, even if none has changed. Does nothing before the first load."""
        if self._reloader is not None:
            self._reloader.ask()

    async def reload(self) -> ReloadFailure | None:
        """Read the route files again now. On an error the present routes stay; the error is logged and returned."""
        return await self._loaded_reloader.reload()

    async def trial(self, instead: Mapping[str, str | None]) -> LoadResult:
        """Return what a reload would load if some files had other texts; see `Reloader.trial`."""
        loaded = await self._loaded_reloader.trial(instead)
        needed = [fault for route in loaded.routes for fault in self._settings.faults_of(route)]
        return replace(loaded, faults=(*loaded.faults, *needed))

    def report(self, route: str) -> None:
        """Publish the status of a present route now, if statuses are published."""
        if self._settings.status_seconds and (statistics := self._outcomes.statistics.get(route)) is not None:
            self.reporter.report(statistics)

    def status(self, route: str) -> dict[str, Any]:
        """Return the status of a present route as it is now."""
        return self.reporter.status(self._outcomes.statistics[route])

    async def _use_reloaded(self, loaded: LoadResult) -> None:
        """Use changed route files, and wait until they receive messages; on an error everything stays as it was."""
        routes = usable_routes(loaded, self._settings)
        changed = changes(self._routes, routes)
        names = {route.name for route in routes}
        removed = [route for route in self._routes if route.name not in names]
        unfinished = [self._unfinished(route.name) for route in removed]  # counted before the routes are gone
        self._ports.bind(server_ports(routes))
        try:
            self._use(routes)
        except ConfigurationError:
            self._ports.unbind(keep=server_ports(self._routes))
            raise
        self._routes = routes
        self._ports.serve(_seconds_by_port(routes))
        subscribing = self.supervisor.run_to_end("subscriptions", self.place.subscribe)
        for route, count in zip(removed, unfinished, strict=True):
            kept = "it is lossless, and from now on nothing is kept for it; " if route.is_lossless else ""
            if kept or count:
                text = "route %s was removed: %s%d message(s) that it has taken had not ended"
                log.warning(text, route.name, kept, count)
            self.reporter.remove(route.name)
        if self._settings.status_seconds:
            self.reporter.report_all()
        await asyncio.wait([subscribing], timeout=_SUBSCRIBE_SECONDS)
        log.info("routes reloaded: %d route(s); %s", len(routes), changed)
        self._freeze_garbage()

    def _unfinished(self, route: str) -> int:
        """Return how many messages of a present route have not ended, also on disk."""
        admission = self._outcomes.statistics[route].admission
        on_disk = (self.broker_state.spool or {}).get(route, 0)
        return max(admission.outstanding + admission.awaiting_room, on_disk)

    def _report_reload(self, failure: ReloadFailure | None) -> None:
        self.reporter.reloaded(failure)
        self._on_reload(self._loaded_reloader.routes_in_use if failure is None else None)

    def _use(self, routes: tuple[Route, ...]) -> None:
        self._client_mode.use_routes(routes)
        self._server_mode.use_routes(routes)
        self.place.use_routes(routes)
        self._admin.use_routes(with_bound_ports(routes, self._ports.bound))

    def _freeze_garbage(self) -> None:
        """Exclude modules and routes, which live until the next reload, from garbage collection.

        A full collection stops the loop, with 1,000 routes for 40 ms if they are included and 8 ms if not. The garbage
        of the last reload is collected here once. In a broker's process nothing is done: that would stop its loop.
        """
        if self._owns_process:
            gc.unfreeze()
            gc.collect()
            gc.freeze()

    # Asked and called by its parts: the admin port (`admin.figures.RunningBridge`), tasks, modes and ports.

    @property
    def troubles(self) -> list[str]:
        """Return why the bridge is not ready, beside faults of its routes."""
        return self._ports.troubles + self.place.troubles + self._admin.troubles

    @property
    def group_numbers(self) -> "GroupNumbers | None":
        """Return what a worker counts of its group, None beside amqtt."""
        return self.place.group_numbers

    def note_broker(self, state: BrokerState) -> None:
        """Note what the broker's side of the plugin counts, and the errors of routes that it has seen."""
        before, self.broker_state = self.broker_state, state
        for route, code, message in state.errors:
            self._outcomes.note_error(route, code, message)
        if state.refusing != before.refusing:
            self.reporter.report_refusing(state.refusing)

    def note_unmatched(self, topic: str) -> None:
        """Note a message that concerns no client event."""
        self._outcomes.note_unmatched(Message(topic, b"", time.time()))

    async def _watch_unmatched(self) -> None:
        """Receive messages that concern no client event while a caller of the admin port follows them."""
        while True:
            wanted = await self._admin.recorder.followers.unmatched_changed()
            await self.place.watch_unmatched(wanted=wanted)

    def _report_broken(self, fault: str | None) -> None:
        self.reporter.report_broken(fault)

    def _report_health(self, statistics: RouteStatistics) -> None:
        self.reporter.health_changed(statistics)

    def _runs_schedule(self, event: EventName) -> bool:
        return self.place.leads(event)

    def application(self, port: int, bound: int) -> PortApplication:
        """Return what answers the requests of a SERVER_PORT that is bound."""
        application = self._server_mode.application(port)
        application.bound_port = bound
        return application

    def port_changed(self, port: int, fault: str | None) -> None:
        """Note in the status of a port's routes that the port is not served, or is served again."""
        why = None if fault is None else f"SERVER_PORT {port} is not served: {fault}"
        for route in self._routes:
            if route.config.enable_server and route.config.server_port == port and route.server_events:
                statistics = self._outcomes.statistics[route.name]
                statistics.note_port_fault(why, time.time())
                self._outcomes.report_health(statistics)


def _port_options(settings: Settings) -> PortOptions:
    """Return how the ports of server mode are served."""
    tls = None
    if settings.server_certfile is not None and settings.server_keyfile is not None:
        tls = TlsFiles(settings.server_certfile, settings.server_keyfile)
    is_shared = isinstance(settings, WorkerSettings)
    return PortOptions(settings.server_host, tls, int(settings.max_body_bytes), settings.access_log, is_shared)


def _seconds_by_port(routes: Iterable[Route]) -> dict[int, float]:
    """Return how many seconds a request may take, for each port of server mode."""
    seconds: dict[int, float] = {}
    for route in routes:
        if route.config.enable_server and route.server_events:
            port = route.config.server_port
            seconds[port] = max(seconds.get(port, 0.0), longest_request(route))
    return seconds

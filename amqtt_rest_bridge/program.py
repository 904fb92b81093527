"""The bridge as a program: settings in, parts out. Started, reloaded, drained and stopped here, on one event loop.

    broker ── group.member (sessions of slots) ──> engine.client_mode ──> http.client ──> HTTP servers
           <────── mqtt.publisher ───────────────── results, status          │
           ── group.own_session ──> read events, replies ──> engine.server_mode <── http.server <── HTTP callers

Nothing here decides anything about a message. `serve` runs a worker until a signal; `Program` is what it consists of.
"""

import asyncio
import contextlib
import gc
import logging
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, Final

from amqtt_rest_bridge.admin.numbers import GroupNumbers
from amqtt_rest_bridge.admin.parts import Admin
from amqtt_rest_bridge.engine.client_mode import ClientMode
from amqtt_rest_bridge.engine.needs import Connects, Host, Limits
from amqtt_rest_bridge.engine.outcome import Outcomes
from amqtt_rest_bridge.engine.requests import RequestBuilder
from amqtt_rest_bridge.engine.server_mode import PortApplication, ServerMode
from amqtt_rest_bridge.engine.statistics import RouteStatistics
from amqtt_rest_bridge.engine.status import ReloadFailure, StatusReporter
from amqtt_rest_bridge.errors import BridgeError, ConfigurationError
from amqtt_rest_bridge.group.commands import MqttCommands, group_session
from amqtt_rest_bridge.group.member import Member
from amqtt_rest_bridge.group.records import worker_status_topic
from amqtt_rest_bridge.http.client import client_for, tls_of
from amqtt_rest_bridge.http.ports import PortOptions, Ports
from amqtt_rest_bridge.http.server_tls import TlsFiles
from amqtt_rest_bridge.http.tls import TlsOptions, check_files
from amqtt_rest_bridge.language.load_result import LoadResult
from amqtt_rest_bridge.model import EventName, Publication, Route, RunIds
from amqtt_rest_bridge.mqtt.publisher import Publisher
from amqtt_rest_bridge.mqtt.values import Address
from amqtt_rest_bridge.processes.reload import Reloader, load_first_apart, usable_routes
from amqtt_rest_bridge.processes.route_loader import RunLoader, run_loader
from amqtt_rest_bridge.processes.supervisor import Signals, Supervisor
from amqtt_rest_bridge.route_set import changes, longest_request, server_ports
from amqtt_rest_bridge.settings import Settings, WorkerSettings
from amqtt_rest_bridge.spool import SeenKeys
from amqtt_rest_bridge.system import return_large_blocks, use_all_descriptors
from amqtt_rest_bridge.times import LoopClock, woken

log = logging.getLogger(__name__)

_SETTLE_SECONDS: Final = 10.0  # a start waits so long at most for slots from other workers
_GRACE_SECONDS: Final = 5.0  # for running requests at the end
_REPLY_SECONDS: Final = 4.5  # ... and for those that wait for a reply, which are answered 503 then
_PUBLISH_SECONDS: Final = 2.0  # ... and at least so much for their results


class WorkerFailedError(BridgeError):
    """The worker ended without a signal; the message says why."""


async def serve(
    settings: WorkerSettings, broker: Callable[[], Address], signals: Signals, on_ready: Callable[[], None]
) -> None:
    """Run a worker until a signal.

    Args:
        settings: Those of the worker, checked.
        broker: Returns the broker's address, with the password as it is by then; called before each connection.
        signals: End it.
        on_ready: Called once it takes messages.

    Raises:
        BridgeError: It cannot start, or it ended without a signal; nothing is left running.
    """
    signals.attach(asyncio.get_running_loop())
    program = Program(settings, broker)
    signalled = asyncio.ensure_future(signals.wait())
    starting = asyncio.ensure_future(program.start())
    try:
        await asyncio.wait([starting, signalled], return_when=asyncio.FIRST_COMPLETED)
        if not signalled.done():
            await starting
            member = program.member
            log.info(
                "ready: %s, with %d of %d slots of group %s, takes messages from %s",
                member.leases.worker, sum(member.slots), settings.slots, settings.group, broker().shown,
            )  # fmt: skip
            on_ready()
            failing = asyncio.ensure_future(program.supervisor.broken())
            await asyncio.wait([signalled, failing], return_when=asyncio.FIRST_COMPLETED)
            failing.cancel()
            if not signalled.done():
                raise WorkerFailedError(failing.result())
        log.info("%s: shutting down", "stopped" if signals.received is None else signals.received.name)
    finally:
        signalled.cancel()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        if signals.received is None:
            signals.begin_shutdown()
        await program.stop()


class Program:
    """The parts of a worker.

    Args:
        settings: Those of the worker, checked.
        broker: Returns the broker's address; called before each connection.
        run_loader: Loads route files.
    """

    def __init__(
        self, settings: WorkerSettings, broker: Callable[[], Address], run_loader: RunLoader = run_loader
    ) -> None:
        self._settings = settings
        self._run_loader = run_loader
        self._opened = contextlib.ExitStack()
        self._routes: tuple[Route, ...] = ()
        self._ports = Ports(_port_options(settings), self._application, self._port_changed)
        """The ports of server mode."""
        self._opened.callback(self._ports.close)
        self.supervisor = Supervisor(self._report_broken)
        """Runs the tasks."""
        self.publisher = Publisher()
        """Publishes results, requests, statuses and records."""
        seen = SeenKeys(None)
        self._opened.callback(seen.close)
        runs = RunIds(unique_keys=False)
        self._admin = Admin(settings, runs, lambda: self._ports.bound)
        """Its records and its admin port."""
        self._opened.callback(self._admin.close)
        self._host = host = Host(
            self.publisher, _connecting(settings), seen, LoopClock(), random.SystemRandom().random, _limits(settings),
            runs, self._admin.records if settings.recorded else None,
        )  # fmt: skip
        self._outcomes = Outcomes(host, self._report_health)
        self._client_mode = ClientMode(host, self._outcomes, self._leads)
        self._server_mode = ServerMode(host, self._outcomes, openapi=settings.openapi)
        self.member = Member(settings, broker, self.publisher, self._client_mode, self._server_mode, self.supervisor)
        """The worker's place in its group."""
        if settings.coreflux is not None:
            self.member.commands = MqttCommands(
                settings.coreflux, group_session(settings), broker, self.publisher, self, self.member.connected.wait
            )
        topic = partial(worker_status_topic, settings.group, self.member.leases.worker)
        self.reporter = StatusReporter(self._outcomes.statistics, self._announce, topic)
        """Publishes the status of the routes."""
        if self.member.commands is not None:
            self.reporter.mirror = self.member.commands.status_published
        self._reloader: Reloader | None = None
        return_large_blocks(few_arenas=True)
        use_all_descriptors()

    # Started and stopped.

    async def start(self) -> None:
        """Load the routes, bind their ports, connect, and take messages.

        Returns once the slots that are this worker's share have been opened, or after ten seconds: a holder may take
        longer to hand one over.

        Raises:
            RouteFilesError: A route file has an error; every fault has been logged.
            BridgeError: A file or the broker cannot be used, a port is taken, or a route cannot run.
        """
        settings = self._settings
        loaded = await load_first_apart(settings, self._check, self._run_loader)
        self._routes = loaded.routes
        self._reloader = reloader = Reloader(
            settings, self._replace, self._check, loaded, self.reporter.reloaded, self._run_loader
        )
        self._ports.bind(server_ports(self._routes))
        await self.member.own.client.open()  # first: a broker that cannot be used ends the start at once
        if self.member.commands is not None:  # Mosquitto 2.0.11 ends a connection soon after it refused a publication
            await self.member.commands.check()
        self._use(self._routes)
        await self.member.own.subscribe()
        self._ports.serve(_seconds_by_port(self._routes))
        self._admin.serve(
            self._host, self._outcomes, self._client_mode, self._server_mode, self.reporter, lambda: self._routes,
            lambda: self.member.troubles, self._group_numbers, self.supervisor.keep,
        )  # fmt: skip
        reloader.listen_to_sighup(asyncio.get_running_loop())
        self._opened.callback(reloader.stop_listening)
        keep = self.supervisor.keep
        keep("own session", self.member.own.client.run)
        keep("slots", self.member.follow)
        keep("reloading", lambda: reloader.run(settings.reload_seconds))
        if settings.status_seconds:
            keep("status", lambda: self.reporter.run(settings.status_seconds))
        await woken(self.member.settled, _SETTLE_SECONDS)
        _settle()

    async def stop(self) -> None:
        """Take no more messages, let running requests finish, publish their results, and leave the slots to others."""
        await self.member.stop_taking()
        if self._reloader is not None:
            self._reloader.end()
        self._client_mode.stop()
        self._server_mode.reads.end_streams()
        asyncio.get_running_loop().call_later(_REPLY_SECONDS, self._server_mode.stop)
        await asyncio.gather(self._client_mode.drain(_GRACE_SECONDS), self._ports.stop(_GRACE_SECONDS))
        self._server_mode.stop()
        if unpublished := await self.publisher.settled(_PUBLISH_SECONDS):
            log.info("%d message(s) were not acknowledged by the broker when the worker stopped", unpublished)
        await self.member.leave()
        await self._admin.stop()
        await self.supervisor.stop()
        for route in self._routes:
            self.reporter.remove(route.name)
        await self.member.close()
        self._opened.close()

    # Routes.

    @property
    def by_name(self) -> Mapping[str, Route]:
        """Return the present routes."""
        return {route.name: route for route in self._routes}

    async def reload(self) -> ReloadFailure | None:
        """Read the route files again now. On an error the present routes stay; the error is logged and returned."""
        return await self._started.reload(look=True)

    async def trial(self, instead: Mapping[str, str | None]) -> LoadResult:
        """Return what a reload would load with some texts in the place of files; see `Reloader.trial`."""
        loaded = await self._started.trial(instead)
        needed = [fault for route in loaded.routes for fault in self._settings.faults_of(route)]
        return replace(loaded, faults=(*loaded.faults, *needed))

    def report(self, route: str) -> None:
        """Publish the status of a present route now, where status is published at all."""
        if self._settings.status_seconds and (statistics := self._outcomes.statistics.get(route)) is not None:
            self.reporter.report(statistics)

    def status(self, route: str) -> dict[str, Any]:
        """Return the status of a present route as it is now."""
        return self.reporter.status(self._outcomes.statistics[route])

    def _replace(self, loaded: LoadResult) -> None:
        """Use changed route files; on an error everything stays as it was."""
        routes = usable_routes(loaded, self._settings)
        changed = changes(self._routes, routes)
        gone = {route.name for route in self._routes} - {route.name for route in routes}
        self._ports.bind(server_ports(routes))
        try:
            self._use(routes)
        except ConfigurationError:
            self._ports.unbind(keep=server_ports(self._routes))
            raise
        self._routes = routes
        self._ports.serve(_seconds_by_port(routes))
        self.supervisor.finish("subscriptions", self.member.subscribe)
        for name in gone:
            self.reporter.remove(name)
        if self.member.commands is not None:
            self.member.commands.routes_changed()
        if self._settings.status_seconds:
            self.reporter.report_all()
        log.info("routes reloaded: %d route(s); %s", len(routes), changed)
        _settle()

    def _use(self, routes: tuple[Route, ...]) -> None:
        self._client_mode.use_routes(routes)
        self._server_mode.use_routes(routes)
        self.member.use_routes(routes)
        self._admin.use_routes(routes)

    # What the parts need of each other.

    @property
    def _started(self) -> Reloader:
        if self._reloader is None:
            raise RuntimeError("routes are asked for before they have been loaded")
        return self._reloader

    def _check(self, routes: Sequence[Route]) -> None:
        check_routes(routes, self._settings)

    def _announce(self, publication: Publication) -> bool:
        """Publish a status; without a connection it is dropped, since the next one comes soon."""
        if self.publisher.is_connected:
            self.publisher.announce(publication, seconds=self._settings.session_expiry)
        return self.publisher.is_connected

    def _report_broken(self, fault: str | None) -> None:
        self.reporter.report_broken(fault)

    def _report_health(self, statistics: RouteStatistics) -> None:
        self.reporter.health_changed(statistics)

    def _leads(self, event: EventName) -> bool:
        return self.member.leads(event)

    def _group_numbers(self) -> GroupNumbers:
        member = self.member
        return GroupNumbers(member.slots, **member.numbers, route_sets=dict(member.route_sets))

    def _application(self, port: int, bound: int) -> PortApplication:
        application = self._server_mode.application(port)
        application.bound_port = bound
        return application

    def _port_changed(self, port: int, fault: str | None) -> None:
        """Note in the status of a port's routes that the port is not served, or is served again."""
        for route in self._routes:
            if route.config.enable_server and route.config.server_port == port and route.server_events:
                statistics = self._outcomes.statistics[route.name]
                statistics.note_down(fault, time.time())
                self._outcomes.noted(statistics)


def _settle() -> None:
    """Exclude modules and routes, which live until the next reload, from garbage collection.

    Otherwise each full collection would stop the loop: for 40 ms with 1,000 routes, in place of 8. A large answer of
    the admin port may start one. Garbage of the last reload is collected first.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def check_routes(routes: Iterable[Route], settings: Settings) -> None:
    """Raise `ConfigurationError` for the first route that cannot run."""
    for route, error in unusable_routes(routes, settings):
        raise ConfigurationError(f"route {route.name}: {error}") from error


def unusable_routes(routes: Iterable[Route], settings: Settings) -> Iterator[tuple[Route, ConfigurationError]]:
    """Return the routes whose calls could not be sent, with the reason; reads each set of TLS files once."""
    connect, faults = _connecting(settings), dict[TlsOptions, ConfigurationError | None]()
    for route in routes:
        config = route.config
        if not route.client_events:
            continue
        try:
            RequestBuilder(route, route.client_events[0], max_body_bytes=int(settings.max_body_bytes))
            for server in filter(None, (config.base_address, config.oauth2_token_url)):
                connect(config, server)
            tls = tls_of(config)
            if tls not in faults:
                faults[tls] = _fault_of(tls)
            if (fault := faults[tls]) is not None:
                raise fault
        except ConfigurationError as error:
            yield route, error


def _fault_of(tls: TlsOptions) -> ConfigurationError | None:
    try:
        check_files(tls)
    except ConfigurationError as error:
        return error
    return None


def _connecting(settings: Settings) -> Connects:
    """Return what makes the clients of routes."""
    return partial(client_for, max_response_bytes=int(settings.max_response_bytes), environment=os.environ)


def _limits(settings: Settings) -> Limits:
    return Limits(**{one.name: int(getattr(settings, one.name)) for one in fields(Limits)})


def _port_options(settings: Settings) -> PortOptions:
    tls = None
    if settings.server_certfile is not None and settings.server_keyfile is not None:
        tls = TlsFiles(settings.server_certfile, settings.server_keyfile)
    return PortOptions(settings.server_host, tls, int(settings.max_body_bytes), settings.access_log)


def _seconds_by_port(routes: Iterable[Route]) -> dict[int, float]:
    """Return how many seconds a request may take, for each port of server mode."""
    seconds: dict[int, float] = {}
    for route in routes:
        if route.config.enable_server and route.server_events:
            port = route.config.server_port
            seconds[port] = max(seconds.get(port, 0.0), longest_request(route))
    return seconds

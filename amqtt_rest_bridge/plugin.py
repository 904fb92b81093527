"""The bridge inside an amqtt broker: hooks, configuration, and the wiring of the broker side.

| thread | owner | runs | may touch |
|---|---|---|---|
| broker loop | amqtt | hooks, publishing | plugin state; never blocks |
| reload | plugin | reading and parsing changed route files | what it reads |
| link readers, two in turn | bridge process | frames in, a lone call | queues |
| client workers | bridge process, `bridge/client` | `build`, `send` | message in, payload out |
| timers | bridge process, `bridge/timers` | retries, idle workers | queues |
| one per port | http_server | connections and their application | `BrokerPort` only |

What crosses threads or processes is immutable.
"""

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from amqtt.broker import BrokerContext
from amqtt.plugins.base import BasePlugin
from amqtt.session import ApplicationMessage, Session

from amqtt_rest_bridge.bridge import main
from amqtt_rest_bridge.broker import amqtt_broker
from amqtt_rest_bridge.broker.connections import Connections
from amqtt_rest_bridge.broker.disk.spool import Spool
from amqtt_rest_bridge.broker.lossless import Lossless
from amqtt_rest_bridge.broker.observing import observe
from amqtt_rest_bridge.broker.publisher import Publisher
from amqtt_rest_bridge.broker.transports import look_after_transports
from amqtt_rest_bridge.errors import BridgeError, RouteFilesError
from amqtt_rest_bridge.language import loader, sources
from amqtt_rest_bridge.language.definitions import ParsedTexts
from amqtt_rest_bridge.language.loader import LoadResult
from amqtt_rest_bridge.model import NumberedRoute, Publication, Route
from amqtt_rest_bridge.processes.bridge_pool import BridgePool
from amqtt_rest_bridge.processes.bridge_process import spawn_process
from amqtt_rest_bridge.processes.listening_sockets import ListeningSockets
from amqtt_rest_bridge.processes.reload import Reloader
from amqtt_rest_bridge.processes.settings import (
    Settings,
    bridge_settings,
    check_settings,
    route_paths,
    server_ports,
    usable_routes,
)
from amqtt_rest_bridge.processes.supervisor import Supervisor
from amqtt_rest_bridge.route_set import Numbering, changes, read_filters, reply_filters
from amqtt_rest_bridge.routing.dispatcher import Dispatcher
from amqtt_rest_bridge.routing.quiet_log import QuietLog
from amqtt_rest_bridge.routing.server_reports import ServerReports
from amqtt_rest_bridge.routing.statistics import RouteStatistics
from amqtt_rest_bridge.routing.status import StatusReporter, status_topic

log = logging.getLogger(__name__)

GRACE_SECONDS: Final = 5.0  # what running requests get at shutdown
_PUBLISH_SECONDS: Final = 2.0  # ... and then what they gave, to be published
_FLUSH_SECONDS: Final = 0.01  # how long ended calls of lossless routes may stay on disk
_FLUSHES: Final = 100  # between two checkpoints of the spool


class RestBridgePlugin(BasePlugin[BrokerContext]):
    """Run REST_API routes beside an amqtt broker.

    The constructor loads the routes, binds the server ports and starts the bridge main, so whatever is wrong stops
    the broker's start; it blocks for ten seconds at most.

    Raises:
        RouteFilesError: A route file has an error; every fault has been logged.
        ConfigurationError: A setting cannot be used, a port is taken, or the bridge process cannot start; logged too.
    """

    Config = Settings  # type: ignore[assignment]  # amqtt looks for a dataclass of this name

    def __init__(self, context: BrokerContext) -> None:
        super().__init__(context)
        settings: Settings = self.config
        self._ports = ListeningSockets(settings.server_host)
        self._numbering = Numbering()
        self._spool: Spool | None = None
        self._closed = False
        try:
            check_settings(settings)
            self._reloader = Reloader(route_paths(settings), settings.secrets_dir, self._reload, self._check)
            routes = usable_routes(self._load(), settings)
            main.check_routes(routes, bridge_settings(settings))
            self._ports.open(server_ports(routes))
            self._spool = Spool(Path(settings.spool)) if settings.spool is not None else None
            self._wire(settings)
            self._use(routes)
            self._bridges.start(self._numbered, self._ports.sockets)
            self._say_ports(self._ports.bound)
        except BridgeError as error:
            self._give_back()
            if not isinstance(error, RouteFilesError):
                log.error("%s", error)  # noqa: TRY400  # the operator wants the reason, not our stack
            raise
        observe(self._broker, self._dispatcher, self._publisher)
        Connections(self._broker, self._may_publish)
        look_after_transports(self._broker)

    @property
    def server_ports(self) -> dict[int, int]:
        """Return the bound port for each configured SERVER_PORT; they differ where 0 asked for a free one."""
        return self._ports.bound

    async def on_broker_pre_start(self) -> None:
        """Attach to the broker's loop."""
        if self._closed:
            log.error("a broker that has been stopped cannot serve routes again: make a new one")
            return
        self._bridges.attach(asyncio.get_running_loop())

    async def on_broker_post_start(self) -> None:
        """Begin to publish, to watch route files and to report; take up what the spool holds."""
        if self._closed:
            return
        settings: Settings = self.config
        keep = self.supervisor.keep
        keep("publishing", self._publisher.run)
        self._reloader.listen_to_sighup(asyncio.get_running_loop())
        keep("reloading", lambda: self._reloader.run(settings.reload_seconds))
        if settings.status_seconds:
            keep("status", lambda: self._reporter.run(settings.status_seconds))
        if self._lossless is not None:
            keep("lossless", self._lossless.run)
            keep("spool", self._tidy)

    async def on_broker_retained_message(self, *, client_id: str | None, retained_message: ApplicationMessage) -> None:
        """Let read events answer with messages that were retained before anybody published them again."""
        if client_id is None and retained_message.data:
            self._dispatcher.remember(retained_message.topic, bytes(retained_message.data))

    async def on_broker_pre_shutdown(self) -> None:
        """Let running requests finish and publish what they gave; new connections are refused from now on."""
        self._ports.close()
        left = await self._bridges.stop(GRACE_SECONDS)
        self._quiet_log.flush()
        for route, count in self._dispatcher.abandon().items():
            lost, kept = left.get(route, (0, 0))
            left[route] = (lost + count, kept)
        for route, (lost, kept) in left.items():
            if lost:
                log.warning("route %s: %d message(s) had not been answered when the broker stopped", route, lost)
            if kept:
                log.info("route %s: %d message(s) stay in the spool for a start with this route", route, kept)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._publisher.emptied(), _PUBLISH_SECONDS)

    async def close(self) -> None:
        """End the bridge process and give ports and files back."""
        self._closed = True
        self._reloader.stop_listening()
        await self.supervisor.stop()
        self._bridges.disconnect()
        await asyncio.to_thread(self._bridges.close)
        self._give_back()

    def _wire(self, settings: Settings) -> None:
        processes = max(1, settings.processes)
        statistics: dict[str, RouteStatistics] = {}
        self._quiet_log = QuietLog()
        self._publisher = Publisher(
            self.context.broadcast_message,
            self.context.retain_message,
            queued=lambda: amqtt_broker.queued(self._broker),
        )
        self._reporter = StatusReporter(statistics, self._publisher.put_status)
        self.supervisor = Supervisor(self._reporter.report_broken)
        on_health = self._reporter.health_changed
        server = ServerReports(self._publisher, statistics, on_health, self._quiet_log)
        spawn = spawn_process if settings.processes else spawn_thread
        self._bridges = BridgePool(processes, spawn, bridge_settings(settings), server)
        self._dispatcher = Dispatcher(
            self._bridges, self._publisher, server, statistics, settings.workers * processes,
            store=self._spool, on_health=on_health, quiet=self._quiet_log,
        )  # fmt: skip
        self._lossless: Lossless | None = None
        if self._spool is not None:
            self._lossless = Lossless(
                self._dispatcher, self._spool, self._may_publish, time.time, lambda: amqtt_broker.has_acl(self._broker)
            )

    def _say_ports(self, ports: Iterable[int]) -> None:
        scheme = "http" if self.config.server_certfile is None else "https"
        host = f"[{self.config.server_host}]" if ":" in self.config.server_host else self.config.server_host
        for port in ports:
            log.info("server mode listens on %s://%s:%d", scheme, host, self._ports.bound[port])

    def _load(self) -> LoadResult:
        settings: Settings = self.config
        texts = sources.read(route_paths(settings))
        parsed = ParsedTexts()
        loaded = loader.load(texts, environment=os.environ, secrets_dir=Path(settings.secrets_dir), parsed=parsed)
        self._reloader.remember(parsed)
        return loaded

    def _use(self, routes: Sequence[Route]) -> None:
        self._numbered: tuple[NumberedRoute, ...] = self._numbering.number(routes)
        self._dispatcher.set_routes(self._numbered, read_filters(routes), reply_filters(routes))
        self._look_at_packets(wanted=self._lossless is not None and self._dispatcher.table.has_lossless)

    def _check(self, routes: Sequence[Route]) -> None:
        known = {numbered.route for numbered in self._numbered}
        main.check_routes([route for route in routes if route not in known], bridge_settings(self.config))

    def _reload(self, loaded: LoadResult) -> None:
        """Use changed route files; on an error everything stays as it was."""
        routes = usable_routes(loaded, self.config)
        gone = set(self._dispatcher.statistics) - {route.name for route in routes}
        changed = changes([numbered.route for numbered in self._numbered], routes)
        ports, before = server_ports(routes), set(self._ports.bound)
        self._ports.open(ports)
        sockets = {port: sock for port, sock in self._ports.sockets.items() if port in ports}
        try:
            self._bridges.replace_routes(self._numbering.number(routes), sockets)
        except OSError:
            self._ports.close(keep=before)
            raise
        self._use(routes)
        self._ports.close(keep=ports)
        self._say_ports(ports - before)
        for name in gone:  # an empty payload removes the retained one, and whoever shows the status hears of it
            self._publisher.put_status(Publication(status_topic(name), b"", retain=True))
        if self._lossless is not None:
            self.supervisor.finish("adopting", self._adopt)
        if self.config.status_seconds:
            self._reporter.report_all()
        for topic, message in list(self.context.retained_messages.items()):
            self._dispatcher.remember(topic, bytes(message.data), only_new=True)
        log.info("routes reloaded: %d route(s); %s", len(routes), changed)

    async def _tidy(self) -> None:
        while (lossless := self._lossless) is not None:
            for _ in range(_FLUSHES):
                await asyncio.sleep(_FLUSH_SECONDS)
                lossless.flush()
            await lossless.checkpoint()

    async def _adopt(self) -> None:
        count = 0 if self._lossless is None else await self._lossless.adopt()
        if count:
            log.info("%d message(s) of routes that are back taken up from the spool", count)

    async def _may_publish(self, session: Session, topic: str) -> bool:
        """Ask the topic plugins, as amqtt does for a publish."""
        return await amqtt_broker.may_publish(self._broker, session, topic)

    def _give_back(self) -> None:
        self._ports.close()
        if self._spool is not None:
            self._spool.close()

    @property
    def _broker(self) -> Any:
        return amqtt_broker.broker_of(self.context)

    def _look_at_packets(self, *, wanted: bool) -> None:
        """Have amqtt fire `mqtt_packet_received` at us exactly while a lossless route needs it.

        The hook costs a task for every packet. amqtt looks for hooks once, after the
        constructors, so the method is added and removed by hand.
        """
        if self._lossless is None:
            return
        hook = self._lossless.on_packet
        callbacks = amqtt_broker.packet_hooks(self._broker)
        if callbacks is None:  # amqtt is still making its plugins and looks for hooks later
            if wanted:
                self.on_mqtt_packet_received = hook
            return
        if wanted and hook not in callbacks:
            callbacks.append(hook)
        elif not wanted and hook in callbacks:
            callbacks.remove(hook)


def spawn_thread(sock: socket.socket) -> tuple[int, Callable[[], None]]:
    """Run the bridge in a thread of this process (`processes: 0`): the same code behind the same link."""
    thread = threading.Thread(target=main.run, args=(sock,), name="bridge", daemon=True)
    thread.start()
    return os.getpid(), lambda: thread.join(timeout=GRACE_SECONDS)

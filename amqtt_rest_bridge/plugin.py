"""The bridge inside an amqtt broker: hooks, configuration, and the wiring of the broker side.

| thread | owner | runs | may touch |
|---|---|---|---|
| broker loop | amqtt | hooks, publishing | plugin state; never blocks |
| reload | plugin | reading and parsing changed route files | what it reads |
| link reader | bridge process | frames in | queues |
| client workers | bridge process, engine | `build`, `send` | message in, payload out |
| timers | bridge process, engine | retries, idle workers | queues |
| one per port | bridge process, http_listener | waitress I/O and responders | `Outlet` only |
| waiters | bridge process, http_listener | responders that wait for a reply or for room | `Outlet` only |

What crosses threads or processes is immutable.
"""

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from amqtt.broker import BrokerContext
from amqtt.plugins.base import BasePlugin
from amqtt.session import ApplicationMessage

from amqtt_rest_bridge.bridge import process
from amqtt_rest_bridge.broker.bridges import Bridges, spawn_process
from amqtt_rest_bridge.broker.dispatch import Dispatcher
from amqtt_rest_bridge.broker.ports import Ports
from amqtt_rest_bridge.broker.publisher import Publisher
from amqtt_rest_bridge.broker.route_set import Numbering, read_filters, reply_filters
from amqtt_rest_bridge.errors import BridgeError, ConfigurationError, RouteFilesError, Severity
from amqtt_rest_bridge.language import loader, sources
from amqtt_rest_bridge.model import BridgeSettings, NumberedRoute, Route

log = logging.getLogger(__name__)

GRACE_SECONDS: Final = 5.0  # decisions section 5: what running requests get at shutdown
_LEVELS: Final = {Severity.ERROR: logging.ERROR, Severity.WARNING: logging.WARNING, Severity.NOTICE: logging.INFO}


class RestBridgePlugin(BasePlugin[BrokerContext]):
    """Run REST_API routes beside an amqtt broker.

    The constructor loads the routes, binds the server ports and starts the bridge process, so whatever is wrong stops
    the broker's start; it blocks for ten seconds at most.

    Raises:
        RouteFilesError: A route file has an error; every fault has been logged.
        ConfigurationError: A setting cannot be used, a port is taken, or the bridge process cannot start; logged too.
    """

    @dataclass
    class Config:
        """The plugin's settings in the broker's configuration; sizes are bytes, `..._seconds` are seconds."""

        routes: str | list[str] | None = None
        server_host: str = "127.0.0.1"
        server_certfile: str | None = None
        server_keyfile: str | None = None
        secrets_dir: str = "/run/secrets"
        max_body_bytes: int = 262_144
        max_response_bytes: int = 262_144
        processes: int = 1
        workers: int = 16
        reload_seconds: float = 2
        status_seconds: float = 30
        spool: str | None = None
        access_log: str | None = None

    def __init__(self, context: BrokerContext) -> None:
        super().__init__(context)
        settings: RestBridgePlugin.Config = self.config
        self._tasks: list[asyncio.Task[None]] = []
        self._ports = Ports(settings.server_host)
        self._numbering = Numbering()
        try:
            check_settings(settings)
            routes = self._load()
            self._ports.open({route.config.server_port for route in routes if route.server_events})
            self._wire(settings)
            self._use(routes)
            self._bridges.start(self._numbered, self._ports.sockets)
        except BridgeError as error:
            self._ports.close()
            if not isinstance(error, RouteFilesError):
                log.error("%s", error)  # noqa: TRY400  # the operator wants the reason, not our stack
            raise
        self._observe(context)

    @property
    def server_ports(self) -> dict[int, int]:
        """Give the bound port for each configured SERVER_PORT; they differ where 0 asked for a free one."""
        return self._ports.bound

    async def on_broker_pre_start(self) -> None:
        """Go over to the broker's loop."""
        self._bridges.attach(asyncio.get_running_loop())

    async def on_broker_post_start(self) -> None:
        """Begin to publish."""
        self._tasks.append(asyncio.create_task(self._publisher.run()))

    async def on_broker_retained_message(self, *, client_id: str | None, retained_message: ApplicationMessage) -> None:
        """Let read events answer with messages that were retained before anybody published them again."""
        if client_id is None and retained_message.data:
            self._dispatcher.remember(retained_message.topic, bytes(retained_message.data))

    async def on_broker_pre_shutdown(self) -> None:
        """Let running requests finish and publish what they gave."""
        left = await self._bridges.stop(GRACE_SECONDS)
        for route, count in left.items():
            log.warning("route %s: %d message(s) had not been answered when the broker stopped", route, count)
        while len(self._publisher):
            await asyncio.sleep(0)

    async def close(self) -> None:
        """End the bridge process and give the ports back."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._bridges.close)
        self._ports.close()

    def _wire(self, settings: Config) -> None:
        context = self.context
        spawn = spawn_process if settings.processes else spawn_thread
        self._bridges = Bridges(max(1, settings.processes), spawn, bridge_settings(settings))
        self._publisher = Publisher(context.broadcast_message, context.retain_message)
        workers = settings.workers * max(1, settings.processes)
        self._dispatcher = Dispatcher(self._bridges, self._publisher, workers)
        self._bridges.reports = self._dispatcher

    def _load(self) -> tuple[Route, ...]:
        settings: RestBridgePlugin.Config = self.config
        paths = [settings.routes] if isinstance(settings.routes, str) else settings.routes or []
        loaded = loader.load(sources.read(paths), environment=os.environ, secrets_dir=Path(settings.secrets_dir))
        for fault in loaded.faults:
            log.log(_LEVELS[fault.severity], "%s", fault)
        errors = tuple(fault for fault in loaded.faults if fault.severity is Severity.ERROR)
        if errors:
            raise RouteFilesError(errors)
        return loaded.routes

    def _use(self, routes: Sequence[Route]) -> None:
        self._numbered: tuple[NumberedRoute, ...] = self._numbering.number(routes)
        self._dispatcher.set_routes(self._numbered, read_filters(routes), reply_filters(routes))

    def _observe(self, context: BrokerContext) -> None:
        """See every message on its way to the subscribers.

        amqtt 0.12.1 has no hook for last wills, `$SYS` and what plugins publish, and one task a message for the rest.
        All of them pass `Broker._broadcast_message`, after the ACL; retained messages sent on subscription do not.
        """
        broker: Any = context._broker_instance
        forward = broker._broadcast_message
        offer, publisher = self._dispatcher.offer, self._publisher

        async def broadcast(session: Any, topic: str, data: bytes, force_qos: int | None = None) -> None:
            if topic and data is not None:
                offer(topic, data, publisher.hops)
            await forward(session, topic, data, force_qos)

        broker._broadcast_message = broadcast


def check_settings(settings: RestBridgePlugin.Config) -> None:
    """Raise `ConfigurationError` for the first setting that cannot be used."""
    if not settings.routes:
        raise ConfigurationError("the setting routes is missing: name a file or folder of route definitions")
    if (settings.server_certfile is None) != (settings.server_keyfile is None):
        raise ConfigurationError("server_certfile and server_keyfile belong together: set both, or none")
    for name, least, most in _RANGES:
        value = getattr(settings, name)
        if not least <= value <= most:
            raise ConfigurationError(f"the setting {name} is {value}; allowed is {least} to {most}")


_RANGES: Final = (
    ("max_body_bytes", 0, 268_435_455),
    ("max_response_bytes", 0, 268_435_455),
    ("processes", 0, 64),
    ("workers", 1, 1024),
    ("reload_seconds", 0, 86_400),
    ("status_seconds", 0, 86_400),
)


def bridge_settings(settings: RestBridgePlugin.Config) -> BridgeSettings:
    """Give what a bridge process needs to know of the plugin's settings."""
    return BridgeSettings(
        workers=settings.workers,
        max_body_bytes=settings.max_body_bytes,
        max_response_bytes=settings.max_response_bytes,
        server_certfile=settings.server_certfile,
        server_keyfile=settings.server_keyfile,
        access_log=settings.access_log,
    )


def spawn_thread(sock: socket.socket) -> Callable[[], None]:
    """Run the bridge in a thread of this process (`processes: 0`): the same code behind the same link."""
    thread = threading.Thread(target=process.run, args=(sock,), name="bridge", daemon=True)
    thread.start()
    return lambda: thread.join(timeout=GRACE_SECONDS)

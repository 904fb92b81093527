"""The bridge inside an amqtt broker: builds the parts, hands them to each other, and amqtt's hooks to them.

No logic of its own. Everything here runs on the broker's loop and never blocks it, but the constructor: amqtt calls it
before its loop serves clients. Which threads and processes the parts run on is a table in ARCHITECTURE.md.
"""

import contextlib
import logging
import time
from collections.abc import Iterator
from functools import partial
from typing import ClassVar

from amqtt.broker import BrokerContext
from amqtt.plugins.base import BasePlugin
from amqtt.session import ApplicationMessage

from amqtt_rest_bridge.bridge import main
from amqtt_rest_bridge.broker import amqtt_broker, garbage, repairs
from amqtt_rest_bridge.broker.command_topics import CommandTopics
from amqtt_rest_bridge.broker.lossless import Lossless
from amqtt_rest_bridge.broker.messages import IncomingMessages, Publisher
from amqtt_rest_bridge.broker.repairs.shutdown import Draining
from amqtt_rest_bridge.commands.command import ROOT
from amqtt_rest_bridge.commands.service import Commands
from amqtt_rest_bridge.errors import BridgeError, RouteFilesError
from amqtt_rest_bridge.processes.route_service import BridgeCode, RouteService
from amqtt_rest_bridge.processes.supervisor import Times, Work
from amqtt_rest_bridge.settings import Settings, check_settings

log = logging.getLogger(__name__)


class RestBridgePlugin(BasePlugin[BrokerContext]):
    """Run REST_API routes beside an amqtt broker.

    The constructor loads the routes, binds the server ports and starts the bridge processes, so whatever is wrong stops
    the broker's start; it blocks for `start_seconds` at most.

    Raises:
        RouteFilesError: A route file has an error; every fault has been logged.
        ConfigurationError: A setting cannot be used, a port is taken, or a bridge process cannot start; logged too.
    """

    Config = Settings  # type: ignore[assignment]  # amqtt looks for a dataclass of this name
    code: ClassVar = BridgeCode(main.check_routes, main.run)
    times: ClassVar = Times()

    def __init__(self, context: BrokerContext) -> None:
        super().__init__(context)
        settings: Settings = self.config
        broker, loop = amqtt_broker.broker_of(context), amqtt_broker.loop_of(context)
        self._draining = Draining(broker)
        publisher = Publisher(context.broadcast_message, context.retain_message, self._draining.delivered)
        with _logging_the_reason(), contextlib.ExitStack() as failing:
            check_settings(settings)
            self.service = service = RouteService(
                settings, self.code, publisher, loop, on_reload=self._routes_replaced, times=self.times
            )
            failing.callback(service.release)
            self.supervisor, dispatcher, spool = service.supervisor, service.dispatcher, service.spool
            self._tasks: dict[str, Work] = {"publishing": publisher.run}
            self._lossless = None
            if spool is not None:
                spool.on_refusing = service.reporter.report_refusing
                may_publish, has_acl = partial(amqtt_broker.may_publish, broker), partial(amqtt_broker.has_acl, broker)
                self._lossless = lossless = Lossless(dispatcher, spool, may_publish, time.time, has_acl)
                self._tasks |= {"lossless": lossless.run, "spool": lossless.tidy, "replaying": lossless.replay_later}
            self._incoming = IncomingMessages(broker, self, dispatcher, publisher, self._lossless)
            self._incoming.use_packet_hook()
            self._commands = self._command_topics = None
            if settings.coreflux is not None:
                self._commands = commands = Commands(settings.coreflux.routes, publisher.put_status)
                self._command_topics = CommandTopics(broker, settings.coreflux.users, commands.receive)
                self._incoming.own_topics += (f"{ROOT}/",)
                service.reporter.mirror = commands.status_published
                self._tasks["commands"] = lambda: commands.run(service)
            repairs.mend(broker)
            service.start()
            failing.pop_all()

    @property
    def server_ports(self) -> dict[int, int]:
        """Return the bound port for each configured SERVER_PORT; they differ where 0 asked for a free one."""
        return self.service.server_ports

    @property
    def admin_port(self) -> int | None:
        """Return the bound port of the status page and the metrics, None without the setting admin_port."""
        return self.service.admin_port

    async def on_broker_pre_start(self) -> None:
        """Attach to the broker's loop."""
        self.service.attach()
        if self._command_topics is not None:
            self._command_topics.begin()

    async def on_broker_post_start(self) -> None:
        """Begin to publish, to watch route files and to report; replay what the spool holds."""
        self.service.begin(self._tasks)
        if amqtt_broker.is_run_by_amqtt():
            garbage.freeze()

    async def on_broker_retained_message(self, *, client_id: str | None, retained_message: ApplicationMessage) -> None:
        """Store retained messages for read events, which answer with them before the next publication."""
        if client_id is None:
            self._incoming.remember(retained_message)

    async def on_broker_pre_shutdown(self) -> None:
        """Wait for running requests and publish their results; new connections are refused from now on."""
        await self._draining.passed_on()
        await self.service.drain()

    async def close(self) -> None:
        """End the bridge processes, and close ports and files."""
        await self.service.close()
        self._draining.end()

    def _routes_replaced(self) -> None:
        """Receive what the new routes need: packets, orphans of the spool, retained messages."""
        self._incoming.use_packet_hook()
        if self._lossless is not None:
            self.supervisor.finish("adopting", self._lossless.adopt)
        self.supervisor.finish("remembering", self._incoming.remember_retained)
        if self._commands is not None:
            self._commands.routes_changed()


@contextlib.contextmanager
def _logging_the_reason() -> Iterator[None]:
    try:
        yield
    except RouteFilesError:  # whose faults have been logged
        raise
    except BridgeError as error:
        log.error("%s", error)  # noqa: TRY400  # the operator wants the reason, not our stack
        raise

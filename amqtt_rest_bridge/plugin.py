"""`RestBridgePlugin`, the plugin of amqtt: it builds the parts of the broker's side, and passes amqtt's hooks to them.

Everything runs on the broker's loop. Only the constructor blocks: amqtt calls it before its loop serves clients.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from amqtt.broker import BrokerContext
from amqtt.plugins.base import BasePlugin
from amqtt.session import ApplicationMessage

from amqtt_rest_bridge.broker import amqtt_broker, repairs
from amqtt_rest_bridge.broker.bridge_child import BridgeChild, spawn_bridge
from amqtt_rest_bridge.broker.command_topics import CommandTopics
from amqtt_rest_bridge.broker.endpoint import PrivateEndpoint
from amqtt_rest_bridge.broker.incoming import IncomingMessages, retained_messages
from amqtt_rest_bridge.broker.lossless import Lossless
from amqtt_rest_bridge.broker.publisher import Publisher
from amqtt_rest_bridge.broker.repairs.shutdown import Draining
from amqtt_rest_bridge.broker.statuses import Statuses
from amqtt_rest_bridge.errors import BridgeError, ConfigurationError, RouteFilesError
from amqtt_rest_bridge.settings import Settings, check_settings
from amqtt_rest_bridge.signals import reloading_on_sighup
from amqtt_rest_bridge.store import Spool
from amqtt_rest_bridge.supervised_tasks import Supervisor, Times
from amqtt_rest_bridge.system import freeze_garbage, return_large_blocks
from amqtt_rest_bridge.tools.commands.command import COMMAND_TOPIC, ROOT

if TYPE_CHECKING:
    from amqtt_rest_bridge.plugin_bridge import BridgeTasks

log = logging.getLogger(__name__)


class RestBridgePlugin(BasePlugin[BrokerContext]):
    """Run REST_API routes beside an amqtt broker.

    The constructor starts the bridge, which loads the routes and binds the server ports, so whatever is wrong stops the
    broker's start; it blocks for `start_seconds` at most.

    Raises:
        RouteFilesError: A route file has an error; every fault has been logged.
        ConfigurationError: A setting cannot be used, a port is taken, or the bridge cannot start; logged too.
    """

    Config = Settings  # type: ignore[assignment]  # amqtt looks for a dataclass of this name
    spawn = staticmethod(spawn_bridge)
    times: ClassVar = Times()

    def __init__(self, context: BrokerContext) -> None:
        super().__init__(context)
        settings: Settings = self.config
        broker = amqtt_broker.broker_of(context)
        self._is_closed = False
        with _logging_the_reason(), contextlib.ExitStack() as opened:
            check_settings(settings)
            self._draining = Draining(broker)
            self._statuses = Statuses()
            self._publisher = Publisher(context, self._draining, self._statuses)
            self._lossless = self._open_lossless(opened)
            retained = partial(retained_messages, broker)
            queue_bytes, most = int(settings.queue_bytes), int(settings.max_message_bytes)
            self.endpoint = PrivateEndpoint(self._publisher, retained, queue_bytes, most, self._lossless)
            """Where the bridge connects."""
            opened.callback(self.endpoint.close)
            self.endpoint.on_away = self._statuses.bridge_went_away
            self.bridge: BridgeChild | BridgeTasks
            """The bridge, a child process or tasks of this loop."""
            if settings.processes:
                self.bridge = BridgeChild(settings, self.endpoint, self.times, self.spawn)
            else:
                from amqtt_rest_bridge import plugin_bridge  # here, since it takes 20 MB

                self.bridge = plugin_bridge.BridgeTasks(settings, self.endpoint.address)
            opened.callback(self.bridge.release)
            self.supervisor = Supervisor(self._statuses.report_broken, self.times.tasks)
            """Runs the tasks of the broker's side."""
            self._incoming = IncomingMessages(broker, self, self.endpoint, self._publisher, self._lossless)
            self._command_topics = None
            if settings.coreflux is not None:
                self._command_topics = CommandTopics(
                    broker, settings.coreflux.users, partial(self.endpoint.offer, COMMAND_TOPIC)
                )
                self._incoming.own_topics += (f"{ROOT}/",)
            repairs.mend(broker)
            return_large_blocks()
            self._opened = opened.pop_all()

    def _open_lossless(self, opened: contextlib.ExitStack) -> Lossless | None:
        """Open the spool if the settings name one."""
        settings: Settings = self.config
        if settings.spool is None:
            return None
        spool = Spool(Path(settings.spool))
        opened.callback(spool.close)
        broker = amqtt_broker.broker_of(self.context)
        return Lossless(
            spool, amqtt_broker.Acl(broker), time.time,
            lambda *error: self.endpoint.reports.report_error(*error), int(settings.max_message_bytes),  # noqa: PLW0108  # the endpoint is made later
        )  # fmt: skip

    @property
    def server_ports(self) -> dict[int, int]:
        """Return the bound port for each configured SERVER_PORT; they differ if that is 0, which means any free one."""
        return self.bridge.server_ports

    @property
    def admin_port(self) -> int | None:
        """Return the bound port of the status page and the metrics, None without the setting admin_port."""
        return self.bridge.admin_port

    async def on_broker_pre_start(self) -> None:
        """Serve the endpoint, and wait until the bridge has subscribed and its ports are open.

        Raises:
            ConfigurationError: The bridge is not ready within `start_seconds`.
        """
        if self._is_closed:
            log.error("a broker that has been stopped cannot serve routes again: make a new one")
            return
        if self._command_topics is not None:
            self._command_topics.begin()
        keep_running = self.supervisor.keep_running
        keep_running("publishing", self._publisher.run)
        keep_running("statuses", lambda: self._statuses.run(self.endpoint.ready, self._publisher))
        if self._lossless is not None:
            keep_running("lossless", self._lossless.run)
            keep_running("spool", self._lossless.tidy)
        await self.endpoint.serve()
        self.supervisor.run_to_end("bridge", self.bridge.run)
        try:
            async with asyncio.timeout(self.config.start_seconds):
                await self.endpoint.ready.wait()
        except TimeoutError:
            why = "the bridge was not ready in time; the setting start_seconds gives it more"
            raise ConfigurationError(why) from None

    async def on_broker_post_start(self) -> None:
        """Reload on SIGHUP, and keep what was loaded out of garbage collection."""
        if self._is_closed:
            return
        self._opened.enter_context(
            reloading_on_sighup(lambda: self.supervisor.run_to_end("reload", self.bridge.reload))
        )
        if amqtt_broker.is_run_by_amqtt():
            freeze_garbage()

    async def on_broker_retained_message(self, *, client_id: str | None, retained_message: ApplicationMessage) -> None:
        """Offer the endpoint what plugins retain, so that read events can answer with it at once."""
        if client_id is None:
            self._incoming.offer_retained(retained_message)

    async def on_broker_pre_shutdown(self) -> None:
        """Pass on what clients have published so far, stop the bridge, and wait until its results are delivered.

        amqtt already refuses new connections. The log counts the messages that are not finished in time.
        """
        loop, times = asyncio.get_running_loop(), self.times
        await self._draining.passed_on()
        deadline = loop.time() + times.grace + times.publish
        await self.bridge.stop(times.grace)
        for route, count in self.endpoint.unfinished().items():
            log.warning("route %s: %d message(s) had not been answered when the broker stopped", route, count)
        for route, count in ({} if self._lossless is None else self._lossless.rows).items():
            log.info("route %s: %d message(s) stay in the spool for a start with this route", route, count)
        if undelivered := await self._publisher.settled(max(times.publish, deadline - loop.time())):
            log.warning("%d message(s) had not reached their subscribers when the broker stopped", undelivered)

    async def close(self) -> None:
        """End the bridge, and close ports and files."""
        self._is_closed = True
        await self.supervisor.stop()
        await self.bridge.close()
        self._opened.close()
        self._draining.end()


@contextlib.contextmanager
def _logging_the_reason() -> Iterator[None]:
    try:
        yield
    except RouteFilesError:  # whose faults have been logged
        raise
    except BridgeError as error:
        log.error("%s", error)  # noqa: TRY400  # the operator wants the reason, not our stack
        raise

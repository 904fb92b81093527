"""Commands by MQTT, taken by the worker that holds the first slot of its group, or by the plugin's bridge.

They come by a session of their own. That of a group moves with the first slot, so each command is executed by one
worker, in the order in which they came. A command is acknowledged once the broker has its answer. If its worker is
killed before, the next client of the session executes and answers it. The event loop only.
"""

import asyncio
import logging
import math
from functools import partial
from typing import Final

from amqtt_rest_bridge.errors import PublicationRefusedError
from amqtt_rest_bridge.lot.model import Publication
from amqtt_rest_bridge.mqtt.connection import MqttConnection
from amqtt_rest_bridge.mqtt.packets import Publish
from amqtt_rest_bridge.mqtt.publisher import MqttPublisher
from amqtt_rest_bridge.mqtt.reconnecting import ConnectionUser, ReconnectingClient
from amqtt_rest_bridge.mqtt.values import Broker, BrokerError, ClientSession, Subscription
from amqtt_rest_bridge.settings import Coreflux, WorkerSettings
from amqtt_rest_bridge.supervised_tasks import Supervisor
from amqtt_rest_bridge.system import own_version
from amqtt_rest_bridge.tools.commands.command import COMMAND_TOPIC, ROOT
from amqtt_rest_bridge.tools.commands.execution import RunsRoutes
from amqtt_rest_bridge.tools.commands.service import CommandQueue

log = logging.getLogger(__name__)

FIRST_SLOT: Final = 0
RECEIVE_MAXIMUM: Final = 1024
"""Commands that may come before one is acknowledged; what `Commands` has no room for is answered at once."""
_END_SECONDS: Final = 1.0  # for the command that is executed when the slot is left


class MqttCommands(ConnectionUser):
    """Receives the commands of a session, has them executed and publishes their answers, between `begin` and `end`.

    Args:
        live: The setting coreflux.
        session: The client that takes them.
        broker: Where to connect.
        publisher: Publishes answers, and what is retained.
        routes: Loads and runs the routes.
        gate: Has to be set before a connection is opened.
    """

    def __init__(
        self, live: Coreflux, session: ClientSession, broker: Broker, publisher: MqttPublisher,
        routes: RunsRoutes, gate: asyncio.Event | None = None,
    ) -> None:  # fmt: skip
        self._users = ", ".join(live.users)
        self._session = session
        self._broker = broker
        self._publisher = publisher
        self._routes = routes
        self._gate = gate
        self._commands = CommandQueue(live.routes, publisher.announce)
        self.client: ReconnectingClient | None = None
        """The client, between `begin` and `end`."""
        self._supervisor = Supervisor()

    async def check(self) -> None:
        """Publish the version; raises `BrokerError` where the broker forbids what the setting needs."""
        try:
            await self._publisher.publish(_version(), hops=1, wait=False, is_own=True)
        except PublicationRefusedError as error:
            raise BrokerError(
                f"the broker does not let this worker publish below {ROOT}, which the setting coreflux needs: "
                "Mosquitto lets no client do so, others decide by their ACL"
            ) from error
        log.info("routes can be commanded below %s: let the broker's ACL open it to %s only", ROOT, self._users)

    def begin(self) -> None:
        """Connect, and execute commands from now on."""
        self.client = ReconnectingClient(self._broker, self._session, self, self._gate)
        self._supervisor.keep_running(self._session.client_id, self.client.run)
        self._supervisor.keep_running("commands", partial(self._execute, self.client))

    async def _execute(self, client: ReconnectingClient) -> None:
        """Execute commands once the first connection has been tried: the retained texts of routes have come by then."""
        await client.tried.wait()
        await self._commands.run(self._routes)

    async def end(self) -> None:
        """Take no more, wait for the answer to the command that is executed, and disconnect."""
        client, self.client = self.client, None
        if client is None:
            return
        self._commands.forget()
        try:
            async with asyncio.timeout(_END_SECONDS):
                await self._commands.settled()
        except TimeoutError:
            log.warning("a command takes long: the next client of %s executes it again", self._session.client_id)
        await self._publisher.settled(0.5)  # then the command is acknowledged
        await self._supervisor.stop()
        await client.close()

    def routes_changed(self) -> None:
        """Publish what is retained of the routes again; called after a reload."""
        self._commands.routes_changed()

    def status_published(self, route: str, payload: bytes) -> None:
        """Publish the status of a route for commanding tools too, while commands are taken here."""
        if self.client is not None and self.client.connection is not None:
            self._commands.status_published(route, payload)

    async def connected(self, connection: MqttConnection) -> None:
        """Subscribe commands and what is retained of the routes, and publish the version again."""
        retained = Subscription(f"{ROOT}/Routes/#", retained=True, qos=0)
        await connection.subscribe([Subscription(COMMAND_TOPIC), retained])
        self._publisher.announce(_version())

    def disconnected(self, connection: MqttConnection, why: str) -> None:  # noqa: ARG002
        """Forget the commands that wait: they come again."""
        self._commands.forget()

    def receive(self, connection: MqttConnection, received: Publish) -> None:
        """Queue a command. Remove what is retained of a route that is gone: no worker was there when it was removed."""
        if self.client is None:  # the next holder of the slot executes the command
            return
        if received.topic == COMMAND_TOPIC:
            self._commands.receive(received.payload, lambda answer: self._answer(connection, received, answer))
        elif received.retain and received.payload:
            name = received.topic.removeprefix(f"{ROOT}/Routes/").partition("/")[0]
            if name not in self._routes.by_name:
                self._publisher.announce(Publication(received.topic, b"", retain=True))

    def _answer(self, connection: MqttConnection, command: Publish, answer: Publication) -> None:
        """Publish an answer, then acknowledge its command."""

        def answered(published: asyncio.Future[None]) -> None:
            published.exception()  # the publisher has logged it
            if command.packet_id is not None:
                connection.acknowledge(command.packet_id)

        self._publisher.publish(answer, hops=1, is_own=True).add_done_callback(answered)


def group_session(settings: WorkerSettings) -> ClientSession:
    """Return the session of a group. Commands wait there for as long as a slot may wait for its next holder."""
    return ClientSession(f"{settings.group}-commands", math.ceil(2 * settings.adopt_seconds), RECEIVE_MAXIMUM)


def _version() -> Publication:
    return Publication(f"{ROOT}/Version", own_version().encode(), retain=True)

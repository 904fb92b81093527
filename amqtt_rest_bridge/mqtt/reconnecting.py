"""`ReconnectingClient` keeps a client id connected: it opens a connection, and the next one when that has ended.

A message session (`intake`, `event_intake`) has a client, and so has each other user of a connection in `group`.
`connection` is one connection. The event loop only.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import Final

from amqtt_rest_bridge.errors import BridgeError
from amqtt_rest_bridge.mqtt.connection import MqttConnection
from amqtt_rest_bridge.mqtt.packets import Publish
from amqtt_rest_bridge.mqtt.standard import Code, Properties, Property
from amqtt_rest_bridge.mqtt.values import Broker, BrokerError, ClientSession, NoAnswerError
from amqtt_rest_bridge.settings import PASSWORD_VARIABLE
from amqtt_rest_bridge.times import Backoff

log = logging.getLogger(__name__)

_BACKOFF: Final = Backoff()  # before the broker is connected to again
_MQTT_5: Final = "it lacks MQTT 5, which a worker needs; amqtt speaks MQTT 3.1.1: load the routes there with the plugin"
_CREDENTIALS: Final = f"check user name (mqtt://USER@HOST) and password ({PASSWORD_VARIABLE} or password_secret)"


def lacking_of(properties: Properties) -> str | None:
    """Return what a worker needs and the broker lacks by its CONNACK, None if it lacks nothing."""
    if not properties.get(Property.SHARED_SUBSCRIPTION_AVAILABLE, 1):
        return "shared subscriptions"
    if not properties.get(Property.SUBSCRIPTION_IDENTIFIER_AVAILABLE, 1):
        return "subscription identifiers"
    return None if properties.get(Property.MAXIMUM_QOS, 1) else "QoS 1"


class ConnectionUser(ABC):
    """What uses the connections of a `ReconnectingClient`."""

    @abstractmethod
    def receive(self, connection: MqttConnection, received: Publish) -> None:
        """Take a message that came on a connection."""

    @abstractmethod
    async def connected(self, connection: MqttConnection) -> None:
        """Subscribe on a new connection. If this raises `BrokerError`, the next connection is tried."""

    def disconnected(self, connection: MqttConnection, why: str) -> None:  # noqa: B027  # not all need it
        """Note that a connection was lost."""

    def resume(self) -> None:  # noqa: B027  # not all publish
        """Publish again: the present connection takes more."""


class ReconnectingClient:
    """Keeps a client id connected.

    Args:
        broker: Where to connect.
        session: Which client connects.
        user: Uses the connections.
        gate: Has to be set before `run` opens a connection.
    """

    def __init__(
        self, broker: Broker, session: ClientSession, user: ConnectionUser,
        gate: asyncio.Event | None = None,
    ) -> None:  # fmt: skip
        self.connection: MqttConnection | None = None
        """The connection that is open and has subscribed, None while there is none."""
        self.tried = asyncio.Event()
        """Set once the first connection is open, or could not be opened."""
        self.reconnects = 0
        """How many connections followed one that was lost."""
        self.running: asyncio.Task[None] | None = None
        """The task of `run`, which `close` ends."""
        self._broker = broker
        self._session = session
        self._user = user
        self._gate = gate
        self._again: MqttConnection | None = None  # the last that `connect_again` has ended
        self._opened: MqttConnection | None = None  # the last
        self._has_session = False
        self._shown = ""
        self._why = "it has not connected yet"

    @property
    def was_open(self) -> bool:
        """Return whether there has been a connection."""
        return self._has_session

    @property
    def client_id(self) -> str:
        """Return the client id."""
        return self._session.client_id

    @property
    def trouble(self) -> str | None:
        """Return why the client is not connected, None while it is."""
        if self.connection is not None:
            return None
        return f"{self.client_id} is not connected to {self._shown or 'the broker'}: {self._why}"

    async def open(self) -> None:
        """Connect for the first time; raises `BrokerError`, also for a broker that lacks what a worker needs."""
        address = self._broker.address
        user = self._user
        connection = self._opened = MqttConnection(address, self._session, user.receive, user.resume)
        shown = self._shown = address.shown
        try:
            await _open(connection)
            if (lacking := lacking_of(connection.granted.properties)) is not None:
                raise BrokerError(f"the broker {shown} does not support {lacking}")  # noqa: TRY301  # closed below
            if self._has_session and self._session.expiry and not connection.granted.session_present:
                log.warning("the broker has forgotten the session of %s and what it kept for it", self.client_id)
            if not self._has_session and connection.granted.session_expiry < self._session.expiry:
                log.warning(
                    "the broker keeps the session of %s for %d s, not for session_expiry, %d s",
                    self.client_id, connection.granted.session_expiry, self._session.expiry,
                )  # fmt: skip
            self._has_session = True
            await user.connected(connection)
        except NoAnswerError as error:
            raise BrokerError(f"{error}: it expects TLS, or {_MQTT_5}") from error
        except BaseException:
            connection.abort()
            raise
        self.connection = connection

    async def run(self) -> None:
        """Keep a connection open, until cancelled: connect, wait for its end, and connect again."""
        failures = 0
        while True:
            if (connection := self.connection) is not None:
                why = await connection.ended()
                self.connection = None
                failures = 0 if connection is self._again else 1
                if failures:
                    self._why = why
                    log.warning("%s lost its connection to %s: %s", self.client_id, self._shown, why)
                    self._user.disconnected(connection, why)
            await asyncio.sleep(_BACKOFF.delay(failures) if failures else 0)
            if self._gate is not None:
                await self._gate.wait()
            try:
                is_first = self._opened is None
                await self.open()
                if failures and not is_first:
                    self.reconnects += 1
                    log.info("%s is connected again", self.client_id)
            except BridgeError as error:  # of the password too, which is read each time
                self._why = str(error)
                failures += 1
                delay = _BACKOFF.delay(failures)
                log.warning("%s is not connected: %s; tried again in %.0f s", self.client_id, error, delay)
            finally:
                self.tried.set()

    async def connect_again(self, connection: MqttConnection) -> None:
        """End a connection and open the next one at once, where the broker sends unacknowledged messages again."""
        self._again = connection
        await connection.disconnect()

    async def close(self) -> None:
        """Disconnect; the session stays at the broker for as long as it was asked to."""
        if self.running is not None:
            self.running.cancel()
            await asyncio.wait([self.running])
        connection, self.connection = self.connection, None
        if connection is not None:
            await connection.disconnect()
        elif self._opened is not None:
            self._opened.abort()


async def _open(connection: MqttConnection) -> None:
    """Connect. If user name or password are refused, the error says where both are set."""
    try:
        await connection.open()
    except BrokerError as error:
        if error.code in (Code.BAD_USER_NAME_OR_PASSWORD, Code.NOT_AUTHORIZED):
            raise BrokerError(f"{error}; {_CREDENTIALS}", error.code) from error
        raise

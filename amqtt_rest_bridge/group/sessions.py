"""The own session of a bridge at its broker: it publishes, and receives for read events and replies. Event loop only.

All that a bridge publishes goes by this connection, which is always read: PUBACKs of results must not wait behind
messages that a busy route leaves unread. It subscribes for itself, not shared: the topics of read events (retained
messages included), of replies, and of a worker what the group announces. The session ends with the connection, so the
worker's will goes out.

`MemberSession` is that of a worker; that of the plugin's bridge is in `plugin_member`.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
from typing import Final, Protocol

from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.group.leases import Leases, Notice, lease_topic, presence_topic
from amqtt_rest_bridge.lot.model import Message, Publication
from amqtt_rest_bridge.mqtt.connection import MqttConnection
from amqtt_rest_bridge.mqtt.intake import Feed, carried, size_of
from amqtt_rest_bridge.mqtt.packets import Publish, Will
from amqtt_rest_bridge.mqtt.publisher import MqttPublisher
from amqtt_rest_bridge.mqtt.reconnecting import ConnectionUser, ReconnectingClient
from amqtt_rest_bridge.mqtt.standard import Property
from amqtt_rest_bridge.mqtt.values import Broker, ClientSession, Subscription
from amqtt_rest_bridge.times import lease_time

_RECEIVE_MAXIMUM: Final = 1024
_MARK: Final = b"mark"
_MOST_BYTES: Final = 64 << 10  # of a notice: enough for 1,000 events with EVERY; longer payloads are ignored

log = logging.getLogger(__name__)


class Watches(Protocol):
    """Receives the messages from which read events and replies are answered: `ServerMode`."""

    @property
    def filters(self) -> Collection[str]:
        """Return the topic filters whose messages are watched now."""
        ...

    def resubscribing(self) -> AbstractContextManager[Collection[str]]:
        """Return a context with the filters whose retained messages are needed again; its body subscribes these."""
        ...

    def see(self, message: Message, *, retained: bool = False, size: int = 0) -> None:
        """Take a message that matches one of `filters`; see `ServerMode.see`."""
        ...

    def refuse(self, message: Message, failure: CallError) -> None:
        """Note a message that cannot be an answer; see `ServerMode.refuse`."""
        ...


class OwnSession(ConnectionUser):
    """The connection that publishes, and that receives the messages for read events and replies.

    Args:
        broker: Where to connect.
        session: The client.
        publisher: Publishes while there is a connection.
        watches: Takes the messages of read events and replies.
        own_filters: Topic filters whose messages go to `take_own`, all others to `watches`.
    """

    def __init__(
        self, broker: Broker, session: ClientSession, publisher: MqttPublisher, watches: Watches,
        own_filters: Iterable[str],
    ) -> None:  # fmt: skip
        self.client = ReconnectingClient(broker, session, self)
        self._publisher = publisher
        self._watches = watches
        self._subscribed: set[str] = set()
        self.set_own_filters(own_filters)

    def set_own_filters(self, topic_filters: Iterable[str]) -> None:
        """Change the topic filters whose messages go to `take_own`, from the next `subscribe` on."""
        self._own_filters = {one: Feed(one, frozenset()).identifier for one in topic_filters}

    async def subscribe(self) -> None:
        """Subscribe what is watched now, then unsubscribe the rest. The next connection does so if there is none."""
        if self.client.connection is not None:
            await self._subscribe(self.client.connection)

    def connection_changed(self) -> None:
        """Note that a connection has ended, or that a new one begins to receive."""

    def subscribed(self) -> None:
        """Note that a connection has subscribed all, just before the publisher has it."""

    def take_own(self, connection: MqttConnection, received: Publish) -> None:
        """Take a message of the session's own."""

    def see(self, received: Publish) -> None:
        """Show a message to read events and replies."""
        if received.payload or not received.retain:
            message = Message(received.topic, received.payload, time.time(), carried(received.properties))
            self._watches.see(message, retained=received.retain, size=size_of(received))

    async def _subscribe(self, connection: MqttConnection) -> None:
        """Subscribe what is missing, then unsubscribe what is no longer wanted."""
        wanted = self._own_filters | {one: Feed(one, frozenset()).identifier for one in self._watches.filters}
        with self._watches.resubscribing() as again:
            missing = (wanted.keys() - self._subscribed) | set(again)
            await connection.subscribe(Subscription(one, wanted[one], True) for one in wanted if one in missing)
        await connection.unsubscribe(Subscription(one) for one in self._subscribed - set(wanted))
        self._subscribed = set(wanted)

    async def connected(self, connection: MqttConnection) -> None:
        """Subscribe on a new connection, and publish on it."""
        self._subscribed = set()
        self.connection_changed()
        await self._subscribe(connection)
        self.subscribed()
        self._publisher.use_connection(connection)

    def disconnected(self, connection: MqttConnection, why: str) -> None:
        """Keep what was not acknowledged for the next connection."""
        self._publisher.lose_connection(why, refused=connection.has_refused_packet)
        self.connection_changed()

    def resume(self) -> None:
        """Publish again: the connection takes more."""
        self._publisher.resume()

    def receive(self, connection: MqttConnection, received: Publish) -> None:
        """Acknowledge a message, and take it."""
        if received.packet_id is not None:
            connection.acknowledge(received.packet_id)
        identifiers = received.properties.get(Property.SUBSCRIPTION_IDENTIFIER, ())
        if any(number in self._own_filters.values() for number in identifiers):
            self.take_own(connection, received)
        else:
            self.see(received)


class MemberSession(OwnSession):
    """The own session of a worker, which also publishes and hears notices of its group.

    Args:
        broker, publisher, watches: As of `OwnSession`.
        group: The group of the worker.
        leases: Takes the group's notices.
        noticed: Set after each notice, and when a connection begins or has ended.
    """

    def __init__(
        self, broker: Broker, group: str, leases: Leases, publisher: MqttPublisher, watches: Watches,
        noticed: asyncio.Event,
    ) -> None:  # fmt: skip
        self._presence = leases.farewell()
        self._leases = leases
        self._noticed = noticed
        will = Will(self._presence.topic, self._presence.payload)
        session = ClientSession(f"{group}-{leases.worker}", 0, _RECEIVE_MAXIMUM, will)
        super().__init__(broker, session, publisher, watches, [lease_topic(group, "+"), presence_topic(group, "+")])

    def publish(self, notice: Notice) -> None:
        """Publish a notice."""
        self._publisher.announce(Publication(notice.topic, notice.payload, retain=True), seconds=notice.seconds)

    def connection_changed(self) -> None:
        """Begin to hear the notices of the group."""
        self._leases.connection_changed(lease_time())
        self._noticed.set()

    def subscribed(self) -> None:
        """Publish a mark, which comes back after all retained notices."""
        self._publisher.announce(Publication(self._presence.topic, _MARK))

    def take_own(self, connection: MqttConnection, received: Publish) -> None:
        """Take a notice."""
        now = lease_time()
        if received.payload == _MARK and received.topic == self._presence.topic:
            self._leases.connected(now, connection.silence_seconds)
        elif len(received.payload) <= _MOST_BYTES or received.topic == self._presence.topic:
            self._leases.receive(received.topic, received.payload, now, retained=received.retain)
        self._noticed.set()

"""A worker's own connection: all that it publishes, and what every worker of the group has to see. The event loop.

Everything is published here. The connection is always read: PUBACKs of results must not wait behind messages that a
busy route leaves unread. Each worker subscribes for itself, not shared: the records of the group, the topics of read
events (retained messages included), and replies. The session ends with the connection, so the worker's will goes out.
"""

import time
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from typing import Final, Protocol

from amqtt_rest_bridge.group.leases import Leases
from amqtt_rest_bridge.group.records import lease_topic, presence_topic
from amqtt_rest_bridge.lot.model import Message, Publication
from amqtt_rest_bridge.mqtt.connection import MqttConnection
from amqtt_rest_bridge.mqtt.intake import Feed, carried, size_of
from amqtt_rest_bridge.mqtt.packets import Publish, Will
from amqtt_rest_bridge.mqtt.publisher import MqttPublisher
from amqtt_rest_bridge.mqtt.reconnecting import ReconnectingClient
from amqtt_rest_bridge.mqtt.standard import Property
from amqtt_rest_bridge.mqtt.values import Address, ClientSession, Subscription
from amqtt_rest_bridge.times import lease_time

_RECEIVE_MAXIMUM: Final = 1024
_MARK: Final = b"mark"
_MOST_RECORD_BYTES: Final = 64 << 10  # of a worker with 1,000 events with EVERY; longer ones are foreign


class Watches(Protocol):
    """What read events and replies are answered from; `ServerMode` is that."""

    @property
    def filters(self) -> Collection[str]:
        """Return the topic filters whose messages are watched now."""
        ...

    def asking_again(self) -> AbstractContextManager[Collection[str]]:
        """Return the filters whose retained messages are needed once more, which the block then subscribes."""
        ...

    def see(self, message: Message, *, retained: bool = False, size: int = 0) -> None:
        """Take a message that one of these filters matches; see `ServerMode.see`."""
        ...


class WatchSubscriptions:
    """The subscriptions of an own session: what is watched, and topics that are always subscribed.

    Args:
        watches: Takes the messages of read events and replies.
        always: Topic filters whose messages are the session's own.
    """

    def __init__(self, watches: Watches, always: Iterable[str]) -> None:
        self._watches = watches
        self._subscribed: set[str] = set()
        self.set_always(always)

    def set_always(self, topic_filters: Iterable[str]) -> None:
        """Change the topic filters whose messages are the session's own, from the next `subscribe` on."""
        self._always = {one: Feed(one, frozenset()).identifier for one in topic_filters}

    def forget(self) -> None:
        """Note that nothing is subscribed: the connection is new."""
        self._subscribed = set()

    async def subscribe(self, connection: MqttConnection) -> None:
        """Subscribe what is watched now, then unsubscribe what is not."""
        wanted = self._always | {one: Feed(one, frozenset()).identifier for one in self._watches.filters}
        with self._watches.asking_again() as again:
            missing = (wanted.keys() - self._subscribed) | set(again)
            await connection.subscribe(Subscription(one, wanted[one], True) for one in wanted if one in missing)
        await connection.unsubscribe(Subscription(one) for one in self._subscribed - set(wanted))
        self._subscribed = set(wanted)

    def see(self, received: Publish) -> bool:
        """Show a message to read events and replies; return False for one of the session's own topics."""
        identifiers = received.properties.get(Property.SUBSCRIPTION_IDENTIFIER, ())
        if any(number in self._always.values() for number in identifiers):
            return False
        if received.payload or not received.retain:
            message = Message(received.topic, received.payload, time.time(), carried(received.properties))
            self._watches.see(message, retained=received.retain, size=size_of(received))
        return True


class OwnSession:
    """Publish, and see what all workers see.

    Args:
        broker: Returns the broker's address; called before each connection.
        group: The group of the worker.
        leases: Takes the group's records.
        publisher: Publishes while there is a connection.
        watches: Takes the messages of read events and replies.
        on_record: Called after each record, and when the connection has ended.
    """

    def __init__(
        self,
        broker: Callable[[], Address],
        group: str,
        leases: Leases,
        publisher: MqttPublisher,
        watches: Watches,
        on_record: Callable[[], None],
    ) -> None:
        self._presence = leases.farewell()
        session = ClientSession(
            f"{group}-{leases.worker}", 0, _RECEIVE_MAXIMUM, Will(self._presence.topic, self._presence.payload)
        )
        self.client = ReconnectingClient(broker, session, self._take, self._connected, self._down, publisher.resume)
        self._leases = leases
        self._publisher = publisher
        self._on_record = on_record
        self._subscriptions = WatchSubscriptions(watches, [lease_topic(group, "+"), presence_topic(group, "+")])

    async def subscribe(self) -> None:
        """Subscribe what is watched now, then unsubscribe what is not; without a connection on the next one."""
        if (connection := self.client.connection) is not None:
            await self._subscriptions.subscribe(connection)

    async def _connected(self, connection: MqttConnection) -> None:
        self._subscriptions.forget()
        self._leases.connecting(lease_time())
        await self._subscriptions.subscribe(connection)
        self._publisher.announce(Publication(self._presence.topic, _MARK))  # it comes back behind all records
        self._publisher.up(connection)

    def _down(self, connection: MqttConnection, why: str) -> None:
        self._publisher.down(why, refused=connection.has_refused_packet)
        self._leases.connecting(lease_time())
        self._on_record()

    def _take(self, connection: MqttConnection, received: Publish) -> None:
        if received.packet_id is not None:
            connection.acknowledge(received.packet_id)
        if self._subscriptions.see(received):
            return
        now = lease_time()
        if received.payload == _MARK and received.topic == self._presence.topic:
            self._leases.connected(now, connection.silence_seconds)
        elif len(received.payload) <= _MOST_RECORD_BYTES or received.topic == self._presence.topic:
            self._leases.received(received.topic, received.payload, now, retained=received.retain)
        self._on_record()

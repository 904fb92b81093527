"""A worker's connection with a clean session: all that it publishes, and what every worker has to see. The event loop.

It is always read. What every worker sees, each by a subscription that is not shared: the records of the group's slots,
the topics of read events (retained messages included), and replies. Its session ends with the connection.
"""

import time
import uuid
from collections.abc import Callable, Iterable

from amqtt_rest_bridge.model import Message, Route
from amqtt_rest_bridge.route_set import read_filters, reply_filters
from amqtt_rest_bridge.routing.calls import EventName
from amqtt_rest_bridge.routing.dispatcher import Dispatcher
from amqtt_rest_bridge.worker.client import Client
from amqtt_rest_bridge.worker.connection import MqttConnection
from amqtt_rest_bridge.worker.intake import Feed, hops_of
from amqtt_rest_bridge.worker.membership import Membership, online_topic
from amqtt_rest_bridge.worker.publisher import BrokerPublisher
from amqtt_rest_bridge.worker.slots import client_id
from amqtt_rest_bridge.worker.values import Address, Received, Session, Subscription

_RECEIVE_MAXIMUM = 1024


class CleanSession:
    """Publish, and see what all workers see.

    Args:
        address: The broker.
        group: The group ...
        slot: ... and the slot of this worker.
        publisher: Publishes while there is a connection.
        dispatcher: Takes the messages of read events and replies.
        membership: Takes the records of slots.
        on_record: Called with what `Membership.received` returns.
    """

    def __init__(
        self,
        address: Address,
        group: str,
        slot: int,
        publisher: BrokerPublisher,
        dispatcher: Dispatcher,
        membership: Membership,
        on_record: Callable[[str | None], None],
    ) -> None:
        session = Session(f"{client_id(group, slot, '')}/{uuid.uuid4().hex[:8]}", 0, _RECEIVE_MAXIMUM)
        self.client = Client(address, session, self._take, self._connected, publisher.down)
        self._publisher = publisher
        self._dispatcher = dispatcher
        self._membership = membership
        self._on_record = on_record
        records = online_topic(group, "+")
        self._records = Feed(records, frozenset()).identifier
        self._wanted = {records: self._records}
        self._subscribed: set[str] = set()
        self._client_events: frozenset[EventName] = frozenset()

    def prepare(self, routes: Iterable[Route]) -> None:
        """Use the topic filters of these routes."""
        routes = list(routes)
        self._client_events = frozenset((route.name, event.name) for route in routes for event in route.client_events)
        filters = [*self._wanted][:1] + read_filters(routes) + list(reply_filters(routes))
        self._wanted = {one: Feed(one, frozenset()).identifier for one in filters}

    async def subscribe(self) -> None:
        """Subscribe what is wanted, then unsubscribe what is not; without a connection on the next one."""
        if (connection := self.client.connection) is not None:
            await self._subscribe(connection)

    async def _connected(self, connection: MqttConnection) -> None:
        self._subscribed = set()
        self._membership.reset()
        await self._subscribe(connection)
        self._publisher.up(connection)

    async def _subscribe(self, connection: MqttConnection) -> None:
        wanted = dict(self._wanted)
        new = [Subscription(one, number, True) for one, number in wanted.items() if one not in self._subscribed]
        await connection.subscribe(new)
        await connection.unsubscribe(self._subscribed - set(wanted))
        self._subscribed = set(wanted)

    def _take(self, connection: MqttConnection, received: Received) -> None:
        if received.packet_id is not None:
            connection.acknowledge(received.packet_id)
        if self._records in received.identifiers:
            self._on_record(self._membership.received(received.topic, received.payload, retained=received.retain))
        elif received.retain:
            if received.payload:
                self._dispatcher.remember(received.topic, received.payload)
        else:
            message = Message(received.topic, received.payload, time.time())
            self._dispatcher.offer(message, hops=hops_of(received.user_properties), taken=self._client_events)

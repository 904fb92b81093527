"""A worker's connection with a clean session: all that it publishes, and what every worker has to see. The event loop.

Everything is published on this connection, with QoS 1 unless its event says another one. It is always read: PUBACKs of
results must not wait behind messages that a busy route leaves unread. Until its PUBACK, with QoS 2 its PUBCOMP, a
result counts as not published, and is published again on the next connection. A publication of server mode is not: its
caller gets an error and asks again. Nor is one for which connections end: it would end them all.

What every worker sees, each by a subscription that is not shared: the records of the group, the topics of read
events (retained messages included), and replies. The session ends with the connection.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from amqtt_rest_bridge.link.frames import credits_for
from amqtt_rest_bridge.model import EventName, Message, MessageProperties, Publication, Route
from amqtt_rest_bridge.mqtt.connection import MqttConnection
from amqtt_rest_bridge.mqtt.packets import Publish, Will
from amqtt_rest_bridge.mqtt.values import Address, BrokerError, Session, Subscription
from amqtt_rest_bridge.mqtt.wire import Properties, Property
from amqtt_rest_bridge.route_set import read_filters, reply_filters
from amqtt_rest_bridge.routing.calls import Confirm, ReleaseCredits, has_room
from amqtt_rest_bridge.routing.dispatcher import Dispatcher
from amqtt_rest_bridge.times import LineLimit, lease_time
from amqtt_rest_bridge.topics import check_topic_name, loggable
from amqtt_rest_bridge.worker.intake import HOPS, Feed, hops_of, properties_of, size_of
from amqtt_rest_bridge.worker.leases import Leases
from amqtt_rest_bridge.worker.reconnecting import ReconnectingClient
from amqtt_rest_bridge.worker.records import lease_topic, presence_topic

log = logging.getLogger(__name__)

_RECEIVE_MAXIMUM: Final = 1024
_LOOK_SECONDS: Final = 0.01
_LOG_SECONDS: Final = 1.0
_AWAY_SECONDS: Final = 2.0
_MARK: Final = b"mark"
_MOST_LOSSES: Final = 2  # connections that may end with a publication under way before it goes alone
_MOST_BLAME: Final = 8  # points for the ends of connections with a publication alone under way, before it is dropped
_REFUSED: Final = 4  # where the broker says that it was for a packet, which may be another one once; else 1
_MOST_RECORD_BYTES: Final = 64 << 10  # of a worker with 1,000 events with EVERY; longer ones are foreign


@dataclass(slots=True, eq=False)
class _Item:
    """A publication on its way."""

    publication: Publication
    hops: int
    release_credits: ReleaseCredits | None
    confirm: Confirm | None
    route: str = ""
    expires: int = 0
    losses: int = 0  # connections that have ended while it was under way
    blame: int = 0  # points for those that have ended while it was alone


class BrokerPublisher:
    """A queue to the broker; see `routing.calls.Publishes`.

    Args:
        expiry: Seconds for which the broker retains a status: that of a worker which was killed does not stay for ever.
    """

    def __init__(self, expiry: int = 0) -> None:
        self._expiry = expiry
        self._connection: MqttConnection | None = None
        self._queue: deque[_Item] = deque()
        self.waiting_bytes = 0
        """Payloads that wait until they are sent."""
        self.on_refused: Callable[[str, str], None] = lambda _route, _why: None
        """Called with the route whose result or failure the broker does not take, and with why."""
        self._drops = LineLimit(_LOG_SECONDS)
        self._under_way: dict[_Item, None] = {}
        # How many publications go one at a time from here on: one of them may be what the connections end for.
        self._suspects = 0

    def put(
        self,
        publication: Publication,
        hops: int,
        release_credits: ReleaseCredits | None = None,
        confirm: Confirm | None = None,
        *,
        route: str = "",
    ) -> bool:
        """Queue a publication; return False when there is no room, which one with credits always has.

        `release_credits` is called once it has been published. `confirm` is called with whether it has been: False when
        there is no connection or it ends before the PUBACK, and then the publication is not tried again.
        """
        size = len(publication.payload)
        if release_credits is None and not has_room(len(self._queue), self.waiting_bytes, size):
            return False
        item = _Item(publication, hops, release_credits, confirm, route)
        fault = check_topic_name(publication.topic)
        if fault is not None:
            self._drop(item, f"the topic {fault}")
        elif confirm is not None and self._connection is None:
            _end(item, published=False)
        else:
            self._append(item)
            self.resume()
        return True

    def put_status(self, publication: Publication) -> bool:
        """Queue the status of a route; return False without a connection: the next one comes soon."""
        if self._connection is None:
            return False
        self.put_record(publication, expires=self._expiry)
        return True

    def put_record(self, publication: Publication, *, expires: int) -> None:
        """Queue a record, also where there is no room; the broker drops it after so many seconds; 0: never."""
        self._append(_Item(publication, 1, None, None, expires=expires if publication.payload else 0))
        self.resume()

    async def settled(self, seconds: float) -> int:
        """Wait until the broker has acknowledged all that is queued; return how many messages it has not in time.

        A broker that is away is waited for two seconds at most.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        while self._queue or self._under_way:
            most = seconds if self._connection is not None else min(seconds, _AWAY_SECONDS)
            if loop.time() - began >= most:
                break
            await asyncio.sleep(_LOOK_SECONDS)
        return len(self._queue) + len(self._under_way)

    def up(self, connection: MqttConnection) -> None:
        """Publish on this connection from now on."""
        self._connection = connection
        self.resume()

    def resume(self) -> None:
        """Publish what waits, as far as the broker and the socket take it."""
        while self._queue and self._connection is not None and self._connection.can_publish:
            if self._suspects and self._under_way:
                return
            item = self._queue.popleft()
            self.waiting_bytes -= len(item.publication.payload)
            self._publish(self._connection, item)

    def down(self, why: str, *, refused: bool = False) -> None:
        """Keep what the broker has not acknowledged for the next connection; `why` the last one has ended.

        `refused`: the broker has ended it for a packet. Which one, it does not say, and where more packets came behind
        that one its word is lost with the connection; some brokers say nothing. So what was under way goes one at a
        time from then on, as after two connections in a row, and one for which connections go on to end is dropped.
        """
        self._connection = None
        under_way, again = list(self._under_way), [*self._under_way, *self._queue]
        self._under_way, self._queue, self.waiting_bytes = {}, deque(), 0
        for item in under_way:
            item.losses += 1
        if refused or any(item.losses >= _MOST_LOSSES for item in under_way):
            self._suspects = max(self._suspects, sum(item.confirm is None for item in under_way))
        if len(under_way) == 1:
            under_way[0].blame += _REFUSED if refused else 1
        for item in again:
            if item.confirm is not None:
                _end(item, published=False)
            elif item.blame >= _MOST_BLAME:
                self._suspects = max(0, self._suspects - 1)
                self._drop(item, f"each connection on which it is sent ends: {why}")
            else:
                self._append(item)

    def _append(self, item: _Item) -> None:
        self._queue.append(item)
        self.waiting_bytes += len(item.publication.payload)

    def _publish(self, connection: MqttConnection, item: _Item) -> None:
        publication = item.publication
        self._under_way[item] = None
        properties = _properties(publication.properties, item.hops)
        if item.expires:
            properties = {**properties, Property.MESSAGE_EXPIRY_INTERVAL: item.expires}

        def published(why: str | None) -> None:  # not of a connection that has ended: `down` has the item then
            del self._under_way[item]
            self._suspects = max(0, self._suspects - 1)
            if why is None:
                _end(item, published=True)
            else:
                self._drop(item, f"the broker answers {why}")
            self.resume()

        try:
            connection.publish(
                publication.topic, publication.payload, published,
                qos=1 if publication.qos is None else publication.qos, retain=publication.retain, properties=properties,
            )  # fmt: skip
        except BrokerError as error:
            del self._under_way[item]
            self._suspects = max(0, self._suspects - 1)
            self._drop(item, str(error))

    def _drop(self, item: _Item, why: str) -> None:
        what = f"not published on {loggable(item.publication.topic)}: {why}"
        if count := self._drops.count():
            log.error("%s%s", what, f" ({count} since the last such line)" if count > 1 else "")
        if item.route:
            self.on_refused(item.route, what)
        _end(item, published=False)


class CleanSession:
    """Publish, and see what all workers see.

    Args:
        broker: Returns the broker's address; called before each connection.
        group: The group of the worker.
        leases: Takes the group's records.
        publisher: Publishes while there is a connection.
        dispatcher: Takes the messages of read events and replies.
        on_record: Called after each record, and when the connection has ended.
    """

    def __init__(
        self,
        broker: Callable[[], Address],
        group: str,
        leases: Leases,
        publisher: BrokerPublisher,
        dispatcher: Dispatcher,
        on_record: Callable[[], None],
    ) -> None:
        self._presence = leases.farewell()
        session = Session(
            f"{group}-{leases.worker}", 0, _RECEIVE_MAXIMUM, Will(self._presence.topic, self._presence.payload)
        )
        self.client = ReconnectingClient(broker, session, self._take, self._connected, self._down, publisher.resume)
        self._publisher = publisher
        publisher.on_refused = lambda route, why: dispatcher.report_error(route, "not_published", why)
        self._dispatcher = dispatcher
        self._leases = leases
        self._on_record = on_record
        records = [lease_topic(group, "+"), presence_topic(group, "+")]
        self._records = {one: Feed(one, frozenset()).identifier for one in records}
        self._wanted = dict(self._records)
        self._subscribed: set[str] = set()
        self._client_events: frozenset[EventName] = frozenset()

    def prepare(self, routes: Iterable[Route]) -> None:
        """Use the topic filters of these routes."""
        routes = list(routes)
        self._client_events = frozenset((route.name, event.name) for route in routes for event in route.client_events)
        filters = read_filters(routes) + list(reply_filters(routes))
        self._wanted = self._records | {one: Feed(one, frozenset()).identifier for one in filters}

    async def subscribe(self) -> None:
        """Subscribe what is wanted, then unsubscribe what is not; without a connection on the next one."""
        if (connection := self.client.connection) is not None:
            await self._subscribe(connection)

    async def _connected(self, connection: MqttConnection) -> None:
        self._subscribed = set()
        self._leases.connecting(lease_time())
        await self._subscribe(connection)
        self._publisher.put_record(Publication(self._presence.topic, _MARK), expires=0)  # however much waits
        self._publisher.up(connection)

    def _down(self, connection: MqttConnection, why: str) -> None:
        self._publisher.down(why, refused=connection.has_refused_packet)
        self._leases.connecting(lease_time())
        self._on_record()

    async def _subscribe(self, connection: MqttConnection) -> None:
        wanted = dict(self._wanted)
        with self._dispatcher.asking_again() as again:
            missing = (wanted.keys() - self._subscribed) | again
            await connection.subscribe(Subscription(one, wanted[one], True) for one in wanted if one in missing)
        await connection.unsubscribe(self._subscribed - set(wanted))
        self._subscribed = set(wanted)

    def _take(self, connection: MqttConnection, received: Publish) -> None:
        if received.packet_id is not None:
            connection.acknowledge(received.packet_id)
        identifiers = received.properties.get(Property.SUBSCRIPTION_IDENTIFIER, ())
        if any(number in self._records.values() for number in identifiers):
            now = lease_time()
            if received.payload == _MARK and received.topic == self._presence.topic:
                self._leases.connected(now, connection.silence_seconds)
            elif len(received.payload) <= _MOST_RECORD_BYTES or received.topic == self._presence.topic:
                self._leases.received(received.topic, received.payload, now, retained=received.retain)
            self._on_record()
        elif received.retain:
            if received.payload:
                self._dispatcher.remember(received.topic, received.payload)
        else:
            message = Message(received.topic, received.payload, time.time(), properties_of(received.properties))
            self._dispatcher.offer(
                message, hops=hops_of(received.properties), elsewhere=self._client_events, size=size_of(received)
            )


def _properties(properties: MessageProperties | None, hops: int) -> Properties:
    """Return a publication's properties as they are written."""
    pairs = ((HOPS, str(hops)),)
    if properties is None:
        return {Property.USER_PROPERTY: pairs}
    written: dict[Property, Any] = {Property.USER_PROPERTY: (*pairs, *properties.user)}
    if properties.response_topic is not None:
        written[Property.RESPONSE_TOPIC] = properties.response_topic
    if properties.correlation is not None:
        written[Property.CORRELATION_DATA] = properties.correlation
    return written


def _end(item: _Item, *, published: bool) -> None:
    if item.release_credits is not None:
        item.release_credits(credits_for(item.publication.payload))
    if item.confirm is not None:
        item.confirm(published)

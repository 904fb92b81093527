"""`PrivateEndpoint` is a small MQTT 5 broker with one client: the bridge, which connects by a private socket.

Messages come from `incoming`, and go to the bridge by way of its sessions (`bridge_session`). Publications of the
bridge go to `publisher`. `mqtt.private` defines what MQTT 5 has no packet or property for. The broker's loop only.

The broker process does not know the routes: the bridge subscribes to what its routes need. Kept sessions and their
subscriptions stay while the bridge is away. Messages for such a session wait: those of lossless events on disk
(`lossless`), the others in memory, up to `queue_bytes`. Messages beyond that are dropped and counted. When a session
connects again, messages that were sent and not acknowledged are sent again, with DUP.
"""

import asyncio
import logging
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any, Final

from msgspec import json
from msgspec.structs import replace

from amqtt_rest_bridge.broker.bridge_session import (
    BridgeConnection,
    BridgeSession,
    Entry,
    EventSubscription,
    Receiver,
    failure_property,
)  # fmt: skip
from amqtt_rest_bridge.broker.lossless import Lossless, LosslessEvent, message_at
from amqtt_rest_bridge.broker.private_socket import bind_private_socket
from amqtt_rest_bridge.broker.publisher import Publisher
from amqtt_rest_bridge.broker.statuses import StateReports
from amqtt_rest_bridge.catalogue import MESSAGE_TOO_LARGE, QUEUE_BYTES_FULL
from amqtt_rest_bridge.lot.model import EventName, Message, Publication
from amqtt_rest_bridge.mqtt import packets, private, standard
from amqtt_rest_bridge.mqtt.packets import Acknowledged, Disconnect, Publish, protocol_error
from amqtt_rest_bridge.mqtt.private import (
    BROKER_TOPIC,
    ENDPOINT_TOPICS,
    ENDS,
    EVENT,
    LOSSLESS,
    OWN,
    QOS,
    READY_TOPIC,
    ROUTE,
    UNMATCHED_TOPIC,
)
from amqtt_rest_bridge.mqtt.publisher import HOPS
from amqtt_rest_bridge.mqtt.standard import Code, Property
from amqtt_rest_bridge.sizes import size_text
from amqtt_rest_bridge.times import LineLimit
from amqtt_rest_bridge.topics import TopicIndex, loggable

log = logging.getLogger(__name__)

_RECEIVE_MAXIMUM: Final = 128  # publications of the bridge that wait; amqtt takes one in two iterations of the loop
_MOST_PUBLISHED_BYTES: Final = 8 << 20  # of these publications; while they have more, the bridge is not read
_MOST_CACHED_TOPICS: Final = 1024  # whose receivers are cached
_LONGEST_CACHED_TOPIC: Final = 256  # characters of such a topic
_RETAINED_AT_ONCE: Final = 100  # retained messages compared with filters in one iteration of the loop
_LOOK_SECONDS: Final = 0.005  # between two looks at a session that is sending retained messages
_MOST_LOOKS: Final = 200  # then SUBACK is sent, even if some of the messages still wait
_QUIET_SECONDS: Final = 1.0  # between two lines about dropped messages


class PrivateEndpoint:
    """The server that the bridge connects to.

    The constructor binds the socket, so the bridge may connect before `serve`. It is answered once `serve` runs.

    Args:
        publisher: Publishes what the bridge publishes.
        retained: Returns topic and payload of what the broker has retained.
        queue_bytes: What may wait for a kept session, in bytes.
        max_message_bytes: A larger payload does not go to the bridge: its events fail.
        lossless: Keeps the messages of lossless events; None without a spool.
    """

    def __init__(
        self, publisher: Publisher, retained: Callable[[], Iterable[tuple[str, bytes]]], queue_bytes: int,
        max_message_bytes: int, lossless: Lossless | None = None,
    ) -> None:  # fmt: skip
        self.ready = asyncio.Event()
        """Set once the bridge has subscribed for all its routes, and cleared when it leaves."""
        self.on_away: Callable[[], None] = lambda: None
        """Called when a bridge that was ready has gone."""
        self.dropped = 0
        """Messages that were dropped because too many waited."""
        self.reports = StateReports(self, lossless)
        """Sends the bridge the state of the broker."""
        self._publisher = publisher
        self._retained = retained
        self._queue_bytes = queue_bytes
        self._max_message_bytes = max_message_bytes
        self._lossless = lossless
        self._sessions: dict[str, BridgeSession] = {}
        self._keys_in_flight: set[str] = set()  # of the messages on disk that are in flight in any session
        self._by_key: dict[tuple[str, ...], EventSubscription] = {}  # all subscriptions, by `EventSubscription.key`
        self._index: TopicIndex[EventSubscription] | None = None  # of the subscriptions; None: to be built again
        # The topics of all events; None unless the bridge subscribes to unmatched topics.
        self._event_topics: TopicIndex[EventSubscription] | None = None
        self._receivers: dict[str, tuple[Receiver, ...]] = {}  # by topic: a cache
        self._connections: set[BridgeConnection] = set()
        self._ready_session: BridgeSession | None = None  # the session that said that the bridge is ready
        self._heard = False  # whether a packet has come since `has_heard` was last called
        # Subscriptions that wait for retained messages; for each the connection and the packet id of its SUBACK.
        self._wants_retained: list[tuple[EventSubscription, BridgeConnection, int]] = []
        self._retained_task: asyncio.Task[None] | None = None
        self._server: asyncio.Server | None = None
        self._drop_warnings = LineLimit(_QUIET_SECONDS)
        self._socket, self.address = bind_private_socket()

    # Served and closed.

    async def serve(self) -> None:
        """Accept the bridge's connections from now on."""
        loop, make = asyncio.get_running_loop(), partial(BridgeConnection, self)
        if self.address.socket is not None:
            self._server = await loop.create_unix_server(make, sock=self._socket)
        else:
            self._server = await loop.create_server(make, sock=self._socket)

    def close(self) -> None:
        """End all connections, and remove the socket. Possible without `serve`, too."""
        self.reports.close()
        if self._retained_task is not None:
            self._retained_task.cancel()
        for connection in list(self._connections):
            connection.abort()
        if self._server is not None:
            self._server.close()
        self._socket.close()
        if self.address.folder is not None:
            shutil.rmtree(self.address.folder, ignore_errors=True)

    # Messages for the bridge.

    def offer(
        self, topic: str, payload: bytes, hops: int = 0, taken: Collection[EventName] = (),
        first_received: float | None = None,
    ) -> None:  # fmt: skip
        """Send a message to each session with a subscription for its topic, or queue it there.

        Args:
            topic: Its topic.
            payload: Its payload.
            hops: How many routes it has passed through.
            taken: Events that already have the message.
            first_received: When a broker first received it, in Unix seconds; None unless it is published again.
        """
        if self._lossless is not None and self._lossless.has_events:
            self._lossless.offer(topic, payload, hops, taken, first_received)
        receivers = self._receivers.get(topic)
        if receivers is None:
            receivers = self._receivers_of(topic)
        if (
            self._event_topics is not None
            and not topic.startswith(("$SYS/", ENDPOINT_TOPICS))
            and not self._event_topics[topic]
        ):
            self.offer(UNMATCHED_TOPIC, topic.encode("utf-8", "replace"))
        if not receivers:
            return
        now, failure = time.time(), None
        message = Message(topic, payload, now)
        if first_received is not None:  # it is published again
            message = message_at(topic, payload, now, first_received)
        if len(payload) > self._max_message_bytes:
            size = f"the message has {len(payload)} bytes, max_message_bytes allows {self._max_message_bytes}"
            message, failure = replace(message, payload=b""), failure_property(MESSAGE_TOO_LARGE.error(size))
        for session, subscriptions in receivers:
            wanting = subscriptions
            if taken:  # not a second time to an event that took the packet as lossless, and is ordinary since a reload
                wanting = tuple([one for one in subscriptions if one.name not in taken])
            if wanting:
                self._deliver(session, Entry(message, wanting, hops, failure=failure))

    def offer_retained(self, topic: str, payload: bytes) -> None:
        """Send a message that a plugin has retained without publishing it. Client events do not receive it."""
        for session, subscriptions in self._receivers_of(topic):
            if subscriptions[0].name is None:
                self._deliver(session, Entry(Message(topic, payload, time.time()), subscriptions))

    def has_receivers(self, topic: str) -> bool:
        """Return whether a session receives the messages of a topic."""
        return bool(self._receivers_of(topic))

    def _receivers_of(self, topic: str) -> tuple[Receiver, ...]:
        """Return the sessions that receive the messages of a topic; those of lossless events come from `Lossless`."""
        if self._index is None:
            subscribed = [one for one in self._by_key.values() if one.lossless is None]
            self._index = TopicIndex([(one.topic_filter, one) for one in subscribed])
            events = [(one.topic_filter, one) for one in self._by_key.values() if one.name is not None]
            self._event_topics = TopicIndex(events) if self._index[UNMATCHED_TOPIC] else None
        by_session: dict[BridgeSession, list[EventSubscription]] = {}
        for subscription in self._index[topic]:
            by_session.setdefault(subscription.session, []).append(subscription)
        receivers = tuple([Receiver(session, tuple(found)) for session, found in by_session.items()])
        if len(topic) <= _LONGEST_CACHED_TOPIC:
            if len(self._receivers) >= _MOST_CACHED_TOPICS:
                self._receivers.clear()
            self._receivers[topic] = receivers
        return receivers

    def _deliver(self, session: BridgeSession, entry: Entry) -> None:
        """Send a message to a session: at once, or through its queue.

        If the queue has no room, the bridge gets the message with the failure that ends it. While the bridge is away,
        the message is dropped.
        """
        if session.takes_at_once:
            session.send(entry)
            return
        message = entry.message
        if not session.is_kept or message is None or session.waiting_bytes + entry.size <= self._queue_bytes:
            session.enqueue(entry)
        elif session.connection is None:
            self.note_dropped(entry)
        else:
            bound, size = size_text(self._queue_bytes), size_text(len(message.payload))
            failure = QUEUE_BYTES_FULL.error(
                f"the bridge is overloaded: its queue_bytes of {bound} have no room for a payload of {size}"
            )
            session.send_with_failure(replace(entry, message=replace(message, payload=b"")), failure)

    def note_dropped(self, entry: Entry) -> None:
        """Count and log a message that is dropped because too many wait."""
        self.dropped += 1
        self.reports.send_soon()
        if count := self._drop_warnings.count():
            topic = "?" if entry.message is None else loggable(entry.message.topic)
            log.error(
                "%d message(s) dropped, the last on %s: the bridge is away, or behind, and too many wait", count, topic
            )

    # The state of the bridge.

    def has_heard(self) -> bool:
        """Return whether the bridge has sent a packet since the last call, or is not being read at present."""
        heard, self._heard = self._heard, False
        return heard or any(not connection.is_reading for connection in self._connections)

    def unfinished(self) -> dict[str, int]:
        """Return the number of unacknowledged messages of each route. Messages on disk are not counted."""
        count = Counter[str]()
        for session in self._sessions.values():
            for entry in (*session.in_flight.values(), *session.waiting):
                if entry.key is None:
                    count.update({one.name[0] for one in entry.subscriptions if one.name is not None})
        return dict(count)

    # Connections, and the packets of the bridge.

    def connection_opened(self, connection: BridgeConnection) -> None:
        """Note a new connection."""
        self._connections.add(connection)

    def has_room(self) -> bool:
        """Return whether the bridge may publish more."""
        return self._publisher.waiting_bytes <= _MOST_PUBLISHED_BYTES

    def act_on(self, connection: BridgeConnection, packet: Any) -> None:
        """Act on a packet of the bridge; raises `PacketError` for one that MQTT does not allow here."""
        self._heard = True
        session = connection.session
        if isinstance(packet, private.ConnectPacket):
            self._connect(connection, packet)
        elif session is None:
            raise protocol_error("another packet before CONNECT")
        else:
            match packet:
                case Publish():
                    self._publish(connection, packet)
                case Acknowledged(kind=standard.PUBACK, packet_id=packet_id):
                    session.acknowledged(packet_id)
                case private.Subscribe():
                    self._subscribe(connection, session, packet)
                case private.Unsubscribe():
                    self._unsubscribe(session, _subscription_key(session, packet))
                    connection.write(private.unsuback(packet.packet_id))
                case private.Pingreq():
                    connection.write(private.pingresp())
                case Disconnect():
                    pass
                case _:
                    raise protocol_error(f"{type(packet).__name__} of a client")

    def _connect(self, connection: BridgeConnection, packet: private.ConnectPacket) -> None:
        if self.address.password is not None and not secrets.compare_digest(
            self.address.password, packet.password or ""
        ):
            connection.write(private.refusal(Code.BAD_USER_NAME_OR_PASSWORD))
            connection.is_leaving = True
            return
        session = self._sessions.get(packet.client_id)
        is_known = session is not None
        if session is None:
            session = self._sessions[packet.client_id] = BridgeSession(
                self,
                packet.client_id,
                packet.is_kept,
                self._lossless,
                self._keys_in_flight,
                2 * self._max_message_bytes,
            )
        if (before := session.connection) is not None:
            session.disconnected()
            before.abort()
        connection.session = session
        connection.write(private.connack(session_present=is_known, receive_maximum=_RECEIVE_MAXIMUM))
        session.connected(connection, packet.receive_maximum)

    def _subscribe(self, connection: BridgeConnection, session: BridgeSession, packet: private.Subscribe) -> None:
        """Subscribe, and send SUBACK. If retained messages are wanted, they are sent before it.

        The subscription takes the place of an earlier one for the same event, also of another session.
        """
        if not packet.retained:
            connection.write(private.suback(packet.packet_id))
        key = _subscription_key(session, packet)
        name = (key[1], key[2]) if len(key) == 3 else None
        bounds = packet.user.get(LOSSLESS)
        subscription = EventSubscription(session, packet.topic_filter, packet.identifier or 1, name, bounds)
        earlier = self._by_key.get(key)
        if earlier is not None and subscription.is_like(earlier):
            subscription = earlier
        else:
            self._by_key[key] = session.subscriptions[key] = subscription
            self._clear_index()
            if earlier is not None and earlier.session is not session:
                earlier.session.hand_over(earlier, subscription)
            if name is not None and self._lossless is not None:
                self._subscribe_lossless(self._lossless, subscription, name)
        if packet.retained:
            self._wants_retained.append((subscription, connection, packet.packet_id))
            if self._retained_task is None:
                self._retained_task = asyncio.create_task(self._send_retained())
        if packet.topic_filter == BROKER_TOPIC:
            self.reports.begin()

    def _subscribe_lossless(self, lossless: Lossless, subscription: EventSubscription, name: EventName) -> None:
        """Keep the messages of a lossless event on disk from now on; end that for an event that is not lossless."""
        bounds = subscription.lossless
        if bounds is None:
            lossless.stop_keeping(name, subscription.session)
            return
        most, most_bytes, batch_size, batch_seconds = bounds.split()  # see `private.LOSSLESS`
        event = LosslessEvent(
            *name, subscription.topic_filter, int(most), int(most_bytes), int(batch_size), float(batch_seconds)
        )
        lossless.subscribe(event, subscription.session)

    async def _send_retained(self) -> None:
        """Send retained messages to the subscriptions that wait for them, some in each iteration of the loop."""
        try:
            while self._wants_retained:
                wanting, self._wants_retained = self._wants_retained, []
                index = TopicIndex([(one.topic_filter, one) for one, _, _ in wanting])
                for number, (topic, payload) in enumerate(self._retained(), start=1):
                    for one in index[topic]:
                        entry = Entry(Message(topic, payload, time.time()), (one,), retain=True)
                        self._deliver(one.session, entry)
                    if number % _RETAINED_AT_ONCE == 0:
                        await asyncio.sleep(0)
                for session in {one.session for one, _, _ in wanting}:
                    for _ in range(_MOST_LOOKS):
                        if not session.waiting:
                            break
                        await asyncio.sleep(_LOOK_SECONDS)
                for _, connection, packet_id in wanting:
                    connection.write(private.suback(packet_id))
        finally:
            self._retained_task = None

    def _unsubscribe(self, session: BridgeSession, key: tuple[str, ...]) -> None:
        subscription = session.subscriptions.pop(key, None)
        if subscription is None:  # another session has the event by now
            return
        del self._by_key[key]
        self._clear_index()
        if subscription.name is not None and self._lossless is not None:
            self._lossless.unsubscribe(subscription.name)
            session.forget_rows(subscription)

    def _clear_index(self) -> None:
        """Forget the index and the receivers, since subscriptions have changed; the next message rebuilds them."""
        self._index = None
        self._receivers.clear()

    def _publish(self, connection: BridgeConnection, packet: Publish) -> None:
        """Queue a publication of the bridge, which is acknowledged after its turn."""
        acknowledgement = packets.acknowledgement(standard.PUBACK, packet.packet_id or 0)
        user = dict(packet.properties.get(Property.USER_PROPERTY, ()))
        # A result of a route has no OWN, and may have any topic that a caller has chosen: this one too.
        if packet.topic == READY_TOPIC and OWN in user:
            self._note_ready(connection, {(route, event) for route, event in json.decode(packet.payload)})
            connection.write(acknowledgement)
            return
        qos = user.get(QOS)
        if ENDS in user:  # this publication is the result of these messages: they are not sent again
            for mark in user[ENDS].split(","):
                client_id, ended_id, identifier = mark.rsplit(" ", 2)
                session = self._sessions.get(client_id)
                if session is not None:
                    session.end_for_event(int(ended_id), int(identifier))
        publication = Publication(packet.topic, packet.payload, packet.retain, qos=None if qos is None else int(qos))

        def published() -> None:
            connection.write(acknowledgement)
            connection.resume()

        self._publisher.put(publication, int(user.get(HOPS, "0")), own=OWN in user, done=published)

    def _note_ready(self, connection: BridgeConnection, events: set[EventName]) -> None:
        """Note that the bridge has subscribed for all its events. Those of an earlier bridge end."""
        for subscription in list(self._by_key.values()):
            if subscription.name is not None and subscription.name not in events:
                self._unsubscribe(subscription.session, subscription.key)
        self._ready_session = connection.session
        self.ready.set()
        if self._lossless is not None:
            self._lossless.report_rows_left()

    def connection_ended(self, connection: BridgeConnection) -> None:
        """Detach the session of a connection that has ended; delete the session unless it is kept."""
        self._connections.discard(connection)
        session = connection.session
        if session is None or session.connection is not connection:
            return
        session.disconnected()
        if session is self._ready_session:
            self._ready_session = None
            self.ready.clear()
            if not connection.is_leaving:
                self.on_away()
        if not session.is_kept or not session.subscriptions:
            for key in list(session.subscriptions):
                self._unsubscribe(session, key)
            del self._sessions[session.client_id]


def _subscription_key(session: BridgeSession, packet: private.Subscribe | private.Unsubscribe) -> tuple[str, ...]:
    """Return `EventSubscription.key` of the subscription that a packet is about."""
    route = packet.user.get(ROUTE)
    return (session.client_id, packet.topic_filter) if route is None else ("event", route, packet.user[EVENT])

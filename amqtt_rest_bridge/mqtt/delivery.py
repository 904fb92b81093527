"""A message between its session and the engine: acknowledged as soon as all its calls have ended.

The order of acknowledgements is that of the ends, not that of the messages, which MQTT 5 section 4.6 asks for. But then
one call that is retried for an hour would hold back all later PUBACKs, and the broker would stop sending. Brokers find
a message by its packet id, in any order.
"""

import uuid
from collections.abc import Iterator
from typing import Final, Protocol

from amqtt_rest_bridge.lot.model import EventName, MessageProperties
from amqtt_rest_bridge.mqtt.connection import MqttConnection
from amqtt_rest_bridge.mqtt.packets import Publish
from amqtt_rest_bridge.mqtt.private import KEY, TIME
from amqtt_rest_bridge.mqtt.publisher import HOPS
from amqtt_rest_bridge.mqtt.reconnecting import ReconnectingClient
from amqtt_rest_bridge.mqtt.wire import MOST_USER_BYTES, Properties, Property

MOST_PROPERTIES: Final = 32
"""User properties of a message that are carried ..."""
MOST_BYTES: Final = MOST_USER_BYTES
"""... and their size, names and values together."""
_LONGEST_CORRELATION: Final = 64
_LONGEST_KEY: Final = 255
_KEYS: Final = uuid.UUID("6f2f9f0a-5d0b-5b0e-9a3c-7d2f1d2b8c11")  # the namespace of keys made here


class HoldsMessages(Protocol):
    """A session, as its messages know it."""

    client: ReconnectingClient

    def end(self, delivery: "MqttDelivery") -> None:
        """Take back a message whose calls have ended."""

    def mark(self, delivery: "MqttDelivery", event: EventName) -> str:
        """Return what is said to the broker where a publication ends a message for an event."""


class MqttDelivery:
    """A message as its session holds it: acknowledged by the last `release`, on the connection that it came on last."""

    __slots__ = (
        *("_holds", "_session", "at_once", "came_again", "connection", "has_ended", "has_key", "is_abandoned"),
        *("is_bounded", "is_dropped", "is_shared", "received", "size"),
    )

    def __init__(
        self, session: HoldsMessages, connection: MqttConnection, received: Publish, *, is_bounded: bool = True,
        has_key: bool = False,
    ) -> None:  # fmt: skip
        self._session = session
        self._holds = 0
        self.is_bounded = is_bounded
        """See `engine.needs.Delivery`."""
        self.has_key = has_key
        """See there."""
        self.connection = connection
        self.received = received
        self.size = received.size  # properties take memory, too
        self.at_once = False
        """Whether it is acknowledged on arrival."""
        self.is_shared = False
        """Whether calls of several events came of it."""
        self.has_ended = False
        self.came_again = False
        """Whether the broker has sent it again since it was dropped."""
        self.is_dropped = False
        """Whether calls of it must not begin any more."""
        self.is_abandoned = False
        """Whether a call of it was dropped, so that it must not be acknowledged."""

    def move(self, connection: MqttConnection, received: Publish) -> bool:
        """Go over to the connection on which the message came again; return False when it is another message."""
        before = self.received
        if (before.topic, before.payload) != (received.topic, received.payload):
            return False
        self.connection, self.received, self.came_again = connection, received, self.is_dropped
        return True

    def note_calls(self) -> None:
        """Note whether several calls came of the message: each holds it, and its session holds it once."""
        self.is_shared = self.is_shared or self._holds > 2

    def hold(self) -> None:
        """Note that one more call or publication depends on it."""
        self._holds += 1

    def release(self) -> None:
        """Note that a call or publication has ended; the last one acknowledges the message."""
        self._holds -= 1
        if not self._holds:
            self.has_ended = True
            self._session.end(self)

    def abandon(self) -> None:
        """Note that a call was given up before it began: the message is not acknowledged, and comes again."""
        self.is_abandoned = True
        self.release()

    def key(self, event: EventName) -> str:
        """Return the Idempotency-Key of the message for an event."""
        return idempotency_key(self._session.client.client_id, self.received, event)

    def mark(self, event: EventName) -> str:
        """Return what tells the broker that a publication ends the message for an event."""
        return self._session.mark(self, event)


class Unacknowledged:
    """The messages of a session that have come and were not acknowledged, by packet id."""

    def __init__(self) -> None:
        self._by_id: dict[int, MqttDelivery] = {}

    def __iter__(self) -> Iterator[MqttDelivery]:
        """Iterate over the messages."""
        return iter(self._by_id.values())

    def add(self, delivery: MqttDelivery) -> None:
        """Add a message that has come."""
        if delivery.received.packet_id is not None:
            self._by_id[delivery.received.packet_id] = delivery

    def remove(self, delivery: MqttDelivery) -> None:
        """Remove a message that is never acknowledged: it comes again as another one."""
        packet_id = delivery.received.packet_id
        if packet_id is not None and self._by_id.get(packet_id) is delivery:
            del self._by_id[packet_id]

    def goes_on(self, connection: MqttConnection, received: Publish) -> bool:
        """Return whether a message came on an earlier connection, and its calls go on or have ended."""
        if not received.duplicate or received.packet_id is None:
            return False
        known = self._by_id.get(received.packet_id)
        if known is None or known.is_abandoned or not known.move(connection, received):
            return False
        if known.has_ended:
            self.acknowledge(known)
        return True

    def acknowledge(self, delivery: MqttDelivery) -> None:
        """Send PUBACK; without a connection, once the broker has sent the message again on the next one."""
        if delivery.received.packet_id is not None and delivery.connection.is_open:
            self.remove(delivery)
            delivery.connection.acknowledge(delivery.received.packet_id)

    def forget(self) -> None:
        """Forget all: the broker has forgotten the session."""
        self._by_id = {}


# What is carried of a message's properties.


def carried(properties: Properties) -> MessageProperties | None:
    """Return what is carried of the properties of a message, None where that is nothing.

    Of more than 32 user properties, or 8 KiB of them, the first ones are carried; others count as missing.
    """
    pairs, correlation = properties.get(Property.USER_PROPERTY), properties.get(Property.CORRELATION_DATA)
    if pairs is None and correlation is None:
        return None
    kept: list[tuple[str, str]] = []
    room = MOST_BYTES
    for name, value in pairs or ():
        room -= len(name.encode()) + len(value.encode())
        if room < 0 or len(kept) == MOST_PROPERTIES:
            break
        if name not in (HOPS, TIME):
            kept.append((name, value))
    if correlation is not None:  # one that is longer than any of ours is never equal to one
        return MessageProperties(tuple(kept), correlation[:_LONGEST_CORRELATION])
    return MessageProperties(tuple(kept)) if kept else None


def size_of(received: Publish) -> int:
    """Return how large a message is by `max_message_bytes`, in bytes: its payload, or what comes before that."""
    return max(len(received.payload), received.size - len(received.payload))


def time_of(text: str | None, now: float) -> float:
    """Return the Unix time in a user property; `now` without one, and for what is not a time of the past."""
    try:
        at = now if text is None else float(text)
    except ValueError:
        return now
    return at if 0 <= at < now else now


def hops_of(properties: Properties) -> int:
    """Return how many routes a message has passed through, 0 where the property is not a number."""
    for name, value in properties.get(Property.USER_PROPERTY, ()):
        if name == HOPS and value.isascii() and value.isdigit():
            return min(int(value[:4]), 1000)
    return 0


def idempotency_key(client_id: str, message: Publish, event: EventName) -> str:
    """Return the Idempotency-Key of a message for an event: the publisher's, or one made of the message.

    The key is the same whenever the broker sends the message again. With QoS 0, which is sent once, it is new.
    """
    pairs = message.properties.get(Property.USER_PROPERTY, ())
    given = next((value for name, value in pairs if name.lower() == KEY), None)
    if given is None and (correlation := message.properties.get(Property.CORRELATION_DATA)):
        given = correlation.decode("latin-1")
    if given is not None:
        fits = len(given) <= _LONGEST_KEY and given.isascii() and given.isprintable()
        return given if fits and given == given.strip() != "" else str(uuid.uuid5(_KEYS, given))
    if message.packet_id is None:
        return str(uuid.uuid4())
    name = "\0".join([client_id, str(message.packet_id), *event, message.topic, ""])
    return str(uuid.uuid5(_KEYS, (name.encode() + message.payload).decode("latin-1")))

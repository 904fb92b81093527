"""What the bridge reads and writes of a message's MQTT 5 properties. Pure.

User properties of publishers are carried through, Correlation Data and Response Topic belong to requests and their
replies, `rest-bridge-hops` counts routes, `idempotency-key` names a message that its publisher may send again.
"""

import uuid
from typing import Any, Final

from amqtt_rest_bridge.model import EventName, MessageProperties
from amqtt_rest_bridge.mqtt.packets import Publish
from amqtt_rest_bridge.mqtt.wire import Properties, Property

HOPS: Final = "rest-bridge-hops"
"""The user property that counts the routes which a message has passed through."""
MOST_PROPERTIES: Final = 32
"""User properties of a message that are carried ..."""
MOST_BYTES: Final = 8192
"""... and their size, names and values together."""
_LONGEST_CORRELATION: Final = 64
_KEY: Final = "idempotency-key"
_LONGEST_KEY: Final = 255
_KEYS: Final = uuid.UUID("6f2f9f0a-5d0b-5b0e-9a3c-7d2f1d2b8c11")  # the namespace of keys made here


def carried(properties: Properties) -> MessageProperties | None:
    """Return what is carried of the properties of a message, None where that is nothing.

    Decision: of more than 32 user properties, or 8 KiB of them, the first ones are carried; others count as missing.
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
        if name != HOPS:
            kept.append((name, value))
    if correlation is not None:  # one that is longer than any of ours is never equal to one
        return MessageProperties(tuple(kept), correlation[:_LONGEST_CORRELATION])
    return MessageProperties(tuple(kept)) if kept else None


def hops_of(properties: Properties) -> int:
    """Return how many routes a message has passed through, 0 where the property is not a number."""
    for name, value in properties.get(Property.USER_PROPERTY, ()):
        if name == HOPS and value.isascii() and value.isdigit():
            return min(int(value[:4]), 1000)
    return 0


def written(properties: MessageProperties | None, hops: int, expires: int) -> Properties:
    """Return the properties of a publication as they are written.

    `hops` are the routes that its message has passed through, `expires` seconds until the broker drops it, 0 for never.
    """
    found: dict[Property, Any] = {Property.USER_PROPERTY: ((HOPS, str(hops)),)}
    if properties is not None:
        found[Property.USER_PROPERTY] += properties.user
        if properties.response_topic is not None:
            found[Property.RESPONSE_TOPIC] = properties.response_topic
        if properties.correlation is not None:
            found[Property.CORRELATION_DATA] = properties.correlation
    if expires:
        found[Property.MESSAGE_EXPIRY_INTERVAL] = expires
    return found


def idempotency_key(client_id: str, message: Publish, event: EventName) -> str:
    """Return the Idempotency-Key of a message for an event: the publisher's, or one made of the message.

    It is the same whenever the broker sends the message again; without QoS, when it does not, it is a new one.
    """
    pairs = message.properties.get(Property.USER_PROPERTY, ())
    given = next((value for name, value in pairs if name.lower() == _KEY), None)
    if given is None and (correlation := message.properties.get(Property.CORRELATION_DATA)):
        given = correlation.decode("latin-1")
    if given is not None:
        fits = len(given) <= _LONGEST_KEY and given.isascii() and given.isprintable()
        return given if fits and given == given.strip() != "" else str(uuid.uuid5(_KEYS, given))
    if message.packet_id is None:
        return str(uuid.uuid4())
    name = "\0".join([client_id, str(message.packet_id), *event, message.topic, ""])
    return str(uuid.uuid5(_KEYS, (name.encode() + message.payload).decode("latin-1")))

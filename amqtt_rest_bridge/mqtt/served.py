"""The control packets of MQTT 5 as a server reads and writes them, for the endpoint of the bridge. No I/O, no state.

It is the other side of `packets`, and its only client is our own: what that client does not send is not read here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from amqtt_rest_bridge.mqtt.packets import MQTT_5, Decoder, Reader, read_acknowledged, read_disconnect, read_packet_id
from amqtt_rest_bridge.mqtt.wire import (
    CONNACK,
    CONNECT,
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    PUBACK,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    Properties,
    Property,
    byte,
    of_variable,
    protocol_error,
    read_properties,
    text,
    two_bytes,
    write_properties,
)

_NO_RETAINED: Final = 2  # Retain Handling, section 3.8.3.1


@dataclass(slots=True)
class Connect:
    """Section 3.1. `is_kept`: the session outlives its connection. A will is not read: none is sent here."""

    client_id: str
    is_kept: bool
    receive_maximum: int
    password: str | None


@dataclass(slots=True)
class Subscribe:
    """Section 3.8, of one topic filter; `retained`: what is retained is wanted, too."""

    packet_id: int
    topic_filter: str
    retained: bool
    identifier: int | None
    user: Mapping[str, str]


@dataclass(slots=True)
class Unsubscribe:
    """Section 3.10, of one topic filter."""

    packet_id: int
    topic_filter: str
    user: Mapping[str, str]


@dataclass(slots=True)
class Pingreq:
    """Section 3.12."""


def decoder() -> Decoder:
    """Return what reads the packets of a client."""
    return Decoder(MQTT_5, READERS)


def _read_connect(_kind: int, body: bytes, _is_5: bool) -> tuple[Connect, int]:
    name, at = text(body, 0, len(body))
    level, at = byte(body, at, len(body))
    flags, at = byte(body, at, len(body))
    if (name, level) != ("MQTT", MQTT_5):
        raise protocol_error(f"CONNECT of {name} {level}")
    _, at = two_bytes(body, at, len(body))  # keep alive: the bridge is watched without it
    properties, at = read_properties(body, at, len(body), CONNECT)
    client_id, at = text(body, at, len(body))
    password = None
    if flags & 0x80:
        _, at = text(body, at, len(body))
    if flags & 0x40:
        password, at = text(body, at, len(body))
    expiry, receive_maximum = (
        properties.get(Property.SESSION_EXPIRY_INTERVAL, 0),
        properties.get(Property.RECEIVE_MAXIMUM),
    )
    return Connect(client_id, bool(expiry), receive_maximum or 65_535, password), at


def _read_subscribe(kind: int, body: bytes, _is_5: bool) -> tuple[Subscribe, int]:
    packet_id, at = read_packet_id(body, 0, len(body))
    properties, at = read_properties(body, at, len(body), kind)
    topic_filter, at = text(body, at, len(body))
    options, at = byte(body, at, len(body))
    identifier = properties.get(Property.SUBSCRIPTION_IDENTIFIER, (None,))[0]
    return Subscribe(packet_id, topic_filter, options >> 4 != _NO_RETAINED, identifier, _user(properties)), at


def _read_unsubscribe(kind: int, body: bytes, _is_5: bool) -> tuple[Unsubscribe, int]:
    packet_id, at = read_packet_id(body, 0, len(body))
    properties, at = read_properties(body, at, len(body), kind)
    topic_filter, at = text(body, at, len(body))
    return Unsubscribe(packet_id, topic_filter, _user(properties)), at


def _read_pingreq(_kind: int, _body: bytes, _is_5: bool) -> tuple[Pingreq, int]:
    return Pingreq(), 0


READERS: Final[Mapping[int, Reader]] = {
    CONNECT: _read_connect,
    PUBACK: read_acknowledged,
    SUBSCRIBE: _read_subscribe,
    UNSUBSCRIBE: _read_unsubscribe,
    PINGREQ: _read_pingreq,
    DISCONNECT: read_disconnect,
}


def _user(properties: Properties) -> dict[str, str]:
    return dict(properties.get(Property.USER_PROPERTY, ()))


def connack(*, session_present: bool, receive_maximum: int) -> bytes:
    """Write CONNACK of a connection, section 3.2."""
    body = bytes([session_present, 0]) + write_properties({Property.RECEIVE_MAXIMUM: receive_maximum})
    return bytes([CONNACK << 4]) + of_variable(len(body)) + body


def refusal(code: int) -> bytes:
    """Write CONNACK that refuses the client."""
    return bytes([CONNACK << 4, 3, 0, code, 0])


def suback(packet_id: int) -> bytes:
    """Write SUBACK that grants QoS 1."""
    return bytes([SUBACK << 4, 4]) + packet_id.to_bytes(2, "big") + b"\0\1"


def unsuback(packet_id: int) -> bytes:
    """Write UNSUBACK."""
    return bytes([UNSUBACK << 4, 4]) + packet_id.to_bytes(2, "big") + b"\0\0"


def pingresp() -> bytes:
    """Write PINGRESP, section 3.13."""
    return bytes([PINGRESP << 4, 0])

"""The private protocol of the bridge and the endpoint of its broker: MQTT 5, and what is beyond the standard.

The first part has the names of user properties and topics that MQTT 5 does not have. `broker.endpoint` is the broker's
side; `group.plugin_member`, `mqtt.event_intake` and `mqtt.publisher` are the bridge's. No other client sees any of it.

The second part reads and writes control packets as a server, the other side of `packets`. The only client is our own,
so only what it sends is read. No I/O, no state.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from msgspec import Struct

from amqtt_rest_bridge.mqtt.packets import (
    Decoder,
    Reader,
    byte,
    of_variable,
    protocol_error,
    read_acknowledged,
    read_disconnect,
    read_packet_id,
    read_properties,
    text,
    two_bytes,
    write_properties,
)
from amqtt_rest_bridge.mqtt.standard import (
    CONNACK,
    CONNECT,
    DISCONNECT,
    MQTT_5,
    PINGREQ,
    PINGRESP,
    PUBACK,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    Properties,
    Property,
)
from amqtt_rest_bridge.mqtt.values import Address

# User properties.

ROUTE: Final = "rest-bridge-route"
EVENT: Final = "rest-bridge-event"
"""In SUBSCRIBE and UNSUBSCRIBE: the client event that the filter is for.

Such a subscription is known by its event, not by its filter. A later one of the same event takes its place at once, in
whichever session: so no event gets a message twice.
"""
LOSSLESS: Final = "rest-bridge-lossless"
"""In SUBSCRIBE: messages are on disk before their PUBACK.

Four numbers: the most messages and bytes of the route, BATCH_SIZE (0: no batches) and BATCH_SECONDS of the event.
"""
TIME: Final = "rest-bridge-time"
"""In PUBLISH to the bridge: Unix time at which the broker got the message, where it did not go on at once.

Of a message that `rest-bridge replay` publishes: when the broker first received it. A worker reads it too.
"""
AGAIN: Final = "rest-bridge-again"
"""In PUBLISH to the bridge: Unix time at which a replayed message came; `TIME` is that of the original message."""
REFUSED: Final = "rest-bridge-refused"
"""In PUBLISH to the bridge: the message was not kept, its event fails without a call. JSON: code, sentence, hint."""
KEY: Final = "idempotency-key"
"""In PUBLISH to the bridge: the key of a lossless message. Publishers of other brokers give a key by the same name."""
OWN: Final = "rest-bridge-own"
"""In PUBLISH of the bridge: it is the bridge's own, the status of a route or the answer to a command."""
QOS: Final = "rest-bridge-qos"
"""In PUBLISH of the bridge: the QOS of its event. The packet itself always has QoS 1."""
ENDS: Final = "rest-bridge-ends"
"""In PUBLISH of the bridge: which messages it ends, for which events, so that these do not come again after a kill.

Items with a comma between them, each of client id, packet identifier and subscription identifier, with spaces.
"""

# MQTT 3.1.1 has no user properties: then each message is published by a client whose id has the time.

REPLAYING: Final = "rest-bridge-replay-"
_MOST_DIGITS: Final = 14  # of milliseconds since 1970: until the year 5138

_NO_RETAINED: Final = 2  # Retain Handling, section 3.8.3.1


def replaying_client_id(time: float) -> str:
    """Return the id of a client that publishes a message which a broker first received at a time, Unix seconds."""
    return f"{REPLAYING}{round(1000 * time)}-{uuid.uuid4().hex[:8]}"


def replayed_time(client_id: str | None) -> float | None:
    """Return when a broker first received what this client publishes; None for a client that replays nothing."""
    if client_id is None or not client_id.startswith(REPLAYING):
        return None
    milliseconds = client_id.removeprefix(REPLAYING).partition("-")[0]
    is_time = milliseconds.isascii() and milliseconds.isdigit() and len(milliseconds) <= _MOST_DIGITS
    return int(milliseconds) / 1000 if is_time else None


# Topics.

ENDPOINT_TOPICS: Final = "$rest-bridge/"
"""What the topics begin with that only the two of them see."""
READY_TOPIC: Final = f"{ENDPOINT_TOPICS}ready"
"""The bridge publishes here once all is subscribed: a JSON array with `[route, event]` of each client event."""
BROKER_TOPIC: Final = f"{ENDPOINT_TOPICS}broker"
"""The endpoint publishes what the bridge has to know of the broker process: `BrokerState` as JSON."""
UNMATCHED_TOPIC: Final = f"{ENDPOINT_TOPICS}unmatched"
"""The endpoint publishes the topic of each message that no client event is subscribed to."""


class BrokerState(Struct, frozen=True):
    """What the bridge has to know of the broker process.

    Args:
        dropped: Messages that were dropped while the bridge was away, since the broker's start.
        restarts: How often the bridge was started again.
        spool: Messages on disk, by lossless route; None for a bridge without a broker process, a worker.
        refusing: Why no message can be kept on disk, None while they can.
        errors: Route, code and sentence of each error since the state before.
        trouble: Why the last write to the disk has failed, None when it did not.
    """

    dropped: int = 0
    restarts: int = 0
    spool: dict[str, int] | None = None
    refusing: str | None = None
    errors: tuple[tuple[str, str, str], ...] = ()
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class PrivateAddress:
    """Where the endpoint listens: a Unix socket in a folder of its own, or a port of this host and a password."""

    socket: Path | None
    port: int = 0
    password: str | None = field(default=None, repr=False)

    @property
    def folder(self) -> Path | None:
        """Return the folder of the Unix socket."""
        return None if self.socket is None else self.socket.parent

    @property
    def address(self) -> Address:
        """Return the address for a client."""
        socket = None if self.socket is None else str(self.socket)
        shown = "the private endpoint of the broker"
        return Address("127.0.0.1", self.port, None, self.password, None, shown, socket=socket, is_private=True)


@dataclass(slots=True)
class ConnectPacket:
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


def _read_connect(_kind: int, body: bytes, _is_5: bool) -> tuple[ConnectPacket, int]:
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
    is_kept = bool(properties.get(Property.SESSION_EXPIRY_INTERVAL, 0))
    return ConnectPacket(client_id, is_kept, properties.get(Property.RECEIVE_MAXIMUM, 65_535), password), at


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

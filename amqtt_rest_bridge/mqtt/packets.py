"""MQTT control packets as a client writes and reads them. No I/O, no clock; the only state is a buffer of bytes.

It follows section 3 of MQTT 5.0 (OASIS, 7 March 2019), whose sections are cited, and MQTT 3.1.1 where it differs, which
is cited by name: there packets have no properties (None), in MQTT 5 they may have none ({}).

What a server sends is read strictly: whatever the standard calls malformed or a protocol error raises `PacketError`,
and nothing else is raised, whatever the bytes are. What is written is trusted but for its lengths.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from amqtt_rest_bridge.mqtt.wire import (
    CONNACK,
    CONNECT,
    DISCONNECT,
    FAILURE,
    LARGEST_LENGTH,
    NAMES,
    NO_PROPERTIES,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    Code,
    PacketError,
    Properties,
    Property,
    byte,
    malformed,
    of_binary,
    of_text,
    of_variable,
    protocol_error,
    read_properties,
    text,
    two_bytes,
    variable,
    write_properties,
)

MQTT_3_1_1: Final = 4
MQTT_5: Final = 5
"""Protocol levels, section 3.1.2.2."""
LARGEST_PACKET: Final = LARGEST_LENGTH + 5
"""Section 2.1.4, in bytes."""
_LARGEST_OTHER: Final = 524_288  # bytes of a packet but PUBLISH: CONNACK, the largest, may have six texts of 64 KiB
REFUSALS_3_1_1: Final[Mapping[int, str]] = {
    1: "unacceptable protocol version", 2: "client identifier rejected", 3: "server unavailable",
    4: "bad user name or password", 5: "not authorized",
}  # fmt: skip
"""What CONNACK of MQTT 3.1.1 says, section 3.2.2.3 there."""

_PUBLISHED: Final = frozenset(bytes.fromhex("00 10 80 83 87 90 91 97 99"))  # sections 3.4.2.1, 3.5.2.1
_RELEASED: Final = frozenset(bytes.fromhex("00 92"))  # sections 3.6.2.1, 3.7.2.1
_CODES: Final[Mapping[int, frozenset[int]]] = {  # that a server may send; those of CONNACK only end a connection
    PUBACK: _PUBLISHED, PUBREC: _PUBLISHED, PUBREL: _RELEASED, PUBCOMP: _RELEASED,
    SUBACK: frozenset(bytes.fromhex("00 01 02 80 83 87 8F 91 97 9E A1 A2")),  # section 3.9.3
    UNSUBACK: frozenset(bytes.fromhex("00 11 80 83 87 8F 91")),  # section 3.11.3
    DISCONNECT: frozenset(bytes.fromhex("00 80 81 82 83 87 89 8B 8D 8E 8F 90")) | frozenset(range(0x93, 0xA3)),
}  # fmt: skip  # section 3.14.2.1
_GRANTED_3_1_1: Final = frozenset(bytes.fromhex("00 01 02 80"))  # MQTT 3.1.1 section 3.9.3


# Section 3: control packets, as a server sends them.


@dataclass(slots=True)
class Connack:
    """Section 3.2. `code` is 0 for a connection; of MQTT 3.1.1, or of MQTT 5 from 0x80 on, for a refusal."""

    session_present: bool
    code: int
    properties: Properties


@dataclass(slots=True)
class Publish:
    """A message, section 3.3. `packet_id` is None with QoS 0. `duplicate`: it may have come before.

    `size` is that of topic, properties and payload in the packet it came in, in bytes.
    """

    topic: str
    payload: bytes
    qos: int
    retain: bool
    duplicate: bool
    packet_id: int | None
    properties: Properties
    size: int = field(default=0, compare=False)


@dataclass(slots=True)
class Acknowledged:
    """PUBACK, PUBREC, PUBREL or PUBCOMP, sections 3.4 to 3.7."""

    kind: int
    packet_id: int
    code: int
    properties: Properties


@dataclass(slots=True)
class Answered:
    """SUBACK or UNSUBACK, sections 3.9, 3.11: a reason code a topic filter, but for UNSUBACK of MQTT 3.1.1."""

    kind: int
    packet_id: int
    codes: bytes
    properties: Properties


@dataclass(slots=True)
class Pingresp:
    """Section 3.13."""


@dataclass(slots=True)
class Disconnect:
    """Section 3.14."""

    code: int
    properties: Properties


Packet = Connack | Publish | Acknowledged | Answered | Pingresp | Disconnect


Reader = Callable[[int, bytes, bool], tuple[Any, int]]
"""Read the body of a packet: its type, its bytes, whether it is MQTT 5; return the packet and the place behind it."""


class Decoder:
    """Bytes that a server sends, in pieces of any size, to packets.

    Args:
        level: `MQTT_5` or `MQTT_3_1_1`.
        readers: What reads each type of packet but PUBLISH. Without them those of a server.
        any_topic: Whether a topic may hold U+0000, which amqtt takes from its clients.
    """

    def __init__(self, level: int, readers: Mapping[int, Reader] | None = None, *, any_topic: bool = False) -> None:
        self._level = level
        self._any_topic = any_topic
        self._readers = _READERS if readers is None else readers
        self._data = b""
        self._at = 0
        self._left = bytearray()  # a packet that is not whole ...
        self._wanted = 0  # ... and how long it is, as far as is known

    @property
    def is_within(self) -> bool:
        """Return whether a packet has begun to come and is not whole."""
        return bool(self._left)

    def feed(self, data: bytes) -> None:
        """Take a piece."""
        if self._left:
            self._left += data
            if len(self._left) < self._wanted:
                return
            data = bytes(self._left)
            self._left.clear()
        elif self._at < len(self._data):
            data = self._data[self._at :] + data
        self._data, self._at = data, 0

    def next(self) -> Any:
        """Return the next packet, None until more bytes have come; raises `PacketError`."""
        if self._left:
            return None
        data, start = self._data, self._at
        size = len(data)
        if size - start < 2:
            self._keep(start, 2)
            return None
        length, body = data[start + 1], start + 2
        if length >= 0x80:
            if size - start < 5 and all(byte >= 0x80 for byte in data[start + 1 :]):
                self._keep(start, size - start + 1)
                return None
            length, body = variable(data, start + 1, size)
        end = body + length
        if end > size:
            self._check(data[start], length)
            self._keep(start, end - start)
            return None
        self._at = end
        first = data[start]
        if first & 0xF0 == 0x30:
            return self._publish(first, data, body, end)
        if first == 0x40 and length == 2 and (packet_id := data[body] << 8 | data[body + 1]):
            return Acknowledged(PUBACK, packet_id, 0, NO_PROPERTIES)  # as most of them are
        self._check(first, length)
        packet, at = self._readers[first >> 4](first >> 4, data[body:end], self._level == MQTT_5)
        if at != length:
            raise malformed(f"{NAMES[first >> 4]} has {length - at} bytes too many")
        return packet

    def _keep(self, start: int, wanted: int) -> None:
        self._left += self._data[start:]
        self._wanted = wanted
        self._data, self._at = b"", 0

    def _publish(self, first: int, data: bytes, body: int, end: int) -> Publish:
        qos, duplicate = first >> 1 & 3, bool(first & 8)
        if qos == 3 or (duplicate and not qos):
            raise malformed(f"PUBLISH has QoS {qos}{' and DUP' if duplicate else ''}")
        topic, at = text(data, body, end, any_text=self._any_topic)
        if "+" in topic or "#" in topic:
            raise malformed("the topic of PUBLISH has a wildcard")  # [MQTT-3.3.2-2]
        packet_id, properties = None, NO_PROPERTIES
        if qos:
            packet_id, at = read_packet_id(data, at, end)
        if self._level == MQTT_5:
            properties, at = read_properties(data, at, end, PUBLISH)
            if Property.TOPIC_ALIAS in properties:  # this client has not said that it takes any, section 3.3.2.3.4
                raise PacketError(Code.TOPIC_ALIAS_INVALID, "PUBLISH has a topic alias")
            reply = properties.get(Property.RESPONSE_TOPIC, "")
            if "+" in reply or "#" in reply:
                raise protocol_error("the response topic of PUBLISH has a wildcard")  # [MQTT-3.3.2-14]
        if not topic:
            raise protocol_error("PUBLISH has no topic")
        return Publish(topic, data[at:end], qos, bool(first & 1), duplicate, packet_id, properties, end - body)

    def _check(self, first: int, length: int) -> None:
        """Check type, flags and length, sections 2.1.2 to 2.1.4, also of a packet that has not come as a whole."""
        kind, flags = first >> 4, first & 0x0F
        if kind == PUBLISH:
            return
        if kind not in self._readers or (kind == DISCONNECT and self._level != MQTT_5):
            raise protocol_error(f"a packet of type {NAMES[kind]} does not come from this side")
        if flags != (2 if kind in (PUBREL, SUBSCRIBE, UNSUBSCRIBE) else 0):
            raise malformed(f"{NAMES[kind]} has the flags {flags}")
        if length > _LARGEST_OTHER:
            raise PacketError(Code.QUOTA_EXCEEDED, f"{NAMES[kind]} has {length} bytes")


def read_packet_id(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read a packet identifier."""
    packet_id, at = two_bytes(data, at, end)
    if not packet_id:  # [MQTT-2.2.1-3]
        raise protocol_error("a packet identifier is 0")
    return packet_id, at


def _reason(kind: int, body: bytes, at: int) -> tuple[int, Properties, int]:
    """Read a reason code and properties, both of which may be left out, sections 3.4.2 and 3.14.2."""
    if at == len(body):
        return 0, NO_PROPERTIES, at
    code, at = byte(body, at, len(body))
    if code not in _CODES[kind]:
        raise malformed(f"{NAMES[kind]} has no reason code 0x{code:02X}")
    if at == len(body):
        return code, NO_PROPERTIES, at
    return code, *read_properties(body, at, len(body), kind)


def _read_connack(_kind: int, body: bytes, is_5: bool) -> tuple[Connack, int]:
    if is_5 and body == b"\x00\x01":  # from a server of MQTT 3.1.1, which knows no other: section 3.2.2.3 there
        return Connack(False, Code.UNSUPPORTED_PROTOCOL_VERSION, NO_PROPERTIES), 2
    flags, at = byte(body, 0, len(body))
    code, at = byte(body, at, len(body))
    properties = NO_PROPERTIES
    if is_5:
        properties, at = read_properties(body, at, len(body), CONNACK)
    if flags > 1:
        raise malformed(f"CONNACK has the flags {flags}")
    if code and (flags or (is_5 and code < FAILURE)):
        raise protocol_error(f"CONNACK has the reason code {code}{' and a session' if flags else ''}")
    return Connack(bool(flags), code, properties), at


def read_acknowledged(kind: int, body: bytes, is_5: bool) -> tuple[Acknowledged, int]:
    """Read PUBACK, PUBREC, PUBREL or PUBCOMP."""
    packet_id, at = read_packet_id(body, 0, len(body))
    code, properties = 0, NO_PROPERTIES
    if is_5:
        code, properties, at = _reason(kind, body, at)
    return Acknowledged(kind, packet_id, code, properties), at


def _read_answered(kind: int, body: bytes, is_5: bool) -> tuple[Answered, int]:
    packet_id, at = read_packet_id(body, 0, len(body))
    properties = NO_PROPERTIES
    if is_5:
        properties, at = read_properties(body, at, len(body), kind)
    if not is_5 and kind == UNSUBACK:
        return Answered(kind, packet_id, b"", properties), at
    codes = body[at:]
    unknown = set(codes) - (_CODES[kind] if is_5 else _GRANTED_3_1_1)
    if unknown or not codes:
        raise malformed(f"{NAMES[kind]} has {'no reason code' if not codes else f'reason codes {sorted(unknown)}'}")
    return Answered(kind, packet_id, codes, properties), len(body)


def read_disconnect(kind: int, body: bytes, _is_5: bool) -> tuple[Disconnect, int]:
    """Read DISCONNECT."""
    code, properties, at = _reason(kind, body, 0)
    if Property.SESSION_EXPIRY_INTERVAL in properties:  # [MQTT-3.14.2-2]
        raise protocol_error("DISCONNECT of a server has a session expiry interval")
    return Disconnect(code, properties), at


_READERS: Final[Mapping[int, Reader]] = {
    CONNACK: _read_connack,
    PUBACK: read_acknowledged,
    PUBREC: read_acknowledged,
    PUBREL: read_acknowledged,
    PUBCOMP: read_acknowledged,
    SUBACK: _read_answered,
    UNSUBACK: _read_answered,
    PINGRESP: lambda _kind, _body, _is_5: (Pingresp(), 0),
    DISCONNECT: read_disconnect,
}


# Section 3: control packets, as a client sends them. `properties` is None for MQTT 3.1.1.


@dataclass(frozen=True, slots=True)
class Will:
    """What the broker publishes, retained and with QoS 1, when a connection ends without DISCONNECT."""

    topic: str
    payload: bytes


def _packet(first: int, *parts: bytes) -> bytes:
    return b"".join((bytes([first]), of_variable(sum(map(len, parts))), *parts))


def _maybe(properties: Properties | None) -> bytes:
    return b"" if properties is None else write_properties(properties)


def connect(
    client_id: str, *, keep_alive: int, clean: bool, username: str | None = None, password: str | None = None,
    will: Will | None = None, properties: Properties | None = None,
) -> bytes:  # fmt: skip
    """Write CONNECT, section 3.1; `keep_alive` is in seconds."""
    flags = clean << 1 | (username is not None) << 7 | (password is not None) << 6
    level = MQTT_3_1_1 if properties is None else MQTT_5
    payload = [of_text(client_id)]
    if will is not None:
        flags |= 0x04 | 1 << 3 | 0x20
        payload += [_maybe(None if properties is None else {}), of_text(will.topic), of_binary(will.payload)]
    payload += [of_text(text) for text in (username, password) if text is not None]
    head = of_text("MQTT") + bytes([level, flags]) + keep_alive.to_bytes(2, "big")
    return _packet(CONNECT << 4, head, _maybe(properties), *payload)


def publish(
    topic: str, payload: bytes, packet_id: int | None, *, qos: int = 1, retain: bool = False, duplicate: bool = False,
    properties: Properties | bytes | None = None,
) -> bytes:  # fmt: skip
    """Write PUBLISH, section 3.3; `packet_id` is None with QoS 0. Properties may have been written before."""
    number = b"" if packet_id is None else packet_id.to_bytes(2, "big")
    first = PUBLISH << 4 | duplicate << 3 | qos << 1 | retain
    written = properties if isinstance(properties, bytes) else _maybe(properties)
    return _packet(first, of_text(topic), number, written, payload)


def acknowledgement(kind: int, packet_id: int, code: int = 0) -> bytes:
    """Write PUBACK, PUBREC, PUBREL or PUBCOMP, sections 3.4 to 3.7; MQTT 3.1.1 has no `code`."""
    first = bytes([kind << 4 | (2 if kind == PUBREL else 0)])
    if not code:
        return first + b"\x02" + packet_id.to_bytes(2, "big")
    return first + b"\x03" + packet_id.to_bytes(2, "big") + bytes([code])


def subscribe(packet_id: int, topic_filter: str, options: int, properties: Properties | None = None) -> bytes:
    """Write SUBSCRIBE of one topic filter, section 3.8; `options` are those of section 3.8.3.1."""
    number = packet_id.to_bytes(2, "big")
    return _packet(SUBSCRIBE << 4 | 2, number, _maybe(properties), of_text(topic_filter), bytes([options]))


def unsubscribe(packet_id: int, topic_filters: Iterable[str], properties: Properties | None = None) -> bytes:
    """Write UNSUBSCRIBE, section 3.10."""
    filters = (of_text(topic_filter) for topic_filter in topic_filters)
    return _packet(UNSUBSCRIBE << 4 | 2, packet_id.to_bytes(2, "big"), _maybe(properties), *filters)


def pingreq() -> bytes:
    """Write PINGREQ, section 3.12."""
    return bytes([PINGREQ << 4, 0])


def disconnect(code: int = 0) -> bytes:
    """Write DISCONNECT, section 3.14; MQTT 3.1.1 has no `code`."""
    return bytes([DISCONNECT << 4, 1, code]) if code else bytes([DISCONNECT << 4, 0])

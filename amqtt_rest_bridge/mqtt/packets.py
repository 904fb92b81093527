"""MQTT control packets from bytes, and to bytes. No I/O, no clock; the only state is a buffer of bytes.

`connection` uses it as a client; `private` adds what a server reads and writes. It follows sections 1.5 to 3 of MQTT
5.0 (OASIS, 7 March 2019), which are cited by number. MQTT 3.1.1 is cited by name where it differs. Its packets have no
properties (None); those of MQTT 5 may have none ({}).

What the other side sends is read strictly. What the standard calls malformed or a protocol error (section 4.13) raises
`PacketError` with the reason code of section 2.4; no bytes raise anything else. What is written is trusted, except its
lengths.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct

from amqtt_rest_bridge.errors import BridgeError
from amqtt_rest_bridge.mqtt import standard
from amqtt_rest_bridge.mqtt.standard import MQTT_5, NO_PROPERTIES, Code, Properties, Property, PropertyKind

_LONGEST_TEXT: Final = 65_535
_LONGEST_USUAL: Final = 128  # bytes of properties whose values are cached
_MOST_READ: Final = 1000  # properties of a packet; 20 MB may hold four million, which would take seconds to read
_LARGEST_OTHER: Final = 524_288  # bytes of any packet except PUBLISH: CONNACK may have six texts of 64 KiB
_BY_NUMBER: Final = {int(one): one for one in Property}
_REPEATED: Final = (Property.USER_PROPERTY, Property.SUBSCRIPTION_IDENTIFIER)


class PacketError(BridgeError):
    """What came is malformed, or may not come now; `code` is the reason code of DISCONNECT."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(f"{message} ({standard.REASONS[code]})")
        self.code = code


def malformed(message: str) -> PacketError:
    """Return the error of a malformed packet."""
    return PacketError(Code.MALFORMED_PACKET, message)


def protocol_error(message: str) -> PacketError:
    """Return the error of a packet that is well formed, and not allowed where it came."""
    return PacketError(Code.PROTOCOL_ERROR, message)


# Section 1.5: data representation. Each function reads one value at a place and returns it with the place behind it.


def byte(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read a byte, section 1.5.1."""
    return _whole(data, at, end, 1)


def two_bytes(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read a Two Byte Integer, section 1.5.2."""
    return _whole(data, at, end, 2)


def four_bytes(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read a Four Byte Integer, section 1.5.3."""
    return _whole(data, at, end, 4)


def _whole(data: bytes, at: int, end: int, size: int) -> tuple[int, int]:
    if at + size > end:
        raise malformed("a packet ends within a number")
    return int.from_bytes(data[at : at + size], "big"), at + size


def variable(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read a Variable Byte Integer, section 1.5.5, which must be as short as can be."""
    value = shift = 0
    for place in range(at, min(end, at + 4)):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if not byte and shift:
                raise malformed("a length is written with more bytes than it needs")
            return value, place + 1
        shift += 7
    raise malformed("a length has more than four bytes" if end - at >= 4 else "a packet ends within a length")


def _binary(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    start = at + 2  # of the length's two bytes one may be beyond the end: then the value is too
    stop = start + int.from_bytes(data[at:start], "big")
    if stop > end:
        raise malformed("a packet ends within a text")
    return data[start:stop], stop


def text(data: bytes, at: int, end: int, *, any_text: bool = False) -> tuple[str, int]:
    """Read a UTF-8 Encoded String, section 1.5.4: well formed, without surrogates; U+0000 is for `any_text` only."""
    found, at = _binary(data, at, end)
    try:
        text = found.decode()
    except UnicodeDecodeError:
        raise malformed("a text is not UTF-8") from None
    if "\0" in text and not any_text:
        raise malformed("a text holds U+0000")
    return text, at


def _pair(data: bytes, at: int, end: int) -> tuple[tuple[str, str], int]:
    name, at = text(data, at, end)
    value, at = text(data, at, end)
    return (name, value), at


def of_variable(value: int) -> bytes:
    """Write a Variable Byte Integer; raises `ValueError` when it is too large."""
    if value < 0x80:
        return value.to_bytes(1, "big")
    if value > standard.LARGEST_LENGTH:
        raise ValueError(f"{value} is more than MQTT can write, {standard.LARGEST_LENGTH}")
    return bytes((value & 0x7F | 0x80,)) + of_variable(value >> 7)


def of_binary(value: bytes) -> bytes:
    """Write Binary Data, section 1.5.6; raises `ValueError` when it is too long."""
    if len(value) > _LONGEST_TEXT:
        raise ValueError(f"{len(value)} bytes are more than MQTT can write, {_LONGEST_TEXT}")
    return len(value).to_bytes(2, "big") + value


def of_text(value: str) -> bytes:
    """Write a UTF-8 Encoded String; raises `ValueError` when it is too long."""
    return of_binary(value.encode())


# Section 2.2.2: properties.

_READ: Final[Mapping[PropertyKind, Callable[[bytes, int, int], tuple[Any, int]]]] = {
    PropertyKind.BYTE: byte,
    PropertyKind.TWO_BYTES: two_bytes,
    PropertyKind.FOUR_BYTES: four_bytes,
    PropertyKind.VARIABLE: variable,
    PropertyKind.TEXT: text,
    PropertyKind.BINARY: _binary,
    PropertyKind.PAIR: _pair,
}
_WRITE: Final[Mapping[PropertyKind, Callable[[Any], bytes]]] = {
    PropertyKind.BYTE: lambda value: value.to_bytes(1, "big"),
    PropertyKind.TWO_BYTES: lambda value: value.to_bytes(2, "big"),
    PropertyKind.FOUR_BYTES: lambda value: value.to_bytes(4, "big"),
    PropertyKind.VARIABLE: of_variable,
    PropertyKind.TEXT: of_text,
    PropertyKind.BINARY: of_binary,
    PropertyKind.PAIR: lambda pair: of_text(pair[0]) + of_text(pair[1]),
}


def read_properties(data: bytes, at: int, end: int, packet: int) -> tuple[Properties, int]:
    """Read the properties of a packet, and return the place behind them.

    User properties beyond the first 8 KiB of them, and whatever is behind the first 1,000 properties, are skipped.
    """
    length, at = (data[at], at + 1) if at < end and data[at] < 0x80 else variable(data, at, end)
    stop = at + length
    if stop > end:
        raise malformed("a packet ends within its properties")
    if not length:
        return NO_PROPERTIES, at
    read = _read_usual if length <= _LONGEST_USUAL else _read_properties
    return read(data[at:stop], packet), stop


def _read_properties(data: bytes, packet: int) -> Properties:
    at, stop = 0, len(data)
    found: dict[Property, Any] = {}
    left, room = _MOST_READ, standard.MOST_USER_BYTES
    while left and at < stop:
        left -= 1
        name = _BY_NUMBER.get(data[at])
        if name is None or packet not in name.packets:
            raise malformed(f"{standard.NAMES[packet]} has no property 0x{data[at]:02X}")
        start = at + 1
        if name is Property.USER_PROPERTY:
            at = start
            for _ in range(2):
                at += 2 + int.from_bytes(data[at : at + 2], "big")
            if at > stop:
                raise malformed("a packet ends within a text")
            room -= at - start - 4  # without two lengths
            if room < 0:
                continue
        value, at = _READ[name.kind](data, start, stop)
        if type(value) is int and not name.least <= value <= name.most:
            raise protocol_error(f"the property {name.name} is {value}")
        if name in _REPEATED:
            found.setdefault(name, []).append(value)
        elif name in found:
            raise protocol_error(f"the property {name.name} is there twice")
        else:
            found[name] = value
    return found


_read_usual = lru_cache(maxsize=1024)(_read_properties)  # nearly all messages have the same as others


def write_properties(properties: Properties) -> bytes:
    """Return properties with their length."""
    written = bytearray()
    for name, value in properties.items():
        for one in value if name in _REPEATED else (value,):
            written.append(name)
            written += _WRITE[name.kind](one)
    return of_variable(len(written)) + written


# Section 3: control packets, as a server sends them.


class Connack(Struct):
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


class Acknowledged(Struct):
    """PUBACK, PUBREC, PUBREL or PUBCOMP, sections 3.4 to 3.7."""

    kind: int
    packet_id: int
    code: int
    properties: Properties


class Answered(Struct):
    """SUBACK or UNSUBACK, sections 3.9, 3.11: a reason code a topic filter, but for UNSUBACK of MQTT 3.1.1."""

    kind: int
    packet_id: int
    codes: bytes
    properties: Properties


class Pingresp(Struct):
    """Section 3.13."""


class Disconnect(Struct):
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
            return Acknowledged(standard.PUBACK, packet_id, 0, NO_PROPERTIES)  # as most of them are
        self._check(first, length)
        packet, at = self._readers[first >> 4](first >> 4, data[body:end], self._level == MQTT_5)
        if at != length:
            raise malformed(f"{standard.NAMES[first >> 4]} has {length - at} bytes too many")
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
            properties, at = read_properties(data, at, end, standard.PUBLISH)
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
        if kind == standard.PUBLISH:
            return
        if kind not in self._readers or (kind == standard.DISCONNECT and self._level != MQTT_5):
            raise protocol_error(f"a packet of type {standard.NAMES[kind]} does not come from this side")
        if flags != (2 if kind in (standard.PUBREL, standard.SUBSCRIBE, standard.UNSUBSCRIBE) else 0):
            raise malformed(f"{standard.NAMES[kind]} has the flags {flags}")
        if length > _LARGEST_OTHER:
            raise PacketError(Code.QUOTA_EXCEEDED, f"{standard.NAMES[kind]} has {length} bytes")


def read_packet_id(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read a packet identifier."""
    packet_id, at = _whole(data, at, end, 2)
    if not packet_id:  # [MQTT-2.2.1-3]
        raise protocol_error("a packet identifier is 0")
    return packet_id, at


def _reason(kind: int, body: bytes, at: int) -> tuple[int, Properties, int]:
    """Read a reason code and properties, both of which may be left out, sections 3.4.2 and 3.14.2."""
    if at == len(body):
        return 0, NO_PROPERTIES, at
    code, at = byte(body, at, len(body))
    if code not in standard.CODES[kind]:
        raise malformed(f"{standard.NAMES[kind]} has no reason code 0x{code:02X}")
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
        properties, at = read_properties(body, at, len(body), standard.CONNACK)
    if flags > 1:
        raise malformed(f"CONNACK has the flags {flags}")
    if code and (flags or (is_5 and code < standard.FAILURE)):
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
    if not is_5 and kind == standard.UNSUBACK:
        return Answered(kind, packet_id, b"", properties), at
    codes = body[at:]
    unknown = set(codes) - (standard.CODES[kind] if is_5 else standard.GRANTED_3_1_1)
    if unknown or not codes:
        raise malformed(
            f"{standard.NAMES[kind]} has {'no reason code' if not codes else f'reason codes {sorted(unknown)}'}"
        )
    return Answered(kind, packet_id, codes, properties), len(body)


def read_disconnect(kind: int, body: bytes, _is_5: bool) -> tuple[Disconnect, int]:
    """Read DISCONNECT."""
    code, properties, at = _reason(kind, body, 0)
    if Property.SESSION_EXPIRY_INTERVAL in properties:  # [MQTT-3.14.2-2]
        raise protocol_error("DISCONNECT of a server has a session expiry interval")
    return Disconnect(code, properties), at


_READERS: Final[Mapping[int, Reader]] = {
    standard.CONNACK: _read_connack,
    standard.PUBACK: read_acknowledged,
    standard.PUBREC: read_acknowledged,
    standard.PUBREL: read_acknowledged,
    standard.PUBCOMP: read_acknowledged,
    standard.SUBACK: _read_answered,
    standard.UNSUBACK: _read_answered,
    standard.PINGRESP: lambda _kind, _body, _is_5: (Pingresp(), 0),
    standard.DISCONNECT: read_disconnect,
}


# Section 3: control packets, as a client sends them. `properties` is None for MQTT 3.1.1.


@dataclass(frozen=True, slots=True)
class Will:
    """What the broker publishes, retained and with QoS 1, when a connection ends without DISCONNECT."""

    topic: str
    payload: bytes


def _packet(first: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return bytes((first,)) + of_variable(len(body)) + body


def _maybe(properties: Properties | None) -> bytes:
    return b"" if properties is None else write_properties(properties)


def connect(
    client_id: str, *, keep_alive: int, clean: bool, username: str | None = None, password: str | None = None,
    will: Will | None = None, properties: Properties | None = None,
) -> bytes:  # fmt: skip
    """Write CONNECT, section 3.1; `keep_alive` is in seconds."""
    flags = clean << 1 | (username is not None) << 7 | (password is not None) << 6
    level = standard.MQTT_3_1_1 if properties is None else MQTT_5
    payload = [of_text(client_id)]
    if will is not None:
        flags |= 0x04 | 1 << 3 | 0x20
        payload += [_maybe(None if properties is None else {}), of_text(will.topic), of_binary(will.payload)]
    payload += [of_text(text) for text in (username, password) if text is not None]
    head = of_text("MQTT") + bytes([level, flags]) + keep_alive.to_bytes(2, "big")
    return _packet(standard.CONNECT << 4, head, _maybe(properties), *payload)


def publish(
    topic: str, payload: bytes, packet_id: int | None, *, qos: int = 1, retain: bool = False, duplicate: bool = False,
    properties: Properties | bytes | None = None,
) -> bytes:  # fmt: skip
    """Write PUBLISH, section 3.3; `packet_id` is None with QoS 0. Properties may have been written before."""
    number = b"" if packet_id is None else packet_id.to_bytes(2, "big")
    first = standard.PUBLISH << 4 | duplicate << 3 | qos << 1 | retain
    written = properties if isinstance(properties, bytes) else _maybe(properties)
    head = of_text(topic) + number + written
    return b"".join((bytes((first,)), of_variable(len(head) + len(payload)), head, payload))


def acknowledgement(kind: int, packet_id: int) -> bytes:
    """Write PUBACK, PUBREC, PUBREL or PUBCOMP of success, sections 3.4 to 3.7."""
    return bytes([kind << 4 | (2 if kind == standard.PUBREL else 0), 2]) + packet_id.to_bytes(2, "big")


def subscribe(packet_id: int, topic_filter: str, options: int, properties: Properties | None = None) -> bytes:
    """Write SUBSCRIBE of one topic filter, section 3.8; `options` are those of section 3.8.3.1."""
    number = packet_id.to_bytes(2, "big")
    return _packet(standard.SUBSCRIBE << 4 | 2, number, _maybe(properties), of_text(topic_filter), bytes([options]))


def unsubscribe(packet_id: int, topic_filter: str, properties: Properties | None = None) -> bytes:
    """Write UNSUBSCRIBE of one topic filter, section 3.10."""
    number = packet_id.to_bytes(2, "big")
    return _packet(standard.UNSUBSCRIBE << 4 | 2, number, _maybe(properties), of_text(topic_filter))


def pingreq() -> bytes:
    """Write PINGREQ, section 3.12."""
    return bytes([standard.PINGREQ << 4, 0])


def disconnect(code: int = 0) -> bytes:
    """Write DISCONNECT, section 3.14; MQTT 3.1.1 has no `code`."""
    return bytes([standard.DISCONNECT << 4, 1, code]) if code else bytes([standard.DISCONNECT << 4, 0])

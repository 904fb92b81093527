"""What packets are made of: types of data, reason codes and properties. No I/O, no state.

Sections are those of MQTT 5.0 (OASIS, 7 March 2019). Whatever it calls malformed or a protocol error (section 4.13)
raises `PacketError` with the reason code of section 2.4; nothing else is raised by what reads, whatever the bytes are.
"""

from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple, Self

from amqtt_rest_bridge.errors import BridgeError

LARGEST_LENGTH: Final = 268_435_455
"""The largest Remaining Length, section 2.1.4: four bytes of seven bits."""
MOST_USER_BYTES: Final = 8192
"""User properties of a packet that are kept, names and values together."""
_LONGEST_TEXT: Final = 65_535
_LONGEST_USUAL: Final = 128  # bytes of properties that are remembered
_MOST_READ: Final = 1000  # properties of a packet: one of 20 MB may have four million, which take seconds to look at

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK = range(1, 12)
PINGREQ, PINGRESP, DISCONNECT, AUTH = range(12, 16)
"""Types of packets, section 2.1.2."""
WILL: Final = 16  # not a packet: CONNECT holds the properties of a will, section 3.1.3.2
NAMES: Final = (
    "0", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP", "SUBSCRIBE", "SUBACK", "UNSUBSCRIBE",
    "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH", "WILL",
)  # fmt: skip


class Code(IntEnum):
    """The reason codes that are used by name; `REASONS` has all of them."""

    SUCCESS = 0x00
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    QUOTA_EXCEEDED = 0x97


FAILURE: Final = 0x80
"""Reason codes from here on are failures, section 2.4."""
REFUSES_PACKET: Final = frozenset({0x81, 0x82, 0x87, 0x90, 0x95, 0x99, 0x9A, 0x9B})
"""Reason codes of a DISCONNECT that is about a packet which the broker was sent: the same packet ends the next one."""
REASONS: Final[Mapping[int, str]] = {
    0x00: "Success", 0x01: "Granted QoS 1", 0x02: "Granted QoS 2", 0x04: "Disconnect with Will Message",
    0x10: "No matching subscribers", 0x11: "No subscription existed", 0x18: "Continue authentication",
    0x19: "Re-authenticate", 0x80: "Unspecified error", 0x81: "Malformed packet", 0x82: "Protocol error",
    0x83: "Implementation specific error", 0x84: "Unsupported protocol version", 0x85: "Client identifier not valid",
    0x86: "Bad user name or password", 0x87: "Not authorized", 0x88: "Server unavailable", 0x89: "Server busy",
    0x8A: "Banned", 0x8B: "Server shutting down", 0x8C: "Bad authentication method", 0x8D: "Keep alive timeout",
    0x8E: "Session taken over", 0x8F: "Topic filter invalid", 0x90: "Topic name invalid",
    0x91: "Packet identifier in use", 0x92: "Packet identifier not found", 0x93: "Receive maximum exceeded",
    0x94: "Topic alias invalid", 0x95: "Packet too large", 0x96: "Message rate too high", 0x97: "Quota exceeded",
    0x98: "Administrative action", 0x99: "Payload format invalid", 0x9A: "Retain not supported",
    0x9B: "QoS not supported", 0x9C: "Use another server", 0x9D: "Server moved",
    0x9E: "Shared subscription not supported", 0x9F: "Connection rate exceeded", 0xA0: "Maximum connect time",
    0xA1: "Subscription identifiers not supported", 0xA2: "Wildcard subscription not supported",
}  # fmt: skip
"""Section 2.4."""


class PacketError(BridgeError):
    """What came is malformed, or may not come now; `code` is the reason code of DISCONNECT."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(f"{message} ({REASONS[code]})")
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


def _behind_pair(data: bytes, at: int, end: int) -> int:
    for _ in range(2):
        at += 2 + int.from_bytes(data[at : at + 2], "big")
    if at > end:
        raise malformed("a packet ends within a text")
    return at


def of_variable(value: int) -> bytes:
    """Write a Variable Byte Integer; raises `ValueError` when it is too large."""
    if value < 0x80:
        return value.to_bytes(1, "big")
    if value > LARGEST_LENGTH:
        raise ValueError(f"{value} is more than MQTT can write, {LARGEST_LENGTH}")
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def of_binary(value: bytes) -> bytes:
    """Write Binary Data, section 1.5.6; raises `ValueError` when it is too long."""
    if len(value) > _LONGEST_TEXT:
        raise ValueError(f"{len(value)} bytes are more than MQTT can write, {_LONGEST_TEXT}")
    return len(value).to_bytes(2, "big") + value


def of_text(value: str) -> bytes:
    """Write a UTF-8 Encoded String; raises `ValueError` when it is too long."""
    return of_binary(value.encode())


# Section 2.2.2: properties.


class _Kind(NamedTuple):
    """How a value is read and written."""

    read: Callable[[bytes, int, int], tuple[Any, int]]
    write: Callable[[Any], bytes]


_BYTE: Final = _Kind(byte, lambda value: value.to_bytes(1, "big"))
_TWO: Final = _Kind(two_bytes, lambda value: value.to_bytes(2, "big"))
_FOUR: Final = _Kind(four_bytes, lambda value: value.to_bytes(4, "big"))
_VARIABLE: Final = _Kind(variable, of_variable)
_TEXT: Final = _Kind(text, of_text)
_BINARY: Final = _Kind(_binary, of_binary)
_PAIR: Final = _Kind(_pair, lambda pair: of_text(pair[0]) + of_text(pair[1]))
_MESSAGE: Final = (PUBLISH, WILL)
_BOTH: Final = (CONNECT, CONNACK)
_ANSWERS: Final = (CONNACK, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, DISCONNECT, AUTH)


class Property(IntEnum):
    """The properties, section 2.2.2.2: number, type, packets that may have it, least and largest value."""

    kind: _Kind
    packets: frozenset[int]
    least: int
    most: int

    def __new__(  # noqa: D102
        cls, number: int, kind: _Kind, packets: tuple[int, ...], least: int = 0, most: int = 1 << 32
    ) -> Self:
        one = int.__new__(cls, number)
        one._value_ = number
        one.kind, one.packets, one.least, one.most = kind, frozenset(packets), least, most
        return one

    PAYLOAD_FORMAT_INDICATOR = 0x01, _BYTE, _MESSAGE, 0, 1
    MESSAGE_EXPIRY_INTERVAL = 0x02, _FOUR, _MESSAGE
    CONTENT_TYPE = 0x03, _TEXT, _MESSAGE
    RESPONSE_TOPIC = 0x08, _TEXT, _MESSAGE
    CORRELATION_DATA = 0x09, _BINARY, _MESSAGE
    SUBSCRIPTION_IDENTIFIER = 0x0B, _VARIABLE, (PUBLISH, SUBSCRIBE), 1
    SESSION_EXPIRY_INTERVAL = 0x11, _FOUR, (CONNECT, CONNACK, DISCONNECT)
    ASSIGNED_CLIENT_IDENTIFIER = 0x12, _TEXT, (CONNACK,)
    SERVER_KEEP_ALIVE = 0x13, _TWO, (CONNACK,)
    AUTHENTICATION_METHOD = 0x15, _TEXT, (CONNECT, CONNACK, AUTH)
    AUTHENTICATION_DATA = 0x16, _BINARY, (CONNECT, CONNACK, AUTH)
    REQUEST_PROBLEM_INFORMATION = 0x17, _BYTE, (CONNECT,), 0, 1
    WILL_DELAY_INTERVAL = 0x18, _FOUR, (WILL,)
    REQUEST_RESPONSE_INFORMATION = 0x19, _BYTE, (CONNECT,), 0, 1
    RESPONSE_INFORMATION = 0x1A, _TEXT, (CONNACK,)
    SERVER_REFERENCE = 0x1C, _TEXT, (CONNACK, DISCONNECT)
    REASON_STRING = 0x1F, _TEXT, _ANSWERS
    RECEIVE_MAXIMUM = 0x21, _TWO, _BOTH, 1
    TOPIC_ALIAS_MAXIMUM = 0x22, _TWO, _BOTH
    TOPIC_ALIAS = 0x23, _TWO, (PUBLISH,), 1
    MAXIMUM_QOS = 0x24, _BYTE, (CONNACK,), 0, 1
    RETAIN_AVAILABLE = 0x25, _BYTE, (CONNACK,), 0, 1
    USER_PROPERTY = 0x26, _PAIR, tuple(range(CONNECT, WILL + 1))
    MAXIMUM_PACKET_SIZE = 0x27, _FOUR, _BOTH, 1
    WILDCARD_SUBSCRIPTION_AVAILABLE = 0x28, _BYTE, (CONNACK,), 0, 1
    SUBSCRIPTION_IDENTIFIER_AVAILABLE = 0x29, _BYTE, (CONNACK,), 0, 1
    SHARED_SUBSCRIPTION_AVAILABLE = 0x2A, _BYTE, (CONNACK,), 0, 1


Properties = Mapping[Property, Any]
"""Values by property: int, str, bytes; lists of int for Subscription Identifier, of pairs of str for User Property."""
NO_PROPERTIES: Final[Properties] = {}
_BY_NUMBER: Final = {int(one): one for one in Property}
_REPEATED: Final = (Property.USER_PROPERTY, Property.SUBSCRIPTION_IDENTIFIER)


def read_properties(data: bytes, at: int, end: int, packet: int) -> tuple[Properties, int]:
    """Read the properties of a packet, and return the place behind them.

    User properties beyond the first 8 KiB of them, and whatever is behind the first 1,000 properties, are skipped.
    """
    length, at = variable(data, at, end)
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
    left, room = _MOST_READ, MOST_USER_BYTES
    while left and at < stop:
        left -= 1
        name = _BY_NUMBER.get(data[at])
        if name is None or packet not in name.packets:
            raise malformed(f"{NAMES[packet]} has no property 0x{data[at]:02X}")
        start = at + 1
        if name is Property.USER_PROPERTY:
            at = _behind_pair(data, start, stop)
            room -= at - start - 4  # without two lengths
            if room < 0:
                continue
        value, at = name.kind.read(data, start, stop)
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
            written += name.kind.write(one)
    return of_variable(len(written)) + written

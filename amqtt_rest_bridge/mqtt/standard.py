"""The numbers of MQTT 5.0 (OASIS, 7 March 2019): types of packets, reason codes and properties. Tables only.

Sections are those of that standard. Names that end in `3_1_1` are what MQTT 3.1.1 has in their place.
"""

from collections.abc import Mapping
from enum import Enum, IntEnum, auto
from typing import Any, Final, Self

MQTT_3_1_1: Final = 4
MQTT_5: Final = 5
"""Protocol levels, section 3.1.2.2."""
REFUSALS_3_1_1: Final[Mapping[int, str]] = {
    1: "unacceptable protocol version", 2: "client identifier rejected", 3: "server unavailable",
    4: "bad user name or password", 5: "not authorized",
}  # fmt: skip
"""What CONNACK of MQTT 3.1.1 says, section 3.2.2.3 there."""
LARGEST_LENGTH: Final = 268_435_455
"""The largest Remaining Length, section 2.1.4: four bytes of seven bits."""
LARGEST_PACKET: Final = LARGEST_LENGTH + 5
"""Section 2.1.4, in bytes."""
MOST_USER_BYTES: Final = 8192
"""User properties of a packet that are kept, names and values together."""

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
"""Reason codes of a DISCONNECT that refuses a packet of ours: the same packet would end the next connection, too."""
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

_PUBLISHED: Final = frozenset(bytes.fromhex("00 10 80 83 87 90 91 97 99"))  # sections 3.4.2.1, 3.5.2.1
_RELEASED: Final = frozenset(bytes.fromhex("00 92"))  # sections 3.6.2.1, 3.7.2.1
CODES: Final[Mapping[int, frozenset[int]]] = {  # that a server may send; those of CONNACK only end a connection
    PUBACK: _PUBLISHED, PUBREC: _PUBLISHED, PUBREL: _RELEASED, PUBCOMP: _RELEASED,
    SUBACK: frozenset(bytes.fromhex("00 01 02 80 83 87 8F 91 97 9E A1 A2")),  # section 3.9.3
    UNSUBACK: frozenset(bytes.fromhex("00 11 80 83 87 8F 91")),  # section 3.11.3
    DISCONNECT: frozenset(bytes.fromhex("00 80 81 82 83 87 89 8B 8D 8E 8F 90")) | frozenset(range(0x93, 0xA3)),
}  # fmt: skip  # section 3.14.2.1
GRANTED_3_1_1: Final = frozenset(bytes.fromhex("00 01 02 80"))  # MQTT 3.1.1 section 3.9.3


class PropertyKind(Enum):
    """How the value of a property is written, section 1.5."""

    BYTE = auto()
    TWO_BYTES = auto()
    FOUR_BYTES = auto()
    VARIABLE = auto()
    TEXT = auto()
    BINARY = auto()
    PAIR = auto()


_MESSAGE: Final = (PUBLISH, WILL)
_BOTH: Final = (CONNECT, CONNACK)
_ANSWERS: Final = (CONNACK, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, DISCONNECT, AUTH)


class Property(IntEnum):
    """The properties, section 2.2.2.2: number, type, packets that may have it, least and largest value."""

    kind: PropertyKind
    packets: frozenset[int]
    least: int
    most: int

    def __new__(  # noqa: D102
        cls, number: int, kind: PropertyKind, packets: tuple[int, ...], least: int = 0, most: int = 1 << 32
    ) -> Self:
        one = int.__new__(cls, number)
        one._value_ = number
        one.kind, one.packets, one.least, one.most = kind, frozenset(packets), least, most
        return one

    PAYLOAD_FORMAT_INDICATOR = 0x01, PropertyKind.BYTE, _MESSAGE, 0, 1
    MESSAGE_EXPIRY_INTERVAL = 0x02, PropertyKind.FOUR_BYTES, _MESSAGE
    CONTENT_TYPE = 0x03, PropertyKind.TEXT, _MESSAGE
    RESPONSE_TOPIC = 0x08, PropertyKind.TEXT, _MESSAGE
    CORRELATION_DATA = 0x09, PropertyKind.BINARY, _MESSAGE
    SUBSCRIPTION_IDENTIFIER = 0x0B, PropertyKind.VARIABLE, (PUBLISH, SUBSCRIBE), 1
    SESSION_EXPIRY_INTERVAL = 0x11, PropertyKind.FOUR_BYTES, (CONNECT, CONNACK, DISCONNECT)
    ASSIGNED_CLIENT_IDENTIFIER = 0x12, PropertyKind.TEXT, (CONNACK,)
    SERVER_KEEP_ALIVE = 0x13, PropertyKind.TWO_BYTES, (CONNACK,)
    AUTHENTICATION_METHOD = 0x15, PropertyKind.TEXT, (CONNECT, CONNACK, AUTH)
    AUTHENTICATION_DATA = 0x16, PropertyKind.BINARY, (CONNECT, CONNACK, AUTH)
    REQUEST_PROBLEM_INFORMATION = 0x17, PropertyKind.BYTE, (CONNECT,), 0, 1
    WILL_DELAY_INTERVAL = 0x18, PropertyKind.FOUR_BYTES, (WILL,)
    REQUEST_RESPONSE_INFORMATION = 0x19, PropertyKind.BYTE, (CONNECT,), 0, 1
    RESPONSE_INFORMATION = 0x1A, PropertyKind.TEXT, (CONNACK,)
    SERVER_REFERENCE = 0x1C, PropertyKind.TEXT, (CONNACK, DISCONNECT)
    REASON_STRING = 0x1F, PropertyKind.TEXT, _ANSWERS
    RECEIVE_MAXIMUM = 0x21, PropertyKind.TWO_BYTES, _BOTH, 1
    TOPIC_ALIAS_MAXIMUM = 0x22, PropertyKind.TWO_BYTES, _BOTH
    TOPIC_ALIAS = 0x23, PropertyKind.TWO_BYTES, (PUBLISH,), 1
    MAXIMUM_QOS = 0x24, PropertyKind.BYTE, (CONNACK,), 0, 1
    RETAIN_AVAILABLE = 0x25, PropertyKind.BYTE, (CONNACK,), 0, 1
    USER_PROPERTY = 0x26, PropertyKind.PAIR, tuple(range(CONNECT, WILL + 1))
    MAXIMUM_PACKET_SIZE = 0x27, PropertyKind.FOUR_BYTES, _BOTH, 1
    WILDCARD_SUBSCRIPTION_AVAILABLE = 0x28, PropertyKind.BYTE, (CONNACK,), 0, 1
    SUBSCRIPTION_IDENTIFIER_AVAILABLE = 0x29, PropertyKind.BYTE, (CONNACK,), 0, 1
    SHARED_SUBSCRIPTION_AVAILABLE = 0x2A, PropertyKind.BYTE, (CONNACK,), 0, 1


Properties = Mapping[Property, Any]
"""Values by property: int, str, bytes; lists of int for Subscription Identifier, of pairs of str for User Property."""
NO_PROPERTIES: Final[Properties] = {}

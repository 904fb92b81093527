"""What a connection to the broker is given, and what comes of it: immutable values and errors, no I/O."""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass

from amqtt_rest_bridge.errors import BridgeError


class BrokerError(BridgeError):
    """The broker cannot be reached, or refuses what is asked of it; the message says what and why."""


class UnusableBrokerError(BrokerError):
    """The broker lacks what a worker needs; waiting does not help."""


@dataclass(frozen=True, slots=True)
class Address:
    """A broker and who connects to it; `shown` has no password."""

    host: str
    port: int
    username: str | None
    password: str | None
    tls: ssl.SSLContext | None
    shown: str


@dataclass(frozen=True, slots=True)
class Will:
    """What the broker publishes, retained and with QoS 1, when a connection ends without DISCONNECT."""

    topic: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Session:
    """How the broker knows a client: `expiry` seconds it keeps the session, 0: only as long as the connection.

    `receive_maximum` messages of QoS 1 may be unacknowledged at once.
    """

    client_id: str
    expiry: int
    receive_maximum: int
    will: Will | None = None


@dataclass(frozen=True, slots=True)
class Subscription:
    """A topic filter (with `$share/...` where it is shared) at QoS 1; `retained` messages are sent at its start."""

    topic_filter: str
    identifier: int
    retained: bool = False


@dataclass(slots=True)
class Received:
    """A message; `packet_id` is None with QoS 0. `identifiers` are those of the subscriptions that it came for.

    `duplicate`: the broker has sent it on an earlier connection, and knows of no acknowledgement.
    """

    topic: str
    payload: bytes
    packet_id: int | None
    duplicate: bool
    retain: bool
    identifiers: tuple[int, ...]
    user_properties: Sequence[tuple[str, str]]
    correlation: bytes | None

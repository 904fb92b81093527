"""What a connection is given, and what comes of it: immutable values and errors, no I/O but reading certificates."""

import ssl
from dataclasses import dataclass, field
from typing import Final

from amqtt_rest_bridge.errors import BridgeError
from amqtt_rest_bridge.mqtt.packets import MQTT_5, Will

PORTS: Final = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
"""What a broker's URL may begin with, and the port that it means."""


@dataclass(frozen=True, slots=True)
class Address:
    """A broker and who connects to it; `shown` has no password. `path` is that of a WebSocket, None without one."""

    host: str
    port: int
    username: str | None
    password: str | None = field(repr=False)
    tls: ssl.SSLContext | None
    shown: str
    path: str | None = None


class BrokerError(BridgeError):
    """The broker cannot be reached, or refuses what is asked of it; the message says what and why.

    `code` is the reason code of a refusal: of MQTT 3.1.1 where the session speaks that.
    """

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class NoAnswerError(BrokerError):
    """What was reached does not answer CONNECT: no broker, or one of another version."""


@dataclass(frozen=True, slots=True)
class Session:
    """How the broker knows a client: `expiry` seconds it keeps the session, 0: only as long as the connection.

    `receive_maximum` messages of QoS 1 may be unacknowledged at once. `level` is the version of MQTT.
    """

    client_id: str
    expiry: int
    receive_maximum: int
    will: Will | None = None
    level: int = MQTT_5


@dataclass(frozen=True, slots=True)
class Subscription:
    """A topic filter (with `$share/...` where it is shared); `retained` messages are sent at its start.

    MQTT 3.1.1 has no `identifier`, and sends retained messages always.
    """

    topic_filter: str
    identifier: int | None = None
    retained: bool = False
    qos: int = 1


def load_tls(ca_file: str | None, cert_file: str | None, key_file: str | None) -> ssl.SSLContext:
    """Return what verifies a broker against the authorities of `ca_file`, the system's by default, and what proves us.

    Raises:
        OSError, ValueError: A file cannot be used; a key with a password neither.
    """
    context = ssl.create_default_context(cafile=ca_file)
    if cert_file is not None:
        context.load_cert_chain(cert_file, key_file, password=_no_password)
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted; store it without a password")

"""Values and errors of connections to a broker. No I/O, but `load_tls` reads certificates."""

import errno
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

from amqtt_rest_bridge.addresses import in_url
from amqtt_rest_bridge.errors import BridgeError, ConfigurationError, reason
from amqtt_rest_bridge.lot.model import Pairs
from amqtt_rest_bridge.mqtt.packets import Will
from amqtt_rest_bridge.mqtt.standard import MQTT_5
from amqtt_rest_bridge.system import refuse_passphrase

PORTS: Final = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
"""What a broker's URL may begin with, and the port that it means."""


@dataclass(frozen=True, slots=True)
class Address:
    """A broker and who connects to it; `shown` has no password. `path` is that of a WebSocket, None without one.

    `socket` is the path of a Unix socket, which is connected to instead of `host` and `port`. `is_private`: it is the
    endpoint of the plugin.
    """

    host: str
    port: int
    username: str | None
    password: str | None = field(repr=False)
    tls: ssl.SSLContext | None
    shown: str
    path: str | None = None
    socket: str | None = None
    is_private: bool = False

    @property
    def is_secure(self) -> bool:
        """Return whether the connection has to be TLS."""
        return self.shown.startswith(("mqtts:", "wss:"))


class Broker(Protocol):
    """The broker that the clients of a bridge connect to."""

    @property
    def address(self) -> Address:
        """Return where the broker is, with the present password; read before each connection."""


class BrokerError(BridgeError):
    """The broker cannot be reached, or refuses what is asked of it; the message says what and why.

    `code` is the reason code of a refusal: of MQTT 3.1.1 where the session speaks that.
    """

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class NoAnswerError(BrokerError):
    """What was reached does not answer CONNECT: no broker, or one of another version."""


def why_not_connected(error: OSError | ValueError) -> str:
    """Return why there is no connection; asyncio's texts hold the address too, or nothing at all."""
    match error:
        case ssl.SSLCertVerificationError():
            return f"its certificate is refused: {error.verify_message}"
        case ConnectionRefusedError():
            return f"{os.strerror(errno.ECONNREFUSED)}; is the broker running?"
        case ConnectionError():
            return "it closed the connection" if error.errno is None else os.strerror(error.errno)
    return getattr(error, "strerror", None) or reason(error)


@dataclass(frozen=True, slots=True)
class ClientSession:
    """How a client connects to the broker, which keeps its session for `expiry` seconds after the connection.

    At most `receive_maximum` messages of QoS 1 are unacknowledged at once. `level` is the version of MQTT.
    """

    client_id: str
    expiry: int
    receive_maximum: int
    will: Will | None = None
    level: int = MQTT_5


@dataclass(frozen=True, slots=True)
class Subscription:
    """A topic filter (`$share/...` if shared); with `retained` the broker sends its retained messages first.

    `user` are the user properties of its SUBSCRIBE and UNSUBSCRIBE. MQTT 3.1.1 has neither these nor an `identifier`,
    and always sends retained messages.
    """

    topic_filter: str
    identifier: int | None = None
    retained: bool = False
    qos: int = 1
    user: Pairs = ()


def parse_url(url: str) -> Address | None:
    """Return the address that a broker's URL names, `%XX` decoded and without TLS yet; None if it names none."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    path = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
    is_websocket = parts.scheme in ("ws", "wss")
    if parts.scheme not in PORTS or not host or port == 0 or not (is_websocket or path == "/"):
        return None
    port = port or PORTS[parts.scheme]
    username = unquote(parts.username) if parts.username else None
    password = None if parts.password is None else unquote(parts.password)
    shown = f"{parts.scheme}://{in_url(host)}:{port}"
    return Address(host, port, username, password, None, shown, path if is_websocket else None)


def load_tls(is_secure: bool, files: Mapping[str, str | None], secure_form: str) -> ssl.SSLContext | None:
    """Return the TLS context of a connection to a broker, None for a connection without TLS.

    Args:
        is_secure: Whether the connection is TLS.
        files: Authorities (None: the system's), certificate and key, PEM, in this order; each by its setting's name.
        secure_form: How a connection with TLS is written.

    Raises:
        ConfigurationError: Files without TLS, a certificate without a key, or a file that cannot be used, such as a
            key with a password.
    """
    given = [name for name, file in files.items() if file is not None]
    if not is_secure:
        if given:
            raise ConfigurationError(f"{given[0]} needs TLS: write {secure_form}")
        return None
    ca_file, cert_file, key_file = files.values()
    if (cert_file is None) != (key_file is None):
        raise ConfigurationError(f"{' and '.join([*files][1:])} belong together: give both, or none")
    try:
        context = ssl.create_default_context(cafile=ca_file)
        if cert_file is not None:
            context.load_cert_chain(cert_file, key_file, password=refuse_passphrase)
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or reason(error)
        names = ", ".join(f"{name} {files[name]}" for name in given)
        raise ConfigurationError(f"the TLS files cannot be used ({names}): {why}") from error
    return context

"""The messages of the control socket between a broker (`bridge_child`) and its bridge (`plugin_bridge`), beside MQTT.

The broker sends `Start`, `Connect`, `Reload` and `Stop`; the bridge sends `Loaded`, `Failed` and `Log`. A message is
pickled, behind its length. Pickles are safe here, since one process has started the other. The end of the socket is the
end of the other process.
"""

import asyncio
import pickle
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from amqtt_rest_bridge.errors import BridgeError, ConfigurationError, Fault, RouteFilesError
from amqtt_rest_bridge.settings import Settings

_LENGTH: Final = struct.Struct("!I")


@dataclass(frozen=True, slots=True)
class Start:
    """Load the routes, and bind their ports.

    Args:
        settings: Those of the plugin, checked.
        address: The `PrivateAddress` of the broker's endpoint.
        routes: The routes that the bridge before has used last, a pickled `LoadedRoutes`; None to read the route files.
        level: The least level of log records.
        ports: The ports that it has served, by SERVER_PORT: where 0 asks for a free one it is the same again.
    """

    settings: Settings
    address: Any
    routes: bytes | None
    level: int
    ports: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Connect:
    """Connect to the endpoint, which answers from now on."""


@dataclass(frozen=True, slots=True)
class Reload:
    """Read the route files again now."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Take no more messages, give running requests so many seconds, and end."""

    grace: float


@dataclass(frozen=True, slots=True)
class Loaded:
    """Routes are in use, or a reload has failed.

    Args:
        server_ports: The bound port for each SERVER_PORT.
        admin_port: The bound admin port.
        routes: The routes in use, a pickled `LoadedRoutes`; None after a reload that failed, which changes nothing.
    """

    server_ports: dict[int, int]
    admin_port: int | None
    routes: bytes | None


@dataclass(frozen=True, slots=True)
class Failed:
    """The bridge cannot run, and ends; `faults` are those of the route files, where these are the reason."""

    message: str
    faults: tuple[Fault, ...] = ()

    @classmethod
    def because_of(cls, error: Exception) -> "Failed":
        """Return the message for an error."""
        return cls(str(error), error.faults if isinstance(error, RouteFilesError) else ())

    def error(self) -> BridgeError:
        """Return the error again."""
        return RouteFilesError(self.faults) if self.faults else ConfigurationError(self.message)


@dataclass(frozen=True, slots=True)
class Log:
    """A log record of the bridge."""

    level: int
    logger: str
    text: str


def written(message: object) -> bytes:
    """Return a message as it is sent."""
    data = pickle.dumps(message)
    return _LENGTH.pack(len(data)) + data


async def read(reader: asyncio.StreamReader) -> Any:
    """Wait for the next message and return it, None at the end of the socket."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return pickle.loads(await reader.readexactly(length))  # noqa: S301  # our own process
    except (asyncio.IncompleteReadError, OSError):
        return None


def read_blocking(sock: socket.socket, deadline: float) -> Any:
    """Wait for the next message and return it, None at the end of the socket; blocks.

    Raises:
        TimeoutError: It has not come by `deadline`, monotonic seconds.
    """
    try:
        (length,) = _LENGTH.unpack(_exactly(sock, _LENGTH.size, deadline))
        return pickle.loads(_exactly(sock, length, deadline))  # noqa: S301  # our own process
    except (EOFError, ConnectionError):
        return None


def _exactly(sock: socket.socket, length: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < length:
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        if not (part := sock.recv(length - len(data))):
            raise EOFError
        data += part
    return bytes(data)

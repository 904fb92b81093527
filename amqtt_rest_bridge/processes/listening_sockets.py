"""The listening sockets of server mode: bound by the broker process, so that they outlive every bridge process."""

import errno
import socket
from collections.abc import Iterable
from typing import Final

from amqtt_rest_bridge.errors import ConfigurationError

_BACKLOG: Final = 1024  # connections that wait while a bridge process is started again


class ListeningSockets:
    """Listening sockets by configured port.

    Args:
        host: The address that they listen on.
        setting: What errors call the port.
        shared: Whether other processes may listen on the same ports (SO_REUSEPORT); the kernel distributes connections.
    """

    def __init__(self, host: str, setting: str = "SERVER_PORT", *, shared: bool = False) -> None:
        self._host = host
        self._setting = setting
        self._shared = shared
        self.sockets: dict[int, socket.socket] = {}
        # The bound port for each configured one; replaced as a whole, because other threads read it.
        self.bound: dict[int, int] = {}

    def open(self, ports: Iterable[int]) -> None:
        """Bind what is not bound yet; on an error nothing new stays bound.

        Raises:
            ConfigurationError: A port is taken or the host is none of this machine's.
        """
        opened: dict[int, socket.socket] = {}
        try:
            for port in sorted(set(ports) - set(self.sockets)):
                opened[port] = self._bind(port)
        except OSError as error:
            for sock in opened.values():
                sock.close()
            why = (error.strerror or str(error)).partition(" (while")[0]  # socket.create_server says the address again
            if self._setting == "admin_port" and error.errno == errno.EADDRINUSE:
                why += "; each broker or worker of a machine needs an admin_port of its own"
            raise ConfigurationError(f"cannot listen on {self._host} port {port} ({self._setting}): {why}") from error
        self.sockets |= opened
        self._note_bound()

    def close(self, keep: Iterable[int] = ()) -> None:
        """Close all sockets but those of the ports to keep."""
        for port in set(self.sockets) - set(keep):
            self.sockets.pop(port).close()
        self._note_bound()

    def _note_bound(self) -> None:
        self.bound = {port: sock.getsockname()[1] for port, sock in self.sockets.items()}

    def _bind(self, port: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        sock = socket.create_server((self._host, port), family=family, backlog=_BACKLOG, reuse_port=self._shared)
        sock.setblocking(False)
        return sock

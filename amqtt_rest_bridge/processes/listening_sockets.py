"""Listening sockets of server mode and the admin port: of this process, so that they outlive every bridge process."""

import socket
from collections.abc import Iterable
from typing import Final

from amqtt_rest_bridge.addresses import why_not_bound
from amqtt_rest_bridge.errors import ConfigurationError

_BACKLOG: Final = 1024  # connections that wait while a bridge process is started again


class ListeningSockets:
    """Listening sockets by configured port.

    Args:
        host: The address that they listen on.
        setting: What errors call the port.
        shared: Whether other processes may listen on the same ports (SO_REUSEPORT): the kernel distributes connections
            to those that listen, so these sockets do so only when a bridge process serves them.
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
            ConfigurationError: A port is taken, or the host is none, or none of this machine's.
        """
        opened: dict[int, socket.socket] = {}
        try:
            for port in sorted(set(ports) - set(self.sockets)):
                opened[port] = self._bind(port)
        except OSError as error:
            for sock in opened.values():
                sock.close()
            why = why_not_bound(error, port, self._setting)
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
        if not self._host.isprintable():  # of which `socket` raises another error
            raise OSError("a host has no such characters")
        if not self._shared:
            sock = socket.create_server((self._host, port), family=family, backlog=_BACKLOG)
        else:
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                if family == socket.AF_INET6:  # as `create_server` does
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.bind((self._host, port))
            except BaseException:
                sock.close()
                raise
        sock.setblocking(False)
        return sock

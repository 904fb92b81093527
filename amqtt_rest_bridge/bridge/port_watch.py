"""Whether the ports' loops turn: a ping of the broker is answered once each of them has taken a turn. Any thread.

Decision: a port whose thread hangs counts as a hanging bridge process, since that thread cannot be replaced alone. The
link has threads of its own, which would answer for it.
"""

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from amqtt_rest_bridge.link.frames import Pong, Stalled, StalledPort


class Turning(Protocol):
    """What serves a port."""

    @property
    def bound_port(self) -> int:
        """Return the port number that callers connect to."""

    def on_turn(self, action: Callable[[], None]) -> None:
        """Run `action` on the port's own thread, in its next turn; never blocks."""


class PortWatch:
    """Answers pings of the broker; `send` sends it a frame."""

    def __init__(self, send: Callable[[Pong | Stalled], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._awaited: dict[int, Turning] = {}

    def ping(self, servers: Mapping[int, Turning]) -> None:
        """Send `Pong` once every port has taken a turn, or `Stalled` with those that have not since the last ping."""
        with self._lock:
            late = {port: server for port, server in self._awaited.items() if servers.get(port) is server}
            asked = {port: server for port, server in servers.items() if port not in late}
            self._awaited = late | asked
        if late:
            self._send(Stalled([StalledPort(port, server.bound_port) for port, server in sorted(late.items())]))
        elif not asked:
            self._send(Pong())
        for port, server in asked.items():
            server.on_turn(partial(self._turned, port, server))

    def _turned(self, port: int, server: Turning) -> None:
        with self._lock:
            if self._awaited.get(port) is not server:
                return
            del self._awaited[port]
            if self._awaited:
                return
        self._send(Pong())

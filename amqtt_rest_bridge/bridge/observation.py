"""What a bridge process does for the admin port: record, answer for its records, and, in the first one, serve the port.

Frames are handled on the link's readers, the live records sent on the timers' thread. There is an observation only
where there is an admin port.
"""

import socket
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from amqtt_rest_bridge.bridge.timers import Timers
from amqtt_rest_bridge.link.admin_frames import (
    FindRecords,
    Follow,
    FoundRecords,
    FromAdmin,
    Insight,
    Observed,
    ToAdmin,
)
from amqtt_rest_bridge.model import BridgeSettings, Route
from amqtt_rest_bridge.records.recorder import Recorder

_LIVE_SECONDS: Final = 0.1

Send = Callable[[FromAdmin], None]
After = Callable[[float, Callable[[], None]], None]


class AdminPort(Protocol):
    """What serves the admin port. Any thread may call."""

    def use_routes(self, routes: Sequence[Route]) -> None:
        """Show these routes from now on."""

    def take(self, frame: Insight | Observed | FoundRecords) -> None:
        """Take an answer of the broker, or of another bridge process."""

    def stop(self, grace: float) -> None:
        """Refuse new requests, let running ones finish for `grace` seconds, and close; blocks."""


class OpenAdmin(Protocol):
    """Starts what serves the admin port."""

    def __call__(
        self, sock: socket.socket, settings: BridgeSettings, recorder: Recorder, after: After, send: Send
    ) -> AdminPort:
        """Return the running port."""


class Observation:
    """Record, and answer the broker.

    Args:
        sock: The listening socket of the admin port; None in every process but the first.
        settings: Of the plugin.
        timers: Run what is due.
        send: Sends a frame to the broker.
        open_admin: Starts the server of the port.
    """

    def __init__(
        self,
        sock: socket.socket | None,
        settings: BridgeSettings,
        timers: Timers,
        send: Send,
        open_admin: OpenAdmin,
    ) -> None:
        self.recorder = Recorder(settings.runs)
        """Where calls and requests are recorded."""
        self._timers = timers
        self._send = send
        self._is_due = False
        self._admin = None if sock is None else open_admin(sock, settings, self.recorder, timers.after, send)

    def use_routes(self, routes: Sequence[Route]) -> None:
        """Record the calls of these routes from now on."""
        self.recorder.keep([route.name for route in routes])
        if self._admin is not None:
            self._admin.use_routes(routes)

    def handle(self, frame: ToAdmin) -> None:
        """Handle a frame of the broker."""
        match frame:
            case Follow(on):
                self.recorder.follow(on)
                if on and not self._is_due:
                    self._is_due = True
                    self._timers.after(_LIVE_SECONDS, self._look)
            case FindRecords(route):
                self._send(self.recorder.found(route))
            case Insight() | Observed() | FoundRecords() if self._admin is not None:
                self._admin.take(frame)

    def stop(self, grace: float) -> None:
        """Close the admin port; blocks for `grace` seconds at most."""
        if self._admin is not None:
            self._admin.stop(grace)

    def _look(self) -> None:
        """Send what was recorded in the last moment to those that follow."""
        self._is_due = self.recorder.is_followed
        if not self._is_due:
            return
        self._timers.after(_LIVE_SECONDS, self._look)
        observed = self.recorder.take_live()
        if observed is not None and self._admin is not None:
            self._admin.take(observed)
        elif observed is not None:
            self._send(observed)

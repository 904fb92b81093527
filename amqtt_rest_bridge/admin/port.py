"""The admin port, put together: its server, what it asks the broker for, and the samples of its history."""

import socket
from collections.abc import Callable, Sequence
from typing import Final

from amqtt_rest_bridge.admin.application import AdminApplication
from amqtt_rest_bridge.admin.findings import Findings
from amqtt_rest_bridge.admin.guard import Guard
from amqtt_rest_bridge.admin.history import SAMPLE_SECONDS, History
from amqtt_rest_bridge.admin.insights import REMIND_SECONDS, Insights
from amqtt_rest_bridge.admin.live import Live
from amqtt_rest_bridge.admin.pages import StatusPages
from amqtt_rest_bridge.http_server import HttpServer, Limits
from amqtt_rest_bridge.http_server.guesses import MOST_WAITING, Guesses
from amqtt_rest_bridge.link.admin_frames import FoundRecords, FromAdmin, Insight, Observed
from amqtt_rest_bridge.model import BridgeSettings, Route
from amqtt_rest_bridge.records.recorder import Recorder

_LIMITS: Final = Limits(waiting=64 + 2 * MOST_WAITING, connections=64 + 2 * MOST_WAITING)
_BODY_BYTES: Final = 1024  # no request has one that counts


class AdminServer:
    """Serve the admin port, with the records of this process; see `bridge.observation.AdminPort`."""

    def __init__(
        self,
        sock: socket.socket,
        settings: BridgeSettings,
        recorder: Recorder,
        after: Callable[[float, Callable[[], None]], None],
        send: Callable[[FromAdmin], None],
        *,
        guesses: Guesses,
    ) -> None:
        self._sock = sock
        self._after = after
        self._insights = Insights(send)
        self._findings = Findings(recorder, send)
        self._live = Live(send)
        self._history = History()
        self._pages = StatusPages(self._insights, self._history, self._live)
        guard = Guard(settings.admin_token)
        port: int = sock.getsockname()[1]
        self._app = AdminApplication(
            guard, guesses, port, self._insights, self._findings, self._live, self._pages
        )
        self._server = HttpServer(sock, self._app, max_body_bytes=_BODY_BYTES, limits=_LIMITS)
        self._server.start()
        self._after(REMIND_SECONDS, self._sample)

    def use_routes(self, routes: Sequence[Route]) -> None:
        """Show these routes from now on."""
        self._app.routes = self._pages.routes = {route.name: route for route in routes}

    def take(self, frame: Insight | Observed | FoundRecords) -> None:
        """Take an answer of the broker, or of another bridge process."""
        match frame:
            case Insight():
                self._insights.take(frame)
            case Observed():
                self._live.take(frame)
            case FoundRecords():
                self._findings.take(frame)

    def stop(self, grace: float) -> None:
        """Close the port; blocks."""
        self._sock.close()
        self._server.stop(grace)

    def _sample(self) -> None:
        self._after(SAMPLE_SECONDS, self._sample)
        self._insights.ask(self._add_sample, statuses=False)

    def _add_sample(self) -> None:
        numbers = self._insights.newest
        if numbers is not None:
            self._history.add(numbers)

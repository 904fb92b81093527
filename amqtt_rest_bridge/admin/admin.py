"""What operators see of a bridge, put together: its recorder, the file of failures, the admin port. Event loop only."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from amqtt_rest_bridge.addresses import in_url
from amqtt_rest_bridge.admin.kept_runs import KeptRun
from amqtt_rest_bridge.admin.recorder import RunRecorder
from amqtt_rest_bridge.admin.runs import is_request
from amqtt_rest_bridge.engine.client_mode import ClientMode
from amqtt_rest_bridge.engine.needs import Host
from amqtt_rest_bridge.engine.outcome import Outcomes
from amqtt_rest_bridge.engine.server_mode import ServerMode
from amqtt_rest_bridge.engine.statistics import RouteError, RouteStatistics
from amqtt_rest_bridge.engine.status_reporter import StatusReporter
from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.http.ports import bound_socket
from amqtt_rest_bridge.lot.model import Capture, Route, RunIds
from amqtt_rest_bridge.settings import Settings
from amqtt_rest_bridge.store.failure_file import FailureFile

if TYPE_CHECKING:
    from amqtt_rest_bridge.admin.app import AdminPort
    from amqtt_rest_bridge.admin.figures import RunningBridge

log = logging.getLogger(__name__)

_BACKLOG: Final = 128  # connections that wait to be accepted
_STOP_SECONDS: Final = 1.0
_MOST_NAMED: Final = 10  # routes, in a line of the log


class Admin:
    """The records, and the admin port where the settings have one. The file is read and the port bound at once.

    Args:
        settings: Have `admin_port`, `admin_host`, `failures` and `capture`.
        runs: Makes the ids of calls.
        pids: Process ids by name, to be shown.

    Raises:
        ConfigurationError: The file of failures cannot be used, or the port is taken.
    """

    def __init__(self, settings: Settings, runs: RunIds, pids: Mapping[str, int]) -> None:
        self._settings = settings
        self._pids = pids
        self._file = None if settings.failures is None else FailureFile(Path(settings.failures), KeptRun)
        first = [] if self._file is None else sorted(self._file.loaded, key=attrgetter("run.time"))
        self.recorder = RunRecorder(runs, Capture(settings.capture), self._file, first)
        """Is handed what the engine notes."""
        self._socket = None
        if settings.admin_port is not None:
            try:
                self._socket = bound_socket(settings.admin_host, settings.admin_port, "admin_port", is_shared=False)
            except ConfigurationError:
                self.close()
                raise
            self._socket.listen(_BACKLOG)
        self._port: AdminPort | None = None
        self._routes: Sequence[Route] = ()

    @property
    def port(self) -> int | None:
        """Return the bound port, None where the settings have none."""
        return None if self._socket is None else int(self._socket.getsockname()[1])

    @property
    def troubles(self) -> list[str]:
        """Return why failures cannot be written to their file."""
        trouble = None if self._file is None else self._file.trouble
        return [] if trouble is None else [f"failures cannot be written: {trouble}"]

    def count_earlier_failures(self, statistics: Mapping[str, RouteStatistics]) -> None:
        """Count the failures of the file as if the bridge had not ended since, and log how many wait for a retry.

        Called once, when the routes are there.
        """
        for kept in self.recorder.count_earlier_failures():
            run = kept.run
            if (route := statistics.get(run.route or "")) is not None and run.code is not None:
                error = RouteError(run.time, run.code, run.message or "")
                route.note_earlier_failure(error, run.id, run.retry_of, is_request=is_request(run.kind, run.status))
        waiting = Counter(kept.run.route or "" for kept in self.recorder.kept.open())
        if waiting:
            log.warning(
                "%d kept failure(s) wait for a retry (%s): rest-bridge failures --open%s lists them",
                waiting.total(), ", ".join(f"{name}: {number}" for name, number in waiting.most_common(_MOST_NAMED)),
                "" if self._socket is None else f" --admin {self._url}",
            )  # fmt: skip

    @property
    def _url(self) -> str:
        return f"http://{in_url(self._settings.admin_host)}:{self.port}"

    def serve(
        self,
        host: Host,
        outcomes: Outcomes,
        client_mode: ClientMode,
        server_mode: ServerMode,
        reporter: StatusReporter,
        bridge: "RunningBridge",
    ) -> None:
        """Open the port.

        Args:
            host: What the engine runs on.
            outcomes: What became of calls and requests.
            client_mode: Repeats calls on demand.
            server_mode: Has what it counts of callers.
            reporter: Has the status of routes.
            bridge: What the routes run on.
        """
        if self._socket is None:
            return
        from amqtt_rest_bridge.admin.app import AdminPort  # pages and metrics take 6 MB to import
        from amqtt_rest_bridge.admin.figures import Figures
        from amqtt_rest_bridge.admin.retries import Retries

        figures = Figures(outcomes, self.recorder, reporter, server_mode.unmatched, bridge, self._pids)
        retries = Retries(self.recorder, client_mode, host.publisher, outcomes, host.runs)
        self._port = AdminPort(
            self._socket, self._settings, self.recorder, figures, retries, server_mode.wrong_credentials
        )
        self._port.use_routes(self._routes)
        self._port.start()
        log.info("status page and metrics: %s", self._url)

    async def sample(self) -> None:
        """Sample the figures for the charts until cancelled; without a port there are none."""
        if self._port is not None:
            await self._port.sample()

    def use_routes(self, routes: Sequence[Route]) -> None:
        """Record and show these routes, with their bound ports, from now on."""
        self._routes = routes
        self.recorder.use_routes(routes)
        if self._port is not None:
            self._port.use_routes(routes)

    async def stop(self) -> None:
        """Close the port."""
        if self._port is not None:
            await self._port.stop(_STOP_SECONDS)

    def close(self) -> None:
        """Release the port and write what waits of the file; blocks for some seconds at most."""
        if self._socket is not None:
            self._socket.close()
        if self._file is not None:
            self.recorder.keep_pending()
            self._file.close()

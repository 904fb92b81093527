"""The evidence of a bridge, put together: its records, the file of failures, and the admin port. The loop alone."""

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from amqtt_rest_bridge.addresses import in_url
from amqtt_rest_bridge.admin.figures import GroupNumbers
from amqtt_rest_bridge.admin.kept_runs import KeptRun, KeptRuns
from amqtt_rest_bridge.admin.recorder import RunRecorder
from amqtt_rest_bridge.engine.client_mode import ClientMode
from amqtt_rest_bridge.engine.needs import Host
from amqtt_rest_bridge.engine.outcome import Outcomes
from amqtt_rest_bridge.engine.server_mode import ServerMode
from amqtt_rest_bridge.engine.status_reporter import StatusReporter
from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.http.ports import bound_socket
from amqtt_rest_bridge.lot.model import Capture, Route, RunIds
from amqtt_rest_bridge.lot.route_set import with_bound_ports
from amqtt_rest_bridge.mqtt.private import BrokerState
from amqtt_rest_bridge.settings import Settings
from amqtt_rest_bridge.store.failure_file import FailureFile

if TYPE_CHECKING:
    from amqtt_rest_bridge.admin.app import AdminPort

log = logging.getLogger(__name__)

_BACKLOG: Final = 128  # connections that wait to be accepted
_STOP_SECONDS: Final = 1.0

Keep = Callable[[str, Callable[[], Coroutine[Any, Any, None]]], object]
"""Keeps a task running; see `Supervisor.keep`."""


class Admin:
    """The records, and the admin port where the settings have one. The file is read and the port bound at once.

    Args:
        settings: Have `admin_port`, `admin_host`, `failures` and `capture`.
        runs: Makes the ids of calls.
        bound_ports: Returns the bound port for each SERVER_PORT.
        pids: Process ids by name, to be shown.

    Raises:
        ConfigurationError: The file of failures cannot be used, or the port is taken.
    """

    def __init__(
        self, settings: Settings, runs: RunIds, bound_ports: Callable[[], Mapping[int, int]], pids: Mapping[str, int]
    ) -> None:
        self._settings = settings
        self._bound_ports = bound_ports
        self._pids = pids
        self._file = None if settings.failures is None else FailureFile(Path(settings.failures), KeptRun)
        kept = (
            KeptRuns()
            if self._file is None
            else KeptRuns(self._file.put, sorted(self._file.loaded, key=attrgetter("run.time")))
        )
        self.records = RunRecorder(runs, Capture(settings.capture), kept, bound_ports)
        """What the engine notes."""
        self._socket = None
        if settings.admin_port is not None:
            try:
                self._socket = bound_socket(settings.admin_host, settings.admin_port, "admin_port", is_shared=False)
            except ConfigurationError:
                self.close()
                raise
            self._socket.listen(_BACKLOG)
        self._port: AdminPort | None = None

    @property
    def port(self) -> int | None:
        """Return the bound port, None where the settings have none."""
        return None if self._socket is None else int(self._socket.getsockname()[1])

    def serve(
        self,
        host: Host,
        outcomes: Outcomes,
        client_mode: ClientMode,
        server_mode: ServerMode,
        reporter: StatusReporter,
        routes: Callable[[], Sequence[Route]],
        troubles: Callable[[], list[str]],
        group: Callable[[], GroupNumbers | None],
        broker: Callable[[], BrokerState],
        keep: Keep,
    ) -> None:
        """Open the port.

        Args:
            host: What the engine runs on.
            outcomes: What became of calls and requests.
            client_mode: Repeats calls on demand.
            server_mode: Has what it counts of callers.
            reporter: Has the status of routes.
            routes: Returns the routes in use.
            troubles: Returns why the bridge is not ready.
            group: Returns what a worker counts of its group.
            broker: Returns what the broker's side of the plugin counts.
            keep: Keeps a task running.
        """
        if self._socket is None:
            return
        from amqtt_rest_bridge.admin.app import AdminPort  # pages and metrics take 6 MB to import
        from amqtt_rest_bridge.admin.figures import Figures
        from amqtt_rest_bridge.admin.retries import Retries

        file = self._file

        def reasons() -> list[str]:
            trouble = None if file is None else file.trouble
            return troubles() + ([] if trouble is None else [f"failures cannot be written: {trouble}"])

        figures = Figures(
            outcomes, self.records, reporter, server_mode.unmatched, reasons, group, broker, self._pids
        )  # fmt: skip
        retries = Retries(self.records, client_mode, host.publisher, outcomes, routes, host.runs)
        self._port = AdminPort(
            self._socket, self._settings, self.records, figures, retries, server_mode.wrong_credentials
        )
        self._port.use_routes(with_bound_ports(routes(), self._bound_ports()))
        self._port.start()
        keep("samples of the figures", self._port.sample)
        log.info("status page and metrics: http://%s:%d", in_url(self._settings.admin_host), self.port)

    def use_routes(self, routes: Sequence[Route]) -> None:
        """Record and show these routes from now on."""
        self.records.use_routes(routes)
        if self._port is not None:
            self._port.use_routes(with_bound_ports(routes, self._bound_ports()))

    async def stop(self) -> None:
        """Close the port."""
        if self._port is not None:
            await self._port.stop(_STOP_SECONDS)

    def close(self) -> None:
        """Release the port and write what waits of the file; blocks for some seconds at most."""
        if self._socket is not None:
            self._socket.close()
        if self._file is not None:
            self.records.keep_pending()
            self._file.close()

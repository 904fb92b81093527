"""The bridge of the plugin: `Program`, with the private endpoint of its broker for a broker.

`main` runs it as a child process, which `broker.child` starts and talks to by `processes.control`. `BridgeTasks` runs it
as tasks of the broker's own loop (`processes: 0`). Both have the same methods, so the plugin need not know.
"""

import asyncio
import logging
import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable
from typing import Final

from amqtt_rest_bridge.errors import BridgeError, reason
from amqtt_rest_bridge.group.alone import Alone
from amqtt_rest_bridge.mqtt.private import PrivateAddress
from amqtt_rest_bridge.processes.control import Connect, Failed, Loaded, Log, Reload, Start, Stop, read, written
from amqtt_rest_bridge.processes.reload import FirstLoad, load_first
from amqtt_rest_bridge.processes.route_loader import RunLoader, run_loader
from amqtt_rest_bridge.processes.supervisor import loop_factory
from amqtt_rest_bridge.program import PlaceParts, Program, check_routes
from amqtt_rest_bridge.settings import Settings
from amqtt_rest_bridge.system import leave_no_core_file, return_large_blocks, use_all_descriptors

log = logging.getLogger(__name__)

_MOST_LOG_BYTES: Final = 1 << 20  # of records that the broker has not read; further ones are dropped and counted
_FLUSH_SECONDS: Final = 0.5  # for what was written last, at the end


class BridgeTasks:
    """The bridge in the broker's own loop. The constructor loads the routes and binds their ports; it blocks.

    Args:
        settings: Those of the plugin, checked.
        address: Of the endpoint.
        run_loader: Loads changed route files.

    Raises:
        RouteFilesError: A route file has an error; every fault has been logged.
        ConfigurationError: A file cannot be used, a port is taken, or a route cannot run.
    """

    def __init__(self, settings: Settings, address: PrivateAddress, run_loader: RunLoader = run_loader) -> None:
        self._program = program = _program(settings, address, run_loader, owns_process=False)
        self._is_started = False
        try:
            program.use_first(load_first(settings, lambda routes, _: check_routes(routes, settings)))
        except BaseException:
            program.release()
            raise

    @property
    def server_ports(self) -> dict[int, int]:
        """Return the bound port for each SERVER_PORT."""
        return program_ports(self._program)

    @property
    def admin_port(self) -> int | None:
        """Return the bound port of the status page and the metrics."""
        return self._program.admin_port

    async def run(self) -> None:
        """Start, and raise an error once a task of the bridge keeps failing."""
        if not self._is_started:
            self._is_started = True
            await self._program.start()
        raise RuntimeError(await self._program.supervisor.broken())

    async def reload(self) -> None:
        """Read the route files again, and return once that has succeeded or failed, which is in the log."""
        await self._program.reload()

    async def stop(self, grace: float) -> None:
        """Take no more messages, give running requests `grace` seconds, and end."""
        if self._is_started:
            await self._program.stop(grace)

    async def close(self) -> None:
        """Close files and ports of a bridge that was not started."""
        if not self._is_started:
            self.release()

    def release(self) -> None:
        """Close files and ports of a bridge that was not started; blocks."""
        self._program.release()

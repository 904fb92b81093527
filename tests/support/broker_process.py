"""A broker in a process of its own, on a fixed port, so that a test can kill it and start it again."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.commands import accepts
from tests.support.embedded_broker import ANONYMOUS, PLUGIN
from tests.support.forked import AMQTT, Forked
from tests.support.ports import free_port
from tests.support.waiting import SECONDS, eventually


class BrokerProcess:
    """Start with `start`, end with `kill` (SIGKILL).

    So many `bridges` as it has at first are forked with it; with 0 it starts them itself. `constants`: see `Forked`.
    """

    def __init__(
        self, folder: Path, routes: str, plugins: dict[str, Any] | None = None,
        constants: Mapping[str, object] | None = None, **settings: Any,
    ) -> None:  # fmt: skip
        self.port = free_port()
        self._folder = folder
        self._constants = constants
        (folder / "routes.lot").write_text(routes)
        bridge = {"routes": str(folder / "routes.lot"), "reload_seconds": 0, "status_seconds": 0, **settings}
        config = {
            "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{self.port}"}},
            "plugins": ANONYMOUS | (plugins or {}) | {PLUGIN: bridge},
        }
        self._config = folder / "broker.yaml"
        self._config.write_text(json.dumps(config))  # JSON is YAML
        self.bridges: int = bridge.get("processes", 1)
        self._running: Forked | None = None

    @property
    def pid(self) -> int:
        """Return the process id of the running broker."""
        assert self._running is not None
        return self._running.pid

    @property
    def log(self) -> str:
        """Return what every run has written so far."""
        return (self._folder / "broker.log").read_text()

    def start(self) -> None:
        """Start and wait until clients can connect."""
        with (self._folder / "broker.log").open("a") as log:
            arguments = ["-c", str(self._config)]
            self._running = Forked(
                AMQTT, arguments, self._folder, output=log, bridges=self.bridges, constants=self._constants
            )
        eventually(self._accepts, "the broker accepts no connection")

    def kill(self) -> None:
        """End it as a crash would."""
        assert self._running is not None
        self._running.kill()
        self._running.wait(SECONDS)
        self._running = None

    def close(self) -> None:
        """End it if it runs."""
        if self._running is not None:
            self.kill()

    def _accepts(self) -> bool:
        assert self._running is not None
        assert self._running.poll() is None, self.log
        return accepts(self.port)

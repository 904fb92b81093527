"""`rest-bridge` as its users run it: a process of its own, waited for by what it writes."""

import asyncio
import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from amqtt_rest_bridge.cli.broker_client import broker_address
from amqtt_rest_bridge.cli.status import Overview, first_overview
from tests.benchmarks import rig
from tests.support.forked import REST_BRIDGE, Forked, run
from tests.support.waiting import SECONDS

SERVER_ROUTE = """
DEFINE ROUTE Intake WITH TYPE REST_API
    ADD REST_API_CONFIG
        WITH ENABLE_SERVER "true"
        WITH SERVER_PORT '0'
    ADD EVENT Received
        WITH METHOD "POST"
        WITH ENDPOINT "/webhook"
        WITH DESTINATION_TOPIC "webhook/received"
"""
ANONYMOUS = "  amqtt.plugins.authentication.AnonymousAuthPlugin: {allow_anonymous: true}\n"
BRIDGE = "  amqtt_rest_bridge.plugin.RestBridgePlugin: {routes: routes.lot, reload_seconds: 0, processes: 0}\n"
CONFIGURATION = f"""\
listeners:
  default:
    type: tcp
    bind: 127.0.0.1:0
plugins:
{ANONYMOUS}{BRIDGE}"""


class Running:
    """A process of ours whose lines can be waited for."""

    def __init__(self, process: "subprocess.Popen[str] | Forked") -> None:
        self.process = process
        self.lines: list[str] = []
        self._incoming: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="reader")
        self._reader.start()

    def line(self, part: str) -> str:
        """Wait for a line that holds a text."""
        while True:
            line = self._incoming.get(timeout=SECONDS)
            assert line is not None, f"ended without {part!r}: {self.lines}"
            if part in line:
                return line

    @property
    def port(self) -> int:
        """Wait until it is ready and give its MQTT port."""
        return int(self.line("ready: MQTT on ").partition("127.0.0.1:")[2].split()[0])

    def children(self) -> list[int]:
        """Return the process ids of the processes that it has started."""
        return rig.children(self.process.pid)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to this process alone."""
        self.process.send_signal(number)

    def terminate(self, status: int = 0) -> None:
        """Send SIGTERM, and wait until it ends with an exit status."""
        self.send(signal.SIGTERM)
        assert self.end() == status, self.lines

    def end(self) -> int:
        """Wait for the end and give the exit status."""
        status = self.process.wait(SECONDS)
        self._reader.join()
        return status

    def kill(self) -> None:
        """End it if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.end()

    def _read(self) -> None:
        assert self.process.stderr is not None
        if self.process.stdout is not None:
            self.process.stdout.close()
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            self._incoming.put(line.rstrip("\n"))
        self._incoming.put(None)
        self.process.stderr.close()


class Workplace:
    """A folder with a configuration, route files and modules of plugins."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("broker.yaml", CONFIGURATION)
        self.write("routes.lot", SERVER_ROUTE)

    def write(self, name: str, text: str) -> Path:
        """Write a file."""
        path = self.folder / name
        path.write_text(text)
        return path

    def configure(self, *replacements: tuple[str, str]) -> None:
        """Change the configuration."""
        text = CONFIGURATION
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        self.write("broker.yaml", text)

    def add_plugin(self, body: str, settings: str = "{}") -> None:
        """Add a plugin with a class body of the test's own, after the others."""
        self.write("own_plugin.py", f"{_PLUGIN}{body}")
        path = self.folder / "broker.yaml"
        path.write_text(f"{path.read_text()}  own_plugin.OwnPlugin: {settings}\n")

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end."""
        return run(REST_BRIDGE, arguments, self.folder, environment=self._environment(), timeout=SECONDS)

    def refusal(self, *arguments: str) -> str:
        """Return the last line of a start of `serve` that fails; no stack is in what was written."""
        ended = self.run("serve", "-c", "broker.yaml", *arguments)
        assert ended.returncode == 1, ended.stderr
        assert "Traceback" not in ended.stderr
        assert ended.stdout == ""
        lines = ended.stderr.splitlines()
        assert sum("rest-bridge: error: " in line for line in lines) == 1
        return lines[-1]

    @contextlib.contextmanager
    def serving(
        self, *arguments: str, constants: Mapping[str, float] | None = None, bridges: int = 0
    ) -> Iterator[Running]:
        """Run `serve -c broker.yaml` until the block ends; its first `bridges` bridge processes are forked with it."""
        command = ["serve", "-c", "broker.yaml", *arguments]
        process = Forked(
            REST_BRIDGE, command, self.folder, environment=self._environment(), constants=constants, bridges=bridges
        )
        running = Running(process)
        try:
            yield running
        finally:
            running.kill()

    def _environment(self) -> dict[str, str]:
        return dict(os.environ, PYTHONPATH=os.pathsep.join([str(self.folder), *filter(None, sys.path)]))


def overview(url: str) -> Overview:
    """Return the routes as a broker says that they are."""
    return asyncio.run(first_overview(broker_address(url), None))


@contextlib.contextmanager
def taken_port() -> Iterator[int]:
    """Hold a port that is listened on."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield int(sock.getsockname()[1])


def accepts(port: int) -> bool:
    """Return whether anything listens on a port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


_PLUGIN = """\
import asyncio
import logging
import os
import sys
import threading
from dataclasses import dataclass

from amqtt.plugins.base import BasePlugin
from tests.support.waiting import SECONDS

log = logging.getLogger(__name__)


class OwnPlugin(BasePlugin):
"""

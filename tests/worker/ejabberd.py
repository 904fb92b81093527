"""A cluster of real ejabberd nodes, as Debian packages them: MQTT 5 without shared subscriptions.

Erlang runs each node from a folder of its own, beside a system service that may exist: own cookie, ports, database and
epmd.
"""

import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Self

from tests.support.waiting import eventually

_LIBRARIES = next((found.parents[1] for found in Path("/usr/lib").glob("*/ejabberd-*/ebin")), None)
PROGRAM = (
    _LIBRARIES and all(map(shutil.which, ("erl", "erl_call", "epmd"))) and shutil.which("ejabberdctl", path="/usr/sbin")
)
USER, PASSWORD = "bridge@localhost", "any"
_START_SECONDS = 120  # two to three on a machine that has nothing else to do

_CONFIGURATION = """\
hosts: [localhost]
auth_method: anonymous
anonymous_protocol: login_anon
listen:
  - {{module: mod_mqtt, ip: "{host}", port: {port}}}
modules:
  mod_mqtt:
    access_publish: {{"#": all}}
    access_subscribe: {{"#": all}}
    session_expiry: 3600
"""


class Ejabberd:
    """Nodes a, b, ... on 127.0.0.1, 127.0.0.2, ... and one port; on entering they are started and joined."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.hosts = [f"127.0.0.{number + 1}" for number in range(nodes)]
        with socket.create_server(("127.0.0.1", 0)) as mqtt, socket.create_server(("127.0.0.1", 0)) as epmd:
            self.port: int = mqtt.getsockname()[1]
            self._epmd_port = str(epmd.getsockname()[1])
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            epmd = ["epmd", "-port", self._epmd_port, "-address", "127.0.0.1"]
            self._epmd = subprocess.Popen(epmd)
            self._processes = [self._start(node) for node in range(len(self.hosts))]
            for node in range(len(self.hosts)):
                self._started(node, 1)
            for node in range(1, len(self.hosts)):
                self._join(node)  # which restarts ejabberd in the node
                self._started(node, 2)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*self._processes, self._epmd):
            _end(process)

    def kill(self, node: int) -> None:
        """End a node as a crash would."""
        _end(self._processes[node])

    def _start(self, node: int) -> "subprocess.Popen[bytes]":
        folder = self._folder / _name(node)
        folder.mkdir()
        (folder / "ejabberd.yml").write_text(_CONFIGURATION.format(host=self.hosts[node], port=self.port))
        erl = ["erl", "-noinput", "-sname", f"{_name(node)}@localhost", "-setcookie", "tests", "-start_epmd", "false"]
        erl += ["+sbwt", "none", "-mnesia", "dir", f'"{folder}/database"', "-s", "ejabberd"]
        with (folder / "out").open("wb") as out:
            return subprocess.Popen(erl, env=self._environment(folder), cwd=folder, stdout=out, stderr=out)

    def _started(self, node: int, times: int) -> None:
        """Wait until a node has started ejabberd so many times, and can be connected to."""
        folder = self._folder / _name(node)

        def has_started() -> bool:
            assert self._processes[node].poll() is None, (folder / "out").read_text()
            return (folder / "out").read_text().count("is started in the node") == times and self._accepts(node)

        eventually(has_started, f"ejabberd does not start: {folder}", _START_SECONDS)

    def _accepts(self, node: int) -> bool:
        try:
            socket.create_connection((self.hosts[node], self.port), 1).close()
        except OSError:
            return False
        return True

    def _join(self, node: int) -> None:
        """Make a node one of the first one's cluster: `ejabberdctl` starts a whole Erlang for it."""
        call = ["erl_call", "-sname", f"{_name(node)}@localhost", "-c", "tests"]
        call += ["-a", f"ejabberd_cluster join ['{_name(0)}@localhost']"]
        environment = self._environment(self._folder)
        done = subprocess.run(call, check=True, env=environment, timeout=_START_SECONDS, capture_output=True)
        assert done.stdout == b"ok", done

    def _environment(self, folder: Path) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"], "HOME": str(folder), "ERL_LIBS": str(_LIBRARIES),
            "ERL_EPMD_PORT": self._epmd_port, "ERL_EPMD_ADDRESS": "127.0.0.1",
            "EJABBERD_CONFIG_PATH": str(folder / "ejabberd.yml"), "EJABBERD_LOG_PATH": str(folder / "log"),
            "EJABBERD_MSGS_PATH": str(folder),  # translations take a third of a second at each start
        }  # fmt: skip


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()


def _name(node: int) -> str:
    return "ab"[node]

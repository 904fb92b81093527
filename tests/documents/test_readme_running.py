"""The first screen of README, and the program that embeds a broker, run as they are printed there."""

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Final

from amqtt_rest_bridge.cli.trace import line
from amqtt_rest_bridge.lot import loader
from amqtt_rest_bridge.lot.evaluation import Environment
from amqtt_rest_bridge.lot.model import Route
from amqtt_rest_bridge.lot.sources import Source
from tests.support.commands import Running
from tests.support.documents import ROOT, blocks, page, section
from tests.support.ports import free_ports

README: Final = page("README.md")
FIRST_SCREEN: Final = README.partition("\n## ")[0]
BINARIES: Final = Path(sys.executable).parent
SECONDS: Final = 60
MOST_TRIES: Final = 50  # of what is sent again until the subscriber has both messages


def routes(text: str) -> dict[str, Route]:
    loaded = loader.load([Source("README.md", text)], Environment({}, Path()))
    assert loaded.faults == ()
    return {route.name: route for route in loaded.routes}


def test_the_route_of_the_first_screen_is_one_that_the_shipped_configuration_loads() -> None:
    (shown,) = routes(blocks(FIRST_SCREEN, "lot")[0]).values()
    assert shown == routes((ROOT / "conf/routes/demo.lot").read_text(encoding="utf-8"))[shown.name]


class Shown:
    """The commands of the first screen on free ports, in a folder that holds a copy of `conf`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = dict(zip(("1883", "8080", "8000"), map(str, free_ports(3)), strict=True))
        shutil.copytree(ROOT / "conf", folder / "conf")
        configuration, demo = folder / "conf/broker.yaml", folder / "conf/routes/demo.lot"
        text = configuration.read_text().replace("127.0.0.1:1883", f"127.0.0.1:{self._ports['1883']}")
        configuration.write_text(text.replace("# port: 8000", f"port: {self._ports['8000']}"))
        demo.write_text(self._on_free_ports(demo.read_text()))
        serve, try_out, _ = blocks(FIRST_SCREEN, "sh")
        self.serve = self._words(serve.rpartition("&& ")[2])
        self.subscribe, *self.cause = [self._words(line) for line in try_out.splitlines()]

    def start(self, command: list[str], stdout: int | None, stderr: int) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            command, cwd=self._folder, text=True, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr
        )

    def run(self, command: list[str]) -> str:
        """Run a command; what curl would do is done here, so that the test needs none."""
        if command[0] == "curl":
            _, option, body, url = command
            assert option == "-d"
            with urllib.request.urlopen(url, body.encode(), timeout=SECONDS) as response:
                return str(response.read().decode())
        return subprocess.run(command, cwd=self._folder, check=True, capture_output=True, text=True).stdout

    def _on_free_ports(self, text: str) -> str:
        return re.sub("1883|8080|8000", lambda port: self._ports[port[0]], text)

    def _words(self, command: str) -> list[str]:
        command = command.replace("mqtt://127.0.0.1 ", "mqtt://127.0.0.1:1883 ").replace("2>/dev/null", "")
        words = shlex.split(self._on_free_ports(command), comments=True)
        return [str(BINARIES / Path(word).name) if word.startswith(".venv/bin/") else word for word in words]


def test_the_commands_of_the_first_screen_do_what_it_says(tmp_path: Path) -> None:
    shown = Shown(tmp_path)
    running = Running(shown.start(shown.serve, None, subprocess.PIPE))
    try:
        running.line("ready: MQTT on 127.0.0.1:")
        subscriber = shown.start(shown.subscribe, subprocess.PIPE, subprocess.DEVNULL)
        tries = 0
        while subscriber.poll() is None and tries < MOST_TRIES:  # until it has subscribed
            tries += 1
            outputs = [shown.run(command) for command in shown.cause]
        subscriber.kill()
        printed, _ = subscriber.communicate()
        running.line("route TemplateSearch, event Search: GET http://127.0.0.1:")
        running.line("route WebhookIntake, event Received: answered POST /webhook with 200")
        running.send(signal.SIGINT)
        assert running.end() == 0
    finally:
        running.kill()
    assert json.loads(outputs[-1]) == {"status": "published", "topic": "webhook/received"}
    assert '"slug":"webhook-intake"' in printed or '{"door": "open"}' in printed
    assert '"error"' not in printed


def test_the_program_that_embeds_a_broker_runs_in_an_empty_folder(tmp_path: Path) -> None:
    text = section(page("amqtt_rest_bridge/README.md"), "Embedding a broker in a test")
    (program,) = blocks(text, "python")
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, 'received: b\'{"door": "open"}\'\n', "")
    assert list(tmp_path.iterdir()) == []
    assert 'received: b\'{"door": "open"}\'' in text


def test_the_program_that_loads_routes_prints_what_the_reference_says() -> None:
    text = section(page("amqtt_rest_bridge/README.md"), "Loading routes in another program")
    (program,) = blocks(text, "python")
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"it prints `{ended.stdout.strip()}`" in text


def test_the_lines_of_trace_are_as_the_reference_shows_them() -> None:
    written = section(page("amqtt_rest_bridge/admin/README.md"), "`rest-bridge trace`")
    (shown,) = blocks(written, "")
    called = {
        "time": "2026-11-22T12:03:11.482Z",
        "kind": "call",
        "id": "7e1afce0-64fb-4a1b-aa3a-000000000007",
        "route": "Orders",
        "event": "Send",
        "topic": "orders/7",
        "method": "POST",
        "url": "http://10.0.0.7/new/7",
        "status": 200,
        "tries": 1,
        "ms": 41.2,
        "waited_ms": 0.6,
    }
    failed = called | {
        "time": "2026-11-22T12:03:12.017Z",
        "id": "7e1afce0-64fb-4a1b-aa3a-000000000008",
        "topic": "orders/8",
        "url": "http://10.0.0.7/new/8",
        "status": 404,
        "code": "http_status",
        "message": "the server answered 404 Not Found",
        "ms": 12.9,
        "waited_ms": 0.4,
    }
    assert shown.splitlines()[1:] == [line(called), line(failed)]

"""A package that has replaced urllib3, as urllib3-future does: found at the start, in one line, before a call fails."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from amqtt.errors import PluginInitError

from amqtt_rest_bridge.cli.configuration import is_sound
from amqtt_rest_bridge.http_client import connecting
from amqtt_rest_bridge.settings import Settings
from tests.support.commands import SERVER_ROUTE
from tests.support.embedded_broker import Host, configuration
from tests.support.forked import REST_BRIDGE, run

ROUTE = """DEFINE ROUTE R WITH TYPE REST_API
    ADD REST_API_CONFIG WITH BASE_ADDRESS "http://127.0.0.1:9" WITH ENABLE_CLIENT "true"
    ADD EVENT E WITH SOURCE_TOPIC "a" WITH METHOD "GET" WITH ENDPOINT "/x"
"""
BROKER = """listeners: {default: {type: tcp, bind: "127.0.0.1:0"}}
plugins:
  amqtt.plugins.authentication.AnonymousAuthPlugin: {allow_anonymous: true}
  amqtt_rest_bridge.plugin.RestBridgePlugin: {routes: routes.lot}
"""
WORKER = "{broker: 'mqtt://127.0.0.1:1', group: plant, routes: routes.lot}"
REASON = "every call would fail: urllib3-future has replaced the package urllib3. Install the bridge into a virtual "


class OtherConnection:
    """What urllib3-future has instead: a class of its own."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a route, configurations, and in `packages` what urllib3-future installs, in small."""
    for name, text in {
        "routes.lot": ROUTE,
        "broker.yaml": BROKER,
        "worker.yaml": WORKER,
        "packages/urllib3/__init__.py": "",
        "packages/urllib3/connection.py": "class HTTPConnection: pass",
        "packages/urllib3/util/__init__.py": "",
        "packages/urllib3/util/connection.py": "from socket import create_connection",
        "packages/urllib3_future-2.25.904.dist-info/METADATA": "Name: urllib3-future\nVersion: 2.25.904\n",
        "packages/urllib3_future-2.25.904.dist-info/top_level.txt": "urllib3\nurllib3_future\n",
    }.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


TRY = "try routes.lot --topic a --payload x --send"


@pytest.mark.parametrize(
    "command",
    [
        "serve -c broker.yaml",
        "serve -c broker.yaml --check",
        "worker -c worker.yaml",
        "worker -c worker.yaml --check",
        TRY,
    ],
)
def test_each_command_that_would_call_says_so_in_one_line(place: Path, command: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(place / "packages")}
    constants = {"amqtt_rest_bridge.http_client.connecting.HTTPConnection": object}
    ran = run(REST_BRIDGE, command.split(), place, environment=environment, constants=constants)
    assert ran.returncode == (2 if command.startswith("try") else 1)
    check_said(ran.stdout + ran.stderr)


def test_an_interpreter_with_that_package_says_so(place: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(place / "packages")}
    command = [sys.executable, "-m", "amqtt_rest_bridge", *TRY.split()]
    ran = subprocess.run(
        command, cwd=place, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=60
    )
    assert ran.returncode == 2
    check_said(ran.stderr)


def check_said(output: str) -> None:
    assert output.count(REASON) == 1, output
    assert "Traceback" not in output
    assert output.endswith("pip uninstall urllib3-future; pip install --force-reinstall urllib3\n")


def test_the_plugin_says_so_and_the_broker_does_not_start(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connecting, "HTTPConnection", OtherConnection)
    with pytest.raises(PluginInitError), caplog.at_level(logging.ERROR):
        Host(configuration(place / "routes.lot")).stop()
    assert [message.partition(":")[0] for message in caplog.messages if "urllib3" in message] == [
        "every call would fail"
    ]


def test_server_mode_does_not_need_it(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connecting, "HTTPConnection", OtherConnection)
    (place / "routes.lot").write_text(SERVER_ROUTE)
    assert is_sound(Settings(str(place / "routes.lot")), lambda _: "broker.yaml:4:3")
    assert caplog.messages == []

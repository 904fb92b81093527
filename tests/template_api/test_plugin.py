"""TemplateApiPlugin in a real broker, with the API in its own process."""

import asyncio
import logging
import os
import select
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml
from amqtt.broker import Broker
from amqtt.errors import PluginError

from template_api.plugin import TemplateApiPlugin
from tests.support.asking import ask
from tests.support.forked import AMQTT, Forked

PLUGIN = "template_api.plugin.TemplateApiPlugin"


def configuration(folder: Path, **settings: Any) -> dict[str, Any]:
    given = {"port": 0, "database_url": f"sqlite:///{folder / 'library.db'}", **settings}
    return {
        "listeners": {"default": {"type": "tcp", "bind": "127.0.0.1:0"}},
        "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}, PLUGIN: given},
    }


def write_library(folder: Path) -> str:
    template = folder / "library" / "one"
    template.mkdir(parents=True)
    template.joinpath("template.yaml").write_text("title: One template\nslug: one\n")
    return str(folder / "library")


def alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended but was not waited for does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


async def with_broker(config: dict[str, Any], act: Any) -> TemplateApiPlugin:
    broker = Broker(config)
    await broker.start()
    try:
        plugin = broker.plugins_manager.get_plugin("TemplateApiPlugin")
        assert isinstance(plugin, TemplateApiPlugin)
        await asyncio.get_running_loop().run_in_executor(None, act, plugin)
    finally:
        await broker.shutdown()
    return plugin


def test_a_broker_with_the_plugin_serves_the_library_and_stops_it(tmp_path: Path) -> None:
    pids: list[int] = []

    def act(plugin: TemplateApiPlugin) -> None:
        assert plugin._supervisor.process is not None
        pids.append(plugin._supervisor.process.pid)
        [found] = ask(plugin.bound_port, "/api/search?q=template").json["results"]
        assert found["slug"] == "one"
        assert found["url"] == f"http://127.0.0.1:{plugin.bound_port}/templates/one"

    plugin = asyncio.run(with_broker(configuration(tmp_path, library=write_library(tmp_path)), act))
    assert not alive(pids[0])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", plugin.bound_port), timeout=5)


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        pytest.param({"port": 70000}, "port must be a whole number from 0 to 65535", id="port out of range"),
        pytest.param({"database_url": "nonsense"}, "is not a database URL", id="database_url"),
        pytest.param({"library": "/no/such/folder"}, "/no/such/folder: there is no such file", id="library"),
    ],
)
def test_a_setting_that_cannot_be_used_stops_the_start_with_a_logged_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], reason: str
) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises(PluginError):
        asyncio.run(with_broker(configuration(tmp_path, **settings), lambda _plugin: None))
    assert reason in caplog.text


def test_a_taken_port_stops_the_start_with_a_logged_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(PluginError):
        port = taken.getsockname()[1]
        asyncio.run(with_broker(configuration(tmp_path, port=port), lambda _plugin: None))
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in caplog.text


def test_a_killed_broker_leaves_no_api_process_behind(tmp_path: Path) -> None:
    config = tmp_path / "broker.yaml"
    config.write_text(yaml.safe_dump(configuration(tmp_path)))
    broker = Forked(AMQTT, ["-c", str(config)], tmp_path)
    assert broker.stdout is not None
    assert broker.stderr is not None
    with broker.stdout, broker.stderr:
        assert any("template API on" in line for line in broker.stderr)
        children = Path(f"/proc/{broker.pid}/task/{broker.pid}/children").read_text().split()
        [child] = [int(pid) for pid in children]
        ended = os.pidfd_open(child)
        broker.kill()
        assert select.select([ended], [], [], 60)[0] == [ended]
        os.close(ended)
        assert "template API stopped" in broker.stderr.read()
    assert broker.wait(60) == -signal.SIGKILL

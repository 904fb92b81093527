"""Tasks of the plugin and of its bridge: none ends unnoticed."""

import asyncio
import functools
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from amqtt_rest_bridge import bridge
from amqtt_rest_bridge.broker.lossless import Lossless
from amqtt_rest_bridge.broker.publisher import Publisher
from amqtt_rest_bridge.broker.statuses import Statuses
from amqtt_rest_bridge.engine.status_reporter import StatusReporter
from amqtt_rest_bridge.group.plugin_member import PluginMember
from amqtt_rest_bridge.plugin_bridge import BridgeTasks
from amqtt_rest_bridge.reload import Reloader
from amqtt_rest_bridge.supervised_tasks import MOST_FAILURES, Supervisor, Times
from amqtt_rest_bridge.times import Backoff
from tests.bridge.reloading import client_route, server_route
from tests.support.commands import Workplace
from tests.support.embedded_broker import hosting
from tests.support.http_recorder import Recorder
from tests.support.waiting import eventually


class Work:
    """A task that ends in given ways, one after the other, and then goes on."""

    def __init__(self, *ends: BaseException | None) -> None:
        self._ends = iter(ends)
        self.goes_on = asyncio.Event()

    async def run(self) -> None:
        for end in self._ends:
            if end is not None:
                raise end
            return
        self.goes_on.set()
        await asyncio.Event().wait()


WRONG = ValueError("wrong")


@pytest.mark.parametrize(
    "end", [WRONG, None, asyncio.CancelledError()], ids=["an error", "no error", "a stray cancellation"]
)
def test_a_task_that_ends_is_started_again(end: BaseException | None, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        faults: list[str | None] = []
        supervisor = Supervisor(faults.append, Backoff(0.0001))
        work = Work(*[end] * (MOST_FAILURES - 1))
        supervisor.keep_running("working", work.run)
        await work.goes_on.wait()
        await supervisor.stop()
        assert faults == []

    asyncio.run(main())
    assert caplog.text.count("the task working ended; it is started again") == MOST_FAILURES - 1


def test_a_task_that_keeps_failing_breaks_the_bridge_which_has_recovered_once_it_runs_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        faults: asyncio.Queue[str | None] = asyncio.Queue()
        supervisor = Supervisor(faults.put_nowait, Backoff(0.0001, steady=0.2))
        supervisor.keep_running("working", Work(*[WRONG] * (MOST_FAILURES + 3)).run)
        sentence = await supervisor.broken()
        assert "its task working failed 8 times in a row, the last time: wrong" in sentence
        assert [await faults.get(), await faults.get()] == [sentence, None]
        await supervisor.stop()

    asyncio.run(main())
    assert "the bridge is broken" in caplog.text


def test_what_has_to_end_is_started_again_until_it_has(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        supervisor = Supervisor(lambda _: None, Backoff(0.0001))
        supervisor.run_to_end("adopting", Work(WRONG, WRONG, None).run)
        while supervisor._tasks:
            await asyncio.sleep(0)

    asyncio.run(main())
    assert caplog.text.count("the task adopting ended; it is started again") == 2


def fails_first(run: Callable[..., Awaitable[None]], failed: list[str], name: str) -> Callable[..., Any]:
    async def failing(*arguments: Any) -> None:
        if name not in failed:
            failed.append(name)
            raise RuntimeError(f"{name} fails once")
        await run(*arguments)

    return failing


KINDS: dict[str, tuple[type, str]] = {
    "publishing": (Publisher, "run"),
    "statuses": (Statuses, "run"),
    "bridge": (BridgeTasks, "run"),
    "sessions": (PluginMember, "follow"),
    "reloading": (Reloader, "run"),
    "status": (StatusReporter, "run"),
    "lossless": (Lossless, "run"),
    "spool": (Lossless, "tidy"),
}


@pytest.mark.parametrize("name", KINDS)
def test_each_task_goes_on_after_an_error(
    name: str, tmp_path: Path, target: Recorder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "amqtt_rest_bridge")
    owner, method = KINDS[name]
    monkeypatch.setattr(owner, method, fails_first(getattr(owner, method), [], name))
    routes = client_route(target, name="R") + ' ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "lossless"'
    with hosting(routes, status_seconds=60, spool=str(tmp_path / "spool.db")) as host:
        client, status = host.client("out"), host.client("$SYS/broker/routes/+/status")
        client.publish("in", b"1")
        assert client.message() == ("out", b"1")
        assert json.loads(status.message()[1])["name"] == "R"
        host.reload()
        eventually(lambda: "routes reloaded" in caplog.text, "not reloaded")
        eventually(lambda: f"the task {name} ended; it is started again" in caplog.text, "nothing said so")
        client.publish("in", b"2")
        assert client.message() == ("out", b"2")


@pytest.mark.parametrize(
    ("owner", "method", "name"),
    [
        pytest.param(Lossless, "tidy", "spool", id="of the broker's side"),
        pytest.param(Reloader, "run", "reloading", id="of the bridge"),
    ],
)
def test_a_task_that_cannot_go_on_makes_the_health_of_every_route_red(
    owner: type, method: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_arguments: object) -> None:
        raise RuntimeError("the disk is gone")

    monkeypatch.setattr(owner, method, fails)
    often = Backoff(0.0001)
    monkeypatch.setattr(bridge, "Supervisor", functools.partial(Supervisor, backoff=often))
    settings: dict[str, Any] = {
        "status_seconds": 0.05,
        "spool": str(tmp_path / "spool.db"),
        "times": Times(tasks=often),
    }
    with hosting(server_route("/x", name="R"), **settings) as host:
        client = host.client("$SYS/broker/routes/R/status")
        status = json.loads(client.message()[1])
        while status["health"] != "Red":
            status = json.loads(client.message()[1])
        assert status["last_error"]["code"] == "internal_error"
        why = f"its task {name} failed 8 times in a row, the last time: the disk is gone"
        assert why in status["last_error"]["message"]


def test_serve_ends_with_a_clear_line_when_a_task_cannot_go_on(tmp_path: Path) -> None:
    place = Workplace(tmp_path)
    place.add_plugin("""
    from amqtt_rest_bridge.broker.publisher import Publisher
    from amqtt_rest_bridge.plugin import RestBridgePlugin
    from amqtt_rest_bridge.supervised_tasks import Times
    from amqtt_rest_bridge.times import Backoff

    async def fails(publisher):
        raise RuntimeError("no more paper")

    RestBridgePlugin.times = Times(grace=0.1, publish=0.1, tasks=Backoff(0.001))
    Publisher.run = fails
""")
    with place.serving() as running:
        assert running.end() == 1
    assert running.lines[-1] == (
        "rest-bridge: error: the bridge is broken: its task publishing failed 8 times in a row, "
        "the last time: no more paper"
    )

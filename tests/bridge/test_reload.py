"""Hot reload: changed files take effect, faults change nothing, nothing is lost on the way."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from amqtt_rest_bridge import reload
from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.lot.model import LoadResult
from amqtt_rest_bridge.reload import Fingerprint, Reloader, SubprocessLoader, fingerprint
from amqtt_rest_bridge.settings import Settings
from amqtt_rest_bridge.signals import reloading_on_sighup
from tests.bridge.reloading import Reloading, client_route, loaded_before, server_route
from tests.support.embedded_broker import Host, configuration
from tests.support.forked import INTERPRETER_LOADER
from tests.support.gate import Gate
from tests.support.http_recorder import Recorder
from tests.support.waiting import SECONDS, eventually

FAULTY = "DEFINE ROUTE Bad WITH TYPE REST_API\n ADD REST_API_CONFIG\n  WITH NONSENSE '1'\n"


@pytest.mark.parametrize("processes", [pytest.param(0, id="thread"), pytest.param(1, id="process")])
def test_changed_added_and_removed_files_take_effect(
    tmp_path: Path, target: Recorder, processes: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="amqtt_rest_bridge")
    with Reloading(tmp_path, client_route(target), processes=processes) as running:
        client = running.host.client("out", "out2", "hook")
        running.write("a.lot", client_route(target, destination="out2"))
        client.publish("in", b"changed")
        assert client.message() == ("out2", b"changed")
        running.write("b.lot", server_route("/new"))
        running.await_status("/new", 200)
        assert client.message() == ("hook", b"1")
        running.write("b.lot", server_route("/newer"))
        running.await_status("/newer", 200)
        assert running.post("/new") == 404
        assert client.message() == ("hook", b"1")
        running.write("b.lot", None)
        assert running.host.plugin.server_ports == {}
        client.publish("in", b"still")
        assert client.message() == ("out2", b"still")
    changes = [line.partition("; ")[2] for line in caplog.messages if line.startswith("routes reloaded")]
    assert changes == ["changed C", "added S", "changed S", "removed S"]
    assert sum("server mode listens on" in line for line in caplog.messages) == 1, "once for the port that was opened"


def test_a_file_with_faults_changes_nothing_and_its_faults_are_logged_once(
    tmp_path: Path, target: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    with Reloading(tmp_path, client_route(target)) as running:
        client = running.host.client("out")
        running.write("b.lot", FAULTY)
        looked = running.looks
        eventually(lambda: running.looks > looked + 40, "nothing looks any more")
        client.publish("in", b"as before")
        assert client.message() == ("out", b"as before")
        assert running.tries == 1
        assert caplog.text.count("unknown setting NONSENSE") == 1
        running.write("b.lot", client_route(target, name="B", source="in2"))
        client.publish("in2", b"mended")
        assert client.message() == ("out", b"mended")


def test_a_schema_that_changes_is_reloaded_and_one_that_is_wrong_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text('{"$ref": "number.json"}')
    (tmp_path / "number.json").write_text('{"minimum": 1}')
    with Reloading(tmp_path, f'{server_route("/hook")} WITH SCHEMA_FILE "{tmp_path}/order.json"') as running:
        assert running.post("/hook") == 200
        for minimum, status in (("2", 400), ('"2"', 400), ("0", 200)):
            running.write("number.json", f'{{"minimum": {minimum}}}')
            running.await_status("/hook", status)
        assert running.tries == 3


def test_a_reload_during_the_shutdown_opens_no_port_again(tmp_path: Path) -> None:
    (tmp_path / "a.lot").write_text(server_route("/a"))
    host = Host(configuration(tmp_path, reload_seconds=0))
    try:
        port = host.http_port
        host.wait(host.plugin.on_broker_pre_shutdown())
        (tmp_path / "a.lot").write_text(server_route("/b"))
        failure = host.wait(host.program.reload())
        assert failure is not None and failure.message == "the bridge stops"
        assert not host.plugin.server_ports
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
    finally:
        host.stop()


def test_what_was_sent_before_a_reload_is_answered_by_the_old_definition(tmp_path: Path, target: Recorder) -> None:
    gate = Gate()
    target.answer = gate.before(lambda _: (200, b"old"))
    with Reloading(tmp_path, client_route(target)) as running:
        client = running.host.client("out", "out2")
        client.publish("in", b"1")
        target.request()
        running.write("a.lot", client_route(target, destination="out2"))
        gate.open.set()
        assert client.message() == ("out", b"old")
        client.publish("in", b"2")
        assert client.message() == ("out2", b"old")


def test_the_status_of_a_removed_route_is_removed(tmp_path: Path, target: Recorder) -> None:
    with Reloading(tmp_path, client_route(target, name="Gone"), status_seconds=60) as running:
        client = running.host.client("$SYS/broker/routes/#")
        topic, payload = client.message()
        assert (topic, json.loads(payload)["name"]) == ("$SYS/broker/routes/Gone/status", "Gone")
        running.write("a.lot", client_route(target, name="Came"))
        assert client.message() == ("$SYS/broker/routes/Gone/status", b"")
        assert client.message()[0] == "$SYS/broker/routes/Came/status"
        assert "$SYS/broker/routes/Gone/status" not in running.host.broker.retained_messages


async def names_used(folder: Path, seconds: float, ask: Callable[[Reloader], object]) -> list[str]:
    """Watch a folder in which a route file has come; return the names of the routes that are used then."""
    used: asyncio.Future[LoadResult] = asyncio.get_running_loop().create_future()

    async def use(loaded: LoadResult) -> None:
        used.set_result(loaded)

    reloader = Reloader(Settings(routes=str(folder)), use, loaded_before(folder))
    (folder / "a.lot").write_text(server_route("/a"))
    running = asyncio.create_task(reloader.run(seconds))
    try:
        ask(reloader)
        return [route.name for route in (await asyncio.wait_for(used, SECONDS)).routes]
    finally:
        running.cancel()


def test_a_reload_is_asked_for_by_sighup_where_the_loop_runs_on_the_main_thread(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGHUP)

    def ask(reloader: Reloader) -> None:
        stack.enter_context(reloading_on_sighup(reloader.ask))
        os.kill(os.getpid(), signal.SIGHUP)

    async def main() -> None:
        with stack:
            assert await names_used(tmp_path, 0, ask) == ["S"]
        assert signal.getsignal(signal.SIGHUP) is before

    stack = contextlib.ExitStack()
    asyncio.run(main())


def test_a_folder_that_is_gone_in_the_middle_of_a_look_does_not_end_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([FileNotFoundError("gone")])

    def look(paths: list[str], beside: Fingerprint) -> Fingerprint:
        for error in looks:
            raise error
        return fingerprint(paths, beside)

    monkeypatch.setattr("amqtt_rest_bridge.reload.fingerprint", look)
    assert asyncio.run(names_used(tmp_path, 0.01, lambda _: None)) == ["S"]


def test_an_unexpected_error_does_not_end_the_watch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_loaded: LoadResult) -> None:
        raise ZeroDivisionError

    async def scenario() -> None:
        await Reloader(Settings(routes=str(tmp_path)), fail, loaded_before(tmp_path)).reload()

    asyncio.run(scenario())
    assert "reload failed, keeping the current routes" in caplog.text


def test_a_loader_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "run_loader", INTERPRETER_LOADER)
    with pytest.raises(ConfigurationError, match="nowhere"):
        asyncio.run(SubprocessLoader(Settings(routes=str(tmp_path / "nowhere"))).load())


def test_a_reload_parses_changed_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A parser that refuses to work shows it: what was parsed before needs none."""
    monkeypatch.setattr(reload, "run_loader", INTERPRETER_LOADER)
    (tmp_path / "a.lot").write_text(server_route("/a").replace('"/a"', 'GET ENV "RELOADED"', 1))
    monkeypatch.setenv("RELOADED", "/first")
    tatsu = tmp_path / "shadow" / "tatsu"
    tatsu.mkdir(parents=True)

    async def scenario() -> tuple[list[LoadResult], str]:
        loader = SubprocessLoader(Settings(routes=str(tmp_path)))
        loaded = [await loader.load()]
        (tatsu / "__init__.py").touch()
        (tatsu / "ast.py").write_text("AST = dict")
        (tatsu / "buffering.py").write_text("class Buffer: pass")
        (tatsu / "infos.py").write_text("ParseInfo = ParseState = None\ndef RuleInfo(*_): pass")
        (tatsu / "exceptions.py").write_text("class FailedParse(Exception): pass\nOptionSucceeded = FailedParse")
        parser = "class Parser:\n    def __init__(self, **_):\n        raise SystemExit('tatsu was asked')\n"
        (tatsu / "parsing.py").write_text(parser)
        monkeypatch.syspath_prepend(tatsu.parent)
        monkeypatch.setenv("RELOADED", "/second")
        loaded.append(await loader.load())
        (tmp_path / "b.lot").write_text("DEFINE MODEL M")
        with pytest.raises(ConfigurationError) as raised:
            await loader.load()
        return loaded, str(raised.value)

    loaded, error = asyncio.run(scenario())
    assert [result.routes[0].server_events[0].endpoint for result in loaded] == ["/first", "/second"]
    assert error == "tatsu was asked"

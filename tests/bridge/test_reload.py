"""Hot reload: changed files take effect, faults change nothing, nothing is lost on the way."""

import asyncio
import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable
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
from tests.support.http_recorder import recording
from tests.support.waiting import SECONDS


@pytest.mark.parametrize("processes", [pytest.param(0, id="thread"), pytest.param(1, id="process")])
def test_changed_added_and_removed_files_take_effect(
    tmp_path: Path, processes: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="amqtt_rest_bridge")
    with recording() as target:
        (tmp_path / "a.lot").write_text(client_route(target))
        running = Reloading(tmp_path, processes=processes)
        try:
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
            said = [record.getMessage() for record in caplog.records]
            assert [line.partition("; ")[2] for line in said if line.startswith("routes reloaded")] == [
                "changed C",
                "added S",
                "changed S",
                "removed S",
            ]
            assert sum("server mode listens on" in line for line in said) == 1, "once for the port that was opened"
        finally:
            running.host.stop()


def test_a_file_with_faults_changes_nothing_and_its_faults_are_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with recording() as target, caplog.at_level(logging.ERROR):
        (tmp_path / "a.lot").write_text(client_route(target))
        running = Reloading(tmp_path)
        try:
            client = running.host.client("out")
            running.write("b.lot", "DEFINE ROUTE Bad WITH TYPE REST_API\n ADD REST_API_CONFIG\n  WITH NONSENSE '1'\n")
            client.publish("in", b"as before")
            assert client.message() == ("out", b"as before")
            assert sum("unknown setting NONSENSE" in record.message for record in caplog.records) == 1
            running.write("b.lot", client_route(target, name="B", source="in2"))
            client.publish("in2", b"mended")
            assert client.message() == ("out", b"mended")
        finally:
            running.host.stop()


def test_a_schema_that_changes_is_reloaded_and_one_that_is_wrong_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text('{"$ref": "number.json"}')
    (tmp_path / "number.json").write_text('{"minimum": 1}')
    (tmp_path / "a.lot").write_text(f'{server_route("/hook")} WITH SCHEMA_FILE "{tmp_path}/order.json"')
    running = Reloading(tmp_path)
    try:
        assert running.post("/hook") == 200
        running.write("number.json", '{"minimum": 2}')
        running.await_status("/hook", 400)
        running.write("number.json", '{"minimum": "2"}')
        assert running.post("/hook") == 400
        running.write("number.json", '{"minimum": 0}')
        running.await_status("/hook", 200)
        assert running.tries == 3
    finally:
        running.host.stop()


def test_a_taken_port_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with recording() as taken, caplog.at_level(logging.ERROR):
        (tmp_path / "a.lot").write_text(server_route("/a"))
        running = Reloading(tmp_path)
        try:
            running.write("a.lot", server_route("/b", port=taken.port))
            assert "cannot listen" in caplog.text
            assert running.post("/a") == 200
        finally:
            running.host.stop()


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


def test_what_was_sent_before_a_reload_is_answered_by_the_old_definition(tmp_path: Path) -> None:
    entered, let_go = threading.Event(), threading.Event()

    with recording() as target:

        def answer(seen: object) -> tuple[int, bytes]:
            entered.set()
            let_go.wait(SECONDS)
            return 200, b"old"

        target.answer = answer
        (tmp_path / "a.lot").write_text(client_route(target))
        running = Reloading(tmp_path)
        try:
            client = running.host.client("out", "out2")
            client.publish("in", b"1")
            assert entered.wait(SECONDS)
            running.write("a.lot", client_route(target, destination="out2"))
            let_go.set()
            assert client.message() == ("out", b"old")
            client.publish("in", b"2")
            assert client.message() == ("out2", b"old")
        finally:
            running.host.stop()


def test_the_status_of_a_removed_route_is_removed(tmp_path: Path) -> None:
    with recording() as target:
        (tmp_path / "a.lot").write_text(client_route(target, name="Gone"))
        running = Reloading(tmp_path, status_seconds=60)
        try:
            client = running.host.client("$SYS/broker/routes/#")
            topic, payload = client.message()
            assert (topic, json.loads(payload)["name"]) == ("$SYS/broker/routes/Gone/status", "Gone")
            running.write("a.lot", client_route(target, name="Came"))
            assert client.message() == ("$SYS/broker/routes/Gone/status", b"")
            assert client.message()[0] == "$SYS/broker/routes/Came/status"
            assert "$SYS/broker/routes/Gone/status" not in running.host.broker.retained_messages
        finally:
            running.host.stop()


def setting(applied: asyncio.Future[LoadResult]) -> Callable[[LoadResult], Awaitable[None]]:
    async def use(loaded: LoadResult) -> None:
        applied.set_result(loaded)

    return use


def test_a_reload_is_asked_for_by_sighup_where_the_loop_runs_on_the_main_thread(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGHUP)

    async def scenario() -> LoadResult:
        applied: asyncio.Future[LoadResult] = asyncio.get_running_loop().create_future()
        (tmp_path / "a.lot").write_text(server_route("/a"))
        reloader = Reloader(Settings(routes=str(tmp_path)), setting(applied), loaded_before(tmp_path))
        running = asyncio.create_task(reloader.run(0))
        try:
            with reloading_on_sighup(reloader.ask):
                os.kill(os.getpid(), 1)
                return await asyncio.wait_for(applied, SECONDS)
        finally:
            running.cancel()
            assert signal.getsignal(signal.SIGHUP) is before

    assert [route.name for route in asyncio.run(scenario()).routes] == ["S"]


def test_a_folder_that_is_gone_in_the_middle_of_a_look_does_not_end_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> LoadResult:
        applied: asyncio.Future[LoadResult] = asyncio.get_running_loop().create_future()
        reloader = Reloader(Settings(routes=str(tmp_path)), setting(applied), loaded_before(tmp_path))
        (tmp_path / "a.lot").write_text(server_route("/a"))
        looks = iter([FileNotFoundError("gone")])

        def look(paths: list[str], beside: Fingerprint) -> Fingerprint:
            for error in looks:
                raise error
            return fingerprint(paths, beside)

        monkeypatch.setattr("amqtt_rest_bridge.reload.fingerprint", look)
        running = asyncio.create_task(reloader.run(0.01))
        try:
            return await asyncio.wait_for(applied, SECONDS)
        finally:
            running.cancel()

    assert [route.name for route in asyncio.run(scenario()).routes] == ["S"]


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

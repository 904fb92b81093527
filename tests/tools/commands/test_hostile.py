"""Commands that mean harm, and bad days: each is answered, and nothing changes."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from amqtt_rest_bridge.tools.commands import service
from tests.support.embedded_broker import Host
from tests.support.full_disk import full_disk
from tests.support.waiting import SECONDS, eventually
from tests.tools.commands.tools import Tool, definition, serving


@pytest.fixture(scope="module")
def served(threads: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Host, Path]]:
    folder = tmp_path_factory.mktemp("hostile")
    with serving(folder) as host:
        yield host, folder


@pytest.fixture
def editor(served: tuple[Host, Path]) -> Iterator[Tool]:
    """A user; what a test leaves behind is a fault of the test."""
    tool = Tool(served[0])
    before = snapshot(served[1])
    yield tool
    assert snapshot(served[1]) == before
    assert [row["name"] for row in tool.call("-listRoutes")["data"]] == ["FromFile"]
    tool.close()


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


ROUTE = definition("Hostile")
HOSTILE = [
    pytest.param(f"{ROUTE}\n/*{'x' * (2 << 20)}*/", "a command has at most 256 KiB", id="2 MiB"),
    pytest.param(f"{ROUTE}{' WITH NONSENSE 1' * 10_000}", "unknown setting NONSENSE", id="10,000 faults"),
    pytest.param(definition("../routes"), "holds other characters", id="the name of a file elsewhere"),
    pytest.param(definition(".."), "begins with a letter", id="dots"),
    pytest.param(definition(".hidden"), "begins with a letter", id="a hidden file"),
    pytest.param(definition("a/b"), "holds other characters", id="a folder in the name"),
    pytest.param(definition("a\x00b"), "holds other characters", id="NUL"),
    pytest.param(definition("a\x1b[2Jb"), "holds other characters", id="a control character"),
    pytest.param(definition("a\u2028b"), "cannot be read", id="a line separator"),
    pytest.param(definition("x" * 5_000), "at most 200 characters", id="an endless name"),
    pytest.param(f"{ROUTE}\n{definition('Second', 'in2')}", "one command adds one route", id="two routes"),
    pytest.param(f"{ROUTE}\nDEFINE ACTION A ON EVERY 1 SECOND DO", "DEFINE ACTION A is skipped", id="another kind"),
    pytest.param(f"Other {ROUTE}", "-addRoute names Other", id="another name"),
    pytest.param(definition("FromFile"), "there are two routes FromFile", id="a route of another file"),
    pytest.param("ROUTE Hostile WITH TYPE REST_API", "write -addRoute and the whole definition", id="bare"),
    pytest.param("", "write -addRoute and the whole definition", id="nothing"),
    pytest.param(ROUTE.replace("REST_API", "MODBUS_TCP"), "is skipped", id="another type"),
    pytest.param(f"{ROUTE}\n/* open", "", id="a comment that is never closed"),
    pytest.param(ROUTE.replace('"http:', 'GET SECRET "../../etc/passwd" + "http:'), "secret", id="a secret elsewhere"),
    pytest.param(ROUTE.replace('"/"', '"' + "{payload.json." * 20_000), "", id="placeholders without an end"),
]


@pytest.mark.parametrize(("arguments", "why"), HOSTILE)
def test_a_hostile_definition_is_answered_and_changes_nothing(editor: Tool, arguments: str, why: str) -> None:
    answer = editor.command(f"-addRoute {arguments}")
    assert why in answer
    assert answer.startswith(("Error: -addRoute", "Parsing error: "))
    assert "success" not in answer.lower()
    envelope = editor.call(f"-addRoute {arguments}")
    assert (envelope["success"], envelope["command"]) == (False, "AddRoute")
    assert 1 <= len(envelope["errors"]) <= 200


@pytest.mark.parametrize("name", ["../routes", "..", "a b", "", "\x00", "*", "routes.lot/../FromFile"])
def test_a_hostile_name_removes_nothing(editor: Tool, name: str) -> None:
    answer = editor.command(f"-removeRoute {name}")
    assert "not found" in answer or answer.startswith("Error: -removeRoute")


def test_ten_thousand_faults_are_counted(editor: Tool) -> None:
    errors = editor.call(f"-addRoute {ROUTE}{' WITH NONSENSE 1' * 10_000}")["errors"]
    assert len(errors) == 200
    assert errors[-1]["message"].endswith("more faults are not listed")


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_what_is_in_the_place_of_a_file_stays(editor: Tool, served: tuple[Host, Path], kind: str) -> None:
    place, other = served[1] / "live" / "Hostile.lot", served[1] / "other.txt"
    other.write_text("kept")
    if kind == "link":
        place.symlink_to(other)
    else:
        place.mkdir()
    for command in (f"-addRoute {ROUTE}", "-removeRoute Hostile"):
        assert "is not a regular file: no command wrote it" in editor.command(command)
    assert (other.read_text(), place.is_symlink() or place.is_dir()) == ("kept", True)
    if kind == "link":
        place.unlink()
    else:
        place.rmdir()
    other.unlink()


def test_a_file_that_defines_other_routes_too_is_not_replaced(editor: Tool, served: tuple[Host, Path]) -> None:
    host, folder = served
    place = folder / "live" / "Hostile.lot"
    place.write_text(definition("Neighbour", "in3"))
    host.reload()
    for command in (f"-addRoute {ROUTE}", "-removeRoute Hostile"):
        assert f"the file of Hostile would be that of route Neighbour, {place}:1:1" in editor.command(command)
    place.unlink()
    host.reload()


def test_a_route_of_a_file_that_defines_others_too_is_not_removed_with_all(
    editor: Tool, served: tuple[Host, Path]
) -> None:
    host, folder = served
    place = folder / "live" / "Hostile.lot"
    place.write_text(f"{ROUTE}\n{definition('Neighbour', 'in3')}\n")
    host.reload()
    answer = editor.command("-removeAllRoutes")
    assert f"failed: the file of Hostile would be that of route Neighbour, {place}:" in answer
    assert [row["name"] for row in editor.call("-listRoutes")["data"]] == ["FromFile", "Hostile", "Neighbour"]
    place.unlink()
    host.reload()


@pytest.mark.parametrize("text", ["// a note\n", f"/* off:\n{ROUTE} */\n", "DEFINE ACTION Hostile\nON EVERY 1 SECOND"])
def test_a_file_without_the_route_stays(editor: Tool, served: tuple[Host, Path], text: str) -> None:
    place = served[1] / "live" / "Hostile.lot"
    place.write_text(text)
    for command in (f"-addRoute {ROUTE}", "-removeRoute Hostile"):
        assert f"failed: {place} does not begin with this route: no command wrote it" in editor.command(command)
    assert place.read_text() == text
    place.unlink()


def test_an_error_in_another_file_is_reported_and_keeps_all_as_it_is(editor: Tool, served: tuple[Host, Path]) -> None:
    other = served[1] / "live" / "other.lot"
    other.write_text("DEFINE ROUTE Broken WITH TYPE REST_API")
    answer = editor.command(f"-addRoute {ROUTE}")
    assert f"another file has an error, so no routes can be loaded: {other}:1:1: error:" in answer
    other.unlink()


def test_a_full_disk_is_reported_and_leaves_the_route_as_it_was(editor: Tool, served: tuple[Host, Path]) -> None:
    assert editor.command(f"-addRoute {ROUTE}") == "Route 'Hostile' added successfully."
    with full_disk():
        answer = editor.command(f"-addRoute {definition('Hostile', 'changed')}")
    assert answer == "Error: -addRoute Hostile failed: File too large"
    assert (served[1] / "live" / "Hostile.lot").read_text() == ROUTE
    assert editor.command("-removeRoute Hostile") == "Route 'Hostile' removed successfully."


def test_what_a_reload_refuses_is_put_back(editor: Tool, served: tuple[Host, Path]) -> None:
    taken = served[0].mqtt_port
    server = f"""DEFINE ROUTE Hostile WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT {taken}
    ADD EVENT E WITH METHOD "POST" WITH ENDPOINT "/x" WITH DESTINATION_TOPIC "hook"
"""
    answer = editor.command(f"-addRoute {server}")
    assert "the routes cannot be loaded: cannot listen on 127.0.0.1" in answer
    assert editor.command(f"-addRoute {ROUTE}") == "Route 'Hostile' added successfully."
    assert "the routes cannot be loaded" in editor.command(f"-addRoute {server}")
    assert (served[1] / "live" / "Hostile.lot").read_text() == ROUTE
    assert editor.command("-removeRoute Hostile") == "Route 'Hostile' removed successfully."


def test_two_at_once_are_executed_one_after_the_other(editor: Tool, served: tuple[Host, Path]) -> None:
    other = Tool(served[0])
    for tool, topic in ((editor, "one"), (other, "two")):
        tool.publish(f"-addRoute {definition('Hostile', topic)}")
    assert {editor.answer(), editor.answer()} == {"Route 'Hostile' added successfully."}
    (text,) = {f"{(served[1] / 'live' / 'Hostile.lot').read_text()}"}
    assert text in (definition("Hostile", "one"), definition("Hostile", "two"))
    assert editor.command("-removeRoute Hostile") == "Route 'Hostile' removed successfully."
    other.close()


def test_what_is_too_much_to_wait_is_answered_too(
    editor: Tool, monkeypatch: pytest.MonkeyPatch, served: tuple[Host, Path]
) -> None:
    monkeypatch.setattr(service, "MOST_COMMANDS", 3)
    gate, begun = threading.Event(), threading.Event()
    trial = served[0].program._loaded_reloader._loader.load

    async def slow(instead: object = None) -> object:
        begun.set()
        while not gate.is_set():
            await asyncio.sleep(0.01)
        return await trial(instead)  # type: ignore[arg-type]

    monkeypatch.setattr(served[0].program._loaded_reloader._loader, "load", slow)
    commands = 8
    editor.publish("-listEnv")
    assert begun.wait(SECONDS)
    for _ in range(commands - 1):
        editor.publish("-listEnv")
    refused = [editor.answer() for _ in range(commands - 4)]
    assert set(refused) == {"Error: -listEnv failed: 3 commands wait already; send it again when they are answered"}
    gate.set()
    assert {editor.answer() for _ in range(4)} == {"0 variables."}


def test_a_text_that_takes_too_long_is_answered(
    editor: Tool, monkeypatch: pytest.MonkeyPatch, served: tuple[Host, Path]
) -> None:
    async def endless(instead: object = None) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr("amqtt_rest_bridge.reload._TRIAL_SECONDS", 0.01)
    with monkeypatch.context() as patch:
        patch.setattr(served[0].program._loaded_reloader._loader, "load", endless)
        assert "it takes longer than ten seconds to read this" in editor.command(f"-addRoute {ROUTE}")
    monkeypatch.undo()
    eventually(lambda: editor.call("-listEnv")["success"], "it does not go on")

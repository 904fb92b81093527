"""Commands that mean harm, and bad days: each is answered, and nothing changes."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from amqtt_rest_bridge.tools.commands import service
from tests.support.embedded_broker import Host
from tests.support.full_disk import full_disk
from tests.support.waiting import SECONDS, eventually
from tests.tools.commands.tools import Tool, definition


@pytest.fixture
def editor(served: tuple[Host, Path]) -> Iterator[Tool]:
    """A user; what a test leaves behind is a fault of the test."""
    with closing(Tool(served[0])) as tool:
        before = snapshot(served[1])
        yield tool
        assert snapshot(served[1]) == before
        assert tool.routes() == ["FromFile"]


@pytest.fixture
def place(served: tuple[Host, Path]) -> Path:
    """Where the file of the route is, if there is one."""
    return served[1] / "live" / "Hostile.lot"


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
    pytest.param(definition("x" * 201), "at most 200 characters", id="a long name"),
    pytest.param(definition("x" * 5_000), "at most 200 characters", id="an endless name"),
    pytest.param(f"{ROUTE}\n{definition('Second', 'in2')}", "one command adds one route", id="two routes"),
    pytest.param(f"{ROUTE}\nDEFINE ACTION A ON EVERY 1 SECOND DO", "DEFINE ACTION A is skipped", id="another kind"),
    pytest.param(f"Other {ROUTE}", "-addRoute names Other, and the definition Hostile", id="another name"),
    pytest.param(definition("FromFile"), "there are two routes FromFile", id="a route of another file"),
    pytest.param("ROUTE Hostile WITH TYPE REST_API", "write -addRoute and the whole definition", id="bare"),
    pytest.param("Hostile", "write -addRoute and the whole definition", id="a name"),
    pytest.param("", "write -addRoute and the whole definition", id="nothing"),
    pytest.param("/*" * 100_000, "write -addRoute and the whole definition", id="comments that never end"),
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
    errors = envelope["errors"]
    assert errors
    assert (len(errors) == 200) is (arguments.count("NONSENSE") > 200)
    assert len(errors) < 200 or errors[-1]["message"].endswith("more faults are not listed")


@pytest.mark.parametrize("name", ["../routes", "..", "a b", "", "\x00", "*", "routes.lot/../FromFile"])
def test_a_hostile_name_removes_nothing(editor: Tool, name: str) -> None:
    answer = editor.command(f"-removeRoute {name}")
    assert "not found" in answer or answer.startswith("Error: -removeRoute")


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_what_is_in_the_place_of_a_file_stays(editor: Tool, place: Path, tmp_path: Path, kind: str) -> None:
    other = tmp_path / "other.txt"
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


def test_a_file_that_defines_other_routes_is_neither_replaced_nor_removed(
    editor: Tool, served: tuple[Host, Path], place: Path
) -> None:
    neighbour = definition("Neighbour", "in3")
    for text, commands in (
        (neighbour, (f"-addRoute {ROUTE}", "-removeRoute Hostile")),
        (f"{ROUTE}\n{neighbour}\n", ("-removeAllRoutes",)),
    ):
        place.write_text(text)
        served[0].reload()
        before = editor.routes()
        for command in commands:
            assert f"the file of Hostile would be that of route Neighbour, {place}:" in editor.command(command)
        assert (editor.routes(), place.read_text()) == (before, text)
    place.unlink()
    served[0].reload()


@pytest.mark.parametrize("text", ["// a note\n", f"/* off:\n{ROUTE} */\n", "DEFINE ACTION Hostile\nON EVERY 1 SECOND"])
def test_a_file_without_the_route_stays(editor: Tool, place: Path, text: str) -> None:
    place.write_text(text)
    for command in (f"-addRoute {ROUTE}", "-removeRoute Hostile"):
        assert f"failed: {place} does not begin with this route: no command wrote it" in editor.command(command)
    assert place.read_text() == text
    place.unlink()


def test_an_error_in_another_file_is_reported_and_keeps_all_as_it_is(editor: Tool, place: Path) -> None:
    other = place.with_name("other.lot")
    other.write_text("DEFINE ROUTE Broken WITH TYPE REST_API")
    answer = editor.command(f"-addRoute {ROUTE}")
    assert f"another file has an error, so no routes can be loaded: {other}:1:1: error:" in answer
    other.unlink()


def test_a_full_disk_is_reported_and_leaves_the_route_as_it_was(editor: Tool, place: Path) -> None:
    editor.add("Hostile")
    with full_disk():
        answer = editor.command(f"-addRoute {definition('Hostile', 'changed')}")
    assert answer == "Error: -addRoute Hostile failed: File too large"
    assert {path.name: path.read_text() for path in place.parent.iterdir()} == {place.name: ROUTE}
    editor.remove("Hostile")


def test_what_a_reload_refuses_is_put_back(editor: Tool, served: tuple[Host, Path], place: Path) -> None:
    server = f"""DEFINE ROUTE Hostile WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT {served[0].mqtt_port}
    ADD EVENT E WITH METHOD "POST" WITH ENDPOINT "/x" WITH DESTINATION_TOPIC "hook"
"""
    for before in (None, ROUTE):
        if before is not None:
            editor.add("Hostile")
        answer = editor.command(f"-addRoute {server}")
        assert "the routes cannot be loaded: cannot listen on 127.0.0.1" in answer
        assert (place.read_text() if place.exists() else None) == before
    editor.remove("Hostile")


def test_two_at_once_are_executed_one_after_the_other(editor: Tool, served: tuple[Host, Path], place: Path) -> None:
    texts = [definition("Hostile", topic) for topic in ("one", "two")]
    with closing(Tool(served[0])) as other:
        for tool, text in zip((editor, other), texts, strict=True):
            tool.publish(f"-addRoute {text}")
        assert {editor.answer(), editor.answer()} == {"Route 'Hostile' added successfully."}
    assert place.read_text() in texts
    editor.remove("Hostile")


def test_what_is_too_much_to_wait_is_answered_too(
    editor: Tool, monkeypatch: pytest.MonkeyPatch, served: tuple[Host, Path]
) -> None:
    monkeypatch.setattr(service, "MOST_COMMANDS", 3)
    gate, begun = threading.Event(), threading.Event()
    loader = served[0].program._loaded_reloader._loader
    trial = loader.load

    async def slow(instead: object = None) -> object:
        begun.set()
        while not gate.is_set():
            await asyncio.sleep(0.01)
        return await trial(instead)  # type: ignore[arg-type]

    monkeypatch.setattr(loader, "load", slow)
    editor.publish("-listEnv")
    assert begun.wait(SECONDS)
    for _ in range(7):
        editor.publish("-listEnv")
    refused = {editor.answer() for _ in range(4)}
    assert refused == {"Error: -listEnv failed: 3 commands wait already; send it again when they are answered"}
    gate.set()
    assert {editor.answer() for _ in range(4)} == {"0 variables."}


def test_a_text_that_takes_too_long_is_answered(
    editor: Tool, monkeypatch: pytest.MonkeyPatch, served: tuple[Host, Path]
) -> None:
    async def endless(instead: object = None) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr("amqtt_rest_bridge.reload._TRIAL_SECONDS", 0.01)
    monkeypatch.setattr(served[0].program._loaded_reloader._loader, "load", endless)
    assert "it takes longer than ten seconds to read this" in editor.command(f"-addRoute {ROUTE}")
    monkeypatch.undo()
    eventually(lambda: editor.call("-listEnv")["success"], "it does not go on")

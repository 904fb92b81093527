"""`rest-bridge new`: what it writes passes as it is written."""

from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support.full_disk import full_disk

KINDS = ("client", "server", "poll", "webhook")


@pytest.mark.parametrize("kind", KINDS)
def test_a_first_route_passes_check_test_and_fmt_as_it_is_written(kind: str, folder: Path, run: Run) -> None:
    (folder / "other.lot").write_text("DEFINE ROUTE NotFinished WITH TYPE REST_API\n")
    run("new", kind, "First-1")
    assert run("check", "First-1.lot").out == "1 usable route, no faults\n"
    run("test", "First-1.test.yaml")
    run("fmt", "--check", "First-1.lot")
    assert "NAME" not in (folder / "First-1.lot").read_text()


def test_a_client_route_is_the_default(folder: Path, run: Run) -> None:
    run("new")
    assert "DEFINE ROUTE MyRoute" in (folder / "MyRoute.lot").read_text()
    assert sorted(path.name for path in folder.iterdir()) == ["MyRoute.lot", "MyRoute.test.yaml"]


@pytest.mark.parametrize("name", ["MyRoute.lot", "MyRoute.test.yaml"])
def test_no_file_is_written_over(name: str, folder: Path, run: Run) -> None:
    (folder / name).write_text("mine")
    refused = f"rest-bridge new: cannot write {name}: File exists; write another name behind the kind of route\n"
    assert run("new", "poll", status=2).err == refused
    assert {path.name: path.read_text() for path in folder.iterdir()} == {name: "mine"}


def test_a_full_disk_leaves_no_file(folder: Path, run: Run) -> None:
    with full_disk():
        assert run("new", status=2).err == "rest-bridge new: cannot write MyRoute.lot: File too large\n"
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["../up", "a b", ".hidden", "a/b", "x\ny", "", "WITH", "add"])
def test_what_names_no_route_writes_nothing(name: str, folder: Path, run: Run) -> None:
    assert len(run("new", "client", name, status=2).err.splitlines()) == 1
    run("new", "sever", status=2)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("called", "in_path", "written"),
    [
        pytest.param(".venv/bin/rest-bridge", "", ".venv/bin/rest-bridge", id="by its path, and not in PATH"),
        pytest.param("my venv/rest-bridge", "", "'my venv/rest-bridge'", id="by a path with a space"),
        pytest.param(".venv/bin/rest-bridge", "other", ".venv/bin/rest-bridge", id="another one is in PATH"),
        pytest.param("other/rest-bridge", "other", "rest-bridge", id="the one in PATH"),
        pytest.param("/usr/lib/python3/site-packages/amqtt_rest_bridge/__main__.py", "", "rest-bridge", id="a module"),
    ],
)
def test_commands_to_run_next_are_written_as_this_one_was(
    called: str, in_path: str, written: str, folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = folder / "other/rest-bridge"
    other.parent.mkdir()
    other.touch(0o755)
    monkeypatch.setenv("PATH", in_path and str(folder / in_path))
    monkeypatch.setattr("sys.argv", [called])
    commands = f"{written} check MyRoute.lot && {written} test MyRoute.test.yaml"
    assert run("new").out.splitlines()[1] == f"next: {commands}"

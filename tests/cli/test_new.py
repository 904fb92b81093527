"""`rest-bridge new`: what it writes passes as it is written."""

import resource
from pathlib import Path

import pytest

from amqtt_rest_bridge.__main__ import main

KINDS = ("client", "server", "poll", "webhook")


@pytest.mark.parametrize("kind", KINDS)
def test_a_first_route_passes_check_test_and_fmt_as_it_is_written(
    kind: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "other.lot").write_text("DEFINE ROUTE NotFinished WITH TYPE REST_API\n")
    assert main(["new", kind, "First-1"]) == 0
    capsys.readouterr()
    assert main(["check", "First-1.lot"]) == 0
    assert capsys.readouterr().out == "1 usable route, no faults\n"
    assert main(["test", "First-1.test.yaml"]) == 0
    assert main(["fmt", "--check", "First-1.lot"]) == 0
    assert "NAME" not in (folder / "First-1.lot").read_text()


def test_a_client_route_is_the_default(folder: Path) -> None:
    assert main(["new"]) == 0
    assert "DEFINE ROUTE MyRoute" in (folder / "MyRoute.lot").read_text()
    assert sorted(path.name for path in folder.iterdir()) == ["MyRoute.lot", "MyRoute.test.yaml"]


@pytest.mark.parametrize("name", ["MyRoute.lot", "MyRoute.test.yaml"])
def test_no_file_is_written_over(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / name).write_text("mine")
    assert main(["new", "poll"]) == 2
    assert {path.name: path.read_text() for path in folder.iterdir()} == {name: "mine"}
    advice = "write another name behind the kind of route"
    assert capsys.readouterr().err == f"rest-bridge new: cannot write {name}: File exists; {advice}\n"


def test_a_full_disk_leaves_no_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))  # bytes; as a disk with so much room
    try:
        assert main(["new"]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(folder.iterdir()) == []
    assert capsys.readouterr().err == "rest-bridge new: cannot write MyRoute.lot: File too large\n"


@pytest.mark.parametrize("name", ["../up", "a b", ".hidden", "a/b", "x\ny", "", "WITH", "add"])
def test_what_names_no_route_writes_nothing(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "client", name]) == 2
    assert list(folder.iterdir()) == []
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_kind_that_does_not_exist_is_wrong_usage(folder: Path) -> None:
    assert main(["new", "sever"]) == 2
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
    called: str,
    in_path: str,
    written: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = folder / "other/rest-bridge"
    other.parent.mkdir()
    other.touch(0o755)
    monkeypatch.setenv("PATH", in_path and str(folder / in_path))
    monkeypatch.setattr("sys.argv", [called])
    assert main(["new"]) == 0
    commands = f"{written} check MyRoute.lot && {written} test MyRoute.test.yaml"
    assert capsys.readouterr().out.splitlines()[1] == f"next: {commands}"

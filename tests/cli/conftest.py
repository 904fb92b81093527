"""What the tests of commands share."""

from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest

from amqtt_rest_bridge.__main__ import main
from tests.support.commands import BRIDGE, Workplace


class Printed(NamedTuple):
    """What a command has written to standard output and to standard error."""

    out: str
    err: str


class Run(Protocol):
    """Runs a command in this process, which ends with an exit status, and returns what it has printed."""

    def __call__(self, *arguments: str, status: int = 0) -> Printed: ...


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_command(*arguments: str, status: int = 0) -> Printed:
        capsys.readouterr()
        ended = main(list(arguments))
        printed: Any = capsys.readouterr()
        assert ended == status, printed
        return Printed(*printed)

    return run_command


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workplace:
    """A folder with a configuration, which is the working directory and can be imported from."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return Workplace(tmp_path)


@pytest.fixture
def bare(place: Workplace) -> Workplace:
    """The same with a broker that has no bridge."""
    place.configure((BRIDGE, ""))
    return place


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path

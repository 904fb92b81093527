"""What the tests of commands share."""

from pathlib import Path

import pytest

from tests.support.commands import Workplace


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workplace:
    """A folder with a configuration, which is the working directory and can be imported from."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return Workplace(tmp_path)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path

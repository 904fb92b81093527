"""Leaves out tests that need a program which is not installed, and says so."""

import shutil

import pytest

from tests.bridge.spawning import Spawning
from tests.ports import free_port

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if CHROMIUM is None:
        for item in items:
            if item.get_closest_marker("chromium"):
                item.add_marker(pytest.mark.skip(reason="Chromium is not installed"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    where = CHROMIUM or "not found, the tests of real cross-origin requests were skipped"
    terminalreporter.write_line(f"Chromium for the bridge's tests: {where}")


@pytest.fixture
def chromium() -> str:
    """The path of a Chromium; tests that use it are marked `chromium`."""
    assert CHROMIUM is not None
    return CHROMIUM


@pytest.fixture
def spawning(monkeypatch: pytest.MonkeyPatch) -> Spawning:
    """Return what starts the bridge processes of this test, soon again after a failure."""
    return Spawning(monkeypatch)


@pytest.fixture
def unused_port() -> int:
    """Return a port that was free a moment ago."""
    return free_port()

"""Leaves out the tests of workers where their broker is not installed, and says so."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import tests.worker.ejabberd
import tests.worker.mosquitto
from tests.support.http_target import Target, echo
from tests.worker.mosquitto import Mosquitto
from tests.worker.workers import Group

BROKERS = {"mosquitto": tests.worker.mosquitto.PROGRAM, "ejabberd": tests.worker.ejabberd.PROGRAM}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for name, program in BROKERS.items():
            if program is None and item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=f"{name} is not installed"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for name, program in BROKERS.items():
        terminalreporter.write_line(f"{name} for the tests of workers: {program or 'not found: skipped'}")


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    """A mosquitto that keeps what it has over a kill."""
    with Mosquitto(tmp_path) as broker:
        yield broker


@pytest.fixture
def group(tmp_path: Path, mosquitto: Mosquitto) -> Iterator[Group]:
    """Workers of one group; those that still run are killed in the end."""
    with Group(tmp_path, mosquitto) as workers:
        yield workers.watched()


@pytest.fixture
def target() -> Iterator[Target]:
    """A server that answers each request with its body."""
    with Target(echo) as server:
        yield server

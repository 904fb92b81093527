"""What the tests of the template API share: databases, libraries, an in-process client, a served API."""

import functools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from template_api.serving import supervisor
from tests.support.forked import ForkedApi
from tests.support.library_store import Store
from tests.support.postgres import POSTGRES_MISSING, Postgres, postgres_program
from tests.support.served_api import Served, serving


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if POSTGRES_MISSING:
        for item in items:
            if item.get_closest_marker("postgres"):
                item.add_marker(pytest.mark.skip(reason="PostgreSQL's programs are not installed"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    where = "not found, its tests were skipped" if POSTGRES_MISSING else postgres_program("initdb")
    terminalreporter.write_line(f"PostgreSQL for the template API's tests: {where}")


@pytest.fixture(scope="session")
def new_postgres(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Postgres]:
    """What makes a server that was never started; pytest's processes share what is copied for each."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return functools.partial(Postgres, shared / "postgres")


def _running(new_postgres: Callable[[], Postgres]) -> Iterator[Postgres]:
    server = new_postgres()
    server.start()
    try:
        yield server
    finally:
        server.stop()
        server.remove()


postgres_server = pytest.fixture(_running, scope="session", name="postgres_server")
own_postgres = pytest.fixture(_running, scope="module", name="own_postgres")
"""A server that a test may stop if it starts it again."""


DATABASES = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]


def _library(request: pytest.FixtureRequest, folder: Path) -> Iterator[Store]:
    if request.param == "sqlite":
        yield from _store(f"sqlite:///{folder / 'library.db'}", folder)
    else:
        server: Postgres = request.getfixturevalue("postgres_server")
        with server.library() as url:
            yield from _store(url, folder)


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database without tables, once on SQLite and once on PostgreSQL."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'library.db'}"
    server: Postgres = request.getfixturevalue("postgres_server")
    return server.new_database()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of an empty SQLite database, where the kind of database does not matter."""
    return f"sqlite:///{tmp_path / 'library.db'}"


@pytest.fixture(params=DATABASES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty library, on both kinds of database."""
    yield from _library(request, tmp_path)


@pytest.fixture
def sqlite_store(sqlite_url: str, tmp_path: Path) -> Iterator[Store]:
    """An empty library on SQLite, where the kind of database does not matter."""
    yield from _store(sqlite_url, tmp_path)


@pytest.fixture(scope="module", params=DATABASES)
def shared_store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A library of the tests of one file that only read it, on both kinds of database."""
    folder = tmp_path_factory.mktemp("library")
    yield from _library(request, folder)


@pytest.fixture(scope="module")
def shared_sqlite_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A library of the tests of one file that only read it, on SQLite."""
    folder = tmp_path_factory.mktemp("library")
    yield from _store(f"sqlite:///{folder / 'library.db'}", folder)


def _store(url: str, folder: Path) -> Iterator[Store]:
    store = Store(url, folder)
    yield store
    for client in store.clients:
        client.library.close()


@pytest.fixture
def serve(tmp_path: Path) -> Callable[..., Any]:
    """Run `template-api serve`: `with serve("--database-url", url) as api:`."""

    return functools.partial(serving, tmp_path)


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One process for the tests that only ask, with `webhook` and three others."""
    folder = tmp_path_factory.mktemp("served")
    members = {"difficulty": "beginner", "tags": ["http"], "category": "c", "broker_version": "1"}
    lines = [
        *({"slug": f"weather-{n}", "title": "Weather polling", **members} for n in range(2)),
        {"slug": "weather-on-request", "title": "T"},
        {"slug": "webhook", "title": "Receive a webhook"},
    ]
    library = folder / "library.jsonl"
    library.write_text("\n".join(map(json.dumps, lines)))
    with serving(folder, "--database-url", f"sqlite:///{folder / 'l.db'}", "--library", str(library)) as served:
        yield served


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the API's process where its own start does not matter: that takes half a second of processor time."""
    monkeypatch.setattr(supervisor, "ChildProcess", ForkedApi)

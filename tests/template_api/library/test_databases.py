"""The database under the library: made, upgraded, refused, lost and found again."""

import re
import signal
import sqlite3
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from template_api.errors import DatabaseUnavailableError, StartError
from template_api.library import TemplateLibrary, delete_template
from template_api.library.database import opened, parsed_url
from template_api.library.models import SCHEMA_VERSION, LibraryRow, TemplateRow
from tests.support.asking import Answered
from tests.support.library_store import Store, template
from tests.support.postgres import Postgres
from tests.support.served_api import Served
from tests.support.waiting import eventually
from tests.template_api.library.imports import write_lines

LATER = {"notebooks": ["role"], "library": ["synonyms"], "templates": ["updated_at", "prepared"]}
"""The columns that the first version of the schema lacks."""


def make_older(url: str) -> None:
    """Take out of a database what its first version did not have."""
    with opened(url) as engine, engine.begin() as connection:
        connection.execute(sa.text("DROP INDEX templates_listed"))
        for table in ("deletions", "template_facets"):
            connection.execute(sa.text(f"DROP TABLE {table}"))
        connection.execute(sa.text("CREATE TABLE template_tags (template_id VARCHAR(36) REFERENCES templates (id))"))
        connection.execute(sa.text("INSERT INTO template_tags SELECT id FROM templates"))
        if engine.dialect.name == "postgresql":
            connection.execute(sa.text("ALTER TABLE templates ALTER COLUMN facets TYPE VARCHAR"))
        for table, column in ((table, column) for table, columns in LATER.items() for column in columns):
            connection.execute(sa.text(f"ALTER TABLE {table} DROP COLUMN {column}"))
        connection.execute(sa.update(LibraryRow).values(schema_version=1))


def state(url: str) -> tuple[bool, int]:
    """Return whether templates have that column, and the version of the schema."""
    engine = sa.create_engine(parsed_url(url))
    with engine.connect() as connection:
        version = connection.execute(sa.text("SELECT schema_version FROM library")).scalar_one()
        names = {column["name"] for column in sa.inspect(connection).get_columns("templates")}
    engine.dispose()
    return "prepared" in names, version


def test_an_older_database_is_upgraded_and_keeps_its_templates(store: Store) -> None:
    notebooks = {"solution": {"filename": "a.lotnb", "cells": [{"value": "DEFINE ROUTE A WITH TYPE REST_API"}]}}
    store.bring(template("one", notebooks=notebooks))
    make_older(store.url)
    client = store.client()
    assert client.slugs("/api/search", q="template") == ["one"]
    assert client.slugs("/api/search", q="template", route_ids="rest-api") == ["one"]
    listed = client.post({"query": "", "filters": {"route_ids": ["rest-api"]}}).json["results"]
    assert [each["slug"] for each in listed] == ["one"]
    assert state(store.url) == (True, SCHEMA_VERSION)
    store.bring(template("new", notebooks=notebooks))
    old, new = (store.client().read(slug) for slug in ("one", "new"))
    assert [each["notebooks"][0].get("role") for each in (old, new)] == [None, "solution"]
    delete_template(store.url, "one")
    assert store.client().slugs("/api/templates") == ["new"]


def test_an_upgrade_that_fails_changes_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_row: TemplateRow) -> None:
        raise StartError

    store.bring(template("one"))
    make_older(store.url)
    with monkeypatch.context() as broken:
        broken.setattr("template_api.library.models.TemplateRow.prepare", fail)
        with pytest.raises(StartError), opened(store.url):
            pass
    assert state(store.url) == (False, 1)
    assert store.client().slugs("/api/templates") == ["one"]


def test_a_newer_database_is_refused_with_a_clear_line(database_url: str) -> None:
    with opened(database_url) as engine, engine.begin() as connection:
        connection.execute(sa.update(LibraryRow).values(schema_version=SCHEMA_VERSION + 1))
    newest = f"schema version {SCHEMA_VERSION + 1}, this software supports up to {SCHEMA_VERSION}"
    with pytest.raises(StartError, match=newest):
        TemplateLibrary(database_url)


def test_sqlite_readers_do_not_wait_for_a_writer(sqlite_store: Store, tmp_path: Path) -> None:
    sqlite_store.bring(template("one"))
    client = sqlite_store.client()
    writer = sqlite3.connect(tmp_path / "library.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("UPDATE templates SET title = 'Changed'")
    assert client.read()["title"] == "Template one"
    writer.execute("ROLLBACK")
    writer.close()


def test_postgresql_without_its_driver_is_refused_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StartError, match=r"pip install 'amqtt-rest-bridge\[postgres\]'"):
        TemplateLibrary("postgresql+psycopg://h/d")


def ask_until(served: Served, path: str, status: int) -> Answered:
    """Ask again and again until the answer has this status, such as from the cache until a loss is noticed."""
    answers: list[Answered] = []

    def answered() -> bool:
        answers.append(served.get(path))
        return answers[-1].status == status

    eventually(answered, f"{path} never answers {status}", 90, pause_seconds=0.05)
    return answers[-1]


def assert_told_once_a_loss(served: Served) -> None:
    """Check the log of a process that has ended: a reader thread copies it, so before the end lines may be missing."""
    log = served.log.read_text()
    told = re.findall("requests are answered with 500 until it is back|the library's database is back", log)
    assert told[0].startswith("requests are answered")
    assert len(told) > 1
    assert all(before != after for before, after in pairwise(told))
    assert "Traceback" not in log


@pytest.mark.postgres
@pytest.mark.parametrize("answers_never", [False, True], ids=["stopped", "never answers"])
def test_a_lost_database_answers_500_and_service_returns_by_itself(
    own_postgres: Postgres, tmp_path: Path, serve: Callable[..., Any], answers_never: bool
) -> None:
    library = write_lines(tmp_path / "library.jsonl", template("one", title="Receive a webhook"))
    module = "template_api.library.postgres"
    patience = {f"{module}.ANSWER_SECONDS": 1.0, f"{module}.PING_SECONDS": 0.5} if answers_never else None
    arguments = ("--database-url", own_postgres.new_database(), "--library", str(library))
    paths = ("/api/templates/one", "/api/search?q=webhook", "/api/templates?limit=7", "/ready")
    codes = ["template_unavailable", "search_failed", "search_failed", "library_unavailable"]
    with serve(*arguments, constants=patience) as served:
        ask_until(served, paths[0], 200)
        if answers_never:
            own_postgres.signal(signal.SIGSTOP)
        else:
            own_postgres.stop()
        try:
            ask_until(served, paths[0], 500)  # a wait without an end would end this test
            lost = [] if answers_never else [served.get(path) for path in paths]
        finally:
            if answers_never:
                own_postgres.signal(signal.SIGCONT)
            else:
                own_postgres.start()
        assert [(answer.status, answer.json["error"]["code"]) for answer in lost] == [
            (500, code) for code in codes[: len(lost)]
        ]
        assert ask_until(served, paths[1], 200).json["results"][0]["slug"] == "one"
    assert_told_once_a_loss(served)


@pytest.mark.postgres
def test_a_statement_without_an_answer_ends_and_the_next_one_gets_a_new_connection(
    postgres_server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(postgres_server.new_database()) as engine:
        with monkeypatch.context() as shorter:
            shorter.setattr("template_api.library.postgres.ANSWER_SECONDS", 0.2)
            with (
                pytest.raises(DatabaseUnavailableError, match=r"no answer within 0\.2 s"),
                engine.connect() as connection,
            ):
                connection.execute(sa.text("SELECT pg_sleep(5)"))
        with engine.connect() as connection:
            assert connection.execute(sa.text("SELECT 1")).scalar() == 1


def test_serving_an_empty_library_says_how_to_fill_it(serve: Callable[..., Any], sqlite_url: str) -> None:
    with serve("--database-url", sqlite_url) as served:
        assert served.get("/api/templates").json["results"] == []
        assert served.log.read_text().count("the library is empty; fill it with template-api import PATH") == 1


@pytest.mark.parametrize(
    "url",
    [
        pytest.param("postgresql://u:hunter2@127.0.0.1:1/d", id="authority"),
        pytest.param("postgresql://u@127.0.0.1:1/d?password=hunter2", id="query"),
        pytest.param("postgresql://u@127.0.0.1:1/d?sslmode=prefer&sslpassword=hunter2", id="key"),
        pytest.param("postgresql:///d?host=127.0.0.1&port=1&user=u&password=hunter2", id="query-alone"),
        pytest.param("postgresql://u:p@hunter2@127.0.0.1:1/d", id="at-sign"),
        pytest.param("postgresql+nope://u:hunter2@127.0.0.1:1/d", id="driver"),
    ],
)
def test_no_message_shows_a_password_of_the_database(url: str) -> None:
    with pytest.raises((StartError, DatabaseUnavailableError)) as refused:
        TemplateLibrary(url)
    assert "hunter2" not in str(refused.value)

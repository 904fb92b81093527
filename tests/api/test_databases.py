"""The database under the library: made, upgraded, refused, lost and found again."""

import json
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from template_api.errors import DatabaseUnavailableError, StartError
from template_api.library import TemplateLibrary
from template_api.models import SCHEMA_VERSION, UPGRADES, open_database, tables

if TYPE_CHECKING:
    from tests.api.conftest import Postgres, Store

Make = Callable[..., dict[str, Any]]


def columns(url: str) -> set[str]:
    engine = open_database(url, SCHEMA_VERSION + 1, {})
    names = {column["name"] for column in sa.inspect(engine).get_columns("templates")}
    engine.dispose()
    return names


def test_an_older_database_is_upgraded_and_keeps_its_templates(store: "Store", make_template: Make) -> None:
    store.bring(make_template("one"))
    upgrades = {SCHEMA_VERSION: ("ALTER TABLE templates ADD COLUMN author TEXT", "UPDATE templates SET author = 'me'")}
    open_database(store.url, SCHEMA_VERSION + 1, upgrades).dispose()
    assert "author" in columns(store.url)
    engine = open_database(store.url, SCHEMA_VERSION + 1, upgrades)
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT slug, author FROM templates")).all() == [("one", "me")]
        assert connection.execute(sa.select(tables()["library"].c.schema_version)).scalar() == SCHEMA_VERSION + 1
    engine.dispose()


def test_an_upgrade_that_fails_changes_nothing(store: "Store", make_template: Make) -> None:
    store.bring(make_template("one"))
    upgrades = {SCHEMA_VERSION: ("ALTER TABLE templates ADD COLUMN author TEXT", "UPDATE nowhere SET x = 1")}
    with pytest.raises(DatabaseUnavailableError):
        open_database(store.url, SCHEMA_VERSION + 1, upgrades)
    assert store.client().slugs("/api/templates") == ["one"]


def test_a_newer_database_is_refused_with_a_clear_line(store: "Store") -> None:
    open_database(store.url, SCHEMA_VERSION + 1).dispose()
    with pytest.raises(StartError, match=f"schema version {SCHEMA_VERSION + 1}, this software knows {SCHEMA_VERSION}"):
        TemplateLibrary(store.url)


def test_there_is_a_way_up_from_every_older_version() -> None:
    assert set(UPGRADES) == set(range(1, SCHEMA_VERSION))


def test_sqlite_readers_do_not_wait_for_a_writer(sqlite_store: "Store", make_template: Make, tmp_path: Path) -> None:
    sqlite_store.bring(make_template("one"))
    client = sqlite_store.client()
    writer = sqlite3.connect(tmp_path / "library.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("UPDATE templates SET title = 'Changed'")
    assert client.get("/api/templates/one").json["template"]["title"] == "Template one"
    writer.execute("ROLLBACK")
    writer.close()


def test_postgresql_without_its_driver_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StartError, match=r"pip install 'amqtt-rest-bridge\[postgres\]'"):
        open_database("postgresql+psycopg://h/d")


@pytest.mark.postgres
def test_a_lost_database_answers_500_and_service_returns_by_itself(
    own_postgres: "Postgres", tmp_path: Path, make_template: Make, serve: Callable[..., Any]
) -> None:
    library = tmp_path / "library.jsonl"
    library.write_text(json.dumps(make_template("one", title="Receive a webhook")))
    with serve("--database-url", own_postgres.new_database(), "--library", str(library)) as served:
        assert served.get("/api/templates/one").status == 200
        own_postgres.stop()
        try:
            while served.get("/api/templates/one").status == 200:  # from the cache, until the loss is noticed
                pass
            paths = ("/api/templates/one", "/api/search?q=webhook", "/api/templates?limit=7", "/health")
            lost = [served.get(path) for path in paths]
        finally:
            own_postgres.start()
        assert [(answer.status, answer.json["error"]["code"]) for answer in lost] == [
            (500, "template_unavailable"),
            (500, "search_failed"),
            (500, "search_failed"),
            (500, "library_unavailable"),
        ]
        while served.get("/api/templates").status == 500:
            pass
        assert served.get("/api/search?q=webhook").json["results"][0]["slug"] == "one"
        log = served.log.read_text()
    assert log.count("requests are answered with 500 until it is back") == 1
    assert log.count("the library's database is back") == 1
    assert "Traceback" not in log

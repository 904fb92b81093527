"""The search index beside the database: built at a start, followed, begun again, waited for."""

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from template_api.errors import IndexNotReadyError
from template_api.library import Pace, TemplateLibrary, delete_template
from template_api.ranking import SearchIndex
from template_api.records import TemplateQuery
from tests.support.library_store import Store, template

SMALL_PARTS = Pace(rows=1, first_index=60.0)
"""Indexing takes one template at a time, and a start waits for it on a slow machine too."""


def found(library: TemplateLibrary, text: str) -> set[str | None]:
    return {each.template.slug for each in library.find(TemplateQuery(text=text, limit=30)).found}


def opened(store: Store, pace: Pace | None = None) -> TemplateLibrary:
    library = TemplateLibrary(store.url, pace)
    library.refresh()
    return library


def test_a_backup_that_is_restored_is_indexed_in_parts_and_then_searched(
    sqlite_store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    slugs = {f"pump-{n}" for n in range(5)}
    sqlite_store.bring(*(template(slug, title="Pump control") for slug in sorted(slugs)))
    library = opened(sqlite_store, SMALL_PARTS)
    with sqlite3.connect(tmp_path / "library.db") as connection:
        connection.execute("DELETE FROM template_facets")
        connection.execute("DELETE FROM templates WHERE slug = 'pump-4'")
        connection.execute("UPDATE library SET version = version - 1")
    connection.close()
    slugs.remove("pump-4")
    with library._index_lock:
        library.follow()  # the thread waits until this block ends
        assert found(library, "pump") == slugs, "what is gone is shown by no answer"
        assert library._indexer.index_changes()
        with pytest.raises(IndexNotReadyError):
            found(library, "pump")
    library.refresh()
    assert found(library, "control") == slugs
    assert library.find(TemplateQuery(text="control")).total == len(slugs)
    assert len([each for each in caplog.messages if "all is indexed again" in each]) == 1
    library.close()


def test_a_template_that_is_deleted_is_nowhere_and_may_come_back(store: Store) -> None:
    pump = template("pump", title="Pump control", tags=["a"], notebooks=[{"filename": "a.lotnb", "cells": []}])
    store.bring(pump, template("valve", title="Valve control"))
    library = opened(store)
    delete_template(store.url, "pump")
    library.refresh()
    assert library.get("pump") is None
    assert library.find(TemplateQuery(text="control")).total == 1
    assert found(library, "control") == {"valve"}
    assert str(store.bring(pump)) == "1 added, 0 changed, 0 unchanged, 0 failed"
    library.refresh()
    assert found(library, "control") == {"pump", "valve"}
    library.close()


def test_before_the_first_index_searches_get_503_and_retry_after_and_all_else_is_answered(sqlite_store: Store) -> None:
    sqlite_store.bring(template("pump", title="Pump control"))
    with sqlite_store.without_index() as client:
        for path in ("/api/search?q=pump", "/api/templates?q=pump", "/api/suggest?q=pu", "/api/facets", "/ready"):
            answer = client.get(path)
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
            assert answer.json["error"]["code"] == "search_not_ready"
        assert client.post({"query": "pump"}).json["code"] == "search_not_ready"
        assert client.slugs("/api/templates") == client.posted("") == ["pump"]
        assert client.read("pump")["title"] == "Pump control"
        assert client.get("/health").json == {"status": "ok"}
        assert "template_api_ready 0" in client.page("/metrics").text
    assert sqlite_store.client().get("/ready").json == {"status": "ok"}


def test_a_start_waits_until_the_index_is_complete(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is built in parts, and committed slowly: searches right after the start found a part, or got 503."""
    slugs = {f"pump-{n}" for n in range(4)}
    sqlite_store.bring(*(template(slug, title="Pump control") for slug in slugs))
    commit = SearchIndex.commit

    def slowly(index: SearchIndex) -> None:
        threading.Event().wait(0.3)
        commit(index)

    monkeypatch.setattr(SearchIndex, "commit", slowly)
    library = TemplateLibrary(sqlite_store.url, SMALL_PARTS)
    library.follow()
    assert found(library, "pump") == slugs
    library.close()


def test_an_old_index_on_disk_is_named_once_and_not_touched(
    serve: Callable[..., Any], sqlite_url: str, tmp_path: Path
) -> None:
    old = tmp_path / "index"
    old.mkdir()
    for arguments, environment in (
        (["--index-dir", str(old)], {}),
        ([], {"XDG_CACHE_HOME": str(tmp_path)}),
    ):
        if not arguments:
            old = old.rename(tmp_path / "template-api")
        with serve("--database-url", sqlite_url, *arguments, environment=environment) as served:
            assert served.get("/ready").status == 200
            assert served.log.read_text().count(f"the folder {old} can be deleted") == 1
        assert list(old.iterdir()) == []

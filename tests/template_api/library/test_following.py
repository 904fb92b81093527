"""How a process follows the library: changed templates only, all again, a lost database, a follower thread."""

import logging
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from template_api.errors import DatabaseUnavailableError
from template_api.library import Pace, TemplateLibrary, set_status
from template_api.library.indexing import Indexer
from template_api.records import Status, TemplateQuery
from tests.support.library_store import Store, template
from tests.support.waiting import eventually


def found(library: TemplateLibrary, text: str) -> list[str | None]:
    return [each.template.slug for each in library.find(TemplateQuery(text=text)).found]


@pytest.fixture
def library(store: Store) -> Iterator[TemplateLibrary]:
    """A library of ten published templates, the newest first: t0, t1, ..."""
    store.bring(*(template(f"t{n}", title=f"Common title{n}", published_at=f"2026-01-{20 - n}") for n in range(10)))
    library = TemplateLibrary(store.url)
    yield library
    library.close()


def test_only_changed_templates_are_indexed_again(
    library: TemplateLibrary, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    library.refresh()
    store.bring(
        template("t3", title="Something else", tags=["special"], published_at="2026-01-17"),
        template("new", title="Common novelty", published_at="2026-01-15", difficulty="advanced"),
    )
    set_status(store.url, "t5", Status.HIDDEN)
    with caplog.at_level(logging.DEBUG):
        library.refresh()
    assert "3 templates put" in caplog.text
    assert found(library, "something") == ["t3"]
    assert found(library, "special") == ["t3"]
    assert found(library, "novelty") == ["new"]
    assert found(library, "title5") == []
    assert found(library, "") == ["t0", "t1", "t2", "t3", "t4", "new", "t6", "t7", "t8", "t9"]
    assert [each.template.slug for each in library.find(TemplateQuery(difficulty="advanced")).found] == ["new"]
    set_status(store.url, "t5", Status.PUBLISHED)
    library.refresh()
    assert found(library, "title5")[0] == "t5"


def test_following_outlives_a_fault_of_its_own(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[None] = []

    def fail(_indexer: Indexer) -> bool:
        calls.append(None)
        raise ZeroDivisionError

    monkeypatch.setattr(Indexer, "index_changes", fail)  # a fault of ours that nothing from outside brings about
    library = TemplateLibrary(store.url, pace=Pace(follow=0.001, first_index=0))
    library.follow()
    eventually(lambda: len(calls) > 2)
    library.close()
    assert "cannot follow the library's changes" in caplog.text


def test_a_request_looks_for_changes_itself_when_nothing_else_does(store: Store) -> None:
    store.bring(template("t0"))
    library = TemplateLibrary(store.url, pace=Pace(follow=-1))
    assert found(library, "t0") == ["t0"]
    set_status(store.url, "t0", Status.HIDDEN)
    before = library.current()
    assert library.current() >= before
    assert found(library, "t0") == []
    library.close()


def test_a_hidden_template_is_gone_from_answers_while_the_index_is_being_built(
    library: TemplateLibrary, store: Store
) -> None:
    """However long that takes: here it does not end before the test."""
    library.refresh()
    with library._index_lock:
        library.follow()
        assert found(library, "title0") == ["t0"]
        before = library.edition
        set_status(store.url, "t0", Status.HIDDEN)
        eventually(lambda: library.edition > before)
        assert found(library, "title0") == []
        assert found(library, "")[0] == "t1"
        assert library.suggest("common title0")[0] == ()
        assert library.get("t0") is None


def test_a_lost_database_is_reported_until_it_is_back(
    sqlite_store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sqlite_store.bring(template("one"))
    library = TemplateLibrary(sqlite_store.url)
    database = sqlite3.connect(tmp_path / "library.db")
    database.execute("ALTER TABLE library RENAME TO elsewhere")
    for _ in range(2):
        library.refresh()
        with pytest.raises(DatabaseUnavailableError, match=re.escape("no such table: library")):
            library.find(TemplateQuery())
    database.execute("ALTER TABLE elsewhere RENAME TO library")
    database.close()
    library.refresh()
    assert found(library, "") == ["one"]
    library.close()
    assert caplog.text.count("until it is back") == 1
    assert caplog.text.count("the library's database is back") == 1

"""The search index beside the database: opened again, built anew, shared, damaged, deleted, killed."""

import json
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from template_api.errors import IndexNotReadyError, StartError
from template_api.library import TemplateLibrary, import_templates, index_folder, indexing, set_status
from template_api.ranking import SearchIndex
from template_api.records import Status, TemplateQuery

if TYPE_CHECKING:
    from tests.api.stores import Store

Make = Callable[..., dict[str, Any]]


def found(library: TemplateLibrary, text: str) -> set[str | None]:
    return {each.summary.slug for each in library.find(TemplateQuery(text=text, limit=30)).found}


@pytest.fixture
def kept(sqlite_store: "Store", make_template: Make, tmp_path: Path) -> Path:
    """The folder of a complete index of two templates, which no process has open."""
    sqlite_store.bring(make_template("pump", title="Pump control"), make_template("valve", title="Valve control"))
    library = TemplateLibrary(sqlite_store.url, tmp_path / "index")
    library.refresh()
    library.close()
    return tmp_path / "index"


def opened(store: "Store", folder: Path) -> TemplateLibrary:
    library = TemplateLibrary(store.url, folder)
    library.refresh()
    return library


def test_an_index_that_fits_is_opened_and_not_built(
    sqlite_store: "Store", kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SearchIndex, "put", None)
    library = opened(sqlite_store, kept)
    assert found(library, "contrl x") == {"pump", "valve"}
    library.close()


def test_what_has_changed_meanwhile_is_seen(sqlite_store: "Store", kept: Path, make_template: Make) -> None:
    sqlite_store.bring(make_template("valve", title="Tap control"), make_template("fan", title="Fan control"))
    set_status(sqlite_store.url, "pump", Status.HIDDEN)
    library = opened(sqlite_store, kept)
    assert found(library, "control") == {"fan", "valve"}
    assert found(library, "valve") == set(), "its title said so before"
    library.close()


@pytest.mark.parametrize("change", ["another library", "a backup", "a row taken out"])
def test_an_index_that_does_not_agree_with_the_database_is_built_anew(
    sqlite_store: "Store", kept: Path, make_template: Make, tmp_path: Path, change: str
) -> None:
    database = tmp_path / "library.db"
    if change == "another library":
        database.unlink()
        sqlite_store.bring(make_template("meter", title="Meter control"), make_template("fan", title="Fan control"))
        expected = {"fan", "meter"}
    else:
        connection = sqlite3.connect(database)
        with connection:
            connection.execute("DELETE FROM templates WHERE slug = 'valve'")
            if change == "a backup":
                connection.execute("UPDATE library SET version = 2")
        connection.close()
        expected = {"pump"}
    library = opened(sqlite_store, kept)
    page = library.find(TemplateQuery(text="control"))
    assert {each.summary.slug for each in page.found} == expected
    if change != "a row taken out":  # that is not a change that the API's own commands make: the next version shows it
        assert page.total == len(expected)
    set_status(sqlite_store.url, min(expected), Status.HIDDEN)
    library.refresh()
    assert library.find(TemplateQuery(text="control")).total == len(expected) - 1
    library.close()


@pytest.mark.parametrize("damage", ["a file", "the list", "all files"])
def test_a_damaged_index_is_built_anew(
    sqlite_store: "Store", kept: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = {
        "a file": [next(kept.glob("*.term"))],
        "the list": [kept / "meta.json"],
        "all files": list(kept.iterdir()),
    }
    for file in damaged[damage]:
        file.write_bytes(b"?" * 1000)
    library = opened(sqlite_store, kept)
    assert found(library, "control") == {"pump", "valve"}
    assert caplog.text.count("it is built anew") == 1
    library.close()
    again = opened(sqlite_store, kept)
    assert found(again, "control") == {"pump", "valve"}
    assert caplog.text.count("it is built anew") == 1
    again.close()


def test_an_index_that_is_deleted_while_it_is_used_is_built_anew(
    sqlite_store: "Store", kept: Path, make_template: Make
) -> None:
    library = opened(sqlite_store, kept)
    shutil.rmtree(kept)
    assert found(library, "control") == {"pump", "valve"}
    sqlite_store.bring(make_template("fan", title="Fan control"))
    library.refresh()
    assert found(library, "control") == {"fan", "pump", "valve"}
    library.close()
    assert (kept / "meta.json").exists()


def test_answers_are_complete_while_a_deleted_index_is_built_anew(
    sqlite_store: "Store", make_template: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slugs = {f"pump-{n}" for n in range(5)}
    sqlite_store.bring(*(make_template(slug, title="Pump control") for slug in sorted(slugs)))
    writes, reads = opened(sqlite_store, tmp_path / "index"), opened(sqlite_store, tmp_path / "index")
    shutil.rmtree(tmp_path / "index")
    for name, value in (("_ROWS", 1), ("_PART_SECONDS", 0.0), ("_COMMIT_SECONDS", 0.0)):
        monkeypatch.setattr(indexing, name, value)
    put = 0
    while writes._indexer.work():
        reads._indexer.work()
        put += 1
        assert found(writes, "pump") == found(reads, "pump") == slugs
    assert put > len(slugs), "it was built in parts"
    set_status(sqlite_store.url, "pump-0", Status.HIDDEN)
    for library in (writes, reads):
        library.refresh()
        assert library.find(TemplateQuery(text="pump")).total == len(slugs) - 1
        library.close()


def test_of_two_processes_with_one_folder_one_writes_until_it_ends(
    sqlite_store: "Store", kept: Path, make_template: Make
) -> None:
    first, second = opened(sqlite_store, kept), opened(sqlite_store, kept)
    sqlite_store.bring(make_template("fan", title="Fan control"))
    second.refresh()
    assert found(second, "control") == {"pump", "valve"}, "the first one has not looked yet"
    first.refresh()
    second.refresh()
    assert found(first, "control") == found(second, "control") == {"fan", "pump", "valve"}
    first.close()
    set_status(sqlite_store.url, "fan", Status.HIDDEN)
    second.refresh()
    assert second.find(TemplateQuery(text="control")).total == 2
    second.close()


def test_a_search_before_the_first_part_gets_503_and_retry_after(
    sqlite_store: "Store", make_template: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite_store.bring(make_template("pump", title="Pump control"))
    client = sqlite_store.client()
    monkeypatch.setattr(client.library, "refresh", lambda: None)
    monkeypatch.setattr(client.library, "_ranking", not_ready)
    for path in ("/api/search?q=pump", "/api/templates?q=pump", "/api/suggest?q=pu", "/api/facets"):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        assert answer.json["error"]["code"] == "search_not_ready"
    assert client.post({"query": "pump"}).json["code"] == "search_not_ready"
    assert client.slugs("/api/templates") == ["pump"]
    assert client.get("/api/templates/pump").status_code == 200
    assert len(client.post({"query": ""}).json["results"]) == 1


def not_ready() -> None:
    raise IndexNotReadyError("not yet")


def test_each_database_has_a_folder_of_its_own_and_passwords_do_not_matter(tmp_path: Path) -> None:
    def name(url: str) -> str:
        folder = index_folder(url, str(tmp_path / "kept"))
        assert folder is not None
        return folder.name

    urls = ("sqlite:///a.db", "sqlite:///b.db", "postgresql://u:p@h/a", "postgresql://u:p@h/b", "postgresql://u:p@i/a")
    assert len({name(url) for url in urls}) == len(urls)
    assert name("sqlite:///a.db") == name(f"sqlite:///{Path.cwd() / '..' / Path.cwd().name / 'a.db'}")
    assert name("postgresql://u:other@h/a") == name("postgresql+psycopg://u:p@h/a")


def test_an_index_dir_that_cannot_be_used_is_refused_and_a_cache_folder_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match=r"index_dir .*file/x"):
        index_folder("sqlite:///a.db", str(tmp_path / "file" / "x"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert index_folder("sqlite:///a.db", None) is None
    assert "kept in memory" in caplog.text
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = index_folder("sqlite:///a.db", None)
    assert folder is not None
    assert folder.parent == tmp_path / "cache" / "template-api"


def test_a_process_that_is_killed_while_it_indexes_is_followed_by_one_with_the_right_answers(
    sqlite_store: "Store", make_template: Make, tmp_path: Path, serve: Callable[..., Any]
) -> None:
    file = tmp_path / "many.jsonl"
    rare = [f"needle{n}" for n in range(3)]
    lines = [make_template(f"t{n}", title=f"Common {rare[n % 3]}", content=f"words {n} " * 200) for n in range(1500)]
    file.write_text("".join(json.dumps(each) + "\n" for each in lines))
    import_templates(sqlite_store.url, file)
    arguments = ("--database-url", sqlite_store.url, "--index-dir", str(tmp_path / "kept"))
    for _ in range(3):
        with serve(*arguments) as served:
            assert served.get("/api/templates?limit=1").status == 200
            os.kill(served.process.pid, signal.SIGKILL)
    set_status(sqlite_store.url, "t0", Status.HIDDEN)
    with serve(*arguments) as served:
        for text, count in (("needle0", 499), ("needle1", 500), ("needle2", 500)):
            until_complete(served, text, count)
        assert served.get("/api/templates/t0").status == 404


def until_complete(served: Any, text: str, count: int) -> None:
    """Ask again and again; a wait without an end would end the test."""
    while served.get(f"/api/search?q={text}&limit=1").headers.get("x-total-count") != str(count):
        pass


def test_an_answer_that_a_caller_holds_is_gone_when_its_template_is_hidden(
    sqlite_store: "Store", make_template: Make, serve: Callable[..., Any]
) -> None:
    sqlite_store.bring(make_template("pump", title="Pump control"), make_template("valve", title="Valve control"))
    with serve("--database-url", sqlite_store.url) as served:
        held = served.get("/api/templates/pump").headers["etag"]
        assert served.get("/api/templates/pump", {"If-None-Match": held}).status == 304
        assert len(served.get("/api/search?q=pump+control").json["results"]) == 2
        set_status(sqlite_store.url, "pump", Status.DRAFT)
        while served.get("/api/templates/pump", {"If-None-Match": held}).status == 304:
            pass
        assert served.get("/api/templates/pump", {"If-None-Match": held}).status == 404
        assert len(served.get("/api/search?q=pump+control").json["results"]) == 1
        assert "Pump" not in served.get("/api/suggest?q=pu").content.decode()

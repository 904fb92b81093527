"""The search index beside the database: opened again, rebuilt, shared, damaged, deleted, killed."""

import json
import os
import resource
import shutil
import signal
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from template_api.errors import StartError
from template_api.library import Pace, TemplateLibrary, import_templates, index_folder, set_status
from template_api.library.indexing import LastingFault
from template_api.ranking import SearchIndex
from template_api.records import Status, TemplateQuery
from tests.support.forked import TEMPLATE_API, Forked
from tests.support.served_api import READY
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.support.library_store import Client, Store

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


def opened(store: "Store", folder: Path, pace: Pace | None = None) -> TemplateLibrary:
    library = TemplateLibrary(store.url, folder, pace)
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
def test_an_index_that_does_not_agree_with_the_database_is_rebuilt(
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


@pytest.mark.parametrize("damage", ["a file", "the list", "all files", "its name", "a folder"])
def test_a_damaged_index_is_rebuilt(
    sqlite_store: "Store", kept: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    index = kept / (kept / "current").read_text()
    damaged = {
        "a file": [next(index.glob("*.term"))],
        "the list": [index / "meta.json"],
        "all files": list(index.iterdir()),
        "its name": [kept / "current"],
    }
    for file in damaged.get(damage, []):
        file.write_bytes(b"?" * 1000)
    if damage == "a folder":
        damaged["a file"][0].unlink()
        damaged["a file"][0].mkdir()
    library = opened(sqlite_store, kept)
    assert found(library, "control") == {"pump", "valve"}
    assert caplog.text.count("it is rebuilt") == 1
    library.close()
    again = opened(sqlite_store, kept)
    assert found(again, "control") == {"pump", "valve"}
    assert caplog.text.count("it is rebuilt") == 1
    again.close()


def test_an_index_that_is_deleted_while_it_is_used_is_rebuilt(
    sqlite_store: "Store", kept: Path, make_template: Make
) -> None:
    library = opened(sqlite_store, kept)
    shutil.rmtree(kept)
    assert found(library, "control") == {"pump", "valve"}
    sqlite_store.bring(make_template("fan", title="Fan control"))
    library.refresh()
    assert found(library, "control") == {"fan", "pump", "valve"}
    library.close()
    assert (kept / "current").exists()


# On a slow machine, a search would index the rest itself, and a start would not wait long enough.
SMALL_PARTS = Pace(rows=1, part=0.0, overdue=float("inf"), first_index=60.0)
"""Indexing takes one template at a time."""


def test_answers_are_complete_while_a_deleted_index_is_rebuilt(
    sqlite_store: "Store", make_template: Make, tmp_path: Path
) -> None:
    slugs = {f"pump-{n}" for n in range(5)}
    sqlite_store.bring(*(make_template(slug, title="Pump control") for slug in sorted(slugs)))
    writes, reads = (opened(sqlite_store, tmp_path / "index", SMALL_PARTS) for _ in range(2))
    shutil.rmtree(tmp_path / "index")
    parts = 0
    while writes._indexer.work():
        reads._indexer.work()
        parts += 1
        assert found(writes, "pump") == found(reads, "pump") == slugs
    assert parts >= len(slugs), "it was built in parts"
    set_status(sqlite_store.url, "pump-0", Status.HIDDEN)
    for library in (writes, reads):
        library.refresh()
        assert library.find(TemplateQuery(text="pump")).total == len(slugs) - 1
        library.close()


@pytest.mark.parametrize("change", ["a backup", "a row taken out"])
def test_changes_are_found_in_the_old_index_while_a_new_one_is_built(
    sqlite_store: "Store", make_template: Make, tmp_path: Path, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    slugs = {f"pump-{n}" for n in range(5)}
    sqlite_store.bring(*(make_template(slug, title="Pump control") for slug in sorted(slugs)))
    library = opened(sqlite_store, tmp_path / "index", SMALL_PARTS)
    with sqlite3.connect(tmp_path / "library.db") as connection:
        connection.execute("DELETE FROM templates WHERE slug = 'pump-4'")
        if change == "a backup":
            connection.execute("UPDATE library SET version = version - 1")
    connection.close()
    set_status(sqlite_store.url, "pump-1", Status.HIDDEN)
    if change == "a backup":  # its versions come again for other changes
        sqlite_store.bring(make_template("valve", title="Valve control"))
    slugs -= {"pump-4", "pump-1"}
    late, parts = "", 0
    while library._indexer.work():
        assert found(library, "pump") == slugs, "what is gone is shown by no answer"
        parts += 1
        if parts == 3:
            late = "fan"
            sqlite_store.bring(make_template(late, title="Fan control"))
        elif parts > 4:
            assert found(library, "fan") == {late}
    assert parts > len(slugs), "it was built in parts"
    assert library.find(TemplateQuery(text="control")).total == len(slugs) + 1 + (change == "a backup")
    assert len([each for each in caplog.messages if "all is indexed again" in each]) == 1
    library.close()


def test_the_index_of_another_library_is_not_searched(
    sqlite_store: "Store", kept: Path, make_template: Make, tmp_path: Path
) -> None:
    library = opened(sqlite_store, kept, SMALL_PARTS)
    aside = tmp_path / "aside"
    aside.mkdir()
    for file in tmp_path.glob("library.db*"):
        file.rename(aside / file.name)
    library._engine.dispose()
    sqlite_store.bring(make_template("meter", title="Meter control"), make_template("fan", title="Fan control"))
    assert library._indexer.work()
    assert library._indexer.ranking is None
    library.refresh()
    assert library.find(TemplateQuery(text="control")).total == 2
    assert found(library, "control") == {"fan", "meter"}
    library.close()


def test_a_process_that_is_killed_while_it_rebuilds_leaves_the_old_index(
    sqlite_store: "Store", kept: Path, make_template: Make
) -> None:
    name = (kept / "current").read_text()
    sqlite_store.bring(*(make_template(f"pump-{n}", title="Pump control") for n in range(4)))
    with sqlite3.connect(kept.parent / "library.db") as connection:
        connection.execute("DELETE FROM templates WHERE slug = 'pump'")
    connection.close()
    killed = TemplateLibrary(sqlite_store.url, kept, SMALL_PARTS)
    while len(list(kept.iterdir())) < 4:
        assert killed._indexer.work()
    killed.close()  # its lock; nothing else is written here
    assert (kept / "current").read_text() == name
    library = opened(sqlite_store, kept, SMALL_PARTS)
    assert library.find(TemplateQuery(text="control")).total == 5
    assert (kept / "current").read_text() != name
    assert len(list(kept.iterdir())) == 3
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


def test_a_search_before_the_first_part_gets_503_and_retry_after(sqlite_store: "Store", make_template: Make) -> None:
    sqlite_store.bring(make_template("pump", title="Pump control"))
    with sqlite_store.without_index() as client:
        _check_answers_without_index(client)


def _check_answers_without_index(client: "Client") -> None:
    for path in ("/api/search?q=pump", "/api/templates?q=pump", "/api/suggest?q=pu", "/api/facets"):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        assert answer.json["error"]["code"] == "search_not_ready"
    assert client.post({"query": "pump"}).json["code"] == "search_not_ready"
    assert client.slugs("/api/templates") == ["pump"]
    assert client.get("/api/templates/pump").status_code == 200
    assert len(client.post({"query": ""}).json["results"]) == 1


@pytest.mark.parametrize("seconds", [0.0, 0.7])
def test_a_start_waits_until_a_first_index_is_complete(
    sqlite_store: "Store", make_template: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seconds: float
) -> None:
    """It is built in parts, and committed slowly: searches right after the start found a part, or got 503."""
    slugs = {f"pump-{n}" for n in range(4)}
    sqlite_store.bring(*(make_template(slug, title="Pump control") for slug in slugs))
    commit = SearchIndex.commit

    def slowly(index: SearchIndex, state: str) -> None:
        if index.ranking.state is None:
            threading.Event().wait(seconds)
        commit(index, state)

    monkeypatch.setattr(SearchIndex, "commit", slowly)
    library = TemplateLibrary(sqlite_store.url, tmp_path / "index", SMALL_PARTS)
    library.follow()
    assert found(library, "pump") == slugs
    library.close()


def test_a_start_does_not_wait_for_what_a_kept_index_lacks(
    sqlite_store: "Store", kept: Path, make_template: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite_store.bring(make_template("fan", title="Fan control"))
    library, gate = TemplateLibrary(sqlite_store.url, kept), threading.Event()
    monkeypatch.setattr(SearchIndex, "put", lambda *_: gate.wait(60))
    library.follow()
    assert found(library, "control") == {"pump", "valve"}
    monkeypatch.undo()
    gate.set()
    library.close()


def test_a_disk_that_is_full_is_logged_once_and_so_is_its_end(
    sqlite_store: "Store", make_template: Make, tmp_path: Path, serve: Callable[..., Any]
) -> None:
    """Files that may have no bytes, and then may again."""
    sqlite_store.bring(make_template("pump", title="Pump control"))
    arguments = ("--database-url", sqlite_store.url, "--index-dir", str(tmp_path / "kept"), "--log-level", "DEBUG")
    with serve(*arguments) as served:
        resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        sqlite_store.bring(make_template("valve", title="Valve control"))
        eventually(lambda: served.log.read_text().count("templates put in") > 8, "it does not try again")
        assert served.get("/api/search?q=pump").json["results"]
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE, unlimited)
        eventually(lambda: served.get("/api/search?q=valve").json["results"], "the change is not seen")
        ended = "WARNING - the search index can be written again, after "
        eventually(lambda: served.log.read_text().count(ended) == 1, "its end is not logged")
        logged = served.log.read_text()
    assert [line.rpartition(": ")[2] for line in logged.splitlines() if "ERROR" in line] == [
        "File too large; searches do not see changes until it can be written again"
    ]
    assert logged.count(ended) == 1


def test_a_fault_that_lasts_is_logged_at_growing_intervals(caplog: pytest.LogCaptureFixture) -> None:
    seconds = 0
    fault = LastingFault(lambda: seconds)
    logged = []
    for seconds in range(0, 3 * 3600):
        fault.met(ValueError("full"))
        if caplog.messages:
            logged.append(seconds)
            caplog.clear()
    minutes = [second // 60 for second in logged]
    assert minutes == [0, 1, 3, 7, 15, 31, 63, 123]
    fault.ended()
    assert caplog.messages == [f"the search index can be written again, after {3 * 3600} attempts that failed"]
    caplog.clear()
    fault.ended()
    assert caplog.messages == []


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
    lines = [make_template(f"t{n}", title=f"Common {rare[n % 3]}", content=f"words {n} " * 200) for n in range(300)]
    file.write_text("".join(json.dumps(each) + "\n" for each in lines))
    import_templates(sqlite_store.url, file)
    arguments = ("--database-url", sqlite_store.url, "--index-dir", str(tmp_path / "kept"))
    for _ in range(3):
        process = Forked(TEMPLATE_API, ["serve", "--port", "0", *arguments], tmp_path)
        assert process.stdout is not None
        assert process.stderr is not None
        with process.stdout, process.stderr:
            assert any("the index is" in line or READY in line for line in process.stderr), "it ended at its start"
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
    set_status(sqlite_store.url, "t0", Status.HIDDEN)
    with serve(*arguments) as served:
        for text, count in (("needle0", 99), ("needle1", 100), ("needle2", 100)):
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

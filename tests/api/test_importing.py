"""Imports: folders, .jsonl files, versions, states, faults. On both databases where the database matters."""

import io
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from template_api.errors import DatabaseUnavailableError, StartError, UnknownTemplateError
from template_api.library import fill_empty_library, import_templates, listed_templates, set_status
from template_api.library.database import open_database
from template_api.library.tables import tables
from template_api.library.writer import template_id
from template_api.progress import Progress
from template_api.records import Status
from template_api.sources.reading import Reading, read_templates

if TYPE_CHECKING:
    from tests.api.conftest import Store

Make = Callable[..., dict[str, Any]]
UUID = "11111111-2222-4333-8444-555555555555"
CELLS = [{"kind": 2, "language": "lot", "value": "DEFINE ROUTE A WITH TYPE REST_API"}]


def write_folder(folder: Path, yaml: str, content: str | None = None, **notebooks: object) -> Path:
    folder.mkdir(parents=True)
    folder.joinpath("template.yaml").write_text(yaml)
    if content is not None:
        folder.joinpath("README.md").write_text(content)
    for name, cells in notebooks.items():
        folder.joinpath(f"{name}.lotnb").write_text(cells if isinstance(cells, str) else json.dumps(cells))
    return folder


def statuses(url: str) -> dict[str | None, str]:
    return {each.slug: each.status for each in listed_templates(url)}


def read_one(store: "Store", name: str = "one") -> dict[str, Any]:
    return dict(store.client().get(f"/api/templates/{name}").json["template"])


def faults(path: Path) -> list[str]:
    return [str(fault) for reading in read_templates(path) for fault in reading.faults]


def test_a_folder_is_imported_with_everything_it_says(store: "Store", tmp_path: Path) -> None:
    write_folder(
        tmp_path / "library" / "deep" / "weather",
        """\
id: weather-report
title: Poll the weather
summary: Ask a service
category: Integration
difficulty: Beginner
tags: [http, "2024"]
primitives: [action]
protocols:
  - CoAP
services: OpenWeather
routes: [MQTT_BRIDGE]
verified_broker_version: 1.10
published_at: 2026-03-01 12:00:00+02:00
notebooks:
  - second.lotnb
  - {filename: first.lotnb, is_primary: true}
""",
        "# Weather\n\nText",
        first=CELLS,
        second=[{"kind": 1, "language": "markdown", "value": "# Notes"}],
        third=[],
    )
    report = import_templates(store.url, tmp_path / "library")
    assert str(report) == "1 added, 0 changed, 0 unchanged, 0 failed"
    client = store.client()
    [summary] = client.get("/api/templates").json["results"]
    assert summary["slug"] == "weather-report"
    assert summary["id"] == template_id("weather-report")
    assert summary["short_description"] == "Ask a service"
    assert summary["difficulty"] == "beginner"
    assert summary["broker_version"]["name"] == "1.10"
    assert [each["name"] for each in summary["tags"]] == ["http", "2024"]
    assert [each["name"] for each in summary["routes"]] == ["MQTT_BRIDGE", "REST_API"]
    read = client.get("/api/templates/weather-report").json["template"]
    assert read["content"] == "# Weather\n\nText"
    assert [(each["filename"], each["is_primary"]) for each in read["notebooks"]] == [
        ("second.lotnb", False),
        ("first.lotnb", True),
        ("third.lotnb", False),
    ]
    for word in ("action", "coap", "openweather", "integration", "notes"):
        assert client.slugs("/api/search", q=word) == ["weather-report"]
    [listed] = listed_templates(store.url)
    assert listed.published_at == "2026-03-01T10:00:00.000000Z"


def test_a_folder_without_slug_is_named_like_the_folder(store: "Store", tmp_path: Path) -> None:
    write_folder(tmp_path / "my-template", "title: Mine\n", main=CELLS)
    import_templates(store.url, tmp_path / "my-template")
    read = read_one(store, "my-template")
    assert read["content"] == ""
    assert read["notebooks"][0]["is_primary"] is True


def test_importing_twice_changes_nothing_and_no_etag(store: "Store", make_template: Make) -> None:
    templates = [
        make_template("one", tags=["MQTT", "mqtt"], notebooks=[{"filename": "a.lotnb", "cells": CELLS}]),
        make_template("two", tags=["Mqtt"], category="c"),
    ]
    assert str(store.bring(*templates)) == "2 added, 0 changed, 0 unchanged, 0 failed"
    client = store.client()
    paths = ("/api/templates", "/api/templates/one", "/api/search?q=template")
    before = [client.get(path).headers["ETag"] for path in paths]
    version = client.library.version
    assert str(store.bring(*templates)) == "0 added, 0 changed, 2 unchanged, 0 failed"
    assert [client.get(path).headers["ETag"] for path in paths] == before
    assert client.library.version == version


def test_the_same_tag_in_two_spellings_is_one_tag(store: "Store", make_template: Make) -> None:
    store.bring(make_template("one", tags=["Rest API"]), make_template("two", tags=["rest-api"]))
    client = store.client()
    tags = [client.get(f"/api/templates/{slug}").json["template"]["tags"] for slug in ("one", "two")]
    assert tags[0] == tags[1]
    assert tags[0][0]["name"] == "Rest API"


def test_an_object_may_bring_its_own_id_and_slug(store: "Store", make_template: Make) -> None:
    store.bring(make_template(category={"id": UUID.upper(), "name": "Ours", "slug": "ours", "colour": "red"}))
    assert read_one(store)["category"] == {"id": UUID, "name": "Ours", "slug": "ours"}


def test_changed_cells_make_a_new_version_and_others_keep_theirs(store: "Store", make_template: Make) -> None:
    def notebooks(value: str, *also: str) -> list[dict[str, Any]]:
        cells = [{"kind": 2, "language": "lot", "value": value}]
        return [{"filename": "a.lotnb", "cells": cells}, *({"filename": name, "cells": CELLS} for name in also)]

    def versions() -> list[tuple[str, int, str]]:
        return [(n["filename"], n["version"], n["cells"][0]["value"][:6]) for n in read_one(store)["notebooks"]]

    store.bring(make_template(notebooks=notebooks("first", "b.lotnb")))
    assert str(store.bring(make_template(notebooks=notebooks("second", "b.lotnb")))).startswith("0 added, 1 changed")
    assert versions() == [("a.lotnb", 2, "second"), ("b.lotnb", 1, "DEFINE")]
    store.bring(make_template(notebooks=notebooks("third")))
    assert versions() == [("a.lotnb", 3, "third")]
    store.bring(make_template(notebooks=notebooks("third", "b.lotnb")))
    assert versions() == [("a.lotnb", 3, "third"), ("b.lotnb", 1, "DEFINE")]
    store.bring(make_template(title="Only the title", notebooks=notebooks("third", "b.lotnb")))
    assert versions() == [("a.lotnb", 3, "third"), ("b.lotnb", 1, "DEFINE")]


def test_a_changed_template_loses_what_it_no_longer_says(store: "Store", make_template: Make) -> None:
    store.bring(
        make_template(tags=["a", "b"], category="c", difficulty="beginner", routes=["R"], url="http://x.example")
    )
    store.bring(make_template(tags=["b"]))
    [summary] = store.client().get("/api/templates").json["results"]
    assert [tag["name"] for tag in summary["tags"]] == ["b"]
    assert (summary["category"], summary["routes"]) == (None, [])
    assert "difficulty" not in summary
    assert summary["url"].endswith("/api/templates/one")


def test_a_template_with_an_id_may_change_its_slug(store: "Store", make_template: Make) -> None:
    store.bring(make_template("old", id=UUID))
    store.bring(make_template("new", id=UUID))
    assert statuses(store.url) == {"new": "published"}


def test_prune_hides_what_is_gone_and_a_later_import_brings_it_back(store: "Store", make_template: Make) -> None:
    one, two = make_template("one"), make_template("two")
    store.bring(one, two)
    assert str(store.bring(one, prune=True)) == "0 added, 0 changed, 1 unchanged, 0 failed, 1 hidden"
    assert statuses(store.url) == {"one": "published", "two": "hidden"}
    assert str(store.bring(one, prune=True)) == "0 added, 0 changed, 1 unchanged, 0 failed"
    store.bring(one, two)
    assert statuses(store.url) == {"one": "published", "two": "published"}


def test_prune_is_left_out_when_a_template_failed(store: "Store", make_template: Make) -> None:
    store.bring(make_template("one"), make_template("two"))
    report = store.bring(make_template("one"), {"slug": "two"}, prune=True)
    assert (report.failed, report.pruned) == (1, False)
    assert statuses(store.url) == {"one": "published", "two": "published"}


def test_a_state_set_by_command_outlives_an_import_that_says_nothing_new(store: "Store", make_template: Make) -> None:
    store.bring(make_template())
    assert set_status(store.url, "one", Status.HIDDEN) is True
    assert set_status(store.url, "one", Status.HIDDEN) is False
    store.bring(make_template(title="Changed"))
    assert statuses(store.url) == {"one": "hidden"}
    store.bring(make_template(status="draft"))
    assert statuses(store.url) == {"one": "draft"}


def test_publishing_a_draft_gives_it_a_date_once(store: "Store", make_template: Make) -> None:
    store.bring(make_template(status="draft"))
    assert [each.published_at for each in listed_templates(store.url)] == [None]
    set_status(store.url, template_id("one").upper(), Status.PUBLISHED)
    [published] = listed_templates(store.url, Status.PUBLISHED)
    set_status(store.url, "one", Status.DRAFT)
    set_status(store.url, "one", Status.PUBLISHED)
    assert [each.published_at for each in listed_templates(store.url)] == [published.published_at]
    assert store.client().slugs("/api/templates") == ["one"]


def test_the_state_of_an_unknown_template_cannot_be_set(store: "Store") -> None:
    with pytest.raises(UnknownTemplateError, match="no template with the id or slug 'none'"):
        set_status(store.url, "none", Status.DRAFT)
    with pytest.raises(UnknownTemplateError, match="no template with the id or slug"):
        set_status(store.url, "not UTF-8: \udcff", Status.DRAFT)


@pytest.mark.parametrize(
    ("yaml", "told"),
    [
        pytest.param("title: [a\n", "template.yaml:2: is not YAML", id="not YAML"),
        pytest.param("slug: x\n", "template.yaml:1: title is required", id="no title"),
        pytest.param("title: {a: b}\n", "template.yaml:1: title must be text", id="title an object"),
        pytest.param("title: T\n\ndifficulty: hard\n", "template.yaml:3: difficulty must be one of", id="difficulty"),
        pytest.param("title: T\nstatus: live\n", "template.yaml:2: status must be one of published", id="status"),
        pytest.param("title: T\nslug: a b\n", "template.yaml:2: slug must be", id="slug"),
        pytest.param("title: T\nid: a/b\n", "template.yaml:2: id must be", id="id"),
        pytest.param("title: T\npublished_at: soon\n", "template.yaml:2: published_at must be a date", id="date"),
        pytest.param("title: T\nurl: javascript:1\n", "template.yaml:2: url must be an http", id="url"),
        pytest.param("title: T\nurl: 'http://[x'\n", "template.yaml:2: url must be an http", id="url brackets"),
        pytest.param("title: T\ntags: [{slug: }]\n", "template.yaml:2: tags must hold names", id="tag without name"),
        pytest.param("title: T\ntags: [{name: a, id: 5}]\n", "template.yaml:2: tags has an id", id="tag id"),
        pytest.param("title: T\ncategory: [a, b]\n", "template.yaml:2: category must name one thing", id="categories"),
        pytest.param("title: T\ntitle: U\n", "template.yaml:2: key 'title' comes twice", id="key twice"),
        pytest.param("- title: T\n", "template.yaml:1: must hold keys", id="a list"),
        pytest.param("", "template.yaml:1: must hold keys", id="empty"),
        pytest.param("title: T\nnotebooks: [gone.lotnb]\n", "template.yaml:2: notebooks names 'gone.lotnb'", id="gone"),
        pytest.param("title: T\nnotebooks: ['../a.lotnb']\n", "template.yaml:2: notebooks names '../a", id="outside"),
        pytest.param("title: T\nnotebooks: [{}]\n", "template.yaml:2: notebooks must hold file names", id="no name"),
        pytest.param(
            "title: T\nnotebooks: [{file: main.lotnb, primary: x}]\n", "must be true or false, not 'x'", id="flag"
        ),
        pytest.param("title: " + "x" * 501 + "\n", "template.yaml:1: title must have at most 500", id="long title"),
        pytest.param('title: "a\\0b"\n', "template.yaml:1: title holds the character NUL", id="NUL"),
        pytest.param("title: a\x07b\n", "template.yaml:1: is not YAML", id="control character"),
    ],
)
def test_a_fault_in_a_folder_is_reported_with_its_file_and_line(tmp_path: Path, yaml: str, told: str) -> None:
    folder = write_folder(tmp_path / "t", yaml, main=[])
    [fault] = faults(folder)
    assert fault.startswith(str(folder))
    assert told in fault


@pytest.mark.parametrize(
    ("notebook", "told"),
    [
        pytest.param("[\n{]", "main.lotnb:2: is not JSON", id="not JSON"),
        pytest.param("{}", "main.lotnb: notebook main.lotnb: must be a JSON array", id="no array"),
        pytest.param("[1]", "must be a JSON array of cells", id="no cells"),
        pytest.param("[NaN]", "NaN is not a JSON value", id="NaN"),
        pytest.param("[" * 100_000, "main.lotnb:1: is not JSON", id="nested"),
        pytest.param('[{"value": "\\ud800"}]', "lone surrogate", id="lone surrogate"),
    ],
)
def test_a_fault_in_a_notebook_is_reported_with_its_file(tmp_path: Path, notebook: str, told: str) -> None:
    [fault] = faults(write_folder(tmp_path / "t", "title: T\n", main=notebook))
    assert told in fault


def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    folder.joinpath("template.yaml").symlink_to("nowhere")
    assert faults(tmp_path) == [f"{folder}/template.yaml: cannot be read: No such file or directory"]


def test_a_path_that_no_file_system_takes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="cannot be read: File name too long"):
        read_templates(tmp_path / ("x" * 5000))


def test_files_that_are_not_utf8_are_reported_with_their_line(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "t", "title: T\n")
    folder.joinpath("README.md").write_bytes(b"fine\n\xff")
    assert faults(folder) == [f"{folder}/README.md:2: is not UTF-8"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        pytest.param("{", "lines.jsonl:2: is not JSON", id="not JSON"),
        pytest.param("[]", "lines.jsonl:2: must hold a JSON object", id="array"),
        pytest.param('{"title": "T"}', "lines.jsonl:2: slug is required", id="no slug"),
        pytest.param('{"slug": "a", "title": "T", "content": 5}', "content must be text", id="content"),
        pytest.param('{"slug": "a", "title": "T", "tags": 5}', "tags must be a list", id="tags"),
        pytest.param('{"slug": "a", "title": "T", "notebooks": [{"filename": "x"}]}', "JSON array of", id="cells"),
        pytest.param('{"slug": "a", "title": "\\ud800"}', "title holds a lone surrogate", id="surrogate"),
        pytest.param(
            '{"slug": "a", "title": "T", "notebooks": [{"filename": "x", "cells": []}, {"filename": "x"}]}',
            "notebooks names 'x' twice", id="notebook twice",
        ),
        pytest.param('{"slug": "a", "title": true}', "title must be text", id="boolean title"),
        pytest.param('"\xff"', "must hold a JSON object", id="text"),
    ],
)  # fmt: skip
def test_a_fault_in_a_line_is_reported_with_its_number_and_the_others_go_on(
    sqlite_store: "Store", tmp_path: Path, line: str, told: str
) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text(f'{{"slug": "before", "title": "T"}}\n{line}\n\n{{"slug": "after", "title": "T"}}\n')
    seen: list[Reading] = []
    report = import_templates(sqlite_store.url, file, observe=seen.append)
    assert report.failed == 1
    assert [told in str(fault) for each in seen for fault in each.faults] == [True]
    assert set(statuses(sqlite_store.url)) == {"before", "after"}


def test_a_line_that_is_not_utf8_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_bytes(b'{"slug": "\xff"}\n')
    assert faults(file) == [f"{file}:1: is not UTF-8 at byte 10"]


def test_two_templates_of_one_slug_are_one_too_many(store: "Store", make_template: Make) -> None:
    report = store.bring(make_template("one"), make_template("one", title="Other"))
    assert (report.failed, read_one(store)["title"]) == (1, "Template one")


def test_a_slug_of_another_template_is_refused_and_nothing_is_half_written(store: "Store", make_template: Make) -> None:
    store.bring(make_template("one", id=UUID))
    thief = make_template("one", id="99999999-2222-4333-8444-555555555555", tags=["new"])
    report = store.bring(thief, make_template("two", tags=["new"]))
    assert (report.failed, str(report)) == (1, "1 added, 0 changed, 0 unchanged, 1 failed")
    assert set(statuses(store.url)) == {"one", "two"}


def test_cells_may_hold_what_json_can_escape(store: "Store", make_template: Make) -> None:
    cells = [{"kind": 1, "language": "markdown", "value": ["a\0b", "line"], "extra": {"deep": [1.5, None, True]}}]
    store.bring(make_template(notebooks=[{"filename": "ü.lotnb", "cells": cells}]))
    assert read_one(store)["notebooks"][0]["cells"] == cells


def test_routes_are_read_from_the_notebooks_but_not_from_comments(store: "Store", make_template: Make) -> None:
    lot = """\
// DEFINE ROUTE Not WITH TYPE COMMENTED
/* DEFINE ROUTE Not WITH TYPE
DEFINE ROUTE Not WITH TYPE BLOCK */
define route A with type rest_api
  ADD REST_API_CONFIG
DEFINE ROUTE B
    WITH TYPE KAFKA
"""
    cells = [
        {"kind": 2, "language": "lot", "value": lot},
        {"kind": 1, "language": "markdown", "value": "DEFINE ROUTE Not WITH TYPE PROSE"},
    ]
    store.bring(make_template(routes=["rest-api"], notebooks=[{"filename": "a.lotnb", "cells": cells}]))
    assert [route["name"] for route in read_one(store)["routes"]] == ["rest-api", "KAFKA"]


def test_a_blank_title_is_warned_of_and_replaced_by_the_slug(
    sqlite_store: "Store", tmp_path: Path, make_template: Make
) -> None:
    [reading] = read_templates(write_folder(tmp_path / "t", "slug: x\ntitle: ' '\n"))
    assert reading.warnings == (f"{tmp_path}/t/template.yaml:2: warning: title is blank; the slug is used instead",)
    sqlite_store.bring(make_template("one", title=" "), {"id": UUID, "title": ""})
    client = sqlite_store.client()
    assert client.get("/api/templates/one").json["template"]["title"] == "one"
    assert client.get(f"/api/templates/{UUID}").json["template"]["title"] == UUID


def test_unknown_keys_are_warned_of_with_what_was_meant(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "t", "title: T\ndificulty: beginner\nzzz: 1\n")
    [reading] = read_templates(folder)
    assert reading.warnings == (
        f"{folder}/template.yaml:2: warning: unknown key 'dificulty' is not read; did you mean 'difficulty'?",
    )


@pytest.mark.parametrize(
    ("name", "told"),
    [("none", "there is no such file or folder"), ("empty", "no template.yaml was found"), ("file.txt", "neither")],
)
def test_a_path_without_templates_is_refused(tmp_path: Path, name: str, told: str) -> None:
    tmp_path.joinpath("empty").mkdir()
    tmp_path.joinpath("file.txt").write_text("")
    with pytest.raises(StartError, match=told):
        read_templates(tmp_path / name)


def test_progress_draws_a_bar_on_a_terminal_and_prints_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    write_folder(tmp_path / "good", "title: T\ntag: 1\n")
    write_folder(tmp_path / "wrong", "slug: x\n")
    screens = []
    for stream in (Terminal(), io.StringIO()):
        with Progress(stream) as progress:
            for reading in read_templates(tmp_path):
                progress.show(reading)
        screens.append(stream.getvalue())
    assert "importing" in screens[0]
    assert "100%" in screens[0]
    assert "\x1b" not in screens[1]
    assert "importing" not in screens[1]
    for screen in screens:
        assert "wrong/template.yaml:1: error: title is required" in screen
        assert "good/template.yaml:2: warning: unknown key 'tag'" in screen


def test_a_killed_import_leaves_whole_templates_and_the_next_one_completes_it(store: "Store", tmp_path: Path) -> None:
    templates = [
        {"slug": f"t{n}", "title": f"T{n}", "tags": ["a", "b"], "notebooks": [{"filename": "x", "cells": CELLS}]}
        for n in range(1000)
    ]
    file = tmp_path / "many.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in templates))
    engine = open_database(store.url)
    command = [sys.executable, "-m", "template_api", "import", str(file), "--database-url", store.url]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    count, imported = sa.select(sa.func.count()).select_from(tables()["templates"]), 0
    while imported < 20:
        assert process.poll() is None
        with engine.connect() as connection:
            imported = connection.execute(count).scalar_one()
    process.kill()
    process.wait()
    engine.dispose()
    client = store.client()
    done = list(statuses(store.url))
    assert 0 < len(done) < len(templates)
    for slug in done:
        read = client.get(f"/api/templates/{slug}").json["template"]
        assert [len(read["tags"]), len(read["notebooks"])] == [2, 1]
    assert import_templates(store.url, file).failed == 0
    assert len(statuses(store.url)) == len(templates)


def test_a_file_that_is_not_a_database_is_refused_with_its_reason(tmp_path: Path, make_template: Make) -> None:
    database = tmp_path / "library.db"
    database.write_text("this is not a database, and long enough to be read as a page of one" * 20)
    file = tmp_path / "one.jsonl"
    file.write_text(json.dumps(make_template()))
    with pytest.raises(DatabaseUnavailableError, match="file is not a database"):
        import_templates(f"sqlite:///{database}", file)


def test_a_folder_and_a_line_of_one_slug_are_one_template(store: "Store", tmp_path: Path, make_template: Make) -> None:
    folder, file = tmp_path / "folders", tmp_path / "library.jsonl"
    (folder / "weather").mkdir(parents=True)
    (folder / "weather" / "template.yaml").write_text("title: Folder\ncategory: A\n")
    (folder / "weather" / "README.md").write_text("of the folder")
    file.write_text(json.dumps(make_template("weather", title="Line", content="of the line")))
    seen = []
    for path, outcome in ((folder, "1 added, 0"), (file, "0 added, 1"), (file, "0 added, 0"), (folder, "0 added, 1")):
        assert str(import_templates(store.url, path)).startswith(f"{outcome} changed")
        client = store.client()
        assert client.slugs("/api/templates") == ["weather"]
        read = client.get("/api/templates/weather").json["template"]
        seen.append((read["id"], read["title"], read["content"]))
    assert len({id_ for id_, *_ in seen}) == 1
    in_folder, in_file = ["Folder", "of the folder"], ["Line", "of the line"]
    assert [rest for _, *rest in seen] == [in_folder, in_file, in_file, in_folder]


def test_a_first_import_that_was_cut_off_is_taken_up_again(store: "Store", tmp_path: Path, make_template: Make) -> None:
    file = tmp_path / "library.jsonl"
    file.write_text("".join(json.dumps(make_template(f"t{n}")) + "\n" for n in range(4)))

    def cut_off(reading: Reading) -> None:
        if reading.done > reading.total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill_empty_library(store.url, file, cut_off)
    assert 0 < len(statuses(store.url)) < 4
    assert str(fill_empty_library(store.url, file)) == "1 added, 0 changed, 3 unchanged, 0 failed"
    assert fill_empty_library(store.url, file) is None


def test_a_first_import_that_never_began_is_not_taken_up_over_another_library(
    store: "Store", tmp_path: Path, make_template: Make
) -> None:
    with pytest.raises(StartError, match="there is no such file"):
        fill_empty_library(store.url, tmp_path / "mistyped")
    store.bring(make_template("by-hand"))
    file = tmp_path / "library.jsonl"
    file.write_text(json.dumps(make_template("sample")))
    assert fill_empty_library(store.url, file) is None
    assert statuses(store.url) == {"by-hand": "published"}


def test_of_two_imports_the_second_waits(store: "Store", make_template: Make, tmp_path: Path) -> None:
    """The first one stops in the middle until the second has said that it waits."""
    files = [tmp_path / f"{name}.jsonl" for name in ("first", "second")]
    for file in files:
        file.write_text("".join(json.dumps(make_template(f"{file.stem}-{n}")) + "\n" for n in range(3)))
    waits, order = threading.Event(), []
    begun = threading.Event()

    def pause(_reading: Reading) -> None:
        begun.set()
        assert waits.wait(60)
        order.append("first")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(import_templates, store.url, files[0], observe=pause)
        assert begun.wait(60)
        second = pool.submit(
            import_templates, store.url, files[1], observe=lambda _: order.append("second"), on_wait=waits.set
        )
        assert str(first.result()) == str(second.result()) == "3 added, 0 changed, 0 unchanged, 0 failed"
    assert order == ["first"] * 3 + ["second"] * 3
    waited: list[None] = []
    import_templates(store.url, files, on_wait=lambda: waited.append(None))
    assert waited == [], "the lock was released"

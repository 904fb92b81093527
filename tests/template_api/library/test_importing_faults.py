"""What is wrong with templates, reported with its place; the others are imported."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from template_api.errors import StartError
from template_api.library import import_templates
from template_api.sources.reading import Reading, read_templates
from tests.template_api.library.imports import faults, read_one, statuses, write_folder

if TYPE_CHECKING:
    from tests.support.library_store import Store

Make = Callable[..., dict[str, Any]]
UUID = "11111111-2222-4333-8444-555555555555"


@pytest.mark.parametrize(
    ("yaml", "told"),
    [
        pytest.param("title: [a\n", "template.yaml:2: is not YAML", id="not YAML"),
        pytest.param("slug: x\n", "template.yaml:1: title is required", id="no title"),
        pytest.param("title: {a: b}\n", "template.yaml:1: title must be text", id="title an object"),
        pytest.param("title: T\n\ndifficulty: hard\n", "template.yaml:3: difficulty must be one of", id="difficulty"),
        pytest.param("title: T\nstatus: live\n", "template.yaml:2: status must be one of 'published'", id="status"),
        pytest.param("title: T\nslug: a b\n", "template.yaml:2: slug must be", id="slug"),
        pytest.param("title: T\nid: a/b\n", "template.yaml:2: id must be", id="id"),
        pytest.param("title: T\npublished_at: soon\n", "template.yaml:2: published_at must be a date", id="date"),
        pytest.param("title: T\nurl: javascript:1\n", "template.yaml:2: url must be an http", id="url"),
        pytest.param("title: T\nurl: 'http://[x'\n", "template.yaml:2: url must be an http", id="url brackets"),
        pytest.param("title: T\ntags: [{slug: }]\n", "yaml:2: tags entry 1: must hold names", id="tag without name"),
        pytest.param("title: T\ntags: [{name: a, id: [b]}]\n", "yaml:2: tags entry 1: id must be text", id="tag id"),
        pytest.param(f"title: T\ntags: [{'x' * 2001}]\n", "yaml:2: tags entry 1: must hold names", id="long tag"),
        pytest.param("title: T\ncategory: [a, b]\n", "template.yaml:2: category name must be text", id="categories"),
        pytest.param("title: T\ntitle: U\n", "template.yaml:2: key 'title' comes twice", id="key twice"),
        pytest.param("- title: T\n", "template.yaml:1: must hold keys", id="a list"),
        pytest.param("", "template.yaml:1: must hold keys", id="empty"),
        pytest.param("title: T\nnotebooks: [gone.lotnb]\n", "template.yaml:2: notebooks names 'gone.lotnb'", id="gone"),
        pytest.param("title: T\nnotebooks: ['../a.lotnb']\n", "template.yaml:2: notebooks names '../a", id="outside"),
        pytest.param("title: T\nnotebooks: [{}]\n", "template.yaml:2: notebooks entry 1: filename is", id="no name"),
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
        pytest.param("{}", "main.lotnb: must be a JSON array", id="no array"),
        pytest.param("[1]", "must be a JSON array of cells", id="no cells"),
        pytest.param('[{"a": NaN}]', "main.lotnb: Out of range float values are not JSON", id="NaN"),
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


@pytest.mark.parametrize(
    ("line", "told"),
    [
        pytest.param("{", "lines.jsonl:2: is not JSON", id="not JSON"),
        pytest.param("[]", "lines.jsonl:2: must hold a JSON object", id="array"),
        pytest.param('{"title": "T"}', "lines.jsonl:2: slug is required", id="no slug"),
        pytest.param('{"slug": "a", "title": "T", "content": []}', "content must be text", id="content"),
        pytest.param('{"slug": "a", "title": "T", "tags": 5}', "tags must be a list", id="tags"),
        pytest.param('{"slug": "a", "title": "T", "notebooks": [{"filename": "x"}]}', "JSON array of", id="cells"),
        pytest.param('{"slug": "a", "title": "\\ud800"}', "title holds a lone surrogate", id="surrogate"),
        pytest.param(
            '{"slug": "a", "title": "T", "notebooks": [{"file": "x", "cells": []}, {"file": "x", "cells": []}]}',
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
    assert faults(file) == [f"{file}:1: 'utf-8' codec can't decode byte 0xff in position 10: invalid start byte"]


def test_two_templates_of_one_slug_are_one_too_many(store: "Store", make_template: Make) -> None:
    report = store.bring(make_template("one"), make_template("one", title="Other"))
    assert (report.failed, read_one(store)["title"]) == (1, "Template one")


def test_a_slug_of_another_template_is_refused_and_nothing_is_half_written(store: "Store", make_template: Make) -> None:
    store.bring(make_template("one", id=UUID))
    thief = make_template("one", id="99999999-2222-4333-8444-555555555555", tags=["new"])
    report = store.bring(thief, make_template("two", tags=["new"]))
    assert (report.failed, str(report)) == (1, "1 added, 0 changed, 0 unchanged, 1 failed")
    assert set(statuses(store.url)) == {"one", "two"}


def test_an_id_of_another_tag_is_refused_in_one_import_in_the_next_and_in_one_template(
    store: "Store", make_template: Make
) -> None:
    one, other = {"name": "One", "id": UUID}, {"name": "Other", "id": UUID}
    report = store.bring(make_template("a", tags=[one]), make_template("b", tags=[other]))
    assert report.failed == 1
    assert store.bring(make_template("c", tags=[other]), make_template("d", tags=["new", one, other])).failed == 2
    assert store.bring(make_template("e", tags=[other["name"]], category={"name": "One", "id": UUID})).failed == 0
    assert set(statuses(store.url)) == {"a", "e"}


def test_a_blank_title_is_replaced_by_the_slug(sqlite_store: "Store", make_template: Make) -> None:
    sqlite_store.bring(make_template("one", title=" "), {"id": UUID, "title": ""})
    client = sqlite_store.client()
    assert client.get("/api/templates/one").json["template"]["title"] == "one"
    assert client.get(f"/api/templates/{UUID}").json["template"]["title"] == UUID


def test_a_date_to_come_sorts_as_it_says(sqlite_store: "Store", make_template: Make) -> None:
    sqlite_store.bring(make_template("today"), make_template("later", published_at="2931-01-01"))
    assert sqlite_store.client().slugs("/api/templates") == ["later", "today"]


@pytest.mark.parametrize(
    ("name", "told"),
    [("none", "there is no such file or folder"), ("empty", "no template.yaml was found"), ("file.txt", "neither")],
)
def test_a_path_without_templates_is_refused(tmp_path: Path, name: str, told: str) -> None:
    tmp_path.joinpath("empty").mkdir()
    tmp_path.joinpath("file.txt").write_text("")
    with pytest.raises(StartError, match=told):
        read_templates(tmp_path / name)

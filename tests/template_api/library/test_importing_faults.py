"""What is wrong with templates, reported with its place; the others are imported."""

from pathlib import Path

import pytest

from template_api.errors import StartError
from template_api.library import import_templates
from template_api.sources.reading import Reading, read_templates
from tests.support.library_store import Store, template
from tests.template_api.library.imports import OTHER_UUID, UUID, faults, statuses, write_folder, write_lines


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
        pytest.param("title: T\nnotebooks: [/etc/passwd]\n", "which is not a .lotnb file of this folder", id="etc"),
        pytest.param("title: T\nnotebooks: [x/../main.lotnb]\n", "which is not a .lotnb file of", id="a way back"),
        pytest.param("title: T\nnotebooks: [{}]\n", "template.yaml:2: notebooks entry 1: filename is", id="no name"),
        pytest.param("title: T\nnotebooks: [{name: main.lotnb, primary: x}]\n", "true or false, not 'x'", id="flag"),
        pytest.param("title: T\nnotebooks: {a: main.lotnb, b: main.lotnb}\n", "names 'main.lotnb' twice", id="twice"),
        pytest.param("title: T\nnotebooks: {a: {cells: []}}\n", "entry 1: filename is required", id="role, no name"),
        pytest.param('title: T\nnotebooks: {"a\\0b": main.lotnb}\n', "entry 1: role holds the character", id="role"),
        pytest.param("title: " + "x" * 501 + "\n", "template.yaml:1: title must have at most 500", id="long title"),
        pytest.param('title: "a\\0b"\n', "template.yaml:1: title holds the character NUL", id="NUL"),
        pytest.param("title: a\x07b\n", "template.yaml:1: is not YAML", id="control character"),
        pytest.param("title: !!binary One\nservices: [!!python/name:os.system [id]]\n", "1: name must be", id="tag"),
    ],
)
def test_a_fault_in_a_folder_is_reported_with_its_file_and_line(tmp_path: Path, yaml: str, told: str) -> None:
    folder = write_folder(tmp_path / "t", yaml, main=[])
    [fault] = faults(folder)
    assert fault.startswith(f"{folder}/template.yaml:")
    assert told in fault


@pytest.mark.parametrize(
    ("notebook", "told"),
    [
        pytest.param("[\n{]", "main.lotnb:2: is not JSON", id="not JSON"),
        pytest.param("{}", "main.lotnb: must be a JSON array", id="no array"),
        pytest.param("[1]", "must be a JSON array of cells", id="no cells"),
        pytest.param('[{"a": NaN}]', "main.lotnb: Out of range float values are not JSON", id="NaN"),
        pytest.param('[{"value": 1e999}]', "Out of range float values are not JSON compliant", id="infinite"),
        pytest.param('[{"a": ' + "[" * 100 + "]" * 100 + "}]", "nested more than 100 deep", id="nested"),
        pytest.param("[" * 100_000, "main.lotnb:1: is not JSON", id="nested beyond all measure"),
        pytest.param('[{"value": "\\ud800"}]', "lone surrogate", id="lone surrogate"),
    ],
)
def test_a_fault_in_a_notebook_is_reported_with_its_file(tmp_path: Path, notebook: str, told: str) -> None:
    [fault] = faults(write_folder(tmp_path / "t", "title: T\n", main=notebook))
    assert told in fault


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
            '{"slug": "a", "title": "T", "notebooks": [{"file": "\\ud800", "cells": []}]}', "holds a lone surrogate",
            id="surrogate in the name of a file",
        ),
        pytest.param(
            '{"slug": "a", "title": "T", "notebooks": [{"file": "x", "cells": []}, {"file": "x", "cells": []}]}',
            "notebooks names 'x' twice", id="notebook twice",
        ),
        pytest.param('{"slug": "a", "title": true}', "title must be text", id="boolean title"),
        pytest.param('"\xff"', "must hold a JSON object", id="text"),
        pytest.param(b'{"slug": "\xff"}', "lines.jsonl:2: 'utf-8' codec can't decode byte 0xff in", id="not UTF-8"),
    ],
)  # fmt: skip
def test_a_fault_in_a_line_is_reported_with_its_number_and_the_others_go_on(
    sqlite_store: Store, tmp_path: Path, line: str | bytes, told: str
) -> None:
    file = tmp_path / "lines.jsonl"
    wrong = line if isinstance(line, bytes) else line.encode()
    file.write_bytes(b'{"slug": "before", "title": "T"}\n%b\n\n{"slug": "after", "title": "T"}\n' % wrong)
    seen: list[Reading] = []
    report = import_templates(sqlite_store.url, file, observe=seen.append)
    assert report.failed == 1
    assert [told in str(fault) for each in seen for fault in each.faults] == [True]
    assert set(statuses(sqlite_store.url)) == {"before", "after"}


def test_all_faults_of_a_template_are_reported_with_file_and_line(tmp_path: Path) -> None:
    yaml = """\
slug: a b
titel: Mistyped
difficulty: hard
status: live
url: ftp://x
difficulty: easy
notebooks:
  solution: gone.lotnb
  simulator: bad.lotnb
tags: [{slug: }]
"""
    folder = write_folder(tmp_path / "t", yaml, bad="[\n{]", worse="{}")
    folder.joinpath("README.md").write_bytes(b"fine\n\xff")
    [reading] = read_templates(tmp_path)
    assert reading.source is None
    assert [str(fault).removeprefix(f"{folder}/").partition(",")[0] for fault in reading.faults] == [
        "template.yaml:1: slug must be at most 200 letters",
        "template.yaml:1: title is required",
        "template.yaml:3: difficulty must be one of 'beginner'",
        "template.yaml:4: status must be one of 'published'",
        "template.yaml:5: url must be an http or https address",
        "template.yaml:6: key 'difficulty' comes twice",
        "template.yaml:7: notebooks names 'gone.lotnb'",
        "template.yaml:10: tags entry 1: must hold names",
        "README.md: 'utf-8' codec can't decode byte 0xff in position 5: invalid start byte",
        "bad.lotnb:2: is not JSON: Expecting property name enclosed in double quotes (column 2)",
        "worse.lotnb: must be a JSON array of cells {kind",
    ]
    assert [warning.rpartition("; ")[2] for warning in reading.warnings] == ["did you mean 'title'?"]


def test_all_faults_of_a_line_are_reported(tmp_path: Path) -> None:
    given = {"slug": "a b", "content": [], "difficulty": "hard", "notebooks": {"solution": "a.lotnb", "x": 5}}
    file = write_lines(tmp_path / "lines.jsonl", given)
    assert [fault.removeprefix(f"{file}:1: ").split()[0] for fault in faults(file)] == [
        "content", "difficulty", "notebooks", "notebooks", "slug", "title",
    ]  # fmt: skip


def test_a_slug_of_another_template_is_refused_and_nothing_is_half_written(store: Store) -> None:
    assert str(store.bring(template("one", id=UUID), template("one", title="Other"))).endswith("1 failed")
    report = store.bring(template("one", id=OTHER_UUID, tags=["new"]), template("two", tags=["new"]))
    assert str(report) == "1 added, 0 changed, 0 unchanged, 1 failed"
    assert set(statuses(store.url)) == {"one", "two"}
    assert store.client().read()["title"] == "Template one"


def test_an_id_of_another_tag_is_refused_in_one_import_in_the_next_and_in_one_template(store: Store) -> None:
    one, other = {"name": "One", "id": UUID}, {"name": "Other", "id": UUID}
    report = store.bring(template("a", tags=[one]), template("b", tags=[other]))
    assert report.failed == 1
    assert store.bring(template("c", tags=[other]), template("d", tags=["new", one, other])).failed == 2
    assert store.bring(template("e", tags=[other["name"]], category={"name": "One", "id": UUID})).failed == 0
    assert set(statuses(store.url)) == {"a", "e"}


def test_a_blank_title_is_replaced_by_the_slug_and_a_date_to_come_sorts_as_it_says(sqlite_store: Store) -> None:
    sqlite_store.bring(template("one", title=" "), {"id": UUID, "title": "", "published_at": "2931-01-01"})
    results = sqlite_store.client().get("/api/templates").json["results"]
    assert [each["title"] for each in results] == [UUID, "one"]


@pytest.mark.parametrize(
    ("name", "told"),
    [("none", "there is no such file or folder"), ("empty", "no template.yaml was found"), ("file.txt", "neither")],
)
def test_a_path_without_templates_is_refused(tmp_path: Path, name: str, told: str) -> None:
    tmp_path.joinpath("empty").mkdir()
    tmp_path.joinpath("file.txt").write_text("")
    with pytest.raises(StartError, match=told):
        read_templates(tmp_path / name)

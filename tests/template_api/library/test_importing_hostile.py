"""Importing folders and files that were made to do harm, or were made by mistake."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from template_api.cli import main
from template_api.sources.reading import Reading, read_templates
from tests.support.library_store import Store, template
from tests.template_api.library.imports import faults, write_folder

_BOMB = "a0: &a0 [lol]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 15))


def write(folder: Path, name: str = "one", text: str = "title: One\n", **notebooks: object) -> Path:
    return write_folder(folder / name, text, None, **notebooks)


def only(path: Path) -> Reading:
    [reading] = read_templates(path)
    return reading


def fault(path: Path) -> str:
    [fault] = faults(path)
    return fault


@pytest.mark.parametrize("name", ["README.md", "cells.lotnb", "template.yaml"])
def test_a_pipe_is_refused_and_a_link_out_of_the_folder_shows_nothing_of_what_is_there(
    tmp_path: Path, name: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text('["secret"]')
    file = write(tmp_path / "library") / name
    file.unlink(missing_ok=True)
    file.symlink_to(secret)
    assert fault(tmp_path / "library") == f"{file}: is a link that leads out of {tmp_path / 'library'}"
    if name != "cells.lotnb":
        file.unlink()
        os.mkfifo(file)
        assert fault(tmp_path / "library") == f"{file}: is not a regular file"


def test_links_inside_the_folder_are_followed(tmp_path: Path) -> None:
    tmp_path.joinpath("text").write_text("# Shared")
    write(tmp_path / "library").joinpath("README.md").symlink_to("../text")
    tmp_path.joinpath("text").rename(tmp_path / "library" / "text")
    tmp_path.joinpath("link").symlink_to("library")
    source = only(tmp_path / "link").source
    assert source is not None
    assert source.content == "# Shared"


def test_links_in_a_circle_end_and_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    folder = write(tmp_path)
    folder.joinpath("self").symlink_to(".")
    content = folder / "README.md"
    content.symlink_to("README.md")
    assert f"{content}: cannot be read" in fault(tmp_path)
    content.unlink()
    content.touch()
    os.truncate(content, 60 * 2**30)
    assert fault(tmp_path) == f"{content}: is larger than 33554432 bytes"


def test_a_line_without_end_costs_only_itself(tmp_path: Path) -> None:
    file = tmp_path / "library.jsonl"
    file.write_text("\n".join([json.dumps(template("one")), "x" * 70_000_000, json.dumps(template("two"))]))
    first, long, last = read_templates(file)
    assert first.source is not None
    assert last.source is not None
    assert str(*long.faults) == f"{file}:2: is longer than 33554432 bytes"
    assert (last.done, last.total) == (file.stat().st_size, file.stat().st_size)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("notebooks: [{filename: n.lotnb, is_primary: *a14}]\n", "must be true or false", id="flag"),
        pytest.param("notebooks: [{filename: n.lotnb, role: *a14}]\n", "role must be text", id="role"),
        pytest.param("tags: *a14\n", "entry 1: name must be text", id="tags"),
        pytest.param("title: *a14\n", "must be text", id="title"),
        pytest.param("id: &i [*i]\n", "is not YAML", id="in itself"),
        pytest.param("id: " + "[" * 1000, "is not YAML", id="nested"),
    ],
)
def test_a_yaml_bomb_is_a_fault_like_any_other(tmp_path: Path, text: str, reason: str) -> None:
    title = "" if text.startswith("title") else "title: One\n"
    write(tmp_path, text=title + _BOMB + text, n=[])
    assert reason in faults(tmp_path)[0]


@pytest.mark.parametrize("count", [5_000, pytest.param(20_000, marks=pytest.mark.long)])
def test_many_roles_that_share_a_list_of_names_are_not_multiplied(tmp_path: Path, count: int) -> None:
    roles = "".join(f", r{number}: *all" for number in range(count))
    write(tmp_path, text=f"title: One\nnotebooks: {{r: &all [{'n.lotnb,' * count}]{roles}}}\n")
    assert "notebooks must name at most 1000 files" in "\n".join(map(str, only(tmp_path).faults))


def test_cells_of_yaml_are_not_read(tmp_path: Path) -> None:
    cells = "notebooks: [{filename: n.lotnb, cells: *a14}, {filename: m.lotnb, cells: *b14}]\n"
    write(tmp_path, text=f"title: One\n{_BOMB}{_BOMB.replace('a', 'b')}{cells}", n=[], m=[])
    assert only(tmp_path).faults == []


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_ten_thousands_of_faults_are_noted_in_seconds(tmp_path: Path, count: int) -> None:
    write(tmp_path, text=f"title: One\ntags: [{'[],' * count}]\n")
    began = time.process_time()
    assert len(only(tmp_path).faults) == count
    # When each fault was compared with all before it, ten thousand took six seconds and a hundred thousand ten minutes.
    assert time.process_time() - began < 30 * count / 100_000


def test_cells_as_deep_as_allowed_are_answered(store: Store) -> None:
    cells: list[Any] = [{"a": json.loads("[" * 98 + "]" * 98)}]
    store.bring(template("one", notebooks=[{"filename": "n.lotnb", "cells": cells}]))
    assert store.client().read()["notebooks"][0]["cells"] == cells


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        pytest.param(b"My template!", "my-template", id="blanks"),
        pytest.param(b"bad\xffname", "bad-name", id="not UTF-8"),
        pytest.param(b"Kept.As-it_is", "Kept.As-it_is", id="a slug"),
        pytest.param("天気".encode(), None, id="one that makes none"),
    ],
)
def test_the_name_of_a_folder_becomes_a_slug(tmp_path: Path, name: bytes, slug: str | None) -> None:
    write(tmp_path, os.fsdecode(name))
    reading = only(tmp_path)
    assert (reading.source and reading.source.slug) == slug
    assert slug or "slug is required" in str(*reading.faults)


def test_a_folder_that_cannot_be_looked_into_is_a_fault(tmp_path: Path) -> None:
    write(tmp_path)
    # A path of more than 4,096 bytes can be made step by step, but not be opened; permissions do not stop root.
    deepen = "import os\nfor _ in range(20): os.mkdir('d' * 250); os.chdir('d' * 250)"
    subprocess.run([sys.executable, "-c", deepen], cwd=tmp_path, check=True, timeout=60)
    unreadable, good = read_templates(tmp_path)
    assert "cannot be read: File name too long" in str(*unreadable.faults)
    assert good.source is not None
    assert (good.done, good.total) == (2, 2)


def test_escape_sequences_of_names_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library = tmp_path / "library"
    write(library, "a\x1b[2Jb", "title: [1]\n")
    write(library, "c\x9b31m\nd", "title: One\ntitel: Two\n")
    command = ["import", str(library), "--database-url", f"sqlite:///{tmp_path}/library.db"]
    assert main(command) == 1
    printed = capsys.readouterr()
    assert "a\\x1b[2Jb/template.yaml:1: error: " in printed.err
    assert "c\\x9b31m\\nd/template.yaml" in printed.err
    assert all(line.isprintable() for line in (printed.out + printed.err).splitlines())
    assert main(["import", str(tmp_path / "\x1b[31mgone"), *command[2:]]) == 1
    assert "\x1b" not in capsys.readouterr().err
    assert main([*command, "--json"]) == 1
    assert "\\x1b[2Jb" in json.loads(capsys.readouterr().out)["faults"][0]["where"]

"""Imports that are killed, begun and not completed, or run beside another one. On both databases."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from template_api.errors import StartError
from template_api.library import fill_empty_library, import_templates
from template_api.sources.reading import Reading
from tests.support.forked import TEMPLATE_API, Forked
from tests.support.library_store import Store, template
from tests.support.waiting import eventually
from tests.template_api.library.imports import CELLS, statuses, write_lines


def test_a_killed_import_leaves_whole_templates_and_the_next_one_completes_it(store: Store, tmp_path: Path) -> None:
    templates = [
        {"slug": f"t{n}", "title": f"T{n}", "tags": ["a", "b"], "notebooks": [{"filename": "x", "cells": CELLS}]}
        for n in range(500 if store.url.startswith("sqlite") else 250)  # the slower, the fewer
    ]
    file = write_lines(tmp_path / "many.jsonl", *templates)
    with Path("/dev/null").open("w") as nowhere:
        process = Forked(TEMPLATE_API, ["import", str(file), "--database-url", store.url], tmp_path, output=nowhere)

    def imports() -> bool:
        assert process.poll() is None
        return len(statuses(store.url)) >= 20

    eventually(imports, "nothing is imported")
    process.kill()
    process.wait(60)
    client = store.client()
    done = list(statuses(store.url))
    assert 0 < len(done) < len(templates)
    for slug in done:
        read = client.read(str(slug))
        assert [len(read["tags"]), len(read["notebooks"])] == [2, 1]
    assert import_templates(store.url, file).failed == 0
    assert len(statuses(store.url)) == len(templates)


def test_a_first_import_that_was_cut_off_is_continued(store: Store, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "library.jsonl", *(template(f"t{n}") for n in range(4)))

    def cut_off(reading: Reading) -> None:
        if reading.done > reading.total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill_empty_library(store.url, file, cut_off)
    assert 0 < len(statuses(store.url)) < 4
    assert str(fill_empty_library(store.url, file)) == "1 added, 0 changed, 3 unchanged, 0 failed"
    assert fill_empty_library(store.url, file) is None


def test_a_first_import_that_never_began_is_not_made_over_another_library(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StartError, match="there is no such file"):
        fill_empty_library(store.url, tmp_path / "mistyped")
    store.bring(template("by-hand"))
    file = write_lines(tmp_path / "library.jsonl", template("sample"))
    assert fill_empty_library(store.url, file) is None
    assert statuses(store.url) == {"by-hand": "published"}


def test_of_two_imports_the_second_waits(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one stops in the middle until the second has said that it waits."""
    files = [
        write_lines(tmp_path / f"{name}.jsonl", *(template(f"{name}-{n}") for n in range(3)))
        for name in ("first", "second")
    ]
    waits, order = threading.Event(), []
    begun = threading.Event()
    monkeypatch.setattr("template_api.library.importing.log.warning", lambda _said: waits.set())

    def pause(_reading: Reading) -> None:
        begun.set()
        assert waits.wait(60)
        order.append("first")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(import_templates, store.url, files[0], observe=pause)
        assert begun.wait(60)
        second = pool.submit(import_templates, store.url, files[1], observe=lambda _: order.append("second"))
        assert str(first.result()) == str(second.result()) == "3 added, 0 changed, 0 unchanged, 0 failed"
    assert order == ["first"] * 3 + ["second"] * 3
    waits.clear()
    import_templates(store.url, files)
    assert not waits.is_set(), "the lock was released"

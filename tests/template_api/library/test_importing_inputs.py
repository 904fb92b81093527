"""What a template asks for: `inputs` as they are declared, else as its routes read them."""

from pathlib import Path

import pytest

from template_api.library import import_templates
from template_api.sources.reading import read_templates
from tests.support.library_store import Store, template
from tests.support.route_text import BASIC
from tests.template_api.library.imports import faults, read_one, write_folder

ASKING = BASIC + (
    '        WITH BODY \'{"site": "{env.SITE|none}"}\'\n'
    '        WITH HEADERS\n            ADD X-Key GET SECRET "API_KEY"\n'
)
CELLS = [{"kind": 2, "language": "lot", "value": ASKING}]
DECLARED = """\
title: T
inputs:
  - {name: API_KEY, secret: true, example: k-123}
  - name: SITE
"""


def test_declared_inputs_are_answered_in_their_order(tmp_path: Path, sqlite_store: Store) -> None:
    write_folder(tmp_path / "one", DECLARED, main=CELLS)
    assert not import_templates(sqlite_store.url, tmp_path).failed
    assert read_one(sqlite_store)["inputs"] == [
        {"name": "API_KEY", "secret": True, "example": "k-123"},
        {"name": "SITE", "secret": False},
    ]
    page = sqlite_store.client().page("/templates/one").text
    assert "What it asks for" in page
    assert "k-123" in page
    assert "hold a sample" not in page


def test_inputs_that_are_not_declared_are_read_from_the_routes(sqlite_store: Store) -> None:
    sqlite_store.bring(
        template("one", notebooks=[{"filename": f"{name}.lotnb", "cells": CELLS} for name in "ab"]),
        template("none", notebooks=[{"filename": "a.lotnb", "cells": []}]),
    )
    assert read_one(sqlite_store)["inputs"] == [{"name": "SITE", "secret": False}, {"name": "API_KEY", "secret": True}]
    assert "inputs" not in read_one(sqlite_store, "none")
    assert "What it asks for" not in sqlite_store.client().page("/templates/none").text


def test_an_input_that_no_route_reads_is_said_to_have_a_sample_in_its_place(sqlite_store: Store) -> None:
    sqlite_store.bring(template("one", inputs=[{"name": "API_KEY", "secret": True}], notebooks=[]))
    assert "The routes hold a sample in its place." in sqlite_store.client().page("/templates/one").text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        pytest.param("- name: a b", "entry 1: name must be that of a variable or secret", id="no name of a variable"),
        pytest.param("- {secret: true}", "entry 1: name is required", id="no name"),
        pytest.param("- A\n- A", "inputs names 'A' twice", id="twice"),
        pytest.param("- {name: A, exmaple: b}", "exmaple is unknown; members are name, secret", id="misspelt"),
        pytest.param("- {name: A, secret: perhaps}", "must be true or false, not 'perhaps'", id="no boolean"),
        pytest.param("- {name: A, example: [b]}", "entry 1: example must be text", id="example a list"),
        pytest.param(f"- {{name: A, example: {'x' * 501}}}", "example must have at most 500 characters", id="long"),
    ],
)
def test_a_fault_in_inputs_is_reported_with_its_line_and_entry(tmp_path: Path, given: str, said: str) -> None:
    [fault] = faults(write_folder(tmp_path / "t", f"title: T\ninputs:\n{given}\n", main=CELLS))
    assert fault.startswith(f"{tmp_path}/t/template.yaml:2: inputs ")
    assert said in fault


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        pytest.param("[SITE, {name: API_KEY, secret: true}]", [], id="as read"),
        pytest.param("[SITE]", ['inputs lacks API_KEY, which a route reads (GET SECRET "API_KEY")'], id="missing"),
        pytest.param("[SITE, API_KEY]", ['API_KEY is read by GET SECRET "API_KEY": write secret: true'], id="type"),
        pytest.param("[SITE, {name: API_KEY, secret: true}, LATER]", [], id="not read yet"),
    ],
)
def test_inputs_that_differ_from_what_routes_read_are_warned_of(tmp_path: Path, declared: str, said: list[str]) -> None:
    write_folder(tmp_path / "t", f"title: T\ninputs: {declared}\n", main=CELLS)
    [reading] = read_templates(tmp_path)
    assert reading.warnings == tuple(f"{tmp_path}/t/template.yaml:2: warning: {each}" for each in said)

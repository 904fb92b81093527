"""Template folders as others write them: the public format, roles of notebooks, tags from elsewhere, several faults."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from template_api.library import import_templates
from template_api.sources.reading import read_templates
from tests.template_api.library.imports import faults

if TYPE_CHECKING:
    from tests.support.library_store import Store

Make = Callable[..., dict[str, Any]]
CELLS = [
    {"kind": 1, "language": "markdown", "value": "# Cold chain"},
    {"kind": 2, "language": "lot", "value": "DEFINE ROUTE ColdChain WITH TYPE REST_API"},
]
PUBLIC = """\
title: Cold-chain monitoring with excursion alerts
slug: cold-chain-monitoring
summary: >
  Watch the temperature of refrigerated transport,
  raise an alert when it leaves its range,
  and keep a record for the auditor.
category: Logistics
difficulty: Intermediate
primitives:
  - ACTION
  - MODEL
  - ROUTE
protocols:
  - MQTT
  - REST API
services: [TimescaleDB, Grafana]
verified_broker_version: 1.10
hardware_free: true
est_minutes_to_deploy: 15
notebooks:
  solution: cold-chain.lotnb
  simulator: truck-simulator.lotnb
"""


def write(folder: Path, **files: object) -> Path:
    """Write a folder; __ in a name becomes a dot, _ a hyphen."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        folder.joinpath(name.replace("__", ".").replace("_", "-")).write_text(text)
    return folder


@pytest.fixture
def public(tmp_path: Path) -> Path:
    root = tmp_path / "templates"
    readme = "# Cold chain\n\nDeploy `cold-chain.lotnb`, then the simulator.\n"
    write(root / "cold-chain-monitoring", template__yaml=PUBLIC, README__md=readme,
          truck_simulator__lotnb=CELLS[:1], cold_chain__lotnb=CELLS)  # fmt: skip
    return root


def test_a_folder_in_the_public_format_is_imported_without_a_complaint(store: "Store", public: Path) -> None:
    [reading] = read_templates(public)
    assert (reading.faults, reading.warnings) == ([], [])
    assert str(import_templates(store.url, public)) == "1 added, 0 changed, 0 unchanged, 0 failed"
    assert str(import_templates(store.url, public)) == "0 added, 0 changed, 1 unchanged, 0 failed"
    client = store.client()
    read = client.get("/api/templates/cold-chain-monitoring").json["template"]
    assert read["short_description"] == (
        "Watch the temperature of refrigerated transport, raise an alert when it leaves its range, "
        "and keep a record for the auditor."
    )
    assert (read["difficulty"], read["category"]["name"]) == ("intermediate", "Logistics")
    assert [tag["name"] for tag in read["tags"]] == [
        "ACTION", "MODEL", "ROUTE", "MQTT", "REST API", "TimescaleDB", "Grafana",
    ]  # fmt: skip
    assert [route["name"] for route in read["routes"]] == ["REST_API"]
    assert read["notebooks"] == [
        {"filename": "cold-chain.lotnb", "version": 1, "is_primary": True, "cells": CELLS, "role": "solution"},
        {
            "filename": "truck-simulator.lotnb", "version": 1, "is_primary": False, "cells": CELLS[:1],
            "role": "simulator",
        },
    ]  # fmt: skip
    [summary] = client.get("/api/templates?q=auditor").json["results"]
    assert summary["broker_version"]["name"] == "1.10"


def test_solution_is_the_primary_one_at_any_place_in_the_list(store: "Store", tmp_path: Path) -> None:
    yaml = "title: T\nnotebooks:\n  simulator: a.lotnb\n  Solution: b.lotnb\n  extras: [c.lotnb, d.lotnb]\n"
    write(tmp_path / "one", template__yaml=yaml, a__lotnb=[], b__lotnb=[], c__lotnb=[], d__lotnb=[], e__lotnb=[])
    import_templates(store.url, tmp_path)
    found = store.client().get("/api/templates/one").json["template"]["notebooks"]
    assert [(each["filename"], each.get("role"), each["is_primary"]) for each in found] == [
        ("a.lotnb", "simulator", False),
        ("b.lotnb", "Solution", True),
        ("c.lotnb", "extras", False),
        ("d.lotnb", "extras", False),
        ("e.lotnb", None, False),
    ]


def test_without_a_solution_the_first_is_primary_unless_another_says_so(store: "Store", make_template: Make) -> None:
    cells: dict[str, Any] = {"cells": []}
    first = {"simulator": {"filename": "a.lotnb", **cells}, "gateway": {"filename": "b.lotnb", **cells}}
    store.bring(
        make_template("one", notebooks=first),
        make_template("two", notebooks={**first, "gateway": {"filename": "b.lotnb", "is_primary": True, **cells}}),
        make_template(
            "three", notebooks=[{"filename": "a.lotnb", **cells}, {"file": "b.lotnb", "role": "solution", **cells}]
        ),
    )
    primary = {
        slug: [
            each["filename"]
            for each in store.client().get(f"/api/templates/{slug}").json["template"]["notebooks"]
            if each["is_primary"]
        ]
        for slug in ("one", "two", "three")
    }
    assert primary == {"one": ["a.lotnb"], "two": ["b.lotnb"], "three": ["b.lotnb"]}


def test_a_role_that_changes_makes_no_new_version_of_the_cells(store: "Store", make_template: Make) -> None:
    for role in ("draft", "solution"):
        report = store.bring(make_template("one", notebooks={role: {"filename": "a.lotnb", "cells": CELLS}}))
    assert report.failed == 0
    [notebook] = store.client().get("/api/templates/one").json["template"]["notebooks"]
    assert (notebook["role"], notebook["version"]) == ("solution", 1)


def test_tags_that_are_given_stay_alone_and_doubled_names_become_one(store: "Store", make_template: Make) -> None:
    others = {"primitives": ["route"], "protocols": ["MQTT", "http"], "services": ["mqtt", "Kafka"]}
    store.bring(
        make_template("given", tags=["mine"], **others), make_template("none", **others),
        make_template("empty", tags=[], **others),
    )  # fmt: skip
    client = store.client()
    tags = {
        slug: [tag["name"] for tag in client.get(f"/api/templates/{slug}").json["template"]["tags"]]
        for slug in ("given", "none", "empty")
    }
    assert tags == {"given": ["mine"], "none": ["route", "MQTT", "http", "Kafka"], "empty": []}
    assert set(client.slugs("/api/templates?q=kafka")) == {"given", "none", "empty"}


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
    folder = write(tmp_path / "t", template__yaml=yaml, bad__lotnb="[\n{]", worse__lotnb="{}")
    folder.joinpath("README.md").write_bytes(b"fine\n\xff")
    [reading] = read_templates(tmp_path)
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


def test_all_faults_of_a_line_are_reported(sqlite_store: "Store", tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    given = {"slug": "a b", "content": [], "difficulty": "hard", "notebooks": {"solution": "a.lotnb", "x": 5}}
    file.write_text(json.dumps(given))
    assert [fault.removeprefix(f"{file}:1: ").split()[0] for fault in faults(file)] == [
        "content", "difficulty", "notebooks", "notebooks", "slug", "title",
    ]  # fmt: skip
    assert import_templates(sqlite_store.url, file).failed == 1


@pytest.mark.parametrize(
    ("notebooks", "told"),
    [
        pytest.param("{solution: a.lotnb, simulator: a.lotnb}", "notebooks names 'a.lotnb' twice", id="one file twice"),
        pytest.param("{solution: b.lotnb}", "notebooks names 'b.lotnb', which is not", id="no such file"),
        pytest.param("{solution: {cells: []}}", "notebooks entry 1: filename is required", id="no file name"),
        pytest.param('{"a\\0b": a.lotnb}', "notebooks entry 1: role holds the character NUL", id="NUL"),
    ],
)
def test_a_fault_in_the_roles_is_reported(tmp_path: Path, notebooks: str, told: str) -> None:
    folder = write(tmp_path / "t", template__yaml=f"title: T\nnotebooks: {notebooks}\n", a__lotnb=[])
    [fault] = faults(tmp_path)
    assert fault.startswith(f"{folder}/template.yaml:2: {told}")


def test_what_is_null_or_blank_in_yaml_is_as_good_as_left_out(store: "Store", tmp_path: Path) -> None:
    yaml = "title: T\ncategory: null\ndifficulty: ~\ntags:\nservices: [no]\nnotebooks: {solution: a.lotnb, test: }\n"
    write(tmp_path / "one", template__yaml=yaml, a__lotnb=[])
    import_templates(store.url, tmp_path)
    read = store.client().get("/api/templates/one").json["template"]
    assert (read["category"], [tag["name"] for tag in read["tags"]]) == (None, ["no"])
    assert "difficulty" not in read
    assert [each["role"] for each in read["notebooks"]] == ["solution"]


def test_a_folder_without_template_yaml_is_reported_and_the_others_go_on(sqlite_store: "Store", public: Path) -> None:
    missing = write(public / "forgotten", README__md="# Forgotten", main__LOTNB=[])
    write(public / "cold-chain-monitoring" / "docs", README__md="# Part of its template", main__lotnb=[])
    write(public / "assets", README__md="# No notebooks")
    write(public / "loose", main__lotnb=[])
    assert faults(public) == [
        f"{missing}: holds README.md and notebooks, but no template.yaml; write one, with a title at least"
    ]
    assert str(import_templates(sqlite_store.url, public)) == "1 added, 0 changed, 0 unchanged, 1 failed"


def test_a_key_that_is_near_to_no_known_one_is_not_a_mistake(tmp_path: Path) -> None:
    write(tmp_path / "t", template__yaml="title: T\nhardware_free: yes\nauthor: me\nversion: 2\nnotebook: x\n")
    [reading] = read_templates(tmp_path)
    assert reading.warnings == [
        f"{tmp_path}/t/template.yaml:5: warning: unknown key 'notebook' is not read; did you mean 'notebooks'?"
    ]

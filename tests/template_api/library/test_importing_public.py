"""Template folders as others write them: the public format, roles of notebooks, tags from elsewhere."""

from pathlib import Path
from typing import Any

import pytest

from template_api.library import import_templates
from template_api.sources.reading import read_templates
from tests.support.library_store import Store, template
from tests.template_api.library.imports import faults, write_folder

CELLS = [
    {"kind": 1, "language": "markdown", "value": "# Cold chain"},
    {"kind": 2, "language": "lot", "value": "DEFINE ROUTE ColdChain WITH TYPE REST_API"},
]
PUBLIC = """\
title: Cold-chain monitoring with excursion alerts
slug: cold-chain-monitoring
summary: >
  Watch the temperature of refrigerated transport,
  raise an alert when it leaves its range.
category: Logistics
difficulty: Intermediate
primitives:
  - ACTION
protocols:
  - MQTT
  - REST API
services: [Grafana]
verified_broker_version: 1.10
hardware_free: true
est_minutes_to_deploy: 15
notebooks:
  solution: cold-chain.lotnb
  simulator: truck-simulator.lotnb
"""


@pytest.fixture
def public(tmp_path: Path) -> Path:
    root = tmp_path / "templates"
    notebooks: dict[str, object] = {"truck-simulator": CELLS[:1], "cold-chain": CELLS}
    write_folder(root / "cold-chain-monitoring", PUBLIC, "# Cold chain\n", **notebooks)
    return root


def test_a_folder_in_the_public_format_is_imported_without_a_complaint(store: Store, public: Path) -> None:
    [reading] = read_templates(public)
    assert (reading.faults, reading.warnings) == ([], [])
    assert str(import_templates(store.url, public)) == "1 added, 0 changed, 0 unchanged, 0 failed"
    assert str(import_templates(store.url, public)) == "0 added, 0 changed, 1 unchanged, 0 failed"
    client = store.client()
    read = client.read("cold-chain-monitoring")
    assert read["short_description"] == (
        "Watch the temperature of refrigerated transport, raise an alert when it leaves its range."
    )
    assert (read["difficulty"], read["category"]["name"]) == ("intermediate", "Logistics")
    assert [tag["name"] for tag in read["tags"]] == ["ACTION", "MQTT", "REST API", "Grafana"]
    assert [route["name"] for route in read["routes"]] == ["REST_API"]
    assert read["notebooks"] == [
        {"filename": f"{name}.lotnb", "version": 1, "is_primary": role == "solution", "cells": cells, "role": role}
        for name, role, cells in (("cold-chain", "solution", CELLS), ("truck-simulator", "simulator", CELLS[:1]))
    ]
    [summary] = client.get("/api/templates?q=refrigerated").json["results"]
    assert summary["broker_version"]["name"] == "1.10"


A, B, C = ({"name": name, "cells": []} for name in "abc")


@pytest.mark.parametrize(
    ("notebooks", "expected"),
    [
        pytest.param({"simulator": A, "Solution": B, "x": [C]}, "simulator Solution* x", id="solution, at any place"),
        pytest.param({"simulator": A, "gateway": B}, "simulator* gateway", id="without one the first"),
        pytest.param({"x": A, "y": B | {"is_primary": True}}, "x y*", id="another that says so"),
        pytest.param([A, B | {"role": "solution"}], "None solution*", id="solution in a list"),
    ],
)
def test_one_notebook_is_the_primary_one(sqlite_store: Store, notebooks: object, expected: str) -> None:
    sqlite_store.bring(template("one", notebooks=notebooks))
    found = sqlite_store.client().read()["notebooks"]
    assert " ".join(f"{each.get('role')}{'*' * each['is_primary']}" for each in found) == expected


def test_files_that_a_map_of_roles_does_not_name_follow_it(sqlite_store: Store, tmp_path: Path) -> None:
    yaml = "title: T\nnotebooks:\n  simulator: c.lotnb\n  extras: [d.lotnb, b.lotnb]\n"
    write_folder(tmp_path / "one", yaml, a=[], b=[], c=[], d=[])
    import_templates(sqlite_store.url, tmp_path)
    found = sqlite_store.client().read()["notebooks"]
    assert [each["filename"].removesuffix(".lotnb") for each in found] == ["c", "d", "b", "a"]
    assert [each.get("role") for each in found] == ["simulator", "extras", "extras", None]


def test_a_role_that_changes_makes_no_new_version_of_the_cells(sqlite_store: Store) -> None:
    for role in ("draft", "solution"):
        report = sqlite_store.bring(template("one", notebooks={role: {"filename": "a.lotnb", "cells": CELLS}}))
    assert report.failed == 0
    [notebook] = sqlite_store.client().read()["notebooks"]
    assert (notebook["role"], notebook["version"]) == ("solution", 1)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({"tags": ["mine"]}, ["mine"], id="given"),
        pytest.param({}, ["route", "MQTT", "http", "Kafka"], id="none: what else is named, once each"),
        pytest.param({"tags": []}, [], id="empty"),
    ],
)
def test_tags_that_are_given_stay_alone(sqlite_store: Store, given: dict[str, Any], expected: list[str]) -> None:
    others = {"primitives": ["route"], "protocols": ["MQTT", "http"], "services": ["mqtt", "Kafka"]}
    sqlite_store.bring(template("one", **given, **others))
    client = sqlite_store.client()
    assert [tag["name"] for tag in client.read()["tags"]] == expected
    assert client.slugs("/api/templates?q=kafka") == ["one"]


def test_what_is_null_or_blank_in_yaml_is_as_good_as_left_out(sqlite_store: Store, tmp_path: Path) -> None:
    yaml = "title: T\ncategory: null\ndifficulty: ~\ntags:\nservices: [no]\nnotebooks: {solution: a.lotnb, test: }\n"
    write_folder(tmp_path / "one", yaml, a=[])
    import_templates(sqlite_store.url, tmp_path)
    read = sqlite_store.client().read()
    assert (read["category"], [tag["name"] for tag in read["tags"]]) == (None, ["no"])
    assert "difficulty" not in read
    assert [each["role"] for each in read["notebooks"]] == ["solution"]


def test_a_folder_without_template_yaml_is_reported_and_the_others_go_on(sqlite_store: Store, public: Path) -> None:
    missing = write_folder(public / "forgotten", None, "# Forgotten")
    missing.joinpath("main.LOTNB").write_text("[]")
    write_folder(public / "cold-chain-monitoring" / "docs", None, "# Part of its template", main=[])
    write_folder(public / "assets", None, "# No notebooks")
    write_folder(public / "loose", None, main=[])
    assert faults(public) == [
        f"{missing}: holds README.md and notebooks, but no template.yaml; write one, with a title at least"
    ]
    assert str(import_templates(sqlite_store.url, public)) == "1 added, 0 changed, 0 unchanged, 1 failed"


def test_a_key_that_is_near_to_no_known_one_is_not_a_mistake(tmp_path: Path) -> None:
    write_folder(tmp_path / "t", "title: T\nhardware_free: yes\nauthor: me\nversion: 2\nnotebook: x\n")
    [reading] = read_templates(tmp_path)
    assert reading.warnings == [
        f"{tmp_path}/t/template.yaml:5: warning: unknown key 'notebook' is not read; did you mean 'notebooks'?"
    ]

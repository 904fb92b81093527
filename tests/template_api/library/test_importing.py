"""Imports: folders, .jsonl files, versions, states, routes. On both databases where it matters."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from template_api.errors import DatabaseUnavailableError, TemplateApiError
from template_api.library import import_templates, listed_templates, set_status
from template_api.library.importing import template_id
from template_api.records import Status
from tests.template_api.library.imports import CELLS, read_one, statuses, write_folder

if TYPE_CHECKING:
    from tests.support.library_store import Store

Make = Callable[..., dict[str, Any]]
UUID = "11111111-2222-4333-8444-555555555555"


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
    version = client.library.current()
    assert str(store.bring(*templates)) == "0 added, 0 changed, 2 unchanged, 0 failed"
    assert [client.get(path).headers["ETag"] for path in paths] == before
    assert client.library.current() == version


def test_the_same_tag_in_two_spellings_is_one_tag(store: "Store", make_template: Make) -> None:
    store.bring(make_template("one", tags=["Rest API"]), make_template("two", tags=["rest-api"]))
    client = store.client()
    tags = [client.get(f"/api/templates/{slug}").json["template"]["tags"] for slug in ("one", "two")]
    assert tags[0] == tags[1]
    assert tags[0][0]["name"] == "Rest API"


def test_an_object_may_bring_its_own_id_and_slug(store: "Store", make_template: Make) -> None:
    store.bring(make_template(category={"id": UUID.upper(), "name": "Ours", "slug": "ours", "colour": "red"}))
    assert read_one(store)["category"] == {"id": UUID, "name": "Ours", "slug": "ours", "colour": "red"}


def test_an_id_of_a_word_is_the_slug(store: "Store", make_template: Make) -> None:
    store.bring(
        make_template(tags=[{"id": "iot", "name": "Internet of Things"}, {"id": "x", "slug": "y", "name": "Z"}])
    )
    assert [(each["name"], each["slug"]) for each in read_one(store)["tags"]] == [
        ("Internet of Things", "iot"),
        ("Z", "y"),
    ]


def test_an_import_renames_what_templates_are_classified_by_everywhere(store: "Store", make_template: Make) -> None:
    tag = {"slug": "iot", "name": "IoT", "icon": "chip"}
    one = make_template("one", tags=[tag], category="Old", routes=[{"slug": "r", "name": "Before"}], broker_version="1")
    store.bring(
        one, make_template("two", tags=["IoT", "Other"], category="Old", services=["Kafka"], broker_version="1")
    )
    client = store.client()
    before = client.get("/api/templates/two").json["template"]
    named = {**one, "tags": [{**tag, "name": "Internet of Things"}], "category": {"slug": "old", "name": "New name"}}
    named |= {"routes": [{"slug": "r", "name": "After"}], "broker_version": {"slug": "1", "name": "amqtt one"}}
    assert str(store.bring(named)) == "0 added, 1 changed, 0 unchanged, 0 failed"
    two = client.get("/api/templates/two").json["template"]
    assert two["tags"] == [{**before["tags"][0], "name": "Internet of Things"}, before["tags"][1]]
    assert two["tags"][0]["icon"] == "chip", "a plain name says nothing of it"
    assert two["category"]["name"] == "New name"
    assert client.get("/api/templates/one").json["template"]["routes"][0]["name"] == "After"
    facets = client.get("/api/facets").json
    assert [each["name"] for each in facets["broker_versions"]] == ["amqtt one"]
    assert client.slugs("/api/search", q="internet things kafka") == ["two", "one"]
    assert client.slugs("/api/search", q="iot", exact="true") == []


def test_a_killed_import_renames_with_its_template_or_not_at_all(store: "Store", make_template: Make) -> None:
    store.bring(make_template("one", tags=[{"slug": "t", "name": "A"}]), make_template("two", tags=["t"]))
    bad = make_template("two", id=UUID, tags=[{"slug": "t", "name": "B"}])
    assert store.bring(bad).failed == 1
    assert [read_one(store, slug)["tags"][0]["name"] for slug in ("one", "two")] == ["A", "A"]


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
    assert summary["url"].endswith("/templates/one")


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
    with pytest.raises(TemplateApiError, match="no template with the id or slug 'none'"):
        set_status(store.url, "none", Status.DRAFT)
    with pytest.raises(TemplateApiError, match="no template with the id or slug"):
        set_status(store.url, "not UTF-8: \udcff", Status.DRAFT)


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


def test_a_file_that_is_not_a_database_is_refused_with_its_reason(tmp_path: Path, make_template: Make) -> None:
    database = tmp_path / "library.db"
    database.write_text("this is not a database, and long enough to be read as a page of one" * 20)
    file = tmp_path / "one.jsonl"
    file.write_text(json.dumps(make_template()))
    with pytest.raises(DatabaseUnavailableError, match=f"database sqlite:///{database}: file is not a database"):
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

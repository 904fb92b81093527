"""Imports: folders, .jsonl files, versions, states, routes. On both databases where it matters."""

from pathlib import Path
from typing import Any

import pytest

from template_api.errors import DatabaseUnavailableError, TemplateApiError
from template_api.library import import_templates, listed_templates, set_status
from template_api.library.models import slug_id
from template_api.records import Status
from tests.support.library_store import Store, template
from tests.template_api.library.imports import CELLS, UUID, statuses, write_folder, write_lines


def test_a_folder_is_imported_with_everything_it_says(store: Store, tmp_path: Path) -> None:
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
    assert summary["id"] == slug_id("weather-report")
    assert summary["short_description"] == "Ask a service"
    assert summary["difficulty"] == "beginner"
    assert summary["broker_version"]["name"] == "1.10"
    assert [each["name"] for each in summary["tags"]] == ["http", "2024"]
    assert [each["name"] for each in summary["routes"]] == ["MQTT_BRIDGE", "REST_API"]
    read = client.read("weather-report")
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


def test_importing_twice_changes_nothing_and_no_etag(store: Store) -> None:
    templates = [
        template("one", tags=["MQTT", "mqtt"], notebooks=[{"filename": "a.lotnb", "cells": CELLS}]),
        template("two", tags=["Mqtt"], category="c"),
    ]
    assert str(store.bring(*templates)) == "2 added, 0 changed, 0 unchanged, 0 failed"
    client = store.client()
    paths = ("/api/templates", "/api/templates/one", "/api/search?q=template")
    before = [client.get(path).headers["ETag"] for path in paths]
    version = client.library.current()
    assert str(store.bring(*templates)) == "0 added, 0 changed, 2 unchanged, 0 failed"
    assert [client.get(path).headers["ETag"] for path in paths] == before
    assert client.library.current() == version


def test_the_same_tag_in_two_spellings_is_one_tag(sqlite_store: Store) -> None:
    sqlite_store.bring(template("one", tags=["Rest API"]), template("two", tags=["rest-api"]))
    first, second = (sqlite_store.client().read(slug)["tags"] for slug in ("one", "two"))
    assert first == second
    assert first[0]["name"] == "Rest API"


def test_an_object_may_bring_its_own_id_and_slug_and_a_word_as_id_is_the_slug(sqlite_store: Store) -> None:
    ours = {"id": UUID.upper(), "name": "Ours", "slug": "ours", "colour": "red"}
    tags = [{"id": "iot", "name": "Internet of Things"}, {"id": "x", "slug": "y", "name": "Z"}]
    sqlite_store.bring(template(category=ours, tags=tags))
    read = sqlite_store.client().read()
    assert read["category"] == {**ours, "id": UUID}
    assert [(each["name"], each["slug"]) for each in read["tags"]] == [("Internet of Things", "iot"), ("Z", "y")]


def test_an_import_renames_what_templates_are_classified_by_everywhere(store: Store) -> None:
    tag = {"slug": "iot", "name": "IoT", "icon": "chip"}
    one = template("one", tags=[tag], category="Old", routes=[{"slug": "r", "name": "Before"}], broker_version="1")
    store.bring(one, template("two", tags=["IoT", "Other"], category="Old", services=["Kafka"], broker_version="1"))
    client = store.client()
    before = client.read("two")
    named = {**one, "tags": [{**tag, "name": "Internet of Things"}], "category": {"slug": "old", "name": "New name"}}
    named |= {"routes": [{"slug": "r", "name": "After"}], "broker_version": {"slug": "1", "name": "amqtt one"}}
    assert str(store.bring(named)) == "0 added, 1 changed, 0 unchanged, 0 failed"
    two = client.read("two")
    assert two["tags"] == [{**before["tags"][0], "name": "Internet of Things"}, before["tags"][1]]
    assert two["tags"][0]["icon"] == "chip", "a plain name says nothing of it"
    assert two["category"]["name"] == "New name"
    assert client.read()["routes"][0]["name"] == "After"
    facets = client.get("/api/facets").json
    assert [each["name"] for each in facets["broker_versions"]] == ["amqtt one"]
    assert client.slugs("/api/search", q="internet things kafka") == ["two", "one"]
    assert client.slugs("/api/search", q="iot", exact="true") == []


def test_a_template_that_fails_renames_nothing_not_even_in_the_next_one(store: Store) -> None:
    tag = {"slug": "t", "name": "A"}
    store.bring(template("one", tags=[tag]), template("two", tags=[tag]))
    bad = template("two", id=UUID, tags=[{"slug": "t", "name": "B"}])
    assert store.bring(bad, template("three", tags=[tag])).failed == 1
    assert [store.client().read(slug)["tags"][0]["name"] for slug in ("one", "two", "three")] == ["A"] * 3


def test_changed_cells_make_a_new_version_and_others_keep_theirs(store: Store) -> None:
    def notebooks(value: str, *also: str) -> list[dict[str, Any]]:
        cells = [{"kind": 2, "language": "lot", "value": value}]
        return [{"filename": "a.lotnb", "cells": cells}, *({"filename": name, "cells": CELLS} for name in also)]

    def versions() -> list[tuple[str, int, str]]:
        return [(n["filename"], n["version"], n["cells"][0]["value"][:6]) for n in store.client().read()["notebooks"]]

    store.bring(template(notebooks=notebooks("first", "b.lotnb")))
    assert str(store.bring(template(notebooks=notebooks("second", "b.lotnb")))).startswith("0 added, 1 changed")
    assert versions() == [("a.lotnb", 2, "second"), ("b.lotnb", 1, "DEFINE")]
    store.bring(template(notebooks=notebooks("third")))
    assert versions() == [("a.lotnb", 3, "third")]
    store.bring(template(notebooks=notebooks("third", "b.lotnb")))
    assert versions() == [("a.lotnb", 3, "third"), ("b.lotnb", 1, "DEFINE")]
    store.bring(template(title="Only the title", notebooks=notebooks("third", "b.lotnb")))
    assert versions() == [("a.lotnb", 3, "third"), ("b.lotnb", 1, "DEFINE")]


def test_a_changed_template_loses_what_it_no_longer_says(sqlite_store: Store) -> None:
    sqlite_store.bring(
        template(tags=["a", "b"], category="c", difficulty="beginner", routes=["R"], url="http://x.example")
    )
    sqlite_store.bring(template(tags=["b"]))
    [summary] = sqlite_store.client().get("/api/templates").json["results"]
    assert [tag["name"] for tag in summary["tags"]] == ["b"]
    assert (summary["category"], summary["routes"]) == (None, [])
    assert "difficulty" not in summary
    assert summary["url"].endswith("/templates/one")


def test_a_template_with_an_id_may_change_its_slug(store: Store) -> None:
    store.bring(template("old", id=UUID))
    store.bring(template("new", id=UUID))
    assert statuses(store.url) == {"new": "published"}


def test_prune_hides_what_is_gone_and_a_later_import_brings_it_back(store: Store) -> None:
    one, two = template("one"), template("two")
    store.bring(one, two)
    assert str(store.bring(one, prune=True)) == "0 added, 0 changed, 1 unchanged, 0 failed, 1 hidden"
    assert statuses(store.url) == {"one": "published", "two": "hidden"}
    assert str(store.bring(one, prune=True)) == "0 added, 0 changed, 1 unchanged, 0 failed"
    store.bring(one, two)
    assert statuses(store.url) == {"one": "published", "two": "published"}


def test_prune_is_left_out_when_a_template_failed(store: Store) -> None:
    store.bring(template("one"), template("two"))
    report = store.bring(template("one"), {"slug": "two"}, prune=True)
    assert (report.failed, report.pruned) == (1, False)
    assert statuses(store.url) == {"one": "published", "two": "published"}


def test_a_state_set_by_command_outlives_an_import_that_says_nothing_new(store: Store) -> None:
    store.bring(template())
    assert set_status(store.url, "one", Status.HIDDEN) is True
    assert set_status(store.url, "one", Status.HIDDEN) is False
    store.bring(template(title="Changed"))
    assert statuses(store.url) == {"one": "hidden"}
    store.bring(template(status="draft"))
    assert statuses(store.url) == {"one": "draft"}


def test_publishing_a_draft_gives_it_a_date_once(store: Store) -> None:
    store.bring(template(status="draft"))
    assert [each.published_at for each in listed_templates(store.url)] == [None]
    set_status(store.url, slug_id("one").upper(), Status.PUBLISHED)
    [published] = listed_templates(store.url, Status.PUBLISHED)
    set_status(store.url, "one", Status.DRAFT)
    set_status(store.url, "one", Status.PUBLISHED)
    assert [each.published_at for each in listed_templates(store.url)] == [published.published_at]
    assert store.client().slugs("/api/templates") == ["one"]


def test_the_state_of_an_unknown_template_cannot_be_set(store: Store) -> None:
    with pytest.raises(TemplateApiError, match="no template with the id or slug 'none'"):
        set_status(store.url, "none", Status.DRAFT)
    with pytest.raises(TemplateApiError, match="no template with the id or slug"):
        set_status(store.url, "not UTF-8: \udcff", Status.DRAFT)


def test_cells_may_hold_what_json_can_escape(store: Store) -> None:
    cells = [{"kind": 1, "language": "markdown", "value": ["a\0b", "line"], "extra": {"deep": [1.5, None, True]}}]
    store.bring(template(notebooks=[{"filename": "ü.lotnb", "cells": cells}]))
    assert store.client().read()["notebooks"][0]["cells"] == cells


def test_routes_are_read_from_the_notebooks_but_not_from_comments(sqlite_store: Store) -> None:
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
    sqlite_store.bring(template(routes=["rest-api"], notebooks=[{"filename": "a.lotnb", "cells": cells}]))
    assert [route["name"] for route in sqlite_store.client().read()["routes"]] == ["rest-api", "KAFKA"]


def test_a_file_that_is_not_a_database_is_refused_with_its_reason(tmp_path: Path) -> None:
    database = tmp_path / "library.db"
    database.write_text("this is not a database, and long enough to be read as a page of one" * 20)
    with pytest.raises(DatabaseUnavailableError, match=f"database sqlite:///{database}: file is not a database"):
        import_templates(f"sqlite:///{database}", write_lines(tmp_path / "one.jsonl", template()))


def test_a_folder_and_a_line_of_one_slug_are_one_template(sqlite_store: Store, tmp_path: Path) -> None:
    folder, file = tmp_path / "folders", tmp_path / "library.jsonl"
    write_folder(folder / "weather", "title: Folder\ncategory: A\n", "of the folder")
    write_lines(file, template("weather", title="Line", content="of the line"))
    ids = set()
    for path, outcome, title in (
        (folder, "1 added, 0", "Folder"), (file, "0 added, 1", "Line"), (file, "0 added, 0", "Line"),
        (folder, "0 added, 1", "Folder"),
    ):  # fmt: skip
        assert str(import_templates(sqlite_store.url, path)).startswith(f"{outcome} changed")
        assert list(statuses(sqlite_store.url)) == ["weather"]
        read = sqlite_store.client().read("weather")
        assert (read["title"], read["content"]) == (title, f"of the {title.lower()}")
        ids.add(read["id"])
    assert len(ids) == 1

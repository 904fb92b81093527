"""GET /api/templates and GET /api/templates/{idOrSlug}, on both databases."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from template_api.library import set_status
from template_api.library.importing import template_id
from template_api.records import Status

if TYPE_CHECKING:
    from tests.support.library_store import Store

Make = Callable[..., dict[str, Any]]
UUID = "11111111-2222-4333-8444-555555555555"


def test_the_most_recently_published_template_comes_first(store: "Store", make_template: Make) -> None:
    store.bring(
        make_template("old", published_at="2024-01-01"),
        make_template("new", published_at="2026-01-01T00:00:00+02:00"),
        make_template("middle", published_at="2025-12-31T21:00:00Z"),
    )
    assert store.client().slugs("/api/templates") == ["new", "middle", "old"]


def test_templates_of_the_same_moment_are_ordered_by_id(store: "Store", make_template: Make) -> None:
    store.bring(*(make_template(f"t{number}", published_at="2026-01-01") for number in range(9)))
    found = store.client().slugs("/api/templates")
    assert found == sorted((f"t{number}" for number in range(9)), key=template_id)


def test_a_summary_has_the_fields_of_the_specification_and_no_content(store: "Store", make_template: Make) -> None:
    store.bring(
        make_template(
            "weather", title="Weather", short_description="Ask for it", difficulty="beginner", category="Polling",
            tags=["http", "C++"], routes=["REST_API"], broker_version="1.10", published_at="2026-01-01",
        )
    )  # fmt: skip
    [summary] = store.client(base_url="https://library.example/").get("/api/templates").json["results"]
    assert summary.pop("id") == template_id("weather")
    assert [tag.pop("id") is not None and tag for tag in summary.pop("tags")] == [
        {"name": "http", "slug": "http"},
        {"name": "C++", "slug": "c-plus-plus"},
    ]
    assert [route["name"] for route in summary.pop("routes")] == ["REST_API"]
    assert summary.pop("category")["slug"] == "polling"
    assert summary.pop("broker_version")["name"] == "1.10"
    assert summary.pop("published_at") <= summary.pop("updated_at")
    assert summary == {
        "slug": "weather",
        "title": "Weather",
        "short_description": "Ask for it",
        "difficulty": "beginner",
        "url": "https://library.example/templates/weather",
    }


def test_a_template_without_facets_answers_null_and_empty_lists(store: "Store", make_template: Make) -> None:
    store.bring(make_template())
    [summary] = store.client().get("/api/templates").json["results"]
    assert (summary["category"], summary["broker_version"], summary["tags"], summary["routes"]) == (None, None, [], [])
    assert "difficulty" not in summary


def test_the_url_given_at_import_wins(store: "Store", make_template: Make) -> None:
    store.bring(make_template(url="https://elsewhere.example/one"))
    assert store.client().get("/api/templates/one").json["template"]["url"] == "https://elsewhere.example/one"


@pytest.mark.parametrize("name", [UUID, UUID.upper(), "weather"])
def test_a_template_is_read_by_id_in_any_case_and_by_slug(store: "Store", make_template: Make, name: str) -> None:
    store.bring(make_template("weather", id=UUID))
    assert store.client().get(f"/api/templates/{name}").json["template"]["id"] == UUID


def test_a_template_without_slug_is_named_by_its_id(store: "Store", make_template: Make) -> None:
    store.bring(make_template(None, id=UUID))
    read = store.client().get(f"/api/templates/{UUID}").json["template"]
    assert read["slug"] is None
    assert read["url"].endswith(f"/templates/{UUID}")


def test_an_id_goes_before_a_slug_that_looks_like_it(store: "Store", make_template: Make) -> None:
    store.bring(make_template("the-id", id=UUID), make_template(UUID, id="99999999-2222-4333-8444-555555555555"))
    client = store.client()
    assert client.get(f"/api/templates/{UUID}").json["template"]["slug"] == "the-id"
    set_status(store.url, "the-id", Status.HIDDEN)
    assert client.get(f"/api/templates/{UUID}").json["template"]["slug"] == UUID


def test_a_template_has_the_fields_of_the_specification(store: "Store", make_template: Make) -> None:
    cells = [{"kind": 2, "language": "lot", "value": "DEFINE ROUTE A WITH TYPE REST_API"}]
    store.bring(
        make_template(
            content="# Title\n\nText", difficulty="Advanced", category="Polling", tags=["http"], broker_version="1",
            notebooks=[{"filename": "main.lotnb", "is_primary": True, "cells": cells}],
        )
    )  # fmt: skip
    read = store.client().get("/api/templates/one").json["template"]
    assert set(read) == {
        "id", "slug", "title", "short_description", "content", "difficulty", "url", "category", "tags", "routes",
        "notebooks", "published_at", "updated_at",
    }  # fmt: skip
    assert read["content"] == "# Title\n\nText"
    assert read["difficulty"] == "advanced"
    assert read["notebooks"] == [{"filename": "main.lotnb", "version": 1, "is_primary": True, "cells": cells}]
    assert [route["name"] for route in read["routes"]] == ["REST_API"]


@pytest.mark.parametrize("status", ["draft", "hidden"])
def test_a_template_that_is_not_published_is_nowhere(store: "Store", make_template: Make, status: str) -> None:
    store.bring(make_template("seen"), make_template("secret", title="Secret webhook", id=UUID, status=status))
    client = store.client()
    assert client.slugs("/api/templates") == ["seen"]
    assert client.slugs("/api/templates", q="secret webhook") == []
    assert client.slugs("/api/search", q="webhook") == []
    for name in (UUID, "secret"):
        refused = client.get(f"/api/templates/{name}")
        assert refused.status_code == 404
        assert refused.json["error"]["code"] == "template_not_found"
    assert [each["slug"] for each in client.post({"query": ""}).json["results"]] == ["seen"]


def test_a_name_that_no_template_has_is_not_found(store: "Store", make_template: Make) -> None:
    store.bring(make_template())
    client = store.client()
    hostile = ("%00", "a%00b", "%ff", "%ED%A0%80", "' OR 1=1 --", "a" * 5000, "%0a", "..", "%F0%9F%98%80")
    for name in ("nope", UUID, *hostile):
        refused = client.get(f"/api/templates/{name}")
        assert (refused.status_code, refused.json["error"]["code"]) == (404, "template_not_found"), name


def test_the_category_and_the_difficulty_filter_the_list(store: "Store", make_template: Make) -> None:
    store.bring(
        make_template("a", category="Polling", difficulty="beginner"),
        make_template("b", category="Polling", difficulty="advanced"),
        make_template("c", category="Other", difficulty="beginner"),
    )
    client = store.client()
    category = client.get("/api/templates/a").json["template"]["category"]["id"]
    assert set(client.slugs("/api/templates", category_id=category.upper())) == {"a", "b"}
    assert set(client.slugs("/api/templates", difficulty="beginner")) == {"a", "c"}
    assert client.slugs("/api/templates", difficulty="beginner", category_id=category) == ["a"]
    assert client.slugs("/api/templates", q="template", difficulty="advanced") == ["b"]
    assert client.slugs("/api/templates", category_id=UUID) == []


@pytest.mark.parametrize(
    ("parameter", "facet"), [("tag_ids", "tags"), ("route_ids", "routes"), ("broker_version_ids", "broker_version")]
)
def test_id_lists_filter_searches_and_only_those(
    store: "Store", make_template: Make, parameter: str, facet: str
) -> None:
    def value(name: str) -> Any:
        return name if facet == "broker_version" else [name]

    store.bring(*(make_template(name, **{facet: value(f"facet-{name}")}) for name in "abc"))
    client = store.client()

    def facet_id(name: str) -> str:
        found = next(each for each in client.get("/api/templates").json["results"] if each["slug"] == name)[facet]
        return str(found["id"] if facet == "broker_version" else found[0]["id"])

    wanted = f" {facet_id('a').upper()}, ,{facet_id('b')},"
    assert set(client.slugs("/api/templates", **{"q": "template", parameter: wanted})) == {"a", "b"}
    assert set(client.slugs("/api/templates", **{parameter: wanted})) == {"a", "b", "c"}
    assert set(client.slugs("/api/templates", **{"q": "template", parameter: " , "})) == {"a", "b", "c"}
    assert client.slugs("/api/templates", **{"q": "template", parameter: "nothing"}) == []
    body = {"query": "", "filters": {parameter: [facet_id("c").upper(), " "]}}
    assert [each["slug"] for each in client.post(body).json["results"]] == ["c"]


def test_the_limit_is_20_unless_given(store: "Store", make_template: Make) -> None:
    store.bring(*(make_template(f"t{number}") for number in range(32)))
    client = store.client()
    assert len(client.slugs("/api/templates")) == 20
    assert len(client.slugs("/api/templates", limit="30")) == 30
    assert len(client.slugs("/api/templates", limit="1")) == 1
    assert len(client.slugs("/api/search", q="template")) == 20
    assert len(client.slugs("/api/search", q="template", limit="007")) == 7

"""GET /api/templates and GET /api/templates/{idOrSlug}, on both databases."""

import pytest

from template_api.library import set_status
from template_api.library.models import slug_id
from template_api.records import Status
from tests.support.library_store import Store, template

UUID = "11111111-2222-4333-8444-555555555555"


def test_the_most_recently_published_template_comes_first_and_of_one_moment_the_lowest_id(store: Store) -> None:
    same = sorted((f"t{number}" for number in range(9)), key=slug_id)
    store.bring(
        template("old", published_at="2024-01-01"),
        template("new", published_at="2026-01-01T00:00:00+02:00"),
        *(template(name, published_at="2024-06-01") for name in reversed(same)),
        template("middle", published_at="2025-12-31T21:00:00Z"),
    )
    assert store.client().slugs("/api/templates") == ["new", "middle", *same, "old"]


def test_a_summary_has_the_fields_of_the_specification_and_no_content(sqlite_store: Store) -> None:
    sqlite_store.bring(
        template(
            "weather", title="Weather", short_description="Ask for it", difficulty="beginner", category="Polling",
            tags=["http", "C++"], routes=["REST_API"], broker_version="1.10", published_at="2026-01-01",
        )
    )  # fmt: skip
    [summary] = sqlite_store.client(base_url="https://library.example/").get("/api/templates").json["results"]
    assert summary.pop("id") == slug_id("weather")
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


def test_a_template_without_facets_answers_null_and_empty_lists_and_the_url_of_its_import(sqlite_store: Store) -> None:
    sqlite_store.bring(template(url="https://elsewhere.example/one"))
    [summary] = sqlite_store.client().get("/api/templates").json["results"]
    assert (summary["category"], summary["broker_version"], summary["tags"], summary["routes"]) == (None, None, [], [])
    assert "difficulty" not in summary
    assert summary["url"] == "https://elsewhere.example/one"


def test_a_template_is_read_by_id_in_any_case_and_by_slug(store: Store) -> None:
    other = "99999999-2222-4333-8444-555555555555"
    store.bring(template("weather", id=UUID), template(None, id=other))
    client = store.client()
    assert [client.read(name)["id"] for name in (UUID, UUID.upper(), "weather")] == [UUID] * 3
    unnamed = client.read(other)
    assert (unnamed["slug"], unnamed["url"].partition("/templates/")[2]) == (None, other)


def test_an_id_goes_before_a_slug_that_looks_like_it(store: Store) -> None:
    store.bring(template("the-id", id=UUID), template(UUID, id="99999999-2222-4333-8444-555555555555"))
    client = store.client()
    assert client.read(UUID)["slug"] == "the-id"
    set_status(store.url, "the-id", Status.HIDDEN)
    assert client.read(UUID)["slug"] == UUID


def test_a_template_has_the_fields_of_the_specification(sqlite_store: Store) -> None:
    cells = [{"kind": 2, "language": "lot", "value": "DEFINE ROUTE A WITH TYPE REST_API"}]
    sqlite_store.bring(
        template(
            content="# Title\n\nText", difficulty="Advanced", category="Polling", tags=["http"], broker_version="1",
            notebooks=[{"filename": "main.lotnb", "is_primary": True, "cells": cells}],
        )
    )  # fmt: skip
    read = sqlite_store.client().read()
    assert set(read) == {
        "id", "slug", "title", "short_description", "content", "difficulty", "url", "category", "tags", "routes",
        "notebooks", "published_at", "updated_at",
    }  # fmt: skip
    assert read["content"] == "# Title\n\nText"
    assert read["difficulty"] == "advanced"
    assert read["notebooks"] == [{"filename": "main.lotnb", "version": 1, "is_primary": True, "cells": cells}]
    assert [route["name"] for route in read["routes"]] == ["REST_API"]


@pytest.mark.parametrize("status", ["draft", "hidden"])
def test_a_template_that_is_not_published_is_nowhere(store: Store, status: str) -> None:
    store.bring(template("seen"), template("secret", title="Secret webhook", id=UUID, status=status))
    client = store.client()
    assert client.slugs("/api/templates") == ["seen"]
    assert client.slugs("/api/templates", q="secret webhook") == []
    assert client.slugs("/api/search", q="webhook") == []
    for name in (UUID, "secret"):
        refused = client.get(f"/api/templates/{name}")
        assert refused.status_code == 404
        assert refused.json["error"]["code"] == "template_not_found"
    assert client.posted("") == ["seen"]


def test_a_name_that_no_template_has_is_not_found(store: Store) -> None:
    store.bring(template())
    client = store.client()
    hostile = ("%00", "a%00b", "%ff", "%ED%A0%80", "' OR 1=1 --", "a" * 5000, "%0a", "..", "%F0%9F%98%80")
    for name in ("nope", UUID, *hostile):
        refused = client.get(f"/api/templates/{name}")
        assert (refused.status_code, refused.json["error"]["code"]) == (404, "template_not_found"), name


def test_the_limit_is_20_unless_given(sqlite_store: Store) -> None:
    sqlite_store.bring(*(template(f"t{number}") for number in range(32)))
    client = sqlite_store.client()
    assert len(client.slugs("/api/templates")) == 20
    assert len(client.slugs("/api/templates", limit="30")) == 30
    assert len(client.slugs("/api/templates", limit="1")) == 1
    assert len(client.slugs("/api/search", q="template")) == 20
    assert len(client.slugs("/api/search", q="template", limit="007")) == 7

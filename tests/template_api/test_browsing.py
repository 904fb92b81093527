"""Pages, filters, facets and suggestions: what a website builds its library page on."""

import re
from dataclasses import replace
from typing import Any

import pytest

from template_api.library import set_status
from template_api.records import Status
from tests.support.library_store import Client, Store, template
from tests.support.postgres import Postgres

UUID = "11111111-2222-4333-8444-555555555555"
TITLES = ["Receive a webhook", "Receive mail", "Web shop orders", "Poll the weather"]


def many_templates(store: Store) -> Client:
    """Twenty-five templates, the newest first: t00, t01, ..."""
    store.bring(
        *(
            template(
                f"t{n:02}",
                title=f"{TITLES[n % 4]} {n}",
                published_at=f"2026-01-{28 - n:02}",
                difficulty="beginner" if n % 2 else "advanced",
                category="Even" if n % 2 == 0 else "Odd",
                tags=["all", *(["five"] if n % 5 == 0 else [])],
                broker_version=f"1.{n % 3}",
            )
            for n in range(25)
        )
    )
    return store.client()


@pytest.fixture(scope="module")
def client(shared_store: Store) -> Client:
    """A client of a library that no test changes."""
    return many_templates(shared_store)


def facet(client: Client, kind: str, name: str) -> str:
    [found] = [each["id"] for each in client.get("/api/facets").json[kind] if each["name"] == name]
    return str(found)


def test_the_link_begins_with_the_path_of_the_public_address(sqlite_store: Store) -> None:
    sqlite_store.bring(*(template(f"t{n}", title="Poll the weather") for n in range(3)))
    client = sqlite_store.client(base_url="https://example.org/library/")
    for path in ("/api/templates?limit=1", "/api/search?q=weather&limit=1"):
        assert client.get(path).headers["Link"].startswith(f"</library{path.partition('?')[0]}?")
    assert client.post({"query": "weather", "limit": 1}).headers["Link"].startswith("</library/api/search?")


def test_post_has_pages_and_names_the_next_one_at_get(client: Client) -> None:
    tag = facet(client, "tags", "all")
    asked = {"query": "receive", "filters": {"tag_ids": [tag]}}
    page = client.post({**asked, "limit": 5, "offset": 5})
    assert page.headers["X-Total-Count"] == "13"
    link = page.headers["Link"]
    assert link.startswith(f"</api/search?q=receive&limit=5&offset=10&tag_ids={tag}&cursor=")
    following = client.get(link.partition("<")[2].partition(">")[0])
    assert len(following.json["results"]) == 3
    assert client.post({**asked, "limit": 3, "offset": 10}).json == following.json


def test_a_blank_post_has_pages_and_no_link(client: Client) -> None:
    page = client.post({"query": "", "limit": 5, "offset": None})
    assert page.headers["X-Total-Count"] == "25"
    assert "Link" not in page.headers
    assert client.posted("", limit=5, offset=5) == [f"t{n:02}" for n in range(5, 10)]


def test_a_page_beyond_the_end_is_empty(client: Client) -> None:
    for path in ("/api/templates?offset=10000", "/api/search?q=receive&offset=10000"):
        page = client.get(path)
        assert page.json == {"results": []}
        assert "Link" not in page.headers
        assert int(page.headers["X-Total-Count"]) > 10


def test_a_text_cannot_change_the_shape_of_the_link(client: Client) -> None:
    page = client.get("/api/search", params={"q": 'receive>; rel="prev", <http://evil.example/\r\nX: y', "limit": "2"})
    link = page.headers["Link"]
    assert re.fullmatch(r'</api/search\?[A-Za-z0-9%&=+._-]+>; rel="next"', link)


def test_a_link_that_would_be_too_long_is_left_out(client: Client) -> None:
    page = client.get("/api/search", params={"q": "receive " + "ü" * 1500, "limit": "2"})
    assert page.headers["X-Total-Count"] == "13"
    assert "Link" not in page.headers


def test_the_same_filters_pass_the_same_templates_at_every_door(client: Client) -> None:
    category = facet(client, "categories", "Odd")
    given = {
        "category_id": category,
        "difficulty": "beginner",
        "tag_ids": facet(client, "tags", "five").upper(),
        "broker_version_ids": ",".join(facet(client, "broker_versions", name) for name in ("1.0", "1.2")),
    }
    text, expected = "template receive weather orders", {"t05", "t15"}
    odd = {f"t{n:02}" for n in range(1, 25, 2)}
    assert set(client.slugs("/api/templates", limit="30", category_id=category.upper(), difficulty="beginner")) == odd
    assert client.slugs("/api/templates", difficulty="advanced", category_id=category) == []
    assert client.slugs("/api/templates", category_id=UUID) == []
    for path in ("/api/search", "/api/templates"):
        assert set(client.slugs(path, q=text, **given)) == expected
    filters = {name: value.split(",") if name.endswith("_ids") else value for name, value in given.items()}
    for query in (text, ""):
        found = client.post({"query": query, "filters": filters})
        assert {each["slug"] for each in found.json["results"]} == expected
        assert found.headers["X-Total-Count"] == "2"


def test_facets_count_what_is_published(store: Store) -> None:
    client = many_templates(store)

    def counts() -> dict[str, list[tuple[str, int]]]:
        facets = client.get("/api/facets").json
        return {kind: [(each["name"], each["count"]) for each in several] for kind, several in facets.items()}

    assert counts() == {
        "categories": [("Even", 13), ("Odd", 12)],
        "tags": [("all", 25), ("five", 5)],
        "routes": [],
        "broker_versions": [("1.0", 9), ("1.1", 8), ("1.2", 8)],
        "difficulties": [("advanced", 13), ("beginner", 12)],
    }
    for n in range(0, 25, 5):
        set_status(store.url, f"t{n:02}", Status.HIDDEN)
    assert counts()["tags"] == [("all", 20)]


def test_an_empty_library_answers_with_nothing(sqlite_store: Store) -> None:
    client = sqlite_store.client()
    names = ("categories", "tags", "routes", "broker_versions", "difficulties")
    assert client.get("/api/facets").json == {name: [] for name in names}
    assert client.get("/api/suggest?q=a").json == {"suggestions": []}
    assert client.slugs("/api/search?q=a") == []


def test_titles_are_suggested_while_typing(sqlite_store: Store) -> None:
    client = many_templates(sqlite_store)

    def suggested(text: str) -> list[dict[str, str]]:
        suggestions: list[dict[str, str]] = client.get("/api/suggest", params={"q": text}).json["suggestions"]
        return suggestions

    assert len(suggested("rec")) == 8
    assert suggested("poll the weather 2")[0]["text"].startswith("Poll the weather 2")
    assert suggested("Poll the weather 23")[0] == {"text": "Poll the weather 23", "slug": "t23"}
    assert all("mail" in each["text"] for each in suggested("recieve mai")[:5])
    assert all(" we" in f" {each['text'].lower()}" for each in suggested("we"))
    assert suggested("wether 23")[0]["slug"] == "t23"
    assert suggested(" ?! ") == suggested("zzzzzz") == []
    set_status(sqlite_store.url, "t23", Status.HIDDEN)
    assert {"text": "Poll the weather 23", "slug": "t23"} not in suggested("Poll the weather 23")


@pytest.mark.parametrize(
    ("query", "told"), [("", "q is required"), ("q=" + "x" * 201, "q must be text"), ("q=%FF", "UTF-8")]
)
def test_a_suggestion_needs_a_text(client: Client, query: str, told: str) -> None:
    refused = client.get("/api/suggest", query_string=query)
    assert (refused.status_code, refused.json["error"]["code"]) == (400, "invalid_parameter")
    assert told in refused.json["error"]["message"]


@pytest.mark.postgres
def test_sqlite_and_postgresql_rank_alike(sqlite_store: Store, postgres_server: Postgres) -> None:
    """Of many templates that are nearly alike: where a database had a say in the order, it would show."""
    words = ["pump", "valve", "meter", "gateway", "topic", "alarm", "broker"]
    templates = [
        template(
            f"s{n}",
            title=" ".join(words[k] for k in (n % 7, n % 5, n % 3)),
            content=f"{words[n % 4]} text " * (n % 9),
            published_at=f"2026-01-{n % 28 + 1:02}",
        )
        for n in range(150)
    ]
    ranked = []
    for store in (sqlite_store, replace(sqlite_store, url=postgres_server.new_database())):
        store.bring(*templates)
        client = store.client()
        texts = ("pump valve", "vlave metre", "gateway topic alarm", "text")
        asked = [{"q": q, "limit": "30", "fields": "slug,score,matched"} for q in texts]
        ranked.append([client.get("/api/search", params=each, params_csv=False).json for each in asked])
    assert ranked[0] == ranked[1]
    assert all(len(each["results"]) == 30 for each in ranked[0])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tag_ids", ["home-assistant"]), ("route_ids", ["MQTT"]), ("broker_version_ids", ["1.0"]),
        ("category_id", "smart-home"),
    ],
)  # fmt: skip
def test_filters_take_slugs_as_well_as_ids(store: Store, name: str, value: Any) -> None:
    one = template("one", tags=["Home Assistant"], category="Smart Home", routes=["MQTT"], broker_version="1.0")
    store.bring(one, template("two", tags=["other"], category="Other", routes=["HTTP"], broker_version="2.0"))
    client = store.client()
    assert client.posted("", filters={name: value}) == client.posted("template", filters={name: value}) == ["one"]
    if name == "category_id":
        assert client.get("/api/templates?category_id=smart-home").status_code == 400
        return
    several = {name: f" {value[0].upper()}, ,nothing,"}
    assert client.slugs("/api/search", q="template", **several) == ["one"]
    assert client.slugs("/api/templates", q="template", **several) == ["one"]
    assert client.slugs("/api/templates", q="template", **{name: "nothing"}) == []
    for ignored in ({"q": "template", name: " , "}, several):
        assert set(client.slugs("/api/templates", **ignored)) == {"one", "two"}, "blank, or without a text"

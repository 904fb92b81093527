"""Pages, filters, facets and suggestions: what a website builds its library page on."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from template_api.library import set_status
from template_api.records import Status

if TYPE_CHECKING:
    from tests.support.library_store import Client, Store
    from tests.support.postgres import Postgres

Make = Callable[..., dict[str, Any]]
TITLES = ["Receive a webhook", "Receive mail", "Web shop orders", "Poll the weather"]


def many_templates(store: "Store", make_template: Make) -> "Client":
    """Twenty-five templates, the newest first: t00, t01, ..."""
    store.bring(
        *(
            make_template(
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
def client(shared_store: "Store", make_template: Make) -> "Client":
    """A client of a library that no test changes."""
    return many_templates(shared_store, make_template)


def facet(client: "Client", kind: str, name: str) -> str:
    [found] = [each["id"] for each in client.get("/api/facets").json[kind] if each["name"] == name]
    return str(found)


@pytest.mark.parametrize("path", ["/api/templates?limit=7", "/api/search?q=recieve+weather&limit=7"])
def test_the_link_leads_from_page_to_page_until_the_end(client: "Client", path: str) -> None:
    whole = client.slugs(path.replace("limit=7", "limit=30"))
    seen = []
    while path:
        page = client.get(path)
        assert page.headers["X-Total-Count"] == str(len(whole))
        seen += [each["slug"] for each in page.json["results"]]
        link = page.headers.get("Link")
        found = re.fullmatch(r'<(/api/[^>]+)>; rel="next"', link) if link else None
        assert bool(found) == bool(link)
        path = found[1] if found else ""
    assert seen == whole
    assert len(set(seen)) == len(seen) > 7


def test_the_link_begins_with_the_path_of_the_public_address(store: "Store", make_template: Make) -> None:
    store.bring(*(make_template(f"t{n}", title="Poll the weather") for n in range(3)))
    client = store.client(base_url="https://example.org/library/")
    for path in ("/api/templates?limit=1", "/api/search?q=weather&limit=1"):
        assert client.get(path).headers["Link"].startswith(f"</library{path.partition('?')[0]}?")
    assert client.post({"query": "weather", "limit": 1}).headers["Link"].startswith("</library/api/search?")


def test_post_has_pages_and_names_the_next_one_at_get(client: "Client") -> None:
    tag = facet(client, "tags", "all")
    page = client.post({"query": "receive", "limit": 5, "offset": 5, "filters": {"tag_ids": [tag]}})
    assert page.headers["X-Total-Count"] == "13"
    link = page.headers["Link"]
    assert link.startswith(f"</api/search?q=receive&limit=5&offset=10&tag_ids={tag}&cursor=")
    following = client.get(link.partition("<")[2].partition(">")[0])
    assert len(following.json["results"]) == 3
    assert (
        client.post({"query": "receive", "limit": 3, "offset": 10, "filters": {"tag_ids": [tag]}}).json
        == following.json
    )


def test_a_blank_post_has_pages_and_no_link(client: "Client") -> None:
    page = client.post({"query": "", "limit": 5, "offset": None})
    assert page.headers["X-Total-Count"] == "25"
    assert "Link" not in page.headers
    second = client.post({"query": "", "limit": 5, "offset": 5})
    assert [each["slug"] for each in second.json["results"]] == [f"t{n:02}" for n in range(5, 10)]


def test_a_page_beyond_the_end_is_empty(client: "Client") -> None:
    for path in ("/api/templates?offset=10000", "/api/search?q=receive&offset=10000"):
        page = client.get(path)
        assert page.json == {"results": []}
        assert "Link" not in page.headers
        assert int(page.headers["X-Total-Count"]) > 10


def test_a_text_cannot_change_the_shape_of_the_link(client: "Client") -> None:
    page = client.get("/api/search", params={"q": 'receive>; rel="prev", <http://evil.example/\r\nX: y', "limit": "2"})
    link = page.headers["Link"]
    assert re.fullmatch(r'</api/search\?[A-Za-z0-9%&=+._-]+>; rel="next"', link)


def test_a_link_that_would_be_too_long_is_left_out(client: "Client") -> None:
    page = client.get("/api/search", params={"q": "receive " + "ü" * 1500, "limit": "2"})
    assert page.headers["X-Total-Count"] == "13"
    assert "Link" not in page.headers


def test_the_same_filters_pass_the_same_templates_at_every_door(client: "Client") -> None:
    given = {
        "category_id": facet(client, "categories", "Odd"),
        "difficulty": "beginner",
        "tag_ids": facet(client, "tags", "five"),
        "broker_version_ids": ",".join(facet(client, "broker_versions", name) for name in ("1.0", "1.2")),
    }
    expected = {"t05", "t15"}
    listed = {name: given[name] for name in ("category_id", "difficulty")}
    assert set(client.slugs("/api/templates", limit="30", **listed)) == {f"t{n:02}" for n in range(1, 25, 2)}
    assert set(client.slugs("/api/search", q="template receive weather orders", **given)) == expected
    assert set(client.slugs("/api/templates", q="template receive weather orders", **given)) == expected
    filters = {name: value.split(",") if name.endswith("_ids") else value for name, value in given.items()}
    for query in ("template receive weather orders", ""):
        found = client.post({"query": query, "filters": filters})
        assert {each["slug"] for each in found.json["results"]} == expected
        assert found.headers["X-Total-Count"] == "2"


def test_facets_count_what_is_published(store: "Store", make_template: Make) -> None:
    client = many_templates(store, make_template)
    facets = client.get("/api/facets").json
    assert [(each["name"], each["count"]) for each in facets["categories"]] == [("Even", 13), ("Odd", 12)]
    assert [(each["name"], each["count"]) for each in facets["tags"]] == [("all", 25), ("five", 5)]
    assert [(each["id"], each["count"]) for each in facets["difficulties"]] == [("advanced", 13), ("beginner", 12)]
    assert [(each["name"], each["count"]) for each in facets["broker_versions"]] == [("1.0", 9), ("1.1", 8), ("1.2", 8)]
    assert facets["routes"] == []
    for n in range(0, 25, 5):
        set_status(store.url, f"t{n:02}", Status.HIDDEN)
    facets = client.get("/api/facets").json
    assert [(each["name"], each["count"]) for each in facets["tags"]] == [("all", 20)]


def test_facets_of_an_empty_library_are_empty(store: "Store") -> None:
    names = ("categories", "tags", "routes", "broker_versions", "difficulties")
    assert store.client().get("/api/facets").json == {name: [] for name in names}


def test_titles_are_suggested_while_typing(store: "Store", make_template: Make) -> None:
    client = many_templates(store, make_template)

    def suggested(text: str) -> list[dict[str, str]]:
        suggestions: list[dict[str, str]] = client.get("/api/suggest", params={"q": text}).json["suggestions"]
        return suggestions

    assert len(suggested("rec")) == 8
    assert suggested("poll the weather 2")[0]["text"].startswith("Poll the weather 2")
    assert suggested("Poll the weather 23")[0] == {"text": "Poll the weather 23", "slug": "t23"}
    assert all("mail" in each["text"] for each in suggested("recieve mai")[:5])
    assert suggested("") == suggested(" ?! ") == suggested("zzzzzz") == []
    set_status(store.url, "t23", Status.HIDDEN)
    assert {"text": "Poll the weather 23", "slug": "t23"} not in suggested("Poll the weather 23")


@pytest.mark.parametrize(
    ("query", "told"), [("", "q is required"), ("q=" + "x" * 201, "q must be text"), ("q=%FF", "UTF-8")]
)
def test_a_suggestion_needs_a_text(client: "Client", query: str, told: str) -> None:
    refused = client.get("/api/suggest", query_string=query)
    assert (refused.status_code, refused.json["error"]["code"]) == (400, "invalid_parameter")
    assert told in refused.json["error"]["message"]


@pytest.mark.postgres
def test_sqlite_and_postgresql_rank_alike(
    sqlite_store: "Store", postgres_server: "Postgres", make_template: Make
) -> None:
    """Of many templates that are nearly alike: where a database had a say in the order, it would show."""
    words = ["pump", "valve", "meter", "gateway", "topic", "alarm", "broker"]
    templates = [
        make_template(
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


def test_filters_take_slugs_as_well_as_ids(store: "Store", make_template: Make) -> None:
    one = make_template("one", tags=["Home Assistant"], category="Smart Home", routes=["MQTT"], broker_version="1.0")
    store.bring(one, make_template("two", tags=["other"]))
    client = store.client()
    filters: dict[str, Any] = {"tag_ids": ["home-assistant"], "route_ids": ["MQTT"], "broker_version_ids": ["1.0"]}
    filters |= {"category_id": "smart-home"}
    for name, value in filters.items():
        for text in ("", "template"):
            found = client.post({"query": text, "filters": {name: value}}).json["results"]
            assert [each["slug"] for each in found] == ["one"], (name, text)
    assert client.slugs("/api/search", q="template", tag_ids="Home-Assistant,none") == ["one"]
    assert client.get("/api/templates?category_id=smart-home").status_code == 400

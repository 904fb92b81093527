"""Pages that go on where the page before ended, whatever is published meanwhile; and other texts in their place."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from template_api.library import set_status
from template_api.query import cursor_text, search_query
from template_api.records import Place, Status, TemplateQuery
from tests.support.library_store import Client, Store, template

WALKS = [
    "/api/templates?limit=4", "/api/templates?limit=4&sort=title", "/api/templates?limit=4&updated_since=2020-01-01",
    "/api/search?q=pump&limit=4", "/api/search?q=pump&limit=4&sort=newest", "/api/search?q=pump&limit=4&sort=title",
]  # fmt: skip

STABLE = [path for path in WALKS if "q=" not in path or "sort=" in path]
"""Walks whose order a change of another template leaves as it is."""


def pumps(numbers: range, **members: Any) -> list[dict[str, Any]]:
    """Make templates whose words and dates differ, so that each publication changes the order of all."""
    source = random.Random(7)
    return [
        template(
            f"t{n:03}",
            title=f"{source.choice('bcdf')} pump {n}",
            content="pump valve " * source.randint(0, 9) + "meter " * source.randint(0, 9),
            **{"published_at": f"2026-01-{n % 28 + 1:02}", **members},
        )
        for n in numbers
    ]


def following(page: Any) -> str | None:
    link = page.headers.get("Link")
    return link.partition("<")[2].partition(">")[0] if link else None


def walk(client: Client, path: str | None, between: Callable[[int], None] = lambda _number: None) -> list[str]:
    """Follow the links to the end; return the slugs, and do something between two pages."""
    seen: list[str] = []
    number = 0
    while path:
        page = client.get(path)
        seen += [each["slug"] for each in page.json["results"]]
        path = following(page)
        between(number)
        number += 1
    return seen


@pytest.fixture(scope="module")
def client(shared_store: Store) -> Client:
    """A client of a library that no test changes."""
    shared_store.bring(*pumps(range(25)))
    return shared_store.client()


@pytest.mark.parametrize("path", WALKS)
def test_a_walk_shows_each_template_once_in_the_order_of_one_long_page(client: Client, path: str) -> None:
    whole = client.slugs(path.replace("limit=4", "limit=30"))
    assert client.get(path).headers["X-Total-Count"] == "25"
    assert walk(client, path) == whole
    assert len(whole) == len(set(whole)) == 25


@pytest.mark.parametrize("path", STABLE)
def test_a_walk_shows_nothing_twice_and_misses_nothing_when_templates_come_and_go(
    sqlite_store: Store, path: str
) -> None:
    sqlite_store.bring(*pumps(range(28)))
    client = sqlite_store.client()

    def between(number: int) -> None:
        sqlite_store.bring(*pumps(range(100 + number * 3, 103 + number * 3), published_at="2026-02-02"))
        set_status(sqlite_store.url, f"t{number * 2:03}", Status.HIDDEN)

    hidden = {f"t{number * 2:03}" for number in range(28)}
    seen = walk(client, path, lambda number: between(number) if number < 5 else None)
    assert len(seen) == len(set(seen))
    assert {f"t{n:03}" for n in range(28)} - hidden <= set(seen)


def test_a_walk_goes_beyond_ten_thousand(sqlite_store: Store) -> None:
    sqlite_store.bring(*(template(f"t{n}", title="Pump", content="") for n in range(40)))
    client = sqlite_store.client()
    end = client.library.find(TemplateQuery(limit=10, offset=20)).place
    assert end is not None
    deep = Place(10_020, end.keys)
    path = f"/api/templates?limit=5&cursor={cursor_text(TemplateQuery(place=deep))}"
    page = client.get(path)
    assert len(page.json["results"]) == 5
    assert "offset" not in str(following(page))
    assert len(walk(client, path)) == 10
    assert following(client.get("/api/templates?limit=5&offset=30")) is not None


def test_a_page_begins_where_it_would_when_the_last_one_shown_is_gone(sqlite_store: Store) -> None:
    sqlite_store.bring(*pumps(range(12)))
    client = sqlite_store.client()
    for path in STABLE:
        first = client.get(path)
        before = client.slugs(path.replace("limit=4", "limit=30"))
        set_status(sqlite_store.url, first.json["results"][-1]["slug"], Status.HIDDEN)
        rest = client.slugs(str(following(first)))
        assert rest[0] in before[4:6]
        set_status(sqlite_store.url, first.json["results"][-1]["slug"], Status.PUBLISHED)


def test_meta_and_post_have_the_cursor_too(sqlite_store: Store) -> None:
    sqlite_store.bring(*pumps(range(9)))
    client = sqlite_store.client()
    for query in ("pump", ""):
        seen: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            body = {"query": query, "limit": 4, "meta": True, "cursor": cursor, "offset": 7 if cursor else 0}
            answer = client.post(body).json
            seen += [each["slug"] for each in answer["results"]]
            assert answer["meta"]["total"] == 9
            cursor = answer["meta"].get("next_cursor")
        assert sorted(seen) == [f"t{n:03}" for n in range(9)]
    got = client.get("/api/search?q=pump&limit=4&meta=true").json["meta"]["next_cursor"]
    assert f"cursor={got}" in client.get("/api/search?q=pump&limit=4").headers["Link"]
    assert f"cursor={got}" in client.post({"query": "pump", "limit": 4}).headers["Link"]


def test_the_link_keeps_the_options(sqlite_store: Store) -> None:
    sqlite_store.bring(*pumps(range(9)))
    client = sqlite_store.client()
    options = "exact=true&sort=title&updated_since=2020-01-01&meta=true&highlight=true&fields=id,title"
    link = following(client.get(f"/api/search?q=pump&limit=4&{options}"))
    assert link is not None
    second = client.get(link).json
    assert list(second["results"][0]) == ["id", "title", "snippet"]
    assert second["meta"]["total"] == 9


def test_whatever_is_changed_in_a_cursor_is_refused(sqlite_store: Store) -> None:
    sqlite_store.bring(*pumps(range(9)))
    client = sqlite_store.client()
    for path in ("/api/templates?", "/api/search?q=pump&"):
        cursor = client.get(f"{path}limit=4&meta=true").json["meta"]["next_cursor"]
        assert client.get(f"{path}limit=4&cursor={cursor}").status_code == 200
        changed = [cursor[:at] + ("A" if cursor[at] != "A" else "B") + cursor[at + 1 :] for at in range(len(cursor))]
        changed += [cursor[:-1], cursor + "A", cursor + "=", cursor.swapcase(), cursor * 2, "-" + cursor]
        changed.append("%00" + cursor)
        for given in changed:
            refused = client.get(f"{path}limit=4&cursor={given}")
            assert (refused.status_code, refused.json["error"]["code"]) == (400, "invalid_parameter"), given
        for other in ("sort=title&", "q=valve&", "exact=true&", "difficulty=beginner&", "updated_since=2020-01-01&"):
            assert client.get(f"{path}{other}limit=4&cursor={cursor}").status_code == 400, other
        assert client.get(f"{path}limit=2&fields=id&meta=true&highlight=true&cursor={cursor}").status_code == 200


@pytest.mark.parametrize(
    "place",
    [
        Place(2**32 - 1),
        Place(10**9),
        Place(5, ("x", "y")),
        Place(0, ("\0",)),
        Place(5, ("';DROPTABLEtemplates;--",)),
    ],
)
def test_a_cursor_that_was_forged_with_the_right_checksum_does_no_harm(client: Client, place: Place) -> None:
    for path in ("/api/templates?limit=4", "/api/search?q=pump&limit=4"):
        wanted = search_query(*path.split("?")).query
        forged = cursor_text(TemplateQuery(text=wanted.text, limit=4, place=place))
        answer = client.get(f"{path}&cursor={forged}")
        assert answer.status_code in {200, 400}
    assert len(client.slugs("/api/templates?limit=30")) == 25

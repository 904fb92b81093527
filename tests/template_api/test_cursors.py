"""Pages that go on where the page before ended, whatever is published meanwhile; and other texts in their place."""

import random
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from template_api.errors import ApiError
from template_api.library import set_status
from template_api.query import cursor_text, list_query, search_query
from template_api.records import Place, Status, TemplateQuery

if TYPE_CHECKING:
    from tests.support.library_store import Client, Store

Make = Callable[..., dict[str, Any]]
WALKS = [
    "/api/templates?limit=4", "/api/templates?limit=4&sort=title", "/api/templates?limit=4&updated_since=2020-01-01",
    "/api/search?q=pump&limit=4", "/api/search?q=pump&limit=4&sort=newest", "/api/search?q=pump&limit=4&sort=title",
]  # fmt: skip


def pumps(make_template: Make, numbers: range, **members: Any) -> list[dict[str, Any]]:
    """Make templates whose words and dates differ, so that each publication changes the order of all."""
    source = random.Random(7)
    return [
        make_template(
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


def walk(client: "Client", path: str | None, between: Callable[[int], None] = lambda _number: None) -> list[str]:
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
def client(shared_store: "Store", make_template: Make) -> "Client":
    """A client of a library that no test changes."""
    shared_store.bring(*pumps(make_template, range(25)))
    return shared_store.client()


@pytest.mark.parametrize("path", WALKS)
def test_a_walk_shows_each_template_once_in_the_order_of_one_long_page(client: "Client", path: str) -> None:
    whole = client.slugs(path.replace("limit=4", "limit=30"))
    assert walk(client, path) == whole
    assert len(whole) == len(set(whole)) == 25


@pytest.mark.parametrize("path", WALKS)
def test_a_walk_shows_nothing_twice_and_misses_nothing_when_templates_come_and_go(
    sqlite_store: "Store", make_template: Make, path: str
) -> None:
    sqlite_store.bring(*pumps(make_template, range(28)))
    client = sqlite_store.client()

    def between(number: int) -> None:
        sqlite_store.bring(*pumps(make_template, range(100 + number * 3, 103 + number * 3), published_at="2026-02-02"))
        set_status(sqlite_store.url, f"t{number * 2:03}", Status.HIDDEN)

    hidden = {f"t{number * 2:03}" for number in range(28)}
    seen = walk(client, path, lambda number: between(number) if number < 5 else None)
    assert len(seen) == len(set(seen))
    assert {f"t{n:03}" for n in range(28)} - hidden <= set(seen)


def test_a_walk_goes_beyond_ten_thousand(sqlite_store: "Store", make_template: Make) -> None:
    sqlite_store.bring(*(make_template(f"t{n}", title="Pump", content="") for n in range(40)))
    client = sqlite_store.client()
    end = client.library.find(TemplateQuery(limit=10, offset=20)).place
    assert end is not None
    deep = Place(10_020, (), end.after)
    path = f"/api/templates?limit=5&cursor={cursor_text(TemplateQuery(place=deep))}"
    page = client.get(path)
    assert len(page.json["results"]) == 5
    assert "offset" not in str(following(page))
    assert len(walk(client, path)) == 10
    assert following(client.get("/api/templates?limit=5&offset=30")) is not None


def test_a_cursor_of_a_search_remembers_two_hundred_templates(sqlite_store: "Store", make_template: Make) -> None:
    sqlite_store.bring(*pumps(make_template, range(300)))
    client = sqlite_store.client()
    seen = walk(client, "/api/search?q=pump+meter&limit=30&fields=slug")
    assert len(seen) == len(set(seen)) == 300
    longest = client.get("/api/search?q=pump&limit=30&offset=0")
    assert len(longest.headers["Link"]) < 2000


@pytest.fixture(params=[pytest.param(6, id="a fifth"), pytest.param(30, marks=pytest.mark.long)])
def limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The templates of a page; a cursor names those of less than seven pages, 200 of 30 each."""
    size = int(request.param)
    monkeypatch.setattr("template_api.records._MOST_SEEN", 20 * size // 3)
    return size


def test_a_large_import_between_two_pages_shows_nothing_again(
    sqlite_store: "Store", make_template: Make, limit: int
) -> None:
    sqlite_store.bring(*pumps(make_template, range(10 * limit)))
    client = sqlite_store.client()

    def between(number: int) -> None:
        if number == 8:  # 270 were shown, of which the cursor names 200
            imported = pumps(make_template, range(10 * limit, 23 * limit), published_at="2026-02-02")
            sqlite_store.bring(*imported)

    seen = walk(client, f"/api/search?q=pump&limit={limit}&sort=newest&fields=slug", between)
    assert len(seen) == len(set(seen))
    assert {f"t{n:03}" for n in range(10 * limit)} <= set(seen)


@pytest.mark.parametrize("count", [120, pytest.param(600, marks=pytest.mark.long)])
@pytest.mark.parametrize("sort", ["newest", "title"])
def test_a_long_walk_beside_imports_and_changes_shows_nothing_again(
    sqlite_store: "Store", make_template: Make, sort: str, count: int, limit: int
) -> None:
    imports = count // 24
    sqlite_store.bring(*pumps(make_template, range(count)))
    client = sqlite_store.client()

    def between(number: int) -> None:
        changed = [make_template(f"t{n:03}", title=f"a pump {number}") for n in range(number * 20, number * 20 + 3)]
        sqlite_store.bring(*pumps(make_template, range(1000 + number * 9, 1009 + number * 9)), *changed)

    path = f"/api/search?q=pump&limit={limit}&sort={sort}&fields=slug"
    seen = walk(client, path, lambda number: between(number) if number < imports else None)
    changed = {f"t{n:03}" for m in range(imports) for n in range(m * 20, m * 20 + 3)}
    same = {f"t{n:03}" for n in range(count)} - changed
    assert [slug for slug in seen if slug in same and seen.count(slug) > 1] == []
    assert same <= set(seen)


def test_when_all_that_a_cursor_names_are_hidden_nothing_is_missed(
    sqlite_store: "Store", make_template: Make, limit: int
) -> None:
    sqlite_store.bring(*pumps(make_template, range(10 * limit)))
    client = sqlite_store.client()
    seen: list[str] = []

    def slugs(path: str) -> str | None:
        page = client.get(path)
        seen.extend(each["slug"] for each in page.json["results"])
        return following(page)

    path: str | None = f"/api/search?q=pump&limit={limit}&sort=title"
    for _ in range(8):
        assert path is not None
        path = slugs(path)
    for slug in seen[-20 * limit // 3 :]:
        set_status(sqlite_store.url, slug, Status.HIDDEN)
    seen += walk(client, path)
    assert len(seen) == len(set(seen)) == 10 * limit


def test_meta_and_post_have_the_cursor_too(sqlite_store: "Store", make_template: Make) -> None:
    sqlite_store.bring(*pumps(make_template, range(9)))
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


def test_the_link_keeps_the_options(sqlite_store: "Store", make_template: Make) -> None:
    sqlite_store.bring(*pumps(make_template, range(9)))
    client = sqlite_store.client()
    options = "exact=true&sort=title&updated_since=2020-01-01&meta=true&highlight=true&fields=id,title"
    link = following(client.get(f"/api/search?q=pump&limit=4&{options}"))
    assert link is not None
    second = client.get(link).json
    assert list(second["results"][0]) == ["id", "title", "snippet"]
    assert second["meta"]["total"] == 9


def test_whatever_is_changed_in_a_cursor_is_refused(sqlite_store: "Store", make_template: Make) -> None:
    sqlite_store.bring(*pumps(make_template, range(9)))
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


def test_what_is_held_of_a_refused_cursor_does_not_grow() -> None:
    def frames() -> int:
        with pytest.raises(ApiError) as refused:
            search_query(f"q=pump&cursor={'A' * 20}")
        return len(traceback.extract_tb(refused.tb))

    assert frames() == frames()


@pytest.mark.parametrize(
    "place",
    [
        Place(2**32 - 1, (1, 2)),
        Place(2**32 - 1),
        Place(0, tuple(range(200))),
        Place(2**32 - 1, (), ("9999", "x")),
        Place(5, (), ("9999", "x")),
        Place(5, (), ("", "")),
        Place(5, (), ("\0", "\0")),
        Place(5, (), ("'; DROP TABLE templates; --".replace(" ", ""), "%")),
    ],
)
def test_a_cursor_that_was_forged_with_the_right_checksum_does_no_harm(client: "Client", place: Place) -> None:
    for path, read in (("/api/templates?limit=4", list_query), ("/api/search?q=pump&limit=4", search_query)):
        wanted = read(path.partition("?")[2]).wanted
        forged = cursor_text(TemplateQuery(text=wanted.text, limit=4, place=place))
        answer = client.get(f"{path}&cursor={forged}")
        assert answer.status_code == (400 if "\0" in str(place.after and place.after[0]) else answer.status_code)
        assert answer.status_code in {200, 400}
    assert len(client.slugs("/api/templates?limit=30")) == 25

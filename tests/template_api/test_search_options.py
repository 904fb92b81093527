"""What lists and searches can be asked beside a text: order, members, marks, what is said about the results."""

import json
from typing import Any
from urllib.parse import quote

import pytest

from template_api.library import set_status
from template_api.records import Status
from tests.support.library_store import Client, Store, template

LISTS = ("/api/templates?q=pump", "/api/search?q=pump")


@pytest.fixture(scope="module")
def client(shared_store: Store) -> Client:
    """A client of a library that no test changes."""
    shared_store.bring(
        template("zebra", title="Zebra pump", published_at="2026-01-01", tags=["http"], content="The pump runs."),
        template("eclair", title="Éclair pump", published_at="2026-01-02", tags=["http"], difficulty="beginner"),
        template("alarm", title="Alarm of a pump", published_at="2026-01-03", content="<b>pumps</b> & more " * 60),
        template("weather", title="Poll the weather", published_at="2026-01-04"),
    )
    return shared_store.client()


def asked(client: Client, **options: Any) -> list[Any]:
    """Ask GET and POST for the same, and return the answers."""
    text = options.pop("q")
    given = {name: json.dumps(value) if isinstance(value, bool) else value for name, value in options.items()}
    body = {"query": text, **options}
    return [client.get("/api/search", params={"q": text, **given}, params_csv=False), client.post(body)]


def test_without_options_bodies_keep_their_shape(client: Client) -> None:
    results = ["id", "slug", "title", "short_description", "url", "category", "tags", "routes", "broker_version"]
    results += ["published_at", "updated_at"]
    listed = client.get("/api/templates?q=weather").json
    assert list(listed) == ["results"]
    assert list(listed["results"][0]) == results
    for answer in asked(client, q="weather"):
        assert list(answer.json) == ["results"]
        assert list(answer.json["results"][0]) == [*results, "content", "score", "matched"]


def test_get_and_post_take_the_same_options_with_the_same_effect(client: Client) -> None:
    for options in (
        {"sort": "title"},
        {"sort": "newest", "fields": "id,title"},
        {"meta": True, "highlight": True, "limit": 2},
        {"exact": True},
        {"updated_since": "2026-01-01T00:00:00+02:00"},
        {"meta": False, "exact": False},
    ):
        got, posted = asked(client, q="pump", **options)
        assert got.json == posted.json
        assert got.headers.get("Link") == posted.headers.get("Link")


def test_results_are_sorted_as_asked_with_their_scores_and_the_words_found(client: Client) -> None:
    pumps = ["alarm", "eclair", "zebra"]
    for path in LISTS:
        assert client.slugs(f"{path}&sort=title") == client.slugs(f"{path}&sort=newest") == pumps
        assert client.slugs(path) == client.slugs(f"{path}&sort=relevance")
    for sort in ("relevance", "newest", "title"):
        found = client.get(f"/api/search?q=pump&sort={sort}").json["results"]
        assert all(0 < each["score"] <= 1 and each["matched"] == ["pump"] for each in found)
    for sort in ("", "?sort=newest", "?sort=relevance"):
        assert client.slugs(f"/api/templates{sort}") == ["weather", *pumps]
    assert client.slugs("/api/templates?sort=title") == ["alarm", "eclair", "weather", "zebra"]
    posted = client.post({"query": "", "sort": "title"}).json["results"]
    assert [(each["slug"], each["score"]) for each in posted[:2]] == [("alarm", 0), ("eclair", 0)]


def test_titles_that_begin_alike_are_in_the_order_of_their_ends(sqlite_store: Store) -> None:
    sqlite_store.bring(*(template(f"t{n}", title=f"Receive a webhook from {9 - n}") for n in range(10)))
    client, expected = sqlite_store.client(), [f"t{9 - n}" for n in range(10)]
    assert client.slugs("/api/templates?sort=title") == expected
    assert client.slugs("/api/search?q=webhook&sort=title&limit=4") == expected[:4]


def test_exact_searches_for_the_words_as_typed(client: Client) -> None:
    for answer in asked(client, q="wether pumpp"):
        assert len(answer.json["results"]) == 4
    for answer in asked(client, q="wether pump", exact=True, meta=True):
        assert len(answer.json["results"]) == 3
        assert answer.json["meta"]["corrected"] == []
        assert answer.json["meta"]["ignored"] == ["wether"]
        assert "X-Search-Corrected" not in answer.headers


def test_meta_says_what_was_made_of_the_query(client: Client) -> None:
    for answer in asked(client, q="wether qqqqqqqq", meta=True):
        assert list(answer.json) == ["results", "meta"]
        meta = answer.json["meta"]
        assert meta["total"] == 1
        assert meta["corrected"] == [{"from": "wether", "to": "weather"}]
        assert meta["ignored"] == ["qqqqqqqq"]
        assert "next_cursor" not in meta
        assert answer.headers["X-Search-Corrected"] == "wether=weather"
    assert client.get("/api/search?q=weather").headers.get("X-Search-Corrected") is None
    assert client.get("/api/templates?q=wether").headers["X-Search-Corrected"] == "wether=weather"


def test_meta_counts_the_facets_of_the_results(client: Client) -> None:
    facets = client.get("/api/search?q=pump&meta=true").json["meta"]["facets"]
    assert list(facets) == list(client.get("/api/facets").json)
    assert [(each["name"], each["count"]) for each in facets["tags"]] == [("http", 2)]
    assert [(each["id"], each["count"]) for each in facets["difficulties"]] == [("beginner", 1)]
    everything = client.get("/api/templates?meta=true").json["meta"]
    assert (everything["total"], everything["facets"]) == (4, client.get("/api/facets").json)


def test_fields_choose_the_members_of_results(client: Client) -> None:
    for path in LISTS:
        for found in client.get(f"{path}&fields=title,id, ,id").json["results"]:
            assert list(found) == ["id", "title"]
        assert [list(found) for found in client.get(f"{path}&fields=difficulty").json["results"]].count([]) == 2
        marked = client.get(f"{path}&fields=id&highlight=true").json["results"]
        assert {tuple(found) for found in marked} == {("id", "snippet")}
    for given in (["score", "id"], "id,score"):
        assert list(client.post({"query": "pump", "fields": given}).json["results"][0]) == ["id", "score"]


def test_a_snippet_is_escaped_but_for_its_marks(client: Client) -> None:
    found = {each["slug"]: each["snippet"] for each in client.get("/api/search?q=pump&highlight=true").json["results"]}
    assert found["zebra"] == "The <mark>pump</mark> runs."
    assert "&lt;b&gt;<mark>pumps</mark>&lt;/b&gt; &amp; more" in found["alarm"]
    assert found["alarm"].endswith(" …")
    assert len(found["alarm"].replace("<mark>", "").replace("</mark>", "")) < 600
    assert found["eclair"] == "What it does."
    listed = client.get("/api/templates?highlight=true&fields=slug").json["results"]
    assert all(each["snippet"] == "What it does." for each in listed)


@pytest.mark.parametrize(
    "text", ["温度计 sensor", "</mark><script>alert(1)</script>", "pump" * 3000, "e\u0301clair", "a " * 15000]
)
def test_any_content_has_a_snippet(sqlite_store: Store, text: str) -> None:
    sqlite_store.bring(template("one", title="Pump 温度计", content=f"{text} pump {text}"))
    for query in ("pump", "温度", "eclair"):
        for each in sqlite_store.client().get("/api/search", params={"q": query, "highlight": "true"}).json["results"]:
            plain = each["snippet"].replace("<mark>", "").replace("</mark>", "")
            assert "<" not in plain
            assert each["snippet"].count("<mark>") == each["snippet"].count("</mark>")


def test_only_what_changed_since_a_time_is_found(store: Store) -> None:
    store.bring(template("old", title="Old pump"))
    client = store.client()
    since = "2026-01-01"
    assert client.slugs("/api/templates", updated_since=since) == ["old"]
    assert client.slugs("/api/templates", updated_since="9999-12-31T23:59:59-14:00") == []
    with client.library._engine.begin() as connection:
        moment = "'2020-05-05T10:00:00.000000Z'"
        connection.exec_driver_sql(f"UPDATE templates SET updated_at = {moment}, changed = changed + 9")
        connection.exec_driver_sql("UPDATE library SET version = version + 9")
    store.bring(template("new", title="New pump", published_at="2019-01-01"))
    for path, given in (("/api/templates", {}), ("/api/templates", {"q": "pump"}), ("/api/search", {"q": "pump"})):
        assert client.slugs(path, **given, updated_since=since) == ["new"]
        assert client.get(path, params={**given, "updated_since": since}).headers["X-Total-Count"] == "1"
        for both in ("2020-05-05T10:00:00Z", "2020-05-05t12:00:00+02:00", "2020-05-05T12:00:00 02:00", "2020-05-05"):
            assert sorted(client.slugs(path, **given, updated_since=both)) == ["new", "old"], both
        assert client.slugs(path, **given, updated_since="2020-05-05T10:00:00.000001Z") == ["new"]
    set_status(store.url, "old", Status.HIDDEN)
    set_status(store.url, "old", Status.PUBLISHED)
    assert sorted(client.slugs("/api/search", q="pump", updated_since=since)) == ["new", "old"]
    assert client.post({"query": "", "updated_since": since}).headers["X-Total-Count"] == "2"


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("meta", "yes", "meta must be true or false"),
        ("exact", "", "exact must be true or false"),
        ("highlight", "TRUE", "highlight must be true or false"),
        ("sort", "tite", "sort must be one of relevance, newest, title, not \"tite\"; did you mean 'title'?"),
        ("fields", "id,titel", "did you mean 'title'?"),
        ("fields", "", "fields must be some of id, slug, title"),
        ("fields", "\0", "fields must be some of"),
        ("updated_since", "yesterday", "updated_since must be a date or time (RFC 3339) such as"),
        ("updated_since", "2026-02-30", "updated_since"),
        ("updated_since", "2026-01-01T25:00:00Z", "updated_since"),
        ("updated_since", "٢٠٢٦-01-01", "updated_since"),
        ("cursor", "abc", "cursor must be what a page of the same search named"),
        ("cursor", "x" * 20, "cursor must be what a page of the same search named"),
        ("cursor", "x" * 2001, "cursor must be what a page of the same search named"),
        ("cursor", "ü€", "cursor must be"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_alike_by_get_and_post(client: Client, name: str, value: str, told: str) -> None:
    for path in LISTS:
        refused = client.get(f"{path}&{name}={quote(value)}")
        assert (refused.status_code, refused.json["error"]["code"]) == (400, "invalid_parameter")
        assert told in refused.json["error"]["message"]
    refused = client.post({"query": "pump", name: value})
    assert refused.status_code == 400
    assert told in refused.json["message"]


@pytest.mark.parametrize("wrong", [1, [], [1], {}, 1.5, "true"])
def test_a_member_of_another_type_is_refused(client: Client, wrong: object) -> None:
    for name in ("meta", "exact", "highlight", "sort", "updated_since", "cursor", "fields"):
        if not (name == "cursor" and wrong == "true"):
            assert client.post({"query": "pump", name: wrong}).status_code == 400, name
    nothing = dict.fromkeys(("meta", "exact", "highlight", "sort", "updated_since", "cursor", "fields"))
    assert client.post({"query": "pump", **nothing}).json == client.post({"query": "pump"}).json


@pytest.mark.parametrize(
    ("filters", "told"),
    [
        ({"tag_id": ["x"]}, "there is no filter \"tag_id\"; did you mean 'tag_ids'?"),
        ({"difficulty": "beginner", "colour": 1}, 'there is no filter "colour"'),
        ({"\r\nX: y" * 100: 1}, "there is no filter"),
        ({"limit": 5}, 'there is no filter "limit"'),
    ],
)
def test_an_unknown_filter_is_refused_by_name(client: Client, filters: object, told: str) -> None:
    refused = client.post({"query": "pump", "filters": filters})
    assert (refused.status_code, refused.json["code"]) == (400, "invalid_parameter")
    assert told in refused.json["message"]
    assert "tag_ids" in refused.json["hint"]
    assert len(refused.text) < 900


def test_unknown_parameters_are_named_in_a_header(client: Client) -> None:
    paths = (
        "/api/templates?colour=red&page=2", "/api/search?q=pump&colour=red&page=2&page=3&=&",
        "/api/suggest?q=pu&colour=red&page=2", "/api/facets?colour=red&page=2",
        "/api/templates/zebra?colour=red&page=2",
    )  # fmt: skip
    for path in paths:
        answer = client.get(path)
        assert answer.headers["X-Ignored-Parameters"] == "colour, page"
        assert answer.json == client.get(path.partition("colour")[0].rstrip("&?")).json
        again = client.get(path, headers={"If-None-Match": answer.headers["ETag"]})
        assert (again.status_code, again.headers["X-Ignored-Parameters"]) == (304, "colour, page")
    assert "X-Ignored-Parameters" not in client.get("/api/search?q=pump").headers
    without_text = client.get("/api/templates?tag_ids=x&route_ids=&difficulty=beginner")
    assert without_text.headers["X-Ignored-Parameters"] == "tag_ids"
    assert "X-Ignored-Parameters" not in client.get("/api/templates?q=pump&tag_ids=x").headers
    posted = client.post({"query": "pump", "tag_ids": ["x"], "filter": {}}, headers={"Origin": "https://a.example"})
    assert posted.headers["X-Ignored-Parameters"] == "tag_ids, filter"
    exposed = posted.headers["Access-Control-Expose-Headers"]
    assert {"X-Ignored-Parameters", "X-Search-Corrected", "X-Total-Count", "Link"} <= set(exposed.split(", "))


def test_a_snippet_quotes_prose_before_code(sqlite_store: Store) -> None:
    code = "```lot\nDEFINE ROUTE pump WITH TYPE REST_API\n```\n"
    sqlite_store.bring(
        template("both", content=f"{code * 3}\nStarts the pump."),
        template("code", content=f"Text.\n\n{code}"),
    )
    found = sqlite_store.client().get("/api/search?q=pump&highlight=true").json["results"]
    snippets = {each["slug"]: each["snippet"] for each in found}
    assert snippets["both"] == "Starts the <mark>pump</mark>."
    assert "ROUTE <mark>pump</mark>" in snippets["code"]

"""Requests that are valid, and the errors of those that are not. Every answer is checked against openapi.json."""

import sys

import pytest

from tests.support.library_store import Client, Store, two_templates

# Decision of Python: 3.14 measures the stack, where 64 KiB of brackets have room; earlier versions count.
TOO_DEEP = "nested too deeply" if sys.version_info < (3, 14) else "the body "
UUID = "11111111-2222-4333-8444-555555555555"


@pytest.fixture(scope="module")
def client(shared_sqlite_store: Store) -> Client:
    """A client of a library that no test changes."""
    return two_templates(shared_sqlite_store)


@pytest.mark.parametrize("path", ["/api/templates", "/api/search"])
@pytest.mark.parametrize(
    ("query", "told"),
    [
        pytest.param("limit=0", "limit must be a whole number from 1 to 30", id="limit below 1"),
        pytest.param("limit=31", "limit must be a whole number from 1 to 30", id="limit above 30"),
        pytest.param("limit=", "limit", id="blank limit"),
        pytest.param("limit=abc", 'not "abc"', id="limit of letters"),
        pytest.param("limit=1_0", "limit", id="limit with underscore"),
        pytest.param("limit=%2B5", "limit", id="limit with sign"),
        pytest.param("limit=-1", "limit", id="negative limit"),
        pytest.param("limit=5.0", "limit", id="limit with point"),
        pytest.param("limit=%205", "limit", id="limit with space"),
        pytest.param("limit=%D9%A5", "limit", id="limit in Arabic digits"),
        pytest.param("limit=5%0A", "limit", id="limit with line end"),
        pytest.param("limit=" + "9" * 5000, "limit", id="limit of 5000 digits"),
        pytest.param("limit=1&limit=99", "limit", id="last limit wrong"),
        *(
            pytest.param(f"offset={wrong}", "offset must be a whole number from 0 to 10000", id=f"offset {wrong}")
            for wrong in ("-1", "10001", "1.5", "", "x", "%D9%A5")
        ),
        pytest.param("q=" + "x" * 4001, "q must be text", id="q too long"),
        pytest.param("q=%FF", "q is not valid UTF-8", id="q not UTF-8"),
        pytest.param("q=\xff", "q is not valid UTF-8", id="q of raw bytes"),
        pytest.param("q=%ED%A0%80", "q is not valid UTF-8", id="q of a lone surrogate"),
        pytest.param("difficulty=expert", "one of beginner, intermediate, advanced", id="unknown difficulty"),
        pytest.param("difficulty=Beginner", "difficulty", id="difficulty in capitals"),
        pytest.param("difficulty=", "difficulty", id="blank difficulty"),
        pytest.param("category_id=x", "category_id must be a UUID", id="category_id no UUID"),
        pytest.param("category_id=", "category_id must be a UUID", id="blank category_id"),
        pytest.param(f"category_id={UUID}%0A", "category_id must be a UUID", id="category_id with line end"),
        pytest.param(f"category_id={{{UUID}}}", "category_id must be a UUID", id="category_id in braces"),
        pytest.param("tag_ids=%FF", "tag_ids is not valid UTF-8", id="tag_ids not UTF-8"),
    ],
)
def test_a_parameter_that_breaks_its_rule_is_refused_by_name(client: Client, path: str, query: str, told: str) -> None:
    if path == "/api/search" and "q=" not in query:
        query = f"q=x&{query}"
    refused = client.get(path, query_string=query)
    assert (refused.status_code, refused.json["error"]["code"]) == (400, "invalid_parameter")
    assert told in refused.json["error"]["message"]
    assert refused.json["error"]["hint"]
    assert len(refused.text) < 600


@pytest.mark.parametrize("blank", ["\t", "\u0085", "\u00a0", "\u1680", "\u2003", "\u2028", "\u3000 \n"])
def test_every_kind_of_blank_is_blank(client: Client, blank: str) -> None:
    assert client.get("/api/search", params={"q": blank}).status_code == 400
    assert len(client.slugs("/api/templates", q=blank)) == len(client.posted(blank)) == 2


@pytest.mark.parametrize("text", ["\x1c", "\x1f", "\u200b", "\ufeff", "\0"])
def test_what_is_not_blank_is_a_text_that_matches_nothing(client: Client, text: str) -> None:
    assert client.slugs("/api/search", q=text) == client.slugs("/api/templates", q=text) == client.posted(text) == []


@pytest.mark.parametrize("query", ["", "q=", "q=%20%09", "limit=5", "Q=x"])
def test_a_search_needs_a_text(client: Client, query: str) -> None:
    refused = client.get("/api/search", query_string=query)
    assert (refused.status_code, refused.json["error"]["code"]) == (400, "invalid_parameter")


@pytest.mark.parametrize(
    "query",
    [
        pytest.param("q=", id="blank q"),
        pytest.param("q=%20%0A", id="q of blanks"),
        pytest.param("limit=1&limit=20", id="of a repeated parameter the last counts"),
        pytest.param("limit=0020", id="leading zeros"),
        pytest.param("unknown=1&&=&a=%FF;", id="unknown parameters are ignored"),
        pytest.param("tag_ids=,,&route_ids=' OR 1=1", id="filters without q are ignored"),
        pytest.param("difficulty=advanced&difficulty=beginner&category_id=x&category_id=" + UUID, id="last filters"),
    ],
)
def test_a_list_takes_what_has_a_meaning(client: Client, query: str) -> None:
    answered = client.get("/api/templates", query_string=query)
    assert answered.status_code == 200
    assert len(answered.json["results"]) == (0 if "category_id" in query else 2)


def test_a_result_has_content_score_and_the_words_found(client: Client) -> None:
    [found] = client.get("/api/search?q=recieve").json["results"]
    assert found["slug"] == "webhook"
    assert found["content"] == "Details " * 300
    assert "content" not in client.get("/api/templates?q=webhook").json["results"][0]
    assert 0 < found["score"] <= 1
    assert found["matched"] == [{"typed": "recieve", "found": "receive"}]
    [exact] = client.get("/api/search?q=weather").json["results"]
    assert exact["matched"] == ["weather"]
    assert exact["difficulty"] == "beginner"


def test_a_blank_post_query_answers_the_most_recent_that_pass_the_filters(client: Client) -> None:
    answered = client.post({"query": "  ", "filters": {"difficulty": None, "category_id": None, "tag_ids": None}})
    assert [(each["slug"], each["score"]) for each in answered.json["results"]] == [("weather", 0), ("webhook", 0)]
    assert client.posted("", limit=1.0, page=3) == ["weather"]
    assert client.posted("", filters={"difficulty": "beginner"}) == ["weather"]
    assert client.posted("", filters={"category_id": "no such"}) == []
    assert len(client.posted("", filters={"category_id": " "})) == 2


def test_null_is_as_good_as_leaving_a_member_of_the_body_out(client: Client) -> None:
    plain = client.post({"query": "webhook"}).json
    assert client.post({"query": "webhook", "limit": None, "filters": None}).json == plain
    names = ("category_id", "difficulty", "tag_ids", "route_ids", "broker_version_ids")
    assert client.post({"query": "webhook", "filters": dict.fromkeys(names)}).json == plain


@pytest.mark.parametrize(
    ("body", "told"),
    [
        pytest.param("{}", "query is required", id="no query"),
        pytest.param('{"query": 5}', "query must be text", id="query no text"),
        pytest.param('{"query": null}', "query must be text", id="query null"),
        pytest.param('{"query": "' + "x" * 4001 + '"}', "at most 4000 characters", id="query too long"),
        pytest.param('{"query": "", "limit": 0}', "limit must be a whole number from 1 to 30", id="limit below 1"),
        pytest.param('{"query": "", "limit": "5"}', "limit", id="limit as text"),
        pytest.param('{"query": "", "limit": true}', "limit", id="limit as boolean"),
        pytest.param('{"query": "", "limit": 1e400}', "out of range", id="limit beyond all numbers"),
        pytest.param('{"query": "", "filters": []}', "filters must be an object", id="filters no object"),
        pytest.param('{"query": "", "filters": {"difficulty": "x"}}', "filters.difficulty must be one of", id="word"),
        pytest.param('{"query": "", "filters": {"tag_ids": "x"}}', "filters.tag_ids must be a list", id="list"),
        pytest.param(
            '{"query": "", "filters": {"tag_ids": [1]}}', "filters.tag_ids must be a list of texts", id="list item"
        ),
        pytest.param('{"query": "", "filters": {"category_id": 1}}', "filters.category_id", id="category_id"),
        pytest.param("[]", "the body must be an object", id="array"),
        pytest.param("null", "the body must be an object", id="null"),
        pytest.param("", "the body is not JSON", id="empty"),
        pytest.param("{", "the body is not JSON", id="cut off"),
        pytest.param('{"query": "", "x": NaN}', "the body is not JSON", id="NaN"),
        pytest.param('{"query": "", "limit": -Infinity}', "the body is not JSON", id="infinity"),
        pytest.param("[" * 60000, TOO_DEEP, id="nested brackets"),
        pytest.param("[" * 30000 + "]" * 30000, TOO_DEEP, id="nested lists"),
        pytest.param('{"query": "", "limit": ' + "9" * 5000 + "}", "out of range", id="endless number"),
        pytest.param('{"query": "\\ud800"}', "the body is not JSON", id="lone surrogate"),
        pytest.param(
            '{"query": "", "filters": {"tag_ids": ["\\udfff"]}}', "the body is not JSON", id="surrogate in an id"
        ),
        pytest.param(
            '{"query": "", "filters": {"category_id": "\\udfff"}}', "the body is not JSON", id="category surrogate"
        ),
        pytest.param(b'{"query": "\xff"}', "the body is not JSON", id="not UTF-8"),
        pytest.param(b"\xef\xbb\xbf{}", "not JSON", id="byte order mark"),
    ],
)
def test_a_body_that_breaks_its_rule_is_refused_in_the_form_of_post(
    client: Client, body: str | bytes, told: str
) -> None:
    refused = client.ask("POST", "/api/search", body=body, headers={"Content-Type": "application/json"})
    document = refused.json
    assert (refused.status_code, document["code"]) == (400, "invalid_body")
    assert told in document["error"]
    assert document["message"] == document["error"]
    assert document["hint"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({"Content-Type": "text/plain"}, 415, id="text"),
        pytest.param({"Content-Type": "application/x-www-form-urlencoded"}, 415, id="form"),
        pytest.param({"Content-Type": "application/json", "Content-Encoding": "gzip"}, 415, id="gzip"),
        pytest.param({"Content-Type": ""}, 415, id="none"),
        pytest.param({"Content-Type": "Application/JSON; charset=utf-8"}, 200, id="parameters and capitals"),
    ],
)
def test_a_body_that_is_not_sent_as_json_is_refused(client: Client, headers: dict[str, str], status: int) -> None:
    answered = client.ask("POST", "/api/search", body='{"query": ""}', headers=headers)
    assert answered.status_code == status
    assert status == 200 or (answered.json["code"], type(answered.json["error"])) == ("unsupported_media_type", str)

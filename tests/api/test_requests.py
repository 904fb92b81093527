"""Requests that are valid, and the errors of those that are not. Every answer is checked against openapi.json."""

import gzip
import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import pytest
from falcon.testing import create_environ

from template_api.app import create_app
from template_api.errors import DatabaseUnavailableError
from template_api.library import TemplateLibrary, set_status
from template_api.records import Status

if TYPE_CHECKING:
    from tests.api.conftest import Client, Store

Make = Callable[..., dict[str, Any]]
UUID = "11111111-2222-4333-8444-555555555555"


def two_templates(store: "Store", make_template: Make) -> "Client":
    store.bring(
        make_template("webhook", title="Receive a webhook", content="Details " * 300, published_at="2026-01-01"),
        make_template("weather", title="Poll the weather", difficulty="beginner", published_at="2026-02-01"),
    )
    return store.client()


@pytest.fixture(scope="module")
def client(shared_sqlite_store: "Store", make_template: Make) -> "Client":
    """A client of a library that no test changes."""
    return two_templates(shared_sqlite_store, make_template)


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
        pytest.param("q=" + "x" * 4001, "q must be text", id="q too long"),
        pytest.param("q=%FF", "q is not valid UTF-8", id="q not UTF-8"),
        pytest.param("q=\xff", "q is not valid UTF-8", id="q of raw bytes"),
        pytest.param("q=%ED%A0%80", "q is not valid UTF-8", id="q of a lone surrogate"),
    ],
)
def test_a_parameter_that_breaks_its_rule_is_refused_by_name(
    client: "Client", path: str, query: str, told: str
) -> None:
    if path == "/api/search" and "q=" not in query:
        query = f"q=x&{query}"
    refused = client.get(path, query_string=query)
    assert (refused.status_code, refused.json["error"]["code"]) == (400, "invalid_parameter")
    assert told in refused.json["error"]["message"]
    assert refused.json["error"]["hint"]
    assert len(refused.text) < 600


@pytest.mark.parametrize(
    ("query", "told"),
    [
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
def test_a_filter_that_breaks_its_rule_is_refused_by_name(client: "Client", query: str, told: str) -> None:
    refused = client.get("/api/templates", query_string=query)
    assert (refused.status_code, refused.json["error"]["code"]) == (400, "invalid_parameter")
    assert told in refused.json["error"]["message"]


@pytest.mark.parametrize("blank", ["\t", "\u0085", "\u00a0", "\u1680", "\u2003", "\u2028", "\u3000 \n"])
def test_every_kind_of_blank_is_blank(client: "Client", blank: str) -> None:
    assert client.get("/api/search", params={"q": blank}).status_code == 400
    assert len(client.slugs("/api/templates", q=blank)) == 2
    assert len(client.post({"query": blank}).json["results"]) == 2


@pytest.mark.parametrize("text", ["\x1c", "\x1f", "\u200b", "\ufeff", "\0"])
def test_what_is_not_blank_is_a_text_that_matches_nothing(client: "Client", text: str) -> None:
    assert client.slugs("/api/search", q=text) == []
    assert client.slugs("/api/templates", q=text) == []
    assert client.post({"query": text}).json["results"] == []


@pytest.mark.parametrize("query", ["", "q=", "q=%20%09", "limit=5", "Q=x"])
def test_a_search_needs_a_text(client: "Client", query: str) -> None:
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
def test_a_list_takes_what_has_a_meaning(client: "Client", query: str) -> None:
    answered = client.get("/api/templates", query_string=query)
    assert answered.status_code == 200
    assert len(answered.json["results"]) == (0 if "category_id" in query else 2)


@pytest.mark.parametrize(
    "text",
    [
        '" OR 1=1 --', "title:webhook", "web*", "NEAR(a b)", "a AND NOT b", "^weather", "(((", "\\", "%", "\0", "a\0b",
        "'; DROP TABLE templates; --", "\u202e", "😀", "日本語", "{}", "-" * 4000, "webhook " * 499, "x" * 4000,
        "\U0010ffff", "\u0301", "a\u0301" * 1000,
    ],
)  # fmt: skip
def test_a_hostile_text_is_only_a_text(client: "Client", text: str) -> None:
    for path in ("/api/search", "/api/templates"):
        assert client.get(path, params={"q": text}).status_code == 200
    assert client.post({"query": text}).status_code == 200


def test_a_result_has_content_score_and_the_words_found(client: "Client") -> None:
    [found] = client.get("/api/search?q=recieve").json["results"]
    assert found["slug"] == "webhook"
    assert found["content"] == "Details " * 300
    assert 0 < found["score"] <= 1
    assert found["matched"] == [{"typed": "recieve", "found": "receive"}]
    [exact] = client.get("/api/search?q=weather").json["results"]
    assert exact["matched"] == ["weather"]
    assert exact["difficulty"] == "beginner"


def test_get_and_post_search_answer_the_same(client: "Client") -> None:
    assert client.post({"query": "webhook"}).json == client.get("/api/search?q=webhook").json


def test_a_blank_post_query_answers_the_most_recent_that_pass_the_filters(client: "Client") -> None:
    answered = client.post({"query": "  ", "filters": {"difficulty": None, "category_id": None, "tag_ids": None}})
    assert [each["slug"] for each in answered.json["results"]] == ["weather", "webhook"]
    assert [each["score"] for each in answered.json["results"]] == [0, 0]
    assert [each["slug"] for each in client.post({"query": "", "limit": 1}).json["results"]] == ["weather"]
    filtered = client.post({"query": "", "filters": {"difficulty": "beginner"}})
    assert [each["slug"] for each in filtered.json["results"]] == ["weather"]
    assert client.post({"query": "", "filters": {"category_id": "no such"}}).json["results"] == []
    assert len(client.post({"query": "", "filters": {"category_id": " "}}).json["results"]) == 2


def test_null_is_as_good_as_leaving_a_member_of_the_body_out(client: "Client") -> None:
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
        pytest.param('{"query": "", "limit": 1e400}', "limit", id="limit beyond all numbers"),
        pytest.param('{"query": "", "filters": []}', "filters must be an object", id="filters no object"),
        pytest.param('{"query": "", "filters": {"difficulty": "x"}}', "filters.difficulty must be one of", id="word"),
        pytest.param('{"query": "", "filters": {"tag_ids": "x"}}', "filters.tag_ids must be a list", id="list"),
        pytest.param('{"query": "", "filters": {"tag_ids": [1]}}', "filters.tag_ids.0 must be text", id="list item"),
        pytest.param('{"query": "", "filters": {"category_id": 1}}', "filters.category_id", id="category_id"),
        pytest.param("[]", "the body must be an object", id="array"),
        pytest.param("null", "the body must be an object", id="null"),
        pytest.param("", "the body is not JSON", id="empty"),
        pytest.param("{", "at line 1 column 2", id="cut off"),
        pytest.param('{"query": "", "x": NaN}', "NaN is not a JSON value", id="NaN"),
        pytest.param('{"query": "", "limit": -Infinity}', "-Infinity", id="infinity"),
        pytest.param('{"query": "a", "query": "b"}', '"query" comes twice', id="duplicate key"),
        pytest.param('{"query": "", "filters": {"a": 1, "a": 1}}', '"a" comes twice', id="duplicate key within"),
        pytest.param("[" * 60000, "nested too deeply", id="nested brackets"),
        pytest.param('{"query": "", "limit": ' + "9" * 5000 + "}", "too long", id="endless number"),
        pytest.param('{"query": "\\ud800"}', "lone surrogate", id="lone surrogate"),
        pytest.param('{"query": "", "filters": {"tag_ids": ["\\udfff"]}}', "lone surrogate", id="surrogate in an id"),
        pytest.param('{"query": "", "filters": {"category_id": "\\udfff"}}', "lone surrogate", id="category surrogate"),
        pytest.param(b'{"query": "\xff"}', "not valid UTF-8 at byte 11", id="not UTF-8"),
        pytest.param(b"\xef\xbb\xbf{}", "not JSON", id="byte order mark"),
    ],
)
def test_a_body_that_breaks_its_rule_is_refused_in_the_form_of_post(
    client: "Client", body: str | bytes, told: str
) -> None:
    refused = client.ask("POST", "/api/search", body=body, headers={"Content-Type": "application/json"})
    document = refused.json
    assert (refused.status_code, document["code"]) == (400, "invalid_body")
    assert told in document["error"]
    assert document["message"] == document["error"]
    assert document["hint"]


def test_an_integral_float_and_unknown_members_are_taken(client: "Client") -> None:
    answered = client.post({"query": "", "limit": 1.0, "page": 3, "filters": {"colour": "blue"}})
    assert len(answered.json["results"]) == 1


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"Content-Type": "text/plain"}, id="text"),
        pytest.param({"Content-Type": "application/x-www-form-urlencoded"}, id="form"),
        pytest.param({"Content-Type": "application/json", "Content-Encoding": "gzip"}, id="gzip"),
        pytest.param({"Content-Type": ""}, id="none"),
    ],
)
def test_a_body_that_is_not_sent_as_json_is_refused(client: "Client", headers: dict[str, str]) -> None:
    refused = client.ask("POST", "/api/search", body='{"query": ""}', headers=headers)
    assert (refused.status_code, refused.json["code"]) == (415, "unsupported_media_type")
    assert isinstance(refused.json["error"], str)


def test_the_media_type_may_have_parameters_and_capitals(client: "Client") -> None:
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert client.ask("POST", "/api/search", body='{"query": ""}', headers=headers).status_code == 200


def test_a_body_of_64_kib_is_taken_and_a_larger_one_refused(client: "Client") -> None:
    body = json.dumps({"query": "", "x": ""})
    body = body.replace('"x": "', '"x": "' + "y" * (65536 - len(body)))
    headers = {"Content-Type": "application/json"}
    assert client.ask("POST", "/api/search", body=body, headers=headers).status_code == 200
    refused = client.ask("POST", "/api/search", body=body + " ", headers=headers)
    assert (refused.status_code, refused.json["code"]) == (413, "payload_too_large")


@pytest.mark.filterwarnings("ignore:Unknown REQUEST_METHOD")  # the test client warns of what is tested here
@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/api/templates", "GET, HEAD, OPTIONS"),
        ("DELETE", "/api/templates/webhook", "GET, HEAD, OPTIONS"),
        ("PUT", "/api/search", "GET, HEAD, POST, OPTIONS"),
        ("PATCH", "/openapi.json", "GET, HEAD, OPTIONS"),
        ("TRACE", "/health", "GET, HEAD, OPTIONS"),
        ("BREW", "/api/search", "GET, HEAD, POST, OPTIONS"),
        ("WEBSOCKET", "/api/templates", "GET, HEAD, OPTIONS"),
    ],
)
def test_a_method_that_a_path_lacks_is_refused_with_the_allowed_ones(
    client: "Client", method: str, path: str, allowed: str
) -> None:
    refused = client.ask(method, path)
    assert (refused.status_code, refused.json["error"]["code"]) == (405, "method_not_allowed")
    assert refused.headers["Allow"] == allowed


@pytest.mark.filterwarnings("ignore:Unknown REQUEST_METHOD")  # the test client warns of what is tested here
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "BREW"])
@pytest.mark.parametrize("path", ["/a", "/api", "/api/template", "/api/templates/a/b", "/api/search/", "/%00", "/%ff"])
def test_an_unknown_path_is_not_found_in_the_specified_form(client: "Client", method: str, path: str) -> None:
    refused = client.ask(method, path, headers={"Accept": "text/html"})
    assert (refused.status_code, refused.json["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    "path", ["/api/templates", "/api/templates/webhook", "/api/search?q=webhook", "/openapi.json", "/health"]
)
def test_head_answers_like_get_without_a_body(client: "Client", path: str) -> None:
    got, head = client.get(path), client.ask("HEAD", path)
    assert head.status_code == 200
    assert head.headers["Content-Length"] == str(len(got.content))
    assert head.headers.get("ETag") == got.headers.get("ETag")


def test_head_of_what_is_missing_has_no_body(client: "Client") -> None:
    assert client.ask("HEAD", "/api/templates/none").status_code == 404


@pytest.mark.parametrize("path", ["/api/templates", "/api/templates/webhook", "/api/search?q=webhook", "/openapi.json"])
def test_a_caller_that_holds_the_answer_gets_304(client: "Client", path: str) -> None:
    etag = client.get(path).headers["ETag"]
    for held in (etag, etag.removeprefix("W/"), f'"other", {etag}', "*"):
        again = client.get(path, headers={"If-None-Match": held})
        assert again.status_code == 304
        assert again.headers["ETag"] == etag
    assert client.get(path, headers={"If-None-Match": '"other"'}).status_code == 200


@pytest.mark.parametrize("state", [Status.HIDDEN, Status.DRAFT])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_caller_that_holds_what_is_hidden_now_gets_404(
    sqlite_store: "Store", make_template: Make, method: str, state: Status
) -> None:
    client = two_templates(sqlite_store, make_template)
    path = "/api/templates/webhook"
    etag = client.get(path).headers["ETag"]
    assert client.ask(method, path, headers={"If-None-Match": etag}).status_code == 304
    set_status(sqlite_store.url, "webhook", state)
    for held in (etag, etag.removeprefix("W/"), f'"other", {etag}', "*"):
        answer = client.ask(method, path, headers={"If-None-Match": held})
        assert answer.status_code == 404
        assert answer.headers.get("ETag") != etag
    for listed in ("/api/templates", "/api/search?q=webhook"):
        assert b"webhook" not in client.get(listed, headers={"If-None-Match": etag}).content


def test_a_changed_template_has_another_etag_and_the_others_keep_theirs(
    sqlite_store: "Store", make_template: Make
) -> None:
    client = two_templates(sqlite_store, make_template)
    before = [client.get(f"/api/templates/{slug}").headers["ETag"] for slug in ("webhook", "weather")]
    sqlite_store.bring(make_template("weather", title="Changed", published_at="2026-02-01"))
    after = [client.get(f"/api/templates/{slug}").headers["ETag"] for slug in ("webhook", "weather")]
    assert after[0] == before[0]
    assert after[1] != before[1]
    assert client.get("/api/templates/weather").json["template"]["title"] == "Changed"


@pytest.mark.parametrize("taken", ["gzip", "deflate, gzip;q=0.5", "*", "GZIP"])
def test_a_large_answer_is_compressed_for_who_takes_it(client: "Client", taken: str) -> None:
    plain = client.get("/api/templates/webhook")
    packed = client.get("/api/templates/webhook", headers={"Accept-Encoding": taken})
    assert packed.headers["Content-Encoding"] == "gzip"
    assert packed.headers["Vary"] == "Accept-Encoding"
    assert gzip.decompress(packed.content) == plain.content
    assert len(packed.content) < len(plain.content) / 4


def test_the_answer_to_post_is_compressed_like_that_of_get(client: "Client") -> None:
    body = {"query": "webhook"}
    plain = client.post(body)
    packed = client.post(body, headers={"Accept-Encoding": "gzip"})
    assert packed.headers["Content-Encoding"] == "gzip"
    assert packed.headers["Vary"] == plain.headers["Vary"] == "Accept-Encoding"
    assert gzip.decompress(packed.content) == plain.content
    assert "Content-Encoding" not in plain.headers


@pytest.mark.parametrize("taken", ["", "identity", "gzip;q=0", "gzip; q=0.000", "br"])
def test_an_answer_stays_plain_for_who_does_not_take_gzip(client: "Client", taken: str) -> None:
    answered = client.get("/api/templates/webhook", headers={"Accept-Encoding": taken})
    assert "Content-Encoding" not in answered.headers


def test_every_origin_may_read_and_preflights_are_answered(client: "Client") -> None:
    headers = {
        "Origin": "https://library.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type",
    }
    preflight = client.ask("OPTIONS", "/api/search", headers=headers)
    assert preflight.status_code == 204
    assert preflight.headers["Access-Control-Allow-Origin"] == "*"
    assert "POST" in preflight.headers["Access-Control-Allow-Methods"]
    assert "Content-Type" in preflight.headers["Access-Control-Allow-Headers"]
    assert preflight.headers["Allow"] == "GET, HEAD, POST, OPTIONS"
    refused = client.get("/api/templates/none", headers={"Origin": "https://library.example"})
    assert refused.headers["Access-Control-Allow-Origin"] == "*"
    assert "ETag" in refused.headers["Access-Control-Expose-Headers"]


def test_a_request_keeps_its_own_id_and_gets_one_otherwise(client: "Client") -> None:
    assert client.get("/health", headers={"X-Request-ID": "a.b-1"}).headers["X-Request-ID"] == "a.b-1"
    first, second = (client.get("/health").headers["X-Request-ID"] for _ in range(2))
    assert first != second
    forged = client.get("/health", headers={"X-Request-ID": 'x", "status": 200'})
    assert len(forged.headers["X-Request-ID"]) == 36


def test_health_answers_ok(client: "Client") -> None:
    assert client.get("/health").json == {"status": "ok"}


class BrokenLibrary:
    """A library whose database fails, or that has a fault of its own."""

    def __init__(self, failure: Exception) -> None:
        self._failure = failure

    def refresh(self) -> None:
        """Do nothing, as tests ask for it before each request."""

    @property
    def edition(self) -> tuple[int, int]:
        raise self._failure

    def check(self) -> None:
        raise self._failure


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/api/templates", "search_failed"),
        ("GET", "/api/templates/one", "template_unavailable"),
        ("GET", "/api/search?q=x", "search_failed"),
        ("POST", "/api/search", "search_failed"),
        ("GET", "/health", "library_unavailable"),
    ],
)
@pytest.mark.parametrize("failure", [DatabaseUnavailableError("secret host"), ZeroDivisionError("secret detail")])
def test_a_failure_answers_500_that_tells_nothing_of_the_inside_and_the_log_tells_all(
    caplog: pytest.LogCaptureFixture,
    make_client: Callable[[TemplateLibrary], "Client"],
    method: str,
    path: str,
    code: str,
    failure: Exception,
) -> None:
    client = make_client(cast("TemplateLibrary", BrokenLibrary(failure)))
    body = {"query": "x"} if method == "POST" else None
    with caplog.at_level(logging.ERROR):
        answered = client.ask(method, path, json=body, headers={"X-Request-ID": "id-7"})
    document = answered.json if method == "POST" else answered.json["error"]
    assert (answered.status_code, document["code"]) == (500, code)
    assert "secret" not in answered.text
    assert "secret" in caplog.text
    assert "id-7" in caplog.text


def test_a_length_that_is_not_a_number_is_refused(client: "Client") -> None:
    environ = create_environ("/api/search", method="POST", headers={"Content-Type": "application/json"})
    environ["CONTENT_LENGTH"] = "many"  # the test client would not send it
    statuses: list[str] = []

    def start_response(status: str, _headers: list[tuple[str, str]], _fault: object = None) -> Callable[..., object]:
        statuses.append(status)
        return print

    [body] = create_app(client.library)(environ, start_response)
    assert statuses == ["400 Bad Request"]
    assert json.loads(body)["code"] == "invalid_request"

"""What HTTP itself asks of the API: methods, HEAD, ETags, compression, origins, request ids, failures."""

import gzip
import json
import logging
from collections.abc import Callable
from typing import cast

import pytest
from falcon.testing import create_environ

from template_api.app import create_app
from template_api.errors import DatabaseUnavailableError
from template_api.library import TemplateLibrary, set_status
from template_api.records import Status
from tests.support.library_store import Client, Store, template, two_templates


@pytest.fixture(scope="module")
def client(shared_sqlite_store: Store) -> Client:
    """A client of a library that no test changes."""
    return two_templates(shared_sqlite_store)


@pytest.mark.filterwarnings("ignore:Unknown REQUEST_METHOD")  # the test client warns of what is tested here
@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/api/templates", "GET, HEAD, OPTIONS"),
        ("DELETE", "/api/templates/webhook", "GET, HEAD, OPTIONS"),
        ("PUT", "/api/search", "GET, HEAD, POST, OPTIONS"),
        ("PATCH", "/openapi.json", "GET, HEAD, OPTIONS"),
        ("TRACE", "/health", "GET, HEAD, OPTIONS"),
    ],
)
def test_a_method_that_a_path_lacks_is_refused_with_the_allowed_ones(
    client: Client, method: str, path: str, allowed: str
) -> None:
    refused = client.ask(method, path)
    assert (refused.status_code, refused.json["error"]["code"]) == (405, "method_not_allowed")
    assert refused.json["error"]["hint"] == f"Use one of {refused.headers['Allow']}."
    assert set(refused.headers["Allow"].split(", ")) == set(allowed.split(", "))


@pytest.mark.filterwarnings("ignore:Unknown REQUEST_METHOD")  # the test client warns of what is tested here
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
@pytest.mark.parametrize("path", ["/a", "/api", "/api/template", "/api/templates/a/b", "/api/search/", "/%00", "/%ff"])
def test_an_unknown_path_is_not_found_in_the_specified_form(client: Client, method: str, path: str) -> None:
    refused = client.ask(method, path, headers={"Accept": "text/html"})
    assert (refused.status_code, refused.json["error"]["code"]) == (404, "not_found")


@pytest.mark.filterwarnings("ignore:Unknown REQUEST_METHOD")
@pytest.mark.parametrize("method", ["BREW", "WEBSOCKET"])
def test_a_method_that_http_does_not_have_is_refused(client: Client, method: str) -> None:
    refused = client.ask(method, "/api/templates")
    assert (refused.status_code, refused.json["error"]["code"]) == (400, "invalid_request")


@pytest.mark.parametrize(
    "path", ["/api/templates", "/api/templates/webhook", "/api/search?q=webhook", "/openapi.json", "/health"]
)
def test_head_answers_like_get_without_a_body(client: Client, path: str) -> None:
    got, head = client.get(path), client.ask("HEAD", path)
    assert head.status_code == 200
    assert head.headers["Content-Length"] == str(len(got.content))
    assert head.headers.get("ETag") == got.headers.get("ETag")
    assert client.ask("HEAD", "/api/templates/none").status_code == 404


@pytest.mark.parametrize("path", ["/api/templates", "/api/templates/webhook", "/api/search?q=webhook", "/openapi.json"])
def test_a_caller_that_holds_the_answer_gets_304(client: Client, path: str) -> None:
    etag = client.get(path).headers["ETag"]
    for held in (etag, etag.removeprefix("W/"), f'"other", {etag}', "*"):
        again = client.get(path, headers={"If-None-Match": held})
        assert again.status_code == 304
        assert again.headers["ETag"] == etag
    assert client.get(path, headers={"If-None-Match": '"other"'}).status_code == 200


@pytest.mark.parametrize("state", [Status.HIDDEN, Status.DRAFT])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_caller_that_holds_what_is_hidden_now_gets_404(sqlite_store: Store, method: str, state: Status) -> None:
    client = two_templates(sqlite_store)
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


def test_a_changed_template_has_another_etag_and_the_others_keep_theirs(sqlite_store: Store) -> None:
    client = two_templates(sqlite_store)
    before = [client.get(f"/api/templates/{slug}").headers["ETag"] for slug in ("webhook", "weather")]
    sqlite_store.bring(template("weather", title="Changed", published_at="2026-02-01"))
    after = [client.get(f"/api/templates/{slug}").headers["ETag"] for slug in ("webhook", "weather")]
    assert after[0] == before[0]
    assert after[1] != before[1]
    assert client.read("weather")["title"] == "Changed"


@pytest.mark.parametrize(
    ("taken", "is_packed"),
    [
        *((taken, True) for taken in ("gzip", "deflate, gzip;q=0.5", "*", "GZIP", "*;q=0, gzip")),
        *((taken, False) for taken in ("", "identity", "gzip;q=0", "gzip; q=0.000", "br", "*, gzip;q=0", "*;q=0")),
        ("identity;q=0.5, *;q=0.1", True),
    ],
)
def test_a_large_answer_is_compressed_for_who_takes_gzip(client: Client, taken: str, is_packed: bool) -> None:
    plain = client.get("/api/templates/webhook")
    for answer in (
        client.get("/api/templates/webhook", headers={"Accept-Encoding": taken}),
        client.post({"query": "webhook"}, headers={"Accept-Encoding": taken}),
    ):
        assert answer.headers.get("Content-Encoding") == ("gzip" if is_packed else None)
        assert answer.headers["Vary"] == "Accept-Encoding"
        assert b"Details" in (gzip.decompress(answer.content) if is_packed else answer.content)
        assert (len(answer.content) < len(plain.content) / 3) == is_packed


def test_every_origin_may_read_and_preflights_are_answered(client: Client) -> None:
    headers = {
        "Origin": "https://library.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type, x-anything",
    }
    preflight = client.ask("OPTIONS", "/api/search", headers=headers)
    assert preflight.status_code == 200
    assert preflight.headers["Access-Control-Allow-Origin"] == "*"
    assert "POST" in preflight.headers["Access-Control-Allow-Methods"]
    assert preflight.headers["Access-Control-Allow-Headers"] == "content-type, x-anything"
    plain = client.ask("OPTIONS", "/api/search")
    assert set(plain.headers["Allow"].split(", ")) == {"GET", "HEAD", "POST"}
    refused = client.get("/api/templates/none", headers={"Origin": "https://library.example"})
    assert refused.headers["Access-Control-Allow-Origin"] == "*"
    assert "ETag" in refused.headers["Access-Control-Expose-Headers"]


def test_a_request_keeps_its_own_id_and_gets_one_otherwise(client: Client) -> None:
    assert client.get("/health", headers={"X-Request-ID": "a.b-1"}).headers["X-Request-ID"] == "a.b-1"
    first, second = (client.get("/health").headers["X-Request-ID"] for _ in range(2))
    assert first != second
    forged = client.get("/health", headers={"X-Request-ID": 'x", "status": 200'})
    assert len(forged.headers["X-Request-ID"]) == 36


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
        ("GET", "/ready", "library_unavailable"),
    ],
)
@pytest.mark.parametrize("failure", [DatabaseUnavailableError("secret host"), ZeroDivisionError("secret detail")])
def test_a_failure_answers_500_that_tells_nothing_of_the_inside_and_the_log_tells_all(
    caplog: pytest.LogCaptureFixture,
    method: str,
    path: str,
    code: str,
    failure: Exception,
) -> None:
    client = Client(cast("TemplateLibrary", BrokenLibrary(failure)))
    body = {"query": "x"} if method == "POST" else None
    with caplog.at_level(logging.ERROR):
        answered = client.ask(method, path, json=body, headers={"X-Request-ID": "id-7"})
    document = answered.json if method == "POST" else answered.json["error"]
    assert (answered.status_code, document["code"]) == (500, code)
    assert "secret" not in answered.text
    assert "secret" in caplog.text
    assert "id-7" in caplog.text
    assert client.get("/health").status_code == 200
    if isinstance(failure, DatabaseUnavailableError):
        assert "template_api_ready 0" in client.page("/metrics").text


def test_a_length_that_is_not_a_number_is_refused(client: Client) -> None:
    environ = create_environ("/api/search", method="POST", headers={"Content-Type": "application/json"})
    environ["CONTENT_LENGTH"] = "many"  # the test client would not send it
    statuses: list[str] = []

    def start_response(status: str, _headers: list[tuple[str, str]], _fault: object = None) -> Callable[..., object]:
        statuses.append(status)
        return print

    [body] = create_app(client.library)(environ, start_response)
    assert statuses == ["400 Bad Request"]
    assert json.loads(body)["code"] == "invalid_request"

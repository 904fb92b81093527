"""Whatever a fuzzer sends is answered with 2xx or 4xx in the specified form."""

import json
import logging
import sqlite3
import tracemalloc
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from template_api.replies import Reply, ReplyCache
from tests.support.library_store import Client, Store, template

EXAMPLES = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],  # a busy machine is slow at drawing them
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda values: st.lists(values) | st.dictionaries(st.text(), values),
    max_leaves=12,
)
NAMES = st.sampled_from(["q", "limit", "category_id", "difficulty", "tag_ids", "route_ids", "broker_version_ids", "x"])


@pytest.fixture(scope="module")
def client(shared_sqlite_store: Store) -> Client:
    """A client of a library that no test changes."""
    templates = (template(f"t{n}", title=f"Poll the weather {n}", tags=["http"]) for n in range(50))
    shared_sqlite_store.bring(*templates)
    return shared_sqlite_store.client()


def answered(client: Client, method: str, path: str, **request: Any) -> int:
    """Ask, and check what must hold for every answer; its form is checked by the client."""
    status = client.ask(method, path, **request).status_code
    assert 200 <= status < 500
    return status


@EXAMPLES
@given(query=st.lists(st.tuples(NAMES, st.binary(max_size=300)), max_size=6))
def test_any_query_string_is_answered(client: Client, query: list[tuple[str, bytes]]) -> None:
    encoded = "&".join(f"{name}={quote_from_bytes(value)}" for name, value in query)
    for path in ("/api/templates", "/api/search"):
        assert answered(client, "GET", path, query_string=encoded) in {200, 400}


@EXAMPLES
@given(query=st.text(st.characters(min_codepoint=33, max_codepoint=255), max_size=200), name=st.binary(min_size=1))
def test_any_raw_query_string_and_any_name_are_answered(client: Client, query: str, name: bytes) -> None:
    assert answered(client, "GET", "/api/search", query_string=f"&{query}") in {200, 400}
    assert answered(client, "GET", "/api/templates/" + quote_from_bytes(name[:100], safe="")) == 404


@EXAMPLES
@given(text=st.text(max_size=300))
def test_any_text_can_be_searched(client: Client, text: str) -> None:
    assert answered(client, "POST", "/api/search", json={"query": text}) == 200


@EXAMPLES
@given(document=JSON_VALUES)
def test_any_json_body_is_answered(client: Client, document: Any) -> None:
    for body in (document, {"query": document}, {"query": "x", "limit": document, "filters": document}):
        encoded = json.dumps(body)
        headers = {"Content-Type": "application/json"}
        assert answered(client, "POST", "/api/search", body=encoded, headers=headers) in {200, 400}


@EXAMPLES
@given(body=st.binary(max_size=500))
def test_any_bytes_are_answered(client: Client, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    assert answered(client, "POST", "/api/search", body=body, headers=headers) in {200, 400}


@EXAMPLES
@given(
    headers=st.dictionaries(
        st.sampled_from(["If-None-Match", "Accept-Encoding", "X-Request-ID", "Accept", "Origin", "Cookie"]),
        st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=100),
    )
)
def test_any_headers_are_answered(client: Client, headers: dict[str, str]) -> None:
    assert answered(client, "GET", "/api/templates", headers=headers) in {200, 304}


@pytest.mark.parametrize("text", ["xyzzy " * 660, "a" * 4000, "ab " * 1300, "\u4e00" * 4000, "weathr " * 570])
def test_the_longest_texts_are_answered(client: Client, text: str) -> None:
    assert answered(client, "POST", "/api/search", json={"query": text}) == 200


def test_an_id_with_nul_matches_nothing_on_any_database(store: Store) -> None:
    store.bring(template("one", title="Poll the weather", tags=["http"]))
    client = store.client()
    for name in ("category_id", "tag_ids", "route_ids", "broker_version_ids"):
        assert client.posted("", filters={name: "\0" if name == "category_id" else ["\0", "a\0b"]}) == []
    page = client.page("/?tag_ids=%00")
    assert page.status_code == 200
    assert "Poll the weather" not in page.text


def test_a_line_break_in_a_path_does_not_begin_a_line_of_the_log(
    sqlite_store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = sqlite_store.client()
    with closing(sqlite3.connect(tmp_path / "library.db")) as lost:
        lost.execute("ALTER TABLE library RENAME TO lost")
    with caplog.at_level(logging.ERROR):
        assert client.get("/api/templates/a%0D%0A[2026]%C2%85forged").status_code == 500
    [line] = [record.getMessage() for record in caplog.records if "GET" in record.getMessage()]
    assert "GET /api/templates/a%0D%0A%5B2026%5D%C2%85forged: database sqlite:///" in line
    assert line.isprintable()


def test_long_filters_do_not_fill_the_memory(client: Client) -> None:
    cache = ReplyCache(client.library, max_bytes=1_000_000)
    empty = Reply(b'{"results":[]}')
    tracemalloc.start()
    try:
        for number in range(100):
            cache.reply("/api/search", f"q=x&tag_ids={number}" + ",a" * 30_000, lambda: empty)
        assert tracemalloc.get_traced_memory()[0] < 2_000_000  # they occupy 6 MB
    finally:
        tracemalloc.stop()


def test_the_header_of_ignored_parameters_passes_a_proxy(client: Client) -> None:
    answer = client.get("/api/templates?limit=1&" + "&".join(f"{'%F0%9F%98%80' * 57}{number}=" for number in range(30)))
    named = answer.headers["X-Ignored-Parameters"]
    assert len(named) <= 4096
    assert named.endswith("4, ...")

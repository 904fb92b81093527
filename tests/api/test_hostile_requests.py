"""Whatever a fuzzer sends is answered with 2xx or 4xx in the specified form."""

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_from_bytes

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from tests.api.conftest import Client, Store

Make = Callable[..., dict[str, Any]]
EXAMPLES = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    # The client is only asked, so examples may share it; a busy machine is slow at drawing them.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda values: st.lists(values) | st.dictionaries(st.text(), values),
    max_leaves=12,
)
NAMES = st.sampled_from(["q", "limit", "category_id", "difficulty", "tag_ids", "route_ids", "broker_version_ids", "x"])


@pytest.fixture
def client(sqlite_store: "Store", make_template: Make) -> "Iterator[Client]":
    sqlite_store.bring(*(make_template(f"t{n}", title=f"Poll the weather {n}", tags=["http"]) for n in range(50)))
    yield sqlite_store.client()


def answered(client: "Client", method: str, path: str, **request: Any) -> int:
    """Ask, and check what must hold for every answer; its form is checked by the client."""
    status = client.ask(method, path, **request).status_code
    assert 200 <= status < 500
    return status


@EXAMPLES
@given(query=st.lists(st.tuples(NAMES, st.binary(max_size=300)), max_size=6))
def test_any_query_string_is_answered(client: "Client", query: list[tuple[str, bytes]]) -> None:
    encoded = "&".join(f"{name}={quote_from_bytes(value)}" for name, value in query)
    for path in ("/api/templates", "/api/search"):
        assert answered(client, "GET", path, query_string=encoded) in {200, 400}


@EXAMPLES
@given(query=st.text(st.characters(min_codepoint=33, max_codepoint=255), max_size=200))
def test_any_raw_query_string_is_answered(client: "Client", query: str) -> None:
    assert answered(client, "GET", "/api/search", query_string=query) in {200, 400}


@EXAMPLES
@given(text=st.text(max_size=300))
def test_any_text_can_be_searched(client: "Client", text: str) -> None:
    assert answered(client, "POST", "/api/search", json={"query": text}) == 200


@EXAMPLES
@given(name=st.binary(min_size=1, max_size=100))
def test_any_name_is_answered(client: "Client", name: bytes) -> None:
    assert answered(client, "GET", "/api/templates/" + quote_from_bytes(name, safe="")) == 404


@EXAMPLES
@given(document=JSON_VALUES)
def test_any_json_body_is_answered(client: "Client", document: Any) -> None:
    for body in (document, {"query": document}, {"query": "x", "limit": document, "filters": document}):
        encoded = json.dumps(body)
        headers = {"Content-Type": "application/json"}
        assert answered(client, "POST", "/api/search", body=encoded, headers=headers) in {200, 400}


@EXAMPLES
@given(body=st.binary(max_size=500))
def test_any_bytes_are_answered(client: "Client", body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    assert answered(client, "POST", "/api/search", body=body, headers=headers) in {200, 400}


@EXAMPLES
@given(
    headers=st.dictionaries(
        st.sampled_from(["If-None-Match", "Accept-Encoding", "X-Request-ID", "Accept", "Origin", "Cookie"]),
        st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=100),
    )
)
def test_any_headers_are_answered(client: "Client", headers: dict[str, str]) -> None:
    assert answered(client, "GET", "/api/templates", headers=headers) in {200, 304}


@pytest.mark.parametrize("text", ["xyzzy " * 660, "a" * 4000, "ab " * 1300, "\u4e00" * 4000, "weathr " * 570])
def test_the_longest_texts_are_answered(client: "Client", text: str) -> None:
    assert answered(client, "POST", "/api/search", json={"query": text}) == 200

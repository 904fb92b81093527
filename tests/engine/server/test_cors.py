"""CORS: which pages may call, and which preflights are answered."""

import pytest

from amqtt_rest_bridge.lot.model import Signature
from tests.support.answering import Answering, port
from tests.support.server_mode import error_code, event, route

SERVER_ONLY = {"username": "bob", "password": "secret"}
PAGE = "https://app.example.net"
OTHER = "https://evil.example.org"
LISTED = {"enable_cors": True, "cors_origins": (PAGE, " HTTPS://Second.example.net/ ")}


def test_without_enable_cors_no_cors_header_is_sent_and_origins_are_not_looked_at() -> None:
    hooks = port(event(), cors_origins=(PAGE,))
    results = [
        hooks.ask("POST", "/hook", "1", Origin=OTHER),
        hooks.ask("OPTIONS", "/hook", Origin=PAGE, Access_Control_Request_Method="POST"),
    ]
    assert [result.status_code for result in results] == [200, 204]
    for result in results:
        assert not [name for name in result.headers if name.startswith("access-control") or name == "vary"]


@pytest.mark.parametrize("origin", [PAGE, "https://second.example.net"])
def test_a_listed_origin_may_read_the_answer(origin: str) -> None:
    result = port(event(), **LISTED).ask("POST", "/hook", "1", Origin=origin)
    assert result.status_code == 200
    assert result.headers["access-control-allow-origin"] == origin
    assert result.headers["vary"] == "Origin"
    assert "X-Request-ID" in result.headers["access-control-expose-headers"]
    assert "access-control-allow-credentials" not in result.headers


@pytest.mark.parametrize(
    "origin", [OTHER, "http://app.example.net", f"{PAGE}:8443", f"{PAGE}.evil.org", "null", f"{PAGE}, {OTHER}"]
)
def test_any_other_origin_is_refused_and_publishes_nothing(origin: str) -> None:
    hooks = port(event(), **LISTED)
    result = hooks.ask("POST", "/hook", "1", Origin=origin)
    assert (result.status_code, error_code(result)) == (403, "origin_not_allowed")
    assert "access-control-allow-origin" not in result.headers
    assert result.headers["vary"] == "Origin"
    assert hooks.published == []


def test_a_request_without_origin_is_served_and_says_that_it_varies() -> None:
    result = port(event(), **LISTED).ask("POST", "/hook", "1")
    assert result.status_code == 200
    assert result.headers["vary"] == "Origin"
    assert "access-control-allow-origin" not in result.headers


@pytest.mark.parametrize("origins", [("*",), (PAGE, "*")])
def test_a_star_allows_every_origin(origins: tuple[str, ...]) -> None:
    result = port(event(), enable_cors=True, cors_origins=origins).ask("POST", "/hook", "1", Origin="null")
    assert result.status_code == 200
    assert result.headers["access-control-allow-origin"] == "*"


def test_a_preflight_tells_methods_and_headers_and_needs_no_credentials() -> None:
    hooks = port(event(), event("PUT", name="Put"), **LISTED, **SERVER_ONLY)
    result = hooks.ask(
        "OPTIONS",
        "/hook",
        Origin=PAGE,
        Access_Control_Request_Method="PUT",
        Access_Control_Request_Headers="authorization, content-type",
    )
    assert (result.status_code, result.content) == (204, b"")
    assert result.headers["access-control-allow-origin"] == PAGE
    assert result.headers["access-control-allow-methods"] == "OPTIONS, POST, PUT"
    assert result.headers["access-control-allow-headers"] == "authorization, content-type"
    assert result.headers["access-control-max-age"] == "600"
    assert "Origin" in result.headers["vary"]
    assert hooks.published == []


def test_a_preflight_of_another_origin_is_refused() -> None:
    result = port(event(), **LISTED).ask("OPTIONS", "/hook", Origin=OTHER, Access_Control_Request_Method="POST")
    assert (result.status_code, error_code(result)) == (403, "origin_not_allowed")


def test_a_preflight_for_a_method_that_is_not_there_allows_nothing() -> None:
    result = port(event(), **LISTED).ask("OPTIONS", "/hook", Origin=PAGE, Access_Control_Request_Method="PUT")
    assert result.status_code == 204
    assert "access-control-allow-origin" not in result.headers


def test_headers_that_are_none_are_not_given_back() -> None:
    result = port(event(), **LISTED).ask(
        "OPTIONS",
        "/hook",
        Origin=PAGE,
        Access_Control_Request_Method="POST",
        Access_Control_Request_Headers="x\x01, (y)",
    )
    assert result.status_code == 204
    assert "access-control-allow-headers" not in result.headers


def test_routes_on_one_port_and_path_differ_in_their_origins() -> None:
    both = Answering(
        route(event(), name="A", **LISTED),
        route(event("PUT", name="B"), name="B"),
    )
    asks = {"Origin": PAGE}
    assert "access-control-allow-origin" in both.ask("POST", "/hook", "1", **asks).headers
    assert "access-control-allow-origin" not in both.ask("PUT", "/hook", "1", **asks).headers
    preflight = both.ask("OPTIONS", "/hook", Access_Control_Request_Method="PUT", **asks)
    assert "access-control-allow-origin" not in preflight.headers


def test_pages_of_listed_origins_can_read_errors_too() -> None:
    hooks = port(event(signature=Signature("key")), **LISTED, **SERVER_ONLY)
    unauthorized = hooks.ask("POST", "/hook", "1", Origin=PAGE)
    unsigned = hooks.ask("POST", "/hook", "1", Origin=PAGE, Authorization="Basic Ym9iOnNlY3JldA==")
    for result, code in ((unauthorized, "unauthorized"), (unsigned, "invalid_signature")):
        assert error_code(result) == code
        assert result.headers["access-control-allow-origin"] == PAGE

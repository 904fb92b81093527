"""Who may call: Basic credentials, signatures, and pages of which origins (CORS)."""

import base64
import hashlib
import hmac
from typing import Any

import pytest

from amqtt_rest_bridge.lot.model import Signature
from tests.support.answering import Answering, port
from tests.support.server_mode import Result, error_code, event, route


def basic(text: str, charset: str = "utf-8") -> str:
    return "Basic " + base64.b64encode(text.encode(charset)).decode()


SERVER_ONLY = {"username": "bob", "password": "pä:ss"}
ANY_ROUTE = {"server_username": "bob", "server_password": "pä:ss"}
BESIDE_CLIENT = {"enable_client": True, "username": "out", "password": "going"}
RIGHT = basic("bob:pä:ss")


@pytest.mark.parametrize(
    ("settings", "headers", "status"),
    [
        pytest.param(SERVER_ONLY, {"Authorization": RIGHT}, 200, id="USERNAME"),
        pytest.param(ANY_ROUTE, {"Authorization": RIGHT}, 200, id="SERVER_USERNAME"),
        pytest.param(ANY_ROUTE, {"Authorization": RIGHT.replace("Basic", "bAsIc")}, 200, id="the scheme in any case"),
        pytest.param({}, {}, 200, id="none set"),
        pytest.param({}, {"Authorization": basic("any:one")}, 200, id="none set, and one sent"),
        pytest.param(BESIDE_CLIENT, {}, 200, id="USERNAME belongs to client mode"),
        pytest.param(BESIDE_CLIENT | ANY_ROUTE, {"Authorization": RIGHT}, 200, id="SERVER_USERNAME beside client mode"),
        pytest.param(BESIDE_CLIENT | ANY_ROUTE, {"Authorization": basic("out:going")}, 401, id="and not USERNAME"),
        pytest.param(
            BESIDE_CLIENT | {"server_token": ("t",)},
            {"Authorization": basic("out:going")},
            401,
            id="nor beside a token",
        ),
        pytest.param({"username": "bob"}, {}, 401, id="half of USERNAME"),
        pytest.param({"server_username": "bob"}, {}, 401, id="half of SERVER_USERNAME"),
        pytest.param({"server_username": "bob"}, {"Authorization": basic("bob:")}, 200, id="the other half is empty"),
    ],
)
def test_a_route_asks_for_the_credentials_that_are_set(
    settings: dict[str, Any], headers: dict[str, str], status: int
) -> None:
    hooks = port(event(), **settings)
    assert hooks.ask("POST", "/hook", "1", **headers).status_code == status
    assert len(hooks.published) == (status == 200)


def test_everything_else_gets_one_and_the_same_answer() -> None:
    hooks = port(event(), **SERVER_ONLY)
    wrong = [
        basic("bob:wrong"), basic("eve:pä:ss"), basic("bob:pä:ss", "latin-1"), RIGHT + "x",
        RIGHT.replace("Basic", "Bearer"), "Basic", "Basic !!!", "Basic é", "",
    ]  # fmt: skip
    results = [hooks.ask("POST", "/hook", "1", Authorization=one) for one in wrong] + [hooks.ask("POST", "/hook", "1")]
    answers = {(result.status_code, result.content, tuple(result.headers.items())) for result in results}
    assert len(answers) == 1
    assert (results[0].status_code, error_code(results[0])) == (401, "unauthorized")
    assert results[0].headers["www-authenticate"] == 'Basic realm="Hooks", charset="UTF-8"'
    assert hooks.published == []


def test_routes_on_one_port_ask_for_different_credentials() -> None:
    both = Answering(route(event(), name="A", **SERVER_ONLY), route(event(endpoint="/open", name="B"), name="B"))
    assert both.ask("POST", "/hook", "1").status_code == 401
    assert both.ask("POST", "/open", "1").status_code == 200


# Signatures.

GITHUB = Signature("It's a Secret to Everybody")  # the vector that GitHub publishes
GITHUB_SHA256 = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
IN_BASE64 = base64.b64encode(bytes.fromhex(GITHUB_SHA256)).decode()


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(GITHUB_SHA256, id="hexadecimal"),
        pytest.param(f"sha256={GITHUB_SHA256}", id="as GitHub sends it"),
        pytest.param(f"sha256={GITHUB_SHA256.upper()}", id="capitals"),
        pytest.param(f" SHA256={GITHUB_SHA256} ", id="prefix in capitals, spaces around"),
        pytest.param(IN_BASE64, id="base64"),
        pytest.param(f"sha256={IN_BASE64}", id="base64 with prefix"),
    ],
)
def test_a_signature_is_read_in_every_form(header: str) -> None:
    hooks = port(event(signature=GITHUB))
    assert hooks.ask("POST", "/hook", "Hello, World!", X_Hub_Signature_256=header).status_code == 200
    assert hooks.published == [("hook/received", b"Hello, World!")]


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({}, id="missing"),
        pytest.param({"X_Hub_Signature_256": ""}, id="empty"),
        pytest.param({"X_Hub_Signature_256": "sha256="}, id="prefix alone"),
        pytest.param({"X_Hub_Signature_256": "sha1=" + GITHUB_SHA256}, id="another prefix"),
        pytest.param({"X_Hub_Signature_256": "f" * 64}, id="another digest"),
        pytest.param({"X_Hub_Signature_256": "z" * 64}, id="not hexadecimal"),
        pytest.param({"X_Hub_Signature_256": GITHUB_SHA256[:-1]}, id="cut off"),
        pytest.param({"X_Hub_Signature_256": "é" * 64}, id="beyond ASCII"),
    ],
)
def test_any_other_signature_is_answered_with_401_and_publishes_nothing(headers: dict[str, str]) -> None:
    hooks = port(event(signature=GITHUB))
    result = hooks.ask("POST", "/hook", "Hello, World!", **headers)
    assert (result.status_code, error_code(result)) == (401, "invalid_signature")
    assert "www-authenticate" in result.headers
    assert hooks.published == []


def test_the_signature_is_over_the_raw_body_in_the_header_that_the_route_names() -> None:
    last = port(event("GET", destination=None, source="in", signature=Signature("key", "X-Shop-Hmac")))
    last.broker.changed("in", b"21.5")
    good = base64.b64encode(hmac.digest(b"key", b"", hashlib.sha256)).decode()
    assert last.ask("GET", "/hook?a=1", X_Shop_Hmac=good).content == b"21.5"
    assert error_code(last.ask("GET", "/hook?a=1", X_Hub_Signature_256=good)) == "invalid_signature"


# Origins.

PAGE, OTHER = "https://app.example.net", "https://evil.example.org"
LISTED = {"enable_cors": True, "cors_origins": (PAGE, " HTTPS://Second.example.net/ ")}


def preflight(asked: Answering, method: str = "POST", origin: str = PAGE, headers: str = "x") -> Result:
    names = {"Access_Control_Request_Method": method, "Access_Control_Request_Headers": headers}
    return asked.ask("OPTIONS", "/hook", Origin=origin, **names)


def test_without_enable_cors_no_cors_header_is_sent_and_origins_are_not_looked_at() -> None:
    hooks = port(event(), cors_origins=(PAGE,))
    results = [hooks.ask("POST", "/hook", "1", Origin=OTHER), preflight(hooks)]
    assert [result.status_code for result in results] == [200, 204]
    for result in results:
        assert not [name for name in result.headers if name.startswith("access-control") or name == "vary"]


@pytest.mark.parametrize(
    ("listed", "origin", "allowed"),
    [
        pytest.param(LISTED["cors_origins"], PAGE, PAGE, id="listed"),
        pytest.param(LISTED["cors_origins"], "https://second.example.net", "https://second.example.net", id="any case"),
        pytest.param(("*",), "null", "*", id="a star"),
        pytest.param((PAGE, "*"), "null", "*", id="a star beside others"),
        pytest.param(LISTED["cors_origins"], None, None, id="no page"),
    ],
)
def test_a_page_of_a_listed_origin_may_read_the_answer(
    listed: tuple[str, ...], origin: str | None, allowed: str | None
) -> None:
    headers = {} if origin is None else {"Origin": origin}
    result = port(event(), enable_cors=True, cors_origins=listed).ask("POST", "/hook", "1", **headers)
    assert (result.status_code, result.headers["vary"]) == (200, "Origin")
    assert result.headers.get("access-control-allow-origin") == allowed
    assert ("X-Request-ID" in result.headers.get("access-control-expose-headers", "")) is (origin is not None)
    assert "access-control-allow-credentials" not in result.headers


@pytest.mark.parametrize(
    "origin", [OTHER, "http://app.example.net", f"{PAGE}:8443", f"{PAGE}.evil.org", "null", f"{PAGE}, {OTHER}"]
)
def test_any_other_origin_is_refused_and_publishes_nothing(origin: str) -> None:
    hooks = port(event(), **LISTED)
    for result in (hooks.ask("POST", "/hook", "1", Origin=origin), preflight(hooks, origin=origin)):
        assert (result.status_code, error_code(result)) == (403, "origin_not_allowed")
        assert "access-control-allow-origin" not in result.headers
        assert result.headers["vary"] == "Origin"
    assert hooks.published == []
    assert hooks.broker.counted == [("Hooks", "origin_not_allowed")] * 2


def test_a_preflight_is_answered_with_methods_and_headers_and_needs_no_credentials() -> None:
    hooks = port(event(), event("PUT", name="Put"), **LISTED, **SERVER_ONLY)
    result = preflight(hooks, "PUT", headers="authorization, content-type")
    assert (result.status_code, result.content) == (204, b"")
    assert result.headers["access-control-allow-origin"] == PAGE
    assert result.headers["access-control-allow-methods"] == "OPTIONS, POST, PUT"
    assert result.headers["access-control-allow-headers"] == "authorization, content-type"
    assert result.headers["access-control-max-age"] == "600"
    assert "Origin" in result.headers["vary"]
    assert (hooks.published, hooks.broker.counted) == ([], [])


@pytest.mark.parametrize(
    ("method", "headers", "missing"),
    [("PUT", "x", "access-control-allow-origin"), ("POST", "x\x01, (y)", "access-control-allow-headers")],
    ids=["a method that is not there", "headers that are none"],
)
def test_a_preflight_allows_nothing_that_is_not_there(method: str, headers: str, missing: str) -> None:
    result = preflight(port(event(), **LISTED), method, headers=headers)
    assert result.status_code == 204
    assert missing not in result.headers


def test_routes_on_one_port_and_path_differ_in_their_origins() -> None:
    both = Answering(route(event(), name="A", **LISTED), route(event("PUT", name="B"), name="B"))
    assert "access-control-allow-origin" in both.ask("POST", "/hook", "1", Origin=PAGE).headers
    assert "access-control-allow-origin" not in both.ask("PUT", "/hook", "1", Origin=PAGE).headers
    assert "access-control-allow-origin" not in preflight(both, "PUT").headers


def test_pages_of_listed_origins_can_read_errors_too() -> None:
    hooks = port(event(signature=Signature("key")), **LISTED, **SERVER_ONLY)
    unauthorized = hooks.ask("POST", "/hook", "1", Origin=PAGE)
    unsigned = hooks.ask("POST", "/hook", "1", Origin=PAGE, Authorization=RIGHT)
    for result, code in ((unauthorized, "unauthorized"), (unsigned, "invalid_signature")):
        assert error_code(result) == code
        assert result.headers["access-control-allow-origin"] == PAGE

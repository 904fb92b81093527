"""Who may call: Basic credentials and signatures; see `test_cors` for origins."""

import base64
import hashlib
import hmac
from typing import Any

import pytest

from amqtt_rest_bridge.engine.server.callers import verifier_of
from amqtt_rest_bridge.http.exchange import RequestRefusedError
from amqtt_rest_bridge.lot.model import Signature
from tests.support.answering import Answering, port
from tests.support.server_mode import error_code, event, route


def basic(text: str, charset: str = "utf-8") -> str:
    return "Basic " + base64.b64encode(text.encode(charset)).decode()


SERVER_ONLY = {"username": "bob", "password": "pä:ss"}
ANY_ROUTE = {"server_username": "bob", "server_password": "pä:ss"}


@pytest.mark.parametrize("settings", [pytest.param(SERVER_ONLY, id="USERNAME"), pytest.param(ANY_ROUTE, id="SERVER_")])
def test_the_right_name_and_password_open_the_endpoint(settings: dict[str, Any]) -> None:
    hooks = port(event(), **settings)
    assert hooks.ask("POST", "/hook", "1", Authorization=basic("bob:pä:ss")).status_code == 200
    assert (
        hooks.ask("POST", "/hook", "2", Authorization=basic("bob:pä:ss").replace("Basic", "bAsIc")).status_code == 200
    )
    assert [body for _, body in hooks.published] == [b"1", b"2"]


def test_everything_else_gets_one_and_the_same_answer() -> None:
    hooks = port(event(), **SERVER_ONLY)
    wrong = [
        {},
        {"Authorization": basic("bob:wrong")},
        {"Authorization": basic("eve:pä:ss")},
        {"Authorization": basic("bob:pä:ss", "latin-1")},
        {"Authorization": basic("bob:pä:ss").replace("Basic", "Bearer")},
        {"Authorization": "Basic"},
        {"Authorization": "Basic !!!"},
        {"Authorization": "Basic é"},
        {"Authorization": basic("bob:pä:ss") + "x"},
        {"Authorization": ""},
    ]
    results = [hooks.ask("POST", "/hook", "1", **headers) for headers in wrong]
    answers = {(result.status_code, result.content, tuple(result.headers.items())) for result in results}
    assert len(answers) == 1
    assert results[0].status_code == 401
    assert error_code(results[0]) == "unauthorized"
    assert results[0].headers["www-authenticate"] == 'Basic realm="Hooks", charset="UTF-8"'
    assert hooks.published == []


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="none set"),
        pytest.param({**SERVER_ONLY, "enable_client": True}, id="USERNAME belongs to client mode"),
    ],
)
def test_without_credentials_of_its_own_a_route_asks_for_none(settings: dict[str, Any]) -> None:
    hooks = port(event(), **settings)
    assert hooks.ask("POST", "/hook", "1").status_code == 200
    assert hooks.ask("POST", "/hook", "2", Authorization=basic("any:one")).status_code == 200


def test_server_username_counts_beside_client_mode_and_before_username() -> None:
    hooks = port(event(), enable_client=True, username="out", password="going", **ANY_ROUTE)
    assert hooks.ask("POST", "/hook", "1", Authorization=basic("out:going")).status_code == 401
    assert hooks.ask("POST", "/hook", "1", Authorization=basic("bob:pä:ss")).status_code == 200


@pytest.mark.parametrize("settings", [{"username": "bob"}, {"server_username": "bob"}])
def test_half_a_pair_of_credentials_does_not_open_a_route(settings: dict[str, str]) -> None:
    hooks = port(event(), **settings)
    assert hooks.ask("POST", "/hook", "1").status_code == 401
    assert hooks.ask("POST", "/hook", "1", Authorization=basic("bob:")).status_code == 200


def test_routes_on_one_port_ask_for_different_credentials() -> None:
    both = Answering(route(event(), name="A", **SERVER_ONLY), route(event(endpoint="/open", name="B"), name="B"))
    assert both.ask("POST", "/hook", "1").status_code == 401
    assert both.ask("POST", "/open", "1").status_code == 200


GITHUB = Signature("It's a Secret to Everybody")
GITHUB_SHA256 = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"


def test_the_vector_that_github_publishes_is_accepted() -> None:
    hooks = port(event(signature=GITHUB))
    result = hooks.ask("POST", "/hook", "Hello, World!", X_Hub_Signature_256=f"sha256={GITHUB_SHA256}")
    assert result.status_code == 200
    assert hooks.published == [("hook/received", b"Hello, World!")]


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(GITHUB_SHA256, id="hexadecimal"),
        pytest.param(f"sha256={GITHUB_SHA256.upper()}", id="capitals"),
        pytest.param(f" SHA256={GITHUB_SHA256} ", id="prefix in capitals, spaces around"),
        pytest.param(base64.b64encode(bytes.fromhex(GITHUB_SHA256)).decode(), id="base64"),
        pytest.param("sha256=" + base64.b64encode(bytes.fromhex(GITHUB_SHA256)).decode(), id="base64 with prefix"),
    ],
)
def test_a_signature_is_read_in_every_form(header: str) -> None:
    verifier_of(GITHUB)({"x-hub-signature-256": header}, b"Hello, World!", 0.0)


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(None, id="missing"),
        pytest.param("", id="empty"),
        pytest.param("sha256=", id="prefix alone"),
        pytest.param("sha1=" + GITHUB_SHA256, id="another prefix"),
        pytest.param("f" * 64, id="another digest"),
        pytest.param("z" * 64, id="not hexadecimal"),
        pytest.param(GITHUB_SHA256[:-1], id="cut off"),
        pytest.param("é" * 64, id="beyond ASCII"),
    ],
)
def test_any_other_signature_is_refused(header: str | None) -> None:
    with pytest.raises(RequestRefusedError) as caught:
        headers = {} if header is None else {"x-hub-signature-256": header}
        verifier_of(GITHUB)(headers, b"Hello, World!", 0.0)
    assert caught.value.refusal.code == "invalid_signature"


def test_a_wrong_signature_is_answered_with_401_and_publishes_nothing() -> None:
    hooks = port(event(signature=GITHUB))
    result = hooks.ask("POST", "/hook", "Hello, World?", X_Hub_Signature_256=f"sha256={GITHUB_SHA256}")
    assert (result.status_code, error_code(result)) == (401, "invalid_signature")
    assert "www-authenticate" in result.headers
    assert hooks.published == []


def test_a_read_event_with_a_signature_refuses_callers_without_it() -> None:
    last = port(event("GET", destination=None, source="in", signature=Signature("key")))
    last.broker.changed("in", b"21.5")
    good = hmac.digest(b"key", b"", hashlib.sha256).hex()
    assert error_code(last.ask("GET", "/hook")) == "invalid_signature"
    assert last.ask("GET", "/hook", X_Hub_Signature_256=good).content == b"21.5"


def test_the_signature_is_over_the_raw_body_in_the_header_that_the_route_names() -> None:
    hooks = port(event("GET", signature=Signature("key", "X-Shop-Hmac")))
    good = base64.b64encode(hmac.digest(b"key", b"", hashlib.sha256)).decode()
    assert hooks.ask("GET", "/hook?a=1", X_Shop_Hmac=good).status_code == 200
    assert hooks.ask("GET", "/hook?a=1", X_Hub_Signature_256=good).status_code == 401

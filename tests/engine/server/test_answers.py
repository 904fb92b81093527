"""RESPONSE, SERVER_TOKEN and SIGNATURE_SCHEME: the answers of server mode, and which callers and webhooks it admits."""

import json
from base64 import b64encode
from collections.abc import Mapping

import pytest

from amqtt_rest_bridge.engine.server.signatures import TOLERANCE_SECONDS, verifier_of
from amqtt_rest_bridge.http.exchange import RequestRefusedError
from amqtt_rest_bridge.lot.model import Signature, SignatureScheme
from amqtt_rest_bridge.lot.placeholders.text import Place
from tests.support.answering import port
from tests.support.server_mode import error_code, event, payload


def test_the_answer_is_what_response_makes_of_the_request() -> None:
    made = payload('{"text": "{query.text|none}", "id": {body.json.id}, "path": "{path.name}"}')
    hooks = port(event("POST", "/hook/{name}", response=made, response_status=202))
    result = hooks.ask("POST", "/hook/a?text=%22x%22", '{"id": 1.50}')
    assert (result.status_code, result.json) == (202, {"text": '"x"', "id": 1.5, "path": "a"})
    assert result.headers["content-type"] == "application/json"
    assert hooks.published == [("hook/received", b'{"id": 1.50}')]


def test_the_answer_of_a_webhooks_challenge_is_plain_text_where_the_route_says_so() -> None:
    made = payload("{body.json.challenge}", Place.TEXT)
    hooks = port(event(response=made, response_content_type="text/plain"))
    result = hooks.ask("POST", "/hook", '{"challenge": "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P"}')
    assert (result.headers["content-type"], result.text[:6]) == ("text/plain", "3eZbrw")
    assert result.headers["x-content-type-options"] == "nosniff"


def test_a_response_that_cannot_be_made_is_refused_before_anything_is_published() -> None:
    hooks = port(event(response=payload("{body.json.id}")))
    result = hooks.ask("POST", "/hook", "{}")
    assert (result.status_code, error_code(result)) == (400, "invalid_request")
    assert hooks.published == []


@pytest.mark.parametrize(
    ("status", "line", "body"),
    [(201, "201 Created", True), (204, "204 No Content", False), (299, "299 Success", True)],
)
def test_a_status_alone_keeps_the_usual_body_where_it_may_have_one(status: int, line: str, body: bool) -> None:
    hooks = port(event(response_status=status))
    assert hooks.ask("POST", "/hook", "1").content == (b'{"status": "published", "topic": "hook/received"}' * body)
    assert hooks.broker.lines == [f"answered POST /hook with {line}"]


TOKENS = {"server_token": ("new-token", "old-token"), "server_token_header": "X-API-Key"}
PASSWORD = "Basic " + b64encode(b"ann:pass").decode()


@pytest.mark.parametrize(
    ("headers", "is_admitted"),
    [
        ({"Authorization": "Bearer new-token"}, True),
        ({"Authorization": "bearer  old-token"}, True),
        ({"X_API_Key": "old-token"}, True),
        ({"Authorization": "Bearer wrong", "X_API_Key": "new-token"}, True),
        ({}, False),
        ({"Authorization": "Bearer"}, False),
        ({"Authorization": "Bearer new-toke"}, False),
        ({"Authorization": "Basic new-token"}, False),
        ({"X_API_Key": ""}, False),
        ({"X_API_Key": "new-token, old-token"}, False),
        ({"X_Token": "new-token"}, False),
        ({"Authorization": "Bearer \u00ff"}, False),
    ],
    ids=str,
)
def test_a_caller_with_one_of_the_tokens_is_admitted_and_no_other(headers: dict[str, str], is_admitted: bool) -> None:
    hooks = port(event(), **TOKENS)
    result = hooks.ask("POST", "/hook", "1", **headers)
    assert len(hooks.published) == is_admitted
    if not is_admitted:
        assert (result.status_code, error_code(result)) == (401, "unauthorized")
        assert result.headers["www-authenticate"] == 'Bearer realm="Hooks"'
        assert "X-API-Key" in result.json["error"]["hint"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"Authorization": PASSWORD}, 200), ({"X_API_Key": "old-token"}, 200), ({"Authorization": PASSWORD[:-4]}, 401)],
    ids=["password", "token", "neither"],
)
def test_a_password_or_a_token_admits_where_a_route_asks_for_both(headers: dict[str, str], status: int) -> None:
    hooks = port(event(), **TOKENS, server_username="ann", server_password="pass")
    assert hooks.ask("POST", "/hook", "1", **headers).status_code == status


# The example of https://docs.slack.dev/authentication/verifying-requests-from-slack
SLACK_BODY = (
    b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
    b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
    b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
    b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
)
SLACK = (
    SignatureScheme.SLACK,
    "8f742231b10e8888abcd99yyyzzz85a5",
    1531420618,
    SLACK_BODY,
    {
        "x-slack-request-timestamp": "1531420618",
        "x-slack-signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
    },
)
# github.com/stripe/stripe-dotnet, src/StripeTests/Services/Events/EventUtilityTest.cs and event_test_signature.json
STRIPE_EVENT = {
    "id": "evt_123", "object": "event", "account": "acct_123", "api_version": "2017-05-25", "created": 1533204620,
    "data": {
        "object": {
            "id": "cus_123", "object": "customer", "created": 123456789, "email": "test@stripe.com", "livemode": False,
            "metadata": {},
        }
    },
    "livemode": False, "pending_webhooks": 1,
    "request": {"id": "req_123", "idempotency_key": "idempotency-key-123"}, "type": "customer.created",
}  # fmt: skip
STRIPE = (
    SignatureScheme.STRIPE,
    "webhook_secret",
    1533204620,
    json.dumps(STRIPE_EVENT, indent=2).encode() + b"\n",
    {
        "stripe-signature": "t=1533204620,v1=2220f87ef101a04665f11cdf770523143f875572008577fa0f20882ddb9cc3c7,"
        "v0=63f3a72374a733066c4be69ed7f8e5ac85c22c9f0a6a612ab9a025a9e4ee7eef"
    },
)
# github.com/standard-webhooks/standard-webhooks, the libraries' tests ("sign function works")
STANDARD = (
    SignatureScheme.STANDARD_WEBHOOKS,
    "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    1614265330,
    b'{"test": 2432232314}',
    {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    },
)


def fault_of(scheme: SignatureScheme, secret: str, now: float, body: bytes, headers: Mapping[str, str]) -> str:
    """Return the hint of a refusal, "" for a request that is verified."""
    try:
        verifier_of(Signature(secret, scheme=scheme))(headers, body, now)
    except RequestRefusedError as refused:
        assert refused.refusal.code == "invalid_signature"
        return refused.refusal.hint
    return ""


@pytest.mark.parametrize(
    ("scheme", "secret", "time", "body", "headers"),
    [pytest.param(*vector, id=vector[0]) for vector in (SLACK, STRIPE, STANDARD)],
)
def test_the_published_vector_of_a_scheme_is_verified_and_nothing_else(
    scheme: SignatureScheme, secret: str, time: int, body: bytes, headers: dict[str, str]
) -> None:
    assert not fault_of(scheme, secret, time, body, headers)
    assert not fault_of(scheme, secret, time + TOLERANCE_SECONDS, body, headers)
    for wrong in (time + TOLERANCE_SECONDS + 1, time - TOLERANCE_SECONDS - 1):
        assert "clocks" in fault_of(scheme, secret, wrong, body, headers)
    assert "SIGNATURE_SCHEME" in fault_of(scheme, secret, time, body + b" ", headers)
    assert fault_of(scheme, secret[:-2] + "AA", time, body, headers)
    for name in headers:
        others = {key: text for key, text in headers.items() if key != name}
        assert fault_of(scheme, secret, time, body, others)
        for value in ("", "\u00e9" * 64, *([headers[name][:-1] + "9"] if "signature" not in name else [])):
            assert fault_of(scheme, secret, time, body, {**headers, name: value})


@pytest.mark.parametrize(
    ("vector", "name", "value"),
    [
        (STRIPE, "stripe-signature", STRIPE[4]["stripe-signature"].replace(",v1=", ",v1=00ff,v1=")),
        (STANDARD, "webhook-signature", "v1,AAAA v1a,x " + STANDARD[4]["webhook-signature"]),
        (STANDARD, "webhook-signature", "v1,AAAA,v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
    ],
)
def test_any_of_several_signatures_counts_while_a_secret_is_rotated(
    vector: tuple[SignatureScheme, str, int, bytes, dict[str, str]], name: str, value: str
) -> None:
    scheme, secret, time, body, headers = vector
    assert not fault_of(scheme, secret, time, body, {**headers, name: value})

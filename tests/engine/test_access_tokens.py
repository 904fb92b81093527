"""Which access token a route has, without a thread, a clock or a server."""

import json

import pytest

from amqtt_rest_bridge.engine.requests import has_own_authorization
from amqtt_rest_bridge.engine.stages.oauth2 import AccessTokens, authorized
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.lot.model import HttpRequest, HttpResponse, Method, RestApiConfig

CONFIG = RestApiConfig(
    oauth2_token_url="http://issuer.test/token", oauth2_client_id="id", oauth2_client_secret="hush", oauth2_scope="all"
)


def answer(status: int = 200, **members: object) -> HttpResponse:
    return HttpResponse(status, "", (), json.dumps(members).encode(), 0.0)


@pytest.mark.parametrize(
    ("seconds", "good_until"),
    [
        pytest.param(3600, 100.0 + 3570, id="half a minute before it expires"),
        pytest.param(10, 100.0 + 9, id="after nine tenths of a short life"),
        pytest.param("60", 100.0 + 54, id="seconds as text"),
    ],
)
def test_a_token_is_renewed_before_it_expires(seconds: object, good_until: float) -> None:
    tokens = AccessTokens(CONFIG)
    assert tokens.current(0.0) is None
    assert tokens.keep_token(answer(access_token="t", expires_in=seconds), 100.0, in_body=False) == "t"
    assert tokens.current(good_until - 0.001) == "t"
    assert tokens.current(good_until) is None


@pytest.mark.parametrize("seconds", [None, True, "soon", float("nan")])
def test_a_token_without_a_usable_life_is_good_until_the_first_401(seconds: object) -> None:
    tokens = AccessTokens(CONFIG)
    tokens.keep_token(answer(access_token="t", expires_in=seconds), 0.0, in_body=False)
    assert tokens.current(1e9) == "t"
    tokens.forget_token("another one")
    assert tokens.current(1e9) == "t"
    tokens.forget_token("t")
    assert tokens.current(0.0) is None
    assert list(tokens.issued) == ["t"]  # it may be on its way in a request, so it stays masked


@pytest.mark.parametrize(("status", "wants"), [(200, False), (400, True), (401, True), (403, False), (500, False)])
def test_credentials_go_as_basic_first_and_into_the_form_where_that_is_refused(status: int, wants: bool) -> None:
    tokens = AccessTokens(CONFIG)
    basic = tokens.request(in_body=tokens.in_body)
    assert ("Authorization", "Basic aWQ6aHVzaA==") in basic.headers
    assert basic.body == b"grant_type=client_credentials&scope=all"
    assert tokens.may_want_form(answer(status)) is wants
    form = tokens.request(in_body=True)
    assert not has_own_authorization(form)
    assert form.body == b"grant_type=client_credentials&scope=all&client_id=id&client_secret=hush"
    tokens.keep_token(answer(access_token="t"), 0.0, in_body=True)
    assert tokens.in_body
    assert not tokens.may_want_form(answer(status))


@pytest.mark.parametrize(
    ("response", "unsent"),
    [
        pytest.param(answer(401, error="invalid_client"), False, id="refused"),
        pytest.param(answer(429), True, id="too many"),
        pytest.param(answer(503), True, id="away"),
        pytest.param(answer(), False, id="no token"),
        pytest.param(answer(access_token="a b"), False, id="not a token"),
        pytest.param(answer(access_token="t", token_type="mac"), False, id="another kind"),
    ],
)
def test_an_answer_without_a_token_fails_and_keeps_the_one_before(response: HttpResponse, unsent: bool) -> None:
    tokens = AccessTokens(CONFIG)
    tokens.keep_token(answer(access_token="t"), 0.0, in_body=False)
    with pytest.raises(CallError) as failure:
        tokens.keep_token(response, 1.0, in_body=False)
    assert failure.value.unsent is unsent
    assert tokens.current(2.0) == "t"


def test_a_request_gets_the_token_unless_the_event_has_credentials_of_its_own() -> None:
    request = HttpRequest(Method.GET, "http://host.test/", (("Host", "host.test"),), None)
    assert not has_own_authorization(request)
    assert authorized(request, "t").headers == (*request.headers, ("Authorization", "Bearer t"))
    assert has_own_authorization(authorized(request, "t"))

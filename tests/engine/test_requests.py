"""Client mode: the request that a message becomes, header by header."""

import base64
import hashlib
import hmac
from dataclasses import replace
from importlib.metadata import PackageNotFoundError

import pytest
from msgspec import structs

from amqtt_rest_bridge.engine.event import Call
from amqtt_rest_bridge.engine.stages import prepare
from amqtt_rest_bridge.errors import CallError, ConfigurationError, FailureCode
from amqtt_rest_bridge.lot.model import ClientEvent, HttpRequest, Message, Method, RestApiConfig, Route, Signature
from amqtt_rest_bridge.lot.placeholders.kinds import Mode
from amqtt_rest_bridge.lot.placeholders.text import Place, PlaceholderText, parse
from tests.engine.host import host_of

MESSAGE = Message("home/kitchen/temp", b'{"v": 21.50, "id": "a/b", "bad": "x\\r\\ny", "dots": ".."}', 1_767_225_600.5)
CONFIG = RestApiConfig(base_address="http://host.test:8000/api", enable_client=True)


def text(source: str, place: Place = Place.ENDPOINT) -> PlaceholderText:
    return parse(source, place, Mode.CLIENT)


def event(
    method: Method = Method.POST, endpoint: str = "/things", body: str | None = None,
    headers: tuple[tuple[str, str], ...] = (), destination: str | None = None, place: Place = Place.JSON,
    signature: Signature | None = None,
) -> ClientEvent:  # fmt: skip
    return ClientEvent(
        "event", "home/#", method, text(endpoint), None if body is None else text(body, place),
        tuple((name, text(value, Place.HEADER)) for name, value in headers),
        None if destination is None else text(destination, Place.TOPIC), signature=signature,
    )  # fmt: skip


def build(
    made: ClientEvent, config: RestApiConfig = CONFIG, message: Message = MESSAGE, *, key: str | None = None
) -> HttpRequest:
    """Return the request of a message; raise the failure of one that cannot be built."""
    prepared = prepare(Route("route", config), made, host_of(max_body_bytes=1_000))
    call = Call(1, lambda _: None, prepared, message, len(message.payload), key=key)
    verdict = prepared.build(call)
    if verdict is not None and verdict.failure is not None:
        raise verdict.failure
    assert call.request is not None
    return call.request


def values(request: HttpRequest, name: str) -> list[str]:
    return [value for key, value in request.headers if key.lower() == name.lower()]


@pytest.mark.parametrize(
    ("base", "endpoint", "url"),
    [
        ("http://host.test", "/a/b", "http://host.test/a/b"),
        ("http://host.test", "a/b", "http://host.test/a/b"),
        ("http://host.test/", "//a", "http://host.test/a"),
        ("http://host.test/base", "/a", "http://host.test/base/a"),
        ("http://host.test/base", "", "http://host.test/base/"),
        ("http://host.test", "?q=1", "http://host.test/?q=1"),
        ("http://host.test:80", "/a", "http://host.test/a"),
        ("https://host.test:80", "/a", "https://host.test:80/a"),
        ("HTTP://HOST.test", "/a", "http://host.test/a"),
        ("http://[FE80::1%eth0]:8080", "/a", "http://[fe80::1]:8080/a"),
        ("http://käse.test/bücher", "/ä b", "http://xn--kse-qla.test/b%C3%BCcher/%C3%A4%20b"),
        ("http://host.test", "/a/../b%2Fc/{braces}?x=[1]", "http://host.test/a/../b%2Fc/{braces}?x=[1]"),
        ("http://host.test", "/a#fragment", "http://host.test/a"),
        ("http://host.test", "/{value.json.id}?v={value.json.v}", "http://host.test/a%2Fb?v=21.50"),
        ("http://host.test", "{topic}/{topic.2}", "http://host.test/home/kitchen/temp/kitchen"),
    ],
)
def test_url_is_base_address_and_endpoint_with_one_slash_between(base: str, endpoint: str, url: str) -> None:
    assert build(event(endpoint=endpoint), RestApiConfig(base_address=base)).url == url


@pytest.mark.parametrize(
    ("endpoint", "topic", "payload", "path"),
    [
        pytest.param("{topic}", "/home", b"", "/home", id="leading slashes do not double"),
        pytest.param("/{payload}/b", "home", b"", "//b", id="an empty value takes no segment away"),
        pytest.param("{payload}/b", "home", b"", "//b", id="nor the first one"),
    ],
)
def test_a_value_cannot_add_or_remove_a_slash(endpoint: str, topic: str, payload: bytes, path: str) -> None:
    url = build(event(endpoint=endpoint), message=Message(topic, payload, 0.0)).url
    assert url == f"http://host.test:8000/api{path}"


def test_headers_are_complete_and_in_order() -> None:
    made = event(body='{"v": {value.json.v}}', headers=(("X-B", "1"), ("X-A", "{topic.2}"), ("X-B", "2")))
    call = build(made, replace(CONFIG, username="user", password="pass"))
    names = [name for name, _ in call.headers]
    assert names[:3] == ["Host", "User-Agent", "Accept-Encoding"]
    assert call.headers[3:6] == (("X-B", "1"), ("X-A", "kitchen"), ("X-B", "2"))
    assert names[6:] == ["Content-Type", "Authorization", "Content-Length"]
    assert values(call, "Host") == ["host.test:8000"]
    assert values(call, "User-Agent")[0].startswith("amqtt-rest-bridge/")
    assert values(call, "Accept-Encoding") == ["gzip, deflate"]
    assert values(call, "Content-Type") == ["application/json"]
    assert values(call, "Authorization") == ["Basic " + base64.b64encode(b"user:pass").decode()]
    assert call.body == b'{"v": 21.50}'
    assert values(call, "Content-Length") == ["12"]


@pytest.mark.parametrize("name", ["host", "USER-AGENT", "Accept-Encoding", "content-type", "authorization"])
def test_a_header_of_the_event_replaces_the_bridges_own(name: str) -> None:
    made = event(body="x", headers=((name, "mine"),), place=Place.TEXT)
    call = build(made, replace(CONFIG, username="user", password="pass"))
    assert values(call, name) == ["mine"]
    assert (name, "mine") in call.headers


@pytest.mark.parametrize("name", ["Content-Length", "transfer-encoding"])
@pytest.mark.parametrize("value", ["5", "{topic.1}"])
def test_framing_is_the_bridges_own(name: str, value: str) -> None:
    call = build(event(body="abc", headers=((name, value),), place=Place.TEXT))
    assert values(call, "Content-Length") == ["3"]
    assert not values(call, "Transfer-Encoding")


@pytest.mark.parametrize(
    ("method", "body", "length"),
    [
        (Method.GET, None, []),
        (Method.DELETE, None, []),
        (Method.POST, None, ["0"]),
        (Method.PUT, None, ["0"]),
        (Method.PATCH, None, ["0"]),
        (Method.GET, "x", ["1"]),
        (Method.DELETE, "x", ["1"]),
        (Method.POST, "", ["0"]),
    ],
)
def test_content_length_says_what_is_sent(method: Method, body: str | None, length: list[str]) -> None:
    call = build(event(method, body=body, place=Place.TEXT))
    assert values(call, "Content-Length") == length
    assert values(call, "Content-Type") == (["application/json"] if body is not None else [])
    assert call.body == (None if body is None else body.encode())


def test_payload_as_body_stays_byte_for_byte_under_the_type_of_the_route() -> None:
    message = structs.replace(MESSAGE, payload=b"\x00\xff\xfe")
    call = build(event(body="{payload}"), replace(CONFIG, default_content_type="text/plain"), message)
    assert (call.body, values(call, "Content-Type")) == (b"\x00\xff\xfe", ["text/plain"])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, []),
        ({"username": "u"}, []),
        ({"password": "p"}, []),
        ({"username": "u", "password": ""}, ["Basic dTo="]),
        ({"username": "ü", "password": "ß"}, ["Basic " + base64.b64encode("ü:ß".encode()).decode()]),
        ({"authorization": "Bearer t"}, ["Bearer t"]),
        ({"authorization": "Bearer t", "username": "u", "password": "p"}, ["Bearer t"]),
    ],
)
def test_authorization_is_the_routes_own(settings: dict[str, str], expected: list[str]) -> None:
    config = replace(CONFIG, **settings)  # type: ignore[arg-type]
    assert values(build(event(), config), "Authorization") == expected


@pytest.mark.parametrize(
    ("settings", "what"),
    [({"username": "a:b", "password": "p"}, "colon"), ({"base_address": None}, "BASE_ADDRESS")],
    ids=["USERNAME", "BASE_ADDRESS"],
)
def test_what_cannot_be_used_is_refused_at_load(settings: dict[str, str | None], what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        build(event(), replace(CONFIG, **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "header", "signed"),
    [("{payload}", "X-Sign", MESSAGE.payload), (None, "X-Hub-Signature-256", b"")],
    ids=["of the body", "of no body"],
)
def test_signature_is_the_hmac_of_what_is_sent(body: str | None, header: str, signed: bytes) -> None:
    call = build(event(body=body, signature=Signature("key", header)))
    assert values(call, header) == ["sha256=" + hmac.new(b"key", signed, hashlib.sha256).hexdigest()]


def test_idempotency_key_is_sent_when_there_is_one() -> None:
    assert values(build(event(), key="k1"), "Idempotency-Key") == ["k1"]
    assert values(build(event()), "Idempotency-Key") == []
    assert values(build(event(headers=(("idempotency-key", "mine"),)), key="k1"), "Idempotency-Key") == ["mine"]


@pytest.mark.parametrize(
    ("made", "code"),
    [
        pytest.param(event(endpoint="/{value.json.none}"), FailureCode.PLACEHOLDER_UNRESOLVED, id="missing field"),
        pytest.param(event(endpoint="/{value.json.dots}/x"), FailureCode.INVALID_VALUE, id="dot segment"),
        pytest.param(event(headers=(("X", "{value.json.bad}"),)), FailureCode.INVALID_VALUE, id="line break in header"),
        pytest.param(event(destination="out/{value.json.id}"), FailureCode.INVALID_VALUE, id="slash in topic"),
        pytest.param(event(destination="x" * 65_530 + "{topic}"), FailureCode.INVALID_VALUE, id="topic too long"),
        pytest.param(event(body="{topic.9}"), FailureCode.PLACEHOLDER_UNRESOLVED, id="missing level"),
        pytest.param(event(body="x" * 1_001, place=Place.TEXT), FailureCode.PAYLOAD_TOO_LARGE, id="one byte too many"),
    ],
)
def test_request_that_cannot_be_built_fails_unsent(made: ClientEvent, code: FailureCode) -> None:
    with pytest.raises(CallError) as caught:
        build(made)
    assert (caught.value.code, caught.value.unsent) == (code, True)
    assert caught.value.hint


def test_body_of_exactly_the_limit_is_sent() -> None:
    assert build(event(body="x" * 1_000, place=Place.TEXT)).body == b"x" * 1_000


@pytest.mark.parametrize(
    ("header", "place", "payload", "body"),
    [
        pytest.param("{payload}", Place.TEXT, "text/plain", '"text/plain"', id="plain as read"),
        pytest.param("{payload}", Place.TEXT, "a/b; x=application/json", '"a/b; x=application/json"', id="a parameter"),
        pytest.param("{payload}", Place.TEXT, "application/json", None, id="json"),
        pytest.param("{payload}", Place.TEXT, "Text/JSON; charset=utf-8", None, id="json of another name"),
        pytest.param("{payload}", Place.TEXT, "application/x-www-form-urlencoded", None, id="form"),
        pytest.param("text/{payload}+json", Place.JSON, 'a"', '"a\\""', id="json of some kind"),
        pytest.param("text/{payload}+json", Place.JSON, "plain;", None, id="its ending cut off"),
    ],
)
def test_body_is_sent_only_under_a_type_for_which_its_values_are_escaped(
    header: str, place: Place, payload: str, body: str | None
) -> None:
    made = event(body='"{payload}"', headers=(("content-TYPE", header),), place=place)
    message = structs.replace(MESSAGE, payload=payload.encode())
    if body is not None:
        assert build(made, message=message).body == body.encode()
        return
    with pytest.raises(CallError, match="would have to be escaped in another way") as caught:
        build(made, message=message)
    assert caught.value.code is FailureCode.INVALID_VALUE


def test_version_is_unknown_where_the_project_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    assert values(build(event()), "User-Agent") == ["amqtt-rest-bridge/unknown"]

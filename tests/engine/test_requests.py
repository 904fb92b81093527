"""Client mode: the request that a message becomes, header by header."""

import base64
import hashlib
import hmac
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from typing import NamedTuple

import pytest
from msgspec import structs

from amqtt_rest_bridge.engine.event import Call, PreparedEvent
from amqtt_rest_bridge.engine.stages import prepare
from amqtt_rest_bridge.errors import CallError, ConfigurationError, FailureCode
from amqtt_rest_bridge.lot.model import (
    ClientEvent,
    HttpRequest,
    Message,
    Method,
    RestApiConfig,
    Route,
    Signature,
)
from amqtt_rest_bridge.lot.placeholders.kinds import Mode
from amqtt_rest_bridge.lot.placeholders.text import Place, PlaceholderText, parse
from tests.engine.host import host_of


class Built(NamedTuple):
    request: HttpRequest
    destination: str | None


MESSAGE = Message("home/kitchen/temp", b'{"v": 21.50, "id": "a/b", "bad": "x\\r\\ny", "dots": ".."}', 1_767_225_600.5)


def text(source: str, place: Place = Place.ENDPOINT) -> PlaceholderText:
    return parse(source, place, Mode.CLIENT)


def event(
    method: Method = Method.POST,
    endpoint: str = "/things",
    body: str | None = None,
    headers: tuple[tuple[str, str], ...] = (),
    destination: str | None = None,
    place: Place = Place.JSON,
) -> ClientEvent:
    return ClientEvent(
        "event",
        "home/#",
        method,
        text(endpoint),
        None if body is None else text(body, place),
        tuple((name, text(value, Place.HEADER)) for name, value in headers),
        None if destination is None else text(destination, Place.TOPIC),
    )


CONFIG = RestApiConfig(base_address="http://host.test:8000/api", enable_client=True)


def build(
    made: ClientEvent,
    config: RestApiConfig = CONFIG,
    message: Message = MESSAGE,
    *,
    key: str | None = None,
    max_body_bytes: int = 1_000,
) -> Built:
    prepared = prepare(Route("route", config), made, host_of(max_body_bytes))
    return begin(prepared, message, key)


def begin(prepared: PreparedEvent, message: Message, key: str | None = None) -> Built:
    call = Call(1, lambda _: None, prepared, message, len(message.payload), key=key)
    verdict = prepared.build(call)
    if verdict is not None and verdict.failure is not None:
        raise verdict.failure
    assert call.request is not None
    return Built(call.request, call.destination)


def values(call: Built, name: str) -> list[str]:
    return [value for key, value in call.request.headers if key.lower() == name.lower()]


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
    assert build(event(endpoint=endpoint), RestApiConfig(base_address=base)).request.url == url


def test_leading_slashes_of_a_topic_do_not_double() -> None:
    message = structs.replace(MESSAGE, topic="/home")
    assert build(event(endpoint="{topic}"), message=message).request.url == "http://host.test:8000/api/home"


@pytest.mark.parametrize("endpoint", ["/{payload}/b", "{payload}/b"])
def test_an_empty_value_takes_no_segment_away(endpoint: str) -> None:
    message = structs.replace(MESSAGE, payload=b"")
    assert build(event(endpoint=endpoint), message=message).request.url == "http://host.test:8000/api//b"


def test_headers_are_complete_and_in_order() -> None:
    made = event(body='{"v": {value.json.v}}', headers=(("X-B", "1"), ("X-A", "{topic.2}"), ("X-B", "2")))
    call = build(made, replace(CONFIG, username="user", password="pass"))
    names = [name for name, _ in call.request.headers]
    assert names == [
        "Host",
        "User-Agent",
        "Accept-Encoding",
        "X-B",
        "X-A",
        "X-B",
        "Content-Type",
        "Authorization",
        "Content-Length",
    ]
    assert call.request.headers[3:6] == (("X-B", "1"), ("X-A", "kitchen"), ("X-B", "2"))
    assert values(call, "Host") == ["host.test:8000"]
    assert values(call, "User-Agent")[0].startswith("amqtt-rest-bridge/")
    assert values(call, "Accept-Encoding") == ["gzip, deflate"]
    assert values(call, "Content-Type") == ["application/json"]
    assert values(call, "Authorization") == ["Basic " + base64.b64encode(b"user:pass").decode()]
    assert call.request.body == b'{"v": 21.50}'
    assert values(call, "Content-Length") == ["12"]


@pytest.mark.parametrize("name", ["host", "USER-AGENT", "Accept-Encoding", "content-type", "authorization"])
def test_a_header_of_the_event_replaces_the_bridges_own(name: str) -> None:
    made = event(body="x", headers=((name, "mine"),), place=Place.TEXT)
    call = build(made, replace(CONFIG, username="user", password="pass"))
    assert values(call, name) == ["mine"]
    assert (name, "mine") in call.request.headers


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
    assert call.request.body == (None if body is None else body.encode())


def test_payload_as_body_stays_byte_for_byte() -> None:
    message = structs.replace(MESSAGE, payload=b"\x00\xff\xfe")
    assert build(event(body="{payload}"), message=message).request.body == b"\x00\xff\xfe"


def test_default_content_type_is_the_routes() -> None:
    call = build(event(body="x", place=Place.TEXT), replace(CONFIG, default_content_type="text/plain"))
    assert values(call, "Content-Type") == ["text/plain"]


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


def test_username_with_a_colon_is_refused_at_load() -> None:
    with pytest.raises(ConfigurationError, match="colon"):
        build(event(), replace(CONFIG, username="a:b", password="p"))


def test_signature_is_the_hmac_of_the_body() -> None:
    made = replace(event(body="{payload}"), signature=Signature("key", "X-Sign"))
    expected = "sha256=" + hmac.new(b"key", MESSAGE.payload, hashlib.sha256).hexdigest()
    assert values(build(made), "X-Sign") == [expected]


def test_signature_of_no_body_is_that_of_an_empty_one() -> None:
    made = replace(event(), signature=Signature("key"))
    expected = "sha256=" + hmac.new(b"key", b"", hashlib.sha256).hexdigest()
    assert values(build(made), "X-Hub-Signature-256") == [expected]


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
        pytest.param(event(body="{topic.9}"), FailureCode.PLACEHOLDER_UNRESOLVED, id="missing level"),
        pytest.param(event(body="x" * 1_001, place=Place.TEXT), FailureCode.PAYLOAD_TOO_LARGE, id="one byte too many"),
    ],
)
def test_request_that_cannot_be_built_fails_unsent(made: ClientEvent, code: FailureCode) -> None:
    with pytest.raises(CallError) as caught:
        build(made)
    assert (caught.value.code, caught.value.unsent) == (code, True)
    assert caught.value.hint


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
        assert build(made, message=message).request.body == body.encode()
        return
    with pytest.raises(CallError, match="would have to be escaped in another way") as caught:
        build(made, message=message)
    assert caught.value.code is FailureCode.INVALID_VALUE


def test_body_of_exactly_the_limit_is_sent() -> None:
    assert build(event(body="x" * 1_000, place=Place.TEXT)).request.body == b"x" * 1_000


def test_filled_topic_that_mqtt_cannot_carry_fails() -> None:
    message = structs.replace(MESSAGE, topic="x" * 65_530)
    with pytest.raises(CallError) as caught:
        build(event(destination="answers/{topic}"), message=message)
    assert caught.value.code is FailureCode.INVALID_VALUE


def test_destination_is_filled() -> None:
    assert build(event(destination="answers/{topic.2}")).destination == "answers/kitchen"
    assert build(event(destination="answers")).destination == "answers"
    assert build(event()).destination is None


def test_prepared_event_gives_each_message_its_own_request() -> None:
    made = event(body="{payload}", headers=(("X", "1"),))
    prepared = prepare(Route("route", CONFIG), made, host_of(99))
    messages = [structs.replace(MESSAGE, payload=b"%d" % number) for number in range(3)]
    assert [begin(prepared, message).request.body for message in messages] == [b"0", b"1", b"2"]


def test_base_address_that_cannot_be_used_is_refused_at_load() -> None:
    with pytest.raises(ConfigurationError, match="BASE_ADDRESS"):
        build(event(), replace(CONFIG, base_address=None))


def test_version_is_unknown_where_the_project_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    assert values(build(event()), "User-Agent") == ["amqtt-rest-bridge/unknown"]

"""Client mode: what responses and failures become, which calls are tried again, and when."""

import json
from datetime import UTC, datetime
from email.utils import format_datetime, formatdate

import pytest

from amqtt_rest_bridge.engine.failures import failure_explained, failure_of, failure_publication
from amqtt_rest_bridge.engine.requests import result_of
from amqtt_rest_bridge.engine.stages import retries
from amqtt_rest_bridge.errors import CallError, FailureCode
from amqtt_rest_bridge.lot.masking import Masker
from amqtt_rest_bridge.lot.model import (
    ClientEvent,
    HttpRequest,
    HttpResponse,
    Message,
    Method,
    Publication,
    ResponseFormat,
)
from amqtt_rest_bridge.lot.placeholders.kinds import Mode
from amqtt_rest_bridge.lot.placeholders.text import Place, parse

RUN = "a run"
NAME = "route", "event"
MESSAGE = Message("home/kitchen", b"payload", 1_767_225_600.25)
REQUEST = HttpRequest(Method.POST, "http://host.test/path?key=secret")
NOW = 1_767_225_600.0


def event(
    destination: str | None = None, error_topic: str | None = None,
    response_format: ResponseFormat = ResponseFormat.BODY, retain: bool = False,
) -> ClientEvent:  # fmt: skip
    return ClientEvent(
        "event", "home/#", Method.POST, parse("/", Place.ENDPOINT, Mode.CLIENT),
        destination_topic=None if destination is None else parse(destination, Place.TOPIC, Mode.CLIENT),
        error_topic=error_topic, response_format=response_format, retain=retain,
    )  # fmt: skip


def response(status: int = 200, body: bytes = b"", *headers: tuple[str, str]) -> HttpResponse:
    return HttpResponse(status, "Reason", headers, body, 0.01234)


FAILED = CallError(FailureCode.TIMEOUT, "too slow", "wait")


def published(made: Publication | None) -> Publication:
    assert made is not None
    return made


@pytest.mark.parametrize("body", [b"", b"text", b"\x00\xff"])
@pytest.mark.parametrize("retain", [False, True])
def test_result_is_the_body_byte_for_byte(body: bytes, retain: bool) -> None:
    made = result_of(event("out", retain=retain), MESSAGE, "out", response(200, body))
    assert made == Publication("out", body, retain)
    assert result_of(event(), MESSAGE, None, response(200, body)) is None


@pytest.mark.parametrize(
    ("body", "encoding", "text"), [("grüß".encode(), "utf-8", "grüß"), (b"\xff\x00", "base64", "/wA=")]
)
def test_envelope_holds_all_of_the_response(body: bytes, encoding: str, text: str) -> None:
    answer = response(201, body, ("X-B", "1"), ("Set-Cookie", "a"), ("x-b", "2"))
    made = published(result_of(event("out", response_format=ResponseFormat.ENVELOPE), MESSAGE, "out", answer))
    assert made.payload.decode() == (
        f'{{"status":201,"reason":"Reason","headers":{{"x-b":"1, 2","set-cookie":"a"}},"body":"{text}",'
        f'"body_encoding":"{encoding}","elapsed_ms":12.3}}'
    )


def test_failure_payload_says_what_where_and_for_which_message_and_is_not_retained() -> None:
    made = published(failure_publication(RUN, NAME, event("out", retain=True), MESSAGE, FAILED))
    assert (made.topic, made.retain) == ("out", False)
    assert made.payload == (
        b'{"error":{"code":"timeout","message":"too slow","hint":"wait"},"id":"a run","route":"route","event":"event",'
        b'"source_topic":"home/kitchen","timestamp":"2026-01-01T00:00:00.250Z"}'
    )


@pytest.mark.parametrize(
    ("body", "text", "encoding"), [(b"why", "why", "utf-8"), (b"", "", "utf-8"), (b"\xff", "/w==", "base64")]
)
def test_failure_payload_holds_the_response_when_there_was_one(body: bytes, text: str, encoding: str) -> None:
    made = published(failure_publication(RUN, NAME, event("out"), MESSAGE, FAILED, response(500, body)))
    payload = json.loads(made.payload)
    assert (payload["status"], payload["body"], payload["body_encoding"]) == (500, text, encoding)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        pytest.param(event(), None, id="no topic"),
        pytest.param(event("out/{topic.2}"), "out/kitchen", id="destination"),
        pytest.param(event("out/{topic.2}", "errors"), "errors", id="error topic wins"),
        pytest.param(event(None, "errors"), "errors", id="error topic alone"),
        pytest.param(event("out/{value.json.x}"), None, id="destination that cannot be filled"),
        pytest.param(event("out/{value.json.x}", "errors"), "errors", id="error topic needs no filling"),
    ],
)
def test_failures_go_to_error_topic_or_destination(made: ClientEvent, expected: str | None) -> None:
    failure = failure_publication(RUN, NAME, made, MESSAGE, FAILED)
    assert (None if failure is None else failure.topic) == expected


# Which responses are failures.


@pytest.mark.parametrize("status", [200, 204, 300, 304, 302, 399])
def test_status_below_400_without_location_is_not_a_failure(status: int) -> None:
    assert failure_of(REQUEST, response(status)) is None


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 407, 413, 415, 418, 421, 429, 500, 503, 599])
def test_status_from_400_is_http_status_with_a_hint(status: int) -> None:
    failure = failure_of(REQUEST, response(status, b"secret of the server"))
    assert failure is not None
    assert failure.code is FailureCode.HTTP_STATUS
    assert str(status) in failure.message
    assert failure.hint
    assert "secret" not in failure.message + failure.hint


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("http://other.test/?key=secret", "http://other.test"),
        ("http://host.test:81/", "http://host.test:81"),
        ("http://host.tester/", "http://host.tester"),
        ("javascript:1", "cannot be used"),
        ("http://[::zz]/", "cannot be used"),
    ],
)
def test_redirect_elsewhere_names_where_without_path_and_query(location: str, said: str) -> None:
    request = HttpRequest(Method.GET, REQUEST.url)
    failure = failure_of(request, response(302, b"", ("location", location)))
    assert failure is not None
    assert failure.code is FailureCode.REDIRECT_REFUSED
    assert said in failure.message
    assert "same host and port" in failure.message
    assert "secret" not in failure.message


# Retries.


def lost(code: FailureCode, unsent: bool = False) -> CallError:
    return CallError(code, "", "", unsent=unsent)


GET, PUT, DELETE, POST, PATCH = Method.GET, Method.PUT, Method.DELETE, Method.POST, Method.PATCH
ALL = {GET, PUT, DELETE, POST, PATCH}
IDEMPOTENT = {GET, PUT, DELETE}


@pytest.mark.parametrize(
    ("outcome", "retried", "retried_lossless"),
    [
        pytest.param(lost(FailureCode.CONNECTION_FAILED, True), ALL, ALL, id="never connected"),
        pytest.param(lost(FailureCode.TIMEOUT, True), ALL, ALL, id="timeout while connecting"),
        pytest.param(lost(FailureCode.TLS_FAILED, True), ALL, ALL, id="handshake cut off"),
        pytest.param(lost(FailureCode.TLS_FAILED), set(), ALL, id="certificate refused"),
        pytest.param(lost(FailureCode.CONNECTION_FAILED), IDEMPOTENT, ALL, id="connection broke"),
        pytest.param(lost(FailureCode.TIMEOUT), IDEMPOTENT, ALL, id="timeout"),
        pytest.param(lost(FailureCode.RESPONSE_TOO_LARGE), set(), set(), id="too large"),
        pytest.param(lost(FailureCode.REDIRECT_REFUSED), set(), set(), id="redirect"),
        pytest.param(lost(FailureCode.PLACEHOLDER_UNRESOLVED, True), set(), set(), id="placeholder"),
        pytest.param(lost(FailureCode.INVALID_VALUE, True), set(), set(), id="invalid value"),
        pytest.param(lost(FailureCode.PAYLOAD_TOO_LARGE, True), set(), set(), id="payload too large"),
        pytest.param(response(429), ALL, ALL, id="429"),
        pytest.param(response(503), ALL, ALL, id="503"),
        pytest.param(response(502), IDEMPOTENT, ALL, id="502"),
        pytest.param(response(504), IDEMPOTENT, ALL, id="504"),
        pytest.param(response(500), set(), ALL, id="500"),
        pytest.param(response(501), set(), ALL, id="501"),
        pytest.param(response(408), set(), set(), id="408"),
        pytest.param(response(404), set(), set(), id="404"),
        pytest.param(response(302), set(), set(), id="302"),
        pytest.param(response(200), set(), set(), id="200"),
    ],
)
def test_call_is_retried_only_where_it_helps_and_does_no_harm(
    outcome: CallError | HttpResponse, retried: set[Method], retried_lossless: set[Method]
) -> None:
    assert {m for m in Method if retries.is_retryable(m, outcome, lossless=False)} == retried
    assert {m for m in Method if retries.is_retryable(m, outcome, lossless=True)} == retried_lossless


@pytest.mark.parametrize(
    ("chance", "delays"),
    [
        pytest.param(0.0, [0.5, 1, 2, 4, 8, 16, 30, 30, 30], id="doubled up to 30 s"),
        pytest.param(0.5, [0.5625, 1.125, 2.25, 4.5, 9, 18, 30, 30, 30], id="jitter"),
        pytest.param(1.0, [0.625, 1.25, 2.5, 5, 10, 20, 30, 30, 30], id="up to a quarter more, and never over 30 s"),
    ],
)
def test_the_delay_before_each_attempt_is_the_backoff(chance: float, delays: list[float]) -> None:
    assert [retries.backoff(attempt, chance) for attempt in range(1, 10)] == delays
    assert retries.backoff(10_000, chance) == 30


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        (" 7 ", 7.0),
        ("3600", 3600.0),
        ("3601", 3600.0),
        ("9" * 30, 3600.0),
        (formatdate(NOW + 9, usegmt=True), 9.0),
        (formatdate(NOW - 9, usegmt=True), 0.0),
        (formatdate(NOW + 99_999, usegmt=True), 3600.0),
        ("Thu, 01 Jan 2026 00:00:05 -0000", 5.0),
        ("Thursday, 01-Jan-26 00:00:05 GMT", 5.0),
        ("Thu Jan  1 00:00:05 2026", 5.0),
        (format_datetime(datetime.fromtimestamp(NOW, UTC)), 0.0),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("Thu, 99 Jan 2026 00:00:05 GMT", None),
        ("Thu, 01 Jan 99999 00:00:05 GMT", None),
        ("Thu, 01 Jan 99999999999999999999 00:00:05 GMT", None),
        ("Thu, 01 Jan 2026 00:00:05 +99999999999999999", None),
        ("", None),
        ("٣", None),
    ],
)
def test_retry_after_is_read_as_seconds_or_date(value: str, seconds: float | None) -> None:
    assert retries.retry_after(response(503, b"", ("retry-after", value)), NOW) == seconds


@pytest.mark.parametrize(
    ("answer", "attempt", "seconds"),
    [
        (None, 1, 0.5),
        (response(503), 2, 1.0),
        (response(503, b"", ("Retry-After", "10")), 1, 10.0),
        (response(503, b"", ("Retry-After", "1")), 3, 2.0),
        (response(429, b"", ("Retry-After", "120")), 1, 120.0),
    ],
)
def test_delay_is_the_backoff_but_never_less_than_the_server_asks_for(
    answer: HttpResponse | None, attempt: int, seconds: float
) -> None:
    assert retries.delay(attempt, answer, now=NOW, chance=0.0) == seconds


@pytest.mark.parametrize(
    ("body", "said"),
    [
        pytest.param(b"unit is required", ": unit is required", id="text"),
        pytest.param(b'{"error": {"code": 7, "message": "unit is\\nrequired"}}', ": unit is required", id="nested"),
        pytest.param(b'{"error": "Bad Request", "message": ["unit is required"]}', ": unit is required", id="list"),
        pytest.param(b'{"title": "Invalid", "errors": {"unit": ["is required"]}}', ": is required", id="by field"),
        pytest.param(b'{"detail": [{"loc": ["unit"], "msg": "is required"}]}', ": is required", id="problem"),
        pytest.param(b'{"error": "key hush-hush-1 is wrong"}', ": key *** is wrong", id="secret"),
        pytest.param(b"x" * 195 + b" hush-hush-1", f": {'x' * 195} ***", id="secret at the cut"),
        pytest.param(b"x" * 300, f": {'x' * 197}...", id="long"),
        pytest.param(b'{"path": "/new", "status": 400}', "", id="JSON that says nothing"),
        pytest.param(b"<html><body>Oops</body></html>", "", id="page"),
        pytest.param(b"\xff\xfe", "", id="no text"),
        pytest.param(b"[" * 5000, f": {'[' * 197}...", id="hostile"),
        pytest.param(b"", "", id="nothing"),
    ],
)
def test_a_failure_ends_with_what_the_server_said(body: bytes, said: str) -> None:
    failure = CallError(FailureCode.HTTP_STATUS, "the server answered 400 Bad Request", "hint")
    explained = failure_explained(Masker(["hush-hush-1"]), failure, response(400, body))
    assert (explained.message, explained.hint) == (f"the server answered 400 Bad Request{said}", "hint")

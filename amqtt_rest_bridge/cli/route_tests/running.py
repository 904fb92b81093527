"""Runs one case of a test file by the code of the bridge, and compares what came of it with what the case expects.

Main thread; no network: the case says what the server answers.
"""

import base64
import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct

from amqtt_rest_bridge.bridge.server.signatures import sign
from amqtt_rest_bridge.bridge.trial import REQUEST_ID, RequestTrial, try_call, try_request
from amqtt_rest_bridge.calls.call import Step, Verdict
from amqtt_rest_bridge.cli.route_tests.cases import (
    CallerRequest,
    Case,
    ExpectedAnswer,
    ExpectedMessage,
    ExpectedRequest,
    Headers,
    Scalar,
    ServerResponse,
    SourceMessage,
    octets,
)
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.http_server import Request, Response
from amqtt_rest_bridge.model import (
    ClientEvent,
    HttpRequest,
    HttpResponse,
    Message,
    Publication,
    Route,
    ServerEvent,
)
from amqtt_rest_bridge.topics import filter_matches, schedule_topic

_KEY: Final = "00000000-0000-4000-8000-000000000001"  # Idempotency-Key of lossless routes


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that is not as expected: where, and both sides as text."""

    where: str
    expected: str
    actual: str


def run(case: Case, routes: Sequence[Route]) -> list[Difference]:
    """Return the differences between what a case expects and what happens."""
    return list(_run_request(case, routes) if case.message is None else _run_message(case, case.message, routes))


def triggered(case: Case, routes: Sequence[Route]) -> set[str]:
    """Return the names of the routes that a case is for."""
    if case.message is not None:
        return {route.name for route, _, _ in _triggered(case.message, routes)}
    event = _try(case, routes).event
    return set() if event is None else {event.route}


def _run_message(case: Case, given: SourceMessage, routes: Sequence[Route]) -> Iterator[Difference]:
    server = _Server(case.responses if case.response is None else [case.response])
    trials: list[Verdict] = []
    for route, event, topic in _triggered(given, routes):
        message = Message(topic, octets(given.payload, given.payload_base64), case.now)
        key = _KEY if route.is_lossless else None
        trials.append(try_call(route, event, message, server.send, key=key))
    if not trials:
        yield Difference("message", "an event that it triggers", f"no event listens on {given.topic or given.event}")
    publications = [trial.publication for trial in trials if trial.publication is not None]
    yield from _compare_lists("sends", case.sends, server.requests, _request_differs)
    yield from _compare_lists("publishes", case.publishes, publications, _publication_differs)
    skipped = any(trial.step is Step.SKIPPED for trial in trials)
    if case.skipped is not None and case.skipped != skipped:
        yield Difference("skipped", str(case.skipped).lower(), str(skipped).lower())


def _triggered(given: SourceMessage, routes: Sequence[Route]) -> Iterator[tuple[Route, ClientEvent, str]]:
    for route in routes:
        for event in route.client_events:
            if given.event == event.name:  # as its schedule runs it
                yield route, event, given.topic or schedule_topic(route.name, event.name)
            elif given.event is None and given.topic is not None and filter_matches(event.source_topic, given.topic):
                yield route, event, given.topic


def _run_request(case: Case, routes: Sequence[Route]) -> Iterator[Difference]:
    tried = _try(case, routes)
    if case.answers is not None:
        yield from _answer_differs(case.answers, tried.response)
    yield from _compare_lists("publishes", case.publishes, tried.publications, _publication_differs)


def _try(case: Case, routes: Sequence[Route]) -> RequestTrial:
    given = case.request or CallerRequest()
    body = octets(given.body, given.body_base64)
    headers = {name.lower(): str(text) for name, text in given.headers.items()}
    if given.signed:
        headers |= _signature_headers(routes, given.method, given.path, body, case.now)
    request = Request(REQUEST_ID, given.method, given.path, given.path.partition("?")[2], headers, body)
    latest = None if case.latest is None else octets(case.latest)
    reply = None if case.reply is None else octets(case.reply)
    return try_request(routes, request, now=case.now, latest=latest, reply=reply)


def _signature_headers(
    routes: Sequence[Route], method: str, path: str, body: bytes, now: float
) -> dict[str, str]:
    """Return the headers of a request that the one event with this method and a literal ENDPOINT verifies."""
    events: Iterator[ServerEvent] = (event for route in routes for event in route.server_events)
    for event in events:
        if event.signature is not None and event.method == method and event.endpoint == path.partition("?")[0]:
            return sign(event.signature, body, now)
    return {}


class _Server:
    """Answers requests with the responses of a case, in their order; 200 without a body when there is none left."""

    def __init__(self, responses: Sequence[ServerResponse]) -> None:
        self.requests: list[HttpRequest] = []
        self._responses = list(responses)

    def send(self, request: HttpRequest) -> HttpResponse:
        self.requests.append(request)
        given = self._responses.pop(0) if self._responses else ServerResponse()
        if given.error is not None:
            raise CallError(given.error, f"the test says {given.error}", "This is a test.")
        headers = tuple((name, str(text)) for name, text in given.headers.items())
        return HttpResponse(given.status, given.reason, headers, octets(given.body, given.body_base64), 0.0)


def _compare_lists(
    name: str, expected: Sequence[Any] | None, actual: Sequence[Any], compare: Any
) -> Iterator[Difference]:
    if expected is None:
        return
    for number in range(max(len(expected), len(actual))):
        where = f"{name}[{number}]"
        if number >= len(actual):
            yield Difference(where, _shown(octets(_written(expected[number]))), "(nothing)")
        elif number >= len(expected):
            yield Difference(where, "(nothing)", _described(actual[number]))
        else:
            yield from compare(where, expected[number], actual[number])


def _request_differs(where: str, expected: ExpectedRequest, actual: HttpRequest) -> Iterator[Difference]:
    yield from _text_differs(f"{where}.method", expected.method, actual.method.value)
    yield from _text_differs(f"{where}.url", expected.url, actual.url)
    yield from _headers_differ(where, expected.headers, actual.headers)
    yield from _octets_differ(f"{where}.body", expected.body, expected.body_base64, actual.body or b"")


def _publication_differs(where: str, expected: ExpectedMessage, actual: Publication) -> Iterator[Difference]:
    yield from _text_differs(f"{where}.topic", expected.topic, actual.topic)
    if expected.retain is not None:
        yield from _text_differs(f"{where}.retain", str(expected.retain).lower(), str(actual.retain).lower())
    if expected.failure is not None:
        code = _failure_code(actual.payload)
        yield from _text_differs(f"{where}.failure", expected.failure, code or _shown(actual.payload))
    yield from _octets_differ(f"{where}.payload", expected.payload, expected.payload_base64, actual.payload)


def _answer_differs(expected: ExpectedAnswer, actual: Response) -> Iterator[Difference]:
    yield from _text_differs("answers.status", expected.status, actual.status[:3])
    yield from _headers_differ("answers", expected.headers, actual.headers)
    yield from _octets_differ("answers.body", expected.body, expected.body_base64, actual.body)


def _headers_differ(where: str, expected: Headers, actual: Sequence[tuple[str, str]]) -> Iterator[Difference]:
    """Compare the headers that are named, and no others."""
    for name, text in expected.items():
        found = ", ".join([value for key, value in actual if key.lower() == name.lower()])
        yield from _text_differs(f"{where}.headers.{name}", text, found or "(missing)")


def _octets_differ(where: str, value: Any, base64: bytes | None, actual: bytes) -> Iterator[Difference]:
    """Compare a body or payload: as JSON where the test has it as such, else byte for byte."""
    if value is UNSET and base64 is None:
        return
    wanted = octets(value, base64)
    is_same = wanted == actual
    if base64 is None and not isinstance(value, str):
        with contextlib.suppress(ValueError):
            is_same = json.loads(wanted) == json.loads(actual)
    if not is_same:
        yield Difference(where, _shown(wanted), _shown(actual))


def _text_differs(where: str, expected: Scalar | None, actual: str) -> Iterator[Difference]:
    if expected is not None and str(expected) != actual:
        yield Difference(where, str(expected), actual)


def _written(expected: Struct) -> dict[str, Any]:
    """Return the members of an expectation that the test file has."""
    return {name: value for name, value in msgspec.structs.asdict(expected).items() if value not in (None, UNSET, {})}


def _failure_code(payload: bytes) -> str | None:
    try:
        return str(json.loads(payload)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return None


def _described(actual: HttpRequest | Publication) -> str:
    if isinstance(actual, HttpRequest):
        return f"{actual.method} {actual.url}\n{_shown(actual.body or b'')}"
    return f"{actual.topic}\n{_shown(actual.payload)}"


def _shown(data: bytes) -> str:
    with contextlib.suppress(ValueError):
        value = json.loads(data)
        return value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"base64: {base64.b64encode(data).decode()}"

"""Runs one case of a test file by the code of the bridge, and compares what came of it with what the case expects.

Main thread; no network: the case says what the server answers.
"""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from amqtt_rest_bridge.bridge.server.signatures import sign
from amqtt_rest_bridge.bridge.trial import REQUEST_ID, CallTrial, RequestTrial, try_call, try_request
from amqtt_rest_bridge.cli.route_tests.cases import Case, octets
from amqtt_rest_bridge.errors import CallError, FailureCode
from amqtt_rest_bridge.http_server import Request, Response
from amqtt_rest_bridge.model import (
    ClientEvent,
    HttpRequest,
    HttpResponse,
    Message,
    OverloadPolicy,
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


def _run_message(case: Case, given: Mapping[str, Any], routes: Sequence[Route]) -> Iterator[Difference]:
    server = _Server(case.responses)
    trials: list[CallTrial] = []
    for route, event, topic in _triggered(given, routes):
        message = Message(topic, octets(given, "payload"), case.now)
        key = _KEY if route.route_config.overload_policy is OverloadPolicy.LOSSLESS else None
        trials.append(try_call(route, event, message, server.send, key=key))
    if not trials:
        named = given.get("topic") or given.get("event")
        yield Difference("message", "an event that it triggers", f"no event listens on {named}")
    publications = [trial.publication for trial in trials if trial.publication is not None]
    yield from _compare_lists("sends", case.sends, server.requests, _request_differs)
    yield from _compare_lists("publishes", case.publishes, publications, _publication_differs)
    skipped = any(trial.is_skipped for trial in trials)
    if case.skipped is not None and case.skipped != skipped:
        yield Difference("skipped", str(case.skipped).lower(), str(skipped).lower())


def _triggered(given: Mapping[str, Any], routes: Sequence[Route]) -> Iterator[tuple[Route, ClientEvent, str]]:
    for route in routes:
        for event in route.client_events:
            scheduled = schedule_topic(route.name, event.name)
            if given.get("event") == event.name:  # as its schedule runs it
                yield route, event, str(given.get("topic", scheduled))
            elif "event" not in given and filter_matches(event.source_topic, str(given.get("topic"))):
                yield route, event, str(given["topic"])


def _run_request(case: Case, routes: Sequence[Route]) -> Iterator[Difference]:
    tried = _try(case, routes)
    if case.answers is not None:
        yield from _answer_differs(case.answers, tried.response)
    yield from _compare_lists("publishes", case.publishes, tried.publications, _publication_differs)


def _try(case: Case, routes: Sequence[Route]) -> RequestTrial:
    given = case.request or {}
    method, path = str(given.get("method", "POST")), str(given.get("path", "/"))
    body = octets(given, "body")
    headers = {str(name).lower(): str(text) for name, text in given.get("headers", {}).items()}
    if given.get("signed"):
        headers |= _signature_headers(routes, method, path, body, case.now)
    request = Request(REQUEST_ID, method, path, path.partition("?")[2], headers, body)
    latest = None if case.latest is None else octets({"body": case.latest}, "body")
    reply = None if case.reply is None else octets({"body": case.reply}, "body")
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

    def __init__(self, responses: Sequence[Mapping[str, Any]]) -> None:
        self.requests: list[HttpRequest] = []
        self._responses = list(responses)

    def send(self, request: HttpRequest) -> HttpResponse:
        self.requests.append(request)
        given = self._responses.pop(0) if self._responses else {}
        if "error" in given:
            raise CallError(FailureCode(given["error"]), f"the test says {given['error']}", "This is a test.")
        headers = tuple((str(name), str(text)) for name, text in given.get("headers", {}).items())
        return HttpResponse(
            int(given.get("status", 200)), str(given.get("reason", "")), headers, octets(given, "body"), 0.0
        )


def _compare_lists(
    name: str, expected: Sequence[Mapping[str, Any]] | None, actual: Sequence[Any], compare: Any
) -> Iterator[Difference]:
    if expected is None:
        return
    for number in range(max(len(expected), len(actual))):
        where = f"{name}[{number}]"
        if number >= len(actual):
            yield Difference(where, _pretty(expected[number]), "(nothing)")
        elif number >= len(expected):
            yield Difference(where, "(nothing)", _told(actual[number]))
        else:
            yield from compare(where, expected[number], actual[number])


def _request_differs(where: str, expected: Mapping[str, Any], actual: HttpRequest) -> Iterator[Difference]:
    yield from _text_differs(f"{where}.method", expected.get("method"), actual.method.value)
    yield from _text_differs(f"{where}.url", expected.get("url"), actual.url)
    yield from _headers_differ(where, expected, actual.headers)
    yield from _octets_differ(where, expected, "body", actual.body or b"")


def _publication_differs(where: str, expected: Mapping[str, Any], actual: Publication) -> Iterator[Difference]:
    yield from _text_differs(f"{where}.topic", expected.get("topic"), actual.topic)
    if "retain" in expected:
        yield from _text_differs(f"{where}.retain", str(expected["retain"]).lower(), str(actual.retain).lower())
    if "failure" in expected:
        code = _failure_code(actual.payload)
        yield from _text_differs(f"{where}.failure", expected["failure"], code or _shown(actual.payload))
    yield from _octets_differ(where, expected, "payload", actual.payload)


def _answer_differs(expected: Mapping[str, Any], actual: Response) -> Iterator[Difference]:
    if "status" in expected:
        yield from _text_differs("answers.status", str(expected["status"]), actual.status[:3])
    yield from _headers_differ("answers", expected, actual.headers)
    yield from _octets_differ("answers", expected, "body", actual.body)


def _headers_differ(
    where: str, expected: Mapping[str, Any], actual: Sequence[tuple[str, str]]
) -> Iterator[Difference]:
    """Compare the headers that are named, and no others."""
    for name, text in expected.get("headers", {}).items():
        found = ", ".join([value for key, value in actual if key.lower() == str(name).lower()])
        yield from _text_differs(f"{where}.headers.{name}", str(text), found or "(missing)")


def _octets_differ(where: str, expected: Mapping[str, Any], name: str, actual: bytes) -> Iterator[Difference]:
    """Compare a body or payload: as JSON where the test has it as such, else byte for byte."""
    if name not in expected and f"{name}_base64" not in expected:
        return
    wanted = expected.get(name)
    if f"{name}_base64" not in expected and not isinstance(wanted, str):
        try:
            if json.loads(actual) == wanted:
                return
        except ValueError:
            pass
        yield Difference(f"{where}.{name}", _pretty(wanted), _shown(actual))
    elif octets(expected, name) != actual:
        yield Difference(f"{where}.{name}", _shown(octets(expected, name)), _shown(actual))


def _text_differs(where: str, expected: Any, actual: str) -> Iterator[Difference]:
    if expected is not None and str(expected) != actual:
        yield Difference(where, str(expected), actual)


def _failure_code(payload: bytes) -> str | None:
    try:
        return str(json.loads(payload)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return None


def _told(actual: HttpRequest | Publication) -> str:
    if isinstance(actual, HttpRequest):
        return f"{actual.method} {actual.url}\n{_shown(actual.body or b'')}"
    return f"{actual.topic}\n{_shown(actual.payload)}"


def _shown(data: bytes) -> str:
    try:
        return _pretty(json.loads(data))
    except ValueError:
        pass
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"base64: {base64.b64encode(data).decode()}"


def _pretty(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False)

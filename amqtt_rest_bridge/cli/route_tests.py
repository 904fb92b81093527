"""`rest-bridge test`: run the tests beside route files by the code of the bridge. Main thread, no network."""

import base64
import contextlib
import json
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from msgspec import UNSET, Struct

from amqtt_rest_bridge.cli.route_test_files import (
    CallerRequest,
    Case,
    CaseFile,
    Scalar,
    ServerResponse,
    SourceMessage,
    find,
    load,
    octets,
    read,
)
from amqtt_rest_bridge.engine.event import Verdict
from amqtt_rest_bridge.engine.needs import Outcome
from amqtt_rest_bridge.engine.server.signatures import sign
from amqtt_rest_bridge.engine.trial import REQUEST_ID, RequestTrial, try_calls, try_request
from amqtt_rest_bridge.errors import CallError, ConfigurationError, FaultCode, Severity, visible
from amqtt_rest_bridge.http.exchange import Request
from amqtt_rest_bridge.lot.masking import Masker
from amqtt_rest_bridge.lot.model import (
    ClientEvent,
    EventName,
    HttpRequest,
    HttpResponse,
    Message,
    MessageProperties,
    Publication,
    Route,
)
from amqtt_rest_bridge.topics import filter_matches, schedule_topic

DESCRIPTION = """\
Run the *.test.yaml files beside route files, without broker and network, by the code that runs in the broker.

A test gives a message (topic, payload) with the response of the server, or an HTTP request, and says which requests are
sent, what is published and how a request is answered. The reference has all members:

  tests:
    - name: an alert opens a ticket
      message: {topic: plant/line-3/alert, payload: {text: hot, level: 2}}
      response: {status: 201, body: {id: 7}}
      sends: [{method: POST, url: "https://tickets.example.com/api/tickets", body: {title: hot}}]
      publishes: [{topic: tickets/opened, payload: {id: 7}}]
"""
EPILOG = """\
exit status:
  0  all tests passed
  1  a test failed, or the route files have errors
  2  a file cannot be read or is not a test file, or the command is used wrongly

examples:
  rest-bridge test conf/routes
  rest-bridge test conf/library --junit report.xml
"""
_COLUMN_WIDTH: Final = 58
_IDEMPOTENCY_KEY: Final = "00000000-0000-4000-8000-000000000001"  # of lossless routes


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that is not as expected: where, and both sides as text."""

    where: str
    expected: str
    actual: str


@dataclass(slots=True)
class _TestResult:
    """The outcome of one test: what differs, or the `faults` of its route files if these are the reason."""

    file: Path
    name: str
    differences: list[Difference] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.differences and not self.faults

    def lines(self, shown: set[str]) -> Iterator[str]:
        """Yield the faults that are not in `shown` yet, and add them there; then the differences, in two columns."""
        new = [fault for fault in self.faults if fault not in shown]
        shown.update(new)
        yield from (f"  {line}" for fault in new for line in fault.split("\n"))
        if len(new) < len(self.faults):
            yield "  and for reasons above" if new else "  for the reasons above"
        for one in self.differences:
            yield f"  {one.where}"
            yield f"    {'expected':<{_COLUMN_WIDTH}} | actual"
            for left, right in zip_longest(one.expected.split("\n"), one.actual.split("\n"), fillvalue=""):
                mark = "|" if left == right else "!"
                yield f"    {visible(left):<{_COLUMN_WIDTH}} {mark} {visible(right)}".rstrip()


def run(
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="test file (*.test.yaml) or folder")],
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="also write the results as JUnit XML")] = None,
) -> int:
    """Run all tests and print those that fail."""
    files = [read(path) for path in find(paths)]
    outcomes = [outcome for file in files for outcome in _run_file(file)]
    shown: set[str] = set()
    for outcome in outcomes:
        print(f"{'ok  ' if outcome.passed else 'FAIL'} {visible(f'{outcome.file}: {outcome.name}')}")
        for line in outcome.lines(shown):
            print(line)
    failed = sum(not outcome.passed for outcome in outcomes)
    print(f"{len(outcomes) - failed} passed, {failed} failed")
    if junit is not None:
        suite = ET.Element("testsuite", name="rest-bridge test", tests=str(len(outcomes)), failures=str(failed))
        for outcome in outcomes:
            case = ET.SubElement(suite, "testcase", classname=visible(str(outcome.file)), name=visible(outcome.name))
            if not outcome.passed:
                failure = ET.SubElement(case, "failure", message="not as expected")
                failure.text = "\n".join(map(visible, outcome.lines(set())))
        try:
            ET.ElementTree(suite).write(junit, encoding="utf-8", xml_declaration=True)
        except OSError as error:
            raise ConfigurationError(f"cannot write {junit}: {error.strerror or error}") from error
    return 1 if failed else 0


def _run_file(file: CaseFile) -> Iterator[_TestResult]:
    """Run the cases of a file without the routes that lack a variable or secret; any other error stops all cases."""
    loaded = load(file)
    errors = [fault for fault in loaded.faults if fault.severity is Severity.ERROR]
    can_run = all(fault.code is FaultCode.UNAVAILABLE for fault in errors)
    masker = Masker(secret for route in loaded.routes for secret in route.secrets)
    for name, case in file.cases:
        found = [
            Difference(one.where, masker.text(one.expected), masker.text(one.actual))
            for one in (_differences(case, loaded.routes) if can_run else ())
        ]
        reasons = [] if can_run else errors
        if can_run and found and errors:
            # If no loaded route takes the case, it is for a route that was left out, and fails for that reason.
            if case.message is None:
                is_taken = _try_case_request(case, loaded.routes).route is not None
            else:
                is_taken = all(any(_triggered_events(one, loaded.routes)) for one in (case.message, *case.batch))
            reasons = [] if is_taken else errors
        yield _TestResult(file.path, name, [] if reasons else found, [str(error) for error in reasons])


def _differences(case: Case, routes: Sequence[Route]) -> Iterator[Difference]:
    """Run a case with the code of the bridge; yield the differences between what it expects and what happens."""
    if case.message is None:
        yield from _request_differences(case, routes)
    else:
        yield from _message_differences(case, case.message, routes)


def _request_differences(case: Case, routes: Sequence[Route]) -> Iterator[Difference]:
    """Do what `_differences` does, for a case with an HTTP request."""
    tried = _try_case_request(case, routes)
    if case.answers is not None:
        status, headers, body = tried.response.status[:3], tried.response.headers, tried.response.body
        yield from _compare("answers", case.answers, {"status": status, "headers": headers, "body": body})
    elif tried.route is None:
        yield Difference("request", "an endpoint that it leads to", "no event has this method and path")
    yield from _compare_lists("publishes", case.publishes, map(_members_of_publication, tried.publications))


def _message_differences(case: Case, first: SourceMessage, routes: Sequence[Route]) -> Iterator[Difference]:
    """Do what `_differences` does, for a case with messages."""
    server = _FakeServer(case.responses if case.response is None else [case.response])
    trials: list[Verdict] = []
    calls: dict[EventName, tuple[Route, ClientEvent, list[Message]]] = {}
    for one in (*[first] * (1 + case.twice), *case.batch):
        for route, event, topic in _triggered_events(one, routes):
            properties = MessageProperties(tuple((name, str(text)) for name, text in one.properties.items()))
            message = Message(topic, octets(one.payload, one.payload_base64), case.now, properties)
            calls.setdefault((route.name, event.name), (route, event, []))[2].append(message)
    for route, event, messages in calls.values():
        trials += try_calls(route, event, messages, server.send, key=_IDEMPOTENCY_KEY if route.is_lossless else None)
    if not trials:
        listened = f"no event listens on {first.topic or first.event}"
        yield Difference("message", "an event that it triggers", listened)
    sent = [
        {"method": one.method.value, "url": one.url, "headers": one.headers, "body": one.body or b""}
        for one in server.requests
    ]
    publications = [trial.publication for trial in trials if trial.publication is not None]
    yield from _compare_lists("sends", case.sends, sent)
    yield from _compare_lists("publishes", case.publishes, map(_members_of_publication, publications))
    skipped = any(trial.outcome is Outcome.SKIPPED for trial in trials)
    if case.skipped is not None and case.skipped != skipped:
        yield Difference("skipped", str(case.skipped).lower(), str(skipped).lower())


def _triggered_events(given: SourceMessage, routes: Sequence[Route]) -> Iterator[tuple[Route, ClientEvent, str]]:
    """Yield the events that a message triggers, with its topic. One that names an event is of its schedule."""
    for route in routes:
        for event in route.client_events:
            if given.event == event.name:  # a message of its schedule
                yield route, event, given.topic or schedule_topic(route.name, event.name)
            elif given.event is None and given.topic is not None and filter_matches(event.source_topic, given.topic):
                yield route, event, given.topic


def _try_case_request(case: Case, routes: Sequence[Route]) -> RequestTrial:
    """Run the request of a case."""
    given = case.request or CallerRequest()
    body = octets(given.body, given.body_base64)
    headers = {name.lower(): str(text) for name, text in given.headers.items()}
    if given.signed:  # with the secret of the event that has this method and exactly this path as its ENDPOINT
        verifying = (
            event.signature
            for route in routes
            for event in route.server_events
            if event.method == given.method and event.endpoint == given.path.partition("?")[0]
        )
        if (signature := next(filter(None, verifying), None)) is not None:
            headers |= sign(signature, body, case.now)
    request = Request(REQUEST_ID, given.method, given.path, given.path.partition("?")[2], headers, body)
    latest: bytes | dict[str, bytes] | None = None if case.latest is None else octets(case.latest)
    if case.topics:
        latest = {topic: octets(payload) for topic, payload in case.topics.items()}
    reply = None if case.reply is None else octets(case.reply)
    return try_request(routes, request, now=case.now, latest=latest, reply=reply, twice=case.twice)


class _FakeServer:
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


def _members_of_publication(publication: Publication) -> dict[str, Any]:
    """Return the members of a message that a test may expect."""
    payload = publication.payload
    failure = ""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        failure = str(json.loads(payload)["error"]["code"])
    return {
        "topic": publication.topic,
        "retain": publication.retain,
        "qos": "that of each subscription" if publication.qos is None else publication.qos,
        "failure": failure or _printable(payload) or "(no failure)",
        "properties": () if publication.properties is None else publication.properties.user,
        "payload": payload,
    }


def _compare_lists(
    name: str, expected: Sequence[Struct] | None, actual: Iterable[Mapping[str, Any]]
) -> Iterator[Difference]:
    """Compare two lists item by item. If `expected` is None, the case says nothing about the list."""
    for number, (wanted, found) in enumerate(zip_longest(expected, actual) if expected is not None else ()):
        where = f"{name}[{number}]"
        if found is None:
            yield Difference(where, _printable(octets(dict(_expected_members(wanted)))), "(nothing)")
        elif wanted is None:
            first = found.get("topic") or f"{found['method']} {found['url']}"
            yield Difference(
                where, "(nothing)", f"{first}\n{_printable(found.get('payload') or found.get('body') or b'')}"
            )
        else:
            yield from _compare(where, wanted, found)


def _expected_members(expected: Struct) -> Iterator[tuple[str, Any]]:
    """Yield the members of an expectation that the test file has."""
    for name, value in msgspec.structs.asdict(expected).items():
        if value is not UNSET and (name in ("body", "payload") or value not in (None, {})):
            yield name, value


def _compare(where: str, expected: Struct, actual: Mapping[str, Any]) -> Iterator[Difference]:
    """Compare the members that a test file has, and of headers and properties only those that it names.

    A body or payload that the test file has as JSON is compared as JSON, another one byte for byte.
    """
    for name, value in _expected_members(expected):
        if name in ("headers", "properties"):
            for key, text in value.items():
                found = ", ".join([one for given, one in actual[name] if given.lower() == key.lower()])
                yield from _texts_differ(f"{where}.{name}.{key}", text, found or "(missing)")
        elif (part := name.removesuffix("_base64")) in ("body", "payload"):
            wanted, data = value if name != part else octets(value), actual[part]
            is_same = wanted == data
            if name == part and not isinstance(value, str):
                with contextlib.suppress(ValueError):
                    is_same = json.loads(wanted) == json.loads(data)
            if not is_same:
                yield Difference(f"{where}.{part}", _printable(wanted), _printable(data))
        else:
            yield from _texts_differ(f"{where}.{name}", value, actual[name])


def _texts_differ(where: str, expected: Scalar, actual: Scalar) -> Iterator[Difference]:
    wanted, found = (str(one).lower() if isinstance(one, bool) else str(one) for one in (expected, actual))
    if wanted != found:
        yield Difference(where, wanted, found)


def _printable(data: bytes) -> str:
    """Return a body or payload for people: JSON indented, text as it is, other bytes as base64."""
    with contextlib.suppress(ValueError):
        value = json.loads(data)
        return value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"base64: {base64.b64encode(data).decode()}"

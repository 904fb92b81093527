"""`rest-bridge test`: run the tests beside route files by the code of the bridge. Main thread, no network."""

import base64
import contextlib
import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from msgspec import UNSET

from amqtt_rest_bridge.cli.route_test_files import (
    CallerRequest,
    Case,
    CaseFile,
    ExpectedMessage,
    ExpectedRequest,
    Headers,
    Scalar,
    ServerResponse,
    SourceMessage,
    find,
    load,
    octets,
    read,
)
from amqtt_rest_bridge.engine.event import Step, Verdict
from amqtt_rest_bridge.engine.server.callers import sign
from amqtt_rest_bridge.engine.trial import REQUEST_ID, RequestTrial, try_calls, try_request
from amqtt_rest_bridge.errors import CallError, ConfigurationError, visible
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
_COLUMN: Final = 58
_KEY: Final = "00000000-0000-4000-8000-000000000001"  # Idempotency-Key of lossless routes


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that is not as expected: where, and both sides as text."""

    where: str
    expected: str
    actual: str


@dataclass(slots=True)
class _Outcome:
    """What became of one test; `faults` are those of its route files."""

    file: Path
    name: str
    differences: list[Difference] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.differences and not self.faults

    def lines(self, shown: set[str]) -> Iterator[str]:
        """Write expected and actual side by side, and the faults that are not among those `shown`: they are added."""
        new = [fault for fault in self.faults if fault not in shown]
        shown.update(new)
        yield from (f"  {line}" for fault in new for line in fault.split("\n"))
        if len(new) < len(self.faults):
            yield "  and for reasons above" if new else "  for the reasons above"
        for one in self.differences:
            yield f"  {one.where}"
            yield f"    {'expected':<{_COLUMN}} | actual"
            for left, right in zip_longest(one.expected.split("\n"), one.actual.split("\n"), fillvalue=""):
                sign = "|" if left == right else "!"
                yield f"    {visible(left):<{_COLUMN}} {sign} {visible(right)}".rstrip()


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
        _write_junit(junit, outcomes)
    return 1 if failed else 0


def _run_file(file: CaseFile) -> Iterator[_Outcome]:
    tested = load(file)
    masker = Masker(secret for route in tested.routes for secret in route.secrets)
    for name, case in file.cases:
        faults = tested.faults_of(partial(triggered, case))
        outcome = _Outcome(file.path, name, faults=[str(fault) for fault in faults])
        if outcome.passed:
            outcome.differences = [
                Difference(one.where, masker.text(one.expected), masker.text(one.actual))
                for one in differences(case, tested.routes)
            ]
        yield outcome


def _write_junit(path: Path, outcomes: Sequence[_Outcome]) -> None:
    failed = sum(not outcome.passed for outcome in outcomes)
    suite = ET.Element("testsuite", name="rest-bridge test", tests=str(len(outcomes)), failures=str(failed))
    for outcome in outcomes:
        case = ET.SubElement(suite, "testcase", classname=visible(str(outcome.file)), name=visible(outcome.name))
        if not outcome.passed:
            failure = ET.SubElement(case, "failure", message="not as expected")
            failure.text = "\n".join(map(visible, outcome.lines(set())))
    try:
        ET.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror or error}") from error


def differences(case: Case, routes: Sequence[Route]) -> Iterator[Difference]:
    """Run a case by the code of the bridge; yield the differences between what it expects and what happens."""
    if case.message is not None:
        yield from _run_message(case, case.message, routes)
        return
    tried = _try(case, routes)
    if (expected := case.answers) is not None:
        yield from _text_differs("answers.status", expected.status, tried.response.status[:3])
        yield from _headers_differ("answers", expected.headers, tried.response.headers)
        yield from _octets_differ("answers.body", expected.body, expected.body_base64, tried.response.body)
    yield from _compare_lists("publishes", case.publishes, tried.publications, _publication_differs)


def triggered(case: Case, routes: Sequence[Route]) -> set[str]:
    """Return the names of the routes that a case is for."""
    if case.message is not None:
        return {route.name for route, _, _ in _triggered(case.message, routes)}
    route = _try(case, routes).route
    return set() if route is None else {route}


def _run_message(case: Case, given: SourceMessage, routes: Sequence[Route]) -> Iterator[Difference]:
    server = _Server(case.responses if case.response is None else [case.response])
    trials: list[Verdict] = []
    calls: dict[EventName, tuple[Route, ClientEvent, list[Message]]] = {}
    for one in (*[given] * (1 + case.twice), *case.batch):
        for route, event, topic in _triggered(one, routes):
            properties = MessageProperties(tuple((name, str(text)) for name, text in one.properties.items()))
            message = Message(topic, octets(one.payload, one.payload_base64), case.now, properties)
            calls.setdefault((route.name, event.name), (route, event, []))[2].append(message)
    for route, event, messages in calls.values():
        trials += try_calls(route, event, messages, server.send, key=_KEY if route.is_lossless else None)
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


def _try(case: Case, routes: Sequence[Route]) -> RequestTrial:
    given = case.request or CallerRequest()
    body = octets(given.body, given.body_base64)
    headers = {name.lower(): str(text) for name, text in given.headers.items()}
    if given.signed:  # as the one event with this method and a literal ENDPOINT verifies it
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
            members = msgspec.structs.asdict(expected[number]).items()  # those that the test file has
            written = {name: value for name, value in members if value not in (None, UNSET, {})}
            yield Difference(where, _shown(octets(written)), "(nothing)")
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
    if expected.qos is not None:
        found = "that of each subscription" if actual.qos is None else str(actual.qos)
        yield from _text_differs(f"{where}.qos", str(expected.qos), found)
    if expected.failure is not None:
        code = _failure_code(actual.payload)
        yield from _text_differs(f"{where}.failure", expected.failure, code or _shown(actual.payload) or "(no failure)")
    user = () if actual.properties is None else actual.properties.user
    for name, text in expected.properties.items():
        yield from _text_differs(f"{where}.properties.{name}", text, dict(user).get(name, "(missing)"))
    yield from _octets_differ(f"{where}.payload", expected.payload, expected.payload_base64, actual.payload)


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

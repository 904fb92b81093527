"""The trial of a definition: its faults, its drawing, and what a message or request would do.

`site.playground` starts the process that runs it, `python -m amqtt_rest_bridge.tools.playground`, which reads a `Trial`
from standard input and writes a `TrialResult` to standard output. Nothing is sent, published or saved, and no variable
is read: each variable and secret has its own name for a value. The process has little priority and limits on processor
time and memory, and reads no file but its own code.
"""

import errno
import os
import re
import resource
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from amqtt_rest_bridge.admin import flow
from amqtt_rest_bridge.catalogue import INVALID_SIGNATURE
from amqtt_rest_bridge.engine.trial import ANY_KEY, REQUEST_ID, shown_request, try_call, try_request
from amqtt_rest_bridge.errors import Fault, Severity
from amqtt_rest_bridge.http.exchange import Request
from amqtt_rest_bridge.lot import loader
from amqtt_rest_bridge.lot.evaluation import NameEnvironment
from amqtt_rest_bridge.lot.model import ClientEvent, HttpRequest, HttpResponse, LoadResult, Message, Publication, Route
from amqtt_rest_bridge.lot.parsed_texts import ParsedTexts
from amqtt_rest_bridge.lot.sources import Source
from amqtt_rest_bridge.site.playground import CPU_SECONDS, Exchange, FaultExcerpt, Trial, TrialResult
from amqtt_rest_bridge.topics import check_topic_name, filter_matches, sample_topic

_PATH: Final = "definition"
_SAMPLES: Final = ("1", "true", "http://example.com", "10 SECONDS")
"""The values that are tried for a variable, in this order, if its setting refuses the variable's name as a value."""
_MOST_FAULTS: Final = 200
_MOST_EXCHANGES: Final = 30
_LONGEST: Final = 8192  # characters of a body
_BEFORE: Final = 24  # characters of a line before a fault, few enough for a phone
_BEHIND: Final = 80
_MEMORY: Final = 1 << 30
_NICE: Final = 10
# An event loop makes a pair of sockets; nothing is to reach, or be reached from, outside of the process.
_REFUSED: Final = (
    "os.exec", "os.fork", "os.posix_spawn", "os.system", "subprocess.",
    "socket.bind", "socket.connect", "socket.getaddrinfo", "socket.gethostby", "socket.getnameinfo", "socket.send",
)  # fmt: skip
_SEGMENT: Final = re.compile(r"\{[^{}/]*\}")


def run_trial(trial: Trial) -> TrialResult:
    """Run a trial; never raises for what the definition holds."""
    loaded, substitutes = _load(trial.definition)
    # The value of a secret is its name here, which is to be seen.
    routes = [replace(route, secrets=frozenset(), in_addresses=frozenset()) for route in loaded.routes]
    exchanges: list[Exchange] = []
    note = ""
    for exchange in _run_events(routes, trial):
        if len(exchanges) == _MOST_EXCHANGES:
            note = f"The first {_MOST_EXCHANGES} events are shown."
            break
        exchanges.append(exchange)
    if not exchanges and routes:
        filters = sorted({event.source_topic for route in routes for event in route.client_events})
        note = f"No event listens to this topic. The routes listen to: {', '.join(filters[:20]) or 'nothing'}."
    severest = sorted(loaded.faults, key=lambda one: list(Severity).index(one.severity))
    faults = sorted(severest[:_MOST_FAULTS], key=lambda one: one.position)
    more = len(severest) - _MOST_FAULTS
    lines = trial.definition.split("\n")
    return TrialResult(
        faults=[_excerpt_of(fault, lines) for fault in faults],
        more=f"... and {more} more" if more > 0 else "",
        routes=[route.name for route in routes],
        ways=msgspec.to_builtins(flow.drawing(flow.edges(routes[: flow.MOST_ROUTES]), {}).ways),
        exchanges=exchanges,
        substitutes=sorted(substitutes.items()),
        note=note,
    )


def _load(text: str) -> tuple[LoadResult, Mapping[str, str]]:
    """Load a definition. A variable whose name its setting refuses as a value has the first sample that fits."""
    environment, parsed = NameEnvironment({}, Path()), ParsedTexts()
    source = Source(_PATH, text)
    loaded = loader.load([source], environment, parsed)
    for sample in _SAMPLES:
        errors = [fault.message for fault in loaded.faults if fault.severity is Severity.ERROR]
        refused = [
            name
            for name in environment.values
            if any(f"{{{what}.{name}}}" in message for message in errors for what in ("env", "secret"))
        ]
        if not refused:
            break
        environment.values.update(dict.fromkeys(refused, sample))
        loaded = loader.load([source], environment, parsed)
    return loaded, environment.values


def _excerpt_of(fault: Fault, lines: Sequence[str]) -> FaultExcerpt:
    """Return a fault with the part of its line that it is about, and what is before and behind."""
    line, column = fault.position.line, fault.position.column
    text, at = lines[line - 1] if line <= len(lines) else "", column - 1
    end = max(column, fault.end.column - 1 if fault.end.line == line else len(text))
    return FaultExcerpt(
        line, column, str(fault.severity), fault.message, None if fault.hint is None else str(fault.hint),
        ("…" if at > _BEFORE else "") + text[max(0, at - _BEFORE) : at].lstrip(),
        text[at : min(end, at + _BEHIND)] or " ", text[end : end + _BEHIND],
    )  # fmt: skip


def _run_events(routes: Sequence[Route], trial: Trial) -> Iterator[Exchange]:
    """Run the events that the trial's request or topic leads to; those of all routes if it names neither."""
    if trial.request.strip():
        yield _run_request(routes, _request_of(trial.request.strip(), trial.payload), trial, "")
    for route in routes:
        for event in route.client_events:
            topic = trial.topic or sample_topic(event.source_topic)
            if filter_matches(event.source_topic, topic):
                yield _run_message(route, event, topic, trial)
        if not trial.request.strip() and not trial.topic:
            for served in route.server_events:
                line = f"{served.method} {_SEGMENT.sub('x', served.endpoint)}"
                yield _run_request([route], _request_of(line, trial.payload), trial, served.name)


def _run_message(route: Route, event: ClientEvent, topic: str, trial: Trial) -> Exchange:
    """Return what a message sends, and publishes once the server has answered."""
    requests: list[HttpRequest] = []

    def answer(request: HttpRequest) -> HttpResponse:
        requests.append(request)
        return HttpResponse(200, "OK", (("Content-Type", "application/json"),), trial.response.encode(), 0.0)

    if fault := check_topic_name(topic):
        return Exchange(route.name, event.name, False, topic, "", f"The topic {fault}.", "")
    message = Message(topic, trial.payload.encode(), time.time())
    verdict = try_call(route, event, message, answer, key=ANY_KEY if route.is_lossless else None)
    request = shown_request(route, requests[0]) if requests else None
    shown = "" if request is None else _http_text(f"{request.method} {request.url}", request.headers, request.body)
    if verdict.failure is not None:
        outcome = f"It fails with {verdict.failure.code}: {verdict.failure.message}. {verdict.failure.hint}"
    elif request is None:
        outcome = f"It is skipped: {verdict.skipped[1] if verdict.skipped is not None else 'there is nothing to send'}."
    else:
        outcome = "" if verdict.publication is not None else "Nothing is published of the answer."
    return Exchange(route.name, event.name, False, topic, shown, outcome, _publication_text(verdict.publication))


def _run_request(routes: Sequence[Route], request: Request, trial: Trial, event: str) -> Exchange:
    """Return how a request is answered, and what it publishes."""
    payload = trial.payload.encode()
    tried = try_request(routes, request, now=time.time(), latest=payload, reply=payload)
    served, answer, refusal = tried.run.event, tried.response, tried.run.refusal
    is_unsigned = event and refusal is not None and refusal.code == INVALID_SIGNATURE.code
    why = "The sample request has no signature. " if is_unsigned else ""
    return Exchange(
        route=tried.route or (routes[0].name if event else ""),
        event=served.name if served is not None else event,
        is_taken=True,
        topic="",
        request=_http_text(f"{request.method} {request.target}", tuple(request.headers.items()), request.body),
        outcome=f"{why}It is answered with {_http_text(answer.status, answer.headers, answer.body)}",
        published="\n\n".join(_publication_text(one) for one in tried.publications),
    )


def _request_of(text: str, body: str) -> Request:
    """Read a request line and headers; any other text leads to no endpoint."""
    line, *fields = text.split("\n")
    method, _, path = line.strip().partition(" ")
    target = path.split(" ")[0] or "/"
    pairs = (one.partition(":") for one in fields if ":" in one)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return Request(REQUEST_ID, method.upper(), target, target.partition("?")[2], headers, body.encode())


def _publication_text(publication: Publication | None) -> str:
    if publication is None:
        return ""
    return f"{publication.topic}{' (retained)' if publication.retain else ''}\n{_body_text(publication.payload)}"


def _http_text(first: str, headers: Sequence[tuple[str, str]], body: bytes | None) -> str:
    head = "\n".join([first, *(f"{name}: {value}" for name, value in headers)])
    return f"{head}\n\n{_body_text(body)}" if body else head


def _body_text(body: bytes) -> str:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return f"({len(body)} bytes that are not text)"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}\n... {len(text)} characters in all"


# The process.


def read_no_files() -> None:
    """Refuse to open files but those of imports, and let any path look like a file: a definition must learn nothing."""
    # The folders of libraries, and the packages that are elsewhere. The other folders of `sys.path` and the prefix of
    # Python are not code: whole projects may be in them.
    libraries = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    libraries += [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    places = [os.path.realpath(folder) for folder in libraries]
    for name, module in list(sys.modules.items()):
        if "." not in name and (file := getattr(module, "__file__", None)):
            place = os.path.realpath(file)
            places.append(os.path.dirname(place) if hasattr(module, "__path__") else place)  # noqa: PTH120
    code = tuple(f"{place}{os.sep}" for place in places)
    status, any_file = os.stat, os.stat(__file__)  # noqa: PTH116

    def is_ours(path: "int | str | bytes | os.PathLike[str]") -> bool:
        return isinstance(path, int) or f"{os.path.realpath(os.fsdecode(path))}{os.sep}".startswith(code)

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(_REFUSED) or (event == "open" and not is_ours(arguments[0])):
            raise PermissionError(errno.EACCES, "the playground reads no files; leave it out here")

    sys.addaudithook(refuse)
    os.stat = lambda path, **given: status(path, **given) if is_ours(path) else any_file


def main() -> int:
    """Judge what standard input holds, within the limits."""
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    read_no_files()
    trial = msgspec.json.decode(sys.stdin.buffer.read(), type=Trial)
    sys.stdout.buffer.write(msgspec.json.encode(run_trial(trial)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

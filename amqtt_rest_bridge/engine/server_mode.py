"""Server mode: the door for requests, which become publications, and for the messages that answer requests.

`ServerMode` has the routes in use, makes the `PortApplication` of each port, and receives the messages of read events
and replies. The HTTP server calls `PortApplication.answer` with each request. This finds the endpoint of the path and
method in its `EndpointTable`. What happens to the request there is in `server/endpoint`.
"""

import math
import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar
from urllib.parse import quote, unquote_to_bytes

from amqtt_rest_bridge.catalogue import MESSAGE_TOO_LARGE, METHOD_NOT_ALLOWED, NOT_FOUND
from amqtt_rest_bridge.engine.needs import Host, RequestRun
from amqtt_rest_bridge.engine.outcome import Outcomes
from amqtt_rest_bridge.engine.server.credentials import WrongCredentials
from amqtt_rest_bridge.engine.server.endpoint import (
    EventRequest,
    ServerEndpoint,
    SharedByEndpoints,
    decode_path,
    decode_text,
    outcome_of,
)
from amqtt_rest_bridge.engine.server.newest import TopicPayload, payload_answer
from amqtt_rest_bridge.engine.server.openapi import PATH, describe
from amqtt_rest_bridge.engine.server.reads import Reads
from amqtt_rest_bridge.engine.server.replies import Replies, Turns
from amqtt_rest_bridge.engine.server.unmatched import UnmatchedRequests
from amqtt_rest_bridge.errors import CallError, ConfigurationError
from amqtt_rest_bridge.http.exchange import (
    Answer,
    Headers,
    Request,
    RequestRefusedError,
    Response,
    path_of,
    refuse,
    refused,
)
from amqtt_rest_bridge.lot.model import Message, Route
from amqtt_rest_bridge.lot.route_set import asking, read_filters, reply_filters

T = TypeVar("T")

_PARAMETER: Final = re.compile(r"\{([A-Za-z0-9_.-]+)\}")
_PCHAR: Final = "!$&'()*+,;=:@-._~"  # not encoded in a segment, RFC 3986 section 3.3
_ALL_METHODS: Final = "DELETE, GET, HEAD, OPTIONS, POST, PUT"


class ServerMode:
    """Answers requests with the server events of the routes in use.

    Args:
        host: What the engine needs.
        outcomes: Counts, logs and records; client mode shares it.
        is_mqtt_5: Whether responders return Correlation Data. Otherwise requests with one reply topic take turns.
        openapi: Whether GET /openapi.json is answered.
    """

    def __init__(self, host: Host, outcomes: Outcomes, *, is_mqtt_5: bool = True, openapi: bool = False) -> None:
        self.reads = Reads(outcomes.statistics)
        """The messages of read events, and the streams that follow them."""
        self.unmatched = UnmatchedRequests(host.clock)
        """The requests that led to no endpoint."""
        self.wrong_credentials = WrongCredentials(host.clock)
        """Delays answers to callers that guess credentials; the admin port shares it."""
        self._replies = Replies(host.clock)
        turns = Turns(host.clock)
        self._shared = SharedByEndpoints(
            host, outcomes, is_mqtt_5, self.reads, self._replies, self.wrong_credentials, turns
        )
        self._openapi = openapi
        self._routes: tuple[Route, ...] = ()
        self.filters: set[str] = set()
        """The topic filters to subscribe: their messages, retained ones too, are passed to `see`."""
        self._reply_filters: dict[str, _ReplyFilter] = {}
        self._ports: dict[int, PortApplication] = {}

    def use_routes(self, routes: Iterable[Route]) -> None:
        """Use these routes from the next request on; requests that have begun end by the definition that they had.

        Raises:
            ConfigurationError: Two events have the same method and path; the loader refuses such routes before.
        """
        self._routes = routes = tuple(routes)
        by_port: dict[int, list[Route]] = {}
        for route in routes:
            if route.config.enable_server:
                by_port.setdefault(route.config.server_port, []).append(route)
        for port, application in self._ports.items():
            application.use_routes(by_port.pop(port, []))
        for port, served in by_port.items():
            self.application(port).use_routes(served)
        self.unmatched.use_routes(routes)
        self.reads.watch(read_filters(routes))
        self.reads.end_streams(routes)
        self._use_reply_filters(reply_filters(routes))
        self.filters = {*read_filters(routes), *self._reply_filters}

    def _use_reply_filters(self, seconds_by_filter: Mapping[str, float]) -> None:
        """Await replies on these filters, for so many seconds each, and on earlier ones until their requests end."""
        now = self._shared.host.clock.monotonic()
        earlier = {
            one: _ReplyFilter(known.seconds, min(known.end, now + known.seconds))
            for one, known in self._reply_filters.items()
            if known.end > now
        }
        self._reply_filters = dict(earlier)
        for one, seconds in seconds_by_filter.items():
            left = earlier[one].end - now if one in earlier else 0.0  # for requests of an earlier definition
            self._reply_filters[one] = _ReplyFilter(max(seconds, left), math.inf)

    def application(self, port: int) -> "PortApplication":
        """Return the application of a SERVER_PORT, always the same one."""
        if port not in self._ports:
            self._ports[port] = PortApplication(self._shared, self.unmatched, port, openapi=self._openapi)
        return self._ports[port]

    def see(self, message: Message, *, retained: bool = False, size: int = 0) -> None:
        """Keep a message for read events, and give it to the request that waits for it as a reply.

        `retained` is whether it was sent because of the subscription. `size` is the size of the message in bytes; the
        length of its payload counts if that is more.
        """
        size, most = max(size, len(message.payload)), self._shared.host.limits.max_message_bytes
        if size > most:
            error = f"the message has {size} bytes, max_message_bytes allows {most}"
            self.refuse(message, MESSAGE_TOO_LARGE.error(error))
            return
        self.reads.remember(message.topic, message.payload, retained=retained)
        if not retained:
            self._replies.see(message)

    def refuse(self, message: Message, failure: CallError) -> None:
        """Note in status and log a message that cannot be an answer. Read events still answer with the one before."""
        for name in asking(self._routes, message.topic, reads=True):
            self._shared.outcomes.note_dropped_message(name, message, failure)

    def resubscribing(self) -> AbstractContextManager[set[str]]:
        """Return a context manager of filters to subscribe again in its block; see `Reads.resubscribing`."""
        return self.reads.resubscribing()

    def stop(self) -> None:
        """End streams, and requests that wait for replies."""
        self.reads.end_streams()
        self._replies.dismiss()
        self.unmatched.flush()


class _ReplyFilter(NamedTuple):
    """Until when replies on a topic filter are awaited."""

    seconds: float  # that a request may wait for its reply
    end: float  # monotonic time at which the last request has ended; infinite while a route in use has the filter


class PortApplication:
    """Answers the requests of one port; see `http.exchange.Application`."""

    def __init__(self, shared: SharedByEndpoints, unmatched: UnmatchedRequests, port: int, *, openapi: bool) -> None:
        self.bound_port = port
        """The port that callers connect to. It differs from SERVER_PORT if that is 0."""
        self._shared = shared
        self._unmatched = unmatched
        self._openapi = openapi
        self._table: EndpointTable[ServerEndpoint] = EndpointTable(())
        self._description: bytes | None = None

    def use_routes(self, routes: Iterable[Route]) -> None:
        """Answer with these routes from the next request on."""
        events = [(route, event) for route in routes for event in route.server_events]
        is_taken = any(event.endpoint == PATH and event.method == "GET" for _, event in events)
        self._description = describe(list(routes)) if self._openapi and not is_taken else None
        self._table = EndpointTable(
            (event.endpoint, event.method.value, ServerEndpoint(route, event, self._shared)) for route, event in events
        )

    def answer(self, request: Request) -> Answer:
        """Answer a request, or return the coroutine that does."""
        path = request.target.partition("?")[0]
        if not path.startswith("/"):
            path = path_of(request.target)
        try:
            return self._answer_matched(request, path)
        except RequestRefusedError as failure:  # no endpoint took the request
            refusal, answer = failure.refusal, refused(failure.refusal)
        self._unmatched.note(self.bound_port, request.method, decode_text(path), int(answer.status[:3]))
        now, outcome = self._shared.host.clock.time(), outcome_of(refusal.code)
        run = RequestRun(now, outcome, self.bound_port, None, None, request, answer, refusal)
        self._shared.outcomes.note_request(run)
        return answer

    def _answer_matched(self, request: Request, path: str) -> Answer:
        """Answer with the endpoint of a path and method; raises `RequestRefusedError` (404, 405) if there is none."""
        if request.target == "*" and request.method == "OPTIONS":  # about the port as a whole, RFC 9110 section 9.3.7
            return _options_answer(_ALL_METHODS)
        if path == PATH and self._description is not None and request.method in ("GET", "HEAD"):
            return payload_answer(TopicPayload(self._description))
        methods = self._table.find(path)
        if methods is None:
            raise RequestRefusedError(request.refusal or refuse(NOT_FOUND, "No endpoint has this path"))
        match = methods.by_method.get(request.method)
        if match is None:
            return self._answer_other_method(request, path, methods)
        return match.target.answer(self._request(request, path, match.parameters))

    def _answer_other_method(self, request: Request, path: str, methods: "Methods[ServerEndpoint]") -> Response:
        """Refuse a method that has no event; answer OPTIONS, which may be a preflight (Fetch, CORS protocol)."""
        if request.method != "OPTIONS":
            message, allow = "The endpoint does not take this method", (("Allow", methods.allow),)
            raise RequestRefusedError(refuse(METHOD_NOT_ALLOWED, message, allow, hint=f"Use one of: {methods.allow}"))
        origin = request.headers.get("origin")
        asked = methods.by_method.get(request.headers.get("access-control-request-method", ""))
        cors = None if asked is None else asked.target.checks.cors
        if origin is None or asked is None or cors is None:
            return _options_answer(methods.allow)
        wanted = request.headers.get("access-control-request-headers")
        try:
            return _options_answer(methods.allow, cors.preflight_headers(origin, methods.allow, wanted))
        except RequestRefusedError as failure:  # the browser will not send the request: note it as refused
            return asked.target.note_failure(self._request(request, path, asked.parameters), failure)

    def _request(self, request: Request, path: str, parameters: Mapping[str, str]) -> EventRequest:
        clock = self._shared.host.clock
        return EventRequest(request, path, parameters, clock.time(), clock.monotonic(), self.bound_port)


@dataclass(frozen=True, slots=True)
class Match(Generic[T]):
    """The target of a method on a path, with the decoded texts of the endpoint's `{name}` segments."""

    target: T
    parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Methods(Generic[T]):
    """The targets of a path by method, and the value of its Allow header."""

    by_method: Mapping[str, Match[T]]
    allow: str


class EndpointTable(Generic[T]):
    """Finds what answers a path and method: the *targets* of a path, such as server endpoints.

    It is made of (endpoint, method, target). A path that takes GET takes HEAD too (RFC 9110 section 9.3.2), and every
    path takes OPTIONS.

    Raises:
        ConfigurationError: Two entries have the same path and method.
    """

    def __init__(self, entries: Iterable[tuple[str, str, T]]) -> None:
        patterns: dict[tuple[str | None, ...], _Pattern[T]] = {}
        for endpoint, method, target in entries:
            segments, names = _segments_of(endpoint)
            pattern = patterns.setdefault(segments, _Pattern(segments))
            if method in pattern.targets:
                raise ConfigurationError(f"{method} {endpoint} is defined twice on one port; change one path")
            pattern.targets[method] = (target, names)
        # The most specific pattern first: a literal segment sorts before a parameter, from left to right.
        self._patterns = sorted(
            (pattern for pattern in patterns.values() if None in pattern.segments),
            key=lambda pattern: [part is None for part in pattern.segments],
        )
        # Paths without parameters are looked up, by their segments and as callers usually write them.
        self._by_segments: dict[tuple[str, ...], Methods[T]] = {}
        self._by_path: dict[str, Methods[T]] = {}
        for pattern in patterns.values():
            literal = tuple(part for part in pattern.segments if part is not None)
            if len(literal) == len(pattern.segments):
                methods = self._match(literal, [pattern, *self._patterns])
                assert methods is not None  # noqa: S101  # a literal matches itself
                self._by_segments[literal] = methods
                self._by_path["/" + "/".join(quote(part, safe=_PCHAR) for part in literal)] = methods

    def find(self, path: str) -> Methods[T] | None:
        """Return the targets of a path as sent in the request line, without its query; None without one.

        Raises `RequestRefusedError` (400) for a path that cannot be decoded.
        """
        methods = self._by_path.get(path)
        if methods is not None:
            return methods
        segments = decode_path(path)
        return self._by_segments.get(segments) or self._match(segments, self._patterns)

    @staticmethod
    def _match(segments: tuple[str, ...], patterns: "Iterable[_Pattern[T]]") -> Methods[T] | None:
        """Return the targets of the patterns that match a path; for each method the first of them counts."""
        found: dict[str, Match[T]] = {}
        for pattern in patterns:
            values = pattern.match(segments)
            if values is not None:
                for method, (target, names) in pattern.targets.items():
                    found.setdefault(method, Match(target, dict(zip(names, values, strict=True))))
        if not found:
            return None
        if "GET" in found:
            found["HEAD"] = found["GET"]
        return Methods(found, ", ".join(sorted([*found, "OPTIONS"])))


def _segments_of(endpoint: str) -> tuple[tuple[str | None, ...], tuple[str, ...]]:
    """Return the decoded segments of an ENDPOINT, None for each `{name}`, and those names."""
    segments: list[str | None] = []
    names: list[str] = []
    for segment in endpoint[1:].split("/"):
        if parameter := _PARAMETER.fullmatch(segment):
            segments.append(None)
            names.append(parameter[1])
        else:
            segments.append(unquote_to_bytes(segment).decode(errors="replace"))
    return tuple(segments), tuple(names)


class _Pattern(Generic[T]):
    """The segments of an endpoint, None for a parameter, and its targets by method, with the names of parameters."""

    def __init__(self, segments: tuple[str | None, ...]) -> None:
        self.segments = segments
        self.targets: dict[str, tuple[T, tuple[str, ...]]] = {}

    def match(self, segments: tuple[str, ...]) -> list[str] | None:
        """Return the parameters' values in order, or None; a parameter never matches an empty segment."""
        if len(segments) != len(self.segments):
            return None
        values = []
        for expected, sent in zip(self.segments, segments, strict=True):
            if expected is None:
                if not sent:
                    return None
                values.append(sent)
            elif expected != sent:
                return None
        return values


def _options_answer(allow: str, headers: Headers = ()) -> Response:
    return Response("204 No Content", (("Allow", allow), *headers))

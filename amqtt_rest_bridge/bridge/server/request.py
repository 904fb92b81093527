"""A request of server mode: the endpoint that its path leads to, its parts as events need them, and why it is refused.

A path is compared segment by segment, each percent-decoded once (RFC 3986 section 2.4), so `/caf%C3%A9` is `/café` and
`%2F` is a character of its segment, never a separator. Nothing else is normalised: an empty segment, `.` and `..` are
segments like others, and a trailing slash counts. A literal segment is preferred to a `{name}`, from left to right.

No I/O. The table is immutable once built and for any thread, a request for the port's.
"""

import json
import re
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar
from urllib.parse import parse_qs, quote, unquote_to_bytes

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.bridge.server.broker_access import Wake
from amqtt_rest_bridge.catalogue import AnswerRow
from amqtt_rest_bridge.errors import BridgeError, CallError, ConfigurationError
from amqtt_rest_bridge.http_server import Headers, Refusal, Request
from amqtt_rest_bridge.http_server import refusals as http
from amqtt_rest_bridge.model import Publication
from amqtt_rest_bridge.placeholders import RequestValues

T = TypeVar("T")

_PARAMETER: Final = re.compile(r"\{([A-Za-z0-9_.-]+)\}")
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROL: Final = re.compile("[\x00-\x1f\x7f]")
_CONTROL_OR_SPACE: Final = re.compile("[\x00-\x20\x7f]")
_PCHAR: Final = "!$&'()*+,;=:@-._~"  # not encoded in a segment, RFC 3986 section 3.3


class RefusedError(BridgeError):
    """A request gets an error answer."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class WrongCredentialError(RefusedError):
    """A request is refused for a password, token or signature that it holds; one that holds none was no guess."""


class IgnoredError(BridgeError):
    """WHEN is false for a request: it is answered, and publishes nothing."""


def error(row: AnswerRow, message: str, headers: Headers = (), *, hint: str | None = None) -> RefusedError:
    """Return the error with a row of the catalogue, see `http_server.refusals.refuse`."""
    return RefusedError(http.refuse(row, message, headers, hint=hint))


def cannot_fill(failure: CallError) -> RefusedError:
    """Return the error for a request that lacks, or whose value spoils, what a placeholder of the route needs."""
    return error(catalogue.INVALID_REQUEST, failure.message, hint=failure.hint)


def too_large(limit: int) -> RefusedError:
    """Return the error for a body of more than `limit` bytes."""
    return RefusedError(http.too_large(limit))


def overloaded() -> RefusedError:
    """Return the error for a request for which there is no room at the broker."""
    return RefusedError(
        http.overloaded("The bridge has more requests than the broker can take; this one was not published")
    )


def broker_unavailable() -> RefusedError:
    """Return the error for a request that the broker has not acknowledged; only a worker's."""
    message = "The MQTT broker is away or has not acknowledged this request; it may have been published"
    return error(catalogue.BROKER_UNAVAILABLE, message, http.RETRY_AFTER)


def port_closed() -> Refusal:
    """Refuse a request on a connection that is still open to a port which a reload took away."""
    message = "The routes were reloaded and none is served on this port any more; this request was not published"
    return http.refuse(catalogue.PORT_CLOSED, message, http.RETRY_AFTER)


@dataclass(frozen=True, slots=True)
class Match(Generic[T]):
    """What a method on a path leads to, with the decoded texts of the endpoint's `{name}` segments."""

    target: T
    parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Methods(Generic[T]):
    """What exists at a path: by method, and the value of an Allow header."""

    by_method: Mapping[str, Match[T]]
    allow: str


class EndpointTable(Generic[T]):
    """Finds the events of a path.

    Built from (endpoint, method, target); the same path and method twice raises `ConfigurationError`. Where GET is,
    HEAD is too (RFC 9110 section 9.3.2), and OPTIONS is everywhere.
    """

    def __init__(self, entries: Iterable[tuple[str, str, T]]) -> None:
        patterns: dict[tuple[str | None, ...], _Pattern[T]] = {}
        for endpoint, method, target in entries:
            segments, names = _parse(endpoint)
            pattern = patterns.setdefault(segments, _Pattern(segments))
            if method in pattern.targets:
                raise ConfigurationError(f"{method} {endpoint} is defined twice on one port; change one path")
            pattern.targets[method] = (target, names)
        # Most particular first: a literal segment sorts before a parameter, from left to right.
        self._patterns = sorted(
            (pattern for pattern in patterns.values() if None in pattern.segments),
            key=lambda pattern: [part is None for part in pattern.segments],
        )
        self._literal: dict[tuple[str, ...], Methods[T]] = {}
        self._as_written: dict[str, Methods[T]] = {}
        for pattern in patterns.values():
            literal = tuple(part for part in pattern.segments if part is not None)
            if len(literal) == len(pattern.segments):
                methods = self._match(literal, pattern)
                assert methods is not None  # noqa: S101  # a literal matches itself
                self._literal[literal] = methods
                self._as_written["/" + "/".join(quote(part, safe=_PCHAR) for part in literal)] = methods

    def find(self, path: str) -> Methods[T] | None:
        """Find what exists at a path as sent in the request line, without its query.

        Raises `RefusedError` (400) for a path that cannot be decoded.
        """
        methods = self._as_written.get(path)
        if methods is not None:
            return methods
        segments = decode_path(path)
        return self._literal.get(segments) or self._match(segments)

    def _match(self, segments: tuple[str, ...], *literal: "_Pattern[T]") -> Methods[T] | None:
        found: dict[str, Match[T]] = {}
        for pattern in (*literal, *self._patterns):
            values = pattern.match(segments)
            if values is not None:
                for method, (target, names) in pattern.targets.items():
                    found.setdefault(method, Match(target, dict(zip(names, values, strict=True))))
        if not found:
            return None
        if "GET" in found:
            found["HEAD"] = found["GET"]
        return Methods(found, ", ".join(sorted([*found, "OPTIONS"])))


class _Pattern(Generic[T]):
    """The segments of an endpoint, None for a parameter, and what is there by method."""

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


def decode_path(path: str) -> tuple[str, ...]:
    """Decode a path as sent into its segments; raises `RefusedError` (400) when it is not one."""
    if not path.startswith("/"):
        raise error(catalogue.NOT_A_PATH, "The request's path does not begin with '/'")
    if "#" in path:
        raise error(catalogue.FRAGMENT, "The request's path holds a fragment")
    if _BAD_ESCAPE.search(path):
        raise error(catalogue.BAD_ESCAPE, "The request's path holds a '%' without two hexadecimal digits")
    try:
        decoded = tuple(_unquote(segment) for segment in path[1:].split("/"))
    except UnicodeError:
        raise error(catalogue.PATH_NOT_UTF_8, "The request's path is not UTF-8") from None
    if _CONTROL.search("".join(decoded)):
        raise error(catalogue.CONTROL_CHARACTER, "The request's path holds a control character")
    return decoded


def _unquote(segment: str) -> str:
    """Decode one segment, whose characters are the bytes that were sent."""
    if "%" not in segment and segment.isascii():
        return segment
    return unquote_to_bytes(segment.encode("latin-1")).decode()


def _parse(endpoint: str) -> tuple[tuple[str | None, ...], tuple[str, ...]]:
    """Read an ENDPOINT: its segments decoded (None for a parameter), and the parameters' names."""
    segments: list[str | None] = []
    names: list[str] = []
    for segment in endpoint[1:].split("/"):
        parameter = _PARAMETER.fullmatch(segment)
        if parameter:
            segments.append(None)
            names.append(parameter[1])
        else:
            segments.append(unquote_to_bytes(segment).decode(errors="replace"))
    return tuple(segments), tuple(names)


class EventRequest:
    """One request; `path` and `query` are as sent, `timestamp` is Unix time in seconds.

    `wake` resumes its pending answer, `clock` is the monotonic time of `until`.
    """

    __slots__ = (
        *("answer_headers", "began", "caller_left", "clock", "headers", "http", "method"),
        *("parameters", "path", "publication", "query", "timestamp", "wake"),
    )

    def __init__(
        self,
        http: Request,
        path: str,
        parameters: Mapping[str, str],
        timestamp: float,
        wake: Wake,
        clock: Callable[[], float],
    ) -> None:
        self.http = http
        self.method = http.method
        self.headers = http.headers
        self.query = http.query
        self.path = path
        self.parameters = parameters
        self.timestamp = timestamp
        self.wake = wake
        self.clock = clock
        self.began = clock()
        self.caller_left = False
        self.publication: Publication | None = None  # what the request publishes, once that is known
        self.answer_headers: Headers = ()  # those that go with every answer of the endpoint

    def until(self, condition: Callable[[], bool], seconds: float) -> Generator[float, None, bool]:
        """Wait for a condition whose coming true calls `wake`; return false when it did not within `seconds`.

        Yields the seconds that are left each time that the pending answer has to wait.
        """
        deadline = self.clock() + seconds
        while not condition():
            remaining = deadline - self.clock()
            if remaining <= 0:
                return False
            yield remaining
        return True

    def body(self, limit: int) -> bytes:
        """Return the body.

        Raises `RefusedError`: 413 for more than `limit` bytes, 415 for an encoded one (RFC 9110 section 8.4), since
        subscribers could not see the encoding.
        """
        encoding = self.headers.get("content-encoding")
        if encoding and encoding.lower() != "identity":
            message = "The request's body has a Content-Encoding"
            raise error(catalogue.UNSUPPORTED_MEDIA_TYPE, message, (("Accept-Encoding", "identity"),))
        if len(self.http.body) > limit:
            raise too_large(limit)
        return self.http.body

    def query_parameters(self) -> dict[str, list[str]]:
        """Read the query string as a form (a repeated name has several values); raises `RefusedError` (400)."""
        if not self.query:
            return {}
        try:
            query = self.query.encode("latin-1").decode()  # the bytes that were sent
            parameters = parse_qs(query, keep_blank_values=True, errors="strict")
        except UnicodeDecodeError as failure:
            raise _query_refused() from failure
        if _CONTROL_OR_SPACE.search(query):
            raise _query_refused()
        return parameters

    def parameters_object(self) -> bytes:
        """Return path and query parameters as one JSON object.

        Decision: where both have a name the path's counts, since the route's author chose it.
        """
        if not self.query and not self.parameters:
            return b"{}"
        query = {name: values[0] if len(values) == 1 else values for name, values in self.query_parameters().items()}
        return json.dumps({**query, **self.parameters}, ensure_ascii=False, separators=(",", ":")).encode()

    def values(self, body: bytes) -> RequestValues:
        """Return what placeholders are filled with."""
        return RequestValues(
            method=self.method,
            path="/" + "/".join(decode_path(self.path)),
            path_parameters=self.parameters,
            query=self.query_parameters(),
            headers={name: readable(value) for name, value in self.headers.items()},
            payload=body,
            timestamp=self.timestamp,
            request_id=self.http.id,
        )


def _query_refused() -> RefusedError:
    return error(catalogue.BAD_QUERY, "The request's query string is not UTF-8 or holds control characters")


def readable(value: str) -> str:
    """Decode a header value or target: UTF-8 where it is, else Latin-1 (RFC 9110 section 5.5 leaves it open)."""
    if value.isascii():
        return value
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return value

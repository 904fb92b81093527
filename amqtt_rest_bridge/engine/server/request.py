"""A request to a server event: its parts as answers and texts with placeholders need them."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar
from urllib.parse import parse_qs, quote, unquote_to_bytes

from msgspec.structs import replace

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.errors import CallError, ConfigurationError
from amqtt_rest_bridge.http.exchange import Headers, Request, RequestRefusedError, refuse, too_large
from amqtt_rest_bridge.lot.model import Publication
from amqtt_rest_bridge.lot.placeholders.text import PlaceholderText
from amqtt_rest_bridge.lot.placeholders.values import RequestValues

_CONTROL_OR_SPACE: Final = re.compile("[\x00-\x20\x7f]")


class EventRequest:
    """One request. `path` is as sent; `parameters` are the texts of the endpoint's `{name}` segments, decoded.

    `timestamp` is when it came in Unix seconds, `began` in monotonic ones; `port` is the one that its caller connected
    to.
    """

    __slots__ = (
        *("_values", "answer_headers", "began", "http", "parameters", "path", "port", "publication"),
        *("skipped", "timestamp"),
    )

    def __init__(
        self, http: Request, path: str, parameters: Mapping[str, str], timestamp: float, began: float, port: int
    ) -> None:
        self.http = http
        self.path = path
        self.parameters = parameters
        self.timestamp = timestamp
        self.began = began
        self.port = port
        self.publication: Publication | None = None
        """What the request publishes, once that is known."""
        self.skipped: tuple[str, str] | None = None
        """Code and sentence of why it publishes nothing, if so."""
        self.answer_headers: Headers = ()
        """Those that go with every answer of the endpoint."""
        self._values: RequestValues | None = None

    def check_body(self, limit: int) -> None:
        """Raise `RequestRefusedError` for a body that is not published.

        413 for more than `limit` bytes, 415 for an encoded one (RFC 9110 section 8.4): subscribers could not see how.
        """
        encoding = self.http.headers.get("content-encoding")
        if encoding and encoding.lower() != "identity":
            message = "The request's body has a Content-Encoding"
            accepted = (("Accept-Encoding", "identity"),)
            raise RequestRefusedError(refuse(catalogue.UNSUPPORTED_MEDIA_TYPE, message, accepted))
        if len(self.http.body) > limit:
            raise RequestRefusedError(too_large(limit))

    def drop_body(self) -> None:
        """Hold the body no longer."""
        self.http = replace(self.http, body=b"")
        self._values = None

    def content(self) -> bytes:
        """Return what is published without PAYLOAD: the body, or without one the parameters as one JSON object.

        Where path and query have a name the path's counts, since the route's author chose it.
        """
        if self.http.body:
            return self.http.body
        if not self.http.query and not self.parameters:
            return b"{}"
        query = {name: values[0] if len(values) == 1 else values for name, values in self._query().items()}
        return json.dumps({**query, **self.parameters}, ensure_ascii=False, separators=(",", ":")).encode()

    def values(self) -> RequestValues:
        """Return what placeholders are filled with; raises `RequestRefusedError` (400)."""
        if self._values is None:
            http = self.http
            self._values = RequestValues(
                method=http.method,
                path="/" + "/".join(decode_path(self.path)),
                path_parameters=self.parameters,
                query=self._query(),
                headers={name: readable(value) for name, value in http.headers.items()},
                payload=http.body,
                timestamp=self.timestamp,
                request_id=http.id,
            )
        return self._values

    def fill(self, text: PlaceholderText) -> str:
        """Fill a topic; raises `RequestRefusedError` (400) where a value is missing or spoils it."""
        try:
            return text.fill(self.values())
        except CallError as failure:
            raise _cannot_fill(failure) from failure

    def fill_bytes(self, text: PlaceholderText) -> bytes:
        """Fill a payload; raises `RequestRefusedError` (400) likewise."""
        try:
            return text.fill_bytes(self.values())
        except CallError as failure:
            raise _cannot_fill(failure) from failure

    def _query(self) -> dict[str, list[str]]:
        """Read the query string as a form; a repeated name has several values."""
        if not self.http.query:
            return {}
        try:
            query = self.http.query.encode("latin-1").decode()  # the bytes that were sent
            parameters = parse_qs(query, keep_blank_values=True, errors="strict")
        except UnicodeDecodeError as failure:
            raise _query_refused() from failure
        if _CONTROL_OR_SPACE.search(query):
            raise _query_refused()
        return parameters


def readable(value: str) -> str:
    """Decode a header value or target: UTF-8 where it is, else Latin-1 (RFC 9110 section 5.5 leaves it open)."""
    if value.isascii():
        return value
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return value


def _cannot_fill(failure: CallError) -> RequestRefusedError:
    return RequestRefusedError(refuse(catalogue.INVALID_REQUEST, failure.message, hint=failure.hint))


def _query_refused() -> RequestRefusedError:
    message = "The request's query string is not UTF-8 or holds control characters"
    return RequestRefusedError(refuse(catalogue.BAD_QUERY, message))


T = TypeVar("T")

_PARAMETER: Final = re.compile(r"\{([A-Za-z0-9_.-]+)\}")
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROL: Final = re.compile("[\x00-\x1f\x7f]")
_PCHAR: Final = "!$&'()*+,;=:@-._~"  # not encoded in a segment, RFC 3986 section 3.3


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

        Raises `RequestRefusedError` (400) for a path that cannot be decoded.
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
    """Decode a path as sent into its segments; raises `RequestRefusedError` (400) when it is not one."""
    if not path.startswith("/"):
        raise RequestRefusedError(refuse(catalogue.NOT_A_PATH, "The request's path does not begin with '/'"))
    if "#" in path:
        raise RequestRefusedError(refuse(catalogue.FRAGMENT, "The request's path holds a fragment"))
    if _BAD_ESCAPE.search(path):
        message = "The request's path holds a '%' without two hexadecimal digits"
        raise RequestRefusedError(refuse(catalogue.BAD_ESCAPE, message))
    try:
        decoded = tuple(_unquote(segment) for segment in path[1:].split("/"))
    except UnicodeError:
        raise RequestRefusedError(refuse(catalogue.PATH_NOT_UTF_8, "The request's path is not UTF-8")) from None
    if _CONTROL.search("".join(decoded)):
        raise RequestRefusedError(refuse(catalogue.CONTROL_CHARACTER, "The request's path holds a control character"))
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

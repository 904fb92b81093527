"""Texts with placeholders, and the values that fill them. Pure.

A text is parsed once at load, into pieces, which are joined for every message or request. The values are a message, a
request or a response; each part of it is parsed at most once, when it is needed.

A value never changes the shape of the text that it is inserted into: it is escaped for its place, by the functions of
`ESCAPES`, or refused where escaping is not possible.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import ClassVar, TypeGuard
from urllib.parse import quote

from msgspec import Struct

from amqtt_rest_bridge import catalogue, topics
from amqtt_rest_bridge.catalogue import FailureRow
from amqtt_rest_bridge.errors import CONTROL, BridgeError, CallError
from amqtt_rest_bridge.lot.placeholders.formats import (
    JsonNumber,
    JsonValue,
    first_record,
    from_json,
    json_string,
    look_up,
    to_json,
)
from amqtt_rest_bridge.lot.placeholders.kinds import (
    AT_LOAD,
    BATCH_LINES,
    RAW,
    RAW_RESPONSE,
    RAWS,
    Mode,
    Placeholder,
    recognise,
)
from amqtt_rest_bridge.times import rfc3339

_BRACES = re.compile(r"\{([^{}\"\x00-\x1f]{1,256})\}")
_JSON_TOKEN = re.compile(r'\\.|["\\]', re.DOTALL)


# Places, and how a value is escaped for each.


class Place(StrEnum):
    """Where a text is used, which decides how inserted values are escaped; the last three are bodies."""

    ENDPOINT = "endpoint"
    HEADER = "header"
    TOPIC = "topic"
    JSON = "json"
    FORM = "form"
    TEXT = "text"


def place_of(content_type: str) -> Place:
    """Return the kind of body of a content type; its parameters do not matter (RFC 9110 section 8.3.1)."""
    media_type = content_type.split(";", 1)[0].strip().lower()
    if media_type in _JSON_TYPES or media_type.endswith("+json"):
        return Place.JSON
    return Place.FORM if media_type == "application/x-www-form-urlencoded" else Place.TEXT


_JSON_TYPES = ("application/json", "text/json", "application/x-ndjson")
_UNRESERVED = re.compile(r"[A-Za-z0-9._~-]*")  # RFC 3986 section 2.3
_TOPIC_SPECIAL = re.compile(rf"[+#\x00-\x1f\x7f-\x9f{topics.NONCHARACTERS}]")


def not_allowed(placeholder: Placeholder, reason: str, row: FailureRow) -> CallError:
    """Return the error for a value that its place does not allow; it never shows the value."""
    return row.error(f"the value of {{{placeholder.name}}} {reason}", unsent=True)


def as_text(placeholder: Placeholder, value: JsonValue) -> str:
    """Return a value as text: a string as it is, anything else as JSON."""
    try:
        text = value if isinstance(value, str) else to_json(value)
    except RecursionError as error:
        raise not_allowed(placeholder, "is nested too deeply", catalogue.FLATTER_VALUE) from error
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise not_allowed(
                placeholder, "holds half a surrogate pair, which has no UTF-8 form", catalogue.WHOLE_CHARACTERS
            ) from error
    return text


def escape_in_endpoint(placeholder: Placeholder, value: JsonValue) -> str:
    """Percent-encode all but RFC 3986 unreserved characters; a whole topic keeps its slashes."""
    text = as_text(placeholder, value)
    if _UNRESERVED.fullmatch(text):  # ten times faster than quote, and the usual case
        return text
    return quote(text, safe="/" if placeholder.root == "topic" else "")


def escape_in_header(placeholder: Placeholder, value: JsonValue) -> str:
    """Refuse control characters, so that a value cannot end its header (RFC 9110 section 5.5)."""
    text = as_text(placeholder, value)
    if CONTROL.search(text):
        raise not_allowed(
            placeholder, "holds a control character, which a header cannot carry", catalogue.NO_LINE_BREAKS
        )
    return text


def escape_in_topic(placeholder: Placeholder, value: JsonValue) -> str:
    """Refuse what would add a level or a wildcard; a whole topic keeps its slashes."""
    text = as_text(placeholder, value)
    if _TOPIC_SPECIAL.search(text) or ("/" in text and placeholder.root != "topic"):
        raise not_allowed(placeholder, "holds a character that would change the topic", catalogue.NO_TOPIC_CHARACTERS)
    return text


def escape_in_json(placeholder: Placeholder, value: JsonValue) -> str:
    """Return a value as JSON, or inside a string literal as escaped text (RFC 8259 section 7).

    `{payload}` and the like are not escaped outside a string: they are JSON already.
    """
    if placeholder.quoted:
        return json_string(as_text(placeholder, value))[1:-1]
    text = as_text(placeholder, value)
    if isinstance(value, str) and not isinstance(value, JsonNumber) and placeholder.root not in RAWS:
        return json_string(text)
    return text


def escape_in_form(placeholder: Placeholder, value: JsonValue) -> str:
    """Percent-encode all but unreserved characters, so that a value cannot add a field."""
    return quote(as_text(placeholder, value), safe="")


ESCAPES: Mapping[Place, Callable[[Placeholder, JsonValue], str]] = MappingProxyType(
    {
        Place.ENDPOINT: escape_in_endpoint,
        Place.HEADER: escape_in_header,
        Place.TOPIC: escape_in_topic,
        Place.JSON: escape_in_json,
        Place.FORM: escape_in_form,
        Place.TEXT: as_text,
    }
)


# Values: a message, a request, a response.


def default_of(placeholder: Placeholder) -> JsonValue:
    """Return the default of a placeholder, None if it has none. In JSON it is inserted as it is, like a number."""
    return None if placeholder.default is None else JsonNumber(placeholder.default)


class Values(Struct, eq=False):
    """Base of all kinds of values: a payload and its time, in Unix seconds. It keeps what it has parsed."""

    payload: bytes
    timestamp: float
    text: str | None = None
    """The payload as text, None until it is needed."""
    json: tuple[JsonValue] | None = None
    """The payload as JSON, in a tuple, since its value may be None."""
    _noun: ClassVar[str] = "payload"  # for messages

    def get(self, placeholder: Placeholder) -> JsonValue:
        """Return the value of a placeholder.

        Raises:
            CallError: `placeholder_unresolved`, it has none.
        """
        root = placeholder.root
        if root == RAW:
            return self._payload_text(placeholder)
        if root == "json":
            return self._json_field(placeholder)
        if root.startswith("timestamp"):
            milliseconds = round(self.timestamp * 1000)
            if root == "timestamp.unix_ms":
                return JsonNumber(milliseconds)
            return JsonNumber(milliseconds // 1000) if root == "timestamp.unix" else rfc3339(self.timestamp)
        return self._get_own(placeholder)

    def get_or_default(self, placeholder: Placeholder) -> JsonValue:
        """Return the value of a placeholder, or its default if the value is missing or null.

        Raises:
            CallError: `placeholder_unresolved`, it has neither.
        """
        try:
            value = self.get(placeholder)
        except CallError:
            if placeholder.default is None:
                raise
            value = None
        return default_of(placeholder) if value is None else value

    def raw(self, placeholder: Placeholder) -> bytes:  # noqa: ARG002  # a batch and a result have others
        """Return the bytes of `{payload}`, `{value}`, `{body}` or `{response.body}`."""
        return self.payload

    def _get_own(self, placeholder: Placeholder) -> JsonValue:
        """Return the value of a placeholder that only this kind of values has."""
        raise NotImplementedError

    def unresolved(self, placeholder: Placeholder, reason: str, hint: str) -> CallError:
        """Return the error for a placeholder without a value."""
        message = f"{{{placeholder.name}}} has no value: {reason}"
        return catalogue.PLACEHOLDER_UNRESOLVED.error(message, hint=hint, unsent=True)

    def _payload_text(self, placeholder: Placeholder) -> str:
        """Return the payload as text."""
        if self.text is None:
            try:
                self.text = self.payload.decode()
            except UnicodeDecodeError as error:
                reason = f"the {self._noun} is not UTF-8 text"
                raise self.unresolved(placeholder, reason, catalogue.BINARY_VALUE.hint) from error
        return self.text

    def _json_field(self, placeholder: Placeholder) -> JsonValue:
        """Return the value of `{value.json.x}`, or of the whole JSON."""
        if self.json is None:
            try:
                self.json = (from_json(self._payload_text(placeholder)),)
            except ValueError as error:
                reason, hint = f"the {self._noun} is not JSON", f"Send a JSON {self._noun}."
                raise self.unresolved(placeholder, reason, hint) from error
        (value,) = self.json
        if not placeholder.argument:
            return value
        try:
            return look_up(value, placeholder.argument)
        except LookupError as error:
            reason = f"the {self._noun} has no field {placeholder.argument}"
            raise self.unresolved(placeholder, reason, catalogue.MISSING_FIELD.hint) from error


class MessageValues(Values, kw_only=True):
    """The values of a message, for client mode; `user` are its user properties."""

    topic: str
    user: Sequence[tuple[str, str]] = ()
    csv: list[str] | None = None

    def _get_own(self, placeholder: Placeholder) -> JsonValue:
        if placeholder.root == "topic":
            return self.topic
        if placeholder.root == "csv":
            if self.csv is None:
                try:
                    self.csv = first_record(self._payload_text(placeholder))
                except ValueError as error:
                    reason, hint = f"the payload is not CSV: {error}", "Send CSV (RFC 4180)."
                    raise self.unresolved(placeholder, reason, hint) from error
            if (number := int(placeholder.argument)) >= len(self.csv):
                reason = f"the payload's first record has {len(self.csv)} field(s)"
                raise self.unresolved(placeholder, reason, catalogue.MISSING_CSV_FIELD.hint)
            return self.csv[number]
        if placeholder.root == "property":
            found = [value for name, value in self.user if name == placeholder.argument]
            if not found:
                reason = f"the message has no user property {placeholder.argument}"
                raise self.unresolved(placeholder, reason, catalogue.MISSING_PROPERTY.hint)
            return found[-1]
        if placeholder.root != "level":
            raise self.unresolved(placeholder, "there is no response", catalogue.MISSING_RESPONSE.hint)
        levels = self.topic.split("/")
        number = int(placeholder.argument)
        if number > len(levels):
            reason = f"the topic has only {len(levels)} levels"
            raise self.unresolved(placeholder, reason, catalogue.MISSING_LEVEL.hint)
        return levels[number - 1]


class BatchValues(MessageValues, kw_only=True):
    """The values of a batch: its items, as `engine.stages.batch.Items` makes them."""

    items: Sequence[bytes]

    def raw(self, placeholder: Placeholder) -> bytes:
        """Return the items as one JSON array, or one a line."""
        if placeholder.root == BATCH_LINES:
            return b"".join([item + b"\n" for item in self.items])
        return b"[" + b",".join(self.items) + b"]"

    def _get_own(self, placeholder: Placeholder) -> JsonValue:
        return JsonNumber(len(self.items)) if placeholder.root == "batch.size" else self.raw(placeholder).decode()


_ROOTS_IN_RESPONSE = {RAW_RESPONSE: RAW, "response.json": "json"}


class ResultValues(MessageValues, kw_only=True):
    """The values of a message and of the response to its request; repeated headers are joined."""

    status: int
    headers: Iterable[tuple[str, str]]
    response: "ResponseBody"

    def raw(self, placeholder: Placeholder) -> bytes:
        """Return the bytes of the payload or of the response."""
        return self.response.payload if placeholder.root == RAW_RESPONSE else self.payload

    def _get_own(self, placeholder: Placeholder) -> JsonValue:
        root = placeholder.root
        if root in _ROOTS_IN_RESPONSE:
            return self.response.get(replace(placeholder, root=_ROOTS_IN_RESPONSE[root]))
        if root == "response.status":
            return JsonNumber(self.status)
        if root == "response.header":
            found = [value for name, value in self.headers if name.lower() == placeholder.argument]
            if not found:
                raise self.response.unresolved(placeholder, f"the response has no header {placeholder.argument}", "")
            return ", ".join(found)
        return super()._get_own(placeholder)


class ResponseBody(Values):
    """The body of a response. Its errors differ, since the request has been sent when a value is missing."""

    _noun: ClassVar[str] = "response"

    def unresolved(self, placeholder: Placeholder, reason: str, hint: str) -> CallError:
        """Return the error for a placeholder without a value."""
        message = f"{{{placeholder.name}}} has no value: {reason}"
        hint = f"See what the server sends, and correct the route, or write a default: {{{placeholder.name}|text}}"
        return catalogue.PLACEHOLDER_UNRESOLVED.error(message, hint=hint)


class RequestValues(Values, kw_only=True):
    """The values of a request, for server mode; all text is percent-decoded, header names are in lower case."""

    method: str
    path: str
    path_parameters: Mapping[str, str]
    query: Mapping[str, Sequence[str]]
    headers: Mapping[str, str]
    request_id: str
    _noun: ClassVar[str] = "request body"

    def _get_own(self, placeholder: Placeholder) -> JsonValue:
        root, name = placeholder.root, placeholder.argument
        if root == "query":
            found = self.query.get(name, ())
            return self._require(placeholder, found[-1] if found else None, f"query parameter {name}")
        if root == "header":
            return self._require(placeholder, self.headers.get(name), f"header {name}")
        if root == "path.x":
            return self._require(placeholder, self.path_parameters.get(name), f"path parameter {name}")
        return {"method": self.method, "path": self.path, "request_id": self.request_id}[root]

    def _require(self, placeholder: Placeholder, value: str | None, what: str) -> str:
        if value is None:
            raise self.unresolved(placeholder, f"the request has no {what}", f"Send the {what}.")
        return value


# Texts.


class LoneBackslashError(BridgeError):
    r"""In a string of JSON a placeholder follows a single backslash, which would join with the value's first escape.

    `"C:\{payload}"`, filled with a quote, would be `"C:\\""`: a backslash, and the end of the string.
    """


@dataclass(frozen=True, slots=True)
class Fixed:
    """Text that GET ENV, GET SECRET, `{env.X}` or `{secret.X}` has read. Placeholders in it are not filled.

    With `needs_escape` it is escaped for its place, like the value of a placeholder. Messages show `label` instead of
    the text.
    """

    text: str = field(repr=False)
    label: str
    needs_escape: bool = False


@dataclass(frozen=True, slots=True)
class PlaceholderText:
    """A text with placeholders, ready to be filled; `source` is the text as written, without secrets."""

    source: str
    place: Place
    pieces: tuple[str | Placeholder, ...] = field(repr=False)
    has_defaults: bool = field(default=False, repr=False)
    is_payload: bool = field(default=False, repr=False)
    """Whether it is only `{payload}`, `{value}` or `{body}`: then `fill_bytes` returns the payload itself."""

    @property
    def is_constant(self) -> bool:
        """Return whether it has no placeholders."""
        return not self.pieces or (len(self.pieces) == 1 and isinstance(self.pieces[0], str))

    @property
    def is_raw(self) -> bool:
        """Return whether it is only one placeholder of `RAWS`, as `{payload}` or `{response.body}`: byte for byte."""
        return len(self.pieces) == 1 and _is_raw(self.pieces[0])

    @property
    def needs_response(self) -> bool:
        """Return whether it can be filled only once there is a response."""
        return any(isinstance(piece, Placeholder) and piece.root.startswith("response.") for piece in self.pieces)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the placeholders in it as they are written, without braces, in their order."""
        return tuple(placeholder.name for placeholder in self.placeholders)

    @property
    def placeholders(self) -> tuple[Placeholder, ...]:
        """Return the placeholders in it, in their order."""
        return tuple(piece for piece in self.pieces if isinstance(piece, Placeholder))

    def fill(self, values: Values) -> str:
        """Insert the values, escaped for the place.

        Raises:
            CallError: `placeholder_unresolved`, a value is missing; `invalid_value`, one is not allowed here.
        """
        escape, get = ESCAPES[self.place], values.get_or_default if self.has_defaults else values.get
        text = "".join([piece if isinstance(piece, str) else escape(piece, get(piece)) for piece in self.pieces])
        if self.is_constant:
            return text
        # A value that makes a segment . or .. would change the path (RFC 3986 section 5.2.4). The dot may be encoded.
        if self.place is Place.ENDPOINT and ("." in text or "%2" in text):
            literal = "".join([piece if isinstance(piece, str) else "x" for piece in self.pieces])
            if dot_segments(text) > dot_segments(literal):
                reason = "a value makes a path segment of ENDPOINT . or .., which would change the path"
                raise catalogue.OTHER_VALUE.error(reason, unsent=True)
        elif self.place is Place.TOPIC:
            first, why = self.pieces[0], topics.check_topic_name(text)
            if why is not None and any({"+", "#"} & {*piece} for piece in self.pieces if isinstance(piece, str)):
                why = topics.check_topic_filter(text)  # no value has wildcards: these are the route's own
            # A value must not make a topic of the broker itself, which begins with $ (MQTT 3.1.1 section 4.7.2).
            if why is None and text.startswith("$") and isinstance(first, Placeholder) and first.root != "topic":
                why = "begins with $"
            if why is not None:
                raise catalogue.OTHER_VALUE.error(f"the topic filled in {why}", unsent=True)
        return text

    def fill_bytes(self, values: Values) -> bytes:
        """Insert the values into a body, as UTF-8.

        Payloads are inserted byte for byte in plain text, and where the text is only `{payload}`.

        Raises:
            CallError: as for `fill`.
        """
        if len(self.pieces) == 1 and _is_raw(piece := self.pieces[0]):
            return values.raw(piece)
        if self.place is not Place.TEXT:
            return self.fill(values).encode()
        get = values.get_or_default if self.has_defaults else values.get
        parts = [
            piece if isinstance(piece, str) else values.raw(piece) if _is_raw(piece) else as_text(piece, get(piece))
            for piece in self.pieces
        ]
        return b"".join([part.encode() if isinstance(part, str) else part for part in parts])


def parse(text: str | Sequence[str | Fixed], place: Place, mode: Mode) -> PlaceholderText:
    """Return a text with its placeholders. Braces around anything else are text.

    `text` may come in parts: each str is searched for placeholders, each `Fixed` is not.

    Raises:
        CallError: `invalid_value`, a `Fixed` or the default of a placeholder is not allowed in this place.
        LoneBackslashError: in JSON, a value could end the string around it.
    """
    parts = (text,) if isinstance(text, str) else text
    pieces: list[str | Placeholder] = []
    literals: list[str] = []  # since the last placeholder
    strings = _JsonStrings()
    for piece in _pieces(parts, mode):
        if isinstance(piece, Placeholder):
            quoted = strings.enter_value(f"{{{piece.name}}}")
            pieces += ["".join(literals)] if any(literals) else []
            literals.clear()
            pieces.append(placeholder := replace(piece, quoted=quoted))
            if (default := default_of(placeholder)) is not None:
                ESCAPES[place](placeholder, default)
            continue
        if isinstance(piece, Fixed) and piece.needs_escape:
            value = Placeholder(piece.label.strip("{}"), "", quoted=strings.enter_value(piece.label))
            literal = ESCAPES[place](value, piece.text)
        else:
            literal = piece.text if isinstance(piece, Fixed) else piece
            if place is Place.JSON:
                strings.pass_over(literal)
        literals.append(literal)
    pieces += ["".join(literals)] if any(literals) else []
    source = "".join([part if isinstance(part, str) else part.label for part in parts])
    has_defaults = any(isinstance(piece, Placeholder) and piece.default is not None for piece in pieces)
    is_payload = len(pieces) == 1 and isinstance(first := pieces[0], Placeholder) and first.root == RAW
    return PlaceholderText(source, place, tuple(pieces), has_defaults, is_payload)


def _pieces(parts: Sequence[str | Fixed], mode: Mode) -> Iterator[str | Fixed | Placeholder]:
    """Yield literal texts, `Fixed` ones and placeholders in turn."""
    for part in parts:
        if isinstance(part, Fixed):
            yield part
            continue
        end = 0
        for match in _BRACES.finditer(part):
            placeholder = recognise(match[1], mode)
            if placeholder is not None and placeholder.root not in AT_LOAD:
                yield part[end : match.start()]
                yield placeholder
                end = match.end()
        yield part[end:]


class _JsonStrings:
    """Follows the literal text of a JSON body, to know whether a value would be inside a string."""

    __slots__ = ("_backslash", "_inside")

    def __init__(self) -> None:
        self._inside = False
        self._backslash = ""

    def pass_over(self, literal: str) -> None:
        """Follow a piece of text. An escape may begin in one piece and end in the next."""
        tokens = _JSON_TOKEN.findall(self._backslash + literal)
        self._inside ^= tokens.count('"') % 2 == 1
        self._backslash = "\\" if tokens[-1:] == ["\\"] else ""

    def enter_value(self, written: str) -> bool:
        """Return whether a value here is inside a string; raises `LoneBackslashError`."""
        if self._inside and self._backslash:
            raise LoneBackslashError(
                f"has a single \\ before {written}: a value that begins with a quote would end its string"
            )
        self._backslash = ""
        return self._inside


def placeholders_at_load(text: str) -> Iterator[tuple[int, int, Placeholder]]:
    """Yield each `{env.X}` and `{secret.X}` with its begin and end."""
    for match in _BRACES.finditer(text):
        placeholder = recognise(match[1], Mode.CLIENT)
        if placeholder is not None and placeholder.root in AT_LOAD:
            yield match.start(), match.end(), placeholder


def _is_raw(piece: str | Placeholder) -> TypeGuard[Placeholder]:
    return isinstance(piece, Placeholder) and piece.root in RAWS


def dot_segments(path: str) -> int:
    """Count the segments of a path that are `.` or `..`; a query after it does not matter.

    A percent-encoded dot is a dot (RFC 3986 section 6.2.2.2). Text after a semicolon is left out, so `..;x` counts:
    servers of Java take `;x` for a parameter of the segment, and cut it off.
    """
    decoded = path.partition("?")[0].lower().replace("%2e", ".").replace("%3b", ";")
    return sum(segment.partition(";")[0] in (".", "..") for segment in decoded.split("/"))

"""Values of placeholders: a message or a request, each part parsed at most once, when it is needed. Pure.

JSON of payloads and bodies is read without losing a digit, looked into by dotted paths, written compactly.
"""

import contextlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Final, NoReturn, TypeAlias

import msgspec
from msgspec import Struct

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.lot.placeholders.kinds import BATCH_LINES, RAW, RAW_RESPONSE, Placeholder
from amqtt_rest_bridge.times import rfc3339

MAX_FIELDS = 10_000
"""Fields that are read of a record: a placeholder counts up to 9999."""

_FIELD = re.compile(r'(?:"((?:[^"]|"")*+)"|([^,\r\n]*+))(,|(?=[\r\n])|\Z)')


class JsonNumber(str):
    """A JSON number as its own text, so that `21.50` and thirty digits come out as they went in."""

    __slots__ = ()


JsonValue: TypeAlias = "str | int | bool | list[JsonValue] | dict[str, JsonValue] | None"
"""A parsed JSON value; a number is an int, or a `JsonNumber`, which is a kind of str."""

json_string = json.JSONEncoder(ensure_ascii=False).encode
"""Write a str as a JSON string literal with its quotes."""


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")  # Python's reader takes NaN and Infinity, RFC 8259 section 6 does not


def _write_number(number: object) -> msgspec.Raw:
    return msgspec.Raw(str(number).encode())


# msgspec takes a fifth of the time of Python's reader. It refuses a byte order mark, half a pair of surrogates, and an
# integer of thousands of digits, and reads -0 as 0.
_FAST_DECODER: Final = msgspec.json.Decoder(float_hook=JsonNumber)
_TOLERANT_DECODER: Final = json.JSONDecoder(
    parse_float=JsonNumber, parse_int=JsonNumber, parse_constant=_refuse_constant
)
_NEGATIVE_ZERO: Final = re.compile(r"-0(?![0-9.eE])")
_ENCODER: Final = msgspec.json.Encoder(enc_hook=_write_number)


def from_json(text: str) -> JsonValue:
    """Parse a JSON text; a byte order mark before it is ignored (RFC 8259 section 8.1).

    Raises:
        ValueError: it is not JSON, or is nested too deeply to be read.
    """
    if "-0" not in text or not _NEGATIVE_ZERO.search(text):
        with contextlib.suppress(msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            quick: JsonValue = _FAST_DECODER.decode(text)
            return quick
    try:
        value: JsonValue = _TOLERANT_DECODER.decode(text.removeprefix("\ufeff"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return value


def to_json(value: JsonValue) -> str:
    """Serialise a parsed value without spaces.

    Raises:
        RecursionError: it is nested some hundred levels deep; `from_json` reads a little deeper than this writes.
    """
    if isinstance(value, JsonNumber):
        return str(value)
    with contextlib.suppress(UnicodeEncodeError):
        return _ENCODER.encode(value).decode()
    if isinstance(value, dict):
        return "{" + ",".join([f"{json_string(key)}:{to_json(item)}" for key, item in value.items()]) + "}"
    if isinstance(value, list):
        return "[" + ",".join([to_json(item) for item in value]) + "]"
    return json_string(str(value))


def look_up(value: JsonValue, path: str) -> JsonValue:
    """Return the value at a dotted path: names into objects, numbers from 0 into arrays, longer keys first.

    Every part of the value is visited at most once, so a hostile payload costs no more than its size.

    Raises:
        LookupError: there is no value at that path.
    """
    if isinstance(value, dict):
        if path in value:
            return value[path]
        head = path
        while "." in head:
            head = head.rpartition(".")[0]
            if head in value:
                try:
                    return look_up(value[head], path[len(head) + 1 :])
                except LookupError:
                    continue
    elif isinstance(value, list):
        head, _, tail = path.partition(".")
        if head.isascii() and head.isdigit() and len(head) < 10 and int(head) < len(value):
            item = value[int(head)]
            return look_up(item, tail) if tail else item
    raise LookupError(path)


def default_of(placeholder: Placeholder) -> JsonValue:
    """Return the default of a placeholder, None without one. Like a number it is inserted as it is in JSON."""
    return None if placeholder.default is None else JsonNumber(placeholder.default)


class Values(Struct, eq=False):
    """Base of all kinds: a payload with a time, Unix seconds. For one thread: it caches what it parsed."""

    payload: bytes
    timestamp: float
    text: str | None = None
    """The payload as text, None until it is needed."""
    json: tuple[JsonValue] | None = None
    """The payload as JSON, in a tuple, since its value may be None."""
    _noun: ClassVar[str] = "payload"

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
        """Return the value of a placeholder, its default where the value is missing or null.

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
    """The body of a response. Its errors differ: when a value is missing, the request has been sent already."""

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


def first_record(text: str) -> list[str]:
    """Return the fields of the first CSV record (RFC 4180); none for an empty text. Spaces belong to their field.

    A quote inside a field that does not begin with one is taken as it is, as spreadsheets write it now and then.

    Raises:
        ValueError: A quoted field is not closed, or text follows its closing quote.
    """
    text = text.removeprefix("\ufeff")
    fields: list[str] = []
    position = 0
    more = bool(text)
    while more and len(fields) < MAX_FIELDS:
        found = _FIELD.match(text, position)
        if found is None or (found[1] is None and found[2].startswith('"')):
            raise ValueError("a quoted field is not closed, or text follows its closing quote")
        fields.append(found[2] if found[1] is None else found[1].replace('""', '"'))
        position, more = found.end(), found[3] == ","
    return fields

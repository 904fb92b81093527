"""Values of placeholders: a message or a request, each part parsed at most once, when it is needed. Pure.

JSON of payloads and bodies is read without losing a digit, looked into by dotted paths, written compactly.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn, TypeAlias

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.placeholders.syntax import RAW, RAW_RESPONSE, Placeholder
from amqtt_rest_bridge.times import rfc3339

MAX_FIELDS = 10_000
"""Fields that are read of a record: a placeholder counts up to 9999."""

_FIELD = re.compile(r'(?:"((?:[^"]|"")*+)"|([^,\r\n]*+))(,|(?=[\r\n])|\Z)')


class JsonNumber(str):
    """A JSON number as its own text, so that `21.50` and thirty digits come out as they went in."""

    __slots__ = ()


JsonValue: TypeAlias = "str | bool | list[JsonValue] | dict[str, JsonValue] | None"
"""A parsed JSON value; numbers are `JsonNumber`, a kind of str."""

json_string = json.JSONEncoder(ensure_ascii=False).encode
"""Write a str as a JSON string literal with its quotes."""


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")  # Python's reader takes NaN and Infinity, RFC 8259 section 6 does not


_DECODER = json.JSONDecoder(parse_float=JsonNumber, parse_int=JsonNumber, parse_constant=_refuse_constant)


def from_json(text: str) -> JsonValue:
    """Parse a JSON text; a byte order mark before it is ignored (RFC 8259 section 8.1).

    Raises:
        ValueError: it is not JSON, or is nested too deeply to be read.
    """
    try:
        value: JsonValue = _DECODER.decode(text.removeprefix("\ufeff"))
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
    if isinstance(value, dict):
        return "{" + ",".join([f"{json_string(key)}:{to_json(item)}" for key, item in value.items()]) + "}"
    if isinstance(value, list):
        return "[" + ",".join([to_json(item) for item in value]) + "]"
    return json_string(value)


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
    """Return the default of a placeholder, None without one: inserted as it is outside of JSON strings, as a number."""
    return None if placeholder.default is None else JsonNumber(placeholder.default)


class Values:
    """Base of all kinds: a payload with a time. For one thread: it caches what it parsed."""

    __slots__ = ("_json", "_text", "_timestamp", "payload")
    _noun = "payload"

    def __init__(self, payload: bytes, timestamp: float) -> None:
        self.payload = payload
        self._timestamp = timestamp
        self._text: str | None = None
        self._json: tuple[JsonValue] | None = None

    def get(self, placeholder: Placeholder) -> JsonValue:
        """Return the value of a placeholder.

        Raises:
            CallError: `placeholder_unresolved`, it has none.
        """
        root = placeholder.root
        if root == RAW:
            return self._as_text(placeholder)
        if root == "json":
            return self._field(placeholder)
        if root.startswith("timestamp"):
            milliseconds = round(self._timestamp * 1000)
            if root == "timestamp.unix_ms":
                return JsonNumber(milliseconds)
            return JsonNumber(milliseconds // 1000) if root == "timestamp.unix" else rfc3339(self._timestamp)
        return self._own(placeholder)

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

    def raw(self, placeholder: Placeholder) -> bytes:  # noqa: ARG002  # there is one kind of bytes, but of a result
        """Return the bytes of `{payload}`, `{value}`, `{body}` or `{response.body}`."""
        return self.payload

    def _own(self, placeholder: Placeholder) -> JsonValue:
        raise NotImplementedError

    def unresolved(self, placeholder: Placeholder, reason: str, hint: str) -> CallError:
        """Return the error for a placeholder without a value."""
        message = f"{{{placeholder.name}}} has no value: {reason}"
        return catalogue.PLACEHOLDER_UNRESOLVED.error(message, hint=hint, unsent=True)

    def _as_text(self, placeholder: Placeholder) -> str:
        if self._text is None:
            try:
                self._text = self.payload.decode()
            except UnicodeDecodeError as error:
                reason = f"the {self._noun} is not UTF-8 text"
                raise self.unresolved(placeholder, reason, catalogue.BINARY_VALUE.hint) from error
        return self._text

    def _field(self, placeholder: Placeholder) -> JsonValue:
        if self._json is None:
            try:
                self._json = (from_json(self._as_text(placeholder)),)
            except ValueError as error:
                reason, hint = f"the {self._noun} is not JSON", f"Send a JSON {self._noun}."
                raise self.unresolved(placeholder, reason, hint) from error
        (value,) = self._json
        if not placeholder.argument:
            return value
        try:
            return look_up(value, placeholder.argument)
        except LookupError as error:
            reason = f"the {self._noun} has no field {placeholder.argument}"
            raise self.unresolved(placeholder, reason, catalogue.MISSING_FIELD.hint) from error


class MessageValues(Values):
    """The values of a message, for client mode; `timestamp` is Unix time in seconds."""

    __slots__ = ("_csv", "_topic")

    def __init__(self, topic: str, payload: bytes, timestamp: float) -> None:
        super().__init__(payload, timestamp)
        self._topic = topic
        self._csv: list[str] | None = None

    def _own(self, placeholder: Placeholder) -> JsonValue:
        if placeholder.root == "topic":
            return self._topic
        if placeholder.root == "csv":
            return self._csv_field(placeholder)
        if placeholder.root != "level":
            raise self.unresolved(placeholder, "there is no response", catalogue.MISSING_RESPONSE.hint)
        levels = self._topic.split("/")
        number = int(placeholder.argument)
        if number > len(levels):
            reason = f"the topic has only {len(levels)} levels"
            raise self.unresolved(placeholder, reason, catalogue.MISSING_LEVEL.hint)
        return levels[number - 1]

    def _csv_field(self, placeholder: Placeholder) -> str:
        if self._csv is None:
            try:
                self._csv = first_record(self._as_text(placeholder))
            except ValueError as error:
                reason, hint = f"the payload is not CSV: {error}", "Send CSV (RFC 4180)."
                raise self.unresolved(placeholder, reason, hint) from error
        number = int(placeholder.argument)
        if number >= len(self._csv):
            reason = f"the payload's first record has {len(self._csv)} field(s)"
            raise self.unresolved(placeholder, reason, catalogue.MISSING_CSV_FIELD.hint)
        return self._csv[number]


_OF_RESPONSE = {RAW_RESPONSE: RAW, "response.json": "json"}


class ResultValues(MessageValues):
    """The values of a message and of the response to its request; repeated `headers` are joined."""

    __slots__ = ("_headers", "_response", "_status")

    def __init__(
        self,
        topic: str,
        payload: bytes,
        timestamp: float,
        *,
        status: int,
        headers: Iterable[tuple[str, str]],
        body: bytes,
    ) -> None:
        super().__init__(topic, payload, timestamp)
        self._status = status
        self._headers = headers
        self._response = _ResponseBody(body, timestamp)

    def raw(self, placeholder: Placeholder) -> bytes:
        """Return the bytes of the payload or of the response."""
        return self._response.payload if placeholder.root == RAW_RESPONSE else self.payload

    def _own(self, placeholder: Placeholder) -> JsonValue:
        root = placeholder.root
        if root in _OF_RESPONSE:
            return self._response.get(replace(placeholder, root=_OF_RESPONSE[root]))
        if root == "response.status":
            return JsonNumber(self._status)
        if root == "response.header":
            found = [value for name, value in self._headers if name.lower() == placeholder.argument]
            if not found:
                raise self._response.unresolved(placeholder, f"the response has no header {placeholder.argument}", "")
            return ", ".join(found)
        return super()._own(placeholder)


class _ResponseBody(Values):
    """The body of a response: the request has been sent by the time that it lacks a value."""

    _noun = "response"

    def unresolved(self, placeholder: Placeholder, reason: str, hint: str) -> CallError:
        """Return the error for a placeholder without a value."""
        message = f"{{{placeholder.name}}} has no value: {reason}"
        hint = f"See what the server sends, and correct the route, or write a default: {{{placeholder.name}|text}}"
        return catalogue.PLACEHOLDER_UNRESOLVED.error(message, hint=hint)


class RequestValues(Values):
    """The values of a request, for server mode; all text is percent-decoded, header names are in lower case."""

    __slots__ = ("_headers", "_method", "_path", "_path_parameters", "_query", "_request_id")
    _noun = "request body"

    def __init__(
        self,
        *,
        method: str,
        path: str,
        path_parameters: Mapping[str, str],
        query: Mapping[str, Sequence[str]],
        headers: Mapping[str, str],
        body: bytes,
        timestamp: float,
        request_id: str,
    ) -> None:
        super().__init__(body, timestamp)
        self._method = method
        self._path = path
        self._path_parameters = path_parameters
        self._query = query
        self._headers = headers
        self._request_id = request_id

    def _own(self, placeholder: Placeholder) -> JsonValue:
        root, name = placeholder.root, placeholder.argument
        if root == "query":
            found = self._query.get(name, ())
            return self._given(placeholder, found[-1] if found else None, f"query parameter {name}")
        if root == "header":
            return self._given(placeholder, self._headers.get(name), f"header {name}")
        if root == "path.x":
            return self._given(placeholder, self._path_parameters.get(name), f"path parameter {name}")
        return {"method": self._method, "path": self._path, "request_id": self._request_id}[root]

    def _given(self, placeholder: Placeholder, value: str | None, what: str) -> str:
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



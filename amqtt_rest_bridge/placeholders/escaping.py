"""Escaping of values by place: `ESCAPES` maps each place (endpoint, header, topic, kinds of body) to its function.

A value never changes the shape of the text that it is inserted into: it is escaped, or refused where escaping is not
possible. Pure; any thread.
"""

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType
from urllib.parse import quote

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.catalogue import FailureRow
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.placeholders.names import RAWS, Placeholder
from amqtt_rest_bridge.placeholders.values import JsonNumber, JsonValue, json_string, to_json


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
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_TOPIC_SPECIAL = re.compile(r"[+#\x00-\x1f\x7f-\x9f]")


def refuse(placeholder: Placeholder, reason: str, row: FailureRow) -> CallError:
    """Return the error for a value that its place does not allow; it never shows the value."""
    return row.error(f"the value of {{{placeholder.name}}} {reason}", unsent=True)


def as_text(placeholder: Placeholder, value: JsonValue) -> str:
    """Return a value as text: a string as it is, anything else as JSON."""
    try:
        text = value if isinstance(value, str) else to_json(value)
    except RecursionError as error:
        raise refuse(placeholder, "is nested too deeply", catalogue.FLATTER_VALUE) from error
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise refuse(
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
    if _CONTROL.search(text):
        raise refuse(
            placeholder, "holds a control character, which a header cannot carry", catalogue.NO_LINE_BREAKS
        )
    return text


def escape_in_topic(placeholder: Placeholder, value: JsonValue) -> str:
    """Refuse what would add a level or a wildcard; a whole topic keeps its slashes."""
    text = as_text(placeholder, value)
    if _TOPIC_SPECIAL.search(text) or ("/" in text and placeholder.root != "topic"):
        raise refuse(
            placeholder,
            "holds a character that would change the topic",
            catalogue.NO_TOPIC_CHARACTERS,
        )
    return text


def escape_in_json(placeholder: Placeholder, value: JsonValue) -> str:
    """Write JSON outside a string literal (`{payload}` as it is), escaped text inside one (RFC 8259 section 7)."""
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

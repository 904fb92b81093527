"""How a value is written into an endpoint, header, topic or body: decisions on shape, one function a place. Pure."""

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType
from urllib.parse import quote

from amqtt_rest_bridge.errors import CallError, FailureCode
from amqtt_rest_bridge.placeholders.json_values import JsonNumber, JsonValue, json_string, to_json
from amqtt_rest_bridge.placeholders.names import RAW, Placeholder


class Place(StrEnum):
    """Where a text stands, which decides how what is inserted is escaped; the last three are bodies."""

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


def refuse(placeholder: Placeholder, reason: str, hint: str) -> CallError:
    """Make the error for a value that cannot stand where its placeholder stands; it never tells the value."""
    return CallError(FailureCode.INVALID_VALUE, f"the value of {{{placeholder.name}}} {reason}", hint, unsent=True)


def text_of(placeholder: Placeholder, value: JsonValue) -> str:
    """Give a value as text: a string is its text, anything else its JSON."""
    try:
        text = value if isinstance(value, str) else to_json(value)
    except RecursionError as error:
        raise refuse(placeholder, "is nested too deeply", "Send a flatter value.") from error
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise refuse(
                placeholder, "holds half a surrogate pair, which has no UTF-8 form", "Send whole characters."
            ) from error
    return text


def in_endpoint(placeholder: Placeholder, value: JsonValue) -> str:
    """Percent-encode all but RFC 3986 unreserved characters; a whole topic keeps its slashes."""
    text = text_of(placeholder, value)
    if _UNRESERVED.fullmatch(text):  # ten times faster than quote, and the usual case
        return text
    return quote(text, safe="/" if placeholder.root == "topic" else "")


def in_header(placeholder: Placeholder, value: JsonValue) -> str:
    """Refuse control characters, so that a value cannot end its header (RFC 9110 section 5.5)."""
    text = text_of(placeholder, value)
    if _CONTROL.search(text):
        raise refuse(
            placeholder, "holds a control character, which a header cannot carry", "Send text without line breaks."
        )
    return text


def in_topic(placeholder: Placeholder, value: JsonValue) -> str:
    """Refuse what would add a level or a wildcard; a whole topic keeps its slashes."""
    text = text_of(placeholder, value)
    if _TOPIC_SPECIAL.search(text) or ("/" in text and placeholder.root != "topic"):
        raise refuse(
            placeholder,
            "holds a character that would change the topic",
            "Send a value without /, +, # and control characters.",
        )
    return text


def in_json(placeholder: Placeholder, value: JsonValue) -> str:
    """Write JSON outside a string literal (`{payload}` as it is), escaped text inside one (RFC 8259 section 7)."""
    if placeholder.quoted:
        return json_string(text_of(placeholder, value))[1:-1]
    text = text_of(placeholder, value)
    if isinstance(value, str) and not isinstance(value, JsonNumber) and placeholder.root != RAW:
        return json_string(text)
    return text


def in_form(placeholder: Placeholder, value: JsonValue) -> str:
    """Percent-encode all but unreserved characters, so that a value cannot add a field."""
    return quote(text_of(placeholder, value), safe="")


ESCAPES: Mapping[Place, Callable[[Placeholder, JsonValue], str]] = MappingProxyType(
    {
        Place.ENDPOINT: in_endpoint,
        Place.HEADER: in_header,
        Place.TOPIC: in_topic,
        Place.JSON: in_json,
        Place.FORM: in_form,
        Place.TEXT: text_of,
    }
)

"""JSON of payloads and bodies: read without losing a digit, looked into by dotted paths, written compactly. Pure."""

import json
from typing import NoReturn, TypeAlias


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

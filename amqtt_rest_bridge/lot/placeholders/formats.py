"""JSON and CSV as payloads have them: JSON without losing a digit, and the first record of a CSV text. Pure."""

import contextlib
import json
import re
from typing import Final, NoReturn, TypeAlias

import msgspec

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

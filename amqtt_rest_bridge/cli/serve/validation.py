"""Values of a YAML file validated against the dataclass that takes them: all invalid ones at once, in words. Pure.

pydantic validates, strictly: no text for a number, no true for 1. dacite builds the object, because amqtt does
so: it has the last word, so that nothing is accepted here which amqtt would refuse.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import dacite
from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from amqtt_rest_bridge.errors import reason
from amqtt_rest_bridge.spelling import did_you_mean

_WORDS: Final[Mapping[Any, str]] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a mapping",
    NoneType: "null",
}
_NUMBER: Final = re.compile(r"[-+]?(0|[1-9][0-9]*)")  # what YAML reads as a whole number unless it is quoted
_EXPECTED: Final = {"bool": bool, "int": int, "float": float, "string": str, "list": list, "dict": dict}


@dataclass(frozen=True, slots=True)
class InvalidValue:
    """An invalid setting; `key` is its name, None when it is about all values together."""

    key: str | None
    message: str
    hint: str | None = None


def build(
    kind: type[Any], values: Mapping[Any, Any], cast: tuple[type[Enum], ...] = ()
) -> tuple[Any, list[InvalidValue]]:
    """Build a dataclass as amqtt would.

    Args:
        kind: The dataclass; its `__post_init__` may refuse values.
        values: Its members by name.
        cast: Enums that are written as their values.

    Returns:
        The object, None if it could not be built, and all invalid settings; amqtt refuses them too.
    """
    members = {field.name: field for field in fields(kind) if field.init}
    types = get_type_hints(kind)
    invalid = [
        InvalidValue(key, f"unknown setting {key}", did_you_mean(str(key), list(members)))
        for key in values
        if key not in members
    ]
    for name in members:
        if name in values:
            invalid += _invalid_member(name, types[name], values[name], cast)
    wrong = {found.key for found in invalid}
    rest = {key: value for key, value in values.items() if key not in wrong}
    missing = [
        InvalidValue(None, f'missing value for field "{name}"')
        for name, field in members.items()
        if name not in values and field.default is MISSING and field.default_factory is MISSING
    ]
    if missing or any(field.default is MISSING for name, field in members.items() if name in wrong):
        return None, invalid + missing
    try:
        return dacite.from_dict(kind, rest, dacite.Config(strict=True, cast=list(cast))), invalid
    except dacite.WrongTypeError as error:  # deep in a dataclass of the plugin's own; the value may be a password
        place = error.field_path or ""
        message = _must_be(place, error.field_type, error.value)
        return None, [*invalid, InvalidValue(place.partition(".")[0], message)]
    except Exception as error:  # noqa: BLE001  # a plugin's own check may raise anything; it becomes an invalid setting
        return None, [*invalid, InvalidValue(None, reason(error))]


def _invalid_member(name: str, hint: Any, value: Any, cast: tuple[type[Enum], ...]) -> Iterator[InvalidValue]:
    """Validate one member; at most one fault, without the value, which may be a password."""
    try:
        config = ConfigDict(strict=hint not in cast, arbitrary_types_allowed=True)
        TypeAdapter(hint, config=config).validate_python(value)
    except PydanticUserError:  # a type that pydantic cannot check; dacite does
        return
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False)
        if any(error["type"] == "dataclass_exact_type" for error in errors):  # written as a mapping, which dacite takes
            return
        first = errors[0]
        if first["type"] == "enum":
            yield InvalidValue(name, f"{name} must be {first['ctx']['expected'].replace(chr(39), '')}")
        elif first["loc"] and get_origin(hint) not in (Union, UnionType):  # inside a list or mapping
            place = ".".join([name, *(str(part) for part in first["loc"])])
            expected = _EXPECTED.get(first["type"].removesuffix("_type"))
            yield InvalidValue(name, _must_be(place, expected, first["input"]) if expected else f"{place} does not fit")
        else:
            quoted = isinstance(value, str) and int in (hint, *get_args(hint)) and _NUMBER.fullmatch(value)
            yield InvalidValue(name, _must_be(name, hint, value), "write a number without quotes" if quoted else None)


def _must_be(place: str, hint: Any, value: Any) -> str:
    return f"{place} must be {_words(hint)}, not {_words(type(value))}"


def _words(kind: Any) -> str:
    if kind in _WORDS:
        return _WORDS[kind]
    arguments = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(_words(argument) for argument in arguments)
    if get_origin(kind) is list:
        return f"a list of {_words(arguments[0])}"
    if get_origin(kind) is dict:
        return _WORDS[dict]
    return str(getattr(kind, "__name__", kind))

"""Values from a YAML file into the dataclass that takes them: every misfit at once, in words. Pure.

dacite, which amqtt uses for the same, names the first misfit only, in terms of Python's types.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import dacite

from amqtt_rest_bridge.errors import reason
from amqtt_rest_bridge.language.report import did_you_mean

_WORDS: Final[Mapping[Any, str]] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a mapping",
    NoneType: "null",
}


@dataclass(frozen=True, slots=True)
class Misfit:
    """One thing that does not fit; `key` is where, None when it is about all values together."""

    key: str | None
    message: str
    hint: str | None = None


def fit(kind: type[Any], values: Mapping[Any, Any], cast: tuple[type[Enum], ...] = ()) -> tuple[Any, list[Misfit]]:
    """Build a dataclass as amqtt would.

    Args:
        kind: The dataclass; its `__post_init__` may refuse values.
        values: Its members by name.
        cast: Enums that are given as their values.

    Returns:
        The object, None if it could not be built, and everything that does not fit; amqtt refuses values with misfits.
    """
    known = [field.name for field in fields(kind)]
    misfits = [
        Misfit(key, f"unknown setting {key}", did_you_mean(str(key), known)) for key in values if key not in known
    ]
    misfits += _no_members(kind, values, cast)
    misfits += _no_numbers(kind, values)
    wrong = {misfit.key for misfit in misfits}
    rest = {key: value for key, value in values.items() if key not in wrong}
    config = dacite.Config(strict=True, cast=list(cast))
    while True:
        try:
            return dacite.from_dict(kind, rest, config), misfits
        except dacite.WrongTypeError as error:
            key = (error.field_path or "").partition(".")[0]
            misfits.append(_wrong_type(error, key))
            if rest.pop(key, None) is None:
                return None, misfits
        except dacite.DaciteError as error:  # what a misfit leaves out may be missed then
            return None, misfits or [Misfit(None, reason(error))]
        except Exception as error:  # noqa: BLE001  # a plugin's own check may raise anything; it becomes a misfit
            return None, [*misfits, Misfit(None, reason(error))]


def _no_members(kind: type[Any], values: Mapping[Any, Any], cast: tuple[type[Enum], ...]) -> Iterator[Misfit]:
    for field in fields(kind):
        allowed = [member.value for member in field.type] if field.type in cast else []
        if allowed and field.name in values and values[field.name] not in allowed:
            yield Misfit(field.name, f"{field.name} must be {', '.join(allowed[:-1])} or {allowed[-1]}")


def _no_numbers(kind: type[Any], values: Mapping[Any, Any]) -> Iterator[Misfit]:
    """Refuse true and false where a number belongs; Python, and so dacite, takes them for 1 and 0."""
    hints = get_type_hints(kind)
    for field in fields(kind):
        kinds = {hints[field.name], *get_args(hints[field.name])}
        if isinstance(values.get(field.name), bool) and bool not in kinds and kinds & {int, float}:
            yield Misfit(field.name, f"{field.name} must be {_words(hints[field.name])}, not {_WORDS[bool]}")


def _wrong_type(error: dacite.WrongTypeError, key: str) -> Misfit:
    hint = None
    if isinstance(error.value, str) and int in (error.field_type, *get_args(error.field_type)):
        hint = "write a number without quotes"
    # The value itself stays out of the message: it may be a password.
    return Misfit(key, f"{error.field_path} must be {_words(error.field_type)}, not {_words(type(error.value))}", hint)


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

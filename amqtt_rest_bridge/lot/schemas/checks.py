"""What a payload has against a schema. Any thread.

A payload may be hostile: its values are never in a fault, its places are; nothing is
fetched; a check takes `MOST_SECONDS` of processor time at most, with patterns such as `(a+)+$` and schemas that branch
at each level too; what is nested too deeply for the checker is a fault like others.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from types import SimpleNamespace
from typing import Any, Final

from attrs import evolve
from jsonschema import Draft202012Validator, ValidationError, _utils
from jsonschema.validators import extend
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from amqtt_rest_bridge.lot.schemas.texts import fault_of, parse, pointer_of, search_of, shown

MOST_FAULTS: Final = 20
MOST_SECONDS: Final = 1.0
"""Of processor time to check a payload."""
_SHORT: Final = 100  # characters of a text for which other threads can wait
_ends = ContextVar("_ends", default=math.inf)  # the processor time of this thread at which a check is given up


def checker_of(documents: tuple[tuple[str, str], ...]) -> Callable[[bytes], list[str]]:
    """Compile a schema that `SchemaReader` has returned."""
    resources = [(uri, DRAFT202012.create_resource(json.loads(text))) for uri, text in documents]
    registry: Any = Registry().with_resources(resources)
    # By its URI, so that what it refers to is looked up beside it.
    validator = _Validator({"$ref": documents[0][0]}, registry=registry)

    def check(payload: bytes) -> list[str]:
        try:
            instance = parse(payload.decode())
        except (ValueError, RecursionError) as error:
            return [f"(root) is not JSON: {fault_of(error)}"]
        faults: dict[str, None] = {}
        try:
            with bounded(MOST_SECONDS):
                for found in validator.iter_errors(instance):
                    faults[f"{pointer_of(found.absolute_path)} {_text_of(found)}"] = None
                    if len(faults) > MOST_FAULTS:
                        return [*islice(faults, MOST_FAULTS), "and more"]
        except RecursionError:
            faults["(root) is nested too deeply"] = None
        except TooLongError:
            faults[f"(root) cannot be checked within {MOST_SECONDS:g} s"] = None
        except ArithmeticError:
            faults["(root) holds a number that cannot be checked"] = None
        return list(faults)

    return check


# The bound. `re` cannot be given up: `(a+)+$` against thirty letters would hold the interpreter lock for minutes.
# `regex` can, and has the classes of Unicode (`\p{L}`) that schemas may use.


class TooLongError(Exception):
    """A check has used up its time."""


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Make `go_on` and `matches` raise `TooLongError` after so much processor time."""
    token = _ends.set(time.thread_time() + seconds)
    try:
        yield
    finally:
        _ends.reset(token)


def go_on() -> float:
    """Return the seconds that are left; raises `TooLongError` where there are none."""
    left = _ends.get() - time.thread_time()
    if left <= 0:
        raise TooLongError
    return left


def matches(pattern: str, text: str) -> bool:
    """Return whether a pattern is found in a text, within the time that is left."""
    left = go_on()
    try:
        timeout = None if left == math.inf else left
        return search_of(pattern)(text, timeout=timeout, concurrent=len(text) > _SHORT) is not None
    except TimeoutError:
        raise TooLongError from None


# Keywords: those of the library, but for those that would not keep the bound.


def _pattern(validator: Any, value: str, instance: Any, _: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and not matches(value, instance):
        yield ValidationError("")


def _properties(validator: Any, value: Mapping[str, Any], instance: Any, _: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "object"):
        for key, schema in value.items():
            if key in instance:
                yield from _member(validator, instance[key], schema, key)


def _pattern_properties(validator: Any, value: Mapping[str, Any], instance: Any, _: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "object"):
        for pattern, schema in value.items():
            for key, item in instance.items():
                if matches(pattern, key):
                    yield from _member(validator, item, schema, key)


def _additional_properties(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "object"):
        known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for key, item in instance.items():
            if key not in known and not any(matches(one, key) for one in patterns):
                yield from _member(validator, item, value, key)


def _member(validator: Any, item: Any, schema: Any, key: str) -> Iterator[ValidationError]:
    if schema is False:  # the library does not name the place
        yield ValidationError("", path=(key,))
    else:
        yield from validator.descend(item, schema, path=key)


def _unique_items(validator: Any, value: bool, instance: Any, _: Any) -> Iterator[ValidationError]:
    # The library compares objects pair by pair: 20,000 of them take minutes.
    if value and validator.is_type(instance, "array") and len({_key(one) for one in instance}) < len(instance):
        yield ValidationError("")


def _key(value: Any) -> Any:
    """Return what is equal for equal JSON values, and can be in a set: 1 is 1.0, but not true."""
    if isinstance(value, dict):
        return "{", frozenset((name, _key(item)) for name, item in value.items())
    if isinstance(value, list):
        return "[", tuple(_key(item) for item in value)
    return ("b", value) if isinstance(value, bool) else value


def _bounded(keyword: Any) -> Any:
    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        go_on()
        return keyword(validator, value, instance, schema)

    return check


_KEYWORDS: Final = {
    **Draft202012Validator.VALIDATORS,
    "pattern": _pattern,
    "properties": _properties,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
}
_Validator: Any = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator, {name: _bounded(keyword) for name, keyword in _KEYWORDS.items()}
)
# unevaluatedProperties compares names with patterns in there, by `re`, which cannot be given up.
_utils.re = SimpleNamespace(search=matches)  # type: ignore[attr-defined]
# The library's own takes the class that $schema names, whose keywords keep no bound.
_Validator.evolve = evolve


# Faults, made of the schema and of places in the payload; never of its values.

_FAULTS: Final[Mapping[str, str]] = {
    "properties": "is not allowed",
    "patternProperties": "is not allowed",
    "additionalProperties": "is not allowed",
    "type": "is not of type {}",
    "enum": "is none of {}",
    "const": "is not {}",
    "minimum": "is less than {}",
    "maximum": "is more than {}",
    "exclusiveMinimum": "is not more than {}",
    "exclusiveMaximum": "is not less than {}",
    "multipleOf": "is not a multiple of {}",
    "minLength": "is shorter than {} characters",
    "maxLength": "is longer than {} characters",
    "pattern": "does not match the pattern {}",
    "items": "has too many items",
    "minItems": "has fewer than {} items",
    "maxItems": "has more than {} items",
    "uniqueItems": "holds an item twice",
    "contains": "has too few items that match contains",
    "minContains": "has too few items that match contains",
    "maxContains": "has too many items that match contains",
    "minProperties": "has fewer than {} members",
    "maxProperties": "has more than {} members",
    "dependentRequired": "lacks a member that another one of it needs",
    "unevaluatedProperties": "has members that the schema does not know",
    "unevaluatedItems": "has items that the schema does not know",
    "anyOf": "matches no schema of anyOf",
    "oneOf": "does not match exactly one schema of oneOf",
    "not": "matches the schema of not",
}


def _text_of(error: ValidationError) -> str:
    keyword: Any = error.validator
    value: Any = error.validator_value
    instance: Any = error.instance
    if not isinstance(keyword, str):  # the whole schema is false
        return "is not allowed"
    if keyword == "required":
        return f"lacks {', '.join([shown(name) for name in value if name not in instance])}"
    if keyword == "type" and isinstance(value, list):
        return f"is not of type {', '.join(value[:-1])} or {value[-1]}"
    written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return _FAULTS.get(keyword, f"does not satisfy {shown(keyword)}").replace("{}", shown(written))

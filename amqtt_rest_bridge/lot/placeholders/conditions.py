"""Conditions (WHEN): a tree of tests, which is true or false for a message or request. Pure; any thread.

The tree is data, so that a route can be pickled: a process of its own loads it. A value that is missing, or of another
JSON type, makes its comparison false.
"""

import contextlib
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from amqtt_rest_bridge.errors import CallError, on_one_line
from amqtt_rest_bridge.lot.placeholders.formats import JsonNumber, JsonValue, from_json, to_json
from amqtt_rest_bridge.lot.placeholders.kinds import Placeholder
from amqtt_rest_bridge.lot.placeholders.text import Values


@dataclass(frozen=True, slots=True)
class Literal:
    """A number (`JsonNumber`), string, true, false or null; it may be the value of a secret."""

    value: JsonValue = field(repr=False)


Operand: TypeAlias = Placeholder | Literal


@dataclass(frozen=True, slots=True)
class Test:
    """An operation on other `tests`, AND, OR or NOT, or on `operands`.

    The operands of a comparison (`OPERATORS`) are its two sides. Those of IN are a value and the values that it may
    equal. Those of LIKE are a value and a pattern, in which `%` matches any text and `_` any character. EXISTS has one
    placeholder, whose value may be null.
    """

    operation: str
    operands: tuple[Operand, ...] = ()
    tests: "tuple[Test, ...]" = ()


@dataclass(frozen=True, slots=True)
class Condition:
    """A WHEN setting; `source` is its text as written."""

    source: str
    test: Test = field(repr=False)

    @property
    def placeholders(self) -> tuple[Placeholder, ...]:
        """Return the placeholders in it, in their order."""
        return tuple(operand for operand in _operands(self.test) if isinstance(operand, Placeholder))

    @property
    def names(self) -> tuple[str, ...]:
        """Return the placeholders in it as they are written, without braces."""
        return tuple(placeholder.name for placeholder in self.placeholders)


def _operands(test: Test) -> Iterator[Operand]:
    yield from test.operands
    for one in test.tests:
        yield from _operands(one)


_MISSING: Final = object()
WHEN_FALSE: Final = "when_false"
WHEN_UNUSABLE: Final = "when_unusable"
_MOST_MASKED: Final = 65_536  # characters of a value that are masked; fewer are shown


@dataclass(frozen=True, slots=True)
class Unusable:
    """A value for which a test can only be false: it is missing, or of none of the `wanted` types."""

    placeholder: Placeholder
    wanted: tuple[str, ...] = ()


def is_true(condition: Condition, values: Values) -> bool:
    """Return whether a condition is true for a message or request; it never raises."""
    return _judge(condition.test, values) is True


def why_false(condition: Condition, values: Values, mask: Callable[[Placeholder, str], str]) -> tuple[str, str]:
    """Return the code and the sentence that say why a condition is false for a message or request.

    `mask` returns a value without secrets; values are masked before they are cut, so that no part of a secret is left.

    `WHEN_UNUSABLE`: a value that decides is missing, or has another type than what it is compared with. Any other
    condition that is false is `WHEN_FALSE`, and the sentence has the values of its placeholders.
    """
    verdict = _judge(condition.test, values)
    if isinstance(verdict, Unusable):
        instead = f", not {' or '.join(verdict.wanted)}" if verdict.wanted else ""
        return WHEN_UNUSABLE, f"WHEN: {_describe(verdict.placeholder, values, mask)}{instead}"
    given = ", ".join(_describe(one, values, mask) for one in dict.fromkeys(condition.placeholders))
    return WHEN_FALSE, f"WHEN {on_one_line(condition.source, 1000)} is false: {given or 'it holds no placeholder'}"


def _judge(test: Test, values: Values) -> bool | Unusable:
    """Return whether a test is true, or the value for which it can only be false.

    Of AND that is the verdict on its first test that is not true. Of OR, if no test is true, it is False if one of them
    is False, otherwise the unusable value of the first one.
    """
    match test.operation:
        case "AND":
            for one in test.tests:
                if (verdict := _judge(one, values)) is not True:
                    return verdict
            return True
        case "OR":
            verdicts: list[bool | Unusable] = []
            for one in test.tests:
                if (verdict := _judge(one, values)) is True:
                    return True
                verdicts.append(verdict)
            return False if False in verdicts else verdicts[0]
        case "NOT":
            return _judge(test.tests[0], values) is not True
    found, *others = [_value(operand, values) for operand in test.operands]
    match test.operation:
        case "EXISTS":
            return found is not _MISSING
        case "IN":
            is_true = found is not _MISSING and any(_equal(found, one) for one in others)
        case "LIKE":
            is_true = isinstance(found, str) and _compiled_pattern(others[0]).fullmatch(found) is not None
        case name:
            is_true = found is not _MISSING and others[0] is not _MISSING and OPERATORS[name](found, others[0])
    return is_true or _unusable(test, found, others) or False


def _unusable(test: Test, found: Any, others: Sequence[Any]) -> Unusable | None:
    """Return the value of a test that is missing, or of another type than all that it is compared with."""
    beside = [(test.operands[0], found, others)]
    if test.operation in OPERATORS:
        beside.append((test.operands[1], others[0], [found]))
    for operand, value, wanted in beside:
        if isinstance(operand, Literal):
            continue
        if value is _MISSING:
            return Unusable(operand)
        kinds = tuple(dict.fromkeys(_type_name(one) for one in wanted if one is not _MISSING))
        if test.operation != "!=" and kinds and "null" not in kinds and _type_name(value) not in kinds:
            return Unusable(operand, kinds)
    return None


def _type_name(value: Any) -> str:
    return "a number" if type(value) in _NUMBERS else _TYPE_NAMES.get(type(value), "null")


def _describe(placeholder: Placeholder, values: Values, mask: Callable[[Placeholder, str], str]) -> str:
    """Return a placeholder with its value, masked, or why it has none."""
    try:
        value = values.get_or_default(placeholder)
        text = to_json(value[:_MOST_MASKED] if type(value) is str else value)
        return f"{{{placeholder.name}}} is {on_one_line(mask(placeholder, text[:_MOST_MASKED]))}"
    except CallError as failed:
        return f"{{{placeholder.name}}} is missing ({failed.message.partition(': ')[2]})"
    except RecursionError:
        return f"{{{placeholder.name}}} is nested too deeply"


@lru_cache(maxsize=1024)
def _compiled_pattern(text: str) -> re.Pattern[str]:
    # Each text between two % is found once, so that no payload makes it slow.
    first, *others = (re.sub("_", ".", re.escape(part)) for part in text.split("%"))
    middle = "".join([f"(?>.*?{part})" for part in others[:-1] if part])
    return re.compile(f"{first}{middle}.*{others[-1]}" if others else first, re.DOTALL)


def _value(operand: Operand, values: Values) -> Any:
    """Return the value of an operand: numbers as int or float, `_MISSING` where there is none."""
    if isinstance(operand, Literal):
        return _as_comparable(operand.value)
    try:
        value: Any = values.get(operand)
    except CallError:
        value = _MISSING
    if operand.default is not None and (value is None or value is _MISSING):
        value = operand.default
        if operand.root == "json":
            with contextlib.suppress(ValueError):  # another text is itself
                value = from_json(operand.default)
    return _as_comparable(value)


def _as_comparable(value: Any) -> Any:
    """Return a number as int or float: whole ones compare exactly, others as doubles (RFC 8259 section 6)."""
    if not isinstance(value, JsonNumber):
        return value
    try:
        return int(value)
    except ValueError:  # a fraction, or thousands of digits
        return float(value)


def _equal(left: Any, right: Any) -> bool:
    """Compare as JSON: true is not 1, "1" is not 1, objects and arrays member by member."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict | list) and isinstance(right, dict | list):
        try:
            return _equal_inside(left, right)
        except RecursionError:
            return False
    return bool(left == right)


def _equal_inside(left: Any, right: Any) -> bool:
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_equal_inside(left[name], right[name]) for name in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_equal_inside, left, right))
    if isinstance(left, dict | list) or isinstance(right, dict | list):
        return False
    return _equal(_as_comparable(left), _as_comparable(right))


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Compare numbers with numbers and texts with texts; anything else has no order."""

    def check(left: Any, right: Any) -> bool:
        kind, other = type(left), type(right)
        if kind is other and kind in _ORDERED:
            return compare(left, right)
        return kind in _NUMBERS and other in _NUMBERS and compare(left, right)

    return check


_NUMBERS: Final = (int, float)
_ORDERED: Final = (int, float, str)
_TYPE_NAMES: Final = {str: "a text", bool: "true or false", dict: "an object", list: "an array"}

OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = MappingProxyType(
    {
        "=": _equal,
        "!=": lambda left, right: not _equal(left, right),
        "<": _ordered(operator.lt),
        "<=": _ordered(operator.le),
        ">": _ordered(operator.gt),
        ">=": _ordered(operator.ge),
    }
)
"""The function that compares two values, by operator; neither is missing."""

"""Conditions (WHEN): a tree of tests, and the plain function that it is compiled to at load. Pure; any thread.

The tree is data, so that it travels to a bridge process as part of its route. A function of it takes a message or a
request and never raises: a value that is missing, or of another JSON type, makes its comparison false.
"""

import contextlib
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.lot.placeholders.kinds import Placeholder
from amqtt_rest_bridge.lot.placeholders.values import JsonNumber, JsonValue, Values, from_json


@dataclass(frozen=True, slots=True)
class Literal:
    """A number (`JsonNumber`), string, true, false or null; it may be the value of a secret."""

    value: JsonValue = field(repr=False)


Operand: TypeAlias = Placeholder | Literal


@dataclass(frozen=True, slots=True)
class Test:
    """An operation on other `tests`, AND, OR or NOT, or on `operands`.

    Those of a comparison (`OPERATORS`) are its two sides, of IN a value and those that it may equal, of LIKE a value
    and its pattern, a text in which `%` matches any text and `_` any character; EXISTS has a placeholder, whose value
    may be null.
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


Predicate: TypeAlias = Callable[[Values], bool]
_Get: TypeAlias = Callable[[Values], Any]

_MISSING: Final = object()


def predicate(condition: Condition) -> Predicate:
    """Return the function that tells whether a condition is true for a message or request; it never raises."""
    return _compile(condition.test)


def _compile(test: Test) -> Predicate:
    match test.operation, test.operands:
        case "AND" | "OR", _:
            return _combination([_compile(one) for one in test.tests], every=test.operation == "AND")
        case "NOT", _:
            negated = _compile(test.tests[0])
            return lambda values: not negated(values)
        case "EXISTS", (placeholder,):
            get = _getter(placeholder)
            return lambda values: get(values) is not _MISSING
        case "IN", (operand, *items):
            return _combination([_comparison(operand, "=", item) for item in items], every=False)
        case "LIKE", (operand, Literal(str(pattern))):
            return _likeness(operand, pattern)
        case name, (left, right):
            return _comparison(left, name, right)
    raise AssertionError(test)


def _combination(tests: Sequence[Predicate], *, every: bool) -> Predicate:
    """Join tests in their order; by halves, so that a list of thousands does not nest as deeply as it is long."""
    if len(tests) == 1:
        return tests[0]
    half = len(tests) // 2
    first, rest = _combination(tests[:half], every=every), _combination(tests[half:], every=every)
    if every:
        return lambda values: first(values) and rest(values)
    return lambda values: first(values) or rest(values)


def _comparison(left: Operand, name: str, right: Operand) -> Predicate:
    compare, get_left = OPERATORS[name], _getter(left)
    if isinstance(right, Literal):
        fixed = _comparable(right.value)

        def compare_with_literal(values: Values) -> bool:
            value = get_left(values)
            return value is not _MISSING and compare(value, fixed)

        return compare_with_literal
    get_right = _getter(right)

    def compare_values(values: Values) -> bool:
        value, other = get_left(values), get_right(values)
        return value is not _MISSING and other is not _MISSING and compare(value, other)

    return compare_values


def _likeness(operand: Operand, pattern: str) -> Predicate:
    # Each text between two % is found once, so that no payload makes it slow.
    first, *others = (re.sub("_", ".", re.escape(part)) for part in pattern.split("%"))
    middle = "".join([f"(?>.*?{part})" for part in others[:-1] if part])
    whole = f"{first}{middle}.*{others[-1]}" if others else first
    get, fullmatch = _getter(operand), re.compile(whole, re.DOTALL).fullmatch

    def is_like(values: Values) -> bool:
        value = get(values)
        return isinstance(value, str) and fullmatch(value) is not None

    return is_like


def _getter(operand: Operand) -> _Get:
    """Return what reads an operand of a message: numbers as int or float, `_MISSING` where there is no value."""
    if isinstance(operand, Literal):
        fixed = _comparable(operand.value)
        return lambda _: fixed
    default: Any = _MISSING if operand.default is None else operand.default
    if operand.default is not None and operand.root == "json":
        with contextlib.suppress(ValueError):  # another text is itself
            default = _comparable(from_json(operand.default))

    def get(values: Values) -> Any:
        try:
            value = values.get(operand)
        except CallError:
            return default
        if isinstance(value, JsonNumber):
            return _number(value)
        return default if value is None and default is not _MISSING else value

    return get


def _comparable(value: JsonValue) -> Any:
    return _number(value) if isinstance(value, JsonNumber) else value


def _number(text: JsonNumber) -> int | float:
    """Return a number; Decision: whole ones compare exactly, others as doubles (RFC 8259 section 6)."""
    try:
        return int(text)
    except ValueError:  # a fraction, or thousands of digits
        return float(text)


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
    return _equal(_comparable(left), _comparable(right))


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
"""What compares two values that exist."""

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

from amqtt_rest_bridge.errors import CallError, on_one_line
from amqtt_rest_bridge.lot.placeholders.kinds import Placeholder
from amqtt_rest_bridge.lot.placeholders.values import JsonNumber, JsonValue, Values, from_json, to_json


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


WHEN_FALSE: Final = "when_false"
WHEN_UNUSABLE: Final = "when_unusable"


def why_false(condition: Condition, values: Values) -> tuple[str, str]:
    """Return the code and the sentence that say why a condition is false for a message or request.

    `WHEN_UNUSABLE`: a value that decides is missing, or has another type than what it is compared with. Any other
    condition that is false is `WHEN_FALSE`, and the sentence has the values of its placeholders.
    """
    verdict = _judge(condition.test, values)
    if isinstance(verdict, str):
        return WHEN_UNUSABLE, f"WHEN: {verdict}"
    given = ", ".join(_described(one, values) for one in dict.fromkeys(condition.placeholders))
    return WHEN_FALSE, f"WHEN {on_one_line(condition.source, 1000)} is false: {given or 'it holds no placeholder'}"


def _judge(test: Test, values: Values) -> bool | str:
    """Return whether a test is true, or the fault of the value for which it can only be false."""
    match test.operation, test.operands:
        case "AND", _:
            return next((one for one in (_judge(own, values) for own in test.tests) if one is not True), True)
        case "OR", _:
            verdicts = [_judge(own, values) for own in test.tests]
            return True in verdicts or (verdicts[0] if all(isinstance(one, str) for one in verdicts) else False)
        case "NOT", _:
            return _judge(test.tests[0], values) is not True
        case "EXISTS", _:
            return _compile(test)(values)
        case "IN", (operand, *items):
            found, wanted = _getter(operand)(values), [_getter(item)(values) for item in items]
            if found is not _MISSING and any(_equal(found, one) for one in wanted):
                return True
            return _fault(operand, found, wanted, values) or False
        case "LIKE", (operand, _):
            return _compile(test)(values) or _fault(operand, _getter(operand)(values), [""], values) or False
        case name, (left, right):
            if _compile(test)(values):
                return True
            first, second = _getter(left)(values), _getter(right)(values)
            wanted = [] if name == "!=" else [second]
            fault = _fault(left, first, wanted, values) if isinstance(left, Placeholder) else None
            return fault or _fault(right, second, [first] if wanted else [], values) or False
    raise AssertionError(test)


def _fault(operand: Operand, found: Any, wanted: Sequence[Any], values: Values) -> str | None:
    """Return what is wrong with the value of an operand: it is missing, or of no type of those that are wanted."""
    if isinstance(operand, Literal):
        return None
    kinds = list(dict.fromkeys(_kind(one) for one in wanted if one is not _MISSING))
    if found is _MISSING or (kinds and "null" not in kinds and _kind(found) not in kinds):
        return _described(operand, values) + ("" if found is _MISSING else f", not {' or '.join(kinds)}")
    return None


def _kind(value: Any) -> str:
    return "a number" if type(value) in _NUMBERS else _KINDS.get(type(value), "null")


def _described(placeholder: Placeholder, values: Values) -> str:
    try:
        return f"{{{placeholder.name}}} is {on_one_line(to_json(values.get_or_default(placeholder)))}"
    except CallError as failed:
        return f"{{{placeholder.name}}} is missing ({failed.message.partition(': ')[2]})"
    except RecursionError:
        return f"{{{placeholder.name}}} is nested too deeply"


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
_KINDS: Final = {str: "a text", bool: "true or false", dict: "an object", list: "an array"}

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

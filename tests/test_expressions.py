"""Regular expressions mean the same in every Python that the packages run in."""

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from re import _constants as constants
from re import _parser as parser
from typing import Any

import amqtt_rest_bridge
import template_api

BACKTRACKING = {
    constants.ASSERT, constants.ASSERT_NOT, constants.MAX_REPEAT, constants.MIN_REPEAT, constants.ATOMIC_GROUP,
    constants.POSSESSIVE_REPEAT,
}  # fmt: skip
RULE = re.compile(r"self\._pattern\((?P<text>'.*'|\".*\")\)$", re.MULTILINE)


def expressions() -> Iterator[tuple[str, re.Pattern[Any]]]:
    """Return the expressions of our modules and classes and the patterns of the grammar, each with its place."""
    for package in (amqtt_rest_bridge, template_api):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name.endswith("__main__"):
                continue
            module = importlib.import_module(found.name)
            classes = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == found.name]
            for owner in (module, *classes):
                for name, value in vars(owner).items():
                    if isinstance(value, re.Pattern):
                        yield f"{found.name}.{name}", value
    rules = Path(amqtt_rest_bridge.__path__[0], "lot", "grammar", "route_parser.py").read_text()
    for number, rule in enumerate(RULE.finditer(rules)):
        yield f"route_parser, pattern {number}", re.compile(ast.literal_eval(rule["text"]))


def operations(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Return the operations of an expression, and of its parts, with their arguments."""
    if isinstance(tree, parser.SubPattern):
        for operation, arguments in tree:
            yield operation, arguments
            yield from operations(arguments)
    elif isinstance(tree, list | tuple):
        for part in tree:
            yield from operations(part)


def repeats_possessively_what_backtracks(expression: re.Pattern[Any]) -> bool:
    return any(
        operation is constants.POSSESSIVE_REPEAT
        and any(inner in BACKTRACKING for inner, _ in operations(arguments[2]))
        for operation, arguments in operations(parser.parse(expression.pattern, expression.flags))
    )  # fmt: skip


def test_no_group_with_repetitions_or_lookarounds_in_it_is_repeated_possessively() -> None:
    """Python before 3.11.5 (Debian 12 has 3.11.2) goes on behind what the last repetition tried: write (?>(?:...)*)."""
    assert repeats_possessively_what_backtracks(re.compile(r'(?:"[^"]*"|.)*+'))
    assert not repeats_possessively_what_backtracks(re.compile(r'"(?:[^"\\]|\\.)*+"'))
    found = dict(expressions())
    assert len(found) > 100
    assert [place for place, one in found.items() if repeats_possessively_what_backtracks(one)] == []

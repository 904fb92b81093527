"""YAML files of people: the values, the places of keys, and what is wrong with the text, in our words. Reads files.

PyYAML reports most mistakes where it can go on no longer, which is often a line or more behind them. So a fault is
placed where the mistake is, as far as that can be found out.
"""

import re
from pathlib import Path
from typing import Any, Final

import yaml

from amqtt_rest_bridge.cli import read_text
from amqtt_rest_bridge.errors import ConfigurationError, reason

_QUOTES: Final = "put the value in quotes"
_NO_SPACE: Final = re.compile(r"\s*(?:- +)?([\w.-]+):\S")
_SECOND_COLON: Final = re.compile(r":\s|\S:$")
_BLOCK_END: Final = "expected <block end>, but found "

# By what PyYAML's message begins with; True: at the place where it began to read what is wrong.
_WORDS: Final[tuple[tuple[str, bool, str], ...]] = (
    ("found character '\\t'", False, "a tab indents this line; YAML takes spaces only"),
    ("found character", False, f"no value begins with this character; {_QUOTES}"),
    ("found unexpected end of stream", True, "the quote that begins here is never closed"),
    (f"{_BLOCK_END}'<block mapping start>'", False, "this line begins in another column than its neighbours"),
    (f"{_BLOCK_END}'-'", False, "a list begins here, among names; indent it below the name that it belongs to"),
    (f"{_BLOCK_END}'?'", False, "a name is here among the entries of a list; begin it with - or indent it"),
    (f"{_BLOCK_END}':'", False, "a colon without a name before it"),
    ("expected ',' or '}'", True, "this { is not closed, or a comma between its values is missing"),
    ("expected ',' or ']'", True, "this [ is not closed, or a comma between its values is missing"),
    ("expected the node content", False, f"a bracket that was never opened; {_QUOTES}"),
    ("found undefined alias", False, f"a value with * at its beginning refers to another one in YAML; {_QUOTES}"),
    ("expected alphabetic or numeric", True, f"* and & begin references in YAML; {_QUOTES}"),
    ("could not determine a constructor", False, f"what begins with ! or = is not a text in YAML; {_QUOTES}"),
    ("expected chomping", True, f"behind | or > a text begins on the next line; {_QUOTES}"),
    ("found unknown escape", False, r"no escape of double quotes; write \\ for a backslash, or use single quotes"),
    ("but found another document", False, "--- begins a second document; the file can have one only"),
    ("found unhashable key", False, f"braces begin a mapping in YAML; {_QUOTES}"),
    ("sequence entries are not allowed", False, "a list begins on the line below its name"),
    ("expected a mapping or list of mappings", False, "<< takes mappings only"),
)  # fmt: skip


def read_yaml(path: Path) -> tuple[Any, yaml.Node | None]:
    """Return the values of a file, and its root node, which has the places of all keys; None for an empty file.

    Raises:
        ConfigurationError: The file cannot be read, or is not YAML; the message says where.
    """
    text = read_text(path)
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        return None if root is None else loader.construct_document(root), root
    except yaml.MarkedYAMLError as error:
        line, column, words = _explained(error, text)
        raise ConfigurationError(f"{path}:{line}:{column}: {words}") from error
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        place = f"{before.count(chr(10)) + 1}:{error.position - before.rfind(chr(10))}"
        raise ConfigurationError(f"{path}:{place}: a control character, U+{error.character:04X}") from error
    except RecursionError as error:
        raise ConfigurationError(f"{path} is nested too deeply") from error


class _RefusedError(yaml.MarkedYAMLError):
    """A fault that is in our words already."""


class _Loader(yaml.SafeLoader):
    """Refuse a repeated key in a mapping: YAML would silently drop the first of two plugins."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise _RefusedError(problem=f"{key.value} is given twice", problem_mark=key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except ValueError as error:  # of a date such as 2026-13-45
            why = f"a value that cannot be read ({reason(error)}); {_QUOTES}"
            raise _RefusedError(problem=why, problem_mark=node.start_mark) from error


def _explained(error: yaml.MarkedYAMLError, text: str) -> tuple[int, int, str]:
    """Return line and column of a mistake, from 1, and what is wrong."""
    mark, problem, lines = error.problem_mark or error.context_mark, error.problem or "", text.split("\n")
    if mark is None or isinstance(error, _RefusedError):
        return *_place(mark), problem
    if problem.startswith("could not find expected ':'") and error.context_mark is not None:
        return _no_pair(error.context_mark.line, lines)
    if problem.startswith("mapping values are not allowed"):
        return _misplaced_colon(mark, lines)
    if problem.startswith(f"{_BLOCK_END}'<scalar>'"):
        return _behind_quote(mark, text)
    for beginning, is_context, words in _WORDS:
        if problem.startswith(beginning):
            return *_place(error.context_mark if is_context else mark), words
    return *_place(mark), f"this is not YAML: {problem}"


def _place(mark: yaml.Mark | None) -> tuple[int, int]:
    return (1, 1) if mark is None else (mark.line + 1, mark.column + 1)


def _no_pair(number: int, lines: list[str]) -> tuple[int, int, str]:
    """Return the fault of a line that should be a name and a value; lines count from 0."""
    line = lines[number]
    column = len(line) - len(line.lstrip()) + 1
    if found := _NO_SPACE.match(line):
        return number + 1, found.end(1) + 1, f"a space is missing behind the colon of {found[1]}"
    return number + 1, column, "this line is not a name and a value, as in name: value"


def _misplaced_colon(mark: yaml.Mark, lines: list[str]) -> tuple[int, int, str]:
    """Return the fault of a colon where no name can end."""
    line = lines[mark.line]
    before = next((number for number in range(mark.line - 1, -1, -1) if lines[number].strip()), None)
    if _SECOND_COLON.search(line[: mark.column]) or before is None or line.lstrip().startswith("- "):
        return *_place(mark), f"a second colon in the line; {_QUOTES}"
    if ": " in lines[before]:
        column = len(line) - len(line.lstrip()) + 1
        return mark.line + 1, column, "this line is deeper than the one before, which has a value already"
    return _no_pair(before, lines)


def _behind_quote(mark: yaml.Mark, text: str) -> tuple[int, int, str]:
    """Return the fault of a text that follows a closing quote: that quote, or an earlier one, is wrong."""
    quoted = None
    for token in yaml.scan(text, yaml.SafeLoader):
        if token.start_mark.index >= mark.index:
            break
        if isinstance(token, yaml.ScalarToken) and token.style in ("'", '"'):
            quoted = token
    if quoted is not None and quoted.start_mark.line < quoted.end_mark.line:
        end = quoted.end_mark.line + 1
        return *_place(quoted.start_mark), f"the quote that begins here is not closed before line {end}"
    return *_place(mark), "a text follows the closing quote; inside of quotes write '' for ', or \\\" for \""

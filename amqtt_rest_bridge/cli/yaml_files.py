"""Reads YAML files that people write: values, the places of keys, and what is wrong with the text in plain words.

PyYAML's own words need some knowledge of YAML, and it places some mistakes behind the line that has them.
"""

from pathlib import Path
from typing import Any, Final

import yaml

from amqtt_rest_bridge.cli import read_bytes
from amqtt_rest_bridge.errors import ConfigurationError, reason

_MOST_BYTES: Final = 1 << 20
_QUOTES: Final = "put the value in quotes"
_BLOCK_END: Final = "expected <block end>, but found "

# What a message of PyYAML begins with; True if the fault is where PyYAML began to read, not where it ended; our words.
_WORDS: Final[tuple[tuple[str, bool, str], ...]] = (
    ("could not find expected ':'", True, "this line is not a name and a value, as in name: value"),
    (
        "mapping values are not allowed", False,
        "a colon too many: the line is indented too far, the line before lacks a space behind its colon, or the value "
        "needs quotes",
    ),
    (
        f"{_BLOCK_END}'<scalar>'", False,
        "a text follows the closing quote; inside of quotes write '' for ', or \\\" for \"",
    ),
    ("found character '\\t'", False, "a tab indents this line; YAML takes spaces only"),
    ("found character", False, f"no value begins with this character; {_QUOTES}"),
    ("found unexpected end of stream", True, "the quote that begins here is never closed"),
    (f"{_BLOCK_END}'<block mapping start>'", False, "this line begins in another column than its neighbours"),
    (f"{_BLOCK_END}'-'", False, "a list begins here, among names; indent it below the name that it belongs to"),
    (f"{_BLOCK_END}'?'", False, "a name is here among the entries of a list; begin it with - or indent it"),
    (f"{_BLOCK_END}':'", False, "a colon without a name before it"),
    ("expected ',' or '}'", True, "this { is not closed, or a comma between its values is missing"),
    ("expected ',' or ']'", True, "this [ is not closed, or a comma between its values is missing"),
    ("expected the node content, but found '<stream end>'", False, "the file ends, and a { or [ in it is not closed"),
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
    try:
        text = read_bytes(path, _MOST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"cannot read {path}: it is not UTF-8 text") from error
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        return None if root is None else loader.construct_document(root), root
    except yaml.MarkedYAMLError as error:
        mark, problem = error.problem_mark or error.context_mark, error.problem or ""
        words = problem if isinstance(error, _RefusedError) else f"this is not YAML: {problem}"
        for beginning, is_context, explained in _WORDS:
            if problem.startswith(beginning):
                mark, words = error.context_mark if is_context else mark, explained
                break
        if mark is not None and text.startswith("```", mark.index):
            words = "delete the line: ``` belongs to Markdown"
        line, column = (1, 1) if mark is None else (mark.line + 1, mark.column + 1)
        raise ConfigurationError(f"{path}:{line}:{column}: {words}") from error
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        place = f"{before.count(chr(10)) + 1}:{error.position - before.rfind(chr(10))}"
        raise ConfigurationError(f"{path}:{place}: a control character, U+{error.character:04X}") from error
    except RecursionError as error:
        raise ConfigurationError(f"{path} is nested too deeply") from error


class _RefusedError(yaml.MarkedYAMLError):
    """A fault whose message needs no other words."""


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

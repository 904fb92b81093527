"""Plain technical English in the source: docstrings begin with the trade's verbs, and some words are not used."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [
    file
    for package in ("template_api", "amqtt_rest_bridge")
    for file in sorted(ROOT.joinpath(package).rglob("*.py"))
    if file.parent.name != "ranking"  # its stop words are such words
]
FIRST = re.compile(r"(Gives?|Says?|Tells?|Lets?|Ha(ve|s)|Stands?)\b")
"""What no docstring begins with: a function returns, raises, sends, writes; a class is something."""
WORDS = re.compile(
    r"\b(whoever|nobody|somebody|someone|anybody|no one|heirs?|lanes?|hurr(y|ies)|good order|looks? after|stands?"
    r"|(?<!there )(is|are) no (?!longer|more|less))\b",
    re.IGNORECASE,
)


def _docstrings(file: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield getattr(node, "lineno", 1), ast.get_docstring(node) or ""


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_source_is_plain_technical_english(file: Path) -> None:
    first = [(line, text) for line, text in _docstrings(file) if FIRST.match(text)]
    assert first == []
    lines = enumerate(file.read_text().splitlines(), 1)
    assert [(number, line.strip()) for number, line in lines if WORDS.search(line)] == []

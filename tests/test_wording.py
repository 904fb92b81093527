"""Plain technical English in sources, tests and documents: the trade's verbs first, and some words not at all."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = [
    file
    for package in ("template_api", "amqtt_rest_bridge")
    for file in sorted(ROOT.joinpath(package).rglob("*.py"))
    if file.name != "tokens.py"  # its stop words are such words
]
TESTS = [file for file in sorted(ROOT.joinpath("tests").rglob("*.py")) if file != Path(__file__)]
DOCUMENTS = [
    file for folder in ("", "amqtt_rest_bridge", "template_api", "conf", "tests")
    for file in sorted(ROOT.joinpath(folder).glob("**/*.md" if folder else "*.md"))
]  # fmt: skip
FIRST = re.compile(r'"""\s*(Gives?|Says?|Tells?|Lets?|Ha(ve|s)|Stands?)\b')
"""What no docstring begins with: a function returns, raises, sends, writes; a class is something."""
WORDS = re.compile(
    r"\b(whoever|nobody(?!\x22)|somebody|someone|anybody|no one|heirs?|lanes?|outlets?|dealt|deals|hurr(y|ies)"
    r"|good order|anew|gravest|in vain|looks? after|stands?|(take|taken|took) up"
    r"|(is|are) told|(?<!there )(is|are) no (?!longer|more|less))\b",
    re.IGNORECASE,
)
"""The string "nobody", in quotes, is the name of an account."""
NAMES = re.compile(r"\btold\b", re.IGNORECASE)
"""What nothing in a source is called, beside those words."""


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """Yield numbered lines, with a space for each underscore: names are words too."""
    yield from enumerate(file.read_text().replace("_", " ").splitlines(), 1)


def _name(file: Path) -> str:
    return str(file.relative_to(ROOT))


@pytest.mark.parametrize("file", SOURCES, ids=_name)
def test_source_is_plain_technical_english(file: Path) -> None:
    assert FIRST.findall(file.read_text()) == []
    assert [line for line in _lines(file) if WORDS.search(line[1]) or NAMES.search(line[1])] == []


def test_tests_are_plain_technical_english() -> None:
    assert [(file.name, first[0]) for file in TESTS if (first := FIRST.search(file.read_text()))] == []
    assert [(file.name, *line) for file in TESTS for line in _lines(file) if WORDS.search(line[1])] == []


@pytest.mark.parametrize("file", DOCUMENTS, ids=_name)
def test_document_is_plain_technical_english(file: Path) -> None:
    """The table of old texts in CHANGELOG.md quotes them."""
    read = [line for line in _lines(file) if file.name != "CHANGELOG.md" or not line[1].startswith("|")]
    assert [line for line in read if WORDS.search(line[1])] == []

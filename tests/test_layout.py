"""One name names one class of a package, and what no module does."""

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("amqtt_rest_bridge", "template_api")
GENERATED = {"route_parser.py"}
SOURCES = [
    file for package in PACKAGES for file in sorted(ROOT.joinpath(package).rglob("*.py")) if file.name not in GENERATED
]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_public_name_names_one_class_of_a_package(package: str) -> None:
    texts = [file.read_text(encoding="utf-8") for file in SOURCES if file.is_relative_to(ROOT / package)]
    names = Counter(name for text in texts for name in re.findall(r"^\s*class ([A-Z]\w*)", text, re.MULTILINE))
    assert {name for name, number in names.items() if number > 1} == set()


def test_no_module_draws_from_the_random_generator_that_embedding_tests_may_seed_or_watch() -> None:
    drawn = re.compile(r"\brandom\.(?!SystemRandom\b|Random\b)[a-z]|from random import")
    assert [file.name for file in SOURCES if "import random" in (text := file.read_text()) and drawn.search(text)] == []


def test_the_test_files_that_ci_names_exist() -> None:
    named = re.findall(r"tests/[\w/]+\.py", (ROOT / ".ci" / "run").read_text())
    assert len(named) > 10
    assert [path for path in named if not (ROOT / path).is_file()] == []

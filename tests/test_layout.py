"""How large the parts of the two packages may be, that one name names one class, and what no module does."""

import ast
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
TABLE = ROOT / "amqtt_rest_bridge" / "lot" / "parameters.py"
"""A row for each setting of the language: it grows with them, and is read as one."""
TWO_CLASSES = {
    *(
        "AdminPort",
        "Command",
        "Connect",
        "Definition",
        "Endpoint",
        "Finding",
        "Limits",
        "Outcome",
        "Problem",
        "Publisher",
    ),
    *("Reader", "Reading", "RefusedError", "Retries", "RouteText", "Row", "Session", "Source", "Stream"),
    *("Subscription", "Trial"),
}
"""Public names of two classes of a package, which are to become fewer."""


def functions(file: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    found, bodies = [], [ast.parse(file.read_text(encoding="utf-8")).body]
    while bodies:  # of statements: no function is in an expression
        for node in bodies.pop():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append(node)
            bodies += [getattr(node, part, []) for part in ("body", "orelse", "finalbody", "handlers", "cases")]
    return found


def statements(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function below its signature and docstring."""
    first = function.body[1 if ast.get_docstring(function) and len(function.body) > 1 else 0]
    return (function.end_lineno or 0) - first.lineno + 1


def test_a_folder_has_at_most_19_modules() -> None:
    sizes = Counter(file.parent.relative_to(ROOT) for file in SOURCES if file.name != "__init__.py")
    assert {str(folder): size for folder, size in sizes.items() if size > 19} == {}


def test_a_file_has_at_most_560_lines_and_a_function_60() -> None:
    lengths = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in SOURCES}
    assert {file: length for file, length in lengths.items() if length > 560 and file != TABLE} == {}
    long = [(file, one.name, statements(one)) for file in SOURCES for one in functions(file)]
    assert [one for one in long if one[2] > 60] == []


@pytest.mark.parametrize(("package", "known"), [("amqtt_rest_bridge", TWO_CLASSES), ("template_api", {"Options"})])
def test_a_public_name_names_one_class_of_a_package(package: str, known: set[str]) -> None:
    texts = [file.read_text(encoding="utf-8") for file in SOURCES if file.is_relative_to(ROOT / package)]
    names = Counter(name for text in texts for name in re.findall(r"^\s*class ([A-Z]\w*)", text, re.MULTILINE))
    assert {name for name, number in names.items() if number > 1} == known


def test_no_module_draws_from_the_random_generator_that_embedding_tests_may_seed_or_watch() -> None:
    drawn = re.compile(r"\brandom\.(?!SystemRandom\b|Random\b)[a-z]|from random import")
    assert [file.name for file in SOURCES if "import random" in (text := file.read_text()) and drawn.search(text)] == []


def test_the_test_files_that_ci_names_exist() -> None:
    named = re.findall(r"tests/[\w/]+\.py", (ROOT / ".ci" / "run").read_text())
    assert len(named) > 10
    assert [path for path in named if not (ROOT / path).is_file()] == []

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
TABLE = ROOT / "amqtt_rest_bridge" / "language" / "parameters.py"
"""A row for each setting of the language: it grows with them, and is read as one."""
COMMON = {"Answer", "Call", "Connection", "Dispatcher", "Place", "Report", "Route", "Served", "Worker", "_Reader"}
"""Names that would fit many classes."""
LEAVING = ("routing", "bridge", "calls", "link", "processes", "worker", "http_client", "http_server")
"""Rooms that go when the plugin runs on `engine/` too."""


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


def test_a_folder_has_at_most_17_modules() -> None:
    sizes = Counter(file.parent.relative_to(ROOT) for file in SOURCES if file.name != "__init__.py")
    assert {str(folder): size for folder, size in sizes.items() if size > 17} == {}


def test_a_file_has_at_most_530_lines_and_a_function_60() -> None:
    lengths = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in SOURCES}
    assert {file: length for file, length in lengths.items() if length > 530 and file != TABLE} == {}
    long = [(file, one.name, statements(one)) for file in SOURCES for one in functions(file)]
    assert [one for one in long if one[2] > 60] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_common_name_names_one_class_of_a_package(package: str) -> None:
    files = [file.relative_to(ROOT / package) for file in SOURCES if file.is_relative_to(ROOT / package)]
    texts = [ROOT.joinpath(package, one).read_text(encoding="utf-8") for one in files if one.parts[0] not in LEAVING]
    names = Counter(name for text in texts for name in re.findall(r"^\s*class (\w+)", text, re.MULTILINE))
    assert {name for name in COMMON if names[name] > 1} == set()


def test_no_module_draws_from_the_random_generator_that_embedding_tests_may_seed_or_watch() -> None:
    drawn = re.compile(r"\brandom\.(?!SystemRandom\b|Random\b)[a-z]|from random import")
    assert [file.name for file in SOURCES if "import random" in (text := file.read_text()) and drawn.search(text)] == []


def test_the_test_files_that_ci_names_exist() -> None:
    named = re.findall(r"tests/[\w/]+\.py", (ROOT / ".ci" / "run").read_text())
    assert len(named) > 10
    assert [path for path in named if not (ROOT / path).is_file()] == []

"""The catalogue holds every code, status and hint of failures and answers; nothing else does."""

import ast
import functools

import pytest

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.catalogue import ANSWERS, FAILURES, AnswerRow, FailureRow
from amqtt_rest_bridge.errors import FailureCode
from amqtt_rest_bridge.http.exchange import refuse
from tests.support.documents import ROOT

PACKAGE = ROOT / "amqtt_rest_bridge"
MAKERS = {
    "catalogue.py": "by its rows",
    "http/exchange.py": "by rows of the catalogue",
    "engine/failures.py": "a copy without secrets",
    "engine/stages/retries.py": "a copy that says why it is not tried again",
    "mqtt/event_intake.py": "as the broker's side has sent it",
    "cli/route_tests.py": "what a route's test asks for",
}
"""The modules that make a failure or a refusal, and from what."""
NAMES = {("engine/statistics.py", "timeout")}
"""An attribute that is called like a code."""
NAMED = {name: row for name, row in vars(catalogue).items() if isinstance(row, FailureRow | AnswerRow)}


@functools.cache
def words() -> dict[str, tuple[set[str], set[str], set[str]]]:
    """Return of each module what it calls, the names that it reads, and its strings."""
    found: dict[str, tuple[set[str], set[str], set[str]]] = {}
    for file in PACKAGE.rglob("*.py"):
        called, names, strings = found[str(file.relative_to(PACKAGE))] = (set(), set(), set())
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                called.add(node.func.id)
            elif isinstance(node, ast.Name):
                names.add(node.id)
            elif isinstance(node, ast.Attribute):
                names.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                strings.add(node.value)
    return found


def test_failures_and_refusals_are_made_of_rows_of_the_catalogue() -> None:
    makers = {module for module, (called, _, _) in words().items() if called & {"CallError", "Refusal"}}
    assert makers == set(MAKERS)


def test_no_code_is_spelt_out_anywhere_else() -> None:
    codes = {*FAILURES, *ANSWERS}
    spelt = {
        (module, code)
        for module, (_, _, strings) in words().items()
        if module not in ("catalogue.py", "errors.py")
        for code in strings & codes
    }
    assert spelt == NAMES


def test_each_failure_code_has_a_row() -> None:
    assert set(FAILURES) == {code.value for code in FailureCode}


def test_each_cause_has_the_row_of_its_code() -> None:
    for row in NAMED.values():
        plain = FAILURES[row.code] if isinstance(row, FailureRow) else ANSWERS[row.code]
        assert row.hinting(plain.hint) == plain


def test_each_cause_is_used() -> None:
    used = set().union(*(names for module, (_, names, _) in words().items() if module != "catalogue.py"))
    causes = {name for name, row in NAMED.items() if row not in (*FAILURES.values(), *ANSWERS.values())}
    assert {name for name in causes if not name.startswith("_")} - used == set()


@pytest.mark.parametrize("row", [*FAILURES.values(), *ANSWERS.values()], ids=lambda row: row.anchor)
def test_each_row_says_what_it_means_and_what_to_do_next(row: FailureRow | AnswerRow) -> None:
    for text in (row.meaning, row.hint):
        assert text == text.strip()
        assert not text.endswith(".")
        assert "|" not in text
        assert len(text) > 10
    if isinstance(row, FailureRow):
        assert vars(row.error("facts"))["hint"] == row.hint
    else:
        assert refuse(row, "facts").hint == row.hint

"""The catalogue holds every code, status and hint of failures and answers; nothing else does."""

import ast
from pathlib import Path

import pytest

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.catalogue import ANSWERS, FAILURES, AnswerRow, FailureRow
from amqtt_rest_bridge.errors import FailureCode
from amqtt_rest_bridge.http_server.refusals import refuse
from tests.support.documents import ROOT

PACKAGE = ROOT / "amqtt_rest_bridge"
MAKERS = {
    "catalogue.py": "by its rows",
    "http_server/refusals.py": "by rows of the catalogue",
    "calls/call.py": "a copy without secrets",
    "cli/route_tests.py": "what a route's test asks for",
}
"""The modules that make a failure or a refusal, and from what."""
NAMES = {("http_client/__init__.py", "redirect_refused"), ("routing/admission.py", "timeout")}
"""A function and an attribute that are called like a code."""
NAMED = {name: row for name, row in vars(catalogue).items() if isinstance(row, FailureRow | AnswerRow)}


def calls(file: Path) -> set[str]:
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    return {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}


def test_failures_and_refusals_are_made_of_rows_of_the_catalogue() -> None:
    makers = {
        str(file.relative_to(PACKAGE)) for file in PACKAGE.rglob("*.py") if calls(file) & {"CallError", "Refusal"}
    }
    assert makers == set(MAKERS)


def test_no_code_is_spelt_out_anywhere_else() -> None:
    spelt = {
        (str(file.relative_to(PACKAGE)), node.value)
        for file in PACKAGE.rglob("*.py")
        if file.name not in ("catalogue.py", "errors.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in {*FAILURES, *ANSWERS}
    }
    assert spelt == NAMES


def test_each_failure_code_has_a_row() -> None:
    assert set(FAILURES) == {code.value for code in FailureCode}


def test_each_cause_has_the_row_of_its_code() -> None:
    for row in NAMED.values():
        plain = FAILURES[row.code] if isinstance(row, FailureRow) else ANSWERS[row.code]
        assert row.hinting(plain.hint) == plain


def test_each_cause_is_used() -> None:
    used = {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for file in PACKAGE.rglob("*.py")
        if file.name != "catalogue.py"
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute | ast.Name)
    }
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

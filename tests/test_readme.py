"""README's tables of settings, codes and status fields are the code's."""

import dataclasses
import re
from pathlib import Path

import pytest

from amqtt_rest_bridge.bridge.server.refusals import STATUS_LINES, ErrorCode
from amqtt_rest_bridge.errors import FailureCode
from amqtt_rest_bridge.model import RestApiConfig, Route
from amqtt_rest_bridge.processes.settings import Settings
from amqtt_rest_bridge.routing.statistics import RouteAccount
from template_api import config
from template_api.errors import ApiError

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """Give a section of README, up to the next heading of its level."""
    match = re.search(rf"^(#+) {re.escape(title)}\n", README, re.MULTILINE)
    assert match is not None, title
    rest = README[match.end() :]
    following = re.search(rf"^#{{2,{len(match[1])}}} ", rest, re.MULTILINE)
    return rest[: following.start()] if following else rest


def rows(text: str) -> list[list[str]]:
    """Give the cells of every table row, without heads and rules."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [row for row in cells if not set("".join(row)) <= set("- ")]


def codes(cell: str) -> list[str]:
    """Give what stands in backquotes."""
    return re.findall(r"`([^`]+)`", cell)


def written(default: object) -> str:
    if default is None:
        return "null"
    return f"`{default}`" if isinstance(default, str) else str(default)


def test_the_plugins_settings_and_defaults_are_the_codes() -> None:
    table = {codes(row[0])[0]: row[1] for row in rows(section("Configuration")) if codes(row[0])}
    defaults = {field.name: written(field.default) for field in dataclasses.fields(Settings)}
    assert table == defaults | {"routes": "required"}


def test_the_failure_codes_are_the_codes() -> None:
    table = [codes(row[0])[0] for row in rows(section("Failure codes")) if codes(row[0])]
    assert sorted(table) == sorted(code.value for code in FailureCode)


def test_server_modes_answers_are_the_codes() -> None:
    listed = [(row[0], code) for row in rows(section("Answers")) if row[0].isdigit() for code in codes(row[1])]
    assert sorted(listed) == sorted((STATUS_LINES[code][:3], code.value) for code in ErrorCode)


def test_the_status_fields_are_the_codes() -> None:
    status = RouteAccount(Route("R", RestApiConfig()), 1, 0.0).status(0.0)
    table = [name for row in rows(section("Route status")) for name in codes(row[0])]
    assert sorted(table) == sorted(status)
    described = {name for row in rows(section("Route status")) for name in codes(row[1])}
    assert described >= {*status["messages"], *status["errors"], *status["latency_ms"]}


def classes(base: type[ApiError]) -> list[type[ApiError]]:
    return [base, *(found for derived in base.__subclasses__() for found in classes(derived))]


def test_the_template_apis_errors_are_the_codes() -> None:
    listed = {code for row in rows(section("Errors")) if row[0].isdigit() for code in codes(row[1]) if code[0] != "/"}
    assert listed == {found.code for found in classes(ApiError)}


@pytest.mark.parametrize("field", dataclasses.fields(config.Settings), ids=lambda field: field.name)
def test_the_template_apis_settings_are_the_codes(field: "dataclasses.Field[object]") -> None:
    table = section("Template API")
    (row,) = [row for row in rows(table) if row[0] == f"`{field.name}`"]
    assert row[1] == f"`--{field.name.replace('_', '-')}`"
    assert row[2] == f"`TEMPLATE_API_{field.name.upper()}`"
    if field.default is not None:
        assert row[3] == f"`{field.default}`"


def test_the_two_commands_stand_on_the_first_screen() -> None:
    first = README.splitlines()[:40]
    venv = "python3 -m venv .venv"
    assert f"{venv} && .venv/bin/pip install . && .venv/bin/rest-bridge serve -c conf/broker.yaml" in first
    assert f"{venv} && .venv/bin/pip install -e '.[test]' && .venv/bin/pytest" in first


def test_the_tests_that_show_a_guarantee_are_there() -> None:
    table = "\n".join("|".join(row) for row in rows(section("What is guaranteed, and what is not")))
    named = [code.split("::") for code in codes(table) if "::" in code]
    assert len(named) > 10
    for file, name in named:
        tests = (Path(__file__).parent / "bridge" / f"test_{file}.py").read_text(encoding="utf-8")
        assert f"\ndef test_{name}(" in tests, f"{file}::{name}"

"""The documents' tables are the code's, their links lead somewhere, the tests that they name are there."""

import configparser
import json
import re

import pytest
import yaml

from amqtt_rest_bridge.admin.metrics import METRICS
from amqtt_rest_bridge.catalogue import ANSWERS, FAILURES, AnswerRow, FailureRow
from amqtt_rest_bridge.engine.statistics import QueueBytes, RouteStatistics
from amqtt_rest_bridge.errors import FailureCode
from amqtt_rest_bridge.lot.model import RestApiConfig, Route
from template_api.errors import ErrorCode
from tests.support.documents import ROOT, anchors, blocks, codes, page, rows, section

ARCHITECTURE = page("amqtt_rest_bridge/ARCHITECTURE.md")
ADMIN = page("amqtt_rest_bridge/admin/README.md")
CLIENT_MODE = page("amqtt_rest_bridge/engine/README.md")
SERVER_MODE = page("amqtt_rest_bridge/engine/server/README.md")
API = page("template_api/README.md")
TESTS = page("tests/README.md")


def test_the_failure_codes_are_the_codes() -> None:
    table = [codes(row[0])[0] for row in rows(section(CLIENT_MODE, "Failure codes")) if codes(row[0])]
    assert sorted(table) == sorted(code.value for code in FailureCode)
    assert table == list(FAILURES)


def test_the_metrics_and_their_types_are_the_codes() -> None:
    table = {codes(row[0])[0]: row[1] for row in rows(section(ADMIN, "Metrics")) if row[0].startswith("`rest_")}
    assert table == {name: kind for name, (kind, _) in METRICS.items()}


@pytest.mark.parametrize("name", ["grafana-dashboard.json", "prometheus-alerts.yaml"])
def test_the_dashboard_and_the_alerts_use_metrics_that_exist(name: str) -> None:
    text = (ROOT / "conf" / name).read_text()
    assert (json.loads(text) if name.endswith("json") else yaml.safe_load(text)) is not None
    used = {re.sub("_(bucket|sum|count)$", "", one) for one in re.findall(r"rest_bridge_\w+", text)}
    assert used <= set(METRICS)
    assert {"rest_bridge_health", "rest_bridge_queued", "rest_bridge_reload_errors"} <= used


def test_server_modes_answers_are_the_codes() -> None:
    errors = [row for row in rows(section(SERVER_MODE, "Answers")) if row[0] >= "400" and row[0].isdigit()]
    listed = [(row[0], *codes(row[1])) for row in errors]
    assert sorted(listed) == sorted((row.status[:3], code) for code, row in ANSWERS.items())


@pytest.mark.parametrize("row", [*FAILURES.values(), *ANSWERS.values()], ids=lambda row: row.anchor)
def test_each_code_has_one_anchor_that_its_message_names(row: FailureRow | AnswerRow) -> None:
    """A failure names its code, an answer status and code."""
    text = CLIENT_MODE if isinstance(row, FailureRow) else SERVER_MODE
    assert text.count(f'<a id="{row.anchor}"></a>') == 1
    assert row.anchor in anchors(text)
    shown = row.code if isinstance(row, FailureRow) else f"{row.status[:3]} {row.code}"
    assert row.anchor == shown.replace(" ", "-")


def test_the_status_fields_are_the_codes() -> None:
    status = RouteStatistics(Route("R", RestApiConfig()), 1, 0.0, QueueBytes(1)).status(0.0)
    table = [name for row in rows(section(ADMIN, "Route status")) for name in codes(row[0])]
    assert sorted(table) == sorted(status)
    described = {name for row in rows(section(ADMIN, "Route status")) for name in codes(row[1])}
    assert described >= {*status["messages"], *status["errors"], *status["latency_ms"], *status["wait_ms"]}


def test_the_template_apis_errors_are_the_codes() -> None:
    table = [row for row in rows(section(API, "Errors")) if row[0].isdigit()]
    listed = {code for row in table for code in codes(row[1]) if code[0] != "/"}
    assert listed == {code.name.lower() for code in ErrorCode}
    assert anchors(API) >= {f"{row[0]}-{code}" for row in table for code in codes(row[1]) if code[0] != "/"}


def test_the_two_commands_are_on_the_first_screen() -> None:
    first = page("README.md").splitlines()[:40]
    venv = "python3 -m venv .venv"
    assert f"{venv} && .venv/bin/pip install . && .venv/bin/rest-bridge serve -c conf/broker.yaml" in first
    assert f"{venv} && .venv/bin/pip install -e '.[test]' && .venv/bin/pytest" in first


def test_ten_promises_in_plain_words_come_first() -> None:
    text = page("conf/GUARANTEES.md")
    _, *promises = rows(section(text, "Ten promises"))
    assert len(promises) == 10
    assert text.index("## Ten promises") < text.index("## What is guaranteed")


def test_the_tests_that_show_a_guarantee_are_there() -> None:
    guaranteed = section(page("conf/GUARANTEES.md"), "What is guaranteed, and what is not")
    named = [code.split("::") for code in codes(guaranteed) if code.count("::") == 1 and code != "folder/file::test"]
    assert len(named) > 100
    for file, name in named:
        folder, _, module = file.rpartition("/")
        tests = (ROOT / "tests" / folder / f"test_{module}.py").read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def test_{name}\(", tests, re.MULTILINE), f"{file}::{name}"


@pytest.mark.parametrize(
    ("name", "text"),
    [("amqtt_rest_bridge", ARCHITECTURE), ("template_api", page("template_api/ARCHITECTURE.md"))],
    ids=["amqtt_rest_bridge", "template_api"],
)
def test_the_architecture_names_files_and_folders_that_are_there_and_every_folder(name: str, text: str) -> None:
    package = ROOT / name
    written = codes(text)
    named = {code for code in written if code.endswith((".py", "/", ".tatsu")) and code != "__init__.py"}
    assert [code for code in named if not list(package.rglob(code)) and not (ROOT / code).exists()] == []
    assert {f"{path.parent.name}/" for path in package.glob("*/__init__.py")} <= named


def test_the_architecture_names_every_package_that_is_needed() -> None:
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    needed = re.findall(r"^[A-Za-z0-9-]+", metadata["options"]["install_requires"], re.MULTILINE)
    assert [name for name in needed if name not in ARCHITECTURE] == []


@pytest.mark.parametrize(
    ("text", "title", "pattern", "roots", "least"),
    [
        pytest.param(TESTS, "Writing a test", r".*(\.py|/)", ["tests"], 10, id="helpers for tests"),
        pytest.param(
            ARCHITECTURE,
            "How a new setting is added",
            r".*\.(py|txt)",
            [".", "amqtt_rest_bridge"],
            5,
            id="new settings",
        ),
    ],
)
def test_the_files_that_a_section_names_are_there(
    text: str, title: str, pattern: str, roots: list[str], least: int
) -> None:
    named = {code for code in codes(section(text, title)) if re.fullmatch(pattern, code)}
    assert len(named) > least
    assert [name for name in named if not any((ROOT / root / name).exists() for root in roots)] == []


def test_the_benchmarks_that_are_listed_are_there() -> None:
    listed = [name.split()[0] for row in rows(section(TESTS, "Benchmarks")) for name in codes(row[0])]
    assert len(listed) > 5
    assert [name for name in listed if not (ROOT / f"tests/benchmarks/{name}.py").exists()] == []


def test_the_lines_beside_which_a_capability_is_added_are_in_their_files() -> None:
    (diff,) = blocks(section(ARCHITECTURE, "How a capability is added"), "diff")
    for part in re.split(r"^--- ", diff, flags=re.MULTILINE)[1:]:
        name, *lines = part.splitlines()
        if name.startswith("a/"):
            text = (ROOT / name.removeprefix("a/")).read_text(encoding="utf-8").splitlines()
            beside = [line.removeprefix("@@ ") if line[0] == "@" else line[1:] for line in lines if line[0] in "@ "]
            assert [line for line in beside if line not in text] == [], name

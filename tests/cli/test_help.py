"""`rest-bridge help` and the completion of shells."""

import json
import os
from pathlib import Path

import pytest

from amqtt_rest_bridge.lot.placeholders.conditions import OPERATORS
from amqtt_rest_bridge.lot.placeholders.kinds import PLACEHOLDERS
from amqtt_rest_bridge.lot.settings_table import PARAMETERS, BlockKind
from tests.cli.conftest import Run
from tests.support.forked import REST_BRIDGE, run

NAMES = [name for rows in PARAMETERS.values() for name in rows]


def test_help_of_a_setting_holds_all_of_its_row(run: Run) -> None:
    for kind, rows in PARAMETERS.items():
        for row in rows.values():
            text = " ".join(run("help", row.name.lower()).out.split())
            assert text.startswith(f"{row.name}: {kind}, ")
            example = (f"WITH {row.name} {row.example}", *row.example_below)
            for part in (row.meaning, row.allowed, *row.notes, *example, row.default or ""):
                assert " ".join(part.split()) in text, (row.name, part)
            assert ("extension" in text) == (not row.portable)


def test_help_of_when_has_its_operators_and_where_to_read_on(run: Run) -> None:
    text = " ".join(run("help", "WHEN").out.split())
    names = (*OPERATORS, "IN (", "NOT IN", "LIKE '", "NOT LIKE", "EXISTS {", "AND", "OR", "NOT", "null")
    assert [name for name in names if name not in text] == []
    assert "SHAPING.md, Conditions" in text


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("HEADERS", ['    ADD Accept "text/csv"', '    ADD Authorization "Bearer " + GET SECRET "api-token"']),
        ("BATCH_SIZE", ["WITH BATCH_SIZE '500'", "WITH BODY '{\"items\": {batch}}'"]),
    ],
)
def test_an_example_that_needs_more_lines_has_them(name: str, lines: list[str], run: Run) -> None:
    assert [line.removeprefix("  ") for line in run("help", name).out.splitlines()[-2:]] == lines


@pytest.mark.parametrize("kind", BlockKind)
def test_help_of_a_block_lists_its_settings_with_their_meaning(kind: BlockKind, run: Run) -> None:
    text = " ".join(run("help", kind.lower()).out.split())
    assert text.startswith(f"{kind}: ")
    for row in PARAMETERS[kind].values():
        assert f" {row.name} {row.meaning}" in text
    assert [row["name"] for row in json.loads(run("help", kind, "--json").out)] == [*PARAMETERS[kind]]


def test_help_of_placeholders_lists_all_and_of_one_explains_it(run: Run) -> None:
    text = " ".join(run("help", "placeholders").out.split())
    for kind in PLACEHOLDERS:
        assert f"{', '.join(kind.written)} {kind.meaning} (" in text
    for name in ("value.json", "{value.json.level|0}", "payload.json"):
        (explained,) = json.loads(run("help", name, "--json").out)
        assert explained["written"][0] == "{value.json}"
    assert (
        run("help", "batch.size").out == "  {batch.size}            how many they are (client mode, with BATCH_SIZE)\n"
    )
    assert run("help", "payload.csv").out.startswith("  {payload.csv.N}, {value.csv.N}\n")


def test_help_alone_lists_every_setting(run: Run) -> None:
    listed = [line.split()[0] for line in run("help").out.splitlines()]
    assert [name for name in listed if name not in PARAMETERS] == NAMES


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("METOD", "did you mean METHOD?"),
        ("RETRIE", "did you mean RETRIES?"),
        ("placeholder", "did you mean placeholders?"),
        ("HOST", "perhaps BASE_ADDRESS, which belongs in REST_API_CONFIG"),
        ("openapi", "rest-bridge help lists all; settings of the plugin are in the reference, under Configuration"),
    ],
)
def test_an_unknown_setting_is_2_with_a_hint(name: str, hint: str, run: Run) -> None:
    assert run("help", name, status=2).err == f"rest-bridge help: unknown setting {name}\nhint: {hint}\n"


def test_json_has_every_setting_with_what_programs_need(run: Run) -> None:
    rows = json.loads(run("help", "--json").out)
    assert [row["name"] for row in rows] == NAMES
    (scheme,) = [row for row in rows if row["name"] == "SIGNATURE_SCHEME"]
    assert scheme["block"] == "EVENT"
    assert scheme["kind"] == "choice"
    assert scheme["example"] == 'WITH SIGNATURE_SCHEME "slack"'
    assert list(scheme["choices"]) == ["hmac", "slack", "stripe", "standard-webhooks"]
    assert scheme["requires"] == ["SIGNATURE_SECRET"]
    assert not scheme["portable"]


def completed(shell: str, **environment: str) -> str:
    typed = os.environ | environment | {"_REST_BRIDGE_COMPLETE": f"complete_{shell}"}
    return run(REST_BRIDGE, [], Path.cwd(), environment=typed).stdout


def test_shells_complete_commands_options_and_settings() -> None:
    assert completed("bash", COMP_WORDS="rest-bridge che", COMP_CWORD="1").split() == ["check"]
    settings = completed("bash", COMP_WORDS="rest-bridge help SIGNATURE_S", COMP_CWORD="2").split()
    assert settings == ["SIGNATURE_SECRET", "SIGNATURE_SCHEME"]
    assert "--portable" in completed("zsh", _TYPER_COMPLETE_ARGS="rest-bridge check --po")

"""The reference tells the truth about the language: its tables are the code's, its tour is what the commands print."""

import shlex
from pathlib import Path

import pytest

from amqtt_rest_bridge.__main__ import main
from amqtt_rest_bridge.language.parameters import BlockKind
from amqtt_rest_bridge.settings import Settings, WorkerSettings
from tests.documents.tables import answer_table, failure_table, placeholder_table, plugin_table, setting_table
from tests.support.documents import FENCED, page, section

LANGUAGE = page("amqtt_rest_bridge/language/README.md")
PLACEHOLDERS = page("amqtt_rest_bridge/placeholders/README.md")
BRIDGE = page("amqtt_rest_bridge/bridge/README.md")
COMMANDS = page("amqtt_rest_bridge/cli/README.md")


@pytest.mark.parametrize("kind", list(BlockKind))
def test_table_of_settings_is_the_codes(kind: BlockKind) -> None:
    assert setting_table(kind) in LANGUAGE, "python -m tests.documents.tables makes it"


def test_tables_of_the_plugins_and_the_workers_settings_are_the_codes() -> None:
    made = "python -m tests.documents.tables makes it"
    assert plugin_table(Settings) in page("amqtt_rest_bridge/README.md"), made
    assert plugin_table(WorkerSettings, Settings) in page("amqtt_rest_bridge/worker/README.md"), made


def test_table_of_placeholders_is_the_codes() -> None:
    assert placeholder_table() in PLACEHOLDERS, "python -m tests.documents.tables makes it"


def test_tables_of_codes_are_the_catalogues() -> None:
    assert failure_table() in BRIDGE, "python -m tests.documents.tables makes it"
    assert answer_table() in BRIDGE, "python -m tests.documents.tables makes it"


def test_operators_tour_is_what_the_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = FENCED.findall(section(COMMANDS, "An operator's tour"))
    assert [language for language, _ in blocks].count("console") >= 3
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "shop-token").write_text("t0p-s3cret\n")
    monkeypatch.chdir(tmp_path)
    for language, text in blocks:
        if language == "lot":
            Path("alerts.lot").write_text(text, encoding="utf-8")
        elif language == "console":
            command, _, expected = text.partition("\n")
            program, *arguments = shlex.split(command.removeprefix("$ "))
            assert program == ".venv/bin/rest-bridge"
            main(arguments)
            output = capsys.readouterr()
            assert output.out + output.err == expected

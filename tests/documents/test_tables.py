"""The reference tells the truth about the language: its tables are the code's, its tour is what the commands print."""

import shlex
from pathlib import Path

import pytest

from amqtt_rest_bridge.__main__ import main
from tests.documents.tables import made
from tests.support.documents import FENCED, page, section

COMMANDS = page("amqtt_rest_bridge/cli/README.md")


@pytest.mark.parametrize(("name", "heading", "text"), [pytest.param(*one, id=one[1]) for one in made()])
def test_what_is_made_from_the_code_is_in_its_page(name: str, heading: str, text: str) -> None:
    written = section(page(name), heading)
    assert text in written, "python -m tests.documents.tables writes it"


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

"""The settings of the API: what follows from one row each."""

from dataclasses import fields
from typing import Any

import pytest

from template_api import cli
from template_api.config import Settings, variable_of
from template_api.errors import SettingsError
from template_api.serving import service

GIVEN = {
    "host": "192.168.1.10", "port": "8080", "database_url": "sqlite:////var/lib/x.db", "library": "conf/library",
    "base_url": "https://library.example", "index_dir": "/var/cache/templates", "log_empty_searches": "true",
    "playground": "false",
}  # fmt: skip


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings that `template-api serve` starts with; it serves nothing."""
    started: list[Settings] = []
    monkeypatch.setattr(service, "serve", lambda settings, *_others: started.append(settings))
    return started


@pytest.mark.parametrize("setting", [each.name for each in fields(Settings)])
def test_each_setting_is_an_option_and_a_variable(
    setting: str, served: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    given, option = GIVEN[setting], f"--{setting.replace('_', '-')}"
    flags = {"true": [option], "false": [option.replace("--", "--no-")]}
    assert cli.main(["serve", *flags.get(given, [option, given])]) == 0
    monkeypatch.setenv(variable_of(setting), given)
    assert cli.main(["serve"]) == 0
    assert served[0] == served[1] != Settings()
    served[0].check()
    monkeypatch.setenv(variable_of(setting), "")
    assert cli.main(["serve"]) == 0
    assert served[2] == Settings(), "an empty variable sets nothing"
    for variable, value in served[0].environment(served[0].base_url or "").items():
        monkeypatch.setenv(variable, value)
    assert cli.main(["serve"]) == 0
    assert served[3] == served[0], "a child process has the same"


@pytest.mark.parametrize("setting", ["database_url", "base_url"])
@pytest.mark.parametrize("text", ["postgresql+psycopg://u:secret\udcff@h/x", "https://u:secret\x1b@h"])
def test_a_text_that_cannot_be_written_is_refused(setting: str, text: str) -> None:
    given: dict[str, Any] = {setting: text}
    with pytest.raises(SettingsError) as raised:
        Settings(**given).check()
    assert str(raised.value).startswith(setting)
    assert "secret" not in str(raised.value)

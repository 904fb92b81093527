"""The settings of the API: what follows from one row each."""

from dataclasses import Field, fields
from typing import Any

import pytest

from template_api import cli
from template_api.config import Settings, row_of, variable_of
from template_api.errors import SettingsError
from template_api.serving import service


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings that `template-api serve` starts with; it serves nothing."""
    started: list[Settings] = []
    monkeypatch.setattr(service, "serve", lambda settings, *_others: started.append(settings))
    return started


@pytest.mark.parametrize("setting", fields(Settings), ids=lambda setting: setting.name)
def test_each_setting_is_an_option_and_a_variable_and_its_example_is_accepted(
    setting: "Field[Any]", served: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    example, option = row_of(setting).example, f"--{setting.name.replace('_', '-')}"
    if setting.type is bool:
        arguments = [option if example == "true" else option.replace("--", "--no-")]
    else:
        arguments = [option, example]
    assert cli.main(["serve", *arguments]) == 0
    monkeypatch.setenv(variable_of(setting), example)
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

"""The settings of the API: what follows from one row each."""

from dataclasses import Field, fields
from typing import Any

import pytest

from template_api.config import Settings, option_of, read_settings, row_of, variable_of
from template_api.errors import SettingsError


@pytest.mark.parametrize("setting", fields(Settings), ids=lambda setting: setting.name)
def test_each_setting_is_an_option_and_a_variable_and_its_example_is_accepted(setting: "Field[Any]") -> None:
    example = row_of(setting).example
    given = getattr(read_settings({}, {variable_of(setting): example}), setting.name)
    assert given == getattr(read_settings({setting.name: example}, {variable_of(setting): "x"}), setting.name)
    assert str(given).lower() == example.lower()
    assert given != setting.default
    assert getattr(read_settings({}, {variable_of(setting): " "}), setting.name) == setting.default
    prefix = "--no-" if setting.default is True else "--"
    assert option_of(setting).removeprefix(prefix).replace("-", "_") == setting.name
    changed = Settings(**{setting.name: given})
    assert read_settings({}, changed.environment(changed.base_url or "")) == changed, "a child process has the same"


@pytest.mark.parametrize("setting", ["database_url", "base_url"])
@pytest.mark.parametrize("text", ["postgresql+psycopg://u:secret\udcff@h/x", "https://u:secret\x1b@h"])
def test_a_text_that_cannot_be_written_is_refused(setting: str, text: str) -> None:
    with pytest.raises(SettingsError) as raised:
        read_settings({}, {f"TEMPLATE_API_{setting.upper()}": text})
    assert str(raised.value).startswith(setting)
    assert setting == "base_url" or "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("variable", "meant"),
    [("PROT", "PORT"), ("DATABSE_URL", "DATABASE_URL"), ("SERVICE_HOST", None), ("PORT_8000_TCP", None)],
)
def test_a_variable_that_is_probably_misspelt_is_warned_of(
    variable: str, meant: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    read_settings({}, {f"TEMPLATE_API_{variable}": "1", "TEMPLATE_API_PORT": "8080"})
    warning = f"the variable TEMPLATE_API_{variable} sets nothing; did you mean 'TEMPLATE_API_{meant}'?"
    assert caplog.messages == ([warning] if meant else [])

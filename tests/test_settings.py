"""The settings of the plugin and of a worker: what follows from one row each."""

import json
import logging
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from amqtt_rest_bridge import settings
from amqtt_rest_bridge.__main__ import main
from amqtt_rest_bridge.cli import worker
from amqtt_rest_bridge.cli.configuration import build
from amqtt_rest_bridge.errors import RouteFilesError
from amqtt_rest_bridge.reload import usable_routes
from amqtt_rest_bridge.settings import WRITE_VALUE, Row, Settings, WorkerSettings, row_of, variable_of
from tests.documents.tables import plugin_table
from tests.support.commands import SERVER_ROUTE
from tests.support.documents import FENCED, page, section
from tests.support.route_text import BASIC, load_text

ROWS = [pytest.param(one.name, row_of(one), id=one.name) for one in fields(WorkerSettings)]


@pytest.mark.parametrize(("name", "row"), ROWS)
def test_each_example_is_accepted_and_no_default(name: str, row: Row) -> None:
    (value,) = yaml.safe_load(f"{name}: {row.example}").values()
    built, invalid = build(WorkerSettings, {"routes": "r", "group": "g", "slots": 8, name: value})
    assert invalid == []
    others = {"server_certfile", "server_keyfile", "admin_token", "admin_token_secret"}
    assert [names for names, _ in built.setting_faults() if not others.intersection(names)] == []
    assert getattr(built, name) != next(one.default for one in fields(WorkerSettings) if one.name == name)


def test_a_number_out_of_its_range_and_true_for_a_number_are_refused() -> None:
    rows = {one.name: row_of(one) for one in fields(WorkerSettings)}
    for name, row in rows.items():
        if row.high is not None:
            wrong = {row.low - 1: "allowed is", row.high + 1: "allowed is", True: "write a number"}
            assert all(text in str(row.fault(name, value)) for value, text in wrong.items()), name


def test_a_start_logs_the_faults_of_a_file_in_the_order_of_its_lines(caplog: pytest.LogCaptureFixture) -> None:
    first = BASIC.replace("    ADD EVENT", '    ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "lossless"\n    ADD EVENT')
    loaded = load_text(f"{first}{BASIC.replace('ROUTE R', 'ROUTE S').replace('POST', 'GTE')}DEFINE MODEL X")
    with caplog.at_level(logging.INFO), pytest.raises(RouteFilesError):
        usable_routes(loaded, Settings(routes="r"))
    assert [message.split(":")[1] for message in caplog.messages] == ["1", "1", "16", "18"]


TEXTS = [one.name for one in fields(WorkerSettings) if "str" in str(one.type)]


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_with_nul_is_refused_by_the_name_of_its_setting(name: str) -> None:
    """YAML has it as \\0; no call of the system takes it, and its error would name nothing."""
    for value in ("a\0b", ["a", "a\0b"]) if name == "routes" else ("a\0b",):
        settings = WorkerSettings()
        setattr(settings, name, value)
        faults = [message for names, message in settings.setting_faults() if names == (name,)]
        assert faults[:1] == [f"the setting {name} holds NUL, which no file, host or password has"]


@pytest.mark.parametrize("name", TEXTS)
def test_a_variable_that_nothing_replaces_is_a_fault_with_its_name_alone(name: str) -> None:
    for value in ("${TOKEN}", "of-${TOKEN:-a-secret-default}", ["a", "${TOKEN}"]):
        if isinstance(value, str) or name == "routes":
            settings = WorkerSettings()
            setattr(settings, name, value)
            faults = [message for names, message in settings.setting_faults() if names == (name,)]
            instead = "name a file of secrets_dir in admin_token_secret, or set the variable REST_BRIDGE_ADMIN_TOKEN"
            instead = instead if name == "admin_token" else WRITE_VALUE
            assert faults[:1] == [f"the setting {name} holds ${{TOKEN}}, which nothing replaces here: {instead}"]


@pytest.mark.parametrize("value", ["$2b$12$abcdefghijklmnop", "{TOKEN}-0123456789ab", "${}-0123456789abcdef"])
def test_a_token_may_hold_dollars_and_braces(value: str) -> None:
    faults = WorkerSettings(routes="r", group="g", admin_token=value).setting_faults()
    assert list(faults) == []


TOKEN = "9f86d081884c7d659a2feaa0"


def settings_with_token(tmp_path: Path, **values: Any) -> Settings:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    return Settings("routes", secrets_dir=str(tmp_path), **values)


def test_the_admin_token_is_in_the_configuration_in_a_file_or_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REST_BRIDGE_ADMIN_TOKEN", "environment-0123456789")
    for values, token in (
        ({"admin_token": "configured-0123456789", "admin_token_secret": "token"}, "configured-0123456789"),
        ({"admin_token_secret": "token"}, TOKEN),
        ({}, "environment-0123456789"),
    ):
        settings = settings_with_token(tmp_path, admin_host="0.0.0.0", **values)
        assert (list(settings.setting_faults()), settings.admin_token) == ([], token)
    monkeypatch.setenv("REST_BRIDGE_ADMIN_TOKEN", "")  # sets nothing
    assert settings_with_token(tmp_path).admin_token is None


@pytest.mark.parametrize(
    ("secret", "wrong"),
    [
        pytest.param("gone", "cannot read the setting admin_token_secret, {}/gone: No such file", id="no file"),
        pytest.param("a/b", "the setting admin_token_secret must be the name of a file", id="path"),
        pytest.param("unfilled", "{}/unfilled is $TOKEN_OF_THE_BRIDGE, which nothing replaces here", id="variable"),
        pytest.param("empty", "cannot read the setting admin_token_secret, {}/empty: it is empty", id="empty"),
        pytest.param("pipe", "cannot read the setting admin_token_secret, {}/pipe: ", id="no file that can be read"),
        pytest.param("short", "the setting admin_token must be 16 or more visible ASCII characters", id="short"),
    ],
)
def test_an_admin_token_that_cannot_be_read(tmp_path: Path, secret: str, wrong: str) -> None:
    (tmp_path / "unfilled").write_text("$TOKEN_OF_THE_BRIDGE\n")
    (tmp_path / "short").write_text("short")
    (tmp_path / "empty").write_text("\n")
    os.mkfifo(tmp_path / "pipe")
    ((_, message),) = settings_with_token(tmp_path, admin_token_secret=secret).setting_faults()
    assert message.startswith(wrong.format(tmp_path))


def test_a_secret_that_begins_with_a_dollar_is_a_secret(tmp_path: Path) -> None:
    (tmp_path / "dollar").write_text("$ecret0123456789\n")
    settings = settings_with_token(tmp_path, admin_token_secret="dollar")
    assert (list(settings.setting_faults()), settings.admin_token) == ([], "$ecret0123456789")


def test_a_variable_in_the_place_of_a_token_is_a_fault() -> None:
    (_, message), *_ = Settings("routes", admin_token="$ADMIN_TOKEN_OF_BRIDGE").setting_faults()
    assert message.startswith(
        "the setting admin_token holds $ADMIN_TOKEN_OF_BRIDGE, which nothing replaces here: name a"
    )


def test_a_secret_is_not_shown() -> None:
    assert "9f86d081884c7d659a2feaa0" not in repr(Settings("routes", admin_token="9f86d081884c7d659a2feaa0"))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("a.lot").write_text(SERVER_ROUTE)
    configure()
    return tmp_path


def configure(**values: Any) -> None:
    configuration = {"broker": "mqtt://127.0.0.1:1", "group": "plant", "routes": "a.lot", **values}
    Path("worker.yaml").write_text(json.dumps(configuration))


def check(*options: str) -> int:
    return main(["worker", "-c", "worker.yaml", "--check", *options])


def test_each_setting_of_a_worker_is_an_option_but_for_secrets_and_mappings(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["worker", "--help"]) == 0
    shown = capsys.readouterr().out
    options = {one.name for one in fields(WorkerSettings) if f"--{one.name.replace('_', '-')} " in shown}
    rows = {one.name: row_of(one) for one in fields(WorkerSettings)}
    assert options == {
        name for name, row in rows.items() if row.worker_instead is None and not (row.is_secret or row.is_mapping)
    }


def test_an_option_wins_over_its_variable_and_both_over_the_file(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(slots=0)
    assert check() == 1
    assert "the setting slots is 0; allowed is 1 to 1024" in capsys.readouterr().out
    monkeypatch.setenv("REST_BRIDGE_SLOTS", "2000")
    assert check() == 1
    assert capsys.readouterr().out.splitlines()[:2] == [
        "worker.yaml:1:1: error: the setting slots is 2000; allowed is 1 to 1024",
        "hint: it is set by --slots or REST_BRIDGE_SLOTS",
    ]
    assert check("--slots", "4") == 0
    monkeypatch.setenv("REST_BRIDGE_SLOTS", "")  # sets nothing
    assert check() == 1


@pytest.mark.parametrize(
    ("variable", "value", "status", "said"),
    [
        pytest.param(
            "ADMIN_TOKEN", "of-9", 1, "the setting admin_token must be 16 or more visible ASCII characters", id="secret"
        ),
        pytest.param(
            "BROKER_PASSWORD", "${PASSWORD}", 1,
            "REST_BRIDGE_BROKER_PASSWORD is ${PASSWORD}, which nothing replaces here: ", id="unfilled password",
        ),
        pytest.param(
            "SLOTS", "of-9", 2, "Invalid value for '--slots' (env var: 'REST_BRIDGE_SLOTS'): ", id="wrong form"
        ),
        pytest.param(
            "ADOPT_SECOND", "1", 0,
            "the variable REST_BRIDGE_ADOPT_SECOND sets nothing: did you mean REST_BRIDGE_ADOPT_SECONDS?", id="typo",
        ),
        pytest.param("ADMIN", "http://127.0.0.1:9464", 0, "ok", id="of commands that ask a bridge"),
    ],
)  # fmt: skip
def test_a_variable_that_sets_nothing_usable_is_named(
    variable: str, value: str, status: int, said: str,
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv(f"REST_BRIDGE_{variable}", value)
    assert check() == status
    shown = "".join(capsys.readouterr())
    assert said in shown
    assert variable != "ADMIN_TOKEN" or value not in shown
    assert ("sets nothing" in shown) == (variable == "ADOPT_SECOND")


def test_the_row_that_the_page_shows_is_all_that_a_new_setting_takes() -> None:
    text = section(page("amqtt_rest_bridge/ARCHITECTURE.md"), "A setting of the plugin or of a worker")
    names: dict[str, Any] = {}
    exec(f"@dataclass\nclass Extended(WorkerSettings):\n{FENCED.findall(text)[0][1]}", {**vars(settings)}, names)
    extended: type[WorkerSettings] = names["Extended"]
    built, _ = build(extended, {"routes": "r", "group": "g", "idle_seconds": 0})
    assert list(built.setting_faults()) == [(("idle_seconds",), "the setting idle_seconds is 0; allowed is 1 to 3600")]
    _, (typo,) = build(extended, {"idel_seconds": 3})
    assert typo.hint == "did you mean idle_seconds?"
    (setting,) = [one for one in fields(extended) if one.name == "idle_seconds"]
    (option,) = worker.option_of(setting).annotation.__metadata__
    assert option.envvar == variable_of(setting) == "REST_BRIDGE_IDLE_SECONDS"
    assert "| `idle_seconds` | 60 | close a connection" in plugin_table(extended, WorkerSettings)

"""`rest-bridge worker`: run routes beside a broker of any kind, or validate a worker's configuration. Main thread."""

import asyncio
import inspect
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import Field, asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from amqtt_rest_bridge.cli import count, own_name
from amqtt_rest_bridge.cli.logs import LogFormat, LogLevel, configure
from amqtt_rest_bridge.cli.serve import in_one_line, report_failure
from amqtt_rest_bridge.errors import BridgeError, ConfigurationError, Fault
from amqtt_rest_bridge.mqtt.packets import of_text
from amqtt_rest_bridge.mqtt.values import Address, load_tls, parse_url
from amqtt_rest_bridge.settings import (
    ADMIN_VARIABLE,
    PASSWORD_VARIABLE,
    SettingFault,
    WorkerSettings,
    read_secret,
    row_of,
    variable_of,
)
from amqtt_rest_bridge.signals import Signals, loop_factory
from amqtt_rest_bridge.system import leave_no_core_file

if TYPE_CHECKING:
    from amqtt_rest_bridge.cli.configuration import Section  # which imports much that --help does without

log = logging.getLogger(__name__)

DESCRIPTION = """\
Run the routes of a configuration file beside an MQTT 5 broker or cluster with shared subscriptions: Mosquitto from 2.0,
EMQX, HiveMQ, VerneMQ. Workers of a group share its slots, and so the messages: one that joins is handed its share.

A message is acknowledged when all its calls have ended and the broker has acknowledged their results, so a worker that
is killed loses none. The slots of one that is silent for adopt_seconds are taken by the others.

What cannot work ends the start with one line that says why: a faulty file or setting, errors in route files, a port
that is taken, a broker that cannot be reached or that lacks MQTT 5 or shared subscriptions. Once it runs, a worker
whose broker is away connects again after 1, 2, 4 ... 30 s.

Every setting of the file is an option too, but for secrets, and an environment variable: --adopt-seconds and
REST_BRIDGE_ADOPT_SECONDS for adopt_seconds. An option wins over its variable, both over the file. The broker's password
is read from REST_BRIDGE_BROKER_PASSWORD, or from the file password_secret of secrets_dir.

SIGTERM and SIGINT shut down gracefully, within 10 s; SIGHUP reads the route files again.

--probe tries on the broker all that a worker needs: MQTT 5, shared subscriptions, kept sessions and what they queue,
redelivery, takeover of a client id, Receive Maximum, properties, retained messages, wills, large messages, and what the
user may do. What does not hold is listed with what to do; nothing is left on the broker, and workers that run beside it
notice nothing. It takes 3 s, longer where something does not come.
"""
EPILOG = """\
exit status:
  0        stopped by a signal, gracefully (--check: the configuration is fine; --probe: all is there)
  1        cannot start, or failed while running (--check: there are errors; --probe: something is lacking)
  2        the command is used wrongly
  130,143  a second SIGINT or SIGTERM ended the process

examples:
  rest-bridge worker -c conf/worker.yaml
  rest-bridge worker -c conf/worker.yaml --check
  rest-bridge worker -c conf/worker.yaml --probe --json | jq '.checks[] | select(.holds == false)'
  rest-bridge status --group plant --broker mqtt://127.0.0.1:1883
"""


_TLS_FILES: Final = ("ca_file", "cert_file", "key_file")
_ROWS: Final = [one for one in fields(WorkerSettings) if row_of(one).worker_instead is None]
_TEXTS: Final = [one for one in _ROWS if not row_of(one).is_mapping]
"""What can be set outside of the file."""


def _with_settings(run: Callable[..., int]) -> Callable[..., int]:
    """Add an option to a command for each setting of a worker, and a variable of the environment for the option.

    A secret has a variable only: other users of the machine can see options.
    """
    parameters = [one for one in inspect.signature(run).parameters.values() if one.kind is not one.VAR_KEYWORD]
    parameters += [option_of(one) for one in _TEXTS if not row_of(one).is_secret]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # which typer reads
    return run


def option_of(setting: "Field[Any]") -> inspect.Parameter:
    """Return the parameter of the command that sets a setting, with its option and variable."""
    row = row_of(setting)
    kind: Any = next((number for number in (int, float) if setting.type in (number, number | None)), str)
    default = "required" if row.is_required else f"default: {'none' if setting.default is None else setting.default}"
    option = typer.Option(
        envvar=variable_of(setting),
        metavar="SIZE" if row.is_size else "TEXT" if kind is str else "N",
        help=f"{row.meaning} ({default})".replace("`", ""),
    )
    annotation = Annotated[kind | None, option]
    return inspect.Parameter(setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


@_with_settings
def run(
    config: Annotated[
        Path, typer.Option("-c", "--config", readable=False, metavar="FILE", help="the worker's configuration")
    ],
    check: Annotated[
        bool, typer.Option("--check", help="validate configuration and route files, connect to nothing, start nothing")
    ] = False,
    probe: Annotated[
        bool,
        typer.Option("--probe", help="try on the broker all that a worker needs of it, print a table, start nothing"),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="with --probe: print a JSON object instead of a table")
    ] = False,
    log_format: Annotated[LogFormat, typer.Option(help="how log records are written")] = LogFormat.TEXT,
    log_level: Annotated[LogLevel, typer.Option(case_sensitive=False, help="the least level written")] = LogLevel.INFO,
    **settings: Any,
) -> int:
    """Run until a signal, or validate; a failure is reported on one line."""
    secrets = {one.name: os.environ.get(variable_of(one)) or None for one in _TEXTS if row_of(one).is_secret}
    options = {name: value for name, value in (settings | secrets).items() if value is not None}
    logs = configure(
        log_format, sys.stdout if check else sys.stderr,
        level=LogLevel.INFO if check else LogLevel.WARNING if probe else log_level, only_messages=check or probe,
    )  # fmt: skip
    try:
        if check:
            status = _check(config, options)
        elif probe:
            status = _probe(config, options, as_json=as_json)
        else:
            signals = Signals(logs.write_last)
            signals.install()
            from amqtt_rest_bridge import worker

            leave_no_core_file()
            given, address = _usable(config, options)
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(worker.serve(given, _ConfiguredBroker(given, address), signals, logs.stop_holding))
            status = 0
    except BridgeError as error:
        return report_failure(error, logs)
    logs.write_held()  # an ERROR that still waits for the next record
    return status


class _ConfiguredBroker:
    """The broker of the settings. Its password may change while the worker runs."""

    def __init__(self, settings: WorkerSettings, address: Address) -> None:
        self._settings = settings
        self._address = address

    @property
    def address(self) -> Address:
        """Return its address, with the password as it is now."""
        return replace(self._address, password=_password(self._settings))


def _read(path: Path, options: Mapping[str, Any]) -> tuple["Section | None", list[Fault]]:
    """Return the settings by file, options and variables, None if they cannot be built, and all faults."""
    from amqtt_rest_bridge.cli import configuration
    from amqtt_rest_bridge.spelling import did_you_mean

    variables = [PASSWORD_VARIABLE, ADMIN_VARIABLE, *map(variable_of, _TEXTS)]
    for name in os.environ:
        if name.startswith("REST_BRIDGE_") and name not in variables and (meant := did_you_mean(name, variables)):
            log.warning("the variable %s sets nothing: %s", name, meant)
    read = configuration.read(path)
    if not read.values.keys().isdisjoint(("listeners", "plugins")):
        raise ConfigurationError(f"{path} is the configuration of a broker: it runs with {own_name()} serve -c {path}")
    sources: dict[str, str] = {}
    for one in _TEXTS:
        if one.name in options:
            option = "" if row_of(one).is_secret else f"--{one.name.replace('_', '-')} or "
            sources[one.name] = f"{option}{variable_of(one)}"
    section, faults = configuration.validate(WorkerSettings, read, (), {**read.values, **options}, sources)
    faults += [
        read.fault((one.name,), f"a worker has no {one.name}", row_of(one).worker_instead)
        for one in fields(WorkerSettings)
        if one.name in read.values and one not in _ROWS
    ]
    if section is not None:
        faults += [*section.setting_faults(), *section.faults_of(broker_address(section.settings)[1])]
    return section, faults


def _check(path: Path, options: Mapping[str, Any]) -> int:
    """Log what is wrong with the settings and the routes, or "ok"; return the exit status."""
    from amqtt_rest_bridge.cli import configuration

    section, faults = _read(path, options)
    for fault in faults:
        log.error("%s", fault)
    if section is None or not configuration.check_start(section) or faults:
        return 1
    log.info("ok")
    return 0


def _usable(path: Path, options: Mapping[str, Any]) -> tuple[WorkerSettings, Address]:
    """Return the settings and the broker's address; raises `ConfigurationError` for what is wrong with them."""
    section, faults = _read(path, options)
    address = None if section is None else broker_address(section.settings)[0]
    if section is None or address is None or faults:
        raise ConfigurationError(in_one_line(faults))
    return section.settings, address


def _probe(path: Path, options: Mapping[str, Any], *, as_json: bool) -> int:
    """Try on the broker what a worker needs, and print what holds; return the exit status."""
    from amqtt_rest_bridge.group.probe import probe
    from amqtt_rest_bridge.reload import load_first

    settings, address = _usable(path, options)
    routes = load_first(settings).routes
    findings = asyncio.run(probe(address, settings, routes))
    lacking = sum(one.holds is False for one in findings)
    if as_json:
        found = {"broker": address.shown, "group": settings.group, "checks": [asdict(one) for one in findings]}
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return 1 if lacking else 0
    print(f"{address.shown} for the workers of group {settings.group}:")
    width = max(len(one.name) for one in findings)
    for one in findings:
        answer = "-" if one.holds is None else "yes" if one.holds else "NO"
        print(f"  {answer:3}  {one.name:{width}}  {one.detail}")
        if one.hint:
            print(f"       {'':{width}}  to do: {one.hint}")
    if lacking:
        print(f"{count(lacking, 'thing')} that workers need {'is' if lacking == 1 else 'are'} lacking")
    else:
        print("all that workers need is there")
    return 1 if lacking else 0


def broker_address(settings: WorkerSettings) -> tuple[Address | None, list[SettingFault]]:
    """Return the broker's address, None if it cannot be used, and what is wrong with it; reads the files that it needs.

    No message holds the password.
    """
    faults: list[SettingFault] = []
    url, password, tls = parse_url(settings.broker), None, None
    if url is None or url.path is not None:  # a WebSocket
        faults.append((("broker",), "the setting broker must be mqtt://[USER@]HOST[:PORT], or mqtts:// for TLS"))
    elif url.password is not None:
        why = (
            f"the setting broker holds a password: put it into the environment variable {PASSWORD_VARIABLE}, "
            "or name a file of secrets_dir in password_secret"
        )
        faults.append((("broker",), why))
    try:
        password = _password(settings)
    except ConfigurationError as error:
        faults.append((("password_secret",), str(error)))
    try:
        files = {name: getattr(settings, name) for name in _TLS_FILES}
        tls = load_tls(settings.broker.lower().startswith("mqtts:"), files, "broker: mqtts://...")
    except ConfigurationError as error:
        faults.append((_TLS_FILES, str(error)))
    return (None, faults) if url is None or faults else (replace(url, password=password, tls=tls), [])


def _password(settings: WorkerSettings) -> str | None:
    password = read_secret(settings, "password", PASSWORD_VARIABLE)
    try:
        of_text(password or "")
    except ValueError:  # which may hold it
        raise ConfigurationError("the broker's password is not UTF-8, or longer than MQTT can write") from None
    return password

"""`rest-bridge worker`: run routes beside a broker of any kind, or validate a worker's configuration. Main thread."""

import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from amqtt_rest_bridge.cli.serve.command import in_one_line, report_failure
from amqtt_rest_bridge.cli.serve.logs import Handler, LogFormat, LogLevel, configure
from amqtt_rest_bridge.errors import ConfigurationError, Fault
from amqtt_rest_bridge.processes.supervisor import Signals

log = logging.getLogger(__name__)

DESCRIPTION = """\
Run the routes of a configuration file beside an MQTT 5 broker or cluster with shared subscriptions: Mosquitto from 2.0,
EMQX, HiveMQ, VerneMQ. As many workers as the group has slots share the messages; each needs a slot of its own.

A message is acknowledged when all its calls have ended and the broker has acknowledged their results, so a worker that
is killed loses none. A slot that is away for adopt_seconds is served by another worker.

What cannot work ends the start with one line that says why: a faulty file or setting, errors in route files, a port
that is taken, a broker that cannot be reached or that lacks MQTT 5 or shared subscriptions. Once it runs, a worker
whose broker is away connects again after 1, 2, 4 ... 30 s.

The password is read from the environment variable REST_BRIDGE_BROKER_PASSWORD, or from the file password_secret of
secrets_dir. SIGTERM and SIGINT shut down gracefully, within 10 s; SIGHUP reads the route files again.
"""
EPILOG = """\
exit status:
  0        stopped by a signal, gracefully (--check: the configuration is fine)
  1        cannot start, or failed while running; another worker took the slot (--check: there are errors)
  2        the command is used wrongly
  130,143  a second SIGINT or SIGTERM ended the process

examples:
  rest-bridge worker -c conf/worker.yaml --slot 0
  rest-bridge worker -c conf/worker.yaml --check
  rest-bridge status --group plant --broker mqtt://127.0.0.1:1883
"""


def run(
    config: Annotated[Path, typer.Option("-c", "--config", metavar="FILE", help="the worker's configuration")],
    broker: Annotated[str | None, typer.Option(metavar="URL", help="mqtt:// or mqtts://[USER@]HOST[:PORT]")] = None,
    group: Annotated[str | None, typer.Option(help="the group of the worker")] = None,
    slots: Annotated[int | None, typer.Option(help="how many slots the group has")] = None,
    slot: Annotated[int | None, typer.Option(help="which of them this worker is, from 0")] = None,
    adopt_seconds: Annotated[float | None, typer.Option(help="after how long a slot that is away is adopted")] = None,
    session_expiry: Annotated[int | None, typer.Option(help="seconds that the broker keeps a slot's session")] = None,
    ca_file: Annotated[str | None, typer.Option(metavar="FILE", help="TLS: authorities")] = None,
    cert_file: Annotated[str | None, typer.Option(metavar="FILE", help="TLS: certificate of the worker")] = None,
    key_file: Annotated[str | None, typer.Option(metavar="FILE", help="TLS: its key")] = None,
    routes: Annotated[str | None, typer.Option(metavar="PATH", help="file or folder of routes")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="validate configuration and route files, connect to nothing, start nothing")
    ] = False,
    log_format: Annotated[LogFormat, typer.Option(help="how log records are written")] = LogFormat.TEXT,
    log_level: Annotated[LogLevel, typer.Option(case_sensitive=False, help="the least level written")] = LogLevel.INFO,
) -> int:
    """Run until a signal, or validate; a failure is reported on one line."""
    given = {
        "broker": broker, "group": group, "slots": slots, "slot": slot, "adopt_seconds": adopt_seconds,
        "session_expiry": session_expiry, "ca_file": ca_file, "cert_file": cert_file, "key_file": key_file,
        "routes": routes,
    }  # fmt: skip
    options = {name: value for name, value in given.items() if value is not None}
    if check:
        logs = configure(log_format, sys.stdout, level=LogLevel.INFO, only_messages=True)
        return report_failure(lambda: _check(config, options), logs)
    logs = configure(log_format, sys.stderr, level=log_level)
    signals = Signals(logs.write_last)
    signals.install()
    return report_failure(lambda: _run(config, options, signals, logs), logs)


@dataclass(frozen=True, slots=True)
class _Read:
    """The settings without the `invalid` ones, None if they cannot be built; all faults; what returns a place."""

    settings: Any
    faults: list[Fault]
    invalid: frozenset[str]
    place: Callable[[tuple[str, ...]], str]


def _read(path: Path, options: Mapping[str, Any]) -> _Read:
    from amqtt_rest_bridge.cli.serve import configuration
    from amqtt_rest_bridge.cli.serve.validation import build
    from amqtt_rest_bridge.worker.settings import WorkerSettings

    read = configuration.read(path)
    settings, misfits = build(WorkerSettings, {**read.values, **options})
    faults = [read.invalid((), one) for one in misfits]
    if "spool" in read.values:
        hint = "leave it out: the broker keeps the messages of lossless routes"
        faults.append(read.fault(("spool",), "a worker has no spool", hint))

    def keys(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in names if name in read.values and name not in options)[:1]

    invalid = frozenset(str(one.key) for one in misfits)
    found = settings.setting_faults() if settings is not None else ()
    faults += [read.fault(keys(names), message) for names, message in found if invalid.isdisjoint(names)]
    return _Read(settings, faults, invalid, lambda names: read.place(keys(names)))


def _check(path: Path, options: Mapping[str, Any]) -> int:
    from amqtt_rest_bridge.cli.serve import bridge_check

    read = _read(path, options)
    for fault in read.faults:
        log.error("%s", fault)
    if read.settings is None or not bridge_check.is_sound(read.settings, read.place, read.invalid) or read.faults:
        return 1
    log.info("ok")
    return 0


def _run(path: Path, options: Mapping[str, Any], signals: Signals, logs: Handler) -> int:
    from amqtt_rest_bridge.bridge import main
    from amqtt_rest_bridge.processes.route_service import BridgeCode
    from amqtt_rest_bridge.worker import service
    from amqtt_rest_bridge.worker.settings import check_worker_settings

    read = _read(path, options)
    if read.faults:
        raise ConfigurationError(in_one_line(read.faults))
    address = check_worker_settings(read.settings)
    service.run(read.settings, address, BridgeCode(main.check_routes, main.run), signals, logs.stop_holding)
    return 0

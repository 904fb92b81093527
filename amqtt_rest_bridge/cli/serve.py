"""`rest-bridge serve`: run the broker with its plugins as a service, or validate its configuration. Main thread."""

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amqtt_rest_bridge.cli.logs import Handler, LogFormat, LogLevel, StrayOutput, configure
from amqtt_rest_bridge.errors import BridgeError, ConfigurationError, Fault, Severity
from amqtt_rest_bridge.signals import Signals
from amqtt_rest_bridge.system import leave_no_core_file

if TYPE_CHECKING:
    from amqtt_rest_bridge.cli.configuration import Section  # which imports much that --help does without

log = logging.getLogger(__name__)

DESCRIPTION = """\
Run an MQTT broker with the plugins of a configuration file, the same file as for `amqtt -c`.

The broker does not start, and one line says why, if a file is missing or malformed, a key or setting is unknown, a
plugin cannot be imported or started, a port is taken, or a route file has errors (each is on a line of its own
before). Nothing is left running then.

SIGTERM and SIGINT (Ctrl-C) shut down gracefully: requests under way get 5 s to finish, the whole takes 10 s at most.
A second signal ends the process at once. SIGHUP reads the route files again.

Logs go to standard error, as text like amqtt's or as one JSON object a line (time, level, logger, message,
exception). Level info has a line for each message and request that a route handled and did not skip, at most one a
second for each event; debug has the connections of clients too.
uvloop is used when it is installed: pip install 'amqtt-rest-bridge[fast]'.
"""
EPILOG = """\
exit status:
  0        stopped by a signal, gracefully (--check: the configuration is fine)
  1        cannot start, failed while running, or was not shut down within 10 s (--check: there are errors)
  2        the command is used wrongly
  130,143  a second SIGINT or SIGTERM ended the process

examples:
  rest-bridge serve -c conf/broker.yaml
  rest-bridge serve -c conf/broker.yaml --check        (before a restart, or in a pipeline)
  rest-bridge serve -c conf/broker.yaml --log-format json 2>>broker.jsonl
"""


def run(
    config: Annotated[
        Path, typer.Option("-c", "--config", readable=False, metavar="FILE", help="the broker's configuration")
    ],
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="validate configuration, plugins' settings and route files, print ok or what is wrong, start nothing",
        ),
    ] = False,
    log_format: Annotated[LogFormat, typer.Option(help="how log records are written")] = LogFormat.TEXT,
    log_level: Annotated[
        LogLevel, typer.Option(case_sensitive=False, help="the least level written; debug slows the broker down")
    ] = LogLevel.INFO,
    debug: Annotated[bool, typer.Option("-d", "--debug", help="same as --log-level debug")] = False,
) -> int:
    """Serve until a signal, or validate; a failure is reported on one line."""
    level = LogLevel.DEBUG if debug else log_level
    stray_output = signals = None
    if check:
        written = LogLevel.DEBUG if level is LogLevel.DEBUG else LogLevel.INFO  # "ok" is wanted at any level
        logs = configure(log_format, sys.stdout, level=written, only_messages=True)
    else:
        stray_output = StrayOutput() if log_format is LogFormat.JSON else None
        stream = stray_output.stream if stray_output is not None else sys.stderr
        logs = configure(log_format, stream, level=level)
        signals = Signals(logs.write_last)
        signals.install()
    try:
        try:
            status = _check(config) if signals is None else _serve(config, signals, logs)
        finally:
            if stray_output is not None:
                stray_output.end()
    except BridgeError as error:
        return report_failure(error, logs)
    logs.write_held()  # an ERROR that still waits for the next record
    return status


def report_failure(error: BridgeError, logs: Handler) -> int:
    """Write an error as the last line of the log, and return the exit status of the command."""
    line = f"rest-bridge: error: {' '.join(str(error).split())}"
    logs.write_held(line)
    logs.write_last(line)
    return 1


def _serve(path: Path, signals: Signals, logs: Handler) -> int:
    """Run the broker until a signal; return the exit status."""
    # Importing amqtt takes a second: only here, when signals are handled already.
    from amqtt_rest_bridge.broker import service
    from amqtt_rest_bridge.broker.configuration import broker_config

    leave_no_core_file()
    values, plugins, faults = _read(path)
    if any(fault.severity is Severity.ERROR for fault in faults):
        faults += [fault for plugin in plugins for fault in plugin.setting_faults()]
        raise ConfigurationError(in_one_line([fault for fault in faults if fault.severity is Severity.ERROR]))
    for warning in faults:
        log.warning("%s", warning)
    service.run(broker_config(values), signals, logs.stop_holding)
    return 0


def _check(path: Path) -> int:
    """Log what is wrong with the configuration, or "ok"; return the exit status."""
    from amqtt_rest_bridge.cli.configuration import check_start
    from amqtt_rest_bridge.settings import Settings

    _, plugins, faults = _read(path)
    faults += [fault for plugin in plugins for fault in plugin.setting_faults()]
    for fault in faults:
        log.log(fault.severity.level, "%s", fault)
    can_start = [check_start(plugin) for plugin in plugins if isinstance(plugin.settings, Settings)]
    if not all(can_start) or any(fault.severity is Severity.ERROR for fault in faults):
        return 1
    log.info("ok")
    return 0


def _read(path: Path) -> tuple[dict[str, Any], list["Section"], list[Fault]]:
    """Return the values of a configuration, its plugins, and all faults but those of the plugins' own checks."""
    from amqtt_rest_bridge.cli import configuration

    read = configuration.read(path)
    plugins, faults = configuration.listed_plugins(read)
    return read.values, plugins, [*configuration.broker_faults(read), *faults]


def in_one_line(errors: list[Fault]) -> str:
    """Return the first error with its place and hint, and how many more there are."""
    first, *others = errors
    place = f"{first.path}:{first.position.line}:{first.position.column}"
    hint = f" ({first.hint})" if first.hint else ""
    more = f"; {len(others)} more, see --check" if others else ""
    return f"{place}: {first.message}{hint}{more}"

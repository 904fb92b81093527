"""The command line `rest-bridge`, also `python -m amqtt_rest_bridge`; runs in the main thread of its own process.

The module of a command is imported when the command is run.
"""

from amqtt_rest_bridge import interrupts  # isort: skip  # first: Ctrl-C ends what follows

import functools
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final

import typer

import amqtt_rest_bridge
from amqtt_rest_bridge.cli import Command, CommandError, as_written, command_line, on_any_streams, run_command_line
from amqtt_rest_bridge.errors import BridgeError

interrupts.raise_again()

_DESCRIPTION = """\
An MQTT broker as an HTTP bridge: routes written in *.lot files send HTTP requests for MQTT messages (client mode) and
publish HTTP requests as MQTT messages (server mode).

Write a route, `check` it, `try` it with a message, then serve it with the broker.
"""


_HEADINGS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "Write and test routes": {
        "new": ("new", "write a first route with its test"),
        "check": ("check", "report what is wrong with route files"),
        "try": ("dry_run", "show what a message would send"),
        "test": ("route_tests", "run the tests beside route files"),
        "fmt": ("fmt", "write route files in the canonical layout"),
        "help": ("help", "print what a setting of a route file means"),
        "lsp": ("lsp", "serve an editor: faults, completion, formatting while you type"),
        "install": ("install", "fetch the routes of a published template"),
    },
    "Run routes": {
        "serve": ("serve", "run the broker with its plugins"),
        "worker": ("worker", "run routes beside any MQTT 5 broker"),
    },
    "Look at a running bridge": {
        "status": ("status", "show how the routes of a running broker are doing"),
        "trace": ("trace", "print messages and requests of a running bridge as they happen"),
    },
    "Mend what failed": {
        "failures": ("failures", "list the failures that a running bridge has kept"),
        "retry": ("retry", "send the messages of kept failures again"),
        "replay": ("replay", "publish the messages of failures from a file or topic again"),
    },
}
"""Commands by heading and name: their modules below `cli`, and what they do."""
_COMMANDS: Final = {name: row for commands in _HEADINGS.values() for name, row in commands.items()}


@on_any_streams("rest-bridge", unwritten=2)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 2 when it is used wrongly, or cannot read or write its files."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] == ["check"] and given[1:] and not any(argument.startswith("-") for argument in given):
        # Without typer, whose validators (of pydantic) take longer than the check of a file.
        return _run("check", given[1:])
    if "_REST_BRIDGE_COMPLETE" in os.environ:  # asked by the shell, which has typed so far
        given = os.environ.get("COMP_WORDS", os.environ.get("_TYPER_COMPLETE_ARGS", "")).split()[1:]
    wanted = next((argument for argument in given if not argument.startswith("-")), None)
    return run_command_line(_application(wanted if wanted in _COMMANDS else None), given, "rest-bridge")


@functools.cache  # options are built slowly: once in a process that runs commands again, or forks others that do
def _application(wanted: str | None) -> Any:
    """Return the command line, of whose commands one has its options."""
    application = command_line(
        lambda: f"amqtt-rest-bridge {amqtt_rest_bridge.__version__}", _DESCRIPTION, None, completes=True
    )
    for heading, commands in _HEADINGS.items():
        for name, (_, summary) in commands.items():
            if name == wanted:
                _add(application, name, heading)
            else:
                application.command(name, short_help=summary, rich_help_panel=heading)(_never_run)
    return typer.main.get_command(application)


def _never_run() -> None:
    """Take the place of a command that is only listed."""


def _run(name: str, /, *arguments: Any, **options: Any) -> int:
    """Run a command and return its exit status."""
    module = import_module(f"amqtt_rest_bridge.cli.{_COMMANDS[name][0]}")
    try:
        exit_status: int = module.run(*arguments, **options)
    except BridgeError as error:
        hint = f"\nhint: {error.hint}" if isinstance(error, CommandError) and error.hint else ""
        print(f"rest-bridge {name}: {error}{hint}", file=sys.stderr)
        return 1 if isinstance(error, CommandError) else 2
    return exit_status


def _add(application: typer.Typer, name: str, heading: str) -> None:
    """Add a command with its options and help, which are imported with it."""
    module = import_module(f"amqtt_rest_bridge.cli.{_COMMANDS[name][0]}")

    @functools.wraps(module.run)
    def command(**options: Any) -> None:
        raise typer.Exit(_run(name, **options))

    description, epilog = as_written(module.DESCRIPTION), as_written(module.EPILOG)
    application.command(
        name, cls=Command, help=description, short_help=_COMMANDS[name][1], epilog=epilog, rich_help_panel=heading
    )(command)


if __name__ == "__main__":
    sys.exit(main())

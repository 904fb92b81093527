"""The command line `rest-bridge`, also `python -m amqtt_rest_bridge`; runs in the main thread of its own process.

The module of a command is imported when the command is run.
"""

import functools
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any, Final

import typer

import amqtt_rest_bridge
from amqtt_rest_bridge.errors import BridgeError

_DESCRIPTION = """\
An MQTT broker as an HTTP bridge: routes written in *.lot files send HTTP requests for MQTT messages (client mode) and
publish HTTP requests as MQTT messages (server mode).

Write a route, `check` it, `try` it with a message, then serve it with the broker.
"""


_COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "check": ("check", "report what is wrong with route files"),
    "fmt": ("editing.fmt", "write route files in the canonical layout"),
    "try": ("dry_run", "show what a message would send"),
    "install": ("install.command", "fetch the routes of a published template"),
    "test": ("route_tests", "run the tests beside route files"),
    "replay": ("replay", "publish the messages of failures again"),
    "serve": ("serve", "run the broker with its plugins"),
    "worker": ("worker", "run routes beside any MQTT 5 broker"),
    "status": ("status", "show how the routes of a running broker are doing"),
    "failures": ("failures", "list the failures that a running bridge has kept"),
    "retry": ("retry", "send the messages of kept failures again"),
    "trace": ("trace", "print messages and requests of a running bridge as they happen"),
}
"""Commands by name: their modules below `cli`, and what they do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 2 when it is used wrongly or its files cannot be read."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    wanted = next((argument for argument in given if not argument.startswith("-")), None)
    # Plain help and errors: rich's frames need a wide terminal, and paths in messages would read as its markup.
    application = typer.Typer(
        add_completion=False, rich_markup_mode=None, context_settings={"max_content_width": 120}
    )
    application.callback(help=_as_written(_DESCRIPTION))(_shared_options)
    for name, (_, summary) in _COMMANDS.items():
        if name == wanted:
            _add(application, name)
        else:
            application.command(name, short_help=summary)(_never_run)
    try:
        typer.main.get_command(application)(given, prog_name="rest-bridge")
    except SystemExit as ended:  # typer always ends so
        return ended.code if isinstance(ended.code, int) else 0
    return 0


def _never_run() -> None:
    """Take the place of a command that is only listed."""


def _add(application: typer.Typer, name: str) -> None:
    module = import_module(f"amqtt_rest_bridge.cli.{_COMMANDS[name][0]}")

    @functools.wraps(module.run)
    def command(**options: Any) -> None:
        try:
            exit_status = module.run(**options)
        except BridgeError as error:
            print(f"rest-bridge {name}: {error}", file=sys.stderr)
            exit_status = 2
        raise typer.Exit(exit_status)

    description, epilog = _as_written(module.DESCRIPTION), _as_written(module.EPILOG)
    application.command(name, help=description, short_help=_COMMANDS[name][1], epilog=epilog)(command)


def _as_written(text: str) -> str:
    """Mark each paragraph so that its lines are kept; typer would rewrap them."""
    return "\n\n".join(f"\b\n{paragraph}" for paragraph in text.strip().split("\n\n"))


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"amqtt-rest-bridge {amqtt_rest_bridge.__version__}")
        raise typer.Exit


def _shared_options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """Accept the options of `rest-bridge` itself."""


if __name__ == "__main__":
    sys.exit(main())

"""The command line `rest-bridge`, also `python -m amqtt_rest_bridge`; runs in the main thread of its own process."""

import functools
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Annotated, Any

import typer

from amqtt_rest_bridge.cli import check, dry_run, replay, status, trace, worker
from amqtt_rest_bridge.cli.install import command as install
from amqtt_rest_bridge.cli.route_tests import command as route_tests
from amqtt_rest_bridge.cli.serve import command as serve
from amqtt_rest_bridge.errors import BridgeError

_DESCRIPTION = """\
An MQTT broker as an HTTP bridge: routes written in *.lot files send HTTP requests for MQTT messages (client mode) and
publish HTTP requests as MQTT messages (server mode).

Write a route, `check` it, `try` it with a message, then serve it with the broker.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 2 when it is used wrongly or its files cannot be read."""
    try:
        typer.main.get_command(_application())(arguments, prog_name="rest-bridge")
    except SystemExit as ended:  # typer always ends so
        return ended.code if isinstance(ended.code, int) else 0
    return 0


def _application() -> typer.Typer:
    # Plain help and errors: rich's frames need a wide terminal, and paths in messages would read as its markup.
    application = typer.Typer(
        add_completion=False, rich_markup_mode=None, context_settings={"max_content_width": 120}
    )
    application.callback(help=_as_written(_DESCRIPTION))(_shared_options)
    for name, module, run, summary in (
        ("check", check, check.run, "report what is wrong with route files"),
        ("try", dry_run, dry_run.run, "show what a message would send"),
        ("install", install, install.run, "fetch the routes of a published template"),
        ("test", route_tests, route_tests.run, "run the tests beside route files"),
        ("replay", replay, replay.run, "publish the messages of failures again"),
        ("serve", serve, serve.run, "run the broker with its plugins"),
        ("worker", worker, worker.run, "run routes beside any MQTT 5 broker"),
        ("status", status, status.run, "show how the routes of a running broker are doing"),
        ("trace", trace, trace.run, "print messages and requests of a running bridge as they happen"),
    ):
        _add(application, name, module, run, summary)
    return application


def _add(application: typer.Typer, name: str, module: ModuleType, run: Callable[..., int], summary: str) -> None:
    @functools.wraps(run)
    def command(**options: Any) -> None:
        try:
            exit_status = run(**options)
        except BridgeError as error:
            print(f"rest-bridge {name}: {error}", file=sys.stderr)
            exit_status = 2
        raise typer.Exit(exit_status)

    description, epilog = _as_written(module.DESCRIPTION), _as_written(module.EPILOG)
    application.command(name, help=description, short_help=summary, epilog=epilog)(command)


def _as_written(text: str) -> str:
    """Mark each paragraph so that its lines are kept; typer would wrap them anew."""
    return "\n\n".join(f"\b\n{paragraph}" for paragraph in text.strip().split("\n\n"))


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"amqtt-rest-bridge {_version()}")
        raise typer.Exit


def _shared_options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """Accept the options of `rest-bridge` itself."""


def _version() -> str:
    try:
        return version("amqtt-rest-bridge")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"


if __name__ == "__main__":
    sys.exit(main())

"""The command line `rest-bridge`, also `python -m amqtt_rest_bridge`; runs in the main thread of its own process."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from amqtt_rest_bridge.cli import check, dry_run, status
from amqtt_rest_bridge.cli.serve import command as serve
from amqtt_rest_bridge.errors import BridgeError

COMMANDS = (check, dry_run, serve, status)

_DESCRIPTION = """\
An MQTT broker as an HTTP bridge: routes written in *.lot files send HTTP requests for MQTT messages (client mode) and
publish HTTP requests as MQTT messages (server mode).

Write a route, `check` it, `try` it with a message, then serve it with the broker.
"""


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="rest-bridge", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"amqtt-rest-bridge {_version()}")
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", dest="command")
    for command in COMMANDS:
        command.add_to(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and give its exit status: what the command says, 2 when it cannot even begin."""
    parsed = build_parser().parse_args(arguments)
    try:
        status: int = parsed.run(parsed)
    except BridgeError as error:
        print(f"rest-bridge {parsed.command}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # what reads our output has seen enough, as in `rest-bridge check ... | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def _version() -> str:
    try:
        return version("amqtt-rest-bridge")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"


if __name__ == "__main__":
    sys.exit(main())

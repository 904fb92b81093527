"""The commands of `rest-bridge`, one module or folder each, and the options that several of them share. Main thread.

A command is a function whose annotations describe its options to typer; it returns the exit status. Results go to
standard output, errors to standard error. `DESCRIPTION` and `EPILOG` of its module are printed by `--help` as written.
"""

from pathlib import Path
from typing import Annotated

import typer

from amqtt_rest_bridge.errors import ConfigurationError

SECRETS_DIR = "/run/secrets"

Paths = Annotated[list[str], typer.Argument(metavar="PATH", help="route file, notebook or folder")]
SecretsDir = Annotated[Path, typer.Option(metavar="DIR", help='folder in which GET SECRET "X" reads the file X')]


def read_bytes(path: Path) -> bytes:
    """Read a file that an option names; raises `ConfigurationError` where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror or error}") from error

"""The commands of `rest-bridge`, one module or folder each, and the options that several of them share. Main thread.

A command is a function whose annotations describe its options to typer; it returns the exit status. Results go to
standard output, errors to standard error. `DESCRIPTION` and `EPILOG` of its module are printed by `--help` as written.
"""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from amqtt_rest_bridge.errors import ConfigurationError, Fault, Severity

if TYPE_CHECKING:
    from amqtt_rest_bridge.mqtt.values import Address

SECRETS_DIR = "/run/secrets"
MOST_LISTED = 200
"""Faults that a check lists; the others are counted."""

Paths = Annotated[list[str], typer.Argument(metavar="PATH", help="route file, notebook or folder")]
SecretsDir = Annotated[Path, typer.Option(metavar="DIR", help='folder in which GET SECRET "X" reads the file X')]

DEFAULT_BROKER: Final = "mqtt://127.0.0.1:1883"
BROKER_HELP: Final = """\
Name the user in the URL, and put the password into the environment variable REST_BRIDGE_BROKER_PASSWORD: URLs
are visible to other users of the machine. With mqtts:// and wss:// the broker's certificate is verified against the
system's authorities, or those of --ca-file.
"""

Broker = Annotated[
    str,
    typer.Option(
        metavar="URL",
        help="mqtt://, mqtts://, ws:// or wss://[USER[:PASSWORD]@]HOST[:PORT]; "
        "%XX in user name and password is decoded",
    ),
]
CaFile = Annotated[str | None, typer.Option(metavar="FILE", help="TLS: authorities, PEM")]
CertFile = Annotated[str | None, typer.Option(metavar="FILE", help="TLS: certificate of this client, PEM")]
KeyFile = Annotated[str | None, typer.Option(metavar="FILE", help="TLS: its key, PEM")]


def read_bytes(path: Path) -> bytes:
    """Read a file that an option names; raises `ConfigurationError` where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror or error}") from error


def listed(faults: Sequence[Fault]) -> tuple[list[Fault], str | None]:
    """Return the faults to list, in their order, and how many more there are; errors are preferred to the others."""
    if len(faults) <= MOST_LISTED:
        return list(faults), None
    severities = list(Severity)
    by_severity = sorted(range(len(faults)), key=lambda number: severities.index(faults[number].severity))
    chosen = set(by_severity[:MOST_LISTED])
    others = counted(faults[number] for number in by_severity[MOST_LISTED:])
    return [fault for number, fault in enumerate(faults) if number in chosen], f"... and {others} more"


def counted(faults: Iterable[Fault]) -> str:
    """Count faults by severity: `2 errors, 1 warning`; "" for none."""
    counts = Counter(fault.severity for fault in faults)
    return ", ".join(count(counts[severity], severity) for severity in Severity if counts[severity])


def several(names: Sequence[str], most: int) -> str:
    """Return the first names, `most` of them, and how many more there are: `a, b and 3 more`."""
    others = len(names) - most
    return ", ".join(names[:most]) + (f" and {others} more" if others > 0 else "")


def count(number: int, noun: str) -> str:
    """Return a number with its noun, which takes an s in the plural."""
    return f"{number} {noun}{'s' if number != 1 else ''}"


def broker_address(broker: str, ca_file: str | None, cert_file: str | None, key_file: str | None) -> "Address":
    """Return the broker's address with what is needed to connect; reads the TLS files and the password.

    Raises:
        ConfigurationError: An option cannot be used; the message holds no password.
    """
    from amqtt_rest_bridge.cli.broker_client import parse_address  # asyncio and ssl, which --help need not wait for
    from amqtt_rest_bridge.settings import PASSWORD_VARIABLE

    password = os.environ.get(PASSWORD_VARIABLE)
    return parse_address(broker, password, ca_file=ca_file, cert_file=cert_file, key_file=key_file)

"""The commands of `rest-bridge`, one module each, and the options that several of them share. Main thread.

A command is a function whose annotations describe its options to typer; it returns the exit status. Results go to
standard output, errors to standard error. `DESCRIPTION` and `EPILOG` of its module are printed by `--help` as written.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from amqtt_rest_bridge.errors import ConfigurationError, Fault, HintedError, Severity

SECRETS_DIR = "/run/secrets"
MOST_LISTED = 200
"""Faults that a check lists; the others are counted."""

Paths = Annotated[list[str], typer.Argument(metavar="PATH", help="route file, notebook or folder")]
SecretsDir = Annotated[Path, typer.Option(metavar="DIR", help='folder in which GET SECRET "X" reads the file X')]


class CommandError(HintedError):
    """A command cannot do what it was asked: its message, and hint, are printed, and the exit status is 1."""


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


def agrees(question: str) -> bool:
    """Ask before something is sent; without an answer, say so and return False."""
    try:
        return typer.confirm(question)
    except typer.Abort:
        print("\nno answer, so nothing is sent (--yes: does not ask)", file=sys.stderr)
        return False


def several(names: Sequence[str], most: int) -> str:
    """Return the first names, `most` of them, and how many more there are: `a, b and 3 more`."""
    others = len(names) - most
    return ", ".join(names[:most]) + (f" and {others} more" if others > 0 else "")


def without_controls(text: str) -> str:
    """Replace control characters, which would steer the terminal."""
    return "".join([char if char.isprintable() else "\ufffd" for char in text])


def count(number: int, noun: str) -> str:
    """Return a number with its noun, which takes an s in the plural."""
    return f"{number} {noun}{'s' if number != 1 else ''}"

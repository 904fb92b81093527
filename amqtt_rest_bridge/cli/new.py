"""`rest-bridge new`: write a first route with its test. Main thread."""

import contextlib
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from amqtt_rest_bridge.cli import own_name
from amqtt_rest_bridge.errors import ConfigurationError, on_one_line

DESCRIPTION = """\
Write a first route, NAME.lot, and its test, NAME.test.yaml, into the working directory. A file that exists stays.

  client   a message sends a request, and the response is published
  server   a request is published as a message
  poll     an API is asked every 15 minutes, and one field of its answer is kept
  webhook  a signed request of another service is published as a message
"""
EPILOG = """\
exit status:
  0  written
  2  a file exists or cannot be written, or the command is used wrongly

examples:
  rest-bridge new client Tickets && rest-bridge check Tickets.lot && rest-bridge test Tickets.test.yaml
"""


class First(StrEnum):
    """The routes to start from."""

    CLIENT = "client"
    SERVER = "server"
    POLL = "poll"
    WEBHOOK = "webhook"


_NAME: Final = "MyRoute"
_FIRST: Final = Path(__file__).parent / "first"
"""The files of each kind, which are written with another name."""


def run(
    kind: Annotated[First, typer.Argument(metavar="KIND", help="what the route does")] = First.CLIENT,
    name: Annotated[str, typer.Argument(metavar="NAME", help="name of the route and its files")] = _NAME,
) -> int:
    """Write both files, or none."""
    from amqtt_rest_bridge.lot.definitions import is_name

    if not is_name(name) or name[0] in ".-" or name.upper() in ("WITH", "ADD"):
        allowed = "write A-Z a-z 0-9 _ . - without a . or - at the beginning, and neither WITH nor ADD"
        raise ConfigurationError(f"{on_one_line(name)} cannot be the name of a route; {allowed}")
    route, test = f"{name}.lot", f"{name}.test.yaml"
    _write(kind, name, ".lot")
    try:
        _write(kind, name, ".test.yaml")
    except ConfigurationError:
        Path(route).unlink()
        raise
    print(f"wrote {route} and {test}\nnext: {own_name()} check {route} && {own_name()} test {test}")
    return 0


def _write(kind: First, name: str, suffix: str) -> None:
    """Write a file that does not exist; raises `ConfigurationError` for one that does."""
    text = (_FIRST / kind / f"{_NAME}{suffix}").read_text(encoding="utf-8").replace(_NAME, name)
    path = Path(f"{name}{suffix}")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        advice = "write another name behind the kind of route"
        raise ConfigurationError(f"cannot write {path}: {error.strerror}; {advice}") from error
    except OSError as error:
        with contextlib.suppress(OSError):
            path.unlink()  # cut off where the disk is full
        raise ConfigurationError(f"cannot write {path}: {error.strerror or error}") from error

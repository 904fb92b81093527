"""`rest-bridge status`: how the routes of a running broker are doing."""

import json
import os
import shutil
import signal
import sys
import time
from types import FrameType
from typing import Annotated, Any

import typer

from amqtt_rest_bridge.cli import status_table
from amqtt_rest_bridge.errors import BridgeError

DEFAULT_BROKER = "mqtt://127.0.0.1:1883"

DESCRIPTION = """\
Show how the routes of a running broker are doing: health, connection, counters since its start, latencies, last
error.

On a terminal the table follows the broker until Ctrl-C. Otherwise, and with --json, what the broker has retained is
printed once. It comes from $SYS/broker/routes/<route>/status, which the plugin publishes every `status_seconds`
(30 by default, 0: never) and whenever the health of a route changes.

Health is Green, Yellow (errors among the last 20 calls) or Red (the last 20 failed, or 3 in a row). OK and FAILED
count messages that ended, RETRIED tries after the first, REFUSED messages that were not taken for lack of room.
"""
EPILOG = """\
exit status:
  0    shown (even if there is no route)
  1    the broker cannot be reached, refuses us, or closed the connection
  2    the command is used wrongly
  130  ended by Ctrl-C

examples:
  rest-bridge status
  rest-bridge status --broker mqtt://monitor:secret@broker.example
  rest-bridge status --json | jq -r '.[] | select(.health != "Green") | .name'
"""
_DAY = 86_400
_ALTERNATE_SCREEN, _OWN_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _DAY:
        raise typer.BadParameter(f"{text!r} is not a number of seconds above 0, at most {_DAY}")
    return seconds


def run(
    broker: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="mqtt://, mqtts://, ws:// or wss://[USER:PASSWORD@]HOST[:PORT]; "
            "%XX in user name and password is decoded",
        ),
    ] = DEFAULT_BROKER,
    as_json: Annotated[
        bool, typer.Option("--json", help="print a JSON array of the status payloads, once")
    ] = False,
    seconds: Annotated[
        float | None,
        typer.Option(
            metavar="N", parser=_seconds, show_default=False,
            help="end after N seconds (default: on a terminal never, otherwise when all that is retained has come)",
        ),
    ] = None,
) -> int:  # fmt: skip
    """Show the table, or print once."""
    from amqtt_rest_bridge.broker import status_client  # amqtt takes a second to import, which --help need not wait for

    address = status_client.parse_address(broker)
    try:
        if sys.stdout.isatty() and not as_json:
            screen = _Screen(address.shown)
            with screen:
                status_client.follow(address, seconds, screen.show)
            return 0
        statuses = status_client.snapshot(address, seconds)
    except BridgeError as error:
        print(f"rest-bridge status: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    _print_once(statuses, as_json=as_json)
    return 0


def _print_once(statuses: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(status_table.in_order(statuses), indent=2))
    elif statuses:
        print("\n".join(status_table.table(statuses)))
    else:
        print("no route has a status yet: is the bridge loaded, and its status_seconds above 0?", file=sys.stderr)


class _Screen:
    """A terminal that shows the newest table; gives the terminal back as it was, with the last table on it."""

    def __init__(self, broker: str) -> None:
        self._broker = broker
        self._lines: list[str] = []

    def __enter__(self) -> None:
        signal.signal(signal.SIGTERM, _interrupt)
        self._write(_ALTERNATE_SCREEN)

    def __exit__(self, *_error: object) -> None:
        self._write(_OWN_SCREEN + "".join(f"{line}\n" for line in self._lines))

    def show(self, statuses: list[dict[str, Any]]) -> None:
        size = shutil.get_terminal_size()
        colour = "NO_COLOR" not in os.environ
        now = time.strftime("%H:%M:%S")
        title = f"{self._broker}  {now}  {status_table.summary(statuses)}  (Ctrl-C ends)"
        lines = status_table.table(statuses, width=size.columns, height=size.lines - 2, colour=colour)
        self._lines = [title[: size.columns], *lines]
        self._write(_HOME + "".join(f"{line}{_CLEAR_LINE}\n" for line in self._lines) + _CLEAR_REST)

    @staticmethod
    def _write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt

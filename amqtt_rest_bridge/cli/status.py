"""`rest-bridge status`: show how the routes of a running broker are doing. Main thread."""

import json
import signal
import sys
import time
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Self

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from amqtt_rest_bridge.cli import (
    BROKER_HELP,
    DEFAULT_BROKER,
    Broker,
    CaFile,
    CertFile,
    KeyFile,
    broker_address,
    status_table,
)
from amqtt_rest_bridge.errors import BridgeError

if TYPE_CHECKING:
    from amqtt_rest_bridge.cli.statuses import Overview

DESCRIPTION = f"""\
Show how the routes of a running broker are doing: health, connection, counters since its start, latencies, last
error.

On a terminal the table follows the broker until Ctrl-C. Otherwise, and with --json, what the broker has retained is
printed once. It comes from $SYS/broker/routes/<route>/status, which the plugin publishes every `status_seconds`
(30 by default, 0: never) and whenever the health of a route changes.

With --group the routes of the workers of a group are shown, each with the worker's slot: what they publish on
bridge/<group>/<slot>/routes/<route>/status. A worker that has gone, or published nothing for three times its
status_seconds, is away: its routes have the time since when in the place of their health.

Health is Green, Yellow (errors among the last 20 calls) or Red (the last 20 failed, or 3 in a row). OK and FAILED
count messages that ended, RETRIED tries after the first, REFUSED messages that were not taken for lack of room.
P50 MS and P99 MS are what the server took, WAIT P99 is what messages waited: for a worker, a turn, the next try.
Columns that are zero for every route are left out, and what does not fit beside each other goes below; then the last
error of each route, and how old the counters are. A reload that failed is reported on a line of its own (to standard
error unless on a terminal).

{BROKER_HELP}"""
EPILOG = """\
exit status:
  0    shown (even if there is no route)
  1    the broker cannot be reached, refuses the client, or closed the connection
  2    the command is used wrongly
  130  ended by Ctrl-C

examples:
  rest-bridge status
  REST_BRIDGE_BROKER_PASSWORD=secret rest-bridge status --broker mqtts://monitor@broker.example --ca-file ca.pem
  rest-bridge status --group plant --broker mqtt://broker.example
  rest-bridge status --json | jq -r '.[] | select(.health != "Green") | .name'
"""
_DAY = 86_400
_NOTHING = (
    "no route has a status yet: is the bridge loaded, and its status_seconds above 0? Those of workers: --group NAME",
    "no worker of this group has a status yet: is its name right, has one run, and is status_seconds above 0?",
)
_LINES_OF_ITS_OWN = 3  # summary, titles, and the last line, which would scroll


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _DAY:
        raise typer.BadParameter(f"{text!r} is not a number of seconds above 0, at most {_DAY}")
    return seconds


def _group(text: str) -> str:
    if not text or set(text) & set("/+#"):
        raise typer.BadParameter(f"{text!r} is not the name of a group of workers")
    return text


def run(
    broker: Broker = DEFAULT_BROKER,
    ca_file: CaFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
    group: Annotated[
        str | None, typer.Option(metavar="NAME", parser=_group, help="show the workers of this group")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print a JSON array of the status payloads, once")] = False,
    seconds: Annotated[
        float | None,
        typer.Option(
            metavar="N", parser=_seconds,
            help="end after N seconds (default: on a terminal never, otherwise when all that is retained has come)",
        ),
    ] = None,
) -> int:  # fmt: skip
    """Show the table, or print once."""
    from amqtt_rest_bridge.cli import statuses  # asyncio and ssl, which --help need not wait for

    address = broker_address(broker, ca_file, cert_file, key_file)
    topics = statuses.TOPIC_FILTER if group is None else f"bridge/{group}/+/routes/+/status"
    try:
        if sys.stdout.isatty() and not as_json:
            with _Screen(address.shown) as screen:
                statuses.follow(address, seconds, screen.show, topics)
            return 0
        overview = statuses.snapshot(address, seconds, topics)
    except BridgeError as error:
        print(f"rest-bridge status: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    _print_once(overview, group, as_json=as_json)
    return 0


def _print_once(overview: "Overview", group: str | None, *, as_json: bool) -> None:
    statuses, failure = overview.statuses, status_table.reload_failure(overview.reload_failure, time.time())
    if failure is not None:
        print(failure.plain, file=sys.stderr)
    if as_json:
        print(json.dumps(status_table.in_order(statuses), indent=2))
    elif statuses:
        console = Console(highlight=False, soft_wrap=True)
        shown = status_table.table(statuses, console, now=time.time(), width=status_table.UNBOUNDED)
        console.print(shown, crop=False)
        if (age := status_table.counters_age(statuses, time.time())) is not None:
            console.print(age)
    else:
        print(_NOTHING[group is not None], file=sys.stderr)


class _Screen:
    """A terminal that shows the newest table on a screen of its own, and leaves the last one behind."""

    def __init__(self, broker: str) -> None:
        self._broker = broker
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, screen=True, auto_refresh=False)
        self._shown: Overview | None = None

    def __enter__(self) -> Self:
        signal.signal(signal.SIGTERM, _interrupt)
        self._live.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._live.stop()
        if self._shown is not None:
            self._console.print(self._screen(self._shown, rows=None))

    def show(self, overview: "Overview") -> None:
        self._shown = overview
        self._live.update(self._screen(overview, rows=self._console.height - _LINES_OF_ITS_OWN), refresh=True)

    def _screen(self, overview: "Overview", rows: int | None) -> Group:
        statuses, now = overview.statuses, time.time()
        failure = status_table.reload_failure(overview.reload_failure, now)
        clock = time.strftime("%H:%M:%S", time.localtime(now))
        title = Text(f"{self._broker}  {clock}  {status_table.summary(statuses)}  (Ctrl-C ends)", overflow="fold")
        head = [line for line in (title, status_table.counters_age(statuses, now), failure) if line is not None]
        if rows is not None:
            rows -= sum(len(line.wrap(self._console, self._console.width)) for line in head) - 1
        return Group(
            *head,
            status_table.table(statuses, self._console, now=now, rows=rows),
        )


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    # As Ctrl-C, which asyncio's runner turns into a cancelled task; an exception raised here could tear a coroutine.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a script's background job; asyncio leaves it ignored
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)

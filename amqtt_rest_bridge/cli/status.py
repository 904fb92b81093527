"""`rest-bridge status`: what a broker reports of its routes, as a table or JSON. Main thread, own loop."""

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from amqtt_rest_bridge.cli import CaFile, CertFile, KeyFile, status_table
from amqtt_rest_bridge.cli.broker_client import (
    BROKER_HELP,
    DEFAULT_BROKER,
    Broker,
    Subscriber,
    broker_address,
    connected,
)
from amqtt_rest_bridge.engine.status import reload_topic, status_topic
from amqtt_rest_bridge.group.overview import GroupOverview, GroupRecords, filters
from amqtt_rest_bridge.mqtt.packets import Publish
from amqtt_rest_bridge.mqtt.values import Address

DESCRIPTION = f"""\
Show how the routes of a running broker are doing: health, connection, counters since its start, latencies, last
error.

On a terminal the table follows the broker until Ctrl-C. Otherwise, and with --json, what the broker has retained is
printed once. It comes from $SYS/broker/routes/<route>/status, which the plugin publishes every `status_seconds`
(30 by default, 0: never) and whenever the health of a route changes.

With --group the workers of a group are shown: who holds each slot since when, who lives or is away since when, and
whether their route sets differ. Below them each route is one line for all living workers: health and connection are
the worst, counts are sums, latencies those of the slowest worker; WORKERS counts them. A route whose workers are all
away has the time since when in the place of its health. What the broker still keeps for a slot no broker says over
MQTT.

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
RELOAD_TOPIC: Final = reload_topic()
TOPIC_FILTER: Final = status_topic("+")
_QUIET_SECONDS: Final = 0.3  # after which no more retained messages are on their way
_REFRESH_SECONDS: Final = 1.0  # the table is drawn this often when nothing changes, for its clock ...
_PAUSE_SECONDS: Final = 0.2  # ... and at most this often when much does

Status = dict[str, Any]
_DAY = 86_400
_NOTHING = (
    "no route has a status yet: is the bridge loaded, and its status_seconds above 0? Those of workers: --group NAME",
    "no worker of this group has a status yet: is its name right, has one run, and is status_seconds above 0?",
)
_LINES_OF_ITS_OWN = 3  # summary, titles, and the last line, which would scroll


@dataclass(frozen=True, slots=True)
class Overview:
    """What a broker reports: the status of each route, and its last reload if that failed (time, errors, message).

    `group` is what the workers of a group report, whose statuses are merged.
    """

    statuses: Sequence[Status]
    reload_failure: dict[str, Any] | None = None
    group: GroupOverview | None = None


def parse_status(payload: bytes) -> Status | None:
    """Parse a status payload; None when it is not one: anything may be published on these topics."""
    status = _parse(payload)
    return status if status is not None and isinstance(status.get("name"), str) else None


def _parse(payload: bytes) -> dict[str, Any] | None:
    try:
        members = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    return members if isinstance(members, dict) else None


def snapshot(address: Address, seconds: float | None = None, group: str | None = None) -> Overview:
    """Return the status of every route, and the failed reload, that the broker has retained; blocks.

    Args:
        address: The broker.
        seconds: How long to listen; None: until what is retained has come.
        group: That of workers; None: the bridge of the broker itself.

    Raises:
        BrokerUnavailableError: It cannot be reached, refuses us, or closes the connection.
    """

    async def ask() -> Overview:
        async with connected(address, _filters(group)) as subscriber:
            feed = _Feed(subscriber, group)
            if seconds is None:
                await feed.receive_retained()
            else:
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    await feed.receive(end - time.monotonic())
            return feed.overview

    return asyncio.run(ask())


def follow(
    address: Address,
    seconds: float | None,
    show: Callable[[Overview], None],
    group: str | None = None,
) -> None:
    """Call `show` with the status of all routes at each change and every second; blocks.

    Args:
        address: The broker.
        seconds: When to end; None: when interrupted.
        show: Called on the event loop's thread.
        group: As in `snapshot`.

    Raises:
        BrokerUnavailableError: As `snapshot`.
        KeyboardInterrupt: Ctrl-C, or SIGTERM.
    """
    end = None if seconds is None else time.monotonic() + seconds

    async def ask() -> None:
        # SIGTERM is as Ctrl-C, also where a script's background job ignores that; an exception that a signal's handler
        # raises could come where Python drops it.
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        with contextlib.suppress(NotImplementedError):  # Windows
            loop.add_signal_handler(signal.SIGTERM, task.cancel)  # type: ignore[union-attr]
        async with connected(address, _filters(group)) as subscriber:
            feed = _Feed(subscriber, group)
            await feed.receive_retained()
            while True:
                show(feed.overview)
                left = _REFRESH_SECONDS if end is None else min(_REFRESH_SECONDS, end - time.monotonic())
                if left <= 0:
                    return
                if await feed.receive(left):
                    settled = time.monotonic() + _PAUSE_SECONDS
                    while await feed.receive(settled - time.monotonic()):
                        pass

    try:
        asyncio.run(ask())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


class _Feed:
    """A connected client and the statuses it has received."""

    def __init__(self, subscriber: Subscriber, group: str | None) -> None:
        self._subscriber = subscriber
        self._statuses: dict[str, Status] = {}
        self._group = None if group is None else GroupRecords(group)
        self._reload_failure: dict[str, Any] | None = None

    @property
    def overview(self) -> Overview:
        if self._group is None:
            return Overview(list(self._statuses.values()), self._reload_failure)
        group = self._group.overview(time.time())
        return Overview(group.routes, None, group)

    async def receive_retained(self) -> None:
        """Receive until nothing retained has come for a while, however many messages are published meanwhile."""
        quiet = time.monotonic() + _QUIET_SECONDS
        while (left := quiet - time.monotonic()) > 0 and (message := await self._next(left)):
            if message.retain:
                quiet = time.monotonic() + _QUIET_SECONDS

    async def receive(self, seconds: float) -> bool:
        """Wait for one message; False when none came in time."""
        return await self._next(seconds) is not None

    async def _next(self, seconds: float) -> Publish | None:
        message = await self._subscriber.receive(seconds)
        if message is not None:
            self._update(message.topic, message.payload)
        return message

    def _update(self, topic: str, payload: bytes) -> None:
        if topic == RELOAD_TOPIC:
            self._reload_failure = _parse(payload)
            return
        status = parse_status(payload)
        if self._group is not None:
            self._group.take(topic, payload, status, time.time())
        elif status is not None:
            self._statuses[topic] = status
        elif not payload:  # the route is gone
            self._statuses.pop(topic, None)


def _filters(group: str | None) -> list[str]:
    """Return what is subscribed: workers do not retain a reload that failed, but records of who is there."""
    return [TOPIC_FILTER, RELOAD_TOPIC] if group is None else filters(group)


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


def _not_of_admin(_url: str) -> str:
    """Refuse the option that `failures`, `retry` and `trace` have, and say what this command has instead."""
    raise typer.BadParameter(
        "the status is read from the broker, not from the admin port; write --broker mqtt://HOST:PORT"
    )


def run(
    broker: Broker = DEFAULT_BROKER,
    ca_file: CaFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
    group: Annotated[
        str | None, typer.Option(metavar="NAME", parser=_group, help="show the workers of this group")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the status payloads as JSON, once")] = False,
    _admin: Annotated[str | None, typer.Option("--admin", hidden=True, parser=_not_of_admin)] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            metavar="N", parser=_seconds,
            help="end after N seconds (default: on a terminal never, otherwise when all that is retained has come)",
        ),
    ] = None,
) -> int:  # fmt: skip
    """Show the table, or print once."""
    address = broker_address(broker, ca_file, cert_file, key_file)
    if sys.stdout.isatty() and not as_json:
        with _Screen(address.shown) as screen:
            follow(address, seconds, screen.show, group)
    else:
        _print_once(snapshot(address, seconds, group), as_json=as_json)
    return 0


def _print_once(overview: Overview, *, as_json: bool) -> None:
    statuses, failure = overview.statuses, status_table.reload_failure(overview.reload_failure, time.time())
    if failure is not None:
        print(failure.plain, file=sys.stderr)
    group = overview.group
    if as_json:
        print(json.dumps(status_table.in_order(statuses) if group is None else group.members(), indent=2))
        return
    console = Console(highlight=False, soft_wrap=True)
    if group is not None and group.workers:
        console.print(status_table.group_tables(group), crop=False)
    if statuses:
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
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # until `follow` has a loop
        self._live.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._live.stop()
        if self._shown is not None:
            self._console.print(self._screen(self._shown, rows=None))

    def show(self, overview: Overview) -> None:
        self._shown = overview
        self._live.update(self._screen(overview, rows=self._console.height - _LINES_OF_ITS_OWN), refresh=True)

    def _screen(self, overview: Overview, rows: int | None) -> Group:
        statuses, now = overview.statuses, time.time()
        failure = status_table.reload_failure(overview.reload_failure, now)
        clock = time.strftime("%H:%M:%S", time.localtime(now))
        title = Text(f"{self._broker}  {clock}  {status_table.summary(statuses)}  (Ctrl-C ends)", overflow="fold")
        head = [line for line in (title, status_table.counters_age(statuses, now), failure) if line is not None]
        group = [] if overview.group is None else [status_table.group_tables(overview.group)]
        if rows is not None:
            rows -= sum(len(line.wrap(self._console, self._console.width)) for line in head) - 1
            rows -= sum(len(self._console.render_lines(one)) for one in group)
        return Group(
            *head,
            *group,
            status_table.table(statuses, self._console, now=now, rows=rows),
        )

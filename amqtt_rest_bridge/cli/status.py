"""`rest-bridge status`: how the routes of a bridge are doing, as a table or JSON. Main thread, own loop for a broker.

The figures are those of now, from the admin port, or those that were published last, from a broker.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Final

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.segment import SegmentLines
from rich.text import Text

from amqtt_rest_bridge.cli import CaFile, CertFile, KeyFile, count, own_name, status_table
from amqtt_rest_bridge.cli.admin_client import ADMIN_HELP, Admin, AdminClient, AdminError, admin_option
from amqtt_rest_bridge.cli.broker_client import BROKER_HELP, Broker, Subscriber, broker_address, connected
from amqtt_rest_bridge.engine.status_reporter import reload_topic, status_topic
from amqtt_rest_bridge.errors import ConfigurationError, visible
from amqtt_rest_bridge.group.overview import GroupNotices, GroupOverview, notice_filters
from amqtt_rest_bridge.mqtt.values import Address
from amqtt_rest_bridge.settings import ADMIN_VARIABLE

DESCRIPTION = f"""\
Show how the routes of a running bridge are doing: health, connection, counters since its start, latencies, last
error.

On a terminal the table is drawn again every second until Ctrl-C. Otherwise, and with --json, it is printed once.

With --admin the bridge is asked for its present figures. With --broker the figures are those that the bridge last
published, on $SYS/broker/routes/<route>/status: every `status_seconds` (30 by default, 0: never), and when the
health of a route changes.

With --group the broker is asked for the workers of a group: which worker holds each slot and since when, which
workers live, which are away and when they were last seen, and whether their routes differ. Below them, each route has
one line for all its living workers (WORKERS says how many): their worst health and connection, the sums of their
counts, the latencies of the slowest. If no worker of a route lives, HEALTH says when one was last seen. How many
messages wait in the broker for a slot cannot be shown: no broker says so over MQTT.

Health is Green, Yellow (errors among the last 20 calls) or Red (3 in a row failed since the start). OK and FAILED
count messages that ended, RETRYING messages that have another try to come, REFUSED messages that were not taken for
lack of room. RETRIED counts further tries, not messages.
P50 MS and P99 MS are what the server took, WAIT P99 is what messages waited: for a worker, a turn, the next try.
Columns that are zero for every route are left out. Below the table are the columns that it has no room for, the
last error of each route, and the age of the counters. A failed reload, and anything else that keeps the bridge from
being ready, has a line of its own (on standard error unless on a terminal). If messages failed, the last line is
the command that lists them.

{ADMIN_HELP}
{BROKER_HELP}"""
EPILOG = """\
exit status:
  0    shown (even if there is no route)
  1    bridge or broker cannot be reached, refuses the question, or closed the connection; no such group
  2    the command is used wrongly
  130  ended by Ctrl-C

examples:
  rest-bridge status --admin http://127.0.0.1:9464
  REST_BRIDGE_BROKER_PASSWORD=secret rest-bridge status --broker mqtts://monitor@broker.example --ca-file ca.pem
  rest-bridge status --group plant --broker mqtt://broker.example
  REST_BRIDGE_ADMIN=http://127.0.0.1:9464 rest-bridge status --json | jq -r '.[] | select(.health == "Red") | .name'
"""
_QUIET_SECONDS: Final = 0.3  # after which no more retained messages are on their way
_REFRESH_SECONDS: Final = 1.0  # the table is drawn this often when nothing changes, for its clock ...
_PAUSE_SECONDS: Final = 0.2  # ... and at most this often when much does
_UNBOUNDED: Final = 10_000  # characters of a line that is not for a terminal

Status = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Overview:
    """The status of each route, and a line for each trouble of the whole bridge.

    `group` is the overview of a group of workers, None for a bridge; its statuses are merged from those of the workers.
    """

    statuses: Sequence[Status]
    troubles: Sequence[str] = ()
    group: GroupOverview | None = None
    is_live: bool = False  # figures that were asked for, not those published last
    hint: str | None = None  # the command to go on with


def watch_bridge(client: AdminClient, option: str = "") -> Iterator[Overview]:
    """Yield the present figures, then new ones every second. Blocks, and closes the client at the end.

    `option` names the bridge in hints. While the bridge cannot be reached, its last figures come with the error among
    the troubles.

    Raises:
        AdminError: The first question cannot be asked, or is refused.
    """
    statuses: list[Status] | None = None
    with contextlib.closing(client):
        while True:
            try:
                routes = client.get("/api/routes", "routes")["routes"]
                reasons = client.get("/readyz", "reasons", expected=(HTTPStatus.SERVICE_UNAVAILABLE,))["reasons"]
                statuses = [one for one in routes if _is_status(one)]
                troubles = [f"not ready: {visible(str(one))}" for one in reasons]
            except AdminError as error:
                if statuses is None:
                    raise
                troubles = [str(error)]
            yield Overview(statuses, troubles, is_live=True, hint=_hint(statuses, option))
            time.sleep(_REFRESH_SECONDS)


def _hint(statuses: Sequence[Status], option: str) -> str | None:
    """Return the command that lists what has failed, None where there is nothing to list."""
    failures, waiting = f"{own_name()} failures", sum(one.get("open_failures", 0) for one in statuses)
    if waiting:
        wait = "waits" if waiting == 1 else "wait"
        return f"{count(waiting, 'kept failure')} {wait} for a retry: {failures} --open{option}"
    messages = [one.get("messages", {}) for one in statuses if one.get("health") != "Green"]
    is_listed = any(one.get("failed") or one.get("retrying") for one in messages)
    return f"what has failed: {failures}{option}" if is_listed else None


async def first_overview(address: Address, group: str | None) -> Overview:
    """Return what a bridge, or the workers of a group, published last; see `watch_broker`."""
    async with contextlib.aclosing(watch_broker(address, group)) as overviews:
        return await anext(overviews)


async def watch_broker(address: Address, group: str | None) -> AsyncGenerator[Overview]:
    """Yield what a bridge, or the workers of a group, published last.

    The first overview has all that is retained; others follow at each change, and every second. SIGTERM cancels the
    present task.

    Raises:
        BrokerUnavailableError: The broker cannot be reached, refuses us, or closes the connection.
    """
    # SIGTERM ends the command as Ctrl-C does, which background jobs of scripts ignore. The handler cancels this task,
    # as Python may drop an exception that a signal handler raises.
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    with contextlib.suppress(NotImplementedError):  # Windows
        loop.add_signal_handler(signal.SIGTERM, task.cancel)  # type: ignore[union-attr]
    topics = [status_topic("+"), reload_topic()] if group is None else notice_filters(group)
    async with connected(address, topics) as subscriber:
        feed = _Feed(subscriber, group)
        quiet = time.monotonic() + _QUIET_SECONDS
        while (left := quiet - time.monotonic()) > 0 and (is_retained := await feed.receive(left)) is not None:
            if is_retained:  # messages that are not retained may never pause
                quiet = time.monotonic() + _QUIET_SECONDS
        while True:
            yield feed.overview()
            if await feed.receive(_REFRESH_SECONDS) is not None:
                settled = time.monotonic() + _PAUSE_SECONDS
                while await feed.receive(settled - time.monotonic()) is not None:
                    pass


class _Feed:
    """What a subscriber has received: statuses of routes, or what the workers of a group say."""

    def __init__(self, subscriber: Subscriber, group: str | None) -> None:
        self._subscriber = subscriber
        self._group = None if group is None else GroupNotices(group)
        self._statuses: dict[str, Status] = {}  # by topic
        self._reload_failure: Status | None = None

    async def receive(self, seconds: float) -> bool | None:
        """Wait for one message; return whether it was retained, None when none came in time."""
        message = await self._subscriber.receive(seconds)
        if message is None:
            return None
        status = parse_status(message.payload)
        if self._group is not None:
            self._group.receive(message.topic, message.payload, status, time.time())
        elif message.topic == reload_topic():
            self._reload_failure = _parse(message.payload)
        elif status is not None:
            self._statuses[message.topic] = status
        elif not message.payload:  # the route is gone
            self._statuses.pop(message.topic, None)
        return message.retain

    def overview(self) -> Overview:
        now, failure = time.time(), self._reload_failure
        if self._group is not None:
            group = self._group.overview(now)
            return Overview(group.routes, group=group)
        troubles = [] if failure is None else [status_table.reload_failure(failure, now)]
        return Overview(list(self._statuses.values()), troubles)


def parse_status(payload: bytes) -> Status | None:
    """Return the status in a payload, None for any other payload: all clients may publish on these topics."""
    status = _parse(payload)
    return status if _is_status(status) else None


def _is_status(members: Any) -> bool:
    return isinstance(members, dict) and isinstance(members.get("name"), str)


def _parse(payload: bytes) -> Status | None:
    try:
        members = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    return members if isinstance(members, dict) else None


def _group(text: str) -> str:
    """Return the name of a group; raises `BadParameter` for any other text."""
    if not text or set(text) & set("/+#"):
        raise typer.BadParameter(f"{text!r} is not the name of a group of workers")
    return text


def run(
    admin: Admin = None,
    broker: Broker = None,
    ca_file: CaFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
    group: Annotated[
        str | None, typer.Option(metavar="NAME", parser=_group, help="show the workers of this group, with --broker")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the status payloads as JSON, once")] = False,
) -> int:
    """Show the table, or print once."""
    if admin is not None and (broker is not None or group is not None):
        raise typer.BadParameter("--broker and --group read from a broker, --admin from a bridge: give one of them")
    if group is not None and broker is None:
        raise ConfigurationError("the workers of a group are read from their broker: add --broker mqtt://HOST:PORT")
    if broker is None and not (admin or os.environ.get(ADMIN_VARIABLE)):
        named = f"name a bridge with --admin http://HOST:PORT or {ADMIN_VARIABLE}"
        raise ConfigurationError(f"{named}, or its broker with --broker mqtt://HOST:PORT")
    is_screen = sys.stdout.isatty() and not as_json
    files = ca_file, cert_file, key_file
    source = AdminClient(admin, *files) if broker is None else broker_address(broker, *files)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if is_screen:
            with _Screen(source.shown) as screen:
                if isinstance(source, AdminClient):
                    for one in watch_bridge(source, admin_option(admin)):
                        screen.show(one)
                else:
                    asyncio.run(screen.follow(source, group))
            return 0
        if isinstance(source, AdminClient):
            overview = next(watch_bridge(source, admin_option(admin)))
        else:
            overview = asyncio.run(first_overview(source, group))
    except asyncio.CancelledError:  # by SIGTERM
        raise KeyboardInterrupt from None
    of_group = overview.group
    if of_group is not None and not (of_group.slots or of_group.workers or of_group.routes):
        print(
            f"no group {visible(of_group.group)} at {source.shown}\n"
            "hint: is this the `group` of the workers' file, is this their broker, and has one run?",
            file=sys.stderr,
        )
        return 1
    nothing = "the bridge has no route"
    if broker is not None:
        of = "route" if group is None else "worker of this group"
        asked = "is the bridge loaded" if group is None else "is its name right, has one run"
        nothing = f"no {of} has a status yet: {asked}, and is status_seconds above 0?"
        if group is None:
            nothing += "\nhint: routes that workers run are shown with --group NAME"
    _print_overview(overview, nothing, as_json=as_json)
    return 0


def _print_overview(overview: Overview, nothing: str, *, as_json: bool) -> None:
    """Print an overview; `nothing` is the sentence for one without routes."""
    statuses, group, now = overview.statuses, overview.group, time.time()
    for trouble in overview.troubles:
        print(trouble, file=sys.stderr)
    if as_json:
        print(json.dumps(status_table.in_order(statuses) if group is None else group.to_json(), indent=2))
        return
    console = Console(highlight=False, width=_UNBOUNDED)
    with console.capture() as printed:
        if group is not None and group.workers:
            console.print(status_table.group_tables(group))
        if statuses:
            console.print(status_table.route_table(statuses, console, now))
            if (age := status_table.counters_age(statuses, now, is_live=overview.is_live)) is not None:
                console.print(age)
            if overview.hint is not None:
                console.print(Text(overview.hint))
    for line in printed.get().splitlines():
        print(line.rstrip())  # the last column of a table is as wide as its widest text
    if not statuses:
        print(nothing, file=sys.stderr)


class _Screen:
    """The alternate screen of the terminal. It shows the newest table, which is left behind at the end."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, screen=True, auto_refresh=False)
        self._newest: Group | None = None

    def __enter__(self) -> "_Screen":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        if self._newest is not None:
            self._console.print(self._newest)

    async def follow(self, address: Address, group: str | None) -> None:
        """Show what is published until the connection ends."""
        async for overview in watch_broker(address, group):
            self.show(overview)

    def show(self, overview: Overview) -> None:
        """Show an overview in place of the one before."""
        now, statuses, console = time.time(), overview.statuses, self._console
        clock = time.strftime("%H:%M:%S", time.localtime(now))
        age = status_table.counters_age(statuses, now, is_live=overview.is_live)
        self._newest = Group(
            Text(f"{self._source}  {clock}  {status_table.summary(statuses)}  (Ctrl-C ends)", overflow="fold"),
            *([] if age is None else [Text(age)]),
            *(Text(one, "red") for one in overview.troubles),
            *([] if overview.group is None else [status_table.group_tables(overview.group)]),
            status_table.route_table(statuses, console, now),
            *([] if overview.hint is None else [Text(overview.hint)]),
        )
        lines = console.render_lines(self._newest)
        most = console.height - 1  # a text on the last line would make the terminal scroll
        if len(lines) > most:
            beyond = Text(f"... and {len(lines) - most + 1} more lines")
            self._live.update(Group(SegmentLines(lines[: most - 1], new_lines=True), beyond), refresh=True)
        else:
            self._live.update(self._newest, refresh=True)

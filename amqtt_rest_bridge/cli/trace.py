"""`rest-bridge trace`: print every message and request of a running bridge as it happens. Main thread.

What comes from the admin port may hold anything that a publisher wrote, so control characters are written out.
"""

import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from typing import Annotated, Any

import typer

from amqtt_rest_bridge.cli import CaFile, CertFile, KeyFile
from amqtt_rest_bridge.cli.admin_client import ADMIN_HELP, Admin, AdminClient, AdminError
from amqtt_rest_bridge.errors import visible

DESCRIPTION = f"""\
Print every message and request of a running bridge as it happens, one a line, until Ctrl-C: time, route and event,
topic, request, result, tries, the milliseconds that the server took and those that the message waited, run id. Messages
that match no route, and requests that match no endpoint, are there too. Secrets are masked; payloads are not shown.

{ADMIN_HELP}"""
EPILOG = """\
exit status:
  1    the bridge cannot be reached, refuses the request, has no such route, or closed the connection
  2    the command is used wrongly
  130  ended by Ctrl-C

examples:
  rest-bridge trace
  rest-bridge trace --route Orders
  rest-bridge trace --topic 'plant/+/alarm' --json | jq 'select(.code != null)'
"""


def run(
    route: Annotated[str | None, typer.Option(metavar="R", help="only messages and requests of this route")] = None,
    topic: Annotated[str | None, typer.Option(metavar="FILTER", help="only those with a topic that matches")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON objects, one a line")] = False,
    admin: Admin = None,
    ca_file: CaFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
) -> int:
    """Print each message and request until the stream ends."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    query = {name: value for name, value in (("route", route), ("topic", topic)) if value is not None}
    try:
        with closing(AdminClient(admin, ca_file, cert_file, key_file)) as client:
            if route is not None:
                client.check_route(route)
            for name, value in _events(client.follow("/api/live", query)):
                if name == "message":
                    print(json.dumps(value) if as_json else line(value), flush=True)
                else:
                    print(f"{value.get('count')} more were left out: they came too fast", file=sys.stderr)
            raise AdminError(f"{client.shown} closed the connection")
    except BrokenPipeError:  # what reads our output has seen enough, which is the usual end of `trace | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def line(run: Mapping[str, Any]) -> str:
    """Return a run of the live stream on one line."""
    names = "/".join(str(run[key]) for key in ("route", "event") if run.get(key) is not None)
    request = " ".join(str(run[key]) for key in ("method", "url") if run.get(key) is not None)
    tries, ms, waited = run.get("tries"), run.get("ms"), run.get("waited_ms")
    parts = [
        str(run.get("time"))[11:23],
        f"{run.get('kind'):<8}",
        names or "(no route)",
        str(run.get("topic") or "-"),
        request,
        " ".join(str(run[key]) for key in ("status", "code") if run.get(key) is not None),
        "" if tries in (None, 1) else f"{tries} tries",
        "" if ms is None else f"{ms} ms",
        "" if waited is None else f"waited {waited} ms",
        "" if run.get("message") is None else f"({run['message']})",
        "{code} ({message})".format_map(run["reason"]) if run.get("reason") else "",
        "" if run.get("id") is None else f"run {run['id']}",
    ]
    return visible("  ".join(part for part in parts if part))


def _events(lines: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names and values of server-sent events."""
    name = "message"
    for text in lines:
        key, _, value = text.partition(": ")
        if key == "event":
            name = value
        elif key == "data":
            members = None
            with suppress(ValueError):  # of another server
                members = json.loads(value)
            if isinstance(members, dict):
                yield name, members
            name = "message"

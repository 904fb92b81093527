"""`rest-bridge retry`: have a running bridge send the messages of kept failures again. Main thread."""

import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from typing import Annotated, Final

import typer

from amqtt_rest_bridge.cli import CaFile, CertFile, KeyFile, agrees, count, own_name
from amqtt_rest_bridge.cli.admin_client import ADMIN_HELP, Admin, AdminClient, admin_option
from amqtt_rest_bridge.cli.failures import check_code, failure_line, kept_failures
from amqtt_rest_bridge.engine.needs import Outcome
from amqtt_rest_bridge.errors import visible

_MOST_SHOWN: Final = 20
_WAIT_SECONDS: Final = 3.0  # for the end of the retries
_PAUSE_SECONDS: Final = 0.2  # between two looks
_FAILED: Final = "failed again"
_UNDER_WAY: Final = "under way"

DESCRIPTION = f"""\
Send the messages of failures again, each through its own event only, by the definition that is in use now: those of
the given runs, of a route, or of all routes, without those that were sent again before. With --route and --all it
shows them, and asks before it does; of given runs it does so with those that were sent again before and succeeded.
At most 1,000 at once, the oldest first. The last line says how they ended within three seconds.

{ADMIN_HELP}A retry needs the setting admin_token or admin_token_secret.
"""
EPILOG = """\
exit status:
  0  all were sent again, or there was none
  1  the bridge cannot be reached, refuses, or has no such route; the answer was no; or some could not be sent again,
     or failed again
  2  the command is used wrongly

examples:
  rest-bridge retry 7e1afce0-64fb-4a1b-aa3a-000000000008
  rest-bridge retry --route Orders --code http_status --yes
  rest-bridge retry --all
"""


def run(
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="runs, as `rest-bridge failures` lists")] = None,
    route: Annotated[str | None, typer.Option(metavar="R", help="instead: all failures of this route")] = None,
    every: Annotated[bool, typer.Option("--all", help="instead: all failures of all routes")] = False,
    code: Annotated[str | None, typer.Option(metavar="C", help="only those with this code")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
    admin: Admin = None,
    ca_file: CaFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
) -> int:
    """Retry, and print what has begun and how it ended."""
    if bool(ids) + (route is not None) + every != 1 or (ids and code is not None):
        raise typer.BadParameter("name either the ids of runs, or --route or --all and perhaps --code")
    check_code(code)
    wanted = {"ids": ids} if ids else {"route": route, "code": code, "all": every}
    with closing(AdminClient(admin, ca_file, cert_file, key_file)) as client:
        if not yes:
            kept = kept_failures(client, {"route": route, "code": code})
            if ids:
                failures = [one for one in kept if one["id"] in ids and one["retry_outcome"] == Outcome.SUCCEEDED]
                question = f"Sent again before, and succeeded. Send {count(len(failures), 'message')} once more?"
            else:
                failures = [one for one in kept if one["retried_as"] is None]
                routes = {one["route"] for one in failures}
                of = f" of {count(len(routes), 'route')}" if every else ""
                question = f"Send {count(len(failures), 'message')}{of} again?"
            for failure in failures[-_MOST_SHOWN:]:
                print(failure_line(failure))
            if len(failures) > _MOST_SHOWN:
                print(f"... and {len(failures) - _MOST_SHOWN} older ones")
            if failures and not agrees(question):
                return 1
        answer = client.post("/api/failures/retry", "started", wanted)
        if route is not None and not answer["started"] and not answer["refused"]:
            client.check_route(route)
        # Before the wait, which fails if the bridge goes away: what was sent has to be known then, too.
        for one in answer["started"]:
            print(visible(f"{one['retry_of']} sent again as {one['id']}"))
        for one in answer["refused"]:
            print(visible(f"{one['id']} not sent again: {one['message']}"), file=sys.stderr)
        ends = _await_ends(client, {one["id"]: one["retry_of"] for one in answer["started"]})
    if not ids and not answer["started"] and not answer["refused"]:
        which = "all routes" if every else f"route {route}"
        which += "" if code is None else f" with code {code}"
        print(visible(f"nothing is sent again: each kept failure of {which} was sent again before, or there is none"))
        return 0
    ended = ", ".join([f"{number} {end}" for end, number in sorted(ends.items(), reverse=True)])
    print(f"{count(len(answer['started']), 'message')} sent again{ended and ': '}{ended}")
    if ends[_FAILED]:
        print(f"hint: {own_name()} failures --open{admin_option(admin)} lists what failed again", file=sys.stderr)
    return 1 if answer["refused"] or ends[_FAILED] else 0


def _await_ends(client: AdminClient, started: Mapping[str, str]) -> Counter[str]:
    """Return how many retries have ended in which way. Blocks for some seconds at most; raises `AdminError`.

    Args:
        client: Asks the bridge.
        started: The ids of the runs that were retried, by the ids of their retries.
    """
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        runs = {str(run["id"]): run for run in kept_failures(client, {})}
        outcomes = {name: runs[name].get("retry_outcome") for name in started.values() if name in runs}
        ends = Counter(
            _FAILED if again in runs else str(outcomes.get(name) or _UNDER_WAY) for again, name in started.items()
        )
        if not ends[_UNDER_WAY] + ends[Outcome.RETRYING] or time.monotonic() > deadline:
            return ends
        time.sleep(_PAUSE_SECONDS)

"""`rest-bridge failures`: the failures that a running bridge has kept, and one of them whole. Main thread.

What comes from the admin port may hold anything that a publisher wrote, so control characters are written out.
"""

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from amqtt_rest_bridge.admin.queries import BadQueryError, since_of
from amqtt_rest_bridge.admin.runs import OPEN
from amqtt_rest_bridge.catalogue import ANSWERS, FAILURES
from amqtt_rest_bridge.cli import CaFile, CertFile, KeyFile, agrees, count, own_name
from amqtt_rest_bridge.cli.admin_client import ADMIN_HELP, Admin, AdminClient, admin_option
from amqtt_rest_bridge.engine.needs import Outcome
from amqtt_rest_bridge.errors import visible
from amqtt_rest_bridge.spelling import did_you_mean

_MOST: Final = 1000
_MOST_TRIES: Final = 20  # that the bridge keeps of a run

DESCRIPTION = f"""\
List the failures that a running bridge has kept, the newest last: time, run id, route and event, topic, status and
code, reason, tries, and what became of it since. Messages with a failed try and another one to come are listed as
retrying. With --open only failures that wait for a retry are listed.

With show and the id of a run: its message, the request as it was sent, the response and the tries, with secrets
masked.

With drop and ids: put failures away whose messages are not to be sent again, so that they no longer count as waiting.
They are shown first, and you are asked. The bridge needs admin_token or admin_token_secret.

{ADMIN_HELP}"""
EPILOG = """\
exit status:
  0  listed, or there was none
  1  the bridge cannot be reached, refuses the question, or has no such run or route
  2  the command is used wrongly

examples:
  rest-bridge failures --route Orders --since 10m
  rest-bridge failures show 7e1afce0-64fb-4a1b-aa3a-000000000008
  rest-bridge failures drop 7e1afce0-64fb-4a1b-aa3a-000000000008
  rest-bridge failures --code http_status --json | jq -r '.[].id'
"""


def run(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[show ID | drop ID ...]", help="one whole, or not needed")
    ] = None,
    route: Annotated[str | None, typer.Option(metavar="R", help="only those of this route")] = None,
    code: Annotated[str | None, typer.Option(metavar="C", help="only those with this code")] = None,
    is_open: Annotated[bool, typer.Option("--open", help="only those that wait for a retry: never sent again")] = False,
    since: Annotated[str | None, typer.Option(metavar="AGE", help="only younger ones: 10m, 2h, or a time")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="with drop: do not ask")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    admin: Admin = None,
    ca_file: CaFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
) -> int:
    """Print the failures that are kept, or one of them whole; or drop some."""
    is_drop = words is not None and len(words) > 1 and words[0] == "drop"
    if words and ((not is_drop and (len(words) != 2 or words[0] != "show")) or route or code or since or is_open):
        raise typer.BadParameter(
            "write `rest-bridge failures [OPTIONS]`, `show ID` or `drop ID ...`: these take ids only"
        )
    check_code(code)
    try:
        since_of(since or "0s", time.time())
    except BadQueryError as error:
        raise typer.BadParameter(f"--{error}") from None
    with closing(AdminClient(admin, ca_file, cert_file, key_file)) as client:
        if words and is_drop:
            return _drop(client, list(dict.fromkeys(words[1:])), asks=not yes)
        if words:
            found: Any = _whole(client, words[1])
            print(json.dumps(found) if as_json else "\n".join(_run_lines(found)))
            return 0
        query = {"route": route, "code": code, "since": since}
        retrying = [] if is_open else runs_of(client, query, "retrying")
        found = runs_of(client, query, OPEN) if is_open else kept_failures(client, query)
        failures = sorted([*found, *retrying], key=lambda run: str(run["time"]))
        if route is not None and not failures:
            client.check_route(route)
        gone = 0 if as_json or since is not None else _pushed_out(client, route, code)
    if as_json:
        print(json.dumps(failures))
        return 0
    for failure in failures:
        print(failure_line(failure))
    still = f", {count(len(retrying), 'message')} still retrying" if retrying else ""
    kept = len(failures) - len(retrying)
    mended = sum(failure.get("retry_outcome") == Outcome.SUCCEEDED for failure in failures)
    again = f", {'all' if mended == kept else mended} sent again and succeeded" if mended else ""
    lost = (
        f"; {gone} {'is' if gone == 1 else 'are'} not kept any more: a route keeps its last 100 at most" if gone else ""
    )
    print(f"{count(kept, 'open failure' if is_open else 'failure')}{again}{still}{lost}")
    if kept > mended:
        name, of = own_name(), admin_option(admin)
        print(
            f"hint: {name} failures show ID{of} prints one whole, {name} retry ID{of} sends it again", file=sys.stderr
        )
    return 0


def _pushed_out(client: AdminClient, route: str | None, code: str | None) -> int:
    """Return how many failures of the present problems are not kept any more; raises `AdminError`."""
    problems = client.get("/api/problems", "problems")["problems"]
    return sum(
        one.get("pushed_out", 0)
        for one in problems
        if code in (None, one["code"]) and (route is None or one["routes"] == [route])
    )


def _whole(client: AdminClient, name: str) -> Any:
    """Return a run with what is kept of it; raises `AdminError`."""
    return client.get(f"/api/runs/{quote(name, safe='', errors='surrogateescape')}", "id")


def _drop(client: AdminClient, names: Sequence[str], *, asks: bool) -> int:
    """Put failures away that are not to be sent again; return the exit status."""
    if asks:
        for name in names:
            print(failure_line(_whole(client, name)))
        if not agrees(f"Drop {count(len(names), 'failure')}? What is dropped cannot be sent again.", "dropped"):
            return 1
    answer = client.post("/api/failures/drop", "dropped", {"ids": names})
    for one in answer["refused"]:
        print(visible(f"{one['id']} not dropped: {one['message']}"), file=sys.stderr)
    print(f"{count(len(answer['dropped']), 'failure')} dropped")
    return 1 if answer["refused"] else 0


def check_code(code: str | None) -> None:
    """Raise `BadParameter` for a code that no run has."""
    known = [*FAILURES, *ANSWERS]
    if code is not None and code not in known:
        listed = f"the codes are {', '.join(sorted({*known}))}"
        raise typer.BadParameter(f"there is no code {visible(code)}; {did_you_mean(code, known) or listed}")


def kept_failures(client: AdminClient, query: Mapping[str, str | None]) -> list[dict[str, Any]]:
    """Return the runs that failed, and those of messages that were refused, the oldest first; raises `AdminError`."""
    refused = [run for run in runs_of(client, query, "refused") if "path" not in run]  # else it is its caller's fault
    return sorted([*runs_of(client, query, "failed"), *refused], key=lambda run: str(run["time"]))


def runs_of(client: AdminClient, query: Mapping[str, str | None], outcome: str) -> list[dict[str, Any]]:
    """Return the runs with an outcome; raises `AdminError`."""
    given = {name: value for name, value in query.items() if value is not None}
    answer = client.get("/api/runs", "runs", {**given, "outcome": outcome, "limit": str(_MOST)})
    found: list[dict[str, Any]] = answer["runs"]
    return found


def failure_line(run: Mapping[str, Any]) -> str:
    """Return a failure on one line."""
    error, again, tries = run.get("error") or {}, run.get("retried_as"), len(run.get("tries", ()))
    parts = [
        str(run["time"])[:19].replace("T", " "),
        str(run["id"]),
        f"{run['route']}/{run['event']}",
        str(run.get("topic") or "-"),
        " ".join(str(run[key]) for key in ("status", "code") if run.get(key) is not None),
        "" if not error.get("message") else f"({error['message']})",
        "" if tries < 2 else f"after {tries}{' or more' if tries == _MOST_TRIES else ''} tries",
        "retrying" if run.get("outcome") == "retrying" else "",
        "" if again is None else f"sent again as {again}",
        "" if run.get("retry_outcome") is None else f"({run['retry_outcome']})",
    ]
    return visible("  ".join(part for part in parts if part))


def _run_lines(run: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of one run whole."""
    yield failure_line(run) if run.get("route") is not None else visible(str(run["id"]))
    if run.get("error"):
        yield visible(f"hint: {run['error']['hint']}")
    for one in run["tries"]:
        came = " ".join(str(one[key]) for key in ("status", "code") if one[key] is not None)
        yield visible(f"try at {str(one['time'])[11:23]}: {came or 'succeeded'}, {one['ms']} ms")
    for part, title, body in (
        (run["message"], "message on {topic}", "payload"),
        (run["request"], "request: {method} {url}", "body"),
        (run["response"], "response: {status} {reason}", "body"),
    ):
        if part is None:
            continue
        yield ""
        yield visible(f"# {title.format(**part)}")
        yield from (visible(f"{name}: {value}") for name, value in part.get("headers", ()))
        if part.get(body) is None:
            yield "(no body)" if body == "body" else f"({body} not shown)"
            continue
        yield ""
        yield from (visible(text) for text in str(part[body]).split("\n"))
        if part["is_cut"]:
            yield f"(the first 16 KiB of {part['size']} bytes)"
        if part[f"{body}_encoding"] == "base64":
            yield "(Base64)"

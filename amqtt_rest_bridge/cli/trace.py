"""`rest-bridge trace`: print every message and request of a running bridge as it happens. Main thread.

What comes from the admin port may hold anything that a publisher wrote, so control characters are written out.
"""

import http.client
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Annotated, Any, Final
from urllib.parse import SplitResult, urlencode, urlsplit

import typer

from amqtt_rest_bridge.errors import BridgeError, ConfigurationError, reason, visible
from amqtt_rest_bridge.spelling import did_you_mean

DEFAULT_ADMIN: Final = "http://127.0.0.1:9464"
TOKEN_VARIABLE: Final = "REST_BRIDGE_ADMIN_TOKEN"  # noqa: S105  # the name of a variable
_CONNECT_SECONDS: Final = 10.0
_MOST_NAMES: Final = 10  # that an error lists
_SILENCE_SECONDS: Final = 60.0  # the bridge writes a comment every 15 s

DESCRIPTION = f"""\
Print every message and request of a running bridge as it happens, one a line, until Ctrl-C: time, route and event,
topic, request, result, tries, the milliseconds that the server took and those that the message waited, run id. Messages
that match no route, and requests that match no endpoint, are there too. Secrets are masked; payloads are not shown.

The bridge needs the setting admin_port. Where it asks for a token, set {TOKEN_VARIABLE}.
"""
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


class TraceError(BridgeError):
    """The stream cannot be read; the message says why."""


def run(
    route: Annotated[str | None, typer.Option(metavar="R", help="only messages and requests of this route")] = None,
    topic: Annotated[str | None, typer.Option(metavar="FILTER", help="only those with a topic that matches")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON objects, one a line")] = False,
    admin: Annotated[str, typer.Option(metavar="URL", help="the bridge's admin port")] = DEFAULT_ADMIN,
) -> int:
    """Print until the stream ends."""
    address = _parse(admin)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    query = {name: value for name, value in (("route", route), ("topic", topic)) if value is not None}
    try:
        for name, value in _events(address, query):
            if name == "message":
                print(json.dumps(value) if as_json else line(value), flush=True)
            else:
                print(f"{value.get('count')} more were left out: they came too fast", file=sys.stderr)
    except TraceError as error:
        print(f"rest-bridge trace: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # what reads our output has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def line(record: Mapping[str, Any]) -> str:
    """Return a record on one line."""
    names = "/".join(str(record[key]) for key in ("route", "event") if record.get(key) is not None)
    request = " ".join(str(record[key]) for key in ("method", "url") if record.get(key) is not None)
    tries, ms, waited = record.get("tries"), record.get("ms"), record.get("waited_ms")
    parts = [
        str(record.get("time"))[11:23],
        f"{record.get('kind'):<8}",
        names or "-",
        str(record.get("topic") or "-"),
        request,
        " ".join(str(record[key]) for key in ("status", "code") if record.get(key) is not None),
        "" if tries in (None, 1) else f"{tries} tries",
        "" if ms is None else f"{ms} ms",
        "" if waited is None else f"waited {waited} ms",
        "" if record.get("message") is None else f"({record['message']})",
        "" if record.get("id") is None else f"run {record['id']}",
    ]
    return visible("  ".join(part for part in parts if part))


def _parse(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise ConfigurationError(f"--admin is not an address; write http://HOST:PORT, for example {DEFAULT_ADMIN}")
    return parts


def _events(address: SplitResult, query: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names and values of the server-sent events; raises `TraceError` when they end."""
    kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    connection = kind(address.hostname or "", address.port, timeout=_CONNECT_SECONDS)
    shown = f"{address.scheme}://{address.hostname}:{connection.port}"
    base = address.path.rstrip("/")
    try:
        if "route" in query:
            _ask(connection, f"{base}/api/routes")
            _check_route(query["route"], connection.getresponse())
        _ask(connection, f"{base}/api/live?{urlencode(query)}")
        if connection.sock is not None:
            connection.sock.settimeout(_SILENCE_SECONDS)
        response = connection.getresponse()
        if response.status != 200:
            raise TraceError(f"{shown}: {_refusal(response)}")
        yield from _parsed(response)
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, BrokenPipeError):
            raise
        why = getattr(error, "strerror", None) or reason(error)
        raise TraceError(f"cannot read from {shown}: {why}; is admin_port set, and the bridge up?") from error
    finally:
        connection.close()
    raise TraceError(f"{shown} closed the connection")


def _ask(connection: http.client.HTTPConnection, target: str) -> None:
    token = os.environ.get(TOKEN_VARIABLE)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    connection.request("GET", target, headers=headers)


def _check_route(name: str, response: http.client.HTTPResponse) -> None:
    """Raise `TraceError` for a route that the bridge does not have, of which nothing would ever be printed.

    Where the bridge cannot list its routes, the stream is asked for all the same.
    """
    content = response.read()
    if response.status != 200:
        return
    try:
        names = [str(route["name"]) for route in json.loads(content)["routes"]]
    except (ValueError, TypeError, KeyError):
        return
    if name not in names:
        listed = f"routes: {', '.join(names[:_MOST_NAMES])}{', ...' if len(names) > _MOST_NAMES else ''}"
        hint = did_you_mean(name, names) or (listed if names else "it has no routes")
        raise TraceError(visible(f"there is no route {name}; {hint}"))


def _parsed(response: http.client.HTTPResponse) -> Iterator[tuple[str, dict[str, Any]]]:
    name = "message"
    while text := response.readline():
        key, _, value = text.decode("utf-8", "replace").rstrip("\n").partition(": ")
        if key == "event":
            name = value
        elif key == "data":
            members = json.loads(value)
            if isinstance(members, dict):
                yield name, members
            name = "message"


def _refusal(response: http.client.HTTPResponse) -> str:
    if response.status == HTTPStatus.UNAUTHORIZED:
        return f"the token is missing or wrong; set {TOKEN_VARIABLE} to the bridge's admin_token"
    if response.status == HTTPStatus.NOT_FOUND:  # of a port of server mode, or of any other server
        return "it has no live stream; is it the admin port of a bridge?"
    try:
        error = json.loads(response.read(10_000))["error"]
        return visible(f"{error['message']}. {error['hint']}")
    except (ValueError, TypeError, KeyError):
        return f"it answers {response.status}; is it the admin port of a bridge?"

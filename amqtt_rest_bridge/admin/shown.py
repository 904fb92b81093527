"""What pages, the API and commands show, as texts: routes, problems, runs as JSON, trees, CSV, lines for a shell. Pure.

Most secrets were masked when the run was kept. A payload that was not masked then is masked here by the present
definition of its route; if the route was removed, the payload is not shown.
"""

import csv
import io
import json
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from amqtt_rest_bridge.admin.charts import SAMPLES, History, sparks
from amqtt_rest_bridge.admin.evidence import Evidence, ShownBody, shown_body
from amqtt_rest_bridge.admin.figures import SAMPLE_SECONDS, Numbers, RouteNumbers
from amqtt_rest_bridge.admin.kept_runs import KeptRun
from amqtt_rest_bridge.admin.problems import LISTED_SECONDS
from amqtt_rest_bridge.admin.runs import Problem, Run, run_members
from amqtt_rest_bridge.catalogue import METHOD_NOT_ALLOWED, NOT_FOUND
from amqtt_rest_bridge.engine.requests import body_members
from amqtt_rest_bridge.errors import CONTROL
from amqtt_rest_bridge.lot.masking import masker_of
from amqtt_rest_bridge.lot.model import HEALTHS, Route, severity_of
from amqtt_rest_bridge.settings import Settings
from amqtt_rest_bridge.times import rfc3339
from amqtt_rest_bridge.topics import loggable

Row = Mapping[str, str]
SORTS: Final = ("health", "name", "rate", "succeeded", "failed", "refused", "queued", "p50", "p99", "wait_p99")
_UNFOLDED: Final = 40
"""Most routes that are listed one by one; more are folded into groups by the beginnings of their names."""
_SMALLEST_GROUP: Final = 3  # routes that are folded together
_PREFIX: Final = re.compile(r"[^\W\d_]+?(?=[-_./: \d]|(?<=[a-z])[A-Z])|[^-_./: ]+")


def row(route: RouteNumbers, history: History) -> Row:
    """Return the cells of a route; `ok` and `bad` are lines in a drawing of 14 by 12."""
    status: Mapping[str, Any] = route.status or {}
    latency, wait, error = status.get("latency_ms") or {}, status.get("wait_ms") or {}, status.get("last_error")
    reason, samples, rate = status.get("health_reason") or "", history.of(route.name), history.rate(route.name)
    ok, bad = sparks(samples, SAMPLES)
    peak = max(map(sum, samples), default=0) / SAMPLE_SECONDS
    return {
        "name": route.name,
        "health": str(status.get("health", "-")),
        "connection": str(status.get("connection", "-")),
        "rate": "-" if rate is None else f"{rate:.1f}",
        "succeeded": str(route.succeeded),
        "failed": str(route.failed),
        "refused": str(route.refused),
        "skipped": str((status.get("messages") or {}).get("skipped", "-")),
        "retried": str(route.retried),
        "queued": str(route.queued),
        "in_flight": str(route.in_flight),
        "spooled": "-" if route.spooled is None else str(route.spooled),
        "readers": "-" if route.readers is None else str(route.readers),
        "p50": _milliseconds(latency.get("p50")),
        "p99": _milliseconds(latency.get("p99")),
        "wait_p50": _milliseconds(wait.get("p50")),
        "wait_p99": _milliseconds(wait.get("p99")),
        "reason": reason,
        "error": "" if error is None else _error(error, reason),
        "error_time": "" if error is None else str(error["time"]),
        "ok": ok,
        "bad": bad,
        "label": f"last ten minutes, at most {peak:.1f} a second",
    }


def _error(error: Mapping[str, Any], reason: str) -> str:
    return str(error["code"]) if error["message"] == reason else f"{error['code']}: {error['message']}"


def rows(numbers: Numbers, history: History) -> list[Row]:
    """Return the cells of all routes, by name."""
    return [row(route, history) for route in numbers.routes.values()]


def sort_rows(all_rows: Sequence[Row], by: str) -> list[Row]:
    """Sort by one of `SORTS`: health with the worst first, names from A to Z, numbers with the highest first."""
    if by == "name":
        return sorted(all_rows, key=lambda one: one["name"].lower())
    if by == "health":
        return sorted(all_rows, key=lambda one: severity_of(one["health"]))
    return sorted(all_rows, key=lambda one: float("-inf") if one[by] == "-" else float(one[by]), reverse=True)


@dataclass(frozen=True, slots=True)
class Group:
    """Routes whose names begin with `name`; it is "" for routes that are not folded."""

    name: str
    rows: Sequence[Row]
    summary: str


def groups(sorted_rows: Sequence[Row]) -> list[Group]:
    """Fold many routes into groups by the beginnings of their names, in the order of the first route of each group."""
    if len(sorted_rows) <= _UNFOLDED:
        return [Group("", sorted_rows, summary(sorted_rows))]
    found: dict[str, list[Row]] = {}
    for one in sorted_rows:
        match = _PREFIX.match(one["name"])
        found.setdefault(match[0] if match else one["name"], []).append(one)
    rest = [one for own in found.values() if len(own) < _SMALLEST_GROUP for one in own]
    folded = [Group(name, own, summary(own)) for name, own in found.items() if len(own) >= _SMALLEST_GROUP]
    return ([Group("", rest, summary(rest))] if rest else []) + folded


def summary(all_rows: Sequence[Row]) -> str:
    """Count the routes by health: `3 routes: 1 Red, 2 Green`."""
    healths = [one["health"] for one in all_rows]
    counts = [f"{healths.count(health)} {health}" for health in HEALTHS if health in healths]
    return f"{len(healths)} route{'' if len(healths) == 1 else 's'}{': ' if counts else ''}{', '.join(counts)}"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


_CURL_OWN: Final = frozenset({"host", "content-length", "accept-encoding", "user-agent", "connection"})
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_PARTIAL: Final = 3  # bytes of a character that a cut may leave
_DEEPEST: Final = 32
_MOST_LINES: Final = 1000
"""Of JSON; a text that needs more, or is nested more deeply, is shown as it is."""
_UNFOLDED_LINES: Final = 24  # lines of an object or array


def problem_members(numbers: Numbers) -> list[dict[str, Any]]:
    """Return the present problems as the members of JSON objects, those with most messages first.

    Requests that matched no endpoint are included if one is near enough to have been meant.
    """
    bridge = numbers.bridge
    unmatched = [
        Problem(
            (NOT_FOUND if one.status == 404 else METHOD_NOT_ALLOWED).code, f"{one.method} :{one.port}{one.path}",
            one.status, [one.nearest.route], one.count, one.first, one.last, "No endpoint has this method and path",
            f"The nearest endpoint is {one.nearest.method} {one.nearest.path} of route {one.nearest.route}", None,
        )
        for one in bridge.unmatched_paths
        if one.nearest is not None and one.status in (404, 405) and time.time() - one.last < LISTED_SECONDS
    ]  # fmt: skip
    return [
        msgspec.structs.asdict(one) | {"first": rfc3339(one.first), "last": rfc3339(one.last)}
        for one in sorted([*bridge.problems, *unmatched], key=lambda one: one.count, reverse=True)
    ]


def unmatched_members(numbers: Numbers) -> dict[str, Any]:
    """Return the requests that matched no endpoint as the members of a JSON object, by port and by path."""
    bridge = numbers.bridge
    paths = [
        msgspec.structs.asdict(one) | {"first": rfc3339(one.first), "last": rfc3339(one.last)}
        for one in bridge.unmatched_paths
    ]
    ports = [{"port": port, "count": count} for port, count in sorted(bridge.unmatched.items())]
    return {"ports": ports, "unmatched": paths}


def whole_run(run: Run, kept: KeptRun | None, routes: Mapping[str, Route]) -> dict[str, Any]:
    """Return a run, and what is kept of it, as the members of its JSON object."""
    shown: dict[str, Any] = {"message": None, "request": None, "response": None}
    if kept is not None:
        shown["message"] = _message(kept, routes.get(run.route or "")) if kept.topic else None
        if kept.evidence is not None:
            shown |= _exchange(run, kept.evidence)
    return run_members(run) | shown


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return JSON objects as CSV (RFC 4180) with a column for each member; `a.b` is member b of an inner object a.

    A list of texts is one text, any other list its length. A text that a spreadsheet would take for a formula begins
    with an apostrophe.
    """
    flat = [dict(_cells("", one)) for one in rows]
    names = list(dict.fromkeys(name for one in flat for name in one))
    inner = {name.rpartition(".")[0] for name in names}  # an object that some rows have
    written = io.StringIO()
    table = csv.DictWriter(written, [name for name in names if name not in inner], extrasaction="ignore")
    table.writeheader()
    table.writerows(flat)
    return written.getvalue()


def _cells(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from _cells(f"{path}.{name}" if path else name, one)
        return
    if isinstance(value, list):
        value = " ".join(value) if all(isinstance(one, str) for one in value) else len(value)
    yield path, f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _message(kept: KeptRun, route: Route | None) -> dict[str, Any]:
    body = None if kept.evidence is None else kept.evidence.payload
    if kept.shown_payload is not None and route is not None:
        body = shown_body(masker_of(route), kept.shown_payload, len(kept.payload or b""))
    members: dict[str, Any] = {"topic": loggable(kept.topic), "time": rfc3339(kept.timestamp), "payload": None}
    if body is not None:
        shown = _body(body)
        members |= {"payload": shown.pop("body"), "payload_encoding": shown.pop("body_encoding"), **shown}
    return members | {"is_kept": kept.payload is not None}


def _exchange(run: Run, evidence: Evidence) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    if evidence.url is not None:
        body = {} if evidence.body is None else _body(evidence.body)
        shown["request"] = {"method": run.method, "url": evidence.url, "headers": evidence.headers, **body}
        if evidence.together:
            shown["request"]["messages"] = evidence.together
    response = evidence.response
    if response is not None:
        shown["response"] = {
            "status": response.status, "reason": response.reason, "headers": response.headers, **_body(response.body),
        }  # fmt: skip
    return shown


def _body(body: ShownBody) -> dict[str, Any]:
    """Return a body with its size, and whether it was cut. A UTF-8 character that the cut has split is left out."""
    data, is_cut = body.data, body.size > len(body.data)
    if is_cut:
        for left_out in range(_PARTIAL + 1):
            try:
                data = body.data[: len(body.data) - left_out]
                data.decode()
                break
            except UnicodeDecodeError:
                data = body.data
    return {**body_members(data), "size": body.size, "is_cut": is_cut}


# JSON as lines, of which a template makes folding elements. Names (also those that occur twice), order and numbers stay
# as they were written.


class Line(NamedTuple):
    """A member or an item of JSON.

    `kind` is `string`, `number` or `word`, or for an object or array `open` and `close`. `text` is the value, or the
    number of members or items. `is_open` says whether an object or array is unfolded at first.
    """

    kind: str
    name: str = ""
    text: str = ""
    is_open: bool = False


class _Members(list[tuple[str, Any]]):
    """An object: its members in order."""


class _Number(str):
    """A number as it was written."""

    __slots__ = ()


def json_lines(text: str) -> list[Line]:
    """Return the lines of an object or array that is not empty; no lines for any other text."""
    try:
        value = json.loads(
            text, object_pairs_hook=_Members, parse_float=_Number, parse_int=_Number, parse_constant=_Number
        )
        lines = list(_lines("", value, 0))
    except (ValueError, RecursionError):
        return []
    return lines if 1 < len(lines) <= _MOST_LINES else []


def _lines(name: str, value: Any, depth: int) -> Iterator[Line]:
    if not isinstance(value, list) or not value:
        yield _value_line(name, value)
        return
    if depth == _DEEPEST:
        raise RecursionError
    if isinstance(value, _Members):
        count = f"{{ {len(value)} member{'' if len(value) == 1 else 's'} }}"
        parts = [(json.dumps(key, ensure_ascii=False), one) for key, one in value]
    else:
        count = f"[ {len(value)} item{'' if len(value) == 1 else 's'} ]"
        parts = [(str(number), one) for number, one in enumerate(value)]
    inner = [line for part in parts for line in _lines(*part, depth + 1)]
    yield Line("open", name, count, is_open=depth == 0 or len(inner) <= _UNFOLDED_LINES)
    yield from inner
    yield Line("close")


def _value_line(name: str, value: Any) -> Line:
    if isinstance(value, _Number):
        return Line("number", name, value)
    if isinstance(value, str):
        return Line("string", name, json.dumps(value, ensure_ascii=False))
    if isinstance(value, list):
        return Line("word", name, "{}" if isinstance(value, _Members) else "[]")
    return Line("word", name, {None: "null", True: "true", False: "false"}[value])


# A run as lines for a shell.


def curl_line(run: Mapping[str, Any], route: Route | None) -> str | None:
    """Return a curl command for the request of a run, None if it sent none or the body is not shown whole.

    A request of server mode has no host, so the command sends it to the port of the route on this machine.
    """
    request = run["request"]
    if not request or request.get("is_cut") or request.get("body_encoding") == "base64":
        return None
    url = request["url"]
    if url.startswith("/"):
        if route is None:
            return None
        url = f"http://127.0.0.1:{route.config.server_port}{url}"
    words = ["curl", "-i", "-g", "-X", request["method"], url]
    for name, value in request["headers"]:
        if name.lower() not in _CURL_OWN:
            words += ["-H", f"{name}: {value}" if value else f"{name};"]  # `NAME:` would leave the header out
    if request.get("body"):
        words += ["--data-raw", request["body"]]
    return _shell_line(words)


def try_line(run: Mapping[str, Any], route: Route | None, secrets_dir: str = Settings.secrets_dir) -> str | None:
    """Return a `rest-bridge try` command for the message of a call, None for a request or a message not shown whole."""
    message = run["message"]
    if route is None or not message or "path" in run or message["payload"] is None or message["is_cut"]:
        return None
    if message["payload_encoding"] == "base64":
        return None
    options = {"--topic": message["topic"], "--payload": message["payload"]}
    if secrets_dir != Settings.secrets_dir:
        options["--secrets-dir"] = secrets_dir
    return _shell_line(["rest-bridge", "try", route.path, *(word for pair in options.items() for word in pair)])


def _shell_line(words: Sequence[str]) -> str | None:
    """Return a line for a shell with each word quoted, so that no text of a message is read as a command.

    Returns None if a word holds NUL, which no shell accepts. Control characters could end a paste, so they are escaped
    as bash and zsh read them. Secrets are masked: a reader fills them in before sending the line.
    """
    return None if any("\0" in word for word in words) else " ".join(_quoted_word(word) for word in words)


def _quoted_word(word: str) -> str:
    if CONTROL.search(word) is None:
        return shlex.quote(word)
    text = word.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + CONTROL.sub(lambda found: "".join(f"\\x{byte:02x}" for byte in found[0].encode()), text) + "'"

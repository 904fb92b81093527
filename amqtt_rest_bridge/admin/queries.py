"""What a caller of the admin port asks for, read from a query string or a body. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import parse_qs

import msgspec
from msgspec.structs import replace

from amqtt_rest_bridge.admin.flow import Node
from amqtt_rest_bridge.admin.history import RANGES
from amqtt_rest_bridge.admin.route_rows import SORTS
from amqtt_rest_bridge.admin.runs import MOST_RUNS, OPEN, SHOWN_RUNS, RunQuery
from amqtt_rest_bridge.engine.needs import Outcome
from amqtt_rest_bridge.errors import BridgeError
from amqtt_rest_bridge.times import SECONDS
from amqtt_rest_bridge.topics import check_topic_filter

_AGE: Final = re.compile(r"([0-9]{1,6})([smhd])")
_MOST_DIGITS: Final = 6  # of a number; Python refuses to read one of thousands
MOST_PAGE_RUNS: Final = 500
OUTCOMES: Final = (OPEN, *Outcome)
"""The outcomes that runs are asked for by."""
_NAMES: Final = ("route", "outcome", "code", "topic", "since", "limit")


class RetryQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Failures whose messages are to be sent again: those of these ids, of a route, a code or both, or `all`.

    Forms of pages also name `status` and `target` of a problem. At most `MOST_RUNS`, the oldest first.
    """

    ids: list[str] | None = None
    route: str | None = None
    code: str | None = None
    all: bool = False
    status: int | None = None
    target: str | None = None


class BadQueryError(BridgeError):
    """A query cannot be understood; the message says why."""


def query_of(query: Mapping[str, Sequence[str]], now: float) -> RunQuery:
    """Read the parameters of `/api/runs`; raises `BadQueryError`."""
    given = {name: values[-1] for name, values in query.items()}
    unknown = sorted(given.keys() - set(_NAMES))
    if unknown:
        raise BadQueryError(f"There is no parameter {unknown[0][:40]}; there are {', '.join(_NAMES)}")
    outcome, topic, limit = given.get("outcome"), given.get("topic"), given.get("limit", str(SHOWN_RUNS))
    if outcome is not None and outcome not in OUTCOMES:
        raise BadQueryError(f"outcome is one of {', '.join(OUTCOMES)}")
    if topic is not None and (fault := check_topic_filter(topic)) is not None:
        raise BadQueryError(f"topic {fault}")
    if not (limit.isascii() and limit.isdigit() and len(limit) <= _MOST_DIGITS and 1 <= int(limit) <= MOST_RUNS):
        raise BadQueryError(f"limit is 1 to {MOST_RUNS}")
    since = 0.0 if "since" not in given else since_of(given["since"], now)
    return RunQuery(None, given.get("route"), outcome, given.get("code"), topic, since, int(limit))


def since_of(text: str, now: float) -> float:
    """Return the Unix time of `10m`, `2h`, or a time in RFC 3339; raises `BadQueryError`."""
    age = _AGE.fullmatch(text)
    if age is not None:
        return now - int(age[1]) * SECONDS[age[2]]
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise BadQueryError("since is an age such as 10m or 2h, or a time such as 2026-01-31T12:00:00Z") from None


@dataclass(frozen=True, slots=True)
class PageQuery:
    """What a page is asked for.

    The page of all routes has `text` and `sort`, that of a route a `range`. Both the page of a route and that of runs
    have filters of runs, a `fault` if one of them was wrong, how many retries were just `started` and `refused`, and
    the `first` new run.
    """

    text: str = ""
    sort: str = "health"
    range: str = "10m"
    route: str = ""
    code: str = ""
    outcome: str = ""
    topic: str = ""
    since: str = ""
    limit: int = SHOWN_RUNS
    fault: str = ""
    started: int | None = None
    refused: int | None = None
    first: str = ""

    @property
    def filters(self) -> dict[str, str]:
        """Return the filters of runs that are set."""
        given = {name: getattr(self, name) for name in ("route", "code", "outcome", "topic", "since")}
        return {name: value for name, value in given.items() if value}


def page_query_of(
    query: Mapping[str, Sequence[str]], now: float, route: str | None = None
) -> tuple[PageQuery, RunQuery]:
    """Read the parameters of a page, and which runs it shows, of one route or all; wrong filters are left out."""
    given = {name: values[-1].strip() for name, values in query.items()}
    names = ("outcome", "topic", "since") if route is not None else ("route", "code", "outcome", "topic", "since")
    filters = {name: given[name] for name in names if given.get(name)}
    limit, fault = str(MOST_PAGE_RUNS) if "all" in given else str(SHOWN_RUNS), ""
    try:
        runs = query_of({name: [value] for name, value in (filters | {"limit": limit}).items()}, now)
    except BadQueryError as error:
        fault, filters, runs = str(error), {}, RunQuery(limit=int(limit))
    page = PageQuery(
        text=given.get("q", ""),
        sort=given["sort"] if given.get("sort") in SORTS else SORTS[0],
        range=given["range"] if given.get("range") in RANGES else "10m",
        limit=int(limit),
        fault=fault,
        started=_count(given.get("started")),
        refused=_count(given.get("refused")),
        first=given.get("first", ""),
        **filters,
    )
    return page, replace(runs, route=route or runs.route, tries=True)


def focus_of(query: Mapping[str, Sequence[str]]) -> Node | None:
    """Return the node to draw the flow around, None for all; the parameter `node` is its kind, a space and its name."""
    for kind in ("topic", "route", "http"):
        if query.get(kind):
            return Node(kind, query[kind][-1])
    kind, _, name = query.get("node", [""])[-1].partition(" ")
    return Node(kind, name) if name else None


def _count(text: str | None) -> int | None:
    """Return a number, None for any other text."""
    return int(text) if text is not None and re.fullmatch("[0-9]{1,4}", text, re.ASCII) else None


def retry_of(body: bytes) -> RetryQuery:
    """Read the body of `/api/failures/retry`; raises `BadQueryError`."""
    try:
        wanted = msgspec.json.decode(body or b"{}", type=RetryQuery)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadQueryError(f"The body cannot be read: {error}") from None
    if wanted.ids is None and wanted.route is None and wanted.code is None and not wanted.all:
        raise BadQueryError("The body names no route, code or ids, and not all")
    if wanted.ids is not None and (wanted.route is not None or wanted.code is not None or wanted.all):
        raise BadQueryError("The body names ids, and a route or code beside them")
    if wanted.ids is not None and len(wanted.ids) > MOST_RUNS:
        raise BadQueryError(f"The body names {len(wanted.ids)} ids; at most {MOST_RUNS} are retried at once")
    return wanted


def ids_of(body: bytes) -> list[str]:
    """Read the body of `/api/failures/drop`; raises `BadQueryError`."""
    ids = retry_of(body).ids
    if ids is None:
        raise BadQueryError("The body names no ids; a failure is dropped by its id")
    return ids


def retry_form_of(body: bytes) -> RetryQuery:
    """Read the form of a page that has failures with one code, or all, sent again; raises `BadQueryError`."""
    form = {name: values[-1] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}
    code, status = form.get("code"), _count(form.get("status"))
    if code is None and "all" not in form:
        raise BadQueryError("The form names no code, and not all")
    return RetryQuery(None, form.get("route"), code, "all" in form, status, form.get("target"))

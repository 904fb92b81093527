"""Runs, problems and unmatched requests as the JSON objects that the admin API answers with, or as CSV. Pure.

Pages are rendered from these objects too. Most secrets were masked when the run was kept. A payload that was not masked
then is masked here by the present definition of its route; if the route was removed, the payload is not shown.
"""

import csv
import io
import time
from codecs import getincrementaldecoder
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec.structs import asdict

from amqtt_rest_bridge.admin.evidence import MaskedBody, masked_body
from amqtt_rest_bridge.admin.figures import Numbers
from amqtt_rest_bridge.admin.kept_runs import KeptRun
from amqtt_rest_bridge.admin.problems import LISTED_SECONDS
from amqtt_rest_bridge.admin.runs import Problem, Run, is_request, outcome_of, tries_of
from amqtt_rest_bridge.catalogue import METHOD_NOT_ALLOWED, NOT_FOUND
from amqtt_rest_bridge.engine.requests import body_members
from amqtt_rest_bridge.lot.masking import masker_of
from amqtt_rest_bridge.lot.model import Route
from amqtt_rest_bridge.times import rfc3339
from amqtt_rest_bridge.topics import loggable

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""What a formula of a spreadsheet begins with."""


def run_object(run: Run) -> dict[str, Any]:
    """Return a run as `/api/runs` has it; a request has `path` in place of a call's `url`."""
    return {
        "id": run.id,
        "route": run.route,
        "event": run.event,
        "topic": run.topic,
        "method": run.method,
        "path" if is_request(run.kind, run.status) else "url": run.url,
        "time": rfc3339(run.time),
        "outcome": outcome_of(run.kind, run.code).value,
        "status": run.status,
        "code": run.code,
        "reason": None if run.reason is None else asdict(run.reason),
        "error": None if run.code is None else {"code": run.code, "message": run.message, "hint": run.hint},
        "waited_ms": run.waited_ms,
        "took_ms": run.ms,
        "tries": [
            {"time": rfc3339(one.time), "status": one.status, "code": one.code, "ms": one.ms} for one in tries_of(run)
        ],
        "retry_of": run.retry_of,
        "retried_as": run.retried_as,
        "retry_outcome": run.retry_outcome,
        "batch": run.batch,
    }


def page_problems(numbers: Numbers) -> list[dict[str, Any]]:
    """Return the present problems in the order of pages, which show requests that matched no endpoint apart.

    First come those that last and whose routes are not Green, then others that last, those that have passed, and those
    that are resolved; in each the newest first, and of the same minute those with most messages.
    """

    def rank(one: Mapping[str, Any]) -> int:
        healths = [numbers.routes[name].health for name in one["routes"] if name in numbers.routes]
        return 3 if one["state"] == "resolved" else 2 if one["passed"] else all(health == "Green" for health in healths)

    found = [asdict(one) | {"first": rfc3339(one.first), "last": rfc3339(one.last)} for one in numbers.bridge.problems]
    return sorted(sorted(found, key=lambda one: (one["last"][:16], one["count"]), reverse=True), key=rank)


def problem_objects(numbers: Numbers) -> list[dict[str, Any]]:
    """Return the present problems, open ones before resolved ones, most messages first.

    Requests that matched no endpoint are among them if an endpoint is near enough to have been meant.
    """
    bridge = numbers.bridge
    unmatched = [
        Problem(
            code=(NOT_FOUND if one.status == 404 else METHOD_NOT_ALLOWED).code,
            target=f"{one.method} :{one.port}{one.path}",
            status=one.status,
            routes=[one.nearest.route],
            counts=[one.count],
            count=one.count,
            first=one.first,
            last=one.last,
            message="No endpoint has this method and path",
            hint=f"The nearest endpoint is {one.nearest.method} {one.nearest.path} of route {one.nearest.route}",
            run=None,
        )
        for one in bridge.unmatched_paths
        if one.nearest is not None and one.status in (404, 405) and time.time() - one.last < LISTED_SECONDS
    ]
    return [
        asdict(one) | {"first": rfc3339(one.first), "last": rfc3339(one.last)}
        for one in sorted([*bridge.problems, *unmatched], key=lambda one: one.place)
    ]


def unmatched_object(numbers: Numbers) -> dict[str, Any]:
    """Return the requests that matched no endpoint, by port and by path."""
    bridge = numbers.bridge
    paths = [asdict(one) | {"first": rfc3339(one.first), "last": rfc3339(one.last)} for one in bridge.unmatched_paths]
    ports = [{"port": port, "count": count} for port, count in sorted(bridge.unmatched.items())]
    return {"ports": ports, "unmatched": paths}


def whole_run_object(run: Run, kept: KeptRun | None, routes: Mapping[str, Route]) -> dict[str, Any]:
    """Return a run with its message, request and response, as far as they are kept; `routes` are the present ones."""
    found = run_object(run) | {"message": None, "request": None, "response": None}
    evidence = None if kept is None else kept.evidence
    if kept is not None and kept.topic:
        payload, route = None if evidence is None else evidence.payload, routes.get(run.route or "")
        if kept.unmasked_payload is not None and route is not None:
            payload = masked_body(masker_of(route), kept.unmasked_payload, len(kept.payload or b""))
        message = {"topic": loggable(kept.topic), "time": rfc3339(kept.timestamp), "payload": None}
        if payload is not None:
            body = _body_object(payload)
            message |= {"payload": body.pop("body"), "payload_encoding": body.pop("body_encoding"), **body}
        found["message"] = message | {"is_kept": kept.payload is not None}
    if evidence is not None and evidence.url is not None:
        body = {} if evidence.body is None else _body_object(evidence.body)
        found["request"] = {"method": run.method, "url": evidence.url, "headers": evidence.headers, **body}
        if evidence.together:
            found["request"]["messages"] = evidence.together
    response = None if evidence is None else evidence.response
    if response is not None:
        body = _body_object(response.body)
        found["response"] = {
            "status": response.status, "reason": response.reason, "headers": response.headers, **body
        }  # fmt: skip
    return found


def _body_object(body: MaskedBody) -> dict[str, Any]:
    """Return a body with its size, and whether it was cut. A UTF-8 character that the cut has split is left out."""
    data, is_cut = body.data, body.size > len(body.data)
    if is_cut:
        with suppress(UnicodeDecodeError):  # these are not text
            data = getincrementaldecoder("utf-8")().decode(data).encode()
    return {**body_members(data), "size": body.size, "is_cut": is_cut}


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
    """Yield the names of columns and the values of a member, of an object those of its members."""
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from _cells(f"{path}.{name}" if path else name, one)
        return
    if isinstance(value, list):
        value = " ".join(value) if all(isinstance(one, str) for one in value) else len(value)
    yield path, f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value

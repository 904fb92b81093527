"""Answers of the admin port: how what was found is written. Pure."""

import gzip
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec
from msgspec.structs import replace

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.admin import metrics
from amqtt_rest_bridge.admin.history import RANGES, History, step_seconds
from amqtt_rest_bridge.admin.numbers import Numbers
from amqtt_rest_bridge.admin.pages import SAFE
from amqtt_rest_bridge.admin.queries import BadQueryError
from amqtt_rest_bridge.admin.retries import NOT_KEPT, RETRY_RUNS, ROUTE_GONE, Retried
from amqtt_rest_bridge.admin.shown import csv_text
from amqtt_rest_bridge.http.exchange import Request, Response, refuse, refused

NOT_FOUND: Final = refuse(catalogue.NO_PAGE, "There is nothing here")
NO_ROUTE: Final = refuse(catalogue.NO_ROUTE, "There is no route of this name")
NO_RUN: Final = refuse(catalogue.NO_RUN, "There is no run with this id, or it has not ended, or is no longer known")
TOO_MANY: Final = refuse(catalogue.TOO_MANY_FOLLOW, "Too many follow already", (("Retry-After", "5"),))
_NOT_RETRIED: Final = {
    NOT_KEPT: catalogue.NO_RUN,
    ROUTE_GONE: catalogue.CANNOT_RETRY,
    RETRY_RUNS: catalogue.RETRY_RUNS,
}
_JSON: Final = ("Content-Type", "application/json")
_COMPRESSED_FROM: Final = 1024  # bytes; below, one packet carries the answer anyway
_LEVEL: Final = 7  # of gzip


def json_answer(value: Mapping[str, Any], status: str = "200 OK") -> Response:
    """Return an answer in JSON."""
    return Response(status, (*SAFE, _JSON), msgspec.json.encode(value))


def metrics_answer(numbers: Numbers) -> Response:
    """Return the figures as Prometheus reads them."""
    return Response("200 OK", (*SAFE, ("Content-Type", metrics.CONTENT_TYPE)), metrics.exposition(numbers))


def readiness(reasons: list[str]) -> Response:
    """Return whether the bridge is ready, and why not."""
    status = "503 Service Unavailable" if reasons else "200 OK"
    return json_answer({"ready": not reasons, "reasons": reasons}, status)


def listed(name: str, rows: Sequence[Mapping[str, Any]]) -> Response:
    """Return rows as JSON, or as a CSV file where the name of the list ends so."""
    of, _, form = name.partition(".")
    if not form:
        return json_answer({of: rows})
    kind = (("Content-Type", "text/csv; charset=utf-8"), ("Content-Disposition", f'attachment; filename="{name}"'))
    return Response("200 OK", (*SAFE, *kind), csv_text(rows).encode("utf-8", "replace"))


def history_answer(query: Mapping[str, Sequence[str]], routes: Collection[str], samples: History) -> Response:
    """Return the history of a route; raises `BadQueryError`."""
    route, span = query.get("route", [""])[-1], query.get("range", ["10m"])[-1]
    if span not in RANGES:
        raise BadQueryError(f"range is one of {', '.join(RANGES)}")
    if route not in routes:
        return refused(NO_ROUTE, SAFE)
    values = samples.of(route, span)
    series: dict[str, list[int] | list[float | None]] = {
        "succeeded": [one.succeeded for one in values],
        "failed": [one.failed for one in values],
    }
    if latencies := samples.latencies(route, span):
        series["p50_ms"] = [one and one.p50 for one in latencies]
        series["p99_ms"] = [one and one.p99 for one in latencies]
    return json_answer({"route": route, "range": span, "step_seconds": step_seconds(span), "series": series})


def retried(answer: Retried) -> Response:
    """Return which retries have begun, and which were refused."""
    return json_answer(
        {
            "started": [{"id": run, "retry_of": of} for run, of in answer.started],
            "refused": [{"id": run, "code": code, "message": message} for run, code, message in answer.refused],
        },
        "202 Accepted",
    )


def retried_one(answer: Retried) -> Response:
    """Return the retry of one run, or why it was refused."""
    if answer.started:
        run, of = answer.started[0]
        return json_answer({"id": run, "retry_of": of}, "202 Accepted")
    _, code, message = answer.refused[0]
    return refused(refuse(_NOT_RETRIED[code], message[0].upper() + message[1:]), SAFE)


def see_other(location: str) -> Response:
    """Return a redirection after a form was sent."""
    return Response("303 See Other", (*SAFE, ("Location", location)))


def compressed(response: Response) -> Response:
    """Return an answer with its body in gzip format; a small one, and a stream, as it is."""
    if len(response.body) < _COMPRESSED_FROM:
        return response
    headers = (*response.headers, ("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding"))
    return replace(response, headers=headers, body=gzip.compress(response.body, _LEVEL, mtime=0))


def query_members(request: Request) -> dict[str, list[str]]:
    """Return the query of a request by names."""
    return parse_qs(request.query.encode("latin-1").decode("utf-8", "replace"), keep_blank_values=True)

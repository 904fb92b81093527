"""What a run is to those who ask for it: its outcome, its tries, its form in JSON. Pure."""

from enum import StrEnum
from typing import Any, Final

from msgspec import structs

from amqtt_rest_bridge.catalogue import BROKER_UNAVAILABLE, INTERNAL_ERROR, NO_ROOM, REPLY_TIMEOUT, SHUTTING_DOWN
from amqtt_rest_bridge.lot.masking import Masker
from amqtt_rest_bridge.lot.model import Try
from amqtt_rest_bridge.records.values import MASKED_BYTES, SHOWN_BYTES, Record, RunQuery, ShownBody
from amqtt_rest_bridge.times import rfc3339
from amqtt_rest_bridge.topics import filter_matches

NOT_SERVED_CODES: Final = frozenset(row.code for row in (BROKER_UNAVAILABLE, INTERNAL_ERROR, NO_ROOM, REPLY_TIMEOUT))
"""Codes of requests that the route could not serve; with any other code the caller is at fault."""


class Outcome(StrEnum):
    """How a run has ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REFUSED = "refused"
    """A message that was not taken, or a request that is its caller's fault."""
    SKIPPED = "skipped"
    """There was nothing to send or publish; its reason says why."""
    RETRYING = "retrying"
    """A try of a call has failed, and another one follows."""
    UNANSWERED = "unanswered"
    """A request that came while the bridge or its port closed, which counts nowhere."""


def outcome_of(kind: str, code: str | None) -> Outcome:
    """Return the outcome of a record by its kind and code."""
    if kind in ("skipped", "refused"):
        return Outcome(kind)
    if kind == "retry":
        return Outcome.RETRYING
    if code is None:
        return Outcome.SUCCEEDED
    if kind != "request" or code in NOT_SERVED_CODES:
        return Outcome.FAILED
    return Outcome.UNANSWERED if code == SHUTTING_DOWN.code else Outcome.REFUSED


def is_request(kind: str, status: object) -> bool:
    """Return whether a record is that of a request; of what WHEN left out, only a request has a status."""
    return kind == "request" or (kind == "skipped" and status is not None)


def is_wanted(query: RunQuery, time: float, kind: str, code: str | None, topic: str | None) -> bool:
    """Return whether a run, or a failed try of one, is among those that a query asks for; id and route are not asked.

    `time` is Unix time, `topic` the one that the record shows.
    """
    return (
        time >= query.since
        and (query.code is None or query.code == code)
        and (query.outcome is None or query.outcome == outcome_of(kind, code))
        and (query.topic is None or (topic is not None and filter_matches(query.topic, topic)))
    )


def shown_body(masker: Masker, body: bytes, size: int | None = None) -> ShownBody:
    """Return what is shown of a body whose first `MASKED_BYTES` are given at least; `size` is that of the whole.

    It is masked before it is cut, and of a large one the end of what was looked through is left out, where a part of a
    secret may be.
    """
    masked = masker.body(body[:MASKED_BYTES], shown=True)
    most = SHOWN_BYTES if len(body) < MASKED_BYTES else max(0, len(masked) - MASKED_BYTES + SHOWN_BYTES)
    return ShownBody(masked[: min(most, SHOWN_BYTES)], len(body) if size is None else size)


def tries_of(record: Record) -> list[Try]:
    """Return the last tries of a run; of a call that has had one, and of a request, what the record says of it."""
    if record.attempts or record.kind not in ("call", "request") or record.ms is None or record.tries == 0:
        return record.attempts
    return [Try(record.time, record.status, record.code, record.ms)]


def run_members(record: Record) -> dict[str, Any]:
    """Return a run as the members of its JSON object; a request has `path` in place of a call's `url`."""
    return {
        "id": record.id,
        "route": record.route,
        "event": record.event,
        "topic": record.topic,
        "method": record.method,
        "path" if is_request(record.kind, record.status) else "url": record.url,
        "time": rfc3339(record.time),
        "outcome": outcome_of(record.kind, record.code).value,
        "status": record.status,
        "code": record.code,
        "reason": None if record.reason is None else structs.asdict(record.reason),
        "error": None if record.code is None else {"code": record.code, "message": record.message, "hint": record.hint},
        "waited_ms": record.waited_ms,
        "took_ms": record.ms,
        "tries": [
            {"time": rfc3339(one.time), "status": one.status, "code": one.code, "ms": one.ms}
            for one in tries_of(record)
        ],
        "retry_of": record.retry_of,
        "retried_as": record.retried_as,
        "retry_outcome": record.retry_outcome,
    }

"""Runs: what is known of a call or request that has ended, who asks for which, and their form in JSON. Pure.

Values hold no secrets of routes.
"""

from typing import Any, Final

from msgspec import Struct, structs

from amqtt_rest_bridge.catalogue import BROKER_UNAVAILABLE, INTERNAL_ERROR, NO_ROOM, REPLY_TIMEOUT, SHUTTING_DOWN
from amqtt_rest_bridge.engine.needs import Outcome
from amqtt_rest_bridge.lot.masking import Masker
from amqtt_rest_bridge.lot.model import Try
from amqtt_rest_bridge.times import rfc3339
from amqtt_rest_bridge.topics import filter_matches

SHOWN_RUNS: Final = 50
"""Runs that are remembered of a route, and that its page shows."""
SHOWN_FAILURES: Final = 20
"""Failures that are remembered of a route beside these."""
MOST_RUNS: Final = 1000
"""Runs that one answer holds at most."""
MOST_NAMED: Final = 20
"""Routes that a problem names."""
SHOWN_BYTES: Final = 16 << 10
"""Bytes of a payload or body that are shown."""
MASKED_BYTES: Final = 4 * SHOWN_BYTES
"""Bytes of it that are looked through for secrets: a secret that begins in the shown part may end behind it."""


class Reason(Struct, frozen=True):
    """Why a message or request was skipped.

    `code` is `when_false`, `when_unusable` (a value that its WHEN needs is missing or of another type), `unchanged`
    (ON_CHANGE) or `duplicate` (DEDUPE_KEY).
    """

    code: str
    message: str


class Run(Struct, frozen=True):
    """One message or request, as people see it: secrets are masked, there is no payload.

    `kind` is "call" (a call of client mode has ended), "retry" (a try of one has failed, another follows), "skipped"
    (its WHEN was false), "refused" (a message that its route had no room for), "request" (of server mode, matched or
    not) or "message" (matched no route). `id` is that of the call, the same for all its tries, or the X-Request-ID of a
    request. `time` is Unix time. `ms` are the milliseconds that the requests of a call took, or a request of server
    mode until its answer; `waited_ms` the others since the broker received the message. Without a `code` all went well.

    `attempts` are the last tries of a call that has had more than one. `retry_of` is the run whose message this one
    sends again, `retried_as` the newest one that sends the message of this one again. `retry_outcome` is how that one
    has ended: "retrying" while it has not, and "succeeded" for good once any of them has. `reason` is why this one was
    skipped.
    """

    time: float
    kind: str
    id: str | None = None
    route: str | None = None
    event: str | None = None
    topic: str | None = None
    method: str | None = None
    url: str | None = None
    status: int | None = None
    code: str | None = None
    message: str | None = None
    hint: str | None = None
    tries: int | None = None
    ms: float | None = None
    waited_ms: float | None = None
    attempts: list[Try] = []
    retry_of: str | None = None
    retried_as: str | None = None
    retry_outcome: str | None = None
    reason: Reason | None = None


class ShownBody(Struct, frozen=True, array_like=True):
    """A body without secrets, cut at `SHOWN_BYTES`; `size` is that of the whole."""

    data: bytes
    size: int


class Evidence(Struct, frozen=True, array_like=True):
    """What is kept of a call or request beside its message; no secrets of the route or of the request.

    `payload` is the message's as it may be shown, None where it had been let go; `carries` is whether that message
    brought credentials. `headers` and `body` are the request's as it was sent, `response` is None where none
    came. `url` is None where nothing was sent; of a request of server mode it is the path. `together` is how many
    messages the request was for, 0 for an event without BATCH_SIZE.
    """

    hint: str | None
    url: str | None
    tries: int
    attempts: list[Try]
    payload: ShownBody | None
    carries: bool = False
    headers: list[tuple[str, str]] = []
    body: ShownBody | None = None
    response: "ShownResponse | None" = None
    together: int = 0


class ShownResponse(Struct, frozen=True, array_like=True):
    """A response without secrets."""

    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: ShownBody


class RunQuery(Struct, frozen=True):
    """Which runs are wanted, the newest `limit` of them; None: any. `since` is Unix time, `topic` a topic filter.

    With `tries` also the last failed try of each call that has not ended, as a run of the kind "retry".
    """

    id: str | None = None
    route: str | None = None
    outcome: str | None = None
    code: str | None = None
    topic: str | None = None
    since: float = 0.0
    limit: int = SHOWN_RUNS
    tries: bool = False


class Problem(Struct, frozen=True):
    """Messages and requests that went wrong alike; `message` and `hint` are those of the last one.

    `target` is the server of a call (`https://host`), or the endpoint of a request (`POST :8080/orders`). `routes` are
    at most `MOST_NAMED`; times are Unix time. Of `count` messages `retrying` have not ended: a try of each has failed,
    and another one follows. `sent_again` failed and were sent again with success: once that are all, `state` is
    "resolved", before it "open". `run` is the newest one that has ended; where none has, of those that have not.
    """

    code: str
    target: str
    status: int | None
    routes: list[str]
    count: int
    first: float
    last: float
    message: str | None
    hint: str | None
    run: str | None
    retrying: int = 0
    state: str = "open"
    sent_again: int = 0


NOT_SERVED_CODES: Final = frozenset(row.code for row in (BROKER_UNAVAILABLE, INTERNAL_ERROR, NO_ROOM, REPLY_TIMEOUT))
"""Codes of requests that the route could not serve; with any other code the caller is at fault."""


def outcome_of(kind: str, code: str | None) -> Outcome:
    """Return the outcome of a run by its kind and code."""
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
    """Return whether a run is that of a request; of what WHEN left out, only a request has a status."""
    return kind == "request" or (kind == "skipped" and status is not None)


def is_wanted(query: RunQuery, time: float, kind: str, code: str | None, topic: str | None) -> bool:
    """Return whether a run, or a failed try of one, is among those that a query asks for; id and route are not asked.

    `time` is Unix time, `topic` the one that the run shows.
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


def tries_of(run: Run) -> list[Try]:
    """Return the last tries of a run; of a call that has had one, and of a request, what the run says of it."""
    if run.attempts or run.kind not in ("call", "request") or run.ms is None or run.tries == 0:
        return run.attempts
    return [Try(run.time, run.status, run.code, run.ms)]


_NOT_LIVE: Final = frozenset({"time", "attempts", "retry_of", "retried_as", "retry_outcome"})


def live_members(run: Run) -> dict[str, Any]:
    """Return a run as the members of its JSON object in the live stream and among the last calls."""
    own = {name: getattr(run, name) for name in Run.__struct_fields__ if name not in _NOT_LIVE}
    return {"time": rfc3339(run.time), **own}


def run_members(run: Run) -> dict[str, Any]:
    """Return a run as the members of its JSON object; a request has `path` in place of a call's `url`."""
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
        "reason": None if run.reason is None else structs.asdict(run.reason),
        "error": None if run.code is None else {"code": run.code, "message": run.message, "hint": run.hint},
        "waited_ms": run.waited_ms,
        "took_ms": run.ms,
        "tries": [
            {"time": rfc3339(one.time), "status": one.status, "code": one.code, "ms": one.ms} for one in tries_of(run)
        ],
        "retry_of": run.retry_of,
        "retried_as": run.retried_as,
        "retry_outcome": run.retry_outcome,
    }

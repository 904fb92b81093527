"""What is known of a run, as it is kept and shown: values alone, without secrets of routes. Pure."""

from typing import Final

from msgspec import Struct

from amqtt_rest_bridge.lot.model import Try

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


class Record(Struct, frozen=True):
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


class RunQuery(Struct, frozen=True, array_like=True):
    """Which runs are wanted, the newest `limit` of them; None: any. `since` is Unix time, `topic` a topic filter.

    With `tries` also the last failed try of each call that has not ended, as a record of the kind "retry".
    """

    id: str | None = None
    route: str | None = None
    outcome: str | None = None
    code: str | None = None
    topic: str | None = None
    since: float = 0.0
    limit: int = SHOWN_RUNS
    tries: bool = False


class RunDetail(Struct, frozen=True, array_like=True):
    """What is kept of one run: its message, and the evidence.

    `payload` is the message's as it came, cut at `MASKED_BYTES`, for the reader to mask; None where `evidence` has it
    masked, or nothing can. `size` is that of the whole, None where no payload is kept, so that there is no retry.
    `again` is the newest run that sends the message again, None while there is none that has ended.
    """

    topic: str
    timestamp: float
    payload: bytes | None
    size: int | None
    evidence: Evidence | None
    again: Record | None = None


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

"""Runs: what is known of a call or request that has ended, or of a try that failed, and queries for them. Pure."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from amqtt_rest_bridge.catalogue import BROKER_UNAVAILABLE, INTERNAL_ERROR, NO_ROOM, REPLY_TIMEOUT, SHUTTING_DOWN
from amqtt_rest_bridge.engine.needs import Outcome
from amqtt_rest_bridge.lot.model import Route, Try
from amqtt_rest_bridge.topics import filter_matches

SHOWN_RUNS: Final = 50
"""Runs that are remembered of a route, and that its page shows."""
SHOWN_FAILURES: Final = 20
"""Failures that are remembered of a route beside these."""
MOST_RUNS: Final = 1000
"""Runs that one answer holds at most."""
MOST_NAMED: Final = 20
"""Routes that a problem names."""
LONGEST_URL: Final = 1000
"""Characters of a URL; it is masked before it is cut, so that no part of a secret is left."""


OPEN: Final = "open"
"""The outcome to ask for kept failures that wait for a retry."""


class Reason(Struct, frozen=True):
    """Why a message or request was skipped.

    `code` is `when_false`, `when_unusable` (a value that its WHEN needs is missing or of another type), `unchanged`
    (ON_CHANGE) or `duplicate` (DEDUPE_KEY).
    """

    code: str
    message: str


class Run(Struct, frozen=True, gc=False):
    """One message or request, as people see it: secrets are masked, there is no payload.

    `kind` is "call" (a call of client mode has ended), "retry" (a try of one has failed, another follows), "skipped"
    (its WHEN was false), "refused" (a message that its route had no room for), "request" (of server mode, matched or
    not) or "message" (matched no route). `id` is that of the call, the same for all its tries, or the X-Request-ID of a
    request. `time` is Unix time. `ms` are the milliseconds that the requests of a call took, or a request of server
    mode until its answer; `waited_ms` is the rest of the time since the broker received the message. Without a `code`
    all went well.

    `attempts` are the last tries of a call that has had more than one. `retry_of` is the run whose message this one
    sends again, `retried_as` the newest one that sends the message of this one again. `retry_outcome` is how that one
    has ended: "retrying" while it has not, and "succeeded" for good once any of them has. `reason` is why this one was
    skipped. `batch` is how many messages the request of a batch had.
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
    attempts: Sequence[Try] = ()
    retry_of: str | None = None
    retried_as: str | None = None
    retry_outcome: str | None = None
    reason: Reason | None = None
    batch: int | None = None


class UnmaskedRun(Struct, frozen=True, gc=False):
    """A run whose URL and texts still hold the secrets of its route."""

    route: Route | None
    run: Run


class RunQuery(Struct, frozen=True):
    """Which runs are wanted, the newest `limit` of them; None: any. `since` is Unix time, `topic` a topic filter.

    The outcome `OPEN` is that of kept failures that wait for a retry.
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

    def wants(self, run: Run) -> bool:
        """Return whether a run is one of them."""
        return (
            run.time >= self.since
            and self.id in (None, run.id)
            and self.route in (None, run.route)
            and self.code in (None, run.code)
            and self.outcome in (None, OPEN, outcome_of(run.kind, run.code))
            and (self.topic is None or (run.topic is not None and filter_matches(self.topic, run.topic)))
        )


class Problem(Struct, frozen=True):
    """Messages and requests that went wrong alike; `message` and `hint` are those of the last one.

    `target` is the server of a call (`https://host`), the endpoint of a request (`POST :8080/orders`), or the event of
    messages that no request was sent for (`route Orders, event Create`). `routes` are at most `MOST_NAMED`, `counts`
    their parts of `count`; times are Unix time. Of `count` messages, `retrying` have not
    ended: a try of each has failed, and another one follows; `sent_again` failed and were sent again with success.
    `waiting` are kept and wait for a retry. `state` is "open", or "resolved" once all were sent again; `passed` is
    whether its routes work again. `run` is the newest run that has ended, or without one the newest that has not; None
    if it is gone. `pushed_out` were kept, until newer failures or larger ones took their room.
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
    counts: list[int] = []
    waiting: int = 0
    passed: bool = False
    pushed_out: int = 0

    @property
    def place(self) -> tuple[bool, int]:
        """Where a list has it: open problems before resolved ones, those with most messages first."""
        return self.state == "resolved", -self.count


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
    """Return whether a run is that of a request; of the skipped ones, only a request has a status."""
    return kind == "request" or (kind == "skipped" and status is not None)


def tries_of(run: Run) -> Sequence[Try]:
    """Return the last tries of a run; of a request, and of a call with one try, the run is that try."""
    if run.attempts or run.kind not in ("call", "request") or run.ms is None or run.tries == 0:
        return run.attempts
    return [Try(run.time, run.status, run.code, run.ms)]

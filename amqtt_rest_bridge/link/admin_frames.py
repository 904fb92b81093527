"""The part of the link's protocol that the admin port needs. Values alone, and no secrets of routes.

The first bridge process serves the admin port. It asks the broker (`Want...`), which answers from what it has counted
and passes on what the other bridge processes answer. Nothing travels unless it is asked for.
"""

from bisect import bisect_left
from typing import Any, Final

from msgspec import Struct, field

from amqtt_rest_bridge.model import Publication, Try

_STEPS: Final = (1000, 1250, 1550, 1900, 2350, 2900, 3600, 4500, 5600, 7000, 8500)
BUCKETS: Final[tuple[float, ...]] = (
    0.0008,
    *(step * 10**power / 1e6 for power in range(5) for step in _STEPS if step * 10**power < 40_000_000),
)
"""The upper bounds of the histogram of what servers take, 0.8 ms to 36 s; one more counts what took longer.

None is more than a quarter above the one before, so that no quantile is further off, however durations lie.
"""
SHOWN_RUNS: Final = 50
"""Records that each process keeps of a route, and that are shown of it."""
SHOWN_FAILURES: Final = 20
"""Failures that each bridge process keeps of a route, and that its page shows."""
MOST_RUNS: Final = 1000
"""Runs that one answer holds at most."""
MOST_LIVE: Final = 1000
"""Records that are followed: those between two looks at them, and those that wait for one follower."""
LIVE_SECONDS: Final = 0.1
"""From one look at the records that are followed to the next."""


class Record(Struct, frozen=True):
    """One message or request, as people see it: secrets are masked, there is no payload.

    `kind` is "call" (a call of client mode has ended), "retry" (a try of one has failed, another follows), "skipped"
    (its WHEN was false), "refused" (a message that its route had no room for), "request" (of server mode, matched or
    not) or "message" (matched no route). `id` is that of the call, the same for all its tries, or the X-Request-ID of a
    request. `time` is Unix time. `ms` are the milliseconds that the requests of a call took, or a request of server
    mode until its answer; `waited_ms` the others since the broker received the message. Without a `code` all went well.

    `attempts` are the last tries of a call that has had more than one. `retry_of` is the run whose message this one
    sends again, `retried_as` the newest one that sends the message of this one again.
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


class ShownBody(Struct, frozen=True, array_like=True):
    """A body without secrets, cut at `SHOWN_BYTES`; `size` is that of the whole."""

    data: bytes
    size: int


SHOWN_BYTES: Final = 16 << 10
"""Bytes of a payload or body that are shown."""
MASKED_BYTES: Final = 4 * SHOWN_BYTES
"""Bytes of it that are looked through for secrets: what begins in those that are shown may end behind them."""


class Evidence(Struct, frozen=True, array_like=True):
    """What a bridge process knows of a call or request that is kept; no secrets of the route or of the request.

    `payload` is the message's as it may be shown, None where the process had let it go; `carries` is whether that
    message brought credentials. `headers` and `body` are the request's as it was sent, `response` is None where none
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

    With `tries` also failed tries of calls that have not ended, as records of the kind "retry".
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
    """What the broker process keeps of one run: its message, and what a bridge process knew of it.

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


class EventCounts(Struct, array_like=True):
    """What has been counted of an event since the broker's start; the broker's loop alone changes it.

    `outcomes` are calls by failure code ("succeeded" without one), `took` how long their requests took (`BUCKETS`) and
    `waited` how long they waited (one bucket). `statuses` are requests of server mode by the status of the answer;
    of a server event `took` is what `RequestTimes` says.
    """

    outcomes: dict[str, int]
    took: "Durations"
    waited: "Durations"
    refused: int = 0
    statuses: dict[str, int] = {}


class Durations(Struct, array_like=True):
    """Durations: their number by upper bounds, `BUCKETS` by default, not cumulated, and their sum in seconds."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    seconds: float = 0.0

    def add(self, seconds: float, bounds: tuple[float, ...] = ()) -> None:
        """Count one more."""
        self.buckets[bisect_left(bounds, seconds)] += 1
        self.seconds += seconds


class RouteNumbers(Struct, frozen=True, array_like=True):
    """The numbers of one route; `status` is what its status topic says, where that was asked for.

    `spooled` is the number of its messages on disk, None for a route that is not lossless; `breaker` is `open` or
    `closed`, None for a route without one; `readers` are those of its streams, None for a route without STREAM.
    """

    name: str
    health: str
    events: dict[str, EventCounts]
    succeeded: int
    failed: int
    refused: int
    retried: int
    queued: int
    held_bytes: int
    in_flight: int
    spooled: int | None
    breaker: str | None
    readers: int | None
    status: dict[str, Any] | None


class NearestEndpoint(Struct, frozen=True):
    """The endpoint that a caller probably meant."""

    method: str
    path: str
    route: str
    event: str


class UnmatchedPath(Struct, frozen=True):
    """A path of a port that led to no endpoint, with the status of the answers; times are Unix time."""

    port: int
    method: str
    path: str
    status: int
    count: int
    first: float
    last: float
    nearest: NearestEndpoint | None


class Problem(Struct, frozen=True):
    """Messages and requests that went wrong alike; `message` and `hint` are those of the last one.

    `target` is the server of a call (`https://host`), or the endpoint of a request (`POST :8080/orders`). `routes` are
    at most `MOST_NAMED`; times are Unix time. Of `count` messages `retrying` have not ended: a try of each has failed,
    and another one follows. `run` is the newest one that has ended; where none has, of those that have not.
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


MOST_NAMED: Final = 20
"""Routes that a problem names."""


class GroupNumbers(Struct, frozen=True, array_like=True):
    """What a worker counts of its group: whether it holds each slot, by number, and the rest as `/metrics` has it.

    `route_sets` are the living workers by the hash of their route set.
    """

    held: list[bool]
    unacknowledged: int
    redelivered: int
    reconnects: int
    lease_changes: int
    route_sets: dict[str, int]


class BrokerNumbers(Struct, frozen=True, array_like=True):
    """What concerns no route: restarts of bridge processes, errors of the last reload, and why it is not ready.

    `unmatched` are requests that led to no endpoint, by port; `unmatched_paths` the most frequent ones.
    `spool_refusing` is whether messages of lossless routes are refused for a full disk. `problems` are those of now.
    `group` is that of a worker, None beside amqtt. `pids` are the process ids by name: `main`, `bridge-0` ...
    `dropped` are messages that were dropped while the bridge was away.
    """

    restarts: int
    reload_errors: int
    reasons: list[str]
    unmatched: dict[int, int] = {}
    unmatched_paths: list[UnmatchedPath] = []
    spool_refusing: bool = False
    problems: list[Problem] = []
    group: GroupNumbers | None = None
    pids: dict[str, int] = {}
    dropped: int = 0


# Broker to bridge process.


class ServeAdmin(Struct, frozen=True, array_like=True, tag=9):
    """Serve the admin port on the listening socket that travels beside the bytes; before the first `UseRoutes`."""


class NumbersPart(Struct, frozen=True, array_like=True, tag=12):
    """A part of the answer to the `WantNumbers` of this number; the last one, and it alone, has `broker`."""

    number: int
    routes: list[RouteNumbers]
    broker: BrokerNumbers | None


class Retried(Struct, frozen=True, array_like=True, tag=17):
    """The answer to the `WantRetry` of this number.

    `started` are ids of new runs with those of the runs whose messages they send again; `refused` are ids of runs whose
    messages are not sent again, each with the code and the sentence that says why.
    """

    number: int
    started: list[tuple[str, str]]
    refused: list[tuple[str, str, str]]


# Bridge process to broker.


NOT_KEPT: Final = "not_kept"
"""Code of a run whose message is not kept; those below are the others of `Retried.refused`."""
ROUTE_GONE: Final = "route_gone"
RETRY_RUNS: Final = "retry_runs"
BROKER_FULL: Final = "broker_full"


class WantRetry(Struct, frozen=True, array_like=True, tag=34):
    """Send the messages of these kept failures again, or without `ids` of those that route and code are of.

    At most `MOST_RUNS`, the oldest first.
    """

    number: int
    ids: list[str] | None
    route: str | None = None
    code: str | None = None


class WantNumbers(Struct, frozen=True, array_like=True, tag=33):
    """Send the numbers of all routes as `NumbersPart`, with `statuses` their status too. From the admin port's process.

    A question that is asked again has the same `number`.
    """

    number: int
    statuses: bool


class EndedRequest(Struct, frozen=True, array_like=True, tag=35):
    """A request of server mode that the broker process keeps, see `Capture`; it costs `credits`, like a publication.

    `timestamp` is when it came (Unix time). `publication` is what it has published, or would have; None where it failed
    before that was known.
    """

    credits: int
    record: Record
    timestamp: float
    publication: Publication | None
    evidence: Evidence


# Either direction: the broker passes on what the admin port's process asks the others, and what they answer.


class WantRuns(Struct, frozen=True, array_like=True, tag=11):
    """Answer with the newest runs that `query` asks for (`FoundRuns`); `number` is the question's."""

    number: int
    query: RunQuery


class FoundRuns(Struct, frozen=True, array_like=True, tag=14):
    """The runs that the sender knows, the newest first.

    From the broker its own, whatever process ran them, which may have died since; with the number of bridge processes
    in `awaited` whose frames it passes on, and for a question by id what it keeps of the run.
    """

    number: int
    runs: list[Record]
    awaited: int | None = None
    detail: RunDetail | None = None


class WantLive(Struct, frozen=True, array_like=True, tag=10):
    """Send every message and request as `LiveRecords` from now on, or (`on` is false) no longer."""

    on: bool


class LiveRecords(Struct, frozen=True, array_like=True, tag=13):
    """Messages and requests of the last moment, for those that follow; `dropped` more had no room."""

    records: list[Record]
    dropped: int


ForAdmin = NumbersPart | FoundRuns | LiveRecords | Retried
ToAdmin = ServeAdmin | WantRuns | WantLive | ForAdmin
FromAdmin = WantNumbers | WantRuns | WantRetry | FoundRuns | WantLive | LiveRecords

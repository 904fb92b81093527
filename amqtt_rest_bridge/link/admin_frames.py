"""The part of the link's protocol that the admin port needs. Values alone, no payloads, no secrets.

The first bridge process serves the admin port. It asks the broker (`Want...`), which answers from what it has counted
and passes on what the other bridge processes answer. Nothing travels unless it is asked for.
"""

from bisect import bisect_left
from typing import Any, Final

from msgspec import Struct

BUCKETS: Final = (0.01, 0.05, 0.25, 1.0, 5.0, 30.0)
"""The upper bounds of the histogram of what servers take, in seconds; one more counts what took longer."""
RECENT: Final = 50
"""Records that each process keeps of a route, and that are shown of it."""
FAILURES: Final = 20
"""Failures that each process keeps of a route, and that are shown of it."""
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
    """Durations: their number by upper bounds, not cumulated, and their sum in seconds."""

    buckets: list[int]
    seconds: float = 0.0

    def add(self, seconds: float, bounds: tuple[float, ...] = ()) -> None:
        """Count one more."""
        self.buckets[bisect_left(bounds, seconds)] += 1
        self.seconds += seconds


class RouteNumbers(Struct, frozen=True, array_like=True):
    """The numbers of one route; `status` is what its status topic says, where that was asked for.

    `spooled` is the number of its messages on disk, None for a route that is not lossless.
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


class BrokerNumbers(Struct, frozen=True, array_like=True):
    """What concerns no route: restarts of bridge processes, errors of the last reload, and why it is not ready.

    `unmatched` are requests that led to no endpoint, by port; `unmatched_paths` the most frequent ones.
    `spool_refusing` is whether messages of lossless routes are refused for a full disk.
    """

    restarts: int
    reload_errors: int
    reasons: list[str]
    unmatched: dict[int, int] = {}
    unmatched_paths: list[UnmatchedPath] = []
    spool_refusing: bool = False


# Broker to bridge process.


class ServeAdmin(Struct, frozen=True, array_like=True, tag=9):
    """Serve the admin port on the listening socket that travels beside the bytes; before the first `UseRoutes`."""


class NumbersPart(Struct, frozen=True, array_like=True, tag=12):
    """A part of the answer to the `WantNumbers` of this number; the last one, and it alone, has `broker`."""

    number: int
    routes: list[RouteNumbers]
    broker: BrokerNumbers | None


# Bridge process to broker.


class WantNumbers(Struct, frozen=True, array_like=True, tag=33):
    """Send the numbers of all routes as `NumbersPart`, with `statuses` their status too. From the admin port's process.

    A question that is asked again has the same `number`.
    """

    number: int
    statuses: bool


# Either direction: the broker passes on what the admin port's process asks the others, and what they answer.


class WantRecords(Struct, frozen=True, array_like=True, tag=11):
    """Answer with the last records of a route (`LastRecords`)."""

    route: str


class LastRecords(Struct, frozen=True, array_like=True, tag=14):
    """The last records of a route that the sender knows, and its last failures.

    From the broker first its own, with the number of bridge processes in `awaited` whose frames it passes on after it,
    and in `kept` the failures of calls whatever process ran them, which may have died since.
    """

    route: str
    records: list[Record]
    failures: list[Record]
    awaited: int = 0
    kept: list[Record] = []


class WantLive(Struct, frozen=True, array_like=True, tag=10):
    """Send every message and request as `LiveRecords` from now on, or (`on` is false) no longer."""

    on: bool


class LiveRecords(Struct, frozen=True, array_like=True, tag=13):
    """Messages and requests of the last moment, for those that follow; `dropped` more had no room."""

    records: list[Record]
    dropped: int


ToAdmin = ServeAdmin | NumbersPart | WantRecords | LastRecords | WantLive | LiveRecords
FromAdmin = WantNumbers | WantRecords | LastRecords | WantLive | LiveRecords

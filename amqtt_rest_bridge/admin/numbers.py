"""The figures of a bridge, as pages, `/metrics` and `/readyz` show them: values alone. Pure."""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, Final

from msgspec import Struct, field

from amqtt_rest_bridge.engine.server.unmatched import UnmatchedPath
from amqtt_rest_bridge.records.values import Problem

SAMPLE_SECONDS: Final = 10.0
"""From one sample of the figures, for the charts, to the next."""
_STEPS: Final = (1000, 1250, 1550, 1900, 2350, 2900, 3600, 4500, 5600, 7000, 8500)
BUCKETS: Final[tuple[float, ...]] = (
    0.0008,
    *(step * 10**power / 1e6 for power in range(5) for step in _STEPS if step * 10**power < 40_000_000),
)
"""The upper bounds of the histogram of what servers take, 0.8 ms to 36 s; one more counts what took longer.

None is more than a quarter above the one before, so that no quantile is further off, however durations lie.
"""


class EventCounts(Struct, array_like=True):
    """What has been counted of an event since the start.

    `outcomes` are calls by failure code ("succeeded" without one), `took` how long their requests took (`BUCKETS`) and
    `waited` how long they waited (one bucket). `statuses` are requests of server mode by the status of the answer; of a
    server event `took` is the time until the answer, without callers that were refused and what was skipped. `skipped`
    are messages and requests by the code of their reason.
    """

    outcomes: dict[str, int]
    took: "Durations"
    waited: "Durations"
    refused: int = 0
    statuses: dict[str, int] = {}
    skipped: dict[str, int] = {}


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


class BridgeNumbers(Struct, frozen=True, array_like=True):
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


@dataclass(frozen=True, slots=True)
class Numbers:
    """The figures at `at` (monotonic seconds); the routes by name, in order."""

    at: float
    routes: dict[str, RouteNumbers]
    bridge: BridgeNumbers

"""The part of the link's protocol that the admin port needs. Values alone, and no secrets of routes.

The first bridge process serves the admin port. It asks the broker (`Want...`), which answers from what it has counted
and passes on what the other bridge processes answer. Nothing travels unless it is asked for.
"""

from typing import Final

from msgspec import Struct

from amqtt_rest_bridge.admin.numbers import BridgeNumbers, RouteNumbers
from amqtt_rest_bridge.model import Publication
from amqtt_rest_bridge.records.values import Evidence, Record, RunDetail, RunQuery

MOST_LIVE: Final = 1000
"""Records that are followed: those between two looks at them, and those that wait for one follower."""
LIVE_SECONDS: Final = 0.1
"""From one look at the records that are followed to the next."""


# Broker to bridge process.


class ServeAdmin(Struct, frozen=True, array_like=True, tag=9):
    """Serve the admin port on the listening socket that travels beside the bytes; before the first `UseRoutes`."""


class NumbersPart(Struct, frozen=True, array_like=True, tag=12):
    """A part of the answer to the `WantNumbers` of this number; the last one, and it alone, has `broker`."""

    number: int
    routes: list[RouteNumbers]
    broker: BridgeNumbers | None


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

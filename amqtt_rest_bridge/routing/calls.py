"""`Call`, a message for one client event on the broker's side, and the interfaces of routing. The broker's loop alone.

Data, types and bounds; `Dispatcher` works with them. What a call does in the bridge process is in `calls/`.

`Dispatches` is where calls go, `Publishes` where results go, `Store` keeps the calls of lossless routes, and a
`Delivery` decides when the source of a message may acknowledge it. A call knows to whom its end is reported
(`Call.reports`), so that what runs calls needs nothing else of routing.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import ClassVar, Final, Protocol

from amqtt_rest_bridge.link.frames import CallResult, FailedTry
from amqtt_rest_bridge.link.newest import Newest
from amqtt_rest_bridge.model import ClientEvent, EventName, Message, Publication, RunKey
from amqtt_rest_bridge.routing.statistics import RouteStatistics

MAX_HOPS: Final = 8
"""Routes that a message may go through, one after the other."""

ReleaseCredits = Callable[[int], None]
"""Return the credits of a publication to the bridge process that sent it."""

Confirm = Callable[[bool], None]
"""Receives whether the broker has acknowledged a publication."""


class Store(Protocol):
    """Keeps the calls of lossless routes until they have ended."""

    @property
    def trouble(self) -> str | None:
        """Return why the last write failed, None when it did not."""

    @property
    def refusing(self) -> str | None:
        """Return why messages are refused: from the first refusal to the first message that is kept again."""

    def keep(
        self,
        route: str,
        event: str,
        message: Message,
        hops: int,
        client: tuple[str, str | None] | None,
        numbering: "Callable[[float, Iterator[int]], int] | None" = None,
    ) -> str:
        """Keep a call and return its key; raises `OSError` when the store does not take it.

        `client` is the publisher's client id and user name while the ACL has not decided. `numbering` numbers its key,
        see `BatchNumbers`.
        """
        ...

    def forget(self, key: str) -> None:
        """Remove a call that has ended."""


class Delivery(Protocol):
    """How a message is acknowledged at its source. After the last release the source may acknowledge it."""

    @property
    def is_dropped(self) -> bool:
        """Return whether its calls must not begin any more: their source will deliver the message again."""

    @property
    def is_bounded(self) -> bool:
        """Return whether its source sends no more than the route has room for, so that no message is refused."""

    def abandon(self) -> None:
        """Release the hold of a call that was dropped, so that the message is not acknowledged."""

    def hold(self) -> None:
        """Delay the acknowledgement: once for each call, and once for each publication that a call results in."""

    def release(self) -> None:
        """Release one hold: the call has ended, or the publication has been published."""

    def key(self, event: EventName) -> str | None:
        """Return the Idempotency-Key of a lossless call: the same whenever its source sends the message again.

        None where the source does not; then a `Store` gives it.
        """
        ...


@dataclass(slots=True, eq=False)
class LocalDelivery:
    """A `Delivery` of a message that no source waits for; `holds` is above 0 while what came of it has not ended."""

    is_dropped: ClassVar[bool] = False
    is_bounded: ClassVar[bool] = False
    holds: int = field(default=0, init=False)

    def hold(self) -> None:
        """Count one call or publication more."""
        self.holds += 1

    def release(self) -> None:
        """Count one less."""
        self.holds -= 1

    def abandon(self) -> None:
        """Count one less: nothing will deliver the message again."""
        self.release()

    def key(self, _: EventName) -> str | None:
        """Return None: a `Store` gives the Idempotency-Key."""
        return None


class BatchNumbers:
    """Number the messages of a lossless event with BATCH_SIZE as they are stored, those of a batch together.

    So a batch is the same after a kill as it was before, and has the same key: the number of a message says which batch
    it is in. Messages that WHEN skips later have a number too. A batch is over a little before its BATCH_SECONDS, so
    that its last message has come when the bridge process closes it.
    """

    def __init__(self, size: int, seconds: float) -> None:
        self._size = size
        self._seconds = 0.8 * seconds
        self._since = 0.0
        self._group = 0
        self._next = size

    def next(self, now: float, groups: Iterator[int]) -> int:
        """Return the number of the next message, from 2 ** 47; `groups` gives the number of a new batch."""
        if self._next == self._size or not 0 <= now - self._since < self._seconds:
            self._since, self._group, self._next = now, next(groups), 0
        self._next += 1
        return 1 << 47 | self._group << 16 | self._next - 1


@dataclass(slots=True, eq=False)
class Listening:
    """A client event in the index, with what the loop needs of its route.

    `is_single`: one bridge process runs all calls of its route; `is_bound`: it matters which one runs a call.
    """

    number: int
    route: str
    event: ClientEvent
    statistics: RouteStatistics
    lossless: bool
    name: EventName
    request: str  # for the log
    is_single: bool = False
    is_bound: bool = False
    numbering: Callable[[float, Iterator[int]], int] | None = None


class CallReports(Protocol):
    """What a bridge process reports of a call."""

    def done(self, call: "Call", result: CallResult, release_credits: ReleaseCredits) -> None:
        """Note the end of a call and publish its result."""

    def lost(self, call: "Call") -> None:
        """End a call whose bridge process died."""

    def replay(self, call: "Call") -> None:
        """Dispatch a call that has not ended once more."""

    def renew(self, call: "Call") -> bool:
        """Use the present definition of the event; return False where there is none, which ends the call."""

    def waiting(self, call: "Call", change: int, *, for_try: bool = True) -> None:
        """Note that a call begins (+1) or ceases (-1) to wait for its next try, or without `for_try` for its turn."""

    def try_failed(self, calls: Sequence["Call"], failed: FailedTry) -> None:
        """Note a failed try of a call, or of the calls of a batch, that is followed by another one."""


class CallPlace(Enum):
    """Where a call is: see `processes.bridge_calls`."""

    HELD = auto()
    """In the broker process alone."""
    ACTIVE = auto()
    """In flight, as far as the broker process can tell."""
    AHEAD = auto()
    """With the bridge process, behind those in flight."""
    BEHIND = auto()
    """With the bridge process, behind an earlier one of the same ORDERED event and topic."""
    WAITING = auto()
    """With the bridge process, until its next try or its turn."""


@dataclass(slots=True, eq=False)
class Call:
    """One message for one event, from before it is admitted until it has ended.

    `run` is what its run id is made of: `id`, the number of the call in this process, or its `key`, the Idempotency-Key
    of a lossless call. `hops` is how many routes the message has passed through. `delivery` is held until the call has
    ended; None where the source does not wait to acknowledge. `since` is the monotonic time at which it began to wait
    for room, None before.

    `is_retried` is true from the first try that fails and is followed by another one. `line` is set by the bridge
    process that has it: event and topic, for an ORDERED event. With `let_go` that process waits with it, and does not
    keep its payload.
    """

    id: int
    run: RunKey
    listening: Listening
    message: Message
    hops: int
    reports: CallReports
    delivery: Delivery | None = None
    key: str | None = None
    since: float | None = None
    waits: bool = False  # between two tries
    is_retried: bool = False
    place: CallPlace = CallPlace.HELD
    line: tuple[str, str] | None = None
    let_go: bool = False


RunEvent = Callable[[EventName, Message, Delivery], Call | None]
"""`Dispatcher.run`: the last release of the delivery ends the run; None where the event is gone."""


class Dispatches(Protocol):
    """Where calls, and the messages that server mode waits for, go: the bridge processes."""

    def dispatch(self, calls: Sequence[Call]) -> None:
        """Send the calls of a message to bridge processes."""

    def forward(self, message: Message) -> bool:
        """Send a message to requests that may wait for it; return False when it is dropped for want of room."""

    def show(self, newest: Newest[bytes], topic: str) -> None:
        """Pass on the newest message on a topic of read events."""

    def show_all(self, newest: Newest[bytes]) -> None:
        """Pass on all newest messages of a filter that had too many."""


MOST_WAITING: Final = 10_000
"""Failure payloads that the broker process makes and that wait to be published; a bridge's are bounded by credits."""
MOST_WAITING_BYTES: Final = 16 << 20
"""Beside so many bytes that wait, failures are published without the messages that they hold (FAILURE_PAYLOAD)."""
LARGE_FAILURE: Final = 4096
"""Bytes of a failure payload; a larger one holds a message."""


def has_room(count: int, waiting_bytes: int, size: int) -> bool:
    """Return whether a failure of `size` bytes has room beside `count` publications that wait."""
    return count < MOST_WAITING and (size <= LARGE_FAILURE or waiting_bytes <= MOST_WAITING_BYTES)


class Publishes(Protocol):
    """The publisher's queue; see `broker.messages`."""

    @property
    def waiting_bytes(self) -> int:
        """Return how many bytes of payloads wait to be published."""

    def put(
        self,
        publication: Publication,
        hops: int,
        release_credits: ReleaseCredits | None = None,
        confirm: Confirm | None = None,
        *,
        route: str = "",
    ) -> bool:
        """Queue a publication; return False when there is no room, which one with credits always has.

        `route` is the one whose result or failure it is.
        """


class RoutesPublisher(Publishes, Protocol):
    """The publisher of an MQTT side, for results and status."""

    def put_status(self, publication: Publication) -> bool:
        """Queue the status of a route; return False when there is no room."""

    async def settled(self, seconds: float) -> int:
        """Wait until all that is queued has reached the broker's clients, or the broker where it is another process.

        Returns after so many seconds at most, with the number of messages that have not.
        """

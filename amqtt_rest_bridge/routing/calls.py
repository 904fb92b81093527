"""What the dispatcher keeps of events and calls, and where its work goes. Data; the broker's loop alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from amqtt_rest_bridge.model import ClientEvent, Message, Publication
from amqtt_rest_bridge.routing.statistics import RouteAccount

EventName = tuple[str, str]
"""A route's name and its event's: what stays the same when a reload changes the definition."""


@dataclass(slots=True, eq=False)
class Listening:
    """A client event in the index, with what the loop needs of its route."""

    number: int
    route: str
    event: ClientEvent
    account: RouteAccount
    lossless: bool
    name: EventName
    request: str  # for the log


@dataclass(slots=True, eq=False)
class Call:
    """One admitted message for one event, until it has ended. `key` is the Idempotency-Key of a lossless call."""

    id: int
    listening: Listening
    message: Message
    hops: int
    key: str | None = None
    waits: bool = False  # between two tries


class Outlets(Protocol):
    """Where the dispatcher's work goes."""

    def deal(self, call: Call) -> None:
        """Hand a call to a bridge process."""

    def forward(self, topic: str, payload: bytes) -> bool:
        """Show a message to requests that may wait for it; False when it is dropped for want of room."""

    def show(self, topic_filter: str, payload: bytes) -> None:
        """Let the read events of a topic filter answer with a message."""

    def hurry(self) -> None:
        """Note that a message has been dealt to all its events."""


class Outgoing(Protocol):
    """The publisher's queue; see `broker.publisher`."""

    def put(self, publication: Publication, hops: int, give: Callable[[int], None] | None = None) -> bool:
        """Queue a publication; False when there is no room."""

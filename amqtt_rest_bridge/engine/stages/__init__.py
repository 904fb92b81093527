"""The capabilities of client events, one module each. Decisions need no I/O: time and chance are handed in.

Most are a `Stage`, with one to three hooks around each attempt of a call: `schema`, `when`, `dedupe`, `on_change`,
`signature`, `retries`, and what `batch` does with a refusal. Four decide when a call goes on, and keep waiting calls:
`order`, `batch`, `rate_limit`, `breaker`. `oauth2` wraps the client that sends requests.

A new capability is a module here, its row in `event.prepare`, a test file, and a line of the reference.
"""

from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from amqtt_rest_bridge.engine.needs import Delivery
from amqtt_rest_bridge.engine.requests import BuiltRequest
from amqtt_rest_bridge.errors import BridgeError, CallError
from amqtt_rest_bridge.lot.model import EventName, HttpRequest, HttpResponse, Message, Publication, RunKey, Try
from amqtt_rest_bridge.lot.placeholders import MessageValues

if TYPE_CHECKING:
    from amqtt_rest_bridge.engine.event import PreparedEvent


class Step(StrEnum):
    """What follows an attempt of a call."""

    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"
    AGAIN = "again"
    SPLIT = "split"
    """The server refused a batch: its halves are sent instead."""


class Verdict(Struct, frozen=True):
    """What follows an attempt: the end of its call, or with `AGAIN` another attempt, `seconds` from now.

    `status` is the HTTP status, None without a response. `failure` is None unless the attempt failed; like
    `publication` it holds no secrets of the route. `skipped` is the code and sentence of a call that sends nothing.
    `request` and `response` are those of the attempt, with secrets: records mask them.
    """

    step: Step
    status: int | None = None
    failure: CallError | None = None
    publication: Publication | None = None
    seconds: float = 0.0
    skipped: tuple[str, str] | None = None
    request: HttpRequest | None = None
    response: HttpResponse | None = None


class SkippedError(BridgeError):
    """A call sends no request and does not fail; `code` and `message` say why."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class HeldError(BridgeError):
    """A call has to wait before its request is built: a stage keeps it, and puts it back into the queue."""


class Call(Struct, eq=False):
    """One message for one event, from its admission to its end.

    Args:
        number: Number of the call in this process.
        resume: Puts the call back into its queue.
        event: The definition that it runs by.
        message: The message.
        size: Bytes of its payload, which count until the call has ended.
        hops: Routes that the message has passed through.
        delivery: Held until the call has ended; None where no source waits.
        key: Idempotency-Key of a lossless call.
        retry_of: Id of the run that this one repeats.
        has_begun: Its first attempt has begun, or its payload was released: it keeps its definition.
        has_place: It has a place of the route, so it is a task.
        has_ended: It has ended or was given up; queues drop it when they reach it.
        since: Monotonic time at which it began to wait for room.
        line: Name of its line, for an ORDERED event; calls of one line run one after the other.
        is_behind: It waits for another call of its line.
        is_held: A stage keeps it, see `HeldError`.
        built: The request of the present attempt, None between attempts. With the payload released, it stays.
        attempted: Number of attempts; a batch that is halved counts from 0 again.
        attempts: The last attempts, for the records; None if the first one succeeds.
        is_retried: An attempt has failed, and another one follows.
        took: Seconds of all its requests.
        paused: Seconds in which the present attempt waited for a turn of RATE_LIMIT.
        url: URL of its last request.
        has_payload: False once a large payload was released.
        item: Its item in the body of its batch.
        riders: The other calls of the batch that this one carries: they wait for its end, and end with it.
        carrier: The call that carries this one.
        together: Number of calls in its last request.
        text: Digest of what ON_CHANGE compares.
        dedupe_key: The key of DEDUPE_KEY that it claims.
        was_seen: Whether its key was seen before. None until its claim is answered; False if it has the claim.
    """

    number: int
    resume: "Callable[[Call], None]"
    event: "PreparedEvent"
    message: Message
    size: int
    hops: int = 0
    delivery: Delivery | None = None
    key: str | None = None
    retry_of: str | None = None
    has_begun: bool = False
    has_place: bool = False
    has_ended: bool = False
    since: float | None = None
    line: str | None = None
    is_behind: bool = False
    is_held: bool = False
    built: BuiltRequest | None = None
    attempted: int = 0
    attempts: deque[Try] | None = None
    is_retried: bool = False
    took: float = 0.0
    paused: float = 0.0
    url: str | None = None
    has_payload: bool = True
    item: bytes | None = None
    riders: "list[Call] | None" = None
    carrier: "Call | None" = None
    together: int = 1
    text: bytes | None = None
    dedupe_key: bytes | None = None
    was_seen: bool | None = None

    @property
    def name(self) -> EventName:
        """Return the names of its route and its event."""
        return self.event.name

    @property
    def run(self) -> RunKey:
        """Return the key from which the id of its run is made."""
        return self.number if self.key is None else self.key

    @property
    def batch(self) -> "list[Call]":
        """Return the calls that it carries, itself first."""
        return [self, *self.riders] if self.riders else [self]

    def follow(self, carrier: "Call") -> None:
        """Copy the attempts of the call that carries this one in its batch."""
        self.attempted, self.attempts, self.took, self.url = (
            carrier.attempted, carrier.attempts, carrier.took, carrier.url,
        )  # fmt: skip
        self.together = carrier.together

    def discard_request(self) -> None:
        """Forget the request, which is built again for the next attempt; keep it if the payload was released."""
        if self.has_payload:
            self.built = None

    def waited(self, now: float) -> float:
        """Return the seconds that the call has waited: its age, less the time of its requests.

        The age counts from the arrival of the message. The result is 0 if the clock was set back meanwhile.
        """
        return max(0.0, now - self.message.timestamp - self.took)


class Stage:
    """What one setting does to the calls of an event; an event without the setting has no stage of it.

    Each hook does nothing by default. Only hooks that a stage overrides are called.
    """

    def enter(self, call: Call, values: MessageValues) -> None:
        """Look at a call before the request of an attempt is built.

        Raises:
            SkippedError: The call sends nothing.
            CallError: The call fails.
            HeldError: The call waits; the stage puts it back into its queue.
        """

    def before(self, call: Call, request: HttpRequest) -> HttpRequest:  # noqa: ARG002  # of the default
        """Return a request as it is to be sent."""
        return request

    def after(self, call: Call, verdict: Verdict) -> Verdict:  # noqa: ARG002  # of the default
        """Return the given verdict on an attempt or on a call that sends nothing, or another one in its place.

        Stages are called in reverse order: the last one to `enter` comes first.
        """
        return verdict

    def give_up(self, call: Call) -> None:
        """Forget a call that ends without `after`, or goes on by another definition."""

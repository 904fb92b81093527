"""The capabilities of client events, one module each. Everything here is decided without I/O: time and chance come in.

Most are a `Stage`, with one to three hooks around each attempt of a call: `schema`, `when`, `dedupe`, `on_change`,
`signature`, `retries`, and what `batch` does with a refusal. Four decide when a call goes on, and keep those that wait:
`order`, `batch`, `rate_limit`, `breaker`. `oauth2` wraps what sends requests.

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
from amqtt_rest_bridge.model import EventName, HttpRequest, HttpResponse, Message, Publication, RunKey, Try
from amqtt_rest_bridge.placeholders import MessageValues

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
        number: Of the call, in this process.
        resume: Puts the call back into its queue.
        event: The definition that it runs by.
        message: The message.
        size: Bytes of its payload, which count until the call has ended.
        hops: Routes that the message has passed through.
        delivery: Held until the call has ended; None where no source waits.
        key: Idempotency-Key of a lossless call.
        retry_of: Id of the run that this one repeats.
        has_begun: It has had a place once.
        has_place: It is a task now.
        has_ended: It goes on no more; queues drop it when they come to it.
        since: Monotonic time at which it began to wait for room.
        line: For an ORDERED event: calls of one line run one after the other.
        is_behind: Another call of its line may run.
        is_held: A stage keeps it, see `HeldError`.
        built: The request of the present attempt; of a call that has released its payload, that of all.
        attempted: Requests that were sent, in this batch.
        attempts: The last ones, once one of them has failed and another follows.
        is_retried: An attempt has failed, and another one follows.
        took: Seconds of all its requests.
        paused: Seconds in which the present attempt waited for a turn of RATE_LIMIT.
        url: Of its last request.
        has_payload: False once a large payload was released.
        item: What it is in its batch.
        riders: The other calls of the batch that this one carries: they wait for its end, and end with it.
        carrier: The call that carries this one.
        together: Calls in its last request.
        text: Digest of what ON_CHANGE compares.
        dedupe_key: Its claim is on this key.
        was_seen: None before its claim is answered; False: it has the claim.
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
        """Return what its run id is made of."""
        return self.number if self.key is None else self.key

    @property
    def batch(self) -> "list[Call]":
        """Return the calls that it carries, itself first."""
        return [self, *self.riders] if self.riders else [self]

    def follow(self, carrier: "Call") -> None:
        """Take over what became of the call that carries this one in its batch."""
        self.attempted, self.attempts, self.took, self.url = (
            carrier.attempted, carrier.attempts, carrier.took, carrier.url,
        )  # fmt: skip
        self.together = carrier.together

    def discard_request(self) -> None:
        """Forget the request that was built, which is built again; not where the payload was released for it."""
        if self.has_payload:
            self.built = None

    def waited(self, now: float) -> float:
        """Return the seconds since the broker received the message in which no request of the call was under way.

        By the clock of the messages: where it was set back, 0.
        """
        return max(0.0, now - self.message.timestamp - self.took)


class Stage:
    """What one setting does to the calls of an event; an event without the setting has no stage of it.

    Each hook is a no-op by default, and only those that a stage has of its own are called.
    """

    def enter(self, call: Call, values: MessageValues) -> None:
        """Look at a call before the request of an attempt is built.

        Raises:
            SkippedError: It sends nothing.
            CallError: It fails.
            HeldError: It waits; the stage puts it back.
        """

    def before(self, call: Call, request: HttpRequest) -> HttpRequest:  # noqa: ARG002  # of the default
        """Return a request as it is to be sent."""
        return request

    def after(self, call: Call, verdict: Verdict) -> Verdict:  # noqa: ARG002  # of the default
        """Return the verdict on an attempt, or on a call that sends nothing: the given one, or one in its place.

        Stages are asked in the opposite order: the last one to `enter` comes first.
        """
        return verdict

    def give_up(self, call: Call) -> None:
        """Note that a call which waits goes on no more: its source has taken it back."""

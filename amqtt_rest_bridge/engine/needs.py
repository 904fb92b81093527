"""What the engine needs from outside: where it publishes, sends and keeps things, and the clock. Interfaces, no code.

`mqtt` fulfils `Delivery` and `Publishes`, `http` fulfils `Sends`, `store` fulfils `Keeps`, `admin` fulfils `Records`;
tests fulfil all of them (`tests/engine/host.py`). All of it is for one event loop: nothing here is thread-safe, and no
method without `async` may block.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.http.exchange import Refusal, Request, Response
from amqtt_rest_bridge.lot.model import (
    ClientEvent,
    EventName,
    HttpRequest,
    HttpResponse,
    Message,
    Publication,
    RestApiConfig,
    Route,
    RunIds,
    RunKey,
    ServerEvent,
    Try,
)
from amqtt_rest_bridge.settings import Settings


class Publishes(Protocol):
    """Publishes to the broker."""

    def publish(
        self, publication: Publication, *, hops: int, route: str, wait: bool = True, mark: str = ""
    ) -> "asyncio.Future[None]":
        """Publish; done once the broker has acknowledged it. If too much is unacknowledged, it waits for room.

        A publication whose caller is cancelled before it has been sent is never sent.

        Args:
            publication: What is published.
            hops: Routes that its message has passed through, this one included.
            route: The name of the route that publishes, for the log.
            wait: Wait for the broker while it is away, and publish again after a reconnect, however long that takes.
            mark: The mark of the message whose result this is, see `Delivery.mark`.

        Raises:
            BrokerAwayError: Without `wait` only: the broker is away, the connection is lost before it acknowledges, or
                it does not acknowledge within 10 seconds.
            NoRoomError: Without `wait` only: there was no room for a second.
            PublicationRefusedError: The broker refuses this publication for good.
        """
        ...


Turn = Callable[[], Awaitable[None]]
"""Returns when the next request may leave."""


class Sends(Protocol):
    """Sends the requests of a route to one server."""

    def send(self, request: HttpRequest, *, turn: Turn | None = None) -> Awaitable[HttpResponse]:
        """Send a request, and what has to follow it: redirects, a request repeated with credentials.

        `turn` is awaited before each request that leaves. That wait does not count for REQUEST_TIMEOUT or for
        `HttpResponse.elapsed`. Raises `CallError` if there is no response that can be used.
        """
        ...

    def close(self) -> None:
        """Close idle connections; requests under way go on, and later ones are possible."""
        ...


Connects = Callable[[RestApiConfig, str], Sends]
"""Returns what sends requests to a server, with the timeout, TLS files, proxies and Digest login of a route.

The server is BASE_ADDRESS or OAUTH2_TOKEN_URL; the latter gets no Digest login. Raises `ConfigurationError` if the
address or a proxy variable cannot be used.
"""


class Delivery(Protocol):
    """A message as its source holds it: acknowledged once nothing depends on it any more."""

    @property
    def is_dropped(self) -> bool:
        """Return whether its source has taken it back to deliver it again: its calls must not begin any more."""
        ...

    @property
    def is_bounded(self) -> bool:
        """Return whether its source sends no more than routes have room for (Receive Maximum).

        Then no message is refused. A message whose calls have not ended when the bridge ends is delivered again.
        """
        ...

    @property
    def has_key(self) -> bool:
        """Return whether it was kept for a lossless route. Then calls carry its key, even if the route changes."""
        ...

    def hold(self) -> None:
        """Note that one more call or publication depends on it."""
        ...

    def release(self) -> None:
        """Note that one has ended. At zero the message is acknowledged."""
        ...

    def abandon(self) -> None:
        """Note that a call was given up before it began: at zero the message is not acknowledged, and comes again."""
        ...

    def key(self, event: EventName) -> str:
        """Return the Idempotency-Key of an event's call: the same whenever the message comes again."""
        ...

    def mark(self, event: EventName) -> str:
        """Return the mark of a result: once that is published, the message is not delivered to the event again.

        The mark is empty if calls are repeated after a crash anyway.
        """
        ...


class Keeps(Protocol):
    """Keeps the keys of DEDUPE_KEY that were seen."""

    def answer(self, key: bytes) -> bytes | None:
        """Return what was kept with a key; None if it was not seen, or too long ago."""
        ...

    def keep(self, key: bytes, seconds: float, answer: bytes) -> None:
        """Keep a key for so many seconds, with the answer that it has had (b"" in client mode)."""
        ...


class Cancels(Protocol):
    """A timer."""

    def cancel(self) -> None:
        """Stop it, if it has not run."""
        ...


class Clock(Protocol):
    """The time, and timers."""

    def time(self) -> float:
        """Return Unix seconds, which may be set back and forth."""
        ...

    def monotonic(self) -> float:
        """Return seconds that nothing sets, and that go on while the machine is suspended, if it can tell."""
        ...

    def later(self, seconds: float, action: Callable[[], object]) -> Cancels:
        """Call `action` on the loop, so many seconds from now."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return so many seconds from now."""
        ...


class Outcome(StrEnum):
    """How a run has ended, or an attempt of it."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REFUSED = "refused"
    """A message that was not admitted, or a request that failed through the fault of its caller."""
    UNANSWERED = "unanswered"
    """A request that came while the bridge or its port closed. It counts nowhere."""
    SKIPPED = "skipped"
    """There was nothing to send; `CallRun.skipped` says why."""
    RETRYING = "retrying"
    """An attempt has failed, and another one follows."""


class CallRun(Struct, frozen=True, gc=False):
    """What is known of a call when it has ended, or when an attempt of it has failed and another one follows."""

    time: float  # Unix seconds of the end, or of the end of the attempt
    outcome: Outcome
    number: int  # number of the call; the same for all its attempts
    key: RunKey  # what its run id is made of, see `RunIds`
    route: Route  # the definition that it ran by
    event: ClientEvent
    message: Message  # the message of the call. Its payload is empty if it was large and was released
    url: str | None = None  # URL of the last attempt, with secrets of the route; None if nothing was sent
    status: int | None = None  # status of the last response, None without one
    skipped: tuple[str, str] | None = None  # code and sentence of why nothing was sent, with `SKIPPED`
    failure: CallError | None = None  # why it failed, without secrets
    # The last attempts, at most 20; none of a call that has succeeded at the first one.
    attempts: tuple[Try, ...] = ()
    attempted: int = 0  # number of attempts
    waited: float = 0.0  # seconds in which none of its requests was under way
    took: float = 0.0  # seconds of its requests
    together: int = 1  # calls in its last request, above 1 in a batch
    request: HttpRequest | None = None  # the last request, with secrets
    response: HttpResponse | None = None  # the last response, with secrets
    retry_of: str | None = None  # the id of the run that this one repeats


class RequestRun(Struct, frozen=True, gc=False):
    """What is known of a request of server mode when it has been answered."""

    time: float  # Unix seconds of the answer
    outcome: Outcome
    port: int  # the port that its caller connected to
    route: Route | None  # the definition that it was answered by; None, like `event`, if no endpoint has its path
    event: ServerEvent | None
    request: Request  # as it came, with secrets; its id is the run's
    answer: Response  # with secrets
    refusal: Refusal | None = None  # why it was refused or failed, without secrets; None if it was answered well
    skipped: tuple[str, str] | None = None  # code and sentence of why nothing was published, with `SKIPPED`
    # What it published, or would have published; None if it was refused before that was known.
    publication: Publication | None = None
    took: float = 0.0  # seconds until its answer
    retry_of: str | None = None  # the id of the run that this one repeats
    label: str = ""  # METHOD and ENDPOINT of the event as the log shows them


class Records(Protocol):
    """Keeps what the admin port shows. Methods run for every message, call and request, so they must be fast."""

    def note_call(self, run: CallRun) -> None:
        """Note a call that has ended, or an attempt of it that is followed by another one (`Outcome.RETRYING`)."""
        ...

    def replayed_run(self, event: EventName, message: Message) -> str | None:
        """Return the id of the failed run whose message was replayed for an event, None if it is not kept."""
        ...

    def forget_call(self, number: int) -> None:
        """Note that a call whose attempt has failed is given up: its source delivers the message again."""
        ...

    def note_error(self, route: str, code: str, message: str, now: float) -> None:
        """Note an error of a route that ended no message and no request; `now` is Unix time."""
        ...

    def note_request(self, run: RequestRun) -> None:
        """Note a request that has been answered."""
        ...

    def note_unmatched(self, message: Message) -> None:
        """Note a message that concerns no event."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """The settings of these names; sizes are bytes."""

    workers: int = Settings.workers
    max_body_bytes: int = int(Settings.max_body_bytes)
    max_response_bytes: int = int(Settings.max_response_bytes)
    max_message_bytes: int = int(Settings.max_message_bytes)
    queue_bytes: int = int(Settings.queue_bytes)


@dataclass(frozen=True, slots=True)
class Host:
    """What a program hands to the engine.

    Args:
        publisher: Where results and requests go.
        connect: Makes what sends requests.
        seen_keys: The keys of DEDUPE_KEY.
        clock: The time.
        chance: Returns a number from 0 to 1, for the jitter of retries and the first run of EVERY.
        limits: Bounds.
        runs: Makes the ids of calls.
        records: Of the admin port; None where there is none.
        keys_have_groups: Whether keys of lossless calls say which messages are one batch, see `stages.batch.Batches`.
    """

    publisher: Publishes
    connect: Connects
    seen_keys: Keeps
    clock: Clock
    chance: Callable[[], float]
    limits: Limits = field(default_factory=Limits)
    runs: RunIds = field(default_factory=RunIds)
    records: Records | None = None
    keys_have_groups: bool = False

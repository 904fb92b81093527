"""A call, and the client event that it belongs to: what to send for a message, and what follows from the reply. Pure.

A `Call` is one message for one event. `PreparedEvent`, made once for each event, makes the decisions: `build` makes the
request of an attempt, `judge` the `Verdict` on its reply. The settings of the event take part as its stages (`Stage`).

Two modules call it, queue calls and do the I/O: `call` in the bridge, `trial` for the commands `rest-bridge try` and
`test`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.engine.failures import (
    error_without_secrets,
    failure_explained,
    failure_of,
    failure_publication,
    masker_for,
    response_without_secrets,
)
from amqtt_rest_bridge.engine.needs import Delivery, Host, Outcome, Sends
from amqtt_rest_bridge.engine.requests import RequestBuilder, message_values, result_of
from amqtt_rest_bridge.errors import BridgeError, CallError, FailureCode
from amqtt_rest_bridge.lot.masking import Masker, masker_of
from amqtt_rest_bridge.lot.model import (
    ClientEvent,
    EventName,
    HttpRequest,
    HttpResponse,
    Message,
    Publication,
    Route,
    RunKey,
    Try,
)
from amqtt_rest_bridge.lot.placeholders.text import MessageValues

if TYPE_CHECKING:
    from amqtt_rest_bridge.engine.stages.batch import Items

LARGE: Final = 128 << 10
"""Payloads of at least so many bytes are released once the request is built, unless something still needs them."""
_MOST_MARKS: Final = 250  # of a batch: MQTT bounds the size of a user property
_MOST_ATTEMPTS: Final = 20  # kept of a call; a lossless one may be tried without end
_UNEXPECTED: Final = "the call ended with an unexpected error of the bridge itself"


class Verdict(Struct, frozen=True):
    """What follows an attempt: the end of its call, or with `RETRYING` another attempt."""

    outcome: Outcome
    status: int | None = None  # HTTP status, None without a response
    failure: CallError | None = None  # why the attempt failed, without secrets of the route
    publication: Publication | None = None  # the result or failure payload, without secrets of the route
    seconds: float = 0.0  # until the next attempt, with `RETRYING`
    skipped: tuple[str, str] | None = None  # code and sentence of why nothing was sent, with `SKIPPED`
    request: HttpRequest | None = None  # of the attempt, with secrets: records mask them
    response: HttpResponse | None = None  # of the attempt, with secrets
    is_halved: bool = False  # with `RETRYING`: a batch was refused or is too large, so its halves are sent instead


class SkippedError(BridgeError):
    """A call sends no request and does not fail; `code` and `message` say why."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class HeldError(BridgeError):
    """A call has to wait. What makes it wait (a stage, the breaker, its source) lets it go on later."""


class Attempts(Struct, eq=False):
    """What is known of the attempts of a call. The calls of a batch have one in common."""

    count: int = 0  # number of attempts; each half of a batch counts from 0 again
    last: deque[Try] | None = None  # the last ones, for the records; None if the first one succeeds
    took: float = 0.0  # seconds of all requests
    paused: float = 0.0  # seconds in which the present attempt waited for a turn of RATE_LIMIT
    url: str | None = None  # URL of the last request
    together: int = 1  # number of messages in the last request

    def note(self, verdict: Verdict, now: float, took: float) -> None:
        """Note an attempt that was sent; keep its result, unless the call succeeds at the first attempt."""
        self.took += took
        if verdict.outcome is Outcome.SUCCEEDED and self.last is None:
            return
        if self.last is None:
            self.last = deque(maxlen=_MOST_ATTEMPTS)
        code = None if verdict.failure is None else verdict.failure.code.value
        self.last.append(Try(now, verdict.status, code, round(1000 * took, 1)))


class KeyClaim(NamedTuple):
    """The claim of a call on its DEDUPE_KEY, or the note that the key was seen, so that the call is skipped."""

    key: bytes
    was_seen: bool


class Call(Struct, eq=False):
    """One message for one event, from its admission to its end."""

    number: int  # of the call in this process
    resume: "Callable[[Call], None]"  # puts the call back into its queue
    event: "PreparedEvent"  # the definition that it runs by
    message: Message  # without its payload once that was released, see `LARGE`
    size: int  # of the message in bytes; counts for the bounds of the route until the call has ended
    hops: int = 0  # routes that the message has passed through
    delivery: Delivery | None = None  # held until the call has ended; None where no source waits
    key: str | None = None  # Idempotency-Key of a lossless call
    retry_of: str | None = None  # id of the run that this one repeats
    # How far it has come.
    has_begun: bool = False  # its first attempt has begun, or its payload was released: it keeps its definition
    has_place: bool = False  # it has a place of the route, so it is a task
    has_ended: bool = False  # it has ended or was given up; queues drop it when they reach it
    waiting_since: float | None = None  # monotonic time at which it began to wait for room
    line: str | None = None  # name of its line, for an ORDERED event; calls of one line run one after the other
    # Its attempts. `request` and `destination` are those of the present attempt; both stay once the payload was
    # released, since neither can be built again.
    request: HttpRequest | None = None  # None between attempts
    destination: str | None = None  # topic of the result; None without a result, or if its topic is in the response
    has_payload: bool = True  # false once a large payload was released
    attempts: Attempts = field(default_factory=Attempts)
    is_retried: bool = False  # an attempt has failed, and another one follows
    # What stages keep of it.
    item: bytes | None = None  # its item in the body of its batch
    change_digest: bytes | None = None  # of the text that ON_CHANGE compares
    claim: KeyClaim | None = None  # of its DEDUPE_KEY

    @property
    def name(self) -> EventName:
        """Return the names of its route and its event."""
        return self.event.name

    @property
    def run_key(self) -> RunKey:
        """Return the key from which the id of its run is made."""
        return self.number if self.key is None else self.key

    @property
    def calls(self) -> "list[Call]":
        """Return the calls that its request is for: itself, for any call but a `Batch`."""
        return [self]

    @property
    def mark(self) -> str:
        """Return the mark of its result, by which the source knows that the message has ended; see `Delivery.mark`."""
        return "" if self.delivery is None else self.delivery.mark(self.name)

    @property
    def is_dropped(self) -> bool:
        """Return whether its source has dropped the message, to deliver it again: the call must not begin."""
        return self.delivery is not None and self.delivery.is_dropped

    @property
    def dropped_calls(self) -> "list[Call]":
        """Return those of `calls` whose source has dropped the message."""
        return [one for one in self.calls if one.is_dropped]

    def discard_request(self) -> None:
        """Forget the request, which is built again for the next attempt; keep it if the payload was released."""
        if self.has_payload:
            self.request = None

    def waited(self, now: float) -> float:
        """Return the seconds that the call has waited: its age, less the time of its requests.

        The age counts from the arrival of the message. The result is 0 if the clock was set back meanwhile.
        """
        message = self.message
        since = message.timestamp if message.sent_again is None else message.sent_again
        return max(0.0, now - since - self.attempts.took)


class Batch(Call, eq=False):
    """Several calls that are sent as one request. At its end each of them gets its own verdict."""

    calls: list[Call] = []  # replaces the property of `Call`

    @property
    def run_key(self) -> RunKey:
        """Return the key of its first call, by which the log names the batch."""
        return self.calls[0].run_key

    @property
    def mark(self) -> str:
        """Return the marks of its calls, at most `_MOST_MARKS` of them."""
        return ",".join(filter(None, (one.mark for one in self.calls[:_MOST_MARKS])))


class Stage:
    """The effect of one setting on the calls of an event. An event without the setting has no such stage.

    Each hook does nothing by default. Only hooks that a stage overrides are called.
    """

    def enter(self, call: Call, values: MessageValues) -> None:
        """Look at a call before the request of an attempt is built.

        Raises:
            SkippedError: The call sends nothing.
            CallError: The call fails.
            HeldError: The call waits; the stage puts it back into its queue.
        """

    def before_sending(self, call: Call, request: HttpRequest) -> HttpRequest:  # noqa: ARG002  # of the default
        """Return the request to send in place of this one."""
        return request

    def retry(self, call: Call, verdict: Verdict) -> Verdict:  # noqa: ARG002  # of the default
        """Return the given verdict on a failed attempt, or a verdict `Outcome.RETRYING` for another attempt.

        The stages are asked in the reverse order of `enter`, until one of them returns `Outcome.RETRYING`.
        """
        return verdict

    def after_end(self, call: Call, verdict: Verdict | None) -> None:
        """Note the verdict that ended a call; None if the call was given up, or continues with another definition."""


class PreparedEvent:
    """A client event of a route, with everything that can be computed before a message comes.

    Args:
        route: The route.
        event: One of its client events.
        stages: What its settings do to its calls, see `stages.prepare`.
        host: What the engine needs. Where it has records, messages of failed calls are kept: no payload is released.
        items: Makes the items of its batches; None without BATCH_SIZE.
        client: Sends its requests; None if the caller sends them.

    Raises:
        ConfigurationError: BASE_ADDRESS or USERNAME cannot be used.
    """

    def __init__(
        self, route: Route, event: ClientEvent, stages: Iterable[Stage], host: Host, *,
        items: "Items | None" = None, client: Sends | None = None,
    ) -> None:  # fmt: skip
        self.route = route
        self.client = client
        self.event = event
        self.name = route.name, event.name
        self.label = f"route {route.name}, event {event.name}"
        self.target = route.config.server
        self.is_lossless = route.is_lossless
        self.is_in_order = event.is_in_order
        self.masker = masker_of(route)
        self.shown_request = f"{event.method} {self.masker.address(self.target)}"
        """METHOD and server, for the log. Never the path, which may hold payloads and secrets."""
        self.batch_form = event.batch_size, event.body, event.batch_item
        """The settings that shape the items of a batch. If a reload changes them, the batch is gathered again."""
        named = [name for text in (event.destination_topic, event.payload) if text is not None for name in text.names]
        self._needs_payload = (
            self.is_lossless
            or host.records is not None
            or event.failure_payload
            or any(name.startswith(("payload", "value")) for name in named)
        )
        self._runs = host.runs
        self._items = items
        self._builder = RequestBuilder(route, event, max_body_bytes=host.limits.max_body_bytes)
        stages = tuple(stages)
        self._enter_hooks, self._sending_hooks = _hooks(stages, "enter"), _hooks(stages, "before_sending")
        self._retry_hooks, self._end_hooks = _hooks(stages[::-1], "retry"), _hooks(stages[::-1], "after_end")

    def build(self, call: Call) -> Verdict | None:
        """Build the request of an attempt, `call.request`. Returns None, or a verdict if nothing is to be sent.

        Raises:
            HeldError: The call has to wait; a stage keeps it.
        """
        if call.request is not None:  # the payload was released: all attempts send this request
            return None
        try:
            values, key = self._values(call)
            request, call.destination = self._builder.build(values, key), self._builder.destination(values)
            for change in self._sending_hooks:
                request = change(call, request)
        except (SkippedError, CallError) as error:
            return self._without_request(call, error)
        call.request, call.attempts.url = request, request.url
        if call.size >= LARGE and not self._needs_payload:
            call.message, call.has_payload = replace(call.message, payload=b""), False
        return None

    def _values(self, call: Call) -> tuple[MessageValues, str | None]:
        """Return the values that the request of a call or batch is filled with, and its Idempotency-Key."""
        if self._items is None:
            return self._enter(call), call.key
        if call.item is None and not isinstance(call, Batch):  # it joined no batch, so it is a batch of one
            call.item = self._items.make(self._enter(call))
        call.attempts.together = len(call.calls)
        return self._items.values_of_batch(call.calls)

    def make_item(self, call: Call) -> Verdict | None:
        """Make `call.item`, for an event with BATCH_SIZE. Returns None, or a verdict if the call joins no batch."""
        if self._items is None:
            return None
        try:
            call.item = self._items.make(self._enter(call))
        except (SkippedError, CallError) as error:
            return self._without_request(call, error)
        return None

    def judge(self, call: Call, reply: HttpResponse | CallError) -> Verdict:
        """Return the verdict on an attempt, from the response to its request or the error that prevented one."""
        request = call.request
        call.discard_request()
        if isinstance(reply, CallError):
            return self._judge_failure(call, reply, request, None)
        if request is None:
            unexpected = catalogue.FAULT_OF_THE_BRIDGE.error(_UNEXPECTED)
            return self._judge_failure(call, unexpected, None, None)
        try:
            failure = failure_of(request, reply) if reply.status >= 300 else None
            if failure is None:
                publication = result_of(self.event, call.message, call.destination, reply)
                done = Verdict(Outcome.SUCCEEDED, reply.status, None, publication, 0.0, None, request, reply)
                return self._note_end(call, done)
        except CallError as error:
            failure = error
        return self._judge_failure(call, failure, request, reply)

    def _judge_failure(
        self, call: Call, failure: CallError, request: HttpRequest | None, response: HttpResponse | None
    ) -> Verdict:
        """Return the verdict on an attempt that failed: a stage may retry it, otherwise the call fails."""
        # The frames of the traceback hold the payload and the failure, a cycle that only garbage collection would free.
        failure.with_traceback(None).__cause__ = failure.__context__ = None
        masker = masker_for(self.masker, request, response)
        failure = error_without_secrets(masker, failure)
        if response is not None and failure.code is FailureCode.HTTP_STATUS:
            failure = failure_explained(masker, failure, response)
        if (url := call.attempts.url) is not None:
            call.attempts.url = masker.address(url)  # secrets of the message too; records mask only the route's
        status = None if response is None else response.status
        verdict: Verdict = Verdict(Outcome.FAILED, status, failure, request=request, response=response)
        for retry in self._retry_hooks:
            verdict = retry(call, verdict)
            if verdict.outcome is Outcome.RETRYING:
                return verdict
        return self._note_end(call, self._with_publication(call, verdict, masker))

    def fail(self, call: Call, failure: CallError) -> Verdict:
        """Return the verdict that ends a call with a failure; no stage can change it."""
        self.forget(call)
        return self._with_publication(call, Verdict(Outcome.FAILED, None, failure), self.masker)

    def fail_unexpectedly(self, call: Call) -> Verdict:
        """Return the verdict that ends a call which met a fault of the bridge itself."""
        return self.fail(call, catalogue.FAULT_OF_THE_BRIDGE.error(_UNEXPECTED))

    def forget(self, call: Call) -> None:
        """Make the stages forget a call that ends without a verdict of theirs or continues with another definition."""
        for note_end in self._end_hooks:
            note_end(call, None)

    def verdicts(self, call: Call, verdict: Verdict) -> list[tuple[Call, Verdict]]:
        """Return the calls that end with a verdict, each with its own verdict.

        The result of a batch is published once, by the verdict of its first call; a failure by each call for itself.
        """
        if not isinstance(call, Batch):
            return [(call, verdict)]
        masker = masker_for(self.masker, verdict.request, verdict.response)
        own = replace(verdict, publication=None)
        first = verdict if verdict.failure is None else self._with_publication(call.calls[0], own, masker)
        return [
            (call.calls[0], first), *((one, self._with_publication(one, own, masker)) for one in call.calls[1:])
        ]  # fmt: skip

    def run_id(self, call: Call) -> str:
        """Return the id of a call as text."""
        return self._runs.of(call.run_key, *self.name)

    def _enter(self, call: Call) -> MessageValues:
        values = message_values(call.message)
        for enter in self._enter_hooks:
            enter(call, values)
        return values

    def _without_request(self, call: Call, why: SkippedError | CallError) -> Verdict:
        """Return the verdict on a call whose request was not built."""
        if isinstance(why, CallError):
            return self.judge(call, why)
        return self._note_end(call, Verdict(Outcome.SKIPPED, skipped=(why.code, why.message)))

    def _note_end(self, call: Call, verdict: Verdict) -> Verdict:
        """Call the `after_end` hooks with the verdict that ends a call; return the verdict."""
        for note_end in self._end_hooks:
            note_end(call, verdict)
        return verdict

    def _with_publication(self, call: Call, verdict: Verdict, masker: Masker) -> Verdict:
        """Return the verdict on a failed call with its failure payload added, without secrets.

        Other verdicts, and that of a batch, are returned as they are; see `verdicts` for the calls of a batch.
        """
        if verdict.failure is None or isinstance(call, Batch):
            return verdict
        response = None if verdict.response is None else response_without_secrets(masker, verdict.response)
        publication = failure_publication(
            self.run_id(call), self.name, self.event, call.message, verdict.failure, response,
            has_payload=call.has_payload,
        )  # fmt: skip
        return replace(verdict, publication=publication)


def _hooks(stages: Iterable[Stage], name: str) -> tuple[Callable[..., Any], ...]:
    """Return the hooks of this name, of those stages that override it."""
    default = getattr(Stage, name)
    return tuple([getattr(stage, name) for stage in stages if getattr(type(stage), name) is not default])


class PreparedRoute(Struct, frozen=True, eq=False):
    """A route as it is in use: its client events by name, and the client for their requests, None without events."""

    route: Route
    events: Mapping[str, PreparedEvent]
    client: Sends | None

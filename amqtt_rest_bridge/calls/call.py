"""A call of an event: from its message to a request, from the reply to a verdict.

Pure: time and chance come in with the stages (`Means`), what the driver has to do goes out as a `Verdict`. A driver
calls `begin`, sends the request that it returns, and hands what came of it to `judge`, until the verdict is not
`AGAIN`. One thread at a time has a call; an event is immutable, so that any number of them share it.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import StrEnum
from operator import attrgetter
from typing import Any, Final

from msgspec import Struct, field

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.calls.requests import RequestBuilder
from amqtt_rest_bridge.engine.requests import BuiltRequest
from amqtt_rest_bridge.engine.stages.batch import Items, batch_key
from amqtt_rest_bridge.engine.trace_context import TRACE_NAMES, trace_of
from amqtt_rest_bridge.errors import BridgeError, CallError
from amqtt_rest_bridge.failures import body_members, failure_payload, failure_topic, result_values
from amqtt_rest_bridge.http_client import Exchange, Stopwatch, describe_status, redirect_refused
from amqtt_rest_bridge.masking import Masker, credentials_of, masker_of
from amqtt_rest_bridge.model import (
    ClientEvent,
    HttpRequest,
    HttpResponse,
    Message,
    MessageProperties,
    Publication,
    ResponseFormat,
    Route,
    RunIds,
    RunKey,
    Try,
)
from amqtt_rest_bridge.placeholders import BatchValues, MessageValues

_UNEXPECTED: Final = "the call ended with an unexpected error of the bridge itself"
_TRACE_NAMES: Final = frozenset(TRACE_NAMES)
_BODY: Final = attrgetter("body")
_to_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Step(StrEnum):
    """What follows a try of a call."""

    DONE = "done"
    SKIPPED = "skipped"
    AGAIN = "again"
    FAILED = "failed"
    SPLIT = "split"
    """The server refused a batch: its halves are sent instead."""


class Verdict(Struct, frozen=True):
    """What follows a try: the end of its call, or with `AGAIN` another try in so many `seconds`.

    `status` is the HTTP status, None without a response. `failure` is None unless the try failed; like `publication`
    it holds no secrets of the route. `request` and `response` are those of a call that has ended, for records alone,
    which mask them.
    """

    step: Step
    status: int | None = None
    failure: CallError | None = None
    publication: Publication | None = None
    seconds: float = 0.0
    request: HttpRequest | None = None
    response: HttpResponse | None = None


_SKIPPED: Final = Verdict(Step.SKIPPED)


class CallState(StrEnum):
    """Where a call is that has arrived; see `open_calls.OpenCalls`."""

    READY = "ready"
    """A worker runs it, or will."""
    BEHIND = "behind"
    """Behind an earlier call of its line."""
    WAITING = "waiting"
    """Until its turn or its next try."""
    DUE = "due"
    """It would go on, once its payload has come again."""
    ENDED = "ended"


class SkippedError(BridgeError):
    """A call sends no request and does not fail: its WHEN is false, or its ON_CHANGE is the last text of its topic."""


def _stay(_: "OpenCall") -> None:
    """Do nothing: default of a driver without threads, which looks at `OpenCall.state`."""


class OpenCall(Struct, eq=False):
    """A call that has not ended.

    `start` is what a driver does once the call may go on. `line` is set for an ORDERED event: calls of one line run one
    after the other. From `begin` to `judge` there is `built`; `exchange` is there while it has stopped between two
    requests. Without `has_payload` only the broker process has the payload; while a call waits, `kept` are the bytes of
    its own that count as kept.

    Of an event with BATCH_SIZE it has an `item`, and once its batch is closed the first call of it carries the others,
    its `riders`: they have no state of their own, and end with it. `together` is how many were in the last request.
    """

    id: int
    event: "PreparedEvent"
    message: Message
    idempotency_key: str | None = None
    start: Callable[["OpenCall"], None] = _stay
    state: CallState = CallState.READY
    tries: int = 0
    attempts: deque[Try] | None = None  # those that failed and are recorded
    took: float = 0.0  # seconds, for the requests of all tries
    line: tuple[str, str, str] | None = None  # route, event, topic
    url: str | None = None  # of the last try
    built: BuiltRequest | None = None
    exchange: Exchange | None = None
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    has_payload: bool = True
    kept: int = 0
    item: bytes | None = None
    riders: list["OpenCall"] | None = None
    together: int = 0
    text: bytes | None = None  # digest of what ON_CHANGE compares
    key: bytes | None = None  # of DEDUPE_KEY
    was_seen: bool | None = None  # None before the broker process has said so; False: the call has a claim on its key

    @property
    def run(self) -> RunKey:
        """Return what the run id of the call is made of."""
        return self.id if self.idempotency_key is None else self.idempotency_key

    @property
    def lacks_payload(self) -> bool:
        """Return whether the call needs its payload to go on, and only the broker process has it."""
        return self.exchange is None and not self.has_payload

    def cancel_try(self) -> None:
        """End a try that has begun, and whose request is not sent: it does not count."""
        self.tries, self.built = self.tries - 1, None

    def let_go(self) -> None:
        """Leave the payload to the broker process, which has it until the call has ended."""
        message, self.has_payload = self.message, False
        self.message = Message(message.topic, b"", message.timestamp, message.properties)

    def waited(self, now: float) -> float:
        """Return the seconds since the broker received the message in which no request of the call was under way.

        By the clock of the messages, which is that of two processes and of restarts; where it is set back, 0.
        """
        return max(0.0, now - self.message.timestamp - self.took)


class Stage:
    """What one setting does to the calls of an event; an event without the setting has no stage of it.

    Each method is a no-op default, and only those that a stage has of its own are called.
    """

    def enter(self, call: OpenCall) -> None:
        """Note what decides when a call that has just arrived may start."""

    def admit(self, call: OpenCall, values: MessageValues) -> None:
        """Refuse a call before its request is built: raises `SkippedError` or `CallError`."""

    def before(self, call: OpenCall, request: HttpRequest) -> HttpRequest:  # noqa: ARG002  # of the default
        """Return a request as it is to be sent."""
        return request

    def after(self, call: OpenCall, failure: CallError, response: HttpResponse | None) -> Verdict | None:
        """Judge a try that failed; None leaves that to the next stage, and fails the call after the last one."""

    def ended(self, call: OpenCall, verdict: Verdict) -> None:
        """Note the verdict on a try, which ends the call unless it is `AGAIN`."""


class PreparedEvent:
    """A client event of a route, with everything that no message changes computed once.

    Immutable, so that any number of threads may use it at once. `of` is its route and event, `label` names them in the
    log, `masker` masks the secrets of the route. `runs` makes the ids of calls. `enters` is run for a call that
    arrives. With `forgets_payload` the result and a failure need no more of the message than its topic and time.

    Raises:
        ConfigurationError: BASE_ADDRESS or USERNAME cannot be used.
    """

    def __init__(
        self, route: Route, event: ClientEvent, stages: Iterable[Stage], runs: RunIds, *, max_body_bytes: int
    ) -> None:
        self.event = event
        self.of = route, event
        self.label = f"route {route.name}, event {event.name}"
        self.masker = masker_of(route)
        self.stages = tuple(stages)
        self._runs = runs
        named = [name for text in (event.destination_topic, event.payload) if text is not None for name in text.names]
        self.forgets_payload = not event.failure_payload and not any(
            name.startswith(("payload", "value")) for name in named
        )
        self._items = None if event.batch_size is None or event.body is None else Items(event.batch_item, event.body)
        self._requests = RequestBuilder(route, event, max_body_bytes=max_body_bytes)
        self._result = result_of(event)
        self.enters, self._admits, self._befores = self._own("enter"), self._own("admit"), self._own("before")
        self._afters, self._endings = self._own("after"), self._own("ended")

    def begin(self, call: OpenCall) -> BuiltRequest | Verdict:
        """Begin a try: return its request, or a verdict where it sends nothing."""
        call.tries += 1
        try:
            if self._items is None:
                values, key = self._admit(call), call.idempotency_key
            else:
                values, key = self._values_of_batch(call, self._items)
            built = self._requests.build(values, key)
            for before in self._befores:
                built = BuiltRequest(before(call, built.request), built.destination)
        except SkippedError:
            return self._noted(call, _SKIPPED)
        except CallError as error:
            return self.judge(call, error)
        call.built, call.url = built, built.request.url
        return built

    def join(self, call: OpenCall) -> Verdict | None:
        """Make the item of a call of an event with BATCH_SIZE; return the verdict on one that joins no batch."""
        try:
            if self._items is not None:
                call.item = self._items.make(self._admit(call))
        except SkippedError:
            return self._noted(call, _SKIPPED)
        except CallError as error:
            return self.judge(call, error)
        return None

    def share(self, rider: OpenCall, call: OpenCall, verdict: Verdict) -> Verdict:
        """Return the verdict on one call of a batch, from that which ended the call that carried it."""
        rider.tries, rider.attempts, rider.took, rider.url = call.tries, call.attempts, call.took, call.url
        rider.together = call.together
        if verdict.failure is not None:
            return self.fail(rider, verdict.failure, verdict.response, verdict.request)
        shared = Verdict(verdict.step, verdict.status, None, None, 0.0, verdict.request, verdict.response)
        return self._noted(rider, shared)

    def check(self, call: OpenCall) -> Verdict | None:
        """Return the verdict on a call that would send nothing; None, and no try has begun, for any other one.

        The calls of a batch have passed already: see `join`.
        """
        if call.riders is not None:
            return None
        begun = self.begin(call)
        if isinstance(begun, Verdict):
            return begun
        call.cancel_try()
        return None

    def judge(self, call: OpenCall, reply: HttpResponse | CallError) -> Verdict:
        """Return what follows a try, for the response to its request or for what prevented one."""
        built, call.built = call.built, None
        response = None
        if isinstance(reply, CallError) or built is None:
            failure = reply if isinstance(reply, CallError) else catalogue.FAULT_OF_THE_BRIDGE.error(_UNEXPECTED)
        else:
            response = reply
            try:
                refused = failure_of(built.request, response)
                if refused is None:
                    publication = self._result(call.message, built.destination, response)
                    verdict = Verdict(Step.DONE, response.status, None, publication, 0.0, built.request, response)
                    for ended in self._endings:
                        ended(call, verdict)
                    return verdict
                failure = refused
            except CallError as error:
                failure = error
        # The frames of its traceback hold the payload and what was parsed of it; with those they make a circle.
        failure.with_traceback(None).__cause__ = failure.__context__ = None
        masker = masker_for(self.masker, None if built is None else built.request, response)
        failure = _error_without_secrets(masker, failure)
        if call.url is not None:
            call.url = masker.address(call.url)  # without what the message brought, too: records mask the route's alone
        for after in self._afters:
            again = after(call, failure, response)
            if again is not None:
                return self._noted(call, again)
        shown = None if response is None else _without_secrets(masker, response)
        return self.fail(call, failure, shown, None if built is None else built.request)

    def fail(
        self,
        call: OpenCall,
        failure: CallError,
        response: HttpResponse | None = None,
        request: HttpRequest | None = None,
    ) -> Verdict:
        """Return the verdict that ends a call with a failure, whatever a stage would say.

        Neither failure nor response hold secrets; `request` is what was sent.
        """
        call.built = None
        if call.url is None:  # no request was made, so no try was sent
            call.tries = 0
        route, event = self.of
        publication = failure_publication(self.run_id(call), route.name, event, call.message, failure, response)
        status = None if response is None else response.status
        return self._noted(call, Verdict(Step.FAILED, status, failure, publication, 0.0, request, response))

    def fail_unexpectedly(self, call: OpenCall) -> Verdict:
        """Return the verdict that ends a call which met a fault of the bridge itself."""
        return self.fail(call, catalogue.FAULT_OF_THE_BRIDGE.error(_UNEXPECTED))

    def run_id(self, call: OpenCall) -> str:
        """Return the id of a call as text."""
        route, event = self.of
        return self._runs.of(call.run, route.name, event.name)

    def _noted(self, call: OpenCall, verdict: Verdict) -> Verdict:
        for ended in self._endings:
            ended(call, verdict)
        return verdict

    def _admit(self, call: OpenCall) -> MessageValues:
        message, properties = call.message, call.message.properties
        user = () if properties is None else properties.user
        values = MessageValues(message.payload, message.timestamp, topic=message.topic, user=user)
        for admit in self._admits:
            admit(call, values)
        return values

    def _values_of_batch(self, call: OpenCall, items: Items) -> tuple[MessageValues, str | None]:
        """Return the values of a batch, and its key; a call that has joined none is one of its own."""
        batch = [call, *(call.riders or ())]
        if call.item is None:
            call.item = items.make(self._admit(call))
        made = [one.item or b"" for one in batch]
        call.together = len(batch)
        keys = [one.idempotency_key for one in batch if one.idempotency_key is not None]
        values = BatchValues(b"", call.message.timestamp, topic=call.message.topic, items=made)
        return values, batch_key(keys) if keys else None

    def _own(self, name: str) -> tuple[Callable[..., Any], ...]:
        """Return the methods of this name that stages have of their own."""
        default = getattr(Stage, name)
        return tuple([getattr(stage, name) for stage in self.stages if getattr(type(stage), name) is not default])


# Results: from a response or a failure to the publication.


def failure_of(request: HttpRequest, response: HttpResponse) -> CallError | None:
    """Return why a response is a failure: status 400 and above, or a redirect that was not followed; else None."""
    status = response.status
    if status >= 400:
        other = catalogue.STATUS_OF_THE_SERVER if status >= 500 else catalogue.STATUS_EXPLAINED
        row = catalogue.STATUSES.get(status, other)
        if status == 400 and b"HTTPS" in response.body:
            row = catalogue.STATUS_EXPECTS_TLS
        return row.error(f"the server answered {describe_status(status)}")
    return redirect_refused(request, response) if status >= 300 else None


Result = Callable[[Message, str | None, HttpResponse], Publication | None]
"""Return what a successful response to the request of a message publishes on a topic."""


def result_of(event: ClientEvent) -> Result:
    """Return what makes an event's results; it raises `CallError` where the response lacks a value of PAYLOAD."""
    topic, payload = event.destination_topic, event.payload
    body_of: Callable[[HttpResponse], bytes] = _BODY if event.response_format is ResponseFormat.BODY else envelope

    def mapped(message: Message, destination: str | None, response: HttpResponse) -> Publication | None:
        if topic is None:
            return None
        values = result_values(message, response)
        name = topic.fill(values) if destination is None else destination
        body = body_of(response) if payload is None else payload.fill_bytes(values)
        return Publication(name, body, event.retain, _properties(message, response), event.qos)

    def plain(message: Message, destination: str | None, response: HttpResponse) -> Publication | None:
        if destination is None:
            return None
        return Publication(destination, body_of(response), event.retain, _properties(message, response), event.qos)

    return mapped if topic is not None and (payload is not None or topic.needs_response) else plain


def _properties(message: Message, response: HttpResponse | None) -> MessageProperties | None:
    """Return the trace context that a result or failure goes on with: the response's, else that of the message."""
    headers = () if response is None else response.headers
    if message.properties is None and _TRACE_NAMES.isdisjoint(map(str.lower, dict(headers))):  # nearly always
        return None
    trace = trace_of(headers) or trace_of(message.user)
    return MessageProperties(trace) if trace else None


def envelope(response: HttpResponse) -> bytes:
    """Serialise a response as one JSON object (RESPONSE_FORMAT "envelope"), as UTF-8."""
    headers: dict[str, str] = {}
    for name, value in response.headers:
        lower = name.lower()
        headers[lower] = f"{headers[lower]}, {value}" if lower in headers else value
    return _to_json(
        {
            "status": response.status,
            "reason": response.reason,
            "headers": headers,
            **body_members(response.body),
            "elapsed_ms": round(response.elapsed * 1000, 1),
        }
    ).encode("utf-8", "replace")


def masker_for(masker: Masker, request: HttpRequest | None, response: HttpResponse | None) -> Masker:
    """Return what masks the secrets of a route and of one of its requests: a server may send any of them back."""
    sent = frozenset() if request is None else credentials_of(request.headers, request.url)
    return masker.including(sent if response is None else sent | response.credentials)


def _without_secrets(masker: Masker, response: HttpResponse) -> HttpResponse:
    """Return the response of a failed call as it may be published.

    Decision: the payload of the message, which FAILURE_PAYLOAD adds, stays: what is published again must be the same.
    """
    body, head = masker.body(response.body), "\n".join([response.reason, *(value for _, value in response.headers)])
    if masker.text(head) == head:  # nearly always, and one search instead of many
        return replace(response, body=body)
    headers = tuple((name, masker.text(value)) for name, value in response.headers)
    return replace(response, reason=masker.text(response.reason), headers=headers, body=body)


def _error_without_secrets(masker: Masker, failure: CallError) -> CallError:
    """Return a failure as it may be logged, shown and published: its message may quote a URL, or what a server sent."""
    message = masker.address(failure.message)
    if message == failure.message:
        return failure
    return CallError(failure.code, message, failure.hint, unsent=failure.unsent)


def failure_publication(
    run: str, route: str, event: ClientEvent, message: Message, error: CallError, response: HttpResponse | None = None
) -> Publication | None:
    """Return what a failed call publishes, or None when the event has no topic for it: then only the log has it.

    `run` is the id of the call.

    Decision: a failure is not retained, even with RETAIN: the last good value stays.
    """
    topic = failure_topic(event, message, response)
    if topic is None:
        return None
    kept = message.payload if event.failure_payload else None
    payload = failure_payload(run, route, event.name, message.topic, message.timestamp, error, response, kept)
    return Publication(topic, payload, properties=_properties(message, response), qos=event.qos)

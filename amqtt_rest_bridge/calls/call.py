"""A call of an event: from its message to a request, from the reply to a verdict.

Pure: time and chance come in with the stages (`Means`), what the driver has to do goes out as a `Verdict`. A driver
calls `begin`, sends the request that it returns, and hands what came of it to `judge`, until the verdict is not
`AGAIN`. One thread at a time has a call; an event is immutable, so that any number of them share it.
"""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct, field

from amqtt_rest_bridge.calls import results
from amqtt_rest_bridge.calls.requests import BuiltRequest, RequestBuilder
from amqtt_rest_bridge.errors import BridgeError, CallError
from amqtt_rest_bridge.http_client import Exchange, Stopwatch
from amqtt_rest_bridge.masking import masker_of
from amqtt_rest_bridge.model import ClientEvent, HttpRequest, HttpResponse, Message, Publication, Route, Run, RunIds
from amqtt_rest_bridge.placeholders import MessageValues


class Step(StrEnum):
    """What follows a try of a call."""

    DONE = "done"
    SKIPPED = "skipped"
    AGAIN = "again"
    FAILED = "failed"


class Verdict(Struct, frozen=True):
    """What follows a try: the end of its call, or with `AGAIN` another try in so many `seconds`.

    `status` is the HTTP status, None without a response. `failure` is None unless the try failed; like `publication`
    it holds no secrets of the route.
    """

    step: Step
    status: int | None = None
    failure: CallError | None = None
    publication: Publication | None = None
    seconds: float = 0.0


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
    """A call sends no request and does not fail: its WHEN is false."""


def _stay(_: "OpenCall") -> None:
    """Do nothing: default of a driver without threads, which looks at `OpenCall.state`."""


class OpenCall(Struct, eq=False):
    """A call that has not ended.

    `start` is what a driver does once the call may go on. `line` is set for an ORDERED event: calls of one line run one
    after the other. From `begin` to `judge` there is `built`; `exchange` is there while it has stopped between two
    requests. Without `has_payload` only the broker process has the payload; while a call waits, `kept` are the bytes of
    its own that count as kept.
    """

    id: int
    event: "PreparedEvent"
    message: Message
    idempotency_key: str | None = None
    start: Callable[["OpenCall"], None] = _stay
    state: CallState = CallState.READY
    tries: int = 0
    took: float = 0.0  # seconds, for the requests of all tries
    line: tuple[str, str, str] | None = None  # route, event, topic
    url: str | None = None  # of the last try
    built: BuiltRequest | None = None
    exchange: Exchange | None = None
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    has_payload: bool = True
    kept: int = 0

    @property
    def run(self) -> Run:
        """Return what the run id of the call is made of."""
        return self.id if self.idempotency_key is None else self.idempotency_key

    @property
    def lacks_payload(self) -> bool:
        """Return whether the call needs its payload to go on, and only the broker process has it."""
        return self.exchange is None and not self.has_payload

    def let_go(self) -> None:
        """Leave the payload to the broker process, which has it until the call has ended."""
        message, self.has_payload = self.message, False
        self.message = Message(message.topic, b"", message.timestamp)

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
        self.forgets_payload = not event.failure_payload and not any(
            map(results.needs_payload, (event.destination_topic, event.payload))
        )
        self._requests = RequestBuilder(route, event, max_body_bytes=max_body_bytes)
        self._result = results.result_of(event)
        self.enters, self._admits, self._befores = self._own("enter"), self._own("admit"), self._own("before")
        self._afters, self._endings = self._own("after"), self._own("ended")

    def begin(self, call: OpenCall) -> BuiltRequest | Verdict:
        """Begin a try: return its request, or a verdict where it sends nothing."""
        call.tries += 1
        message = call.message
        values = MessageValues(message.topic, message.payload, message.timestamp)
        try:
            for admit in self._admits:
                admit(call, values)
            built = self._requests.build(values, call.idempotency_key)
            for before in self._befores:
                built = BuiltRequest(before(call, built.request), built.destination)
        except SkippedError:
            return self._noted(call, _SKIPPED)
        except CallError as error:
            return self.judge(call, error)
        call.built, call.url = built, built.request.url
        return built

    def check(self, call: OpenCall) -> Verdict | None:
        """Return the verdict on a call that would send nothing; None, and no try has begun, for any other one."""
        begun = self.begin(call)
        if isinstance(begun, Verdict):
            return begun
        call.tries, call.built = call.tries - 1, None
        return None

    def judge(self, call: OpenCall, reply: HttpResponse | CallError) -> Verdict:
        """Return what follows a try, for the response to its request or for what prevented one."""
        built, call.built = call.built, None
        response = None
        if isinstance(reply, CallError) or built is None:
            failure = reply if isinstance(reply, CallError) else results.unexpected()
        else:
            response = reply
            try:
                refused = results.failure_of(built.request, response)
                if refused is None:
                    publication = self._result(call.message, built.destination, response)
                    verdict = Verdict(Step.DONE, response.status, None, publication)
                    return self._noted(call, verdict) if self._endings else verdict
                failure = refused
            except CallError as error:
                failure = error
        # The frames of its traceback hold the payload and what was parsed of it; with those they make a circle.
        failure.with_traceback(None).__cause__ = failure.__context__ = None
        masker = results.masker_for(self.masker, None if built is None else built.request, response)
        failure = results.error_without_secrets(masker, failure)
        for after in self._afters:
            again = after(call, failure, response)
            if again is not None:
                return self._noted(call, again)
        return self.fail(call, failure, None if response is None else results.without_secrets(masker, response))

    def fail(self, call: OpenCall, failure: CallError, response: HttpResponse | None = None) -> Verdict:
        """Return the verdict that ends a call with a failure, whatever a stage would say; both hold no secrets."""
        call.built = None
        route, event = self.of
        publication = results.failure(self.run_id(call), route.name, event, call.message, failure, response)
        status = None if response is None else response.status
        return self._noted(call, Verdict(Step.FAILED, status, failure, publication))

    def run_id(self, call: OpenCall) -> str:
        """Return the id of a call as text."""
        route, event = self.of
        return self._runs.of(call.run, route.name, event.name)

    def _noted(self, call: OpenCall, verdict: Verdict) -> Verdict:
        for ended in self._endings:
            ended(call, verdict)
        return verdict

    def _own(self, name: str) -> tuple[Callable[..., Any], ...]:
        """Return the methods of this name that stages have of their own."""
        default = getattr(Stage, name)
        return tuple([getattr(stage, name) for stage in self.stages if getattr(type(stage), name) is not default])

"""A client event, prepared once: it makes a request of a message, and a verdict of a reply. Pure.

`begin` builds the request of an attempt, `judge` returns what follows from its reply. The callers do the I/O: the
bridge (`call`), the commands `try` and `test` (`trial`), and tests. Time and chance are handed to the stages.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.engine.needs import Sends
from amqtt_rest_bridge.engine.requests import BuiltRequest, RequestBuilder
from amqtt_rest_bridge.engine.results import (
    error_without_secrets,
    failure_explained,
    failure_of,
    failure_publication,
    masker_for,
    response_without_secrets,
    result_of,
)
from amqtt_rest_bridge.engine.stages import Call, SkippedError, Stage, Step, Verdict
from amqtt_rest_bridge.engine.stages.batch import Items, Split, batch_key
from amqtt_rest_bridge.engine.stages.dedupe import Claims, Deduplicated
from amqtt_rest_bridge.engine.stages.on_change import OnChange
from amqtt_rest_bridge.engine.stages.retries import Retries
from amqtt_rest_bridge.engine.stages.schema import Checked
from amqtt_rest_bridge.engine.stages.signature import Signed
from amqtt_rest_bridge.engine.stages.when import When
from amqtt_rest_bridge.errors import CallError, FailureCode
from amqtt_rest_bridge.lot.masking import masker_of
from amqtt_rest_bridge.lot.model import ClientEvent, HttpResponse, Message, Route, RunIds
from amqtt_rest_bridge.lot.placeholders import BatchValues, MessageValues

LARGE: Final = 128 << 10
"""Payloads of at least so many bytes are released once the request is built, unless something still needs them."""
_UNEXPECTED: Final = "the call ended with an unexpected error of the bridge itself"


class PreparedEvent:
    """A client event of a route, with all that can be computed before a message comes.

    Args:
        route: The route.
        event: One of its client events.
        stages: What its settings do to its calls, see `prepare`.
        runs: Makes the ids of calls.
        max_body_bytes: A larger request body fails its call.
        client: Sends its requests; None if the caller sends them.
        keeps_messages: Whether messages of failed calls are kept; then no payload is released early.

    Raises:
        ConfigurationError: BASE_ADDRESS or USERNAME cannot be used.
    """

    def __init__(
        self,
        route: Route,
        event: ClientEvent,
        stages: Iterable[Stage],
        runs: RunIds,
        *,
        max_body_bytes: int,
        client: Sends | None = None,
        keeps_messages: bool = False,
    ) -> None:
        self.route = route
        self.client = client
        self.event = event
        self.name = route.name, event.name
        self.label = f"route {route.name}, event {event.name}"
        self.target = route.config.server
        self.is_lossless = route.is_lossless
        self.is_in_order = event.is_in_order
        self.masker = masker_of(route)
        self.request = f"{event.method} {self.masker.address(self.target)}"
        """METHOD and server, for the log. Never the path, which may hold payloads and secrets."""
        named = [name for text in (event.destination_topic, event.payload) if text is not None for name in text.names]
        self._needs_payload = (
            self.is_lossless
            or keeps_messages
            or event.failure_payload
            or any(name.startswith(("payload", "value")) for name in named)
        )
        self._runs = runs
        self._items = None if event.batch_size is None or event.body is None else Items(event.batch_item, event.body)
        self._builder = RequestBuilder(route, event, max_body_bytes=max_body_bytes)
        self._result = result_of(event)
        self._stages = tuple(stages)
        self._enters, self._befores = self._own("enter"), self._own("before")
        self._afters = self._own("after")[::-1]

    def begin(self, call: Call) -> Verdict | None:
        """Build the request of an attempt, `call.built`. Returns None, or a verdict if nothing is to be sent.

        Raises:
            HeldError: The call has to wait; a stage keeps it.
        """
        if call.built is not None:  # the payload was released: all attempts send this request
            return None
        try:
            if self._items is None:
                values, key = self._enter(call), call.key
            else:
                values, key = self._values_of_batch(call, self._items)
            built = self._builder.build(values, key)
            for before in self._befores:
                built = BuiltRequest(before(call, built.request), built.destination)
        except SkippedError as skipped:
            return self._after(call, Verdict(Step.SKIPPED, skipped=(skipped.code, skipped.message)))
        except CallError as error:
            return self.judge(call, error)
        call.built, call.url = built, built.request.url
        if call.size >= LARGE and not self._needs_payload:
            message, call.has_payload = call.message, False
            call.message = Message(message.topic, b"", message.timestamp, message.properties)
        return None

    def judge(self, call: Call, reply: HttpResponse | CallError) -> Verdict:
        """Return the verdict on an attempt, from the response to its request or the error that prevented one."""
        built, response = call.built, None
        request = None if built is None else built.request
        call.discard_request()
        if isinstance(reply, CallError) or built is None:
            failure = reply if isinstance(reply, CallError) else catalogue.FAULT_OF_THE_BRIDGE.error(_UNEXPECTED)
        else:
            response = reply
            try:
                refused = failure_of(built.request, response)
                if refused is None:
                    publication = self._result(call.message, built.destination, response)
                    done = Verdict(Step.DONE, response.status, None, publication, 0.0, None, request, response)
                    return self._after(call, done)
                failure = refused
            except CallError as error:
                failure = error
        # The frames of its traceback hold the payload, and the failure in turn: without them both are freed at once.
        failure.with_traceback(None).__cause__ = failure.__context__ = None
        masker = masker_for(self.masker, request, response)
        failure = error_without_secrets(masker, failure)
        if response is not None and failure.code is FailureCode.HTTP_STATUS:
            failure = failure_explained(masker, failure, response)
        if call.url is not None:
            call.url = masker.address(call.url)  # secrets of the message, too: records mask only the route's
        status = None if response is None else response.status
        verdict = self._after(call, Verdict(Step.FAILED, status, failure, None, 0.0, None, request, response))
        return self._failed(call, verdict, None if response is None else response_without_secrets(masker, response))

    def fail(self, call: Call, failure: CallError) -> Verdict:
        """Return the verdict that ends a call with a failure; no stage can change it."""
        self.give_up(call)
        return self._failed(call, Verdict(Step.FAILED, None, failure), None)

    def fail_unexpectedly(self, call: Call) -> Verdict:
        """Return the verdict that ends a call which met a fault of the bridge itself."""
        return self.fail(call, catalogue.FAULT_OF_THE_BRIDGE.error(_UNEXPECTED))

    def give_up(self, call: Call) -> None:
        """Make the stages forget a call that ends without them or goes on by another definition."""
        for stage in self._stages:
            stage.give_up(call)

    def join(self, call: Call) -> Verdict | None:
        """Set `call.item`, for an event with BATCH_SIZE. Returns None, or a verdict if the call joins no batch."""
        try:
            if self._items is not None:
                call.item = self._items.make(self._enter(call))
        except SkippedError as skipped:
            return self._after(call, Verdict(Step.SKIPPED, skipped=(skipped.code, skipped.message)))
        except CallError as error:
            return self.judge(call, error)
        return None

    def share(self, call: Call, verdict: Verdict) -> list[tuple[Call, Verdict]]:
        """Return the other calls of a batch, each with a verdict of its own, made from the verdict on the batch."""
        if not call.riders:
            return []
        shown = None
        if verdict.step is Step.FAILED and verdict.response is not None:
            masker = masker_for(self.masker, verdict.request, verdict.response)
            shown = response_without_secrets(masker, verdict.response)
        own = Verdict(verdict.step, verdict.status, verdict.failure, request=verdict.request, response=verdict.response)
        for rider in call.riders:
            rider.follow(call)
        return [(rider, self._failed(rider, own, shown)) for rider in call.riders]

    def run_id(self, call: Call) -> str:
        """Return the id of a call as text."""
        return self._runs.of(call.run, *self.name)

    def _failed(self, call: Call, verdict: Verdict, response: HttpResponse | None) -> Verdict:
        """Return a verdict; a failure gets its publication. `response` must hold no secrets."""
        if verdict.step is not Step.FAILED or verdict.failure is None:
            return verdict
        publication = failure_publication(
            self.run_id(call), self.name, self.event, call.message, verdict.failure, response,
            has_payload=call.has_payload,
        )  # fmt: skip
        return Verdict(
            Step.FAILED,
            verdict.status,
            verdict.failure,
            publication,
            request=verdict.request,
            response=verdict.response,
        )

    def _after(self, call: Call, verdict: Verdict) -> Verdict:
        for after in self._afters:
            verdict = after(call, verdict)
        return verdict

    def _enter(self, call: Call) -> MessageValues:
        message, properties = call.message, call.message.properties
        user = () if properties is None else properties.user
        values = MessageValues(message.payload, message.timestamp, topic=message.topic, user=user)
        for enter in self._enters:
            enter(call, values)
        return values

    def _values_of_batch(self, call: Call, items: Items) -> tuple[MessageValues, str | None]:
        """Return the values of a batch and its Idempotency-Key. A call that joined none is a batch of one."""
        batch = call.batch
        if call.item is None:
            call.item = items.make(self._enter(call))
        call.together = len(batch)
        keys = [one.key for one in batch if one.key is not None]
        made = [one.item or b"" for one in batch]
        values = BatchValues(b"", call.message.timestamp, topic=call.message.topic, items=made)
        return values, batch_key(keys) if keys else None

    def _own(self, name: str) -> tuple[Callable[..., Any], ...]:
        """Return the hooks of this name, of those stages that override it."""
        default = getattr(Stage, name)
        return tuple([getattr(stage, name) for stage in self._stages if getattr(type(stage), name) is not default])


class PreparedRoute(Struct, frozen=True, eq=False):
    """A route as it is in use: its client events by name, and the client for their requests, None without events."""

    route: Route
    events: Mapping[str, PreparedEvent]
    client: Sends | None


def prepare(
    route: Route,
    event: ClientEvent,
    runs: RunIds,
    *,
    max_body_bytes: int,
    client: Sends | None = None,
    keeps_messages: bool = False,
    time: Callable[[], float] = lambda: 0.0,
    monotonic: Callable[[], float] = lambda: 0.0,
    chance: Callable[[], float] | None = None,
    claims: Claims | None = None,
) -> PreparedEvent:
    """Return a prepared event, with a stage for each setting that needs one.

    Args:
        route: The route.
        event: One of its client events.
        runs: Makes the ids of calls.
        max_body_bytes: See `PreparedEvent`.
        client: See there.
        keeps_messages: See there.
        time: Returns Unix seconds.
        monotonic: Returns monotonic seconds.
        chance: Returns a number from 0 to 1; without it a call has one attempt.
        claims: The claims on keys of DEDUPE_KEY; without them DEDUPE_KEY has no effect.

    Raises:
        ConfigurationError: BASE_ADDRESS or USERNAME of the route cannot be used.
    """
    name = route.name, event.name
    tries_again = chance is not None and (route.is_lossless or route.config.retries > 0)
    stages: tuple[Stage | None, ...] = (
        Checked(event.schema_file) if event.schema_file is not None else None,
        When(event.when) if event.when is not None else None,
        Deduplicated(name, event.dedupe_key, event.dedupe_for, claims)
        if event.dedupe_key is not None and claims is not None
        else None,
        OnChange(event.on_change, event.on_change_for, monotonic) if event.on_change is not None else None,
        Signed(event.signature) if event.signature is not None else None,
        Retries(route, event, time, chance) if tries_again and chance is not None else None,
        Split(refused=event.batch_split) if event.batch_size is not None else None,
    )
    own = [stage for stage in stages if stage is not None]
    return PreparedEvent(
        route, event, own, runs, max_body_bytes=max_body_bytes, client=client, keeps_messages=keeps_messages
    )

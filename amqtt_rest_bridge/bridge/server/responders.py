"""What each kind of server event does with a request: publish it, publish it and wait for a reply, or read a topic.

Called by the application once path, method and caller of the request are settled, on the port's thread. An answer that
has to wait is a generator, so that it reads top-down: it yields the seconds that it waits at most. Requests that share
a reply topic without `{request_id}` take turns, over the threads of all ports, in order of arrival.
"""

import json
import secrets
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final

from msgspec import msgpack, structs

from amqtt_rest_bridge.bridge.server.broker_access import BrokerAccess, Once, ShuttingDownError, TopicPayload
from amqtt_rest_bridge.bridge.server.reads import ReadBody, Reading, payload_answer
from amqtt_rest_bridge.bridge.server.request import (
    EventRequest,
    IgnoredError,
    broker_unavailable,
    cannot_fill,
    error,
    overloaded,
    too_large,
)
from amqtt_rest_bridge.calls.stages import dedupe_key
from amqtt_rest_bridge.catalogue import CALLER_LEFT, INVALID_BODY, REPLY_TIMEOUT, STOPPED_BEFORE_REPLY
from amqtt_rest_bridge.engine.server.callers import verifier_of
from amqtt_rest_bridge.engine.trace_context import trace_in
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.http import exchange as http
from amqtt_rest_bridge.http.exchange import RefusedError
from amqtt_rest_bridge.http_server import Response
from amqtt_rest_bridge.model import NO_CONTENT, MessageProperties, Publication, Route, ServerEvent
from amqtt_rest_bridge.placeholders import PlaceholderText, Predicate, Values, predicate
from amqtt_rest_bridge.schemas import Checker, checker_of
from amqtt_rest_bridge.settings import BridgeSettings

HOLD_SECONDS: Final = 1.0  # how long a request may be held for room on its way to the broker
CONFIRM_SECONDS: Final = 10.0  # ... and for the broker's acknowledgement
_JSON: Final = (("Content-Type", "application/json"),)
_PHRASES: Final = {int(status): status.phrase for status in HTTPStatus}  # of those that are registered
_NO_SNIFFING: Final = ("X-Content-Type-Options", "nosniff")

Steps = Generator[float, None, Response]
Respond = Callable[[EventRequest], Response | Steps]


class Turn:
    """One request's place in the queue of its reply topic; `is_on` once all before it have left."""

    __slots__ = ("_queue", "wake")

    def __init__(self, queue: "deque[Turn]", wake: Callable[[], None]) -> None:
        self._queue = queue
        self.wake = wake

    @property
    def is_on(self) -> bool:
        """Return whether it is this request's turn."""
        return self._queue[0] is self


class ReplyTurns:
    """Queues of waiting requests, one for each reply topic in use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[str, deque[Turn]] = {}

    @contextmanager
    def turn(self, topic: str, wake: Callable[[], None]) -> Iterator[Turn]:
        """Enter a topic's queue; `wake` is called when those before have left, on any thread."""
        with self._lock:
            queue = self._queues.setdefault(topic, deque())
            turn = Turn(queue, wake)
            queue.append(turn)
        try:
            yield turn
        finally:
            with self._lock:
                was_on = turn.is_on
                queue.remove(turn)
                if not queue:
                    del self._queues[topic]
                elif was_on:
                    queue[0].wake()


def responder_for(
    route: Route, event: ServerEvent, broker: BrokerAccess, turns: ReplyTurns, settings: BridgeSettings
) -> Respond:
    """Return what answers an event's requests; it raises `RefusedError`."""
    read_body = _body_reader(event, settings.max_body_bytes)
    if event.destination_topic is None:
        return Reading(route, event, broker, read_body, settings.max_response_bytes).respond
    publishing = _Publishing(event, event.destination_topic, broker, read_body, settings.max_body_bytes)
    respond: Respond = publishing.respond
    if event.reply_topic is not None:
        respond = _Replying(publishing, event.reply_topic, route.config.request_timeout, turns).respond
    if event.dedupe_key is not None:
        respond = _Deduplicating(route, event, event.dedupe_key, publishing, respond).respond
    if event.when is not None:
        respond = _on_condition(respond, predicate(event.when), read_body)
    return respond if event.schema_file is None else _if_valid(respond, checker_of(event.schema_file), read_body)


def _if_valid(respond: Respond, check: Checker, read_body: ReadBody) -> Respond:
    """Decision: a request without a body is checked as the object of its parameters, which it publishes."""

    def respond_or_refuse(request: EventRequest) -> Response | Steps:
        if faults := check(read_body(request) or request.parameters_object()):
            raise error(INVALID_BODY, f"The body does not match the schema: {'; '.join(faults)}")
        return respond(request)

    return respond_or_refuse


def _on_condition(respond: Respond, is_wanted: Predicate, read_body: ReadBody) -> Respond:
    def respond_or_ignore(request: EventRequest) -> Response | Steps:
        if not is_wanted(request.values(read_body(request))):
            raise IgnoredError
        return respond(request)

    return respond_or_ignore


def _body_reader(event: ServerEvent, limit: int) -> ReadBody:
    if event.signature is None:
        return lambda request: request.body(limit)
    verify = verifier_of(event.signature)

    def read_signed(request: EventRequest) -> bytes:
        body = request.body(limit)
        verify(request.headers, body, request.timestamp)
        return body

    return read_signed


class _Publishing:
    """Publishes the request and answers that it was done, or with RESPONSE."""

    def __init__(
        self,
        event: ServerEvent,
        topic: PlaceholderText,
        broker: BrokerAccess,
        read_body: ReadBody,
        max_body_bytes: int,
    ) -> None:
        self.broker = broker
        self.read_body = read_body
        self._event = event
        self._topic = topic
        self._max_body_bytes = max_body_bytes
        payload = event.payload
        self._plain = topic.is_constant and payload is None and event.response is None
        self._status = f"{event.response_status} {_PHRASES.get(event.response_status, 'Success')}"
        self.answer = self._published(topic.source) if topic.is_constant and event.response is None else None
        """The answer to every request, None where it has values of the request."""

    def respond(self, request: EventRequest) -> Response | Steps:
        publication, answer = self.prepared(request)
        if request.method != "HEAD":
            try:
                has_room = self.broker.publish(publication)
            except ShuttingDownError:
                raise RefusedError(http.shutting_down()) from None
            if not has_room:
                return self._respond_late(request, publication, answer)
        return answer

    def prepared(self, request: EventRequest) -> tuple[Publication, Response]:
        """Return what a request publishes, and its answer once that is done."""
        publication, values = self.publication(request)
        event = self._event
        if event.response is None or values is None:
            return publication, self.answer or self._published(publication.topic)
        try:
            body = event.response.fill_bytes(values)
        except CallError as failure:
            raise cannot_fill(failure) from failure
        headers = ("Content-Type", event.response_content_type), _NO_SNIFFING
        return publication, Response(self._status, headers, body)

    def _respond_late(self, request: EventRequest, publication: Publication, answer: Response) -> Steps:
        yield from self.send(request, publication)
        return answer

    def _published(self, topic: str) -> Response:
        if self._event.response_status in NO_CONTENT:
            return Response(self._status)
        body = json.dumps({"status": "published", "topic": topic}, ensure_ascii=False)
        return Response(self._status, _JSON, body.encode())

    def publication(self, request: EventRequest) -> tuple[Publication, Values | None]:
        """Return what the request publishes, and the values it was made with where any were needed."""
        event = self._event
        body = self.read_body(request)
        trace = trace_in(request.headers) if self.broker.is_mqtt_5 else ()
        properties = MessageProperties(trace) if trace else None
        if self._plain:
            payload = body or request.parameters_object()
            request.publication = Publication(self._topic.source, payload, event.retain, properties, event.qos)
            return request.publication, None
        values = request.values(body)
        try:
            topic = self._topic.fill(values)
            payload = event.payload.fill_bytes(values) if event.payload else body or request.parameters_object()
        except CallError as failure:
            raise cannot_fill(failure) from failure
        if len(payload) > self._max_body_bytes:
            raise too_large(self._max_body_bytes)
        request.publication = Publication(topic, payload, event.retain, properties, event.qos)
        return request.publication, values

    def send(
        self, request: EventRequest, publication: Publication, once: Once | None = None
    ) -> Generator[float, None, None]:
        """Publish, waiting up to `HOLD_SECONDS` for room; raises `RefusedError` when nothing was published.

        Where the broker acknowledges what it has, that is waited for too, up to `CONFIRM_SECONDS`. `once` is the claim
        that ends with the publication, or, where nothing was published, ends here.
        """
        try:
            queued = self.broker.enqueue(publication, request.wake, once)
        except ShuttingDownError:
            raise RefusedError(http.shutting_down()) from None
        try:
            yield from request.until(lambda: queued.sent, HOLD_SECONDS)
        finally:
            was_withdrawn = self.broker.withdraw(queued)  # also when the waiting is cancelled
            if was_withdrawn and once is not None:
                self.broker.claims.settle(once[0], 0.0, None)
        if was_withdrawn:
            raise overloaded()
        yield from request.until(lambda: queued.outcome is not None, CONFIRM_SECONDS)
        if not queued.outcome:
            raise broker_unavailable()


class _Replying:
    """Publishes the request, waits for the first message on its reply topic and answers with that.

    With MQTT 5 the request has a Response Topic and Correlation Data, and a reply with other Correlation Data is not
    its own. One without any is, where the topic is.
    """

    def __init__(self, publishing: _Publishing, topic: PlaceholderText, seconds: float, turns: ReplyTurns) -> None:
        self._publishing = publishing
        self._topic = topic
        self._seconds = seconds
        self._turns = turns
        self._topic_is_own = "request_id" in topic.names

    def respond(self, request: EventRequest) -> Response | Steps:
        publication, values = self._publishing.publication(request)
        try:
            topic = self._topic.fill(values or request.values(b""))
        except CallError as failure:
            raise cannot_fill(failure) from failure
        if request.method == "HEAD":
            return Response("200 OK", _JSON)
        if not self._publishing.broker.is_mqtt_5:
            return self._exchange(request, publication, topic)
        # Not the request id, which the caller and the subscribers of other topics may see.
        trace, correlation = publication.properties or MessageProperties(), secrets.token_bytes(16)
        publication = structs.replace(publication, properties=MessageProperties(trace.user, correlation, topic))
        return self._ask(request, publication, topic, correlation)

    def _exchange(self, request: EventRequest, publication: Publication, topic: str) -> Steps:
        if self._topic_is_own:
            return (yield from self._ask(request, publication, topic))
        with self._turns.turn(topic, request.wake) as turn:
            if not (yield from request.until(lambda: turn.is_on or request.caller_left, self._seconds)):
                raise overloaded()
            # Decision: such a caller loses its turn, for all others would wait until its request is answered. Once it
            # is published the turn is kept, whether the caller has left or not: the reply would be taken for the next.
            if request.caller_left:
                left = "The caller closed its side of the connection"
                message = f"{left} before its turn on the reply topic; nothing was published"
                raise error(CALLER_LEFT, message)
            return (yield from self._ask(request, publication, topic))

    def _ask(
        self, request: EventRequest, publication: Publication, topic: str, correlation: bytes | None = None
    ) -> Steps:
        takes_unmarked = self._topic_is_own or correlation is None
        with self._publishing.broker.expect(topic, request.wake, correlation, takes_unmarked=takes_unmarked) as reply:
            yield from self._publishing.send(request, publication)
            yield from request.until(lambda: reply.payload is not None or reply.dismissed, self._seconds)
        if reply.payload is not None:
            return payload_answer(TopicPayload(reply.payload), reply.trace)
        if reply.dismissed:
            message = f"The request was published, but the bridge shut down before a reply came on {topic}"
            raise error(STOPPED_BEFORE_REPLY, message)
        message = f"The request was published, but no reply came on {topic} within {self._seconds:g} seconds"
        raise error(REPLY_TIMEOUT, message)


class _Deduplicating:
    """DEDUPE_KEY: a request whose key was seen publishes nothing, and is answered as the first one was.

    One that comes while the first is under way waits for its answer; where the first one fails, it takes its place.
    """

    def __init__(
        self, route: Route, event: ServerEvent, text: PlaceholderText, publishing: "_Publishing", respond: Respond
    ) -> None:
        self._names = route.name, event.name
        self._text = text
        self._seconds = event.dedupe_for
        self._patience = route.config.request_timeout + HOLD_SECONDS + CONFIRM_SECONDS
        self._publishing = publishing
        self._respond = respond
        self._has_reply = event.reply_topic is not None

    def respond(self, request: EventRequest) -> Response | Steps:
        values = request.values(self._publishing.read_body(request))
        try:
            key = dedupe_key(*self._names, self._text.fill_bytes(values))
        except CallError as failure:
            raise cannot_fill(failure) from failure
        if key is None:
            return self._respond(request)
        prepared = self._publishing.prepared(request)  # a request that is refused claims nothing
        return prepared[1] if request.method == "HEAD" else self._once(request, key, *prepared)

    def _once(self, request: EventRequest, key: bytes, publication: Publication, answer: Response) -> Steps:
        claims = self._publishing.broker.claims
        claim = claims.claim(key, request.wake)
        has_come = False
        try:
            has_come = yield from request.until(lambda: claim.is_answered, self._patience)
        finally:
            if not has_come:  # also when the waiting is cancelled
                claim.abandon()
        if not has_come:
            raise overloaded()
        if claim.answer is not None:
            request.publication = None
            return _kept(claim.answer) or self._publishing.answer or answer
        if not self._has_reply:
            same = self._publishing.answer is not None
            once = key, float(self._seconds), b"" if same else _keep(answer)
            yield from self._publishing.send(request, publication, once)
            return answer
        kept = None
        try:
            replied = self._respond(request)
            answer = replied if isinstance(replied, Response) else (yield from replied)
            kept = _keep(answer)
        finally:
            claims.settle(key, float(self._seconds), kept)
        return answer


_MOST_KEPT: Final = 65_536  # bytes of an answer
_DUPLICATE: Final = Response("200 OK", _JSON, b'{"status": "duplicate"}')


def _keep(answer: Response) -> bytes:
    """Return an answer as it is kept. Decision: in the place of one over 64 KiB a short one is kept."""
    short = answer if len(answer.body) <= _MOST_KEPT else _DUPLICATE
    return msgpack.encode((short.status, short.headers, short.body))


def _kept(data: bytes) -> Response | None:
    """Return a kept answer, None for the usual one of its event; one that was damaged in the file is replaced."""
    if not data:
        return None
    try:
        status, headers, body = msgpack.decode(data, type=tuple[str, tuple[tuple[str, str], ...], bytes])
    except ValueError:
        return _DUPLICATE
    return Response(status, headers, body)

"""One server event: what happens to a request, from its admission to its answer; read it from top to bottom.

    answer -> _respond -> published -> _answer_published -> _note_success
                  |---- a read event: its messages ------------^
                  |---- REPLY_TOPIC, DEDUPE_KEY: _answer_in_turn
                  v refused, skipped or failed: note_failure

`server_mode` finds the endpoint of a request, makes an `EventRequest` and calls `ServerEndpoint.answer`. Most requests
publish one message, and are answered once the broker has acknowledged it. A read event answers at once (`reads`). A
request with REPLY_TOPIC or DEDUPE_KEY waits for others. `note_failure` answers a request that is refused or fails.
"""

import asyncio
import json
import logging
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs, unquote_to_bytes

from msgspec import Struct, msgpack
from msgspec.structs import replace

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.catalogue import (
    BROKER_UNAVAILABLE,
    INTERNAL_ERROR,
    INVALID_BODY,
    NO_ROOM,
    REPLY_TIMEOUT,
    SHUTTING_DOWN,
)
from amqtt_rest_bridge.engine.event import SkippedError
from amqtt_rest_bridge.engine.needs import Host, Outcome, RequestRun
from amqtt_rest_bridge.engine.outcome import Outcomes
from amqtt_rest_bridge.engine.requests import TRACE_NAMES, trace_of
from amqtt_rest_bridge.engine.server.cors import cors_for
from amqtt_rest_bridge.engine.server.credentials import WrongCredentialError, WrongCredentials, credentials_for
from amqtt_rest_bridge.engine.server.newest import TopicPayload, payload_answer
from amqtt_rest_bridge.engine.server.reads import ReadEvent, Reads
from amqtt_rest_bridge.engine.server.replies import Replies, Turns
from amqtt_rest_bridge.engine.server.signatures import verifier_of
from amqtt_rest_bridge.engine.stages.dedupe import dedupe_key
from amqtt_rest_bridge.errors import BrokerAwayError, CallError, NoRoomError, PublicationRefusedError
from amqtt_rest_bridge.http.exchange import (
    FAILED,
    RETRY_AFTER,
    Answer,
    Headers,
    Later,
    Refusal,
    Request,
    RequestRefusedError,
    Response,
    overloaded,
    refuse,
    refused,
    too_large,
)
from amqtt_rest_bridge.lot.masking import masker_of
from amqtt_rest_bridge.lot.model import NO_CONTENT, MessageProperties, Publication, Route, ServerEvent
from amqtt_rest_bridge.lot.placeholders.conditions import is_true, why_false
from amqtt_rest_bridge.lot.placeholders.text import PlaceholderText, RequestValues
from amqtt_rest_bridge.lot.schemas import checker_of

log = logging.getLogger(__name__)

NOT_SERVED: Final = frozenset(row.code for row in (BROKER_UNAVAILABLE, INTERNAL_ERROR, NO_ROOM, REPLY_TIMEOUT))
"""Codes of requests that the route could not serve; with any other code the caller is at fault."""

_JSON: Final = (("Content-Type", "application/json"),)
_NO_SNIFFING: Final = ("X-Content-Type-Options", "nosniff")
_PHRASES: Final = {int(status): status.phrase for status in HTTPStatus}  # of those that are registered
_IGNORED: Final = Response("200 OK", _JSON, b'{"status": "ignored"}')
_DUPLICATE: Final = Response("200 OK", _JSON, b'{"status": "duplicate"}')
_MOST_KEPT: Final = 65_536  # bytes of an answer, for requests with the same DEDUPE_KEY; else `_DUPLICATE` is kept
_CONTROL_OR_SPACE: Final = re.compile("[\x00-\x20\x7f]")
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROL: Final = re.compile("[\x00-\x1f\x7f]")
_PUBLISH_SECONDS: Final = 11.0  # for room and acknowledgement, see `Publishes`


@dataclass(frozen=True, slots=True)
class SharedByEndpoints:
    """What all endpoints share, before and after a reload.

    Args:
        host: What the engine needs.
        outcomes: Counts, logs and records.
        is_mqtt_5: Whether responders return Correlation Data. Otherwise requests with one reply topic take turns.
        reads: The messages of read events.
        replies: The requests that wait for replies.
        wrong_credentials: Delays answers to callers that guess credentials.
        turns: Requests that wait for those before them, on a reply topic or with a DEDUPE_KEY.
    """

    host: Host
    outcomes: Outcomes
    is_mqtt_5: bool
    reads: Reads
    replies: Replies
    wrong_credentials: WrongCredentials
    turns: Turns


class ServerEndpoint:
    """One server event, with everything about it that is the same for all requests."""

    def __init__(self, route: Route, event: ServerEvent, shared: SharedByEndpoints) -> None:
        self.checks = CallerChecks(route, event, shared.host.limits.max_body_bytes)
        self._check_schema = None if event.schema_file is None else checker_of(event.schema_file)
        self._route = route
        self._event = event
        self._shared = shared
        self._shown_request = f"{event.method} {masker_of(route).address(event.endpoint)}"
        self._labels = (("route", route.name), ("event", event.name))
        self._status = f"{event.response_status} {_PHRASES.get(event.response_status, 'Success')}"
        self._read_event: ReadEvent | None = None  # answers the requests, if the event publishes nothing
        topic = event.destination_topic
        if topic is None:
            largest = shared.host.limits.max_response_bytes
            self._read_event = ReadEvent(route, event, shared.reads, largest, shared.host.clock)
        self._topic = topic.source if topic is not None and topic.is_constant else topic  # a string if it is constant
        self._constant_answer: Response | None = None  # None if the answer depends on the request
        if isinstance(self._topic, str) and event.response is None:
            self._constant_answer = replace(self._usual_answer(self._topic), labels=self._labels)

    def answer(self, request: "EventRequest") -> Answer:
        """Answer a request; return a `Later` or a coroutine if the answer has to wait."""
        try:
            return self._respond(request)
        except WrongCredentialError as failure:
            request.drop_body()  # no body is held while the answer is delayed
            return self._refuse_late(request, failure.refusal)
        except Exception as failure:  # noqa: BLE001  # it is logged
            return self.note_failure(request, failure)

    def _respond(self, request: "EventRequest") -> Answer:
        """Answer a request, or publish it and answer later; raises if it is refused, skipped or fails."""
        http, event = request.http, self._event
        if (cors := self.checks.cors) is not None:
            request.answer_headers = cors.answer_headers(http.headers.get("origin"))
        self.checks.admit(http, request.timestamp)
        if self._read_event is not None:
            topic = None if event.read_topic is None else request.fill(event.read_topic)
            return self._note_success(request, self._read_event.answer(http, topic))
        if not http.may_wait:  # too many requests of the port wait already, and this one would wait for the broker
            raise RequestRefusedError(overloaded())
        if self._check_schema is not None and (faults := self._check_schema(request.content())):
            raise RequestRefusedError(refuse(INVALID_BODY, f"The body does not match the schema: {'; '.join(faults)}"))
        if event.when is not None and not is_true(event.when, request.values()):
            raise SkippedError(*why_false(event.when, request.values(), masker_of(self._route).value))
        name = self._route.name, event.name
        key = None if event.dedupe_key is None else dedupe_key(name, request.fill_bytes(event.dedupe_key))
        publication = request.publication = self._publication(request)
        if self._constant_answer is not None:
            answer = self._constant_answer
        elif event.response is None:
            answer = self._usual_answer(publication.topic)
        else:
            headers = ("Content-Type", event.response_content_type), _NO_SNIFFING
            answer = Response(self._status, headers, request.fill_bytes(event.response))
        if http.method == "HEAD":
            return self._note_success(request, answer)
        if key is not None or event.reply_topic is not None:
            return self._answer_in_turn(request, publication, answer, key)
        published = self._publish(publication)
        return Later(published, partial(self._answer_published, request, answer, published))

    async def _refuse_late(self, request: "EventRequest", refusal: Refusal) -> Response:
        """Refuse a wrong credential, a second later if many came from its address."""
        http = request.http
        overload = await self._shared.wrong_credentials.delay(http.remote, request.port, http.caller)
        return self.note_failure(request, RequestRefusedError(refusal), overload)

    def _publication(self, request: "EventRequest") -> Publication:
        """Return what a request publishes: DESTINATION_TOPIC and PAYLOAD filled, and the context of its trace."""
        event, headers = self._event, request.http.headers
        trace = () if TRACE_NAMES.isdisjoint(headers) else trace_of(headers.items())
        assert self._topic is not None  # noqa: S101  # the event publishes
        topic = self._topic if isinstance(self._topic, str) else request.fill(self._topic)
        payload = request.content() if event.payload is None else request.fill_bytes(event.payload)
        if len(payload) > self._shared.host.limits.max_body_bytes:
            raise RequestRefusedError(too_large(self._shared.host.limits.max_body_bytes))
        return Publication(topic, payload, event.retain, MessageProperties(trace) if trace else None, event.qos)

    def _usual_answer(self, topic: str) -> Response:
        """Return the answer of an event without RESPONSE: it names the topic."""
        if self._event.response_status in NO_CONTENT:
            return Response(self._status)
        body = json.dumps({"status": "published", "topic": topic}, ensure_ascii=False)
        return Response(self._status, _JSON, body.encode())

    def _publish(self, publication: Publication) -> "asyncio.Future[None]":
        return self._shared.host.publisher.publish(publication, hops=1, route=self._route.name, wait=False)

    def _answer_published(
        self, request: "EventRequest", answer: Response, published: "asyncio.Future[None]"
    ) -> Response:
        """Answer a request once the broker has acknowledged what it publishes, or has refused it."""
        try:
            published.result()
        except Exception as failure:  # noqa: BLE001  # it is logged
            return self.note_failure(request, failure)
        return self._note_success(request, answer)

    # REPLY_TOPIC and DEDUPE_KEY: a request that waits for others.

    async def _answer_in_turn(
        self, request: "EventRequest", publication: Publication, answer: Response, key: bytes | None
    ) -> Response:
        """Publish a request with a REPLY_TOPIC or DEDUPE_KEY, and answer it."""
        try:
            if key is None:
                answer = await self._publish_in_turn(request, publication, answer)
            else:
                answer = await self._publish_once(request, publication, answer, key)
        except Exception as failure:  # noqa: BLE001  # it is logged
            return self.note_failure(request, failure)
        return self._note_success(request, answer)

    async def _publish_once(
        self, request: "EventRequest", publication: Publication, answer: Response, key: bytes
    ) -> Response:
        """Publish a request unless its key was seen; return its answer, or that of the first request with the key.

        It waits until the requests before it with the same key have ended. If they failed, it is published.
        """
        seen_keys = self._shared.host.seen_keys
        seconds = self._route.config.request_timeout + _PUBLISH_SECONDS
        late = "A request with the same DEDUPE_KEY has not ended; this one was not published"
        async with self._shared.turns.turn(key, seconds, late):
            kept = seen_keys.answer(key)
            if kept is not None:
                request.publication, request.skipped = None, ("duplicate", "DEDUPE_KEY was seen before")
                return _read_kept_answer(kept) or self._constant_answer or answer
            answer = await self._publish_in_turn(request, publication, answer)
            small = answer if len(answer.body) <= _MOST_KEPT else _DUPLICATE
            is_constant = self._constant_answer is not None and self._event.reply_topic is None
            kept = b"" if is_constant else msgpack.encode((small.status, small.headers, small.body))
            seen_keys.keep(key, float(self._event.dedupe_for), kept)
            return answer

    async def _publish_in_turn(self, request: "EventRequest", publication: Publication, answer: Response) -> Response:
        """Publish a request; return the given answer, or with REPLY_TOPIC the reply once it has come.

        MQTT 5 carries the correlation data that identify a reply. Otherwise a reply belongs to the only request on its
        topic: REPLY_TOPIC with `{request_id}` is a topic for each request, on any other topic they take turns.
        """
        text = self._event.reply_topic
        if text is None:
            await self._publish(publication)
            return answer
        topic, has_request_id = request.fill(text), "request_id" in text.names
        if self._shared.is_mqtt_5:
            # Not the request id, which the caller and the subscribers of other topics may see.
            correlation, trace = secrets.token_bytes(16), publication.properties or MessageProperties()
            publication = replace(publication, properties=MessageProperties(trace.user, correlation, topic))
            return await self._publish_and_await_reply(publication, topic, correlation, takes_unmarked=has_request_id)
        if has_request_id:
            return await self._publish_and_await_reply(publication, topic, None, takes_unmarked=True)
        late = "The requests that came before on this reply topic have no replies yet; this one was not published"
        seconds = self._route.config.request_timeout
        async with self._shared.turns.turn(topic, seconds, late, request.http.caller):
            return await self._publish_and_await_reply(publication, topic, None, takes_unmarked=True)

    async def _publish_and_await_reply(
        self, publication: Publication, topic: str, correlation: bytes | None, *, takes_unmarked: bool
    ) -> Response:
        """Publish a request, and return the reply that comes on a topic within REQUEST_TIMEOUT.

        With `takes_unmarked` a reply without correlation data counts, too.
        """
        seconds = self._route.config.request_timeout
        with self._shared.replies.expect(topic, correlation, takes_unmarked=takes_unmarked) as reply:
            await self._publish(publication)
            try:
                message = await reply.within(seconds)
            except TimeoutError:
                text = f"The request was published, but no reply came on {topic} within {seconds:g} seconds"
                raise RequestRefusedError(refuse(REPLY_TIMEOUT, text)) from None
        return payload_answer(TopicPayload(message.payload), trace_of(message.user))

    # The end.

    def _note_success(self, request: "EventRequest", answer: Response) -> Response:
        """Note that a request has its answer, and return that with the headers of the endpoint."""
        if answer is not self._constant_answer or request.answer_headers:
            headers = (*request.answer_headers, *answer.headers)
            answer = Response(answer.status, headers, answer.body, None, self._labels, answer.stream)
        outcome = Outcome.SUCCEEDED if request.skipped is None else Outcome.SKIPPED
        return self._note_run(request, answer, outcome, None)

    def note_failure(self, request: "EventRequest", failure: Exception, instead: Refusal | None = None) -> Response:
        """Return the answer to a request that was refused, skipped by WHEN, or met a fault of the bridge, and note it.

        The cause of a fault of the bridge is logged and noted, but is not in the answer. With `instead` the caller gets
        this refusal, and the failure is noted.
        """
        noted: Refusal | None = None  # what is noted, if it differs from the answer
        match failure:
            case SkippedError():
                request.skipped = failure.code, failure.message
                return self._note_success(request, _IGNORED)
            case RequestRefusedError():
                refusal = failure.refusal
            case NoRoomError():
                message = "The bridge has more requests than the broker can take; this one was not published"
                refusal = overloaded(message)
            case BrokerAwayError():
                message = "The MQTT broker is away or has not acknowledged this request; it may have been published"
                refusal = refuse(BROKER_UNAVAILABLE, message, RETRY_AFTER)
            case PublicationRefusedError():
                message = f"The MQTT broker does not take what this request publishes: {failure}"
                refusal = refuse(BROKER_UNAVAILABLE, message, RETRY_AFTER)
            case _:
                log.error("Server mode failed on request %s", request.http.id, exc_info=failure)
                refusal, noted = FAILED, refuse(INTERNAL_ERROR, masker_of(self._route).address(str(failure)))
        answer = refused(instead or refusal, request.answer_headers, self._labels)
        return self._note_run(request, answer, outcome_of(refusal.code), noted or refusal)

    def _note_run(
        self, request: "EventRequest", answer: Response, outcome: Outcome, refusal: Refusal | None,
    ) -> Response:  # fmt: skip
        took = self._shared.host.clock.monotonic() - request.began
        self._shared.outcomes.note_request(
            RequestRun(
                request.timestamp + took, outcome, request.port, self._route, self._event, request.http, answer,
                refusal, request.skipped, request.publication, took, label=self._shown_request,
            )
        )  # fmt: skip
        return answer


def outcome_of(code: str) -> Outcome:
    """Return the outcome of a request that was answered with an error.

    Answers of a bridge or port that closes are `UNANSWERED`: they do not count for the route's health.
    """
    if code in NOT_SERVED:
        return Outcome.FAILED
    return Outcome.UNANSWERED if code == SHUTTING_DOWN.code else Outcome.REFUSED


def _read_kept_answer(data: bytes) -> Response | None:
    """Return a kept answer, None for the constant one of its event, `_DUPLICATE` for damaged bytes."""
    if not data:
        return None
    try:
        status, headers, body = msgpack.decode(data, type=tuple[str, tuple[tuple[str, str], ...], bytes])
    except ValueError:
        return _DUPLICATE
    return Response(status, headers, body)


class CallerChecks:
    """What an endpoint checks before it reads a request: credentials, encoding, size and signature.

    Args:
        route: The route of the event.
        event: The event.
        max_body_bytes: A request with a larger body is refused.
    """

    def __init__(self, route: Route, event: ServerEvent, max_body_bytes: int) -> None:
        self.cors = cors_for(route.config)
        self._credentials = credentials_for(route.name, route.config)
        self._verify = None if event.signature is None else verifier_of(event.signature)
        self._most_bytes = max_body_bytes

    def admit(self, request: Request, now: float) -> None:
        """Raise `RequestRefusedError` for a request that the event does not take at a Unix time.

        413 for a body that is too large, 415 for one with a Content-Encoding (RFC 9110 section 8.4), which subscribers
        would not see.
        """
        if request.refusal is not None:
            raise RequestRefusedError(request.refusal)
        if self._credentials is not None:
            self._credentials.check(request.headers)
        encoding = request.headers.get("content-encoding")
        if encoding and encoding.lower() != "identity":
            message, accepted = "The request's body has a Content-Encoding", (("Accept-Encoding", "identity"),)
            raise RequestRefusedError(refuse(catalogue.UNSUPPORTED_MEDIA_TYPE, message, accepted))
        if len(request.body) > self._most_bytes:
            raise RequestRefusedError(too_large(self._most_bytes))
        if self._verify is not None:
            self._verify(request.headers, request.body, now)


class EventRequest(Struct, eq=False):
    """One request to an endpoint: what came, and what is known of its answer so far."""

    http: Request
    path: str  # as sent
    parameters: Mapping[str, str]  # the texts of the endpoint's `{name}` segments, decoded
    timestamp: float  # Unix seconds at which it came
    began: float  # the same in monotonic seconds
    port: int  # the port that its caller connected to
    publication: Publication | None = None  # what it publishes, once that is known
    skipped: tuple[str, str] | None = None  # code and sentence of why it publishes nothing, by WHEN or DEDUPE_KEY
    answer_headers: Headers = ()  # for every answer to it: those of CORS
    _values: RequestValues | None = None

    def drop_body(self) -> None:
        """Forget the body, which may be large."""
        self.http = replace(self.http, body=b"")
        self._values = None

    def content(self) -> bytes:
        """Return what is published without PAYLOAD: the body, or if it is empty the parameters as one JSON object.

        If path and query share a name, the parameter of the path counts: the author of the route chose it.
        """
        if self.http.body:
            return self.http.body
        if not self.http.query and not self.parameters:
            return b"{}"
        query = {name: values[0] if len(values) == 1 else values for name, values in self._query().items()}
        return json.dumps({**query, **self.parameters}, ensure_ascii=False, separators=(",", ":")).encode()

    def values(self) -> RequestValues:
        """Return what placeholders are filled with; raises `RequestRefusedError` (400)."""
        if self._values is None:
            http = self.http
            self._values = RequestValues(
                method=http.method,
                path="/" + "/".join(decode_path(self.path)),
                path_parameters=self.parameters,
                query=self._query(),
                headers={name: decode_text(value) for name, value in http.headers.items()},
                payload=http.body,
                timestamp=self.timestamp,
                request_id=http.id,
            )
        return self._values

    def fill(self, text: PlaceholderText) -> str:
        """Return a topic with its placeholders filled; raises `RequestRefusedError` (400) for a bad value."""
        try:
            return text.fill(self.values())
        except CallError as failure:
            raise _cannot_fill(failure) from failure

    def fill_bytes(self, text: PlaceholderText) -> bytes:
        """Return a payload with its placeholders filled; raises `RequestRefusedError` (400) for a missing value."""
        try:
            return text.fill_bytes(self.values())
        except CallError as failure:
            raise _cannot_fill(failure) from failure

    def _query(self) -> dict[str, list[str]]:
        """Read the query string as a form; a repeated name has several values."""
        if not self.http.query:
            return {}
        try:
            query = self.http.query.encode("latin-1").decode()  # the bytes that were sent
            parameters = parse_qs(query, keep_blank_values=True, errors="strict")
        except UnicodeDecodeError as failure:
            raise _query_refused() from failure
        if _CONTROL_OR_SPACE.search(query):
            raise _query_refused()
        return parameters


def decode_text(value: str) -> str:
    """Decode a header value or target: as UTF-8, else as Latin-1 (RFC 9110 section 5.5 leaves it open)."""
    if value.isascii():
        return value
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return value


def _cannot_fill(failure: CallError) -> RequestRefusedError:
    return RequestRefusedError(refuse(catalogue.INVALID_REQUEST, failure.message, hint=failure.hint))


def _query_refused() -> RequestRefusedError:
    message = "The request's query string is not UTF-8 or holds control characters"
    return RequestRefusedError(refuse(catalogue.BAD_QUERY, message))


def decode_path(path: str) -> tuple[str, ...]:
    """Decode a path as sent into its segments; raises `RequestRefusedError` (400) when it is not one."""
    if not path.startswith("/"):
        raise RequestRefusedError(refuse(catalogue.NOT_A_PATH, "The request's path does not begin with '/'"))
    if "#" in path:
        raise RequestRefusedError(refuse(catalogue.FRAGMENT, "The request's path holds a fragment"))
    if _BAD_ESCAPE.search(path):
        message = "The request's path holds a '%' without two hexadecimal digits"
        raise RequestRefusedError(refuse(catalogue.BAD_ESCAPE, message))
    try:
        decoded = tuple(
            segment
            if "%" not in segment and segment.isascii()
            else unquote_to_bytes(segment.encode("latin-1")).decode()
            for segment in path[1:].split("/")  # each character is a byte that was sent
        )
    except UnicodeError:
        raise RequestRefusedError(refuse(catalogue.PATH_NOT_UTF_8, "The request's path is not UTF-8")) from None
    if _CONTROL.search("".join(decoded)):
        raise RequestRefusedError(refuse(catalogue.CONTROL_CHARACTER, "The request's path holds a control character"))
    return decoded

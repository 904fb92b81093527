"""What each kind of server event does with a request: publish it, publish it and wait for a reply, or read a topic.

Called by `server_mode` once the request's path, method and caller are settled; waiting goes through the `Outlet`.
"""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from amqtt_rest_bridge.bridge.broker_port import Outlet, Overloaded, ShuttingDown
from amqtt_rest_bridge.bridge.payloads import TopicPayload, is_not_modified
from amqtt_rest_bridge.bridge.server.callers import Headers, check_signature
from amqtt_rest_bridge.bridge.server.refusals import (
    ErrorCode,
    RequestRefused,
    invalid_request,
    overloaded,
    shutting_down,
    too_large,
)
from amqtt_rest_bridge.bridge.server.reply_turns import ReplyTurns
from amqtt_rest_bridge.bridge.server.request import Request
from amqtt_rest_bridge.errors import BridgeError, CallError
from amqtt_rest_bridge.model import Publication, Route, ServerEvent
from amqtt_rest_bridge.placeholders import PlaceholderText, Values

HOLD_SECONDS: Final = 1.0  # how long a request may be held for room on its way to the broker
JSON: Final = "application/json"

Respond = Callable[[Request], "Answer"]


class MustWait(BridgeError):  # noqa: N818  # not a mistake: the request is asked for again where it may wait
    """The answer has to wait and this thread must not; nothing has been published."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A good answer, complete; `body` and `content_type` are empty when there is nothing to say."""

    body: bytes = b""
    content_type: str = JSON
    status: str = "200 OK"
    headers: Headers = ()


def responder_for(route: Route, event: ServerEvent, outlet: Outlet, turns: ReplyTurns, max_body_bytes: int) -> Respond:
    """Choose what answers an event's requests."""
    if event.destination_topic is None:
        return _Reading(event, event.source_topic or "", outlet, max_body_bytes).respond
    publishing = _Publishing(route.name, event, event.destination_topic, outlet, max_body_bytes)
    if event.reply_topic is None:
        return publishing.respond
    return _Replying(publishing, event.reply_topic, route.config.request_timeout, turns).respond


def _signed_body(event: ServerEvent, request: Request, limit: int) -> bytes:
    """Read a request's body; raises `RequestRefused` for one without the signature that its event asks for."""
    body = request.body(limit)
    if event.signature is not None:
        check_signature(event.signature, request.header(event.signature.header), body)
    return body


class _Reading:
    """Answer with the latest payload of a topic."""

    def __init__(self, event: ServerEvent, topic_filter: str, outlet: Outlet, max_body_bytes: int) -> None:
        self._event = event
        self._topic_filter = topic_filter
        self._outlet = outlet
        self._max_body_bytes = max_body_bytes

    def respond(self, request: Request) -> Answer:
        _signed_body(self._event, request, self._max_body_bytes)
        payload = self._outlet.latest(self._topic_filter)
        if payload is None:
            raise RequestRefused(
                ErrorCode.NO_MESSAGE,
                f"No message has been seen on {self._topic_filter} yet",
                "Ask again after something was published there",
            )
        headers = (("ETag", payload.entity_tag), ("Cache-Control", "no-cache"))
        if is_not_modified(request.header("If-None-Match"), payload.entity_tag):
            return Answer(status="304 Not Modified", content_type="", headers=headers)
        return _payload_answer(payload, headers)


class _Publishing:
    """Publish the request and answer that it was done."""

    def __init__(
        self, route: str, event: ServerEvent, topic: PlaceholderText, outlet: Outlet, max_body_bytes: int
    ) -> None:
        self.outlet = outlet
        self._route = route
        self._event = event
        self._topic = topic
        self._max_body_bytes = max_body_bytes
        payload = event.payload
        self._plain = topic.is_constant and payload is None
        self._answer = _published(topic.source) if topic.is_constant else None

    def respond(self, request: Request) -> Answer:
        publication, _ = self.publication(request)
        if request.method != "HEAD":
            self.send(request, publication)
        return self._answer or _published(publication.topic)

    def publication(self, request: Request) -> tuple[Publication, Values | None]:
        """Make what the request publishes, and the values it was made with where any were needed."""
        event = self._event
        body = _signed_body(event, request, self._max_body_bytes)
        if self._plain:
            return Publication(self._topic.source, body or request.parameters_object(), event.retain), None
        values = request.values(body)
        try:
            topic = self._topic.fill(values)
            payload = event.payload.fill_bytes(values) if event.payload else body or request.parameters_object()
        except CallError as error:
            raise invalid_request(error.message, error.hint) from error
        if len(payload) > self._max_body_bytes:
            raise too_large(self._max_body_bytes)
        return Publication(topic, payload, event.retain), values

    def send(self, request: Request, publication: Publication) -> None:
        """Hand a publication to the broker, or raise what the caller is told."""
        try:
            self.outlet.publish(publication, wait=HOLD_SECONDS if request.may_wait else 0.0)
        except Overloaded as error:
            if not request.may_wait:
                raise MustWait from error
            raise overloaded() from error
        except ShuttingDown as error:
            raise shutting_down() from error


class _Replying:
    """Publish the request, wait for the first message on its reply topic and answer with that."""

    def __init__(self, publishing: _Publishing, topic: PlaceholderText, seconds: float, turns: ReplyTurns) -> None:
        self._publishing = publishing
        self._topic = topic
        self._seconds = seconds
        self._turns = turns
        self._topic_is_own = "request_id" in topic.names

    def respond(self, request: Request) -> Answer:
        publication, values = self._publishing.publication(request)
        try:
            topic = self._topic.fill(values or request.values(b""))
        except CallError as error:
            raise invalid_request(error.message, error.hint) from error
        if request.method == "HEAD":
            return Answer()
        if not request.may_wait:
            raise MustWait
        if self._topic_is_own:
            return self._exchange(request, publication, topic)
        try:
            with self._turn(topic):
                return self._exchange(request, publication, topic)
        except TimeoutError as error:
            raise overloaded() from error

    def _turn(self, topic: str) -> AbstractContextManager[None]:
        return self._turns.turn(topic, self._seconds)

    def _exchange(self, request: Request, publication: Publication, topic: str) -> Answer:
        with self._publishing.outlet.expect(topic) as reply:
            self._publishing.send(request, publication)
            payload = reply.wait(self._seconds)
        if payload is None and reply.dismissed:
            raise RequestRefused(
                ErrorCode.REPLY_TIMEOUT,
                f"The request was published, but the bridge shut down before a reply came on {topic}",
                "Whoever replies may have taken it: ask again only where doing it twice does no harm",
            )
        if payload is None:
            raise RequestRefused(
                ErrorCode.REPLY_TIMEOUT,
                f"The request was published, but no reply came on {topic} within {self._seconds:g} seconds",
                "See whether something that replies is subscribed; a reply that comes now is dropped",
            )
        return _payload_answer(TopicPayload(payload))


def _published(topic: str) -> Answer:
    return Answer(json.dumps({"status": "published", "topic": topic}, ensure_ascii=False).encode())


def _payload_answer(payload: TopicPayload, headers: Headers = ()) -> Answer:
    # What a topic holds may come from anyone: a browser must not take text for a page.
    return Answer(payload.payload, payload.content_type, headers=(*headers, ("X-Content-Type-Options", "nosniff")))

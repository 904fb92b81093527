"""Judge responses: which are failures, and what a call publishes for a response or a failure. Pure."""

import json
from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from typing import Final

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.engine.trace_context import TRACE_NAMES, trace_of
from amqtt_rest_bridge.errors import CallError, on_one_line
from amqtt_rest_bridge.failures import body_members, failure_payload, failure_topic, result_values
from amqtt_rest_bridge.http.failures import describe_status, redirect_refused
from amqtt_rest_bridge.lot.masking import Masker, credentials_of
from amqtt_rest_bridge.lot.model import (
    ClientEvent,
    EventName,
    HttpRequest,
    HttpResponse,
    Message,
    MessageProperties,
    Publication,
    ResponseFormat,
)

_TRACE_NAMES: Final = frozenset(TRACE_NAMES)
_BODY: Final = attrgetter("body")
_LARGEST: Final = 65_536  # bytes of a body that is looked at for what it says
_LONGEST: Final = 200  # characters of that
_DEEPEST: Final = 5
_SAYING: Final = ("message", "detail", "error_description", "msg", "description", "reason", "error", "errors", "title")
_to_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

Result = Callable[[Message, str | None, HttpResponse], Publication | None]
"""Return what a successful response to the request of a message publishes on a topic."""


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


def failure_publication(
    run: str,
    name: EventName,
    event: ClientEvent,
    message: Message,
    failure: CallError,
    response: HttpResponse | None = None,
    *,
    has_payload: bool = True,
) -> Publication | None:
    """Return what a failed call publishes, or None when the event has no topic for it: then only the log has it.

    `run` is the id of the call. Neither `failure` nor `response` may hold secrets. FAILURE_PAYLOAD adds the message
    unless it has no payload any more.

    Decision: a failure is not retained, even with RETAIN: the last good value stays.
    """
    topic = failure_topic(event, message, response)
    if topic is None:
        return None
    kept = message.payload if event.failure_payload and has_payload else None
    payload = failure_payload(run, *name, message.topic, message.timestamp, failure, response, kept)
    return Publication(topic, payload, properties=_properties(message, response), qos=event.qos)


def masker_for(masker: Masker, request: HttpRequest | None, response: HttpResponse | None) -> Masker:
    """Return what masks the secrets of a route and of one of its requests: a server may send any of them back."""
    sent = frozenset() if request is None else credentials_of(request.headers, request.url)
    return masker.including(sent if response is None else sent | response.credentials)


def response_without_secrets(masker: Masker, response: HttpResponse) -> HttpResponse:
    """Return the response of a failed call as it may be published.

    Decision: the payload of the message, which FAILURE_PAYLOAD adds, stays: what is published again must be the same.
    """
    body, head = masker.body(response.body), "\n".join([response.reason, *(value for _, value in response.headers)])
    if masker.text(head) == head:  # nearly always, and one search instead of many
        return replace(response, body=body)
    headers = tuple((name, masker.text(value)) for name, value in response.headers)
    return replace(response, reason=masker.text(response.reason), headers=headers, body=body)


def error_without_secrets(masker: Masker, failure: CallError) -> CallError:
    """Return a failure as it may be logged, shown and published: its message may quote a URL, or what a server sent."""
    message = masker.address(failure.message)
    if message == failure.message:
        return failure
    return CallError(failure.code, message, failure.hint, unsent=failure.unsent)


def failure_explained(masker: Masker, failure: CallError, response: HttpResponse) -> CallError:
    """Return a failure whose message ends with what the server said: `...: unit is required`.

    That is the text of the body, or in JSON of its member `message`, `detail`, `error` or the like. HTML, JSON without
    such a member and binary bodies are left out. Secrets are masked before the text is cut.
    """
    text = " ".join(masker.address(_text_said(response.body)).split())
    if not text or text.startswith("<"):
        return failure
    return CallError(
        failure.code, f"{failure.message}: {on_one_line(text, _LONGEST)}", failure.hint, unsent=failure.unsent
    )


def _text_said(body: bytes) -> str:
    if len(body) > _LARGEST:
        return ""
    try:
        text = body.decode()
        return _said(json.loads(text))
    except UnicodeDecodeError:
        return ""
    except (ValueError, RecursionError):
        return text


def _said(value: object, depth: int = 0) -> str:
    """Return the first text in what an API tells of an error, looking where most APIs have it."""
    if isinstance(value, str) or depth == _DEEPEST:
        return value if isinstance(value, str) else ""
    if isinstance(value, dict):
        named = [value[name] for name in _SAYING if name in value]
        return next(filter(None, (_said(one, depth + 1) for one in named or (value.values() if depth else ()))), "")
    if isinstance(value, list):
        return next(filter(None, (_said(one, depth + 1) for one in value)), "")
    return ""


def _properties(message: Message, response: HttpResponse | None) -> MessageProperties | None:
    """Return the trace context that a result or failure goes on with: the response's, else that of the message."""
    headers = () if response is None else response.headers
    if message.properties is None and _TRACE_NAMES.isdisjoint(map(str.lower, dict(headers))):  # nearly always
        return None
    trace = trace_of(headers) or trace_of(message.user)
    return MessageProperties(trace) if trace else None

"""Results of calls: from a response or a failure to the publication. Pure."""

import json
from collections.abc import Callable
from dataclasses import replace

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.catalogue import FailureRow
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.failures import body_members, failure_payload, failure_topic, result_values
from amqtt_rest_bridge.http_client import describe_status, redirect_refused
from amqtt_rest_bridge.masking import Masker, credentials_of
from amqtt_rest_bridge.model import (
    ClientEvent,
    HttpRequest,
    HttpResponse,
    Message,
    Publication,
    ResponseFormat,
)
from amqtt_rest_bridge.placeholders import PlaceholderText

_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def failure_of(request: HttpRequest, response: HttpResponse) -> CallError | None:
    """Return why a response is a failure: status 400 and above, or a redirect that was not followed; else None."""
    status = response.status
    if status >= 400:
        return _row_of(status, response).error(f"the server answered {describe_status(status)}")
    return redirect_refused(request, response) if status >= 300 else None


Result = Callable[[Message, str | None, HttpResponse], Publication | None]
"""Return what a successful response to the request of a message publishes on a topic."""


def result_of(event: ClientEvent) -> Result:
    """Return what makes an event's results; it raises `CallError` where the response lacks a value of PAYLOAD."""
    topic, payload = event.destination_topic, event.payload

    def mapped(message: Message, destination: str | None, response: HttpResponse) -> Publication | None:
        if topic is None:
            return None
        values = result_values(message, response)
        name = topic.fill(values) if destination is None else destination
        return Publication(
            name, _payload(event, response) if payload is None else payload.fill_bytes(values), event.retain
        )

    def plain(_: Message, destination: str | None, response: HttpResponse) -> Publication | None:
        if destination is None:
            return None
        return Publication(destination, _payload(event, response), event.retain)

    return mapped if topic is not None and (payload is not None or topic.needs_response) else plain


def needs_payload(text: PlaceholderText | None) -> bool:
    """Return whether a text of the result is filled with the payload of the message."""
    return text is not None and any(name.startswith(("payload", "value")) for name in text.names)


def _payload(event: ClientEvent, response: HttpResponse) -> bytes:
    return response.body if event.response_format is ResponseFormat.BODY else envelope(response)


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


def without_secrets(masker: Masker, response: HttpResponse) -> HttpResponse:
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


def failure(
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
    return Publication(topic, payload)


def unexpected() -> CallError:
    """Return the failure of a call that met a fault of the bridge itself."""
    return catalogue.FAULT_OF_THE_BRIDGE.error("the call ended with an unexpected error of the bridge itself")


def header(response: HttpResponse, name: str) -> str | None:
    """Return the first value of a header, its name in lower case; None when there is none."""
    return next((value for key, value in response.headers if key.lower() == name), None)


def _row_of(status: int, response: HttpResponse) -> FailureRow:
    if status == 400 and b"HTTPS" in response.body:
        return catalogue.STATUS_EXPECTS_TLS
    other = catalogue.STATUS_OF_THE_SERVER if status >= 500 else catalogue.STATUS_EXPLAINED
    return catalogue.STATUSES.get(status, other)

"""Results of calls: from a response or a failure to the publication. Pure; client workers run it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace

from amqtt_rest_bridge.errors import CallError, FailureCode
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

_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

_STATUS_HINTS: Mapping[int, str] = {
    400: "Check BODY, HEADERS and ENDPOINT of the event against what the server expects.",
    401: "Check USERNAME and PASSWORD, AUTHORIZATION, or the Authorization header of the event.",
    403: "The server accepts these credentials, but not for this request: check their rights.",
    404: "Check BASE_ADDRESS and ENDPOINT.",
    405: "Check METHOD: the server does not take it at this ENDPOINT.",
    407: "The proxy asks for credentials: put them into HTTP_PROXY as http://user:password@proxy:port.",
    413: "The server takes no body of this size.",
    415: "Check DEFAULT_CONTENT_TYPE or the Content-Type header of the event.",
    421: "Check BASE_ADDRESS and the Host header of the event.",
    429: "The server takes fewer requests than arrive: slow the publishers down.",
}


def failure_of(request: HttpRequest, response: HttpResponse) -> CallError | None:
    """Return why a response is a failure: status 400 and above, or a redirect that was not followed; else None."""
    status = response.status
    if status >= 400:
        return CallError(
            FailureCode.HTTP_STATUS, f"the server answered {describe_status(status)}", _status_hint(status, response)
        )
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
    route: str, event: ClientEvent, message: Message, error: CallError, response: HttpResponse | None = None
) -> Publication | None:
    """Return what a failed call publishes, or None when the event has no topic for it: then only the log has it.

    Decision: a failure is not retained, even with RETAIN: the last good value stays.
    """
    topic = failure_topic(event, message, response)
    if topic is None:
        return None
    kept = message.payload if event.failure_payload else None
    payload = failure_payload(route, event.name, message.topic, message.timestamp, error, response, kept)
    return Publication(topic, payload)


def unexpected() -> CallError:
    """Return the failure of a call that met a fault of the bridge itself."""
    return CallError(
        FailureCode.CONNECTION_FAILED,
        "the call ended with an unexpected error of the bridge itself",
        "The broker's log has the details; please report them.",
    )


def header(response: HttpResponse, name: str) -> str | None:
    """Return the first value of a header, its name in lower case; None when there is none."""
    return next((value for key, value in response.headers if key.lower() == name), None)


def _status_hint(status: int, response: HttpResponse) -> str:
    if status == 400 and b"HTTPS" in response.body:
        return "The server expects TLS on this port: set USE_SSL or write https:// into BASE_ADDRESS."
    if status in _STATUS_HINTS:
        return _STATUS_HINTS[status]
    if status >= 500:
        return "The server has a problem of its own: look into its log."
    return "The response body may tell what the server expects."

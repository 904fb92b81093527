"""Why a response is a failure, and what a failed call publishes, without secrets. Pure.

`event` uses it to judge a reply. Codes and hints are in `catalogue`; a message is written where its facts are known.
"""

import contextlib
import json
from dataclasses import replace
from typing import Any, Final

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.engine.requests import body_members, message_values, result_values, trace_properties
from amqtt_rest_bridge.errors import CallError, on_one_line
from amqtt_rest_bridge.http.failures import describe_status, redirect_refused
from amqtt_rest_bridge.lot.masking import Masker, credentials_of
from amqtt_rest_bridge.lot.model import ClientEvent, EventName, HttpRequest, HttpResponse, Message, Publication
from amqtt_rest_bridge.times import rfc3339

_MOST_BYTES: Final = 65_536  # a larger body is not searched for an error text
_MOST_CHARACTERS: Final = 200  # of an error text
_MOST_LEVELS: Final = 5  # of JSON that are searched
_TEXT_MEMBERS: Final = (
    "message",
    "detail",
    "error_description",
    "msg",
    "description",
    "reason",
    "error",
    "errors",
    "title",
)


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


def failure_publication(
    run: str, name: EventName, event: ClientEvent, message: Message, failure: CallError,
    response: HttpResponse | None = None, *, has_payload: bool = True,
) -> Publication | None:  # fmt: skip
    """Return what a failed call publishes, or None if the event has no topic for it: then only the log has it.

    It is published on ERROR_TOPIC, else on DESTINATION_TOPIC if that can be filled; it is not retained, even with
    RETAIN, so that the last good value stays.

    Args:
        run: The id of the call.
        name: The names of the route and the event.
        event: The event.
        message: The message of the call.
        failure: Why the call has failed, without secrets.
        response: The response to its last request, without secrets.
        has_payload: False if the payload of the message was released; FAILURE_PAYLOAD does not add it then.
    """
    topic = event.error_topic
    if topic is None:
        if event.destination_topic is None:
            return None
        try:
            values = message_values(message) if response is None else result_values(message, response)
            topic = event.destination_topic.fill(values)
        except CallError:
            return None
    payload: dict[str, Any] = {
        "error": {"code": failure.code.value, "message": failure.message, "hint": failure.hint},
        "id": run,
        "route": name[0],
        "event": name[1],
        "source_topic": message.topic,
        "timestamp": rfc3339(message.timestamp),
    }
    if response is not None:
        payload |= {"status": response.status, **body_members(response.body)}
    if event.failure_payload and has_payload:
        payload |= {key.replace("body", "payload"): text for key, text in body_members(message.payload).items()}
    text = json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")
    return Publication(topic, text, properties=trace_properties(message, response), qos=event.qos)


def masker_for(masker: Masker, request: HttpRequest | None, response: HttpResponse | None) -> Masker:
    """Return what masks the secrets of a route and of one of its requests: a server may send any of them back."""
    sent = frozenset() if request is None else credentials_of(request.headers, request.url)
    return masker.including(sent if response is None else sent | response.credentials)


def response_without_secrets(masker: Masker, response: HttpResponse) -> HttpResponse:
    """Return the response of a failed call as it may be published.

    The payload of the message, which FAILURE_PAYLOAD adds, stays: what is published again must be the same.
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
    text = ""
    if len(response.body) <= _MOST_BYTES:
        with contextlib.suppress(UnicodeDecodeError):
            text = response.body.decode()
    with contextlib.suppress(ValueError, RecursionError):  # other text is taken as it is
        text = _text_in(json.loads(text))
    text = " ".join(masker.address(text).split())
    if not text or text.startswith("<"):
        return failure
    return CallError(
        failure.code, f"{failure.message}: {on_one_line(text, _MOST_CHARACTERS)}", failure.hint, unsent=failure.unsent
    )


def _text_in(value: object, depth: int = 0) -> str:
    """Return the error text in parsed JSON: that of the members where most APIs have it, "" without any."""
    if isinstance(value, str) or depth == _MOST_LEVELS:
        return value if isinstance(value, str) else ""
    if isinstance(value, dict):
        named = [value[name] for name in _TEXT_MEMBERS if name in value]
        return next(filter(None, (_text_in(one, depth + 1) for one in named or (value.values() if depth else ()))), "")
    if isinstance(value, list):
        return next(filter(None, (_text_in(one, depth + 1) for one in value)), "")
    return ""

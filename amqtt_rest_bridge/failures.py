"""Failures of calls and the payload that they publish. Pure; both processes use it, on any thread."""

import base64
import json
from typing import Any

from amqtt_rest_bridge.errors import CallError, FailureCode
from amqtt_rest_bridge.model import ClientEvent, HttpResponse, Message
from amqtt_rest_bridge.placeholders import MessageValues, ResultValues
from amqtt_rest_bridge.sizes import size_text
from amqtt_rest_bridge.times import rfc3339


def body_members(body: bytes) -> dict[str, str]:
    """Return a body as the JSON members `body` and `body_encoding` (`utf-8`, or `base64` for other bytes)."""
    try:
        return {"body": body.decode(), "body_encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"body": base64.b64encode(body).decode("ascii"), "body_encoding": "base64"}


def failure_payload(
    route: str,
    event: str,
    message_topic: str,
    timestamp: float,
    failure: CallError,
    response: HttpResponse | None = None,
    message_payload: bytes | None = None,
) -> bytes:
    """Build the payload that a failed call publishes: compact JSON in UTF-8."""
    payload: dict[str, Any] = {
        "error": {"code": failure.code.value, "message": failure.message, "hint": failure.hint},
        "route": route,
        "event": event,
        "source_topic": message_topic,
        "timestamp": rfc3339(timestamp),
    }
    if response is not None:
        payload["status"] = response.status
        payload |= body_members(response.body)
    if message_payload is not None:
        payload |= {name.replace("body", "payload"): text for name, text in body_members(message_payload).items()}
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def result_values(message: Message, response: HttpResponse) -> MessageValues:
    """Return the values that PAYLOAD and DESTINATION_TOPIC are filled with."""
    return ResultValues(
        message.topic,
        message.payload,
        message.timestamp,
        status=response.status,
        headers=response.headers,
        body=response.body,
    )


def failure_topic(event: ClientEvent, message: Message, response: HttpResponse | None = None) -> str | None:
    """Return the topic of a failure: ERROR_TOPIC, else DESTINATION_TOPIC, else None: log and status alone have it.

    None too when this message, with the response if there was one, cannot fill DESTINATION_TOPIC.
    """
    if event.error_topic is not None:
        return event.error_topic
    if event.destination_topic is None:
        return None
    try:
        if response is not None:
            return event.destination_topic.fill(result_values(message, response))
        return event.destination_topic.fill(MessageValues(message.topic, message.payload, message.timestamp))
    except CallError:
        return None


def overloaded(capacity: int) -> CallError:
    """Build the failure of a message that its route had no room for."""
    return CallError(
        FailureCode.OVERLOADED,
        f"the route is overloaded: its OVERLOAD_CAPACITY of {capacity} messages is used up",
        "send more slowly, raise OVERLOAD_CAPACITY, or find out why the HTTP server answers slowly",
    )


def bytes_used_up(setting: str, most: int, size: int) -> CallError:
    """Build the failure of a message whose payload has no room; `setting` is OVERLOAD_BYTES or queue_bytes."""
    whose = "the route is overloaded: its" if setting.isupper() else "the bridge is overloaded: its"
    return CallError(
        FailureCode.OVERLOADED,
        f"{whose} {setting} of {size_text(most)} have no room for a payload of {size_text(size)}",
        f"send more slowly, raise {setting}, or find out why the HTTP server answers slowly",
    )


def message_too_large(size: int, most: int) -> CallError:
    """Build the failure of a message whose payload is larger than max_message_bytes."""
    return CallError(
        FailureCode.PAYLOAD_TOO_LARGE,
        f"the message has {size} bytes, max_message_bytes allows {most}",
        "send a smaller payload, or raise max_message_bytes",
    )


def route_removed() -> CallError:
    """Build the failure of a message that waited in the broker process when a reload removed its event."""
    return CallError(
        FailureCode.OVERLOADED,
        "the message waited for its turn when its route or event was removed; it was not sent",
        "publish it again once a route takes it",
    )


def reply_dropped(size: int) -> CallError:
    """Build the error of a message on a reply topic that a bridge process had no room for; `size` is in bytes."""
    return CallError(
        FailureCode.OVERLOADED,
        f"a reply of {size} bytes was dropped: a bridge process has 8 MiB of replies to read already",
        "publish less on reply topics, or find out what keeps the bridge process busy",
    )


def no_free_worker(workers: int) -> CallError:
    """Build the failure of a message that a `realtime` route had no free worker for."""
    return CallError(
        FailureCode.OVERLOADED,
        f"the route is overloaded: all {workers} workers are busy and OVERLOAD_POLICY is realtime",
        'send more slowly, raise the plugin\'s workers, or use OVERLOAD_POLICY "balanced" to queue messages',
    )


def bridge_restarted() -> CallError:
    """Build the failure of a call whose bridge process died."""
    return CallError(
        FailureCode.BRIDGE_RESTARTED,
        "the bridge process ended while it held this message; the request may or may not have been sent",
        "see the broker's log for the reason; OVERLOAD_POLICY \"lossless\" sends such messages again",
    )


def too_many_hops(limit: int) -> CallError:
    """Build the failure of a message that went through too many routes."""
    return CallError(
        FailureCode.OVERLOADED,
        f"the message went through {limit} routes one after the other and was not passed on",
        "look for routes whose DESTINATION_TOPIC matches the SOURCE_TOPIC of an earlier one",
    )


def disk_full(reason: Exception) -> CallError:
    """Build the failure of a message that the disk of the spool did not take."""
    return CallError(
        FailureCode.OVERLOADED,
        f"the message could not be written to the spool: {reason}",
        "make room on the disk of the plugin's spool",
    )

"""Failures that the bridge itself decides on (no room, no worker), and the payload that any failure publishes.

Those of a request are in `http_client/transport_errors.py`; codes and hints of all in `catalogue.py`. Pure; both
processes use it, on any thread.
"""

import base64
import json
from typing import Any

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.model import ClientEvent, HttpResponse, Message
from amqtt_rest_bridge.placeholders import MessageValues, ResponseBody, ResultValues
from amqtt_rest_bridge.sizes import size_text
from amqtt_rest_bridge.times import rfc3339


def body_members(body: bytes) -> dict[str, str]:
    """Return a body as the JSON members `body` and `body_encoding` (`utf-8`, or `base64` for other bytes)."""
    try:
        return {"body": body.decode(), "body_encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"body": base64.b64encode(body).decode("ascii"), "body_encoding": "base64"}


def failure_payload(
    run: str,
    route: str,
    event: str,
    message_topic: str,
    timestamp: float,
    failure: CallError,
    response: HttpResponse | None = None,
    message_payload: bytes | None = None,
) -> bytes:
    """Build the payload that a failed call publishes: compact JSON in UTF-8; `run` is the id of the call."""
    payload: dict[str, Any] = {
        "error": {"code": failure.code.value, "message": failure.message, "hint": failure.hint},
        "id": run,
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


def message_values(message: Message) -> MessageValues:
    """Return the values of a message."""
    return MessageValues(message.payload, message.timestamp, topic=message.topic, user=message.user)


def result_values(message: Message, response: HttpResponse) -> MessageValues:
    """Return the values that PAYLOAD and DESTINATION_TOPIC are filled with."""
    return ResultValues(
        message.payload,
        message.timestamp,
        topic=message.topic,
        user=message.user,
        status=response.status,
        headers=response.headers,
        response=ResponseBody(response.body, message.timestamp),
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
        return event.destination_topic.fill(message_values(message))
    except CallError:
        return None


def overloaded(capacity: int) -> CallError:
    """Build the failure of a message that its route had no room for."""
    what = f"the route is overloaded: its OVERLOAD_CAPACITY of {capacity} messages is used up"
    return catalogue.ROUTE_FULL.error(what)


def bytes_used_up(setting: str, most: int, size: int) -> CallError:
    """Build the failure of a message whose payload has no room; `setting` is OVERLOAD_BYTES or queue_bytes."""
    whose, row = (
        ("route", catalogue.ROUTE_BYTES_FULL) if setting.isupper() else ("bridge", catalogue.QUEUE_BYTES_FULL)
    )
    room = f"its {setting} of {size_text(most)} have no room for a payload of {size_text(size)}"
    return row.error(f"the {whose} is overloaded: {room}")


def message_too_large(size: int, most: int) -> CallError:
    """Build the failure of a message whose payload is larger than max_message_bytes."""
    return catalogue.MESSAGE_TOO_LARGE.error(f"the message has {size} bytes, max_message_bytes allows {most}")


def route_removed() -> CallError:
    """Build the failure of a message that waited in the broker process when a reload removed its event."""
    return catalogue.ROUTE_REMOVED.error(
        "the message waited for its turn when its route or event was removed; it was not sent"
    )


def reply_dropped(size: int, most: int) -> CallError:
    """Build the error of a message on a reply topic that a bridge process had no room for.

    `size` is the message's, `most` what a bridge process may have to read already; both are in bytes.
    """
    return catalogue.REPLIES_FULL.error(
        f"a reply of {size} bytes was dropped: a bridge process has {size_text(most)} of replies to read already"
    )


def no_free_worker(workers: int) -> CallError:
    """Build the failure of a message that a `realtime` route had no free worker for."""
    return catalogue.NO_FREE_WORKER.error(
        f"the route is overloaded: all {workers} workers are busy and OVERLOAD_POLICY is realtime"
    )


def bridge_restarted() -> CallError:
    """Build the failure of a call whose bridge process died."""
    return catalogue.BRIDGE_RESTARTED.error(
        "the bridge process ended while it held this message; the request may or may not have been sent"
    )


def too_many_hops(limit: int) -> CallError:
    """Build the failure of a message that went through too many routes."""
    return catalogue.TOO_MANY_HOPS.error(
        f"the message went through {limit} routes one after the other and was not passed on"
    )


def disk_full(reason: Exception) -> CallError:
    """Build the failure of a message that the disk of the spool did not take."""
    return catalogue.DISK_FULL.error(f"the message could not be written to the spool: {reason}")

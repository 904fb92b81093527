"""What the failure of a call publishes, and where; the values that results and failures are filled with.

Codes and hints are in `catalogue.py`, messages where their facts are known. Pure; both processes use it, any thread.
"""

import base64
import json
from typing import Any

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.lot.model import ClientEvent, HttpResponse, Message
from amqtt_rest_bridge.lot.placeholders import MessageValues, ResponseBody, ResultValues
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


def disk_full(reason: Exception) -> CallError:
    """Build the failure of a message that the disk of the spool did not take."""
    return catalogue.DISK_FULL.error(f"the message could not be written to the spool: {reason}")

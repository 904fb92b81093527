"""Routes of server mode made by hand, and what tests see of an answer."""

import json
from dataclasses import dataclass
from typing import Any

from amqtt_rest_bridge.lot.model import Method, RestApiConfig, Route, ServerEvent, Signature
from amqtt_rest_bridge.lot.placeholders.kinds import Mode
from amqtt_rest_bridge.lot.placeholders.text import Place, PlaceholderText, parse

REQUEST_ID = "0f9a2e4c-0000-4000-8000-000000000001"
NOW = 1_769_860_800.123  # 2026-01-31T12:00:00.123Z


def topic(text: str) -> PlaceholderText:
    return parse(text, Place.TOPIC, Mode.SERVER)


def payload(text: str, place: Place = Place.JSON) -> PlaceholderText:
    return parse(text, place, Mode.SERVER)


def event(
    method: str = "POST",
    endpoint: str = "/hook",
    destination: str | None = "hook/received",
    *,
    name: str = "Event",
    sends: PlaceholderText | None = None,
    reply: str | None = None,
    source: str | None = None,
    retain: bool = False,
    signature: Signature | None = None,
    **others: Any,
) -> ServerEvent:
    return ServerEvent(
        name=name,
        method=Method(method),
        endpoint=endpoint,
        destination_topic=topic(destination) if destination is not None else None,
        payload=sends,
        reply_topic=topic(reply) if reply is not None else None,
        source_topic=source,
        retain=retain,
        signature=signature,
        **others,
    )


def route(*events: ServerEvent, name: str = "Hooks", **settings: Any) -> Route:
    return Route(name, RestApiConfig(**{"enable_server": True, **settings}), server_events=events)


@dataclass
class Result:
    """A complete answer."""

    status_code: int
    headers: dict[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def text(self) -> str:
        return self.content.decode()


def error_code(result: Result) -> str:
    """Take the code out of an error answer, after checking that it has the form of every error."""
    assert result.headers["content-type"] == "application/json"
    error = json.loads(result.content)["error"]
    assert set(error) == {"code", "message", "hint"}
    assert all(isinstance(text, str) and text for text in error.values())
    return str(error["code"])

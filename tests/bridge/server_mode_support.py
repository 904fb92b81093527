"""What the tests of server mode share: a fake engine, routes made by hand, and a client that shows everything."""

import json
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import falcon.testing

from amqtt_rest_bridge.bridge.broker_port import Served
from amqtt_rest_bridge.bridge.payloads import TopicPayload
from amqtt_rest_bridge.bridge.server.app import create_app
from amqtt_rest_bridge.model import Method, Publication, RestApiConfig, Route, ServerEvent, Signature
from amqtt_rest_bridge.placeholders import Mode, Place, PlaceholderText, parse

REQUEST_ID = "0f9a2e4c-0000-4000-8000-000000000001"
NOW = 1_769_860_800.123  # 2026-01-31T12:00:00.123Z


class FakeReply:
    """A place among the waiting, filled from the fake's replies."""

    dismissed = False

    def __init__(self, outlet: "FakeOutlet", topic: str) -> None:
        self._outlet = outlet
        self._topic = topic

    def wait(self, seconds: float) -> bytes | None:
        self._outlet.waits.append((self._topic, seconds))
        return self._outlet.on_wait(self._topic)


class FakeOutlet:
    """Fulfils `Outlet`: keeps what was published in `published` and every step in `log`."""

    def __init__(self) -> None:
        self.published: list[Publication] = []
        self.holds: list[float] = []
        self.waits: list[tuple[str, float]] = []
        self.counted: list[tuple[str, str | None]] = []
        self.lines: list[str] = []
        self.log: list[str] = []
        self.payloads: dict[str, bytes] = {}
        self._latest: dict[str, TopicPayload] = {}
        self.failures: deque[Exception | None] = deque()
        self.on_wait: Callable[[str], bytes | None] = lambda _topic: None
        self.on_publish: Callable[[Publication], object] = lambda _publication: None

    def publish(self, publication: Publication, *, wait: float) -> None:
        self.holds.append(wait)
        failure = self.failures.popleft() if self.failures else None
        if failure is not None:
            raise failure
        self.log.append(f"publish {publication.topic}")
        self.published.append(publication)
        self.on_publish(publication)

    def latest(self, topic_filter: str) -> TopicPayload | None:
        payload = self.payloads.get(topic_filter)
        if payload is None:
            return None
        if topic_filter not in self._latest or self._latest[topic_filter].payload is not payload:
            self._latest[topic_filter] = TopicPayload(payload)
        return self._latest[topic_filter]

    @contextmanager
    def expect(self, topic: str) -> Iterator[FakeReply]:
        self.log.append(f"expect {topic}")
        yield FakeReply(self, topic)
        self.log.append(f"done {topic}")

    def answered(self, served: Served, status: str, code: str | None, message: str | None) -> None:
        self.counted.append((served.route, code))
        self.lines.append(f"answered {served.request} with {status}")


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
    )


def route(*events: ServerEvent, name: str = "Hooks", **settings: Any) -> Route:
    return Route(name, RestApiConfig(**{"enable_server": True, **settings}), server_events=events)


class Port:
    """An application on a fake engine, with Falcon's own test client."""

    def __init__(self, *routes: Route, max_body_bytes: int = 1000) -> None:
        self.outlet = FakeOutlet()
        self.app = create_app(
            routes, self.outlet, max_body_bytes=max_body_bytes, clock=lambda: NOW, new_id=lambda: REQUEST_ID
        )
        self._client = falcon.testing.TestClient(self.app)

    def ask(self, method: str, path: str, body: bytes | str | None = None, **headers: str) -> falcon.testing.Result:
        """Send a request; `X_Y="z"` is the header X-Y."""
        return self._client.simulate_request(
            method, path, body=body, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )

    @property
    def published(self) -> list[tuple[str, bytes]]:
        return [(publication.topic, publication.payload) for publication in self.outlet.published]


def port(*events: ServerEvent, **settings: Any) -> Port:
    return Port(route(*events, **settings))


def error_code(result: falcon.testing.Result) -> str:
    """Take the code out of an error answer, after checking that it has the form of every error."""
    assert result.headers["content-type"] == "application/json"
    error = json.loads(result.content)["error"]
    assert set(error) == {"code", "message", "hint"}
    assert all(isinstance(text, str) and text for text in error.values())
    return str(error["code"])

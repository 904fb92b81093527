"""A dispatcher between a bridge and a queue that keep what they are given."""

from collections.abc import Callable

from amqtt_rest_bridge.broker.publisher import MAX_QUEUE
from amqtt_rest_bridge.link.frames import CallResult
from amqtt_rest_bridge.model import (
    ClientEvent,
    Method,
    Publication,
    RestApiConfig,
    Route,
    RouteConfig,
)
from amqtt_rest_bridge.placeholders import Place, PlaceholderText
from amqtt_rest_bridge.route_set import Numbering
from amqtt_rest_bridge.routing.calls import Call
from amqtt_rest_bridge.routing.dispatcher import Dispatcher
from amqtt_rest_bridge.routing.quiet_log import QuietLog
from amqtt_rest_bridge.routing.statistics import RouteAccount


class Bridge:
    """Takes calls and keeps them."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.seen: list[tuple[str, bytes]] = []

    def deal(self, call: Call) -> None:
        self.calls.append(call)

    def hurry(self) -> None:
        """Nothing waits here."""

    def forward(self, topic: str, payload: bytes) -> bool:
        self.seen.append((topic, payload))
        return True

    def show(self, topic_filter: str, payload: bytes) -> None:
        self.seen.append((topic_filter, payload))


class Queue:
    """The publisher's queue, which nobody empties."""

    def __init__(self) -> None:
        self.publications: list[Publication] = []

    def put(self, publication: Publication, hops: int, give: Callable[[int], None] | None = None) -> bool:
        if give is None and len(self.publications) >= MAX_QUEUE:
            return False
        self.publications.append(publication)
        return True


def text(source: str, place: Place) -> PlaceholderText:
    return PlaceholderText(source, place, (source,))


def route(endpoint: str = "/x", name: str = "R", source: str = "in/#") -> Route:
    event = ClientEvent(
        "E", source, Method.GET, text(endpoint, Place.ENDPOINT), destination_topic=text("out", Place.TOPIC)
    )
    return Route(name, RestApiConfig(), (event,), route_config=RouteConfig(100_000))


class Rig:
    """A dispatcher between a bridge and a queue."""

    def __init__(self) -> None:
        self.bridge, self.queue, self.numbering = Bridge(), Queue(), Numbering()
        self.dispatcher = Dispatcher(self.bridge, self.queue, 4, quiet=QuietLog(later=lambda *_: None))
        self.use(route())

    def use(self, *routes: Route, reads: tuple[str, ...] = ()) -> None:
        self.dispatcher.set_routes(self.numbering.number(routes), reads, {})

    @property
    def account(self) -> RouteAccount:
        return self.dispatcher.accounts["R"]

    def offer(self, count: int = 1) -> list[Call]:
        for _ in range(count):
            self.dispatcher.offer("in/1", b"payload")
        return self.bridge.calls[-count:]

    def end(self, call: Call) -> None:
        self.dispatcher.done(call, CallResult(call.id, 200, None, "", 0.1, None), lambda _: None)

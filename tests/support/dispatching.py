"""A dispatcher between a bridge and a queue that keep what they are given."""

from collections import deque
from collections.abc import Callable, Sequence

from amqtt_rest_bridge.link.frames import CallResult
from amqtt_rest_bridge.link.newest import Newest
from amqtt_rest_bridge.model import ClientEvent, Message, Method, Publication, RestApiConfig, Route, RouteConfig, RunIds
from amqtt_rest_bridge.placeholders import Place, PlaceholderText
from amqtt_rest_bridge.records.broker_records import BrokerRecords
from amqtt_rest_bridge.route_set import Numbering
from amqtt_rest_bridge.routing.admission import QueueBytes
from amqtt_rest_bridge.routing.calls import Call, Store, has_room
from amqtt_rest_bridge.routing.claims import Claims
from amqtt_rest_bridge.routing.dispatcher import Dispatcher
from amqtt_rest_bridge.routing.outcomes import Outcomes, QuietLog
from amqtt_rest_bridge.routing.server_reports import ServerReports
from amqtt_rest_bridge.routing.statistics import RouteStatistics
from amqtt_rest_bridge.spool import SeenKeys
from tests.support.clock import Clock


class Bridge:
    """Takes calls and keeps them."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.seen: list[tuple[str, bytes]] = []

    def dispatch(self, calls: Sequence[Call]) -> None:
        self.calls += calls

    def forward(self, message: Message) -> bool:
        self.seen.append((message.topic, message.payload))
        return True

    def show(self, newest: Newest[bytes], topic: str) -> None:
        self.seen.append((topic, newest.topics.get(topic, b"")))

    def show_all(self, newest: Newest[bytes]) -> None:
        self.seen += newest.topics.items()


class Queue:
    """The publisher's queue, emptied by `publish`."""

    def __init__(self) -> None:
        self.publications: list[Publication] = []
        self.waiting_bytes = 0
        self._unpublished: deque[Callable[[int], None]] = deque()

    def put(
        self,
        publication: Publication,
        hops: int,
        release_credits: Callable[[int], None] | None = None,
        confirm: Callable[[bool], None] | None = None,
        *,
        route: str = "",
    ) -> bool:
        has_place = has_room(len(self.publications), self.waiting_bytes, len(publication.payload))
        if release_credits is None and not has_place:
            return False
        self.publications.append(publication)
        if release_credits is not None:
            self._unpublished.append(release_credits)
        return True

    def publish(self) -> None:
        """Publish all that waits."""
        while self._unpublished:
            self._unpublished.popleft()(1)


def text(source: str, place: Place) -> PlaceholderText:
    return PlaceholderText(source, place, (source,))


def route(endpoint: str = "/x", name: str = "R", source: str = "in/#") -> Route:
    event = ClientEvent(
        "E", source, Method.GET, text(endpoint, Place.ENDPOINT), destination_topic=text("out", Place.TOPIC)
    )
    return Route(name, RestApiConfig(), (event,), route_config=RouteConfig(100_000))


class Rig:
    """A dispatcher between a bridge and a queue."""

    def __init__(
        self,
        store: Store | None = None,
        clock: Clock | None = None,
        queue_bytes: int = 1 << 40,
        max_message_bytes: int = 4 << 20,
        records: BrokerRecords | None = None,
    ) -> None:
        self.bridge, self.queue, self.numbering = Bridge(), Queue(), Numbering()
        self.changes: list[RouteStatistics] = []
        """Of health, as they were reported."""
        runs, statistics = RunIds("00000000-0000-4000-8000-"), dict[str, RouteStatistics]()
        quiet = QuietLog(runs, lambda *_: None)
        self.records = records
        self.outcomes = Outcomes(self.queue, statistics, runs, self.changes.append, quiet, records)
        self.server = ServerReports(self.outcomes, Claims(SeenKeys(None)))
        self.held = QueueBytes(queue_bytes)
        clock = clock or Clock()
        self.dispatcher = Dispatcher(
            self.bridge, self.outcomes, self.server, 4,
            store=store, queue=self.held, max_message_bytes=max_message_bytes,
            monotonic=clock, later=clock.later,
        )  # fmt: skip
        self.use(route())

    def newest(self) -> dict[str, bytes]:
        """Return what read events answer with, by topic."""
        return {topic: payload for one in self.server.watching.newest() for topic, payload in one.topics.items()}

    def use(self, *routes: Route, reads: tuple[str, ...] = ()) -> None:
        self.dispatcher.set_routes(self.numbering.number(routes), reads, {})
        if self.records is not None:
            self.records.keep(routes)

    @property
    def statistics(self) -> RouteStatistics:
        return self.outcomes.statistics["R"]

    def offer(self, count: int = 1) -> list[Call]:
        for _ in range(count):
            self.dispatcher.offer(Message("in/1", b"payload", 0.0))
        return self.bridge.calls[-count:]

    def end(self, call: Call) -> None:
        self.dispatcher.done(call, CallResult(call.id, 200, None, "", 0.0, 0.1, None), lambda _: None)

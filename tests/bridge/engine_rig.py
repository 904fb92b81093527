"""An engine at its link, with a scripted server behind it and the broker's end in the hands of a test."""

import pickle
import queue
import socket
import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TypeVar, cast

from amqtt_rest_bridge.bridge import engine
from amqtt_rest_bridge.bridge.admin_port import AdminServer
from amqtt_rest_bridge.bridge.client.senders import Sender
from amqtt_rest_bridge.bridge.engine import Engine
from amqtt_rest_bridge.bridge.ports import Port
from amqtt_rest_bridge.bridge.server.broker_access import BrokerAccess
from amqtt_rest_bridge.http_client import Exchange, Stopwatch
from amqtt_rest_bridge.http_server import Refusal
from amqtt_rest_bridge.link.bridge_end import BridgeEnd
from amqtt_rest_bridge.link.broker_end import BrokerEnd
from amqtt_rest_bridge.link.frames import Calls, DispatchedCall, Ready, Results, ToBroker, UseRoutes
from amqtt_rest_bridge.model import (
    ClientEvent,
    HttpRequest,
    HttpResponse,
    Message,
    Method,
    OverloadPolicy,
    RestApiConfig,
    Route,
    RouteConfig,
)
from amqtt_rest_bridge.placeholders import Mode, Place, PlaceholderText, parse
from amqtt_rest_bridge.route_set import Numbering
from amqtt_rest_bridge.settings import BridgeSettings
from tests.support.waiting import SECONDS

FINE = HttpResponse(200, "OK", (), b"fine", 0.0)
BUSY = HttpResponse(503, "Busy", (), b"", 0.0)

F = TypeVar("F")
Answer = Callable[[HttpRequest], HttpResponse]


class Network(engine.Network):
    """Answers requests by the host in their URL, and remembers them; listeners only note their ports."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: queue.SimpleQueue[HttpRequest] = queue.SimpleQueue()
        self.answer: Answer = lambda _: FINE
        self.served: list[int] = []
        self.closed = threading.Semaphore(0)

    def sender(self, config: RestApiConfig, settings: BridgeSettings) -> Sender:
        return self

    def server(
        self, broker: BrokerAccess, sock: socket.socket, routes: tuple[Route, ...], settings: BridgeSettings
    ) -> Port:
        self.served.append(routes[0].config.server_port)
        return cast("Port", self)

    def send(self, request: HttpRequest, stopwatch: Stopwatch | None = None) -> HttpResponse:
        self.requests.put(request)
        return self.answer(request)

    def exchange(self, request: HttpRequest, stopwatch: Stopwatch) -> Exchange:
        yield
        return self.send(request)

    def expire(self) -> None:
        """Nothing is kept here."""

    def close(self) -> None:
        self.closed.release()

    bound_port = 0

    def replace_routes(self, routes: tuple[Route, ...]) -> None:
        """Go on."""

    def on_turn(self, action: Callable[[], None]) -> None:
        action()

    def stop(self, grace: float, refusal: Refusal | None = None) -> None:
        """Nothing runs here."""

    def admin(self, *_: object) -> AdminServer:
        raise AssertionError("no admin port is wanted")

    def bodies(self, count: int) -> list[bytes | None]:
        return [self.requests.get(timeout=SECONDS).body for _ in range(count)]


class Rig:
    """A running engine, seen from the broker."""

    def __init__(self) -> None:
        self.network = Network()
        ours, theirs = socket.socketpair()
        self.end = BrokerEnd(ours)
        self._engine = threading.Thread(target=Engine(BridgeEnd(theirs), self.network).run)
        self._engine.start()
        self._numbering = Numbering()
        self._frames: list[ToBroker] = []
        self._ids = iter(range(1, 100_000))
        self.numbers: dict[str, int] = {}

    def use(self, *routes: Route, ports: Sequence[int] = (), workers: int = 4) -> None:
        """Replace the routes and wait until the engine has them."""
        numbered = self._numbering.number(routes)
        self.numbers = {one.route.name: one.numbers[0] for one in numbered if one.numbers}
        settings = BridgeSettings(workers=workers)
        self.end.send_now(UseRoutes(pickle.dumps((settings, numbered)), list(ports)))
        self.frame(Ready)

    def call(self, body: bytes = b"", topic: str = "in", key: str | None = None, name: str = "R") -> int:
        number = next(self._ids)
        self.end.send_now(Calls([DispatchedCall(number, self.numbers[name], Message(topic, body, 1.0), key)]))
        return number

    def frame(self, kind: type[F], seconds: float = SECONDS) -> F:
        """Wait for the next frame of a kind; others stay for later."""
        deadline = monotonic() + seconds
        while True:
            for index, frame in enumerate(self._frames):
                if isinstance(frame, kind):
                    del self._frames[index]
                    return frame
            frames = self.end.receive_now(max(0.01, deadline - monotonic()))
            assert frames is not None, "the engine ended"
            self._frames += frames
            assert frames or monotonic() < deadline, f"no {kind.__name__}: {self._frames}"

    def ended(self, count: int) -> list[int]:
        """Wait for results and give their calls."""
        done: list[int] = []
        while len(done) < count:
            done += [number for result in self.frame(Results).results for number in (result.call, *result.also)]
        return done

    def close(self) -> None:
        self.end.close()
        self._engine.join(SECONDS)
        assert not self._engine.is_alive()


def route(
    endpoint: str = "/x", *, ordered: bool = False, lossless: bool = False, retries: int = 3, name: str = "R"
) -> Route:
    event = ClientEvent(
        "E",
        "in/#",
        Method.POST,
        PlaceholderText(endpoint, Place.ENDPOINT, (endpoint,)),
        body=parse("{payload}", Place.TEXT, Mode.CLIENT),
        destination_topic=PlaceholderText("out", Place.TOPIC, ("out",)),
        ordered=ordered,
    )
    policy = OverloadPolicy.LOSSLESS if lossless else OverloadPolicy.BALANCED
    config = RestApiConfig(base_address="http://t", enable_client=True, retries=retries)
    return Route(name, config, (event,), route_config=RouteConfig(1000, policy))

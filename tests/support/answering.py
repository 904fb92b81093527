"""Server mode without an MQTT broker: time that a test lets pass, a fake broker, and a client that shows everything."""

import asyncio
import contextlib
import queue
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from amqtt_rest_bridge.engine.needs import Host, Limits, Outcome, RequestRun
from amqtt_rest_bridge.engine.outcome import Outcomes
from amqtt_rest_bridge.engine.server.replies import AwaitedReply, Replies
from amqtt_rest_bridge.engine.server_mode import PortApplication, ServerMode
from amqtt_rest_bridge.errors import NoRoomError
from amqtt_rest_bridge.http.exchange import Answer, Request, Response, response_of
from amqtt_rest_bridge.lot.model import Message, Publication, Route, ServerEvent
from tests.engine import host
from tests.support.server_mode import NOW, REQUEST_ID, Result, route

__all__ = ["NOW", "REQUEST_ID", "Answering", "FakeBroker", "VirtualClock", "answer_of", "port", "result_of"]


class VirtualClock(host.VirtualClock):
    """A clock that goes on when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.wall = NOW

    def advance(self, seconds: float) -> None:
        """Pass time."""
        until = self.now + seconds
        while self.pass_to(until):
            pass

    def skip(self) -> float:
        """Pass time until something is due; return how long that was."""
        before, far = self.now, self.now + 86_400
        assert self.pass_to(far), "it waits for something that no time brings"
        return self.now - before


class RealClock(VirtualClock):
    """The loop's own time."""

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def later(self, seconds: float, action: Callable[[], object]) -> Any:
        return asyncio.get_running_loop().call_later(seconds, action)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class FakeReply:
    """A request that waits for its reply; any thread."""

    def __init__(self, broker: "FakeBroker", topic: str) -> None:
        self.topic = topic
        self._broker = broker

    def arrive(self, payload: bytes) -> None:
        """Publish the reply."""
        self._broker.on_loop(lambda: self._broker.reply(self.topic, payload))


class FakeReplies(Replies):
    """Logs what waits."""

    def __init__(self, broker: "FakeBroker", clock: VirtualClock) -> None:
        super().__init__(clock)
        self._broker = broker

    @contextlib.contextmanager
    def expect(self, topic: str, correlation: bytes | None, *, takes_unmarked: bool) -> Iterator[AwaitedReply]:
        self._broker.log.append(f"expect {topic}")
        try:
            with super().expect(topic, correlation, takes_unmarked=takes_unmarked) as reply:
                self._broker.expected.append(topic)
                yield reply
        finally:
            self._broker.log.append(f"done {topic}")


class FakeBroker:
    """Keeps what was published in `published`, every step in `log`, and what was noted of requests in `runs`.

    Each publication takes one of `outcomes`: False where it waits for room, an exception that is raised. A reply is
    what `on_wait` returns for its topic; where that is None, `waiting` has the request that waits.
    """

    def __init__(self, clock: VirtualClock | None = None, limits: Limits | None = None, **settings: bool) -> None:
        self.clock = clock or VirtualClock()
        self.records = host.Runs()
        self.queued: list[asyncio.Future[None]] = []
        """What waits for room until the test makes some."""
        self.expected: deque[str] = deque()
        self.forget()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.own_loop: asyncio.AbstractEventLoop | None = None
        """The loop of a test that runs it by steps."""
        network = host.Network(self.clock)
        keys = host.Seen(self.clock)
        made = Host(self, network.connect, keys, self.clock, lambda: 0.5, limits or Limits(), records=self.records)
        self.statistics = Outcomes(made)
        self.mode = ServerMode(made, self.statistics, **{"is_mqtt_5": False, **settings})
        self.mode._replies = FakeReplies(self, self.clock)
        object.__setattr__(self.mode._shared, "replies", self.mode._replies)

    def forget(self) -> None:
        """Forget what was published and noted, and answer as at first."""
        self.published: list[Publication] = []
        self.records.requests.clear()
        self.log: list[str] = []
        self.outcomes: deque[bool | Exception] = deque()
        self.waiting: queue.SimpleQueue[FakeReply] = queue.SimpleQueue()
        self.on_wait: Callable[[str], bytes | None] = lambda _topic: None
        self.on_publish: Callable[[Publication], object] = lambda _publication: None

    # What the engine needs.

    def publish(
        self, publication: Publication, *, hops: int, route: str, wait: bool = True, mark: str = ""
    ) -> "asyncio.Future[None]":
        assert (hops, wait) == (1, False)
        return (self.loop or self.own_loop or asyncio.get_running_loop()).create_task(self._publish(publication))

    async def _publish(self, publication: Publication) -> None:
        outcome = self.outcomes.popleft() if self.outcomes else True
        if isinstance(outcome, Exception):
            raise outcome
        if not outcome:
            await self._room()
        self.log.append(f"publish {publication.topic}")
        self.published.append(publication)
        self.on_publish(publication)
        while self.expected:
            topic = self.expected.popleft()
            payload = self.on_wait(topic)
            if payload is None:
                self.waiting.put(FakeReply(self, topic))
            else:
                self.reply(topic, payload)

    async def _room(self) -> None:
        room = asyncio.get_running_loop().create_future()
        self.queued.append(room)
        timer = self.clock.later(1.0, lambda: None if room.done() else room.set_exception(NoRoomError("no room")))
        try:
            await room
        finally:
            timer.cancel()
            self.queued.remove(room)

    # What tests do; from any thread where a loop runs.

    def on_loop(self, action: Callable[[], object]) -> None:
        if self.loop is None:
            action()
        else:
            self.loop.call_soon_threadsafe(action)

    def make_room(self) -> None:
        """Release everything that waits for room."""
        self.on_loop(self._make_room)

    def _make_room(self) -> None:
        for room in self.queued:
            if not room.done():
                room.set_result(None)

    def reply(self, topic: str, payload: bytes) -> None:
        self.mode.see(Message(topic, payload, NOW))

    def changed(self, topic: str, payload: bytes) -> None:
        """Publish a message that read events answer with."""
        self.on_loop(lambda: self.mode.see(Message(topic, payload, NOW)))

    @property
    def runs(self) -> list[RequestRun]:
        """Return what was noted of requests."""
        return self.records.requests

    @property
    def counted(self) -> list[tuple[str, str | None]]:
        """Return the route and the code of the requests that led to an event, None without an error."""
        return [(run.route.name, _code_of(run)) for run in self.runs if run.route is not None]

    @property
    def lines(self) -> list[str]:
        """Return each request as the log tells it."""
        return [_line_of(run) for run in self.runs]


def _code_of(run: RequestRun) -> str | None:
    if run.outcome is Outcome.SKIPPED:
        return "skipped"
    return None if run.refusal is None else run.refusal.code


def _line_of(run: RequestRun) -> str:
    if run.route is None or run.event is None:
        return f"port {run.port}: {run.request.method} {run.request.target} led to no endpoint: {run.answer.status}"
    return f"answered {run.label} with {run.answer.status}"


def result_of(response: Response) -> Result:
    headers = {name.lower(): value for name, value in response.headers}
    return Result(int(response.status[:3]), headers, response.body)


def answer_of(answer: Answer) -> Response:
    """Return an answer that does not have to wait."""
    assert isinstance(answer, Response)
    return answer


class Answering:
    """The application of a port with a fake broker; time passes when an answer waits, and is kept in `waited`."""

    def __init__(
        self, *routes: Route, max_body_bytes: int = 1000, openapi: bool = False, is_mqtt_5: bool = False
    ) -> None:
        self.routes = routes
        limits = Limits(max_body_bytes=max_body_bytes, max_response_bytes=1000)
        self.clock = VirtualClock()
        self.broker = FakeBroker(self.clock, limits, openapi=openapi, is_mqtt_5=is_mqtt_5)
        self.mode = self.broker.mode
        self.waited: list[float] = []
        self.loop = self.broker.own_loop = asyncio.new_event_loop()
        self.app = self.use(*routes, port=routes[0].config.server_port if routes else 8080)

    def __del__(self) -> None:
        self.loop.close()

    def use(self, *routes: Route, port: int = 8080) -> PortApplication:
        """Use other routes; return the application of a port."""
        self.broker.statistics.use_routes(routes)
        self.mode.use_routes(routes)
        return self.mode.application(port)

    def begin(
        self, method: str, path: str, body: bytes | str | None = None, *, remote: str = "192.0.2.1", **headers: str
    ) -> Answer:
        """Send a request with `path` as its target; `X_Y="z"` is the header X-Y."""
        return self.app.answer(self.request(method, path, body, remote=remote, **headers))

    def request(
        self, method: str, path: str, body: bytes | str | None = None, *, remote: str = "192.0.2.1", **headers: str
    ) -> Request:
        """Make a request."""
        data = body.encode() if isinstance(body, str) else body or b""
        fields = {name.lower().replace("_", "-"): value for name, value in headers.items()}
        return Request(REQUEST_ID, method, path, path.partition("?")[2], fields, data, None, remote)

    def ask(
        self, method: str, path: str, body: bytes | str | None = None, *, remote: str = "192.0.2.1", **headers: str
    ) -> Result:
        """Send a request and wait for its answer as long as it likes to be waited for."""
        answer = self.begin(method, path, body, remote=remote, **headers)
        return result_of(answer if isinstance(answer, Response) else self.finish(self.start(answer)))

    def start(self, answer: Answer) -> "asyncio.Task[Response]":
        """Begin to make an answer, as far as it goes without waiting."""
        assert not isinstance(answer, Response)
        task = self.loop.create_task(response_of(answer))
        self.settle()
        return task

    def settle(self) -> None:
        """Run everything that need not wait."""
        self.loop.run_until_complete(_turns())

    def finish(self, task: "asyncio.Task[Response]") -> Response:
        """Pass time until an answer is made."""
        while not task.done():
            self.settle()
            if not task.done():
                self.waited.append(self.loop.run_until_complete(_called(self.clock.skip)))
                self.settle()
        return task.result()

    @property
    def published(self) -> list[tuple[str, bytes]]:
        return [(publication.topic, publication.payload) for publication in self.broker.published]


async def _called(action: Callable[[], float]) -> float:
    return action()


async def _turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def port(*events: ServerEvent, **settings: Any) -> Answering:
    return Answering(route(*events, **settings))

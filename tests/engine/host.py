"""A host whose clock, servers and broker do what a test says: nothing here waits, and nothing is left to chance.

`Rig` runs client mode on an event loop of its own. After each step of a test the loop turns until nothing moves.
"""

import asyncio
import heapq
import itertools
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from amqtt_rest_bridge.engine.client_mode import ClientMode
from amqtt_rest_bridge.engine.needs import CallRun, Host, Limits, RequestRun, Turn
from amqtt_rest_bridge.engine.outcome import Outcomes
from amqtt_rest_bridge.engine.statistics import RouteStatistics
from amqtt_rest_bridge.errors import CallError, ConfigurationError, FailureCode, PublicationRefusedError
from amqtt_rest_bridge.lot.model import (
    EventName,
    HttpRequest,
    HttpResponse,
    Message,
    MessageProperties,
    Publication,
    RestApiConfig,
    Route,
    RunIds,
)
from tests.support.route_text import load_text

DOWN = CallError(FailureCode.CONNECTION_FAILED, "the server is down", "Start it.", unsent=True)
LATE = CallError(FailureCode.TIMEOUT, "the server is late", "Wait.")


class Timer:
    """A timer of the clock."""

    def __init__(self, due: float, action: Callable[[], object]) -> None:
        self.due, self.action, self.is_cancelled = due, action, False

    def cancel(self) -> None:
        self.is_cancelled, self.action = True, bool


class VirtualClock:
    """A clock that goes on when a test says so; `wall` is its Unix time."""

    def __init__(self) -> None:
        self.now, self.wall = 0.0, 1000.0
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()

    def time(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.now

    def later(self, seconds: float, action: Callable[[], object]) -> Timer:
        timer = Timer(self.now + seconds, action)
        heapq.heappush(self._timers, (timer.due, next(self._numbers), timer))
        return timer

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        done = asyncio.Event()
        timer = self.later(seconds, done.set)
        try:
            await done.wait()
        finally:
            timer.cancel()

    def pass_to(self, time: float) -> bool:
        """Go on to the first timer that is due by a time, and run it; return False where there is none."""
        while self._timers and self._timers[0][2].is_cancelled:
            heapq.heappop(self._timers)
        if self._timers and self._timers[0][0] <= time:
            due, _, timer = heapq.heappop(self._timers)
            self._go_on(max(self.now, due))
            timer.action()
            return True
        self._go_on(max(self.now, time))
        return False

    def _go_on(self, now: float) -> None:
        self.wall += now - self.now
        self.now = now


class Sent:
    """A request that waits for its answer."""

    def __init__(self, server: str, request: HttpRequest, at: float) -> None:
        self.server, self.request, self.at = server, request, at
        self._reply: asyncio.Future[HttpResponse | CallError | Exception] = asyncio.get_running_loop().create_future()

    @property
    def body(self) -> bytes | None:
        return self.request.body

    def header(self, name: str) -> str | None:
        return next((value for given, value in self.request.headers if given.lower() == name.lower()), None)

    def reply(self, status: int = 200, body: bytes = b"ok", *headers: tuple[str, str], elapsed: float = 0.0) -> None:
        self.answer(HttpResponse(status, "", headers, body, elapsed))

    def answer(self, reply: HttpResponse | Exception) -> None:
        if not self._reply.done():
            self._reply.set_result(reply)

    async def received(self) -> HttpResponse:
        reply = await self._reply
        if isinstance(reply, Exception):
            raise reply
        return reply


class FakeClient:
    """Sends to a server of the test; fulfils `Sends`. A `repeat` is the status that makes it send once more."""

    def __init__(self, network: "Network", server: str) -> None:
        self._network, self._server = network, server
        self.closed = 0

    async def send(self, request: HttpRequest, *, turn: Turn | None = None) -> HttpResponse:
        while True:
            if turn is not None:
                await turn()
            sent = Sent(self._server, request, self._network.clock.now)
            self._network.arrived(sent)
            response = await sent.received()
            if response.status != self._network.repeat:
                return response

    def close(self) -> None:
        self.closed += 1


class Network:
    """The servers. `answer`, where set, replies to each request at once."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.answer: Callable[[HttpRequest], HttpResponse | Exception] | None = None
        self.repeat: int | None = None
        self.is_unusable = False
        self.waiting: list[Sent] = []
        self.seen: list[Sent] = []
        self.clients: list[FakeClient] = []

    def connect(self, config: RestApiConfig, server: str) -> FakeClient:
        if self.is_unusable:
            raise ConfigurationError("HTTP_PROXY is not the address of a proxy")
        client = FakeClient(self, server)
        self.clients.append(client)
        return client

    def arrived(self, sent: Sent) -> None:
        self.seen.append(sent)
        if self.answer is None:
            self.waiting.append(sent)
        else:
            sent.answer(self.answer(sent.request))


class Broker:
    """Takes publications: acknowledged at once, unless `is_away`; refused on the topics in `refuses`."""

    def __init__(self) -> None:
        self.published: list[tuple[Publication, int, str]] = []
        self.is_away = False
        self.refuses: set[str] = set()
        self._back: list[asyncio.Future[None]] = []

    def publish(
        self, publication: Publication, *, hops: int, route: str, wait: bool = True, mark: str = ""
    ) -> "asyncio.Future[None]":
        return asyncio.ensure_future(self._publish(publication, hops, route))

    async def _publish(self, publication: Publication, hops: int, route: str) -> None:
        if self.is_away:
            back: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._back.append(back)
            await back
        if publication.topic in self.refuses:
            raise PublicationRefusedError("not authorized")
        self.published.append((publication, hops, route))

    def come_back(self) -> None:
        self.is_away = False
        for one in self._back:
            if not one.done():
                one.set_result(None)


class Source:
    """A message as its source holds it; fulfils `Delivery`."""

    def __init__(self, key: str = "key", *, is_bounded: bool = False) -> None:
        self.is_dropped = False
        self.is_bounded = is_bounded
        self.has_key = False
        self.holds = 0
        self.state = "new"
        """`held`, `acknowledged` or `kept`, by the source."""
        self._is_kept = False
        self._key = key

    def hold(self) -> None:
        assert self.state in ("new", "held"), "held after its end"
        self.holds += 1
        self.state = "held"

    def release(self) -> None:
        assert self.holds, "released more often than held"
        self.holds -= 1
        if not self.holds:
            self.state = "kept" if self._is_kept else "acknowledged"

    def abandon(self) -> None:
        self._is_kept = True
        self.release()

    def key(self, event: EventName) -> str:
        return self._key

    def mark(self, event: EventName) -> str:
        return f"{self._key} {event[1]}"


class Seen:
    """Keys that were seen."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._keys: dict[bytes, tuple[float, bytes]] = {}

    def answer(self, key: bytes) -> bytes | None:
        until, answer = self._keys.get(key, (0.0, b""))
        return answer if until > self._clock.now else None

    def keep(self, key: bytes, seconds: float, answer: bytes) -> None:
        self._keys[key] = self._clock.now + seconds, answer


class Runs:
    """Records that keep all."""

    def __init__(self) -> None:
        self.calls: list[CallRun] = []
        self.requests: list[RequestRun] = []
        self.unmatched: list[Message] = []

    def note_call(self, run: CallRun) -> None:
        self.calls.append(run)

    def forget_call(self, number: int) -> None:
        """Ignore it."""

    def note_error(self, route: str, code: str, message: str, now: float) -> None:
        """Ignore it."""

    def note_request(self, run: RequestRun) -> None:
        self.requests.append(run)

    def replayed_run(self, event: EventName, message: Message) -> str | None:
        """None was kept."""

    def note_unmatched(self, message: Message) -> None:
        self.unmatched.append(message)


ROUTE = """
    DEFINE ROUTE {name} WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "http://server.test" WITH ENABLE_CLIENT "true" {config}
        ADD ROUTE_CONFIG WITH OVERLOAD_CAPACITY 1000 {route}
        ADD EVENT E WITH SOURCE_TOPIC "in/#" WITH METHOD "{method}" WITH ENDPOINT "/x" {body}
            WITH DESTINATION_TOPIC "out" WITH ERROR_TOPIC "err" {event}
"""


def text(event: str = "", *, route: str = "", config: str = "", name: str = "R", method: str = "POST",
         body: str = 'WITH BODY "{payload}" WITH HEADERS ADD Content-Type "text/plain"') -> str:  # fmt: skip
    """Return a definition of a route with one event."""
    return ROUTE.format(name=name, config=config, route=route, method=method, body=body, event=event)


def parsed(*texts: str) -> tuple[Route, ...]:
    """Return the routes of these texts."""
    loaded = load_text("\n".join(texts))
    assert not loaded.has_errors, loaded.faults
    return loaded.routes


def host_of(max_body_bytes: int = 1000) -> Host:
    """Return a host for parts of the engine that publish nothing and send nothing."""
    clock = VirtualClock()
    network = Network(clock)
    limits = Limits(max_body_bytes=max_body_bytes)
    return Host(Broker(), network.connect, Seen(clock), clock, lambda: 0.0, limits)


class Rig:
    """Client mode between a broker and servers of the test; with `answers` these reply to each request at once."""

    def __init__(
        self, *texts: str, answers: bool = False, records: Runs | None = None, keys_have_groups: bool = False,
        chance: float = 0.0, **limits: int,
    ) -> None:  # fmt: skip
        self.loop = asyncio.new_event_loop()
        self.clock = VirtualClock()
        self.broker, self.network = Broker(), Network(self.clock)
        if answers:
            self.network.answer = lambda _: HttpResponse(200, "OK", (), b"ok", 0.0)
        self.healths: list[str] = []
        self.leads = True
        self.host = Host(
            self.broker, self.network.connect, Seen(self.clock), self.clock, lambda: chance,
            Limits(**limits), RunIds("00000000-0000-4000-8000-"), records, keys_have_groups,
        )  # fmt: skip
        self.outcomes = Outcomes(self.host, lambda statistics: self.healths.append(statistics.health))
        with self._running():
            self.mode = ClientMode(self.host, self.outcomes, lambda _: self.leads)
        self.use(*texts or (text(),))

    # What a test does.

    def use(self, *texts: str) -> None:
        self.use_routes(parsed(*texts))

    def use_routes(self, routes: Iterable[Route]) -> None:
        with self._running():
            self.mode.use_routes(routes)

    def offer(
        self,
        payload: bytes = b"payload",
        topic: str = "in/a",
        delivery: Source | None = None,
        hops: int = 0,
        user: tuple[tuple[str, str], ...] = (),
    ) -> None:
        properties = MessageProperties(user) if user else None
        with self._running():
            self.mode.offer(Message(topic, payload, self.clock.wall, properties), hops=hops, delivery=delivery)

    def offer_all(self, *payloads: bytes, topic: str = "in/a", is_bounded: bool = False) -> list[Source]:
        """Offer messages, each with a source of its own whose key is the payload; return the sources."""
        sources = [Source(payload.decode("latin-1"), is_bounded=is_bounded) for payload in payloads]
        for payload, source in zip(payloads, sources, strict=True):
            self.offer(payload, topic, source)
        return sources

    def take_back(self, *sources: Source) -> None:
        """Take messages back: their sources deliver them again later."""
        for source in sources:
            source.is_dropped = True
        self.do(self.mode.drop_calls)

    def advance(self, seconds: float) -> None:
        """Pass time, with all that is due meanwhile."""
        until = self.clock.now + seconds
        while True:
            with self._running():
                if not self.clock.pass_to(until):
                    break

    def reply(self, status: int = 200, body: bytes = b"ok", *headers: tuple[str, str], elapsed: float = 0.0) -> None:
        """Answer the request that has waited longest."""
        with self._running():
            self.network.waiting.pop(0).reply(status, body, *headers, elapsed=elapsed)

    def reply_to_all(self, status: int = 200) -> None:
        """Answer each request that waits, and those that follow."""
        while self.waiting:
            self.reply(status)

    def fail(self, error: Exception = DOWN) -> None:
        """Fail the request that has waited longest."""
        with self._running():
            self.network.waiting.pop(0).answer(error)

    def do(self, action: Callable[[], object]) -> None:
        """Do something on the loop."""
        with self._running():
            action()

    def run(self, coroutine: Coroutine[Any, Any, Any] | Awaitable[Any]) -> Any:
        """Wait for something on the loop."""

        async def main() -> Any:
            return await coroutine

        return self.loop.run_until_complete(main())

    def close(self) -> None:
        """End all, and check that nothing is left behind."""
        with self._running():
            self.mode.stop()
        self.run(self.mode.drain(0))
        self.loop.close()

    # What it sees.

    @property
    def waiting(self) -> list[Sent]:
        """Requests that wait for their answer."""
        return self.network.waiting

    @property
    def bodies(self) -> list[bytes | None]:
        """The bodies of all requests."""
        return [sent.body for sent in self.network.seen]

    @property
    def published(self) -> list[tuple[str, bytes]]:
        """What was published, and not looked at."""
        found = [(one.topic, one.payload) for one, _, _ in self.broker.published]
        self.broker.published.clear()
        return found

    @property
    def failures(self) -> list[dict[str, Any]]:
        """The failures among what was published, and not looked at."""
        return [json.loads(payload) for topic, payload in self.published if topic == "err"]

    @property
    def codes(self) -> list[str]:
        """The codes of `failures`."""
        return [failure["error"]["code"] for failure in self.failures]

    @property
    def times(self) -> list[float]:
        """When each request was sent."""
        return [round(sent.at, 3) for sent in self.network.seen]

    @property
    def statistics(self) -> RouteStatistics:
        return self.outcomes.statistics["R"]

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Run a step of a test as the loop would, and let the loop turn until nothing moves."""
        asyncio._set_running_loop(self.loop)  # what a loop does while it runs
        try:
            yield
        finally:
            asyncio._set_running_loop(None)
        self.loop.run_until_complete(_settle())


async def _settle() -> None:
    """Wait until nothing else is to run on the running loop."""
    await asyncio.sleep(0)
    while asyncio.get_running_loop()._ready:  # type: ignore[attr-defined]  # there is no other way to see it
        await asyncio.sleep(0)


Rigs = Callable[..., Rig]
"""The fixture `rigs`: makes rigs that are closed after their test."""


def states(sources: Iterable[Source]) -> str:
    """Return what became of messages, with a space between."""
    return " ".join(source.state for source in sources)

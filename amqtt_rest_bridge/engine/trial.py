"""What messages and requests would do, without a broker and without a network: for `rest-bridge try` and `test`.

Requests, results and answers are made by the engine. Here are replacements of what surrounds it: the HTTP server, the
broker, and a clock whose timers are due at once. A call has one attempt only.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from msgspec import structs

from amqtt_rest_bridge.engine.event import Batch, Call, PreparedEvent, Verdict
from amqtt_rest_bridge.engine.needs import Host, Limits, RequestRun, Sends
from amqtt_rest_bridge.engine.outcome import Outcomes
from amqtt_rest_bridge.engine.requests import added_scheme
from amqtt_rest_bridge.engine.server.newest import TopicPayload
from amqtt_rest_bridge.engine.server.unmatched import UnmatchedRequests
from amqtt_rest_bridge.engine.server_mode import ServerMode
from amqtt_rest_bridge.engine.stages import prepare
from amqtt_rest_bridge.engine.stages.batch import batch_of, halve
from amqtt_rest_bridge.engine.stages.dedupe import Claims
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.http.exchange import Request, Response, response_of
from amqtt_rest_bridge.lot.model import (
    ClientEvent,
    HttpRequest,
    HttpResponse,
    Message,
    MessageProperties,
    Publication,
    RestApiConfig,
    Route,
    RunIds,
)
from amqtt_rest_bridge.lot.route_set import read_filters

REQUEST_ID: Final = "00000000-0000-4000-8000-000000000000"
"""`{request_id}` of a trial."""
MAX_BYTES: Final = Limits().max_body_bytes
"""The default of max_body_bytes, and of max_response_bytes."""
ANY_KEY: Final = "<a UUID, the same for every try>"
"""The Idempotency-Key of a request that is only shown."""

_RUNS: Final = RunIds("00000000-0000-4000-8000-")  # the same id whenever a call is tried
_NO_JITTER: Final = 0.0  # of retries, which a trial does not make

Send = Callable[[HttpRequest], HttpResponse]
"""Answers a request; may raise `CallError`."""


def shown_request(route: Route, request: HttpRequest) -> HttpRequest:
    """Return a request as it is shown: with the scheme of the Authorization that OAuth2 or Digest would add."""
    scheme = added_scheme(route.config, request)
    if scheme is None:
        return request
    return structs.replace(request, headers=(*request.headers, ("Authorization", f"{scheme} (added when it is sent)")))


# Messages.


def call_of(route: Route, event: ClientEvent, message: Message, *, key: str | None = None) -> Call:
    """Return the call of a message; `call.event` builds its request. `key` is its Idempotency-Key."""
    return _call(prepare(route, event, _host()), message, key)


def try_call(route: Route, event: ClientEvent, message: Message, send: Send, *, key: str | None = None) -> Verdict:
    """Return the verdict on the one attempt of a call."""
    return try_calls(route, event, [message], send, key=key)[0]


def try_calls(
    route: Route, event: ClientEvent, messages: Iterable[Message], send: Send, *, key: str | None = None
) -> list[Verdict]:
    """Return the verdicts on the calls of messages that come one after the other. Each call has one attempt.

    The calls of an event with BATCH_SIZE are sent as batches. With BATCH_SPLIT the halves of a batch are sent too.
    """
    prepared = prepare(route, event, _host(), claims=Claims(_Keys()))
    calls = [_call(prepared, message, key) for message in messages]
    if event.batch_size is None:
        return [_try_once(call, send) for call in calls]
    verdicts: list[Verdict] = []
    with_items: list[Call] = []
    for call in calls:
        verdict = prepared.make_item(call)
        if verdict is None:
            with_items.append(call)
        else:  # it sends nothing
            verdicts.append(verdict)
    for first in range(0, len(with_items), event.batch_size):
        verdicts += _try_batch(batch_of(with_items[first : first + event.batch_size]), send)
    return verdicts


def _host() -> Host:
    return Host(_Broker(None), _connect, _Keys(), _Clock(0.0), lambda: _NO_JITTER, runs=_RUNS)


def _call(prepared: PreparedEvent, message: Message, key: str | None) -> Call:
    return Call(0, lambda _: None, prepared, message, len(message.payload), key=key)


def _try_batch(batch: Batch, send: Send) -> list[Verdict]:
    verdict = _try_once(batch, send)
    if verdict.is_halved:
        second = halve(batch)
        return _try_batch(batch, send) + _try_batch(second, send)
    return [own for _, own in batch.event.verdicts(batch, verdict)]


def _try_once(call: Call, send: Send) -> Verdict:
    verdict = call.event.build(call)
    if verdict is not None or call.request is None:
        return verdict or call.event.fail_unexpectedly(call)
    try:
        return call.event.judge(call, send(call.request))
    except CallError as error:
        return call.event.judge(call, error)


# Requests.


@dataclass(frozen=True, slots=True)
class RequestTrial:
    """The answer to a request, what it published, and what is known of it."""

    response: Response
    publications: tuple[Publication, ...]
    run: RequestRun

    @property
    def route(self) -> str | None:
        """Return the name of the route that has answered, None where the request led to no endpoint."""
        return None if self.run.route is None else self.run.route.name


def try_request(
    routes: Sequence[Route], request: Request, *, now: float, latest: bytes | Mapping[str, bytes] | None = None,
    reply: bytes | None = None, twice: bool = False,
) -> RequestTrial:  # fmt: skip
    """Answer one request, or with `twice` the second of two that are the same.

    Args:
        routes: Those that share the port.
        request: The request.
        now: Unix time in seconds.
        latest: What read events answer with: the payload on any one topic, or the payloads on topics by their names.
        reply: The message that comes on a REPLY_TOPIC.
        twice: Whether the same request comes twice.
    """

    async def answer_requests() -> RequestTrial:
        broker = _Broker(reply)
        host = Host(broker, _connect, _Keys(), _Clock(now), lambda: _NO_JITTER)
        outcomes = _LastRequest(host)
        server = ServerMode(host, outcomes)
        server.unmatched = _Uncounted(host.clock)
        server.use_routes(routes)
        broker.publish_to = partial(server.see, retained=False)
        if isinstance(latest, bytes):
            for topic_filter in read_filters(routes):
                server.reads.newest(topic_filter).topics = _AnyTopic(latest)
        elif latest is not None:
            for topic, payload in latest.items():
                server.see(Message(topic, payload, now), retained=True)
        application = server.application(0)
        application.use_routes(routes)
        for _ in range(1 + twice):
            answer = application.answer(request)
            response = await response_of(answer)
        if response.stream is not None:
            piece = response.stream.take()
            response = structs.replace(response, body=piece if isinstance(piece, bytes) else b"", stream=None)
        return RequestTrial(response, tuple(broker.published), outcomes.last)

    return asyncio.run(answer_requests())


class _Broker:
    """Keeps what is published. A request that waits for a reply gets it at once."""

    def __init__(self, reply: bytes | None) -> None:
        self.published: list[Publication] = []
        self.publish_to: Callable[[Message], None] = lambda _: None
        self._reply = reply

    def publish(self, publication: Publication, **_: object) -> "asyncio.Future[None]":
        self.published.append(publication)
        properties = publication.properties
        if self._reply is not None and properties is not None and properties.response_topic is not None:
            marked = MessageProperties(correlation=properties.correlation)
            self.publish_to(Message(properties.response_topic, self._reply, 0.0, marked))
        published = asyncio.get_running_loop().create_future()
        published.set_result(None)
        return published


class _LastRequest(Outcomes):
    """Keeps the last answered request; nothing is logged or counted."""

    last: RequestRun

    def note_request(self, run: RequestRun) -> None:
        self.last = run


class _Uncounted(UnmatchedRequests):
    """A request that leads to no endpoint is neither counted nor logged: its answer says it."""

    def note(self, port: int, method: str, path: str, status: int) -> None:
        pass


@dataclass(slots=True)
class _Keys:
    """The keys of DEDUPE_KEY, and what was answered."""

    seen: dict[bytes, bytes] = field(default_factory=dict)

    def answer(self, key: bytes) -> bytes | None:
        return self.seen.get(key)

    def keep(self, key: bytes, seconds: float, answer: bytes) -> None:  # noqa: ARG002
        self.seen[key] = answer


class _Clock:
    """A clock whose timers are due at once."""

    def __init__(self, now: float) -> None:
        self._now = now

    def time(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return 0.0

    def later(self, seconds: float, action: Callable[[], object]) -> asyncio.Handle:  # noqa: ARG002
        return asyncio.get_running_loop().call_soon(action)

    async def sleep(self, seconds: float) -> None:
        """Return at once."""


class _AnyTopic(OrderedDict[str, TopicPayload]):
    """The same payload on any topic that is asked for."""

    def __init__(self, payload: bytes) -> None:
        super().__init__()
        self._payload = TopicPayload(payload, 1)

    def get(self, topic: str, default: object = None) -> TopicPayload:  # noqa: ARG002
        return self._payload


def _connect(config: RestApiConfig, server: str) -> Sends:
    raise NotImplementedError("server mode sends no requests")

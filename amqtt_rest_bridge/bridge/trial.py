"""What one message or request would do, without a broker and without a network: for `rest-bridge try` and `test`.

The code of a running bridge builds requests, results and answers; here is only what takes the place of the HTTP
server and of the broker. Main thread.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import structs

from amqtt_rest_bridge.bridge.server.app import RouteApplication
from amqtt_rest_bridge.bridge.server.broker_access import Answers, BrokerAccess, Once, TopicPayload, Wake
from amqtt_rest_bridge.calls.batches import halve
from amqtt_rest_bridge.calls.call import OpenCall, Step, Verdict
from amqtt_rest_bridge.calls.requests import scheme_of_sender
from amqtt_rest_bridge.calls.stages import prepare
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.http_server import Pending, Request, Response
from amqtt_rest_bridge.link.bridge_end import Entry
from amqtt_rest_bridge.link.frames import Claim, Settle, ToBroker
from amqtt_rest_bridge.link.newest import Newest
from amqtt_rest_bridge.model import ClientEvent, HttpRequest, HttpResponse, Message, Publication, Route
from amqtt_rest_bridge.records.bridge_records import RawRequest, ServedEvent
from amqtt_rest_bridge.settings import BridgeSettings
from amqtt_rest_bridge.topics import filter_matches

REQUEST_ID = "00000000-0000-4000-8000-000000000000"
"""`{request_id}` of a trial."""

MAX_BYTES: Final = BridgeSettings().max_body_bytes
"""The default of max_body_bytes, and of max_response_bytes."""

ANY_KEY: Final = "<a UUID, the same for every try>"
"""The Idempotency-Key of a request that is only shown."""


def shown_request(route: Route, request: HttpRequest) -> HttpRequest:
    """Return a request with the scheme of the Authorization that is added where it is sent."""
    scheme = scheme_of_sender(route.config, request)
    if scheme is None:
        return request
    return structs.replace(request, headers=(*request.headers, ("Authorization", f"{scheme} (added when it is sent)")))


def try_call(
    route: Route,
    event: ClientEvent,
    message: Message,
    send: Callable[[HttpRequest], HttpResponse],
    *,
    key: str | None = None,
) -> Verdict:
    """Return the verdict on the one try of a call; `send` may raise `CallError`."""
    return try_calls(route, event, [message], send, key=key)[0]


def try_calls(
    route: Route,
    event: ClientEvent,
    messages: Iterable[Message],
    send: Callable[[HttpRequest], HttpResponse],
    *,
    key: str | None = None,
) -> list[Verdict]:
    """Return the verdicts on the one try of each call, of messages that come one after the other.

    Those of an event with BATCH_SIZE are one batch, with `BATCH_SPLIT` its halves too.
    """
    prepared, seen = prepare(route, event, max_body_bytes=MAX_BYTES), set[bytes]()
    calls = [OpenCall(0, prepared, message, key) for message in messages]
    if event.batch_size is None:
        return [_try_new(call, send, seen) for call in calls]
    verdicts = [(call, prepared.join(call)) for call in calls]
    ended = [verdict for _, verdict in verdicts if verdict is not None]
    joined = [call for call, verdict in verdicts if verdict is None]
    for first in range(0, len(joined), event.batch_size):
        call, *call.riders = joined[first : first + event.batch_size]
        ended += _try_batch(call, send)
    return ended


def _try_new(call: OpenCall, send: Callable[[HttpRequest], HttpResponse], seen: set[bytes]) -> Verdict:
    """Try a call, unless its DEDUPE_KEY is among those that were seen; add it to them."""
    if call.event.event.dedupe_key is not None:
        if (unsent := call.event.check(call)) is not None:
            return unsent
        call.was_seen = call.key in seen
    verdict = _try_once(call, send)
    if call.key is not None and verdict.step is Step.DONE:
        seen.add(call.key)
    return verdict


def _try_batch(call: OpenCall, send: Callable[[HttpRequest], HttpResponse]) -> list[Verdict]:
    verdict = _try_once(call, send)
    if verdict.step is Step.SPLIT:
        second = halve(call)
        return _try_batch(call, send) + _try_batch(second, send)
    return [verdict, *(call.event.share(rider, call, verdict) for rider in call.riders or ())]


def _try_once(call: OpenCall, send: Callable[[HttpRequest], HttpResponse]) -> Verdict:
    begun = call.event.begin(call)
    if isinstance(begun, Verdict):
        return begun
    try:
        return call.event.judge(call, send(begun.request))
    except CallError as error:
        return call.event.judge(call, error)


@dataclass(frozen=True, slots=True)
class RequestTrial:
    """A request of server mode, with its answer and what it published; `event` is None when no endpoint took it."""

    response: Response
    event: ServedEvent | None
    publications: tuple[Publication, ...]


def try_request(
    routes: Sequence[Route],
    request: Request,
    *,
    now: float,
    latest: bytes | Mapping[str, bytes] | None = None,
    reply: bytes | None = None,
    twice: bool = False,
) -> RequestTrial:
    """Answer one request, or with `twice` the second of two that are the same.

    Args:
        routes: Those that share the port.
        request: The request.
        now: Unix time in seconds.
        latest: What read events answer with: the payload on any one topic, or the payloads on topics by their names.
        reply: The message that comes on a REPLY_TOPIC.
        twice: Whether it comes a second time.
    """
    broker = _Broker(latest, reply)
    broker.answers = answers = _Answers()
    passed = [0.0]
    application = RouteApplication(routes, broker, clock=lambda: now, monotonic=lambda: passed[0])
    for _ in range(1 + twice):
        answer = application.answer(request, lambda: None)
        response = answer if isinstance(answer, Response) else _awaited(answer, passed)
    if response.stream is not None:
        piece = response.stream.take()
        response = structs.replace(response, body=piece if isinstance(piece, bytes) else b"", stream=None)
    return RequestTrial(response, answers.served, tuple(broker.link.published))


def _awaited(answer: Pending, passed: list[float]) -> Response:
    while not isinstance(outcome := answer.resume(), Response):
        passed[0] += outcome
    return outcome


class _Link:
    """A link with room for everything; what is published brings the reply that comes on a REPLY_TOPIC."""

    def __init__(self, on_published: Callable[[], None]) -> None:
        self.published: list[Publication] = []
        self._on_published = on_published
        self._seen: dict[bytes, bytes] = {}
        self.claimed: Callable[[int, bytes | None], None] = lambda *_: None

    def publish(self, publication: Publication) -> bool:
        self.published.append(publication)
        self._on_published()
        return True

    def enqueue(self, publication: Publication, wake: Wake, *, confirmed: bool, once: Once | None = None) -> Entry:  # noqa: ARG002  # as all are
        if once is not None:
            self._seen[once[0]] = once[2]
        entry = Entry(publication, 0)
        entry.sent = entry.outcome = self.publish(publication)
        return entry

    def end_turn(self) -> None:
        pass

    def send_in_order(self, frame: ToBroker) -> None:
        """Grant a claim unless its key was seen; with DEDUPE_KEY nothing else is sent so."""
        if isinstance(frame, Claim):
            self.claimed(frame.claim, self._seen.get(frame.key))
        elif isinstance(frame, Settle) and frame.answer is not None:
            self._seen[frame.key] = frame.answer

    def withdraw(self, entry: Entry) -> bool:  # noqa: ARG002  # none waits
        return False


class _Broker(BrokerAccess):
    """A broker with one message for all that wait, and the event whose answer was counted."""

    is_mqtt_5 = True  # what is published shows its properties

    def __init__(self, latest: bytes | Mapping[str, bytes] | None, reply: bytes | None) -> None:
        self.link = _Link(self._answer)
        super().__init__(self.link)
        self.link.claimed = self.claims.answered
        self._latest = latest
        self._reply = reply

    def newest(self, topic_filter: str) -> Newest[TopicPayload]:
        newest: Newest[TopicPayload] = Newest(topic_filter)
        if isinstance(self._latest, bytes):
            newest.topics = _AnyTopic(self._latest)
        for topic, payload in self._latest.items() if isinstance(self._latest, Mapping) else ():
            if filter_matches(topic_filter, topic):
                newest.put(topic, TopicPayload(payload, newest.number + 1))
        return newest

    def _answer(self) -> None:
        for topic, waiting in [*self.awaited.items()]:
            if self._reply is not None:
                self.seen(topic, self._reply, waiting[0].correlation)


class _AnyTopic(dict[str, TopicPayload]):
    """The same payload on any topic that is asked for."""

    def __init__(self, payload: bytes) -> None:
        super().__init__()
        self._payload = TopicPayload(payload, 1)

    def get(self, topic: str, default: object = None) -> TopicPayload:  # noqa: ARG002
        return self._payload


class _Answers(Answers):
    """Which event took the request."""

    served: ServedEvent | None = None

    def count(self, raw: RawRequest) -> None:
        self.served = raw.served

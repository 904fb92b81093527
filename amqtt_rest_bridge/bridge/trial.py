"""What one message or request would do, without a broker and without a network: for `rest-bridge try` and `test`.

The code of a running bridge builds requests, results and answers; here is only what takes the place of the HTTP
server and of the broker. Main thread.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from amqtt_rest_bridge.bridge.broker_port import ServedEvent, Wake
from amqtt_rest_bridge.bridge.payloads import TopicPayload
from amqtt_rest_bridge.bridge.server.app import RouteApplication
from amqtt_rest_bridge.calls.call import OpenCall, Verdict
from amqtt_rest_bridge.calls.stages import prepare
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.http_server import Request, Response
from amqtt_rest_bridge.model import ClientEvent, HttpRequest, HttpResponse, Message, Publication, Route

REQUEST_ID = "00000000-0000-4000-8000-000000000000"
"""`{request_id}` of a trial."""

MAX_BYTES = 262_144
"""The plugin's defaults of max_body_bytes and max_response_bytes."""


def try_call(
    route: Route,
    event: ClientEvent,
    message: Message,
    send: Callable[[HttpRequest], HttpResponse],
    *,
    key: str | None = None,
) -> Verdict:
    """Return the verdict on the one try of a call; `send` may raise `CallError`."""
    call = OpenCall(0, prepare(route, event, max_body_bytes=MAX_BYTES), message, key)
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
    latest: bytes | None = None,
    reply: bytes | None = None,
) -> RequestTrial:
    """Answer one request; `latest` is the payload of read events, `reply` the message that comes on a REPLY_TOPIC."""
    broker = _Broker(latest, reply)
    passed = [0.0]
    application = RouteApplication(
        routes, broker, max_body_bytes=MAX_BYTES, clock=lambda: now, monotonic=lambda: passed[0]
    )
    answer = application.answer(request, lambda: None)
    while not isinstance(answer, Response):
        outcome = answer.resume()
        if isinstance(outcome, Response):
            answer = outcome
            break
        passed[0] += outcome
    return RequestTrial(answer, broker.served, tuple(broker.published))


@dataclass(slots=True)
class _Reply:
    payload: bytes | None = None
    dismissed: bool = False


@dataclass(slots=True)
class _Sent:
    sent: bool = True
    outcome: bool = True

    def withdraw(self) -> bool:
        return False


@dataclass(slots=True)
class _Broker:
    """A broker with room for everything; fulfils `BrokerPort`."""

    _latest: bytes | None
    _reply: bytes | None
    published: list[Publication] = field(default_factory=list)
    served: ServedEvent | None = None
    _expected: list[_Reply] = field(default_factory=list)
    records = None

    def publish(self, publication: Publication) -> bool:
        self.published.append(publication)
        for reply in self._expected:
            reply.payload = self._reply
        return True

    def enqueue(self, publication: Publication, wake: Wake) -> _Sent:
        self.publish(publication)
        wake()
        return _Sent()

    def latest(self, topic_filter: str) -> TopicPayload | None:  # noqa: ARG002  # there is one
        return None if self._latest is None else TopicPayload(self._latest)

    @contextmanager
    def expect(self, topic: str, wake: Wake) -> Iterator[_Reply]:  # noqa: ARG002  # the reply comes at once
        self._expected.append(reply := _Reply())
        yield reply

    def answered(
        self,
        served: ServedEvent,
        request_id: str,  # noqa: ARG002
        status: str,  # noqa: ARG002
        code: str | None,  # noqa: ARG002
        message: str | None,  # noqa: ARG002
        seconds: float,  # noqa: ARG002
    ) -> None:
        self.served = served

    def unmatched(self, port: int, method: str, path: str, status: str) -> None:
        """Count nothing."""

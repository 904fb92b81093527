"""The server mode of a bridge process in a test: an application on a fake broker."""

import queue
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

from amqtt_rest_bridge.bridge.server.app import RouteApplication
from amqtt_rest_bridge.bridge.server.broker_access import (
    Answers,
    AwaitedReply,
    BrokerAccess,
    SendsPublications,
    Wake,
)
from amqtt_rest_bridge.http_server import Pending, Request, Response
from amqtt_rest_bridge.http_server.wrong_credentials import WrongCredentials
from amqtt_rest_bridge.link.bridge_end import Entry
from amqtt_rest_bridge.model import Publication, Route, ServerEvent
from amqtt_rest_bridge.records.bridge_records import BridgeRecords, RawRequest
from amqtt_rest_bridge.settings import BridgeSettings
from tests.support.server_mode import NOW, REQUEST_ID, Result, route


class FakeReply(AwaitedReply):
    """A place among the waiting; the test gives the reply."""

    def __init__(self, topic: str, wake: Wake, correlation: bytes | None, *, takes_unmarked: bool) -> None:
        super().__init__(wake, correlation, takes_unmarked=takes_unmarked)
        self.topic = topic


class FakeAnswers(Answers):
    """Keeps what was counted."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: list[tuple[str, str | None]] = []
        self.lines: list[str] = []

    def count(self, raw: RawRequest) -> None:
        assert raw.seconds >= 0
        code = None if raw.kind == "request" else raw.kind
        self.counted.append((raw.served.route, code if raw.failure is None else raw.failure[0]))
        self.lines.append(f"answered {raw.served.request} with {raw.status}")

    def unmatched(self, port: int, method: str, path: str, status: str) -> None:
        self.lines.append(f"port {port}: {method} {path} led to no endpoint: {status}")


class FakeBroker(BrokerAccess):
    """Keeps what was published in `published` and every step in `log`.

    Each publication takes one of `outcomes`: false when there is no room, an exception that is raised. A reply is what
    `on_wait` returns for its topic; where that is None, `waiting` has the place of the request that waits.
    """

    answers: FakeAnswers

    def __init__(self) -> None:
        super().__init__(cast("SendsPublications", SimpleNamespace(send_in_order=None)))
        self.records: BridgeRecords | None = None
        self.answers = FakeAnswers()
        self.published: list[Publication] = []
        self.counted, self.lines = self.answers.counted, self.answers.lines
        self.log: list[str] = []
        self.outcomes: deque[bool | Exception] = deque()
        self.queued: list[tuple[Entry, Publication, Wake]] = []
        """What waits for room until the test makes some."""
        self.waiting: queue.SimpleQueue[FakeReply] = queue.SimpleQueue()
        self._expected: deque[FakeReply] = deque()
        self.on_wait: Callable[[str], bytes | None] = lambda _topic: None
        self.on_publish: Callable[[Publication], object] = lambda _publication: None

    def publish(self, publication: Publication) -> bool:
        outcome = self.outcomes.popleft() if self.outcomes else True
        if isinstance(outcome, Exception):
            raise outcome
        if outcome:
            self.log.append(f"publish {publication.topic}")
            self.published.append(publication)
            self.on_publish(publication)
            while self._expected:
                self._reply_to(self._expected.popleft())
        return outcome

    def _reply_to(self, reply: FakeReply) -> None:
        payload = self.on_wait(reply.topic)
        if payload is None:
            self.waiting.put(reply)
        else:
            reply.arrive(payload)

    def enqueue(self, publication: Publication, wake: Wake, _: object = None) -> Entry:
        queued = Entry(publication, 1)
        queued.sent = self.publish(publication)
        if queued.sent:
            queued.outcome = True
        else:
            self.queued.append((queued, publication, wake))
        return queued

    def withdraw(self, queued: Entry) -> bool:
        before, self.queued = self.queued, [one for one in self.queued if one[0] is not queued]
        return len(self.queued) < len(before)

    def make_room(self) -> None:
        """Publish what is queued, as the engine does when credits come."""
        waiting, self.queued = self.queued, []
        for queued, publication, wake in waiting:
            queued.sent = queued.outcome = self.publish(publication)
            wake()

    @contextmanager
    def expect(
        self, topic: str, wake: Wake, correlation: bytes | None = None, *, takes_unmarked: bool = True
    ) -> Iterator[FakeReply]:
        self.log.append(f"expect {topic}")
        reply = FakeReply(topic, wake, correlation, takes_unmarked=takes_unmarked)
        self._expected.append(reply)
        try:
            yield reply
        finally:
            self.log.append(f"done {topic}")


def result_of(response: Response) -> Result:
    headers = {name.lower(): value for name, value in response.headers}
    return Result(int(response.status[:3]), headers, response.body)


class Port:
    """An application on a fake broker; time passes when an answer waits, and is kept in `waited`."""

    def __init__(self, *routes: Route, max_body_bytes: int = 1000, openapi: bool = False) -> None:
        self.routes = routes
        self._openapi = openapi
        self.broker = FakeBroker()
        self.waited: list[float] = []
        self._wrong_credentials = WrongCredentials(lambda: sum(self.waited))
        self.app = self.application(*routes, max_body_bytes=max_body_bytes)

    def application(self, *routes: Route, max_body_bytes: int = 1000, port: int = 8080) -> RouteApplication:
        """Make an application for other routes or another port of the same bridge process."""
        return RouteApplication(
            routes,
            self.broker,
            BridgeSettings(max_body_bytes=max_body_bytes, max_response_bytes=1000, openapi=self._openapi),
            clock=lambda: NOW,
            monotonic=lambda: sum(self.waited),
            wrong_credentials=self._wrong_credentials,
            port=port,
        )

    def begin(
        self, method: str, path: str, body: bytes | str | None = None, *, remote: str = "192.0.2.1", **headers: str
    ) -> Response | Pending:
        """Send a request with `path` as its target; `X_Y="z"` is the header X-Y."""
        return self.app.answer(self.request(method, path, body, remote=remote, **headers), lambda: None)

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
        return result_of(answer if isinstance(answer, Response) else self.finish(answer))

    def finish(self, pending: Pending) -> Response:
        """Resume a pending answer until it is complete; nothing wakes it."""
        while not isinstance(outcome := pending.resume(), Response):
            self.waited.append(outcome)
        return outcome

    @property
    def published(self) -> list[tuple[str, bytes]]:
        return [(publication.topic, publication.payload) for publication in self.broker.published]


def port(*events: ServerEvent, **settings: Any) -> Port:
    return Port(route(*events, **settings))

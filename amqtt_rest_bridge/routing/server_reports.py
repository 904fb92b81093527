"""Server mode in the broker process: requests to publish, answers to count, messages to wait for. The broker's loop."""

import logging
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from amqtt_rest_bridge.catalogue import BROKER_UNAVAILABLE, INTERNAL_ERROR, REPLIES_FULL
from amqtt_rest_bridge.errors import BridgeError, CallError
from amqtt_rest_bridge.link.admin_frames import EndedRequest
from amqtt_rest_bridge.link.frames import (
    MOST_REPLY_BYTES,
    NOT_SERVED,
    WELL,
    EventAnswers,
    RequestCount,
    RouteAnswers,
    Served,
)
from amqtt_rest_bridge.model import Message, Publication, Route, ServerEvent
from amqtt_rest_bridge.records.kept_runs import KeptRun
from amqtt_rest_bridge.route_set import asking, routes_by_port
from amqtt_rest_bridge.routing.claims import Claims
from amqtt_rest_bridge.routing.outcomes import Outcomes
from amqtt_rest_bridge.routing.route_table import Watching
from amqtt_rest_bridge.routing.unmatched import Unmatched
from amqtt_rest_bridge.sizes import size_text
from amqtt_rest_bridge.topics import loggable


class BrokerFullError(BridgeError):
    """Nothing was published: too much waits to be."""


class ServerReports:
    """Publish what the bridge processes' server mode sends, and note what it reports, in log and statistics."""

    def __init__(self, outcomes: Outcomes, claims: Claims) -> None:
        self.watching = Watching()
        """The topic filters of read events and of replies."""
        self.unmatched = Unmatched()
        """The requests that led to no endpoint."""
        self.publisher = outcomes.publisher
        self.claims = claims
        """The keys of DEDUPE_KEY."""
        self._outcomes = outcomes
        self._routes: tuple[Route, ...] = ()
        self._unserved: dict[int, Mapping[int, str]] = {}  # why, by bridge process and port
        self._readers: dict[int, Mapping[str, int]] = {}  # by bridge process and route

    def replace(self, routes: Iterable[Route], reads: Iterable[str], replies: Mapping[str, float]) -> None:
        """Use other routes; for `reads` and `replies` see `Watching.replace`."""
        self._routes = tuple(routes)
        self.unmatched.replace(self._routes)
        self.watching.replace(reads, replies)

    def served(self, report: Served) -> None:
        """Note what was answered."""
        self.unmatched.note(report.unmatched, report.unmatched_totals)
        for event in report.events:
            level = logging.WARNING if event.is_failure else logging.INFO
            name = event.route, event.event
            self._outcomes.quiet.note(level, name, "%s", event.line, status_class=event.status_class, count=event.count)
        if self._outcomes.records is not None:
            self._outcomes.records.served(report.requests, report.times)
        for route, answers in report.routes.items():
            statistics = self._outcomes.statistics.get(route)
            if statistics is not None:
                statistics.served(answers, time.time())
                self._outcomes.noted(statistics)

    def ended(self, request: EndedRequest) -> None:
        """Keep a request."""
        if self._outcomes.records is not None:
            self._outcomes.records.request(request)

    def publish_again(self, kept: KeptRun, ended: Callable[[], None]) -> str | None:
        """Publish the message of a kept request by the definition in use now; return the id of the new run.

        `ended` is called once the broker has it, or has not taken it. Returns None where no event publishes it any
        more; raises `BrokerFullError`.

        Decision: no caller waits for a reply any more: the run has succeeded once the broker has the message. It
        counts like a request that was answered with RESPONSE_STATUS.
        """
        names = kept.record.route, kept.record.event
        found = (one for route in self._routes for one in route.server_events if (route.name, one.name) == names)
        event = next(found, None)
        if event is None or event.destination_topic is None:
            return None
        run = str(uuid.uuid4())
        publication = Publication(kept.topic, kept.payload or b"", event.retain, kept.properties, event.qos)
        if not self.publisher.put(publication, 1, confirm=partial(self._published_again, kept, event, run, ended)):
            raise BrokerFullError("the broker has no room for the message now")
        return run

    def _published_again(
        self, kept: KeptRun, event: ServerEvent, run: str, ended: Callable[[], None], published: bool
    ) -> None:
        route, status, code, message = kept.record.route or "", str(event.response_status), None, None
        answers, did = RouteAnswers(1, 0, "", "", recent=WELL), "published"
        if not published:
            row, message = BROKER_UNAVAILABLE, "The MQTT broker is away or has not acknowledged the message"
            status, code = row.status[:3], row.code
            answers, did = RouteAnswers(0, 1, code, message, recent=NOT_SERVED), "did not publish"
        text = f"{did} the message of {kept.record.id} again, run {run}"
        line = EventAnswers(route, event.name, int(status[0]), 1, text, is_failure=not published)
        count = RequestCount(route, event.name, status, 1, code, message, run)
        self.served(Served({route: answers}, [line], [count]))
        if self._outcomes.records is not None:
            self._outcomes.records.sent_again(kept, count)
        ended()

    def reply_dropped(self, message: Message) -> None:
        """Note a message that a bridge process had no room for, as an error of each route that may wait for it."""
        most = f"a bridge process has {size_text(MOST_REPLY_BYTES)} of replies to read already"
        failure = REPLIES_FULL.error(f"a reply of {len(message.payload)} bytes was dropped: {most}")
        self._dropped(asking(self._routes, message.topic), "dropped a reply on %s: %s", message, failure)

    def dropped_too_large(self, message: Message, failure: CallError) -> None:
        """Note a message that is too large for read events and replies, as an error of each of their routes.

        Decision: a read event goes on to answer with the message before; status and log tell.
        """
        events = asking(self._routes, message.topic, reads=True)
        self._dropped(events, "dropped a message on %s: %s", message, failure)

    def _dropped(self, events: Iterable[tuple[str, str]], text: str, message: Message, failure: CallError) -> None:
        topic = loggable(message.topic)
        for route, event in events:
            self._outcomes.quiet.note(logging.ERROR, (route, event), text, topic, failure.message)
            self._outcomes.error(route, failure.code, failure.message, of_server=True)

    def stalled(self, ports: Collection[int]) -> None:
        """Note ports that have stopped answering, as an error of each of their routes."""
        for routes in routes_by_port(self._routes, ports).values():
            for route in routes:
                message = "the port of the route has stopped answering"
                self._outcomes.error(route.name, INTERNAL_ERROR.code, message, of_server=True)

    def breaker(self, route: str, reason: str | None) -> None:
        """Note that the breaker of a route is open, and why, or that it is closed."""
        statistics = self._outcomes.statistics.get(route)
        if statistics is not None:
            statistics.note_breaker(reason)
            self._outcomes.noted(statistics)

    def readers(self, process: int, readers: Mapping[str, int]) -> None:
        """Note how many streams a bridge process serves, by route."""
        self._readers[process] = readers
        for name, statistics in self._outcomes.statistics.items():
            statistics.note_readers(sum(one.get(name, 0) for one in self._readers.values()))

    def unserved(self, process: int, ports: Mapping[int, str]) -> None:
        """Note the ports that a bridge process cannot serve, and why: their routes are Red until it serves them."""
        self._unserved[process] = ports
        troubles, now = self._troubles(), time.time()
        by_port = routes_by_port(self._routes, troubles)
        down = {route.name: troubles[port] for port, routes in by_port.items() for route in routes}
        for name, statistics in self._outcomes.statistics.items():
            statistics.note_down(down.get(name), now)
            self._outcomes.noted(statistics)

    def troubles(self) -> list[str]:
        """Return which ports are not served, and why, in sentences."""
        return [trouble for _, trouble in sorted(self._troubles().items())]

    def _troubles(self) -> dict[int, str]:
        found = (one for faults in self._unserved.values() for one in faults.items())
        return {port: f"SERVER_PORT {port} is not served: {reason}" for port, reason in found}

"""Server mode in the broker process: requests to publish, answers to count, messages to wait for. The broker's loop."""

import logging
import time
from collections.abc import Collection, Iterable, Mapping

from amqtt_rest_bridge.catalogue import INTERNAL_ERROR
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.failures import message_too_large, reply_dropped
from amqtt_rest_bridge.link.frames import MOST_REPLY_BYTES, Served
from amqtt_rest_bridge.model import Message, Route
from amqtt_rest_bridge.route_set import asking, routes_by_port
from amqtt_rest_bridge.routing.outcomes import Outcomes
from amqtt_rest_bridge.routing.route_table import Watching
from amqtt_rest_bridge.routing.unmatched import Unmatched
from amqtt_rest_bridge.topics import loggable


class ServerReports:
    """Publish what the bridge processes' server mode sends, and note what it reports, in log and statistics."""

    def __init__(self, outcomes: Outcomes) -> None:
        self.watching = Watching()
        """The topic filters of read events and of replies."""
        self.unmatched = Unmatched()
        """The requests that led to no endpoint."""
        self.publisher = outcomes.publisher
        self._outcomes = outcomes
        self._routes: tuple[Route, ...] = ()
        self._unserved: dict[int, Mapping[int, str]] = {}  # why, by bridge process and port

    def replace(self, routes: Iterable[Route], reads: Iterable[str], replies: Mapping[str, float]) -> None:
        """Use other routes; for `reads` and `replies` see `Watching.replace`."""
        self._routes = tuple(routes)
        self.unmatched.replace(self._routes)
        self.watching.replace(reads, replies)

    def served(self, report: Served) -> None:
        """Note what was answered."""
        self.unmatched.note(report.unmatched, report.unmatched_totals)
        for event in report.events:
            self._outcomes.quiet.note(logging.INFO, (event.route, event.event), "%s", event.line, count=event.count)
        if self._outcomes.records is not None:
            self._outcomes.records.served(report.requests, report.times)
        for route, answers in report.routes.items():
            statistics = self._outcomes.statistics.get(route)
            if statistics is not None and statistics.served(answers, time.time()):
                self._outcomes.on_health(statistics)

    def reply_dropped(self, message: Message) -> None:
        """Note a message that a bridge process had no room for, as an error of each route that may wait for it."""
        failure = reply_dropped(len(message.payload), MOST_REPLY_BYTES)
        self._dropped(asking(self._routes, message.topic), "dropped a reply on %s: %s", message, failure)

    def too_large(self, message: Message, most: int) -> None:
        """Note a message that is too large for read events and replies, as an error of each of their routes.

        Decision: a read event goes on to answer with the message before; status and log tell.
        """
        failure = message_too_large(len(message.payload), most)
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

    def unserved(self, process: int, ports: Mapping[int, str]) -> None:
        """Note the ports that a bridge process cannot serve, and why: their routes are Red until it serves them."""
        self._unserved[process] = ports
        reasons = {port: reason for faults in self._unserved.values() for port, reason in faults.items()}
        down = {
            route.name: f"SERVER_PORT {port} is not served: {reasons[port]}"
            for port, routes in routes_by_port(self._routes, reasons).items()
            for route in routes
        }
        now = time.time()
        for name, statistics in self._outcomes.statistics.items():
            if statistics.note_down(down.get(name), now):
                self._outcomes.on_health(statistics)

    def troubles(self) -> list[str]:
        """Return which ports are not served, and why, in sentences."""
        reasons = {port: reason for faults in self._unserved.values() for port, reason in faults.items()}
        return [f"SERVER_PORT {port} is not served: {reason}" for port, reason in sorted(reasons.items())]

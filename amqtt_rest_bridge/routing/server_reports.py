"""What server mode tells of its routes: requests answered, replies dropped, ports that hang. The broker's loop."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from amqtt_rest_bridge.failures import reply_dropped
from amqtt_rest_bridge.link.frames import Served
from amqtt_rest_bridge.model import Message, Route
from amqtt_rest_bridge.route_set import asking, routes_by_port
from amqtt_rest_bridge.routing.quiet_log import QuietLog
from amqtt_rest_bridge.routing.statistics import RouteAccount
from amqtt_rest_bridge.topics import loggable


class ServerReports:
    """Note it in the log and in the routes' accounts.

    Args:
        quiet: Logs what may come often.
        changed: Called with an account whose health changed.
    """

    def __init__(self, quiet: QuietLog, changed: Callable[[RouteAccount], None]) -> None:
        self._quiet = quiet
        self._changed = changed
        self._routes: tuple[Route, ...] = ()
        self._accounts: Mapping[str, RouteAccount] = {}
        self._unserved: dict[int, Mapping[int, str]] = {}  # why, by bridge process and port

    def replace(self, routes: Iterable[Route], accounts: Mapping[str, RouteAccount]) -> None:
        """Use other routes, and the account of each."""
        self._routes, self._accounts = tuple(routes), accounts

    def served(self, report: Served, now: float) -> None:
        """Note what was answered."""
        for event in report.events:
            self._quiet.note(logging.INFO, (event.route, event.event), "%s", event.line, count=event.count)
        for route, answers in report.routes.items():
            account = self._accounts.get(route)
            if account is not None and account.served(answers, now):
                self._changed(account)

    def reply_dropped(self, message: Message) -> None:
        """Note a message that a bridge process had no room for, as an error of each route that may wait for it."""
        failure = reply_dropped(len(message.payload))
        topic = loggable(message.topic)
        for route, event in asking(self._routes, message.topic):
            self._quiet.note(logging.ERROR, (route, event), "dropped a reply on %s: %s", topic, failure.message)
            self._error(route, failure.code, failure.message, message.timestamp)

    def stalled(self, ports: Collection[int], now: float) -> None:
        """Note ports that have stopped answering, as an error of each of their routes."""
        for routes in routes_by_port(self._routes, ports).values():
            for route in routes:
                self._error(route.name, "internal_error", "the port of the route has stopped answering", now)

    def unserved(self, process: int, ports: Mapping[int, str], now: float) -> None:
        """Note the ports that a bridge process cannot serve, and why: their routes are Red until it serves them."""
        self._unserved[process] = ports
        reasons = {port: reason for faults in self._unserved.values() for port, reason in faults.items()}
        down = {
            route.name: f"SERVER_PORT {port} is not served: {reasons[port]}"
            for port, routes in routes_by_port(self._routes, reasons).items()
            for route in routes
        }
        for name, account in self._accounts.items():
            if account.note_down(down.get(name), now):
                self._changed(account)

    def _error(self, route: str, code: str, message: str, now: float) -> None:
        account = self._accounts[route]
        if account.try_failed(code, message, now):
            self._changed(account)

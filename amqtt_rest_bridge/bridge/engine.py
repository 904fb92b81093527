"""The bridge process's engine: frames in, calls and requests run, results out. Independent of the process around it.

The link's readers do what the broker says, one at a time. Routes' workers, the ports' threads and the timers only
meet them at the link and in `BrokerAccess`.
"""

import logging
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from amqtt_rest_bridge.bridge.client.client_mode import ClientMode
from amqtt_rest_bridge.bridge.client.senders import Sender, sender_of
from amqtt_rest_bridge.bridge.client.worker_pool import ThreadBudget
from amqtt_rest_bridge.bridge.ports import Port, Ports, PortWatch
from amqtt_rest_bridge.bridge.server.broker_access import BrokerAccess
from amqtt_rest_bridge.bridge.server.responders import ReplyTurns
from amqtt_rest_bridge.bridge.timers import Timers
from amqtt_rest_bridge.errors import BridgeError
from amqtt_rest_bridge.http_client import TlsContexts
from amqtt_rest_bridge.http_server.wrong_credentials import WrongCredentials
from amqtt_rest_bridge.link.admin_frames import (
    ForAdmin,
    FoundRuns,
    FromAdmin,
    LiveRecords,
    NumbersPart,
    Retried,
    ServeAdmin,
    WantLive,
    WantRuns,
)
from amqtt_rest_bridge.link.bridge_end import BridgeEnd, LinkReaders
from amqtt_rest_bridge.link.frames import (
    Claimed,
    Confirmed,
    CreditReturn,
    Failed,
    InGroup,
    Latest,
    Listen,
    Ping,
    Ready,
    Replies,
    Stop,
    Stopped,
    ToBridge,
    UseRoutes,
    Withdraw,
)
from amqtt_rest_bridge.model import Capture, NumberedRoute, RestApiConfig, Route
from amqtt_rest_bridge.records.bridge_records import BridgeRecords
from amqtt_rest_bridge.route_set import read_filters, routes_by_port, with_bound_ports
from amqtt_rest_bridge.settings import BridgeSettings

if TYPE_CHECKING:  # imported only where there is an admin port
    from amqtt_rest_bridge.bridge.admin_port import AdminServer

log = logging.getLogger(__name__)

_ANSWER_SECONDS: Final = 0.5  # of the grace at the end: what is left to answer those who wait for a reply
_REPORT_SECONDS: Final = 0.5  # how often answers and readers of server mode are counted to the broker
_EXPIRE_SECONDS: Final = 5.0  # how often idle connections are looked through: a burst leaves one for each worker
_STOP_LOOK_SECONDS: Final = 0.01


class Network:
    """The engine's access to the network: HTTP clients and servers, and what they share."""

    def __init__(self) -> None:
        self._turns = ReplyTurns()
        self._wrong_credentials = WrongCredentials()
        self._contexts = TlsContexts()

    def sender(self, config: RestApiConfig, settings: BridgeSettings) -> Sender:
        """Return the HTTP client of a route; its TLS files are read when it connects."""
        limit = settings.max_response_bytes
        return sender_of(config, max_response_bytes=limit, environment=os.environ, contexts=self._contexts)

    def server(
        self, broker: BrokerAccess, sock: socket.socket, routes: tuple[Route, ...], settings: BridgeSettings
    ) -> Port:
        """Serve routes on a listening socket."""
        return Port(sock, routes, broker, settings, self._turns, self._wrong_credentials)

    def admin(
        self,
        sock: socket.socket,
        settings: BridgeSettings,
        records: BridgeRecords,
        after: Callable[[float, Callable[[], None]], None],
        send: Callable[[FromAdmin], None],
    ) -> "AdminServer":
        """Start the admin port; imported only where there is one."""
        from amqtt_rest_bridge.bridge.admin_port import AdminServer

        return AdminServer(sock, settings, records, after, send, wrong_credentials=self._wrong_credentials)


class Engine:
    """Handles the frames of one link until it closes.

    Args:
        link: Its end of the link.
        network: Makes senders and ports.
        on_routes: Called once other routes are in use.
        threads: Admits the threads of all routes; 2,048 by default.
    """

    def __init__(
        self,
        link: BridgeEnd,
        network: Network,
        on_routes: Callable[[], None] = lambda: None,
        threads: ThreadBudget | None = None,
    ) -> None:
        self._link = link
        self._network = network
        self._on_routes = on_routes
        self._timers = Timers()
        self._broker = BrokerAccess(link)
        self._client = ClientMode(link, self._broker.claims, self._timers, network.sender, threads or ThreadBudget())
        self._ports = Ports(partial(network.server, self._broker), self._timers, link.send)
        self._watch = PortWatch(link.send)
        self._admin_socket: socket.socket | None = None
        self._admin: AdminServer | None = None  # where the admin port is this process's
        self._ending = False
        self._timers.after(_REPORT_SECONDS, self._report)
        self._timers.after(_EXPIRE_SECONDS, self._expire)

    def run(self) -> None:
        """Serve until the broker closes the link; blocks."""
        try:
            LinkReaders(self._link, self._client.take, self._handle).run()
        except BridgeError as error:
            self._link.send(Failed(str(error)))
        finally:
            self._close()

    def _handle(self, frame: ToBridge) -> None:  # noqa: C901  # a case for each frame
        """Handle a frame on the reader whose turn it is; calls go to client mode without the engine."""
        match frame:
            case CreditReturn(credits):
                self._link.credit(credits)
            case Confirmed(numbers, refused):
                self._link.confirm(numbers, published=True)
                self._link.confirm(refused, published=False)
            case Claimed(number, answer):
                self._broker.claims.answered(number, answer)
            case Replies(messages):
                for message in messages:
                    self._broker.seen(message.topic, message.payload, message.correlation, message.trace)
            case Withdraw(calls):
                self._client.withdraw(calls)
            case Latest(newest):
                for one in newest:
                    self._broker.changed(one.topic_filter, one.topic, one.payload)
            case UseRoutes(pickled, ports):
                self._use_routes(pickled, ports)
            case Listen(ports):
                for port in ports:
                    self._ports.add(port, self._link.take_socket())
            case InGroup(workers, ordered_until):
                self._client.in_group(workers, ordered_until)
            case Stop(grace):
                self._ending = True  # and the ports' loops with it
                self._broker.end_streams()
                self._timers.after(max(0.0, grace - _ANSWER_SECONDS), self._broker.dismiss)
                threading.Thread(target=self._stop, args=(grace,), name="bridge-stop").start()
            case Ping():
                self._watch.ping({} if self._ending else self._ports.servers)
            case ServeAdmin():
                self._admin_socket = self._link.take_socket()
            case WantRuns() | WantLive():
                if self._broker.records is not None:
                    self._broker.records.handle(frame)
            case NumbersPart() | FoundRuns() | LiveRecords() | Retried():
                self._show(frame)

    def _show(self, frame: ForAdmin) -> None:
        if self._admin is not None:
            self._admin.take(frame)

    def _use_routes(self, pickled: bytes, ports: list[int]) -> None:
        settings: BridgeSettings
        routes: tuple[NumberedRoute, ...]
        settings, routes = pickle.loads(pickled)  # noqa: S301  # from our own broker process
        self._record(routes, settings)
        self._broker.is_mqtt_5 = settings.is_mqtt_5
        self._client.use_routes(routes, settings, self._broker.records)
        self._broker.watch(read_filters(numbered.route for numbered in routes))
        self._ports.serve(routes_by_port((numbered.route for numbered in routes), ports), settings)
        self._broker.end_streams(numbered.route for numbered in routes)
        self._on_routes()
        self._link.send(Ready())

    def _record(self, routes: tuple[NumberedRoute, ...], settings: BridgeSettings) -> None:
        if settings.recorded and self._broker.records is None:
            self._broker.answers.recorded = True
            after, send, sock = self._timers.after, self._link.send, self._admin_socket
            show = None if sock is None else self._show
            records = BridgeRecords(settings.runs, Capture(settings.capture), after, send, self._link.offer, show)
            self._broker.records = records
            if sock is not None:
                self._admin = self._network.admin(sock, settings, records, after, send)
        if self._broker.records is not None:
            self._broker.records.keep(numbered.route for numbered in routes)
        if self._admin is not None:
            self._admin.use_routes(with_bound_ports((numbered.route for numbered in routes), self._ports.bound))

    def _report(self) -> None:
        self._timers.after(_REPORT_SECONDS, self._report)
        report = self._broker.answers.take()
        if report.routes or report.unmatched_totals:
            self._link.send_in_order(report)
        readers = self._broker.take_readers()
        if readers is not None:
            self._link.send_in_order(readers)
        self._client.close_retired()

    def _expire(self) -> None:
        self._timers.after(_EXPIRE_SECONDS, self._expire)
        self._client.expire()

    def _stop(self, grace: float) -> None:
        """Wait for what runs, then send `Stopped`."""
        deadline = time.monotonic() + grace
        self._client.stop()
        self._ports.stop(deadline)
        self._broker.closing = True
        if self._admin is not None:
            self._admin.stop(0.0)
        while time.monotonic() < deadline and (self._client.is_busy or self._link.is_behind):
            threading.Event().wait(_STOP_LOOK_SECONDS)
        if self._broker.records is not None:
            self._broker.records.flush()
        self._link.send_in_order(self._broker.answers.take())
        self._link.send_in_order(Stopped())

    def _close(self) -> None:
        self._broker.closing = True
        self._link.release_workers()
        self._timers.close()
        self._broker.dismiss()
        self._ports.close()
        if self._admin is not None:
            self._admin.stop(0.0)
        self._client.close()
        self._link.close()

"""The bridge of the plugin, which shares its messages with no other: the counterpart of a group's `Member`.

It is a client of the private endpoint in the broker process (`mqtt.private`), with these sessions:

| client id | subscribes | session |
|---|---|---|
| `own`, which publishes | what read events and replies need, `BROKER_TOPIC` | ends with its connection |
| `main` | each event of the routes that are not lossless | kept |
| `lossless:<route>` | each event of a lossless route | kept |
| `commands` (`coreflux`) | the commands | kept |

A route that a reload makes lossless, or no longer lossless, moves to another session; so do its events, one by one, and
each message comes once. The event loop only.
"""

import asyncio
import contextlib
import itertools
import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol
from zlib import crc32

import msgspec

from amqtt_rest_bridge.engine.status_reporter import status_topic
from amqtt_rest_bridge.group.commands import RECEIVE_MAXIMUM, MqttCommands
from amqtt_rest_bridge.group.sessions import OwnSession, Watches
from amqtt_rest_bridge.lot.model import EventName, Message, Publication, Route
from amqtt_rest_bridge.mqtt.connection import MqttConnection
from amqtt_rest_bridge.mqtt.event_intake import EventIntake, RunsEvents, failure_of
from amqtt_rest_bridge.mqtt.intake import carried
from amqtt_rest_bridge.mqtt.packets import Publish
from amqtt_rest_bridge.mqtt.private import (
    BROKER_TOPIC,
    EVENT,
    LOSSLESS,
    READY_TOPIC,
    ROUTE,
    UNMATCHED_TOPIC,
    BrokerState,
)
from amqtt_rest_bridge.mqtt.publisher import MqttPublisher
from amqtt_rest_bridge.mqtt.reconnecting import ReconnectingClient
from amqtt_rest_bridge.mqtt.standard import Property
from amqtt_rest_bridge.mqtt.values import Broker, BrokerError, ClientSession, Subscription
from amqtt_rest_bridge.settings import Coreflux
from amqtt_rest_bridge.supervised_tasks import Supervisor
from amqtt_rest_bridge.tools.commands.execution import RunsRoutes
from amqtt_rest_bridge.topics import schedule_topic

log = logging.getLogger(__name__)

COMMANDS_SESSION: Final = ClientSession("commands", 86_400, RECEIVE_MAXIMUM)
"""Takes commands."""
_MAIN: Final = "main"
_OWN: Final = ClientSession("own", 0, 1024)
_KEPT_SECONDS: Final = 86_400  # the endpoint keeps a session for as long as the broker runs
_MOST_RECEIVED: Final = 65_535
_MOST_LOSSLESS: Final = 1024  # messages of a lossless route that the bridge holds; the others wait on disk
_LOOK_SECONDS: Final = 0.02  # between two looks at connections, and at what a session holds
_QUIET_SECONDS: Final = 1.0  # without a message, before a session that has no event left is closed
_AGAIN_SECONDS: Final = 0.1  # between two connections to an endpoint that is not served yet


@dataclass(frozen=True, slots=True)
class EventSession:
    """What a session subscribes, by event, and how many messages may be unacknowledged."""

    subscriptions: dict[EventName, Subscription] = field(default_factory=dict)
    receive_maximum: int = _MOST_RECEIVED


class Identifiers:
    """The subscription identifiers of events, made of their names.

    So they are the same after a restart, when messages come again with the identifier that they had before.
    """

    def __init__(self) -> None:
        self.names: dict[int, EventName] = {}
        """The events by identifier, also those that are gone: messages of theirs may still come."""
        self._numbers: dict[EventName, int] = {}

    def of(self, name: EventName) -> int:
        """Return the identifier of an event. Of two events with the same checksum the second gets the next number."""
        if name not in self._numbers:
            first = crc32("\0".join(name).encode()) % 268_435_455
            free = (1 + number % 268_435_455 for number in itertools.count(first))
            number = self._numbers[name] = next(number for number in free if number not in self.names)
            self.names[number] = name
        return self._numbers[name]


def sessions_of(routes: Iterable[Route], identifiers: Identifiers) -> dict[str, EventSession]:
    """Return the sessions that routes need, by client id.

    A lossless route with BATCH_SIZE may hold all its messages at once: the first ones of a batch must not wait for an
    acknowledgement until BATCH_SECONDS are over, as the batch would be another one after a kill.
    """
    sessions = {_MAIN: EventSession()}
    for route in routes:
        config, session = route.route_config, sessions[_MAIN]
        if route.is_lossless:
            has_batches = any(event.batch_size is not None for event in route.client_events)
            most = min(config.overload_capacity, _MOST_RECEIVED if has_batches else _MOST_LOSSLESS)
            session = EventSession(receive_maximum=max(1, most))
        for event in route.client_events:
            if event.source_topic == schedule_topic(route.name, event.name):  # it listens to no topic
                continue
            name = route.name, event.name
            user = [(ROUTE, route.name), (EVENT, event.name)]
            if route.is_lossless:
                most, most_bytes = config.overload_capacity, config.overload_bytes
                user.append((LOSSLESS, f"{most} {most_bytes} {event.batch_size or 0} {event.batch_seconds}"))
                sessions[f"lossless:{route.name}"] = session
            session.subscriptions[name] = Subscription(event.source_topic, identifiers.of(name), user=tuple(user))
    return sessions


class UsesBroker(RunsRoutes, Protocol):
    """The program that the bridge runs in."""

    def note_broker(self, state: BrokerState) -> None:
        """Take the state of the broker process."""
        ...

    def note_unmatched(self, topic: str) -> None:
        """Note a message that concerns no client event."""
        ...


class PrivateSession(OwnSession):
    """The own session of the plugin's bridge, which also receives the messages of the broker process."""

    def __init__(self, broker: Broker, publisher: MqttPublisher, watches: Watches) -> None:
        self.program: UsesBroker | None = None
        """Receives the messages of the broker process."""
        self.has_connected = asyncio.Event()
        """Set by each new connection."""
        super().__init__(broker, _OWN, publisher, watches, [BROKER_TOPIC])

    async def watch_unmatched(self, *, wanted: bool) -> None:
        """Subscribe the topics of messages that concern no client event, or unsubscribe them."""
        self.set_own_filters([BROKER_TOPIC, *([UNMATCHED_TOPIC] if wanted else [])])
        with contextlib.suppress(BrokerError):  # the next connection subscribes
            await self.subscribe()

    def subscribed(self) -> None:
        """Wake `follow`, which waits for a new connection."""
        self.has_connected.set()

    def take_own(self, connection: MqttConnection, received: Publish) -> None:  # noqa: ARG002
        """Pass on a message of the broker process."""
        if self.program is not None and received.topic == BROKER_TOPIC:
            self.program.note_broker(msgspec.json.decode(received.payload, type=BrokerState))
        elif self.program is not None and received.topic == UNMATCHED_TOPIC:
            self.program.note_unmatched(received.payload.decode())

    def see(self, received: Publish) -> None:
        """Show a message to read events and replies, or report that it cannot be an answer."""
        if (failure := failure_of(dict(received.properties.get(Property.USER_PROPERTY, ())))) is None:
            super().see(received)
        else:
            message = Message(received.topic, received.payload, time.time(), carried(received.properties))
            self._watches.refuse(message, failure)


class PluginMember:
    """The bridge as the one client of the private endpoint.

    Args:
        coreflux: Who may command routes, None where commands are off.
        broker: The endpoint.
        publisher: Publishes.
        calls: Calls the events.
        watches: Takes the messages of read events and replies.
        supervisor: Runs the connections.
    """

    def __init__(
        self,
        coreflux: Coreflux | None,
        broker: Broker,
        publisher: MqttPublisher,
        calls: RunsEvents,
        watches: Watches,
        supervisor: Supervisor,
    ) -> None:
        self.settled = asyncio.Event()
        """Set once the broker knows that the bridge is ready, for the first time."""
        self._subscribed = asyncio.Event()  # once all sessions have, for the first time
        self._may_announce = asyncio.Event()  # that the bridge is ready
        self.commands: MqttCommands | None = None
        """Takes commands, where they are allowed."""
        self.own_session = PrivateSession(broker, publisher, watches)
        """The connection that publishes."""
        self._coreflux = coreflux
        self._broker = broker
        self._publisher = publisher
        self._calls = calls
        self._supervisor = supervisor
        self._identifiers = Identifiers()
        self._wanted: Mapping[str, EventSession] = {}
        self._intakes: dict[str, EventIntake] = {}
        self._subscribing = asyncio.Lock()
        self._is_stopping = False

    # Called by the program.

    @property
    def troubles(self) -> list[str]:
        """Return which connections are missing, and why."""
        return [trouble for client in self._clients() if (trouble := client.trouble) is not None]

    @property
    def group_numbers(self) -> None:
        """Return None: there is no group."""

    def leads(self, event: EventName) -> bool:  # noqa: ARG002  # as `Member.leads`
        """Return True: every event with EVERY runs here."""
        return True

    def use_routes(self, routes: Iterable[Route]) -> None:
        """Use these routes, once `begin` or `subscribe` is called."""
        self._wanted = sessions_of(routes, self._identifiers)
        if self.commands is not None:
            self.commands.routes_changed()

    def status_topic(self, route: str) -> str:
        """Return the topic of the status of a route."""
        return status_topic(route)

    def announce(self, publication: Publication) -> bool:
        """Publish a status; without a connection it is dropped, since the next one comes soon."""
        if self._publisher.is_connected:
            self._publisher.announce(publication)
        return self._publisher.is_connected

    def status_published(self, route: str, payload: bytes) -> None:
        """Publish the status of a route for tools that command routes, too."""
        if self.commands is not None:
            self.commands.status_published(route, payload)

    async def connect(self, program: UsesBroker) -> None:
        """Connect, once the endpoint is served: the broker may still be starting."""
        self.own_session.program = program
        if self._coreflux is not None:
            self.commands = MqttCommands(
                self._coreflux, COMMANDS_SESSION, self._broker, self._publisher, program
            )  # fmt: skip
        while True:
            try:
                await self.own_session.client.open()
            except BrokerError as error:
                log.debug("%s; tried again", error)
                await asyncio.sleep(_AGAIN_SECONDS)
            else:
                return

    async def begin(self) -> None:
        """Subscribe for read events and replies, and keep all sessions from now on."""
        await self.own_session.subscribe()
        self._supervisor.keep_running("own session", self.own_session.client.run)
        self._supervisor.keep_running("sessions", self.follow)

    async def catch_up(self) -> None:
        """Wait until all is subscribed: what is published from now on reaches its events."""
        await self._subscribed.wait()

    async def settle(self) -> None:
        """Allow `follow` to publish that the bridge is ready, and wait until it has."""
        self._may_announce.set()
        await self.settled.wait()

    async def subscribe(self) -> None:
        """Subscribe what the routes need now, and close the sessions of routes that are gone or no longer lossless."""
        async with self._subscribing:
            if self._is_stopping:
                return
            wanted = self._wanted
            for client_id, session in wanted.items():
                if client_id in self._intakes:
                    continue
                client = ClientSession(client_id, _KEPT_SECONDS, session.receive_maximum)
                intake = self._intakes[client_id] = EventIntake(
                    self._broker, client, self._calls, self._identifiers.names, is_lossless=client_id != _MAIN
                )
                intake.client.running = self._supervisor.keep_running(client_id, intake.client.run)
            present = {name for session in wanted.values() for name in session.subscriptions}
            gone = {
                client_id: intake.prepare(wanted.get(client_id, EventSession()).subscriptions, present)
                for client_id, intake in self._intakes.items()
            }
            asked = await asyncio.gather(
                self.own_session.subscribe(),
                *(intake.subscribe() for intake in self._intakes.values()),
                return_exceptions=True,
            )
            for error in asked:
                if isinstance(error, BrokerError):  # the next connection subscribes
                    log.warning("not all routes receive messages: %s", error)
                elif error is not None:
                    raise error
            for client_id, intake in self._intakes.items():
                if client_id != _MAIN and (gone[client_id] or client_id not in wanted):
                    self._supervisor.run_to_end(
                        f"leaving {client_id}", partial(self._leave, client_id, intake, gone[client_id])
                    )

    async def watch_unmatched(self, *, wanted: bool) -> None:
        """Send the program the topics of messages that concern no client event, or stop that."""
        async with self._subscribing:
            await self.own_session.watch_unmatched(wanted=wanted)

    async def follow(self) -> None:
        """Keep the sessions connected, and publish on each new connection that the bridge is ready, until cancelled."""
        await self.subscribe()
        if self.commands is not None and self.commands.client is None:
            self.commands.begin()
        while True:
            await self.own_session.has_connected.wait()
            self.own_session.has_connected.clear()
            while not all(client.connection is not None for client in self._clients()):
                await asyncio.sleep(_LOOK_SECONDS)
            self._subscribed.set()
            await self._may_announce.wait()
            names = [name for session in self._wanted.values() for name in session.subscriptions]
            self._publisher.announce(Publication(READY_TOPIC, json.dumps(names).encode()))
            self.settled.set()

    async def stop_taking(self) -> None:
        """Take no more messages and commands; messages that have not ended are not acknowledged."""
        self._is_stopping = True
        for intake in self._intakes.values():
            intake.pause()
        if self.commands is not None:
            await self.commands.end()

    async def leave(self) -> None:
        """Disconnect all sessions but the own one."""
        await asyncio.gather(*(self._close(client_id) for client_id in list(self._intakes)))

    async def close(self) -> None:
        """Disconnect."""
        await self.own_session.client.close()

    # Sessions.

    def _clients(self) -> Iterator[ReconnectingClient]:
        yield self.own_session.client
        yield from (intake.client for intake in self._intakes.values())
        if self.commands is not None and self.commands.client is not None:
            yield self.commands.client

    async def _leave(self, client_id: str, intake: EventIntake, gone: set[EventName]) -> None:
        """Leave the events of a lossless session that are gone; close it if it has no event left.

        Messages that have come for events which moved to `main` are called all the same, before the session is closed.
        """
        if gone:
            await intake.give_up(gone)
        quiet = 0.0
        while client_id not in self._wanted and self._intakes.get(client_id) is intake:
            quiet = 0.0 if intake.held else quiet + _LOOK_SECONDS
            if quiet >= _QUIET_SECONDS:
                await self._close(client_id)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _close(self, client_id: str) -> None:
        if (intake := self._intakes.pop(client_id, None)) is not None:
            await intake.client.close()

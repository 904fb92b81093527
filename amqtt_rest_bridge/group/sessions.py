"""The sessions of a worker: its own, and those of each slot that it serves. The event loop only.

`member` opens and closes slots; `mqtt.intake` takes the messages of one session.

All that a worker publishes goes by its own connection, which is always read: PUBACKs of results must not wait behind
messages that a busy route leaves unread. Each worker subscribes there for itself, not shared: what the group announces,
the topics of read events (retained messages included), and replies. The session ends with the connection, so the
worker's will goes out.

A slot has a session for all realtime routes, whose messages are acknowledged on arrival, and one for each other route,
so that a server that is away fills that connection only, and the broker keeps what the route has no room for. Its share
is named after the route too: two sessions that subscribed one filter under one share would each get half of its
messages.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.group.leases import Leases, Notice, lease_topic, presence_topic
from amqtt_rest_bridge.lot.model import EventName, Message, OverloadPolicy, Publication, Route
from amqtt_rest_bridge.mqtt.connection import MqttConnection
from amqtt_rest_bridge.mqtt.intake import Capacity, Feed, Intake, Offer, carried, size_of
from amqtt_rest_bridge.mqtt.packets import Publish, Will
from amqtt_rest_bridge.mqtt.publisher import MqttPublisher
from amqtt_rest_bridge.mqtt.reconnecting import ConnectionUser, ReconnectingClient
from amqtt_rest_bridge.mqtt.standard import Property
from amqtt_rest_bridge.mqtt.values import Address, BrokerError, ClientSession, Subscription
from amqtt_rest_bridge.settings import WorkerSettings
from amqtt_rest_bridge.supervisor import Supervisor
from amqtt_rest_bridge.times import lease_time
from amqtt_rest_bridge.topics import schedule_topic

_RECEIVE_MAXIMUM: Final = 1024
_MARK: Final = b"mark"
_MOST_BYTES: Final = 64 << 10  # of a notice: enough for 1,000 events with EVERY; longer payloads are ignored

log = logging.getLogger(__name__)

MAIN: Final = ""
"""The name of the session that all realtime routes share."""
_MOST_RECEIVED: Final = 65_535
_MOST_HELD: Final = 1024  # messages of a route that a worker holds: enough for 64 workers, few to repeat
_LOOK_SECONDS: Final = 0.02


class Watches(Protocol):
    """Receives the messages from which read events and replies are answered: `ServerMode`."""

    @property
    def filters(self) -> Collection[str]:
        """Return the topic filters whose messages are watched now."""
        ...

    def asking_again(self) -> AbstractContextManager[Collection[str]]:
        """Return a context with the filters whose retained messages are needed again; its body subscribes these."""
        ...

    def see(self, message: Message, *, retained: bool = False, size: int = 0) -> None:
        """Take a message that matches one of `filters`; see `ServerMode.see`."""
        ...

    def refuse(self, message: Message, failure: CallError) -> None:
        """Note a message that cannot be an answer; see `ServerMode.refuse`."""
        ...


class OwnSession(ConnectionUser):
    """The connection that publishes, and that receives the messages for read events and replies.

    Args:
        broker: Returns the broker's address; called before each connection.
        session: The client.
        publisher: Publishes while there is a connection.
        watches: Takes the messages of read events and replies.
        always: Topic filters whose messages are the session's own: `take_own` gets them.
    """

    def __init__(
        self, broker: Callable[[], Address], session: ClientSession, publisher: MqttPublisher, watches: Watches,
        always: Iterable[str],
    ) -> None:  # fmt: skip
        self.client = ReconnectingClient(broker, session, self)
        self._publisher = publisher
        self._watches = watches
        self._subscribed: set[str] = set()
        self.set_always(always)

    def set_always(self, topic_filters: Iterable[str]) -> None:
        """Change the topic filters whose messages are the session's own, from the next `subscribe` on."""
        self._always = {one: Feed(one, frozenset()).identifier for one in topic_filters}

    async def subscribe(self) -> None:
        """Subscribe what is watched now, then unsubscribe the rest. The next connection does so if there is none."""
        if self.client.connection is not None:
            await self._subscribe(self.client.connection)

    def connecting(self) -> None:
        """Note that a connection begins or has ended."""

    def subscribed(self) -> None:
        """Note that a connection has subscribed all, just before the publisher has it."""

    def take_own(self, connection: MqttConnection, received: Publish) -> None:
        """Take a message of the session's own."""

    def see(self, received: Publish) -> None:
        """Show a message to read events and replies."""
        if received.payload or not received.retain:
            message = Message(received.topic, received.payload, time.time(), carried(received.properties))
            self._watches.see(message, retained=received.retain, size=size_of(received))

    async def _subscribe(self, connection: MqttConnection) -> None:
        wanted = self._always | {one: Feed(one, frozenset()).identifier for one in self._watches.filters}
        with self._watches.asking_again() as again:
            missing = (wanted.keys() - self._subscribed) | set(again)
            await connection.subscribe(Subscription(one, wanted[one], True) for one in wanted if one in missing)
        await connection.unsubscribe(Subscription(one) for one in self._subscribed - set(wanted))
        self._subscribed = set(wanted)

    async def connected(self, connection: MqttConnection) -> None:
        """Subscribe on a new connection, and publish on it."""
        self._subscribed = set()
        self.connecting()
        await self._subscribe(connection)
        self.subscribed()
        self._publisher.up(connection)

    def disconnected(self, connection: MqttConnection, why: str) -> None:
        """Keep what was not acknowledged for the next connection."""
        self._publisher.down(why, refused=connection.has_refused_packet)
        self.connecting()

    def resume(self) -> None:
        """Publish again: the connection takes more."""
        self._publisher.resume()

    def receive(self, connection: MqttConnection, received: Publish) -> None:
        """Acknowledge a message, and take it."""
        if received.packet_id is not None:
            connection.acknowledge(received.packet_id)
        identifiers = received.properties.get(Property.SUBSCRIPTION_IDENTIFIER, ())
        if any(number in self._always.values() for number in identifiers):
            self.take_own(connection, received)
        else:
            self.see(received)


class MemberSession(OwnSession):
    """The own session of a worker, which also publishes and hears notices of its group.

    Args:
        broker, publisher, watches: As of `OwnSession`.
        group: The group of the worker.
        leases: Takes the group's notices.
        noticed: Set after each notice, and when a connection begins or has ended.
    """

    def __init__(
        self, broker: Callable[[], Address], group: str, leases: Leases, publisher: MqttPublisher, watches: Watches,
        noticed: asyncio.Event,
    ) -> None:  # fmt: skip
        self._presence = leases.farewell()
        self._leases = leases
        self._noticed = noticed
        will = Will(self._presence.topic, self._presence.payload)
        session = ClientSession(f"{group}-{leases.worker}", 0, _RECEIVE_MAXIMUM, will)
        super().__init__(broker, session, publisher, watches, [lease_topic(group, "+"), presence_topic(group, "+")])

    def publish(self, notice: Notice) -> None:
        """Publish a notice."""
        self._publisher.announce(Publication(notice.topic, notice.payload, retain=True), seconds=notice.seconds)

    def connecting(self) -> None:
        """Begin to hear the notices of the group."""
        self._leases.connecting(lease_time())
        self._noticed.set()

    def subscribed(self) -> None:
        """Publish a mark, which comes back after all retained notices."""
        self._publisher.announce(Publication(self._presence.topic, _MARK))

    def take_own(self, connection: MqttConnection, received: Publish) -> None:
        """Take a notice."""
        now = lease_time()
        if received.payload == _MARK and received.topic == self._presence.topic:
            self._leases.connected(now, connection.silence_seconds)
        elif len(received.payload) <= _MOST_BYTES or received.topic == self._presence.topic:
            self._leases.received(received.topic, received.payload, now, retained=received.retain)
        self._noticed.set()


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """What a session subscribes, and the most messages and bytes of payloads that it may hold."""

    feeds: tuple[Feed, ...]
    most: int
    most_bytes: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The sessions that every slot of a group has, by name, and all client events.

    `seconds` is the longest REQUEST_TIMEOUT of a route, `ordered_seconds` of a route with ORDERED events.
    """

    sessions: Mapping[str, SessionPlan]
    events: frozenset[EventName]
    seconds: float
    ordered_seconds: float


def plan(routes: Iterable[Route], group: str) -> Plan:
    """Return which sessions a set of routes needs.

    The session of a route holds OVERLOAD_CAPACITY messages and OVERLOAD_BYTES bytes at most. The rest of a backlog
    waits at the broker, even for a balanced route: on a worker only realtime routes refuse messages.
    """
    sessions: dict[str, SessionPlan] = {}
    at_once: list[Route] = []
    seconds = ordered_seconds = 0.0
    for route in routes:
        if not route.client_events:
            continue
        config = route.route_config
        seconds = max(seconds, route.config.request_timeout)
        if any(event.is_in_order for event in route.client_events):
            ordered_seconds = max(ordered_seconds, route.config.request_timeout)
        if config.overload_policy is OverloadPolicy.REALTIME:
            at_once.append(route)
            continue
        if feeds := _feeds([route], f"{group}:{route.name}"):
            most = max(1, min(config.overload_capacity, _MOST_HELD))
            sessions[route.name] = SessionPlan(feeds, most, config.overload_bytes)
    if feeds := _feeds(at_once, group, at_once=True):
        sessions[MAIN] = SessionPlan(feeds, _MOST_RECEIVED, math.inf)
    events = frozenset(event for one in sessions.values() for feed in one.feeds for event in feed.events)
    return Plan(sessions, events, seconds, ordered_seconds)


def _feeds(routes: Iterable[Route], share: str, *, at_once: bool = False) -> tuple[Feed, ...]:
    events: dict[tuple[str, bool], set[EventName]] = {}
    for route in routes:
        for event in route.client_events:
            if event.source_topic != schedule_topic(route.name, event.name):  # an event with EVERY listens to no topic
                events.setdefault((event.source_topic, event.is_in_order), set()).add((route.name, event.name))
    return tuple(
        Feed(topic if ordered else f"$share/{share}/{topic}", frozenset(names), ordered, at_once)
        for (topic, ordered), names in events.items()
    )


def client_id(group: str, slot: int, session: str) -> str:
    """Return the client id of a slot's session: `<group>-<slot>:<route>`, `<group>-<slot>` that of realtime routes."""
    return f"{group}-{slot}" + (f":{session}" if session != MAIN else "")


class Capacities:
    """What the sessions of each route hold together, over all slots of this worker.

    Args:
        queue_bytes: How much the sessions of all routes may hold.
    """

    def __init__(self, queue_bytes: int) -> None:
        self.keeps_unserved = False
        """Whether messages without an event here are kept: another worker of the group may have their event."""
        self._all = Capacity(most_bytes=queue_bytes)
        self._by_name: dict[str, Capacity] = {}

    def of(self, name: str, wanted: SessionPlan) -> Capacity:
        """Return the capacity that the sessions of a name share, changed to the bounds of their plan."""
        capacity = self._by_name.setdefault(name, Capacity(within=self._all))
        capacity.most, capacity.most_bytes = wanted.most, wanted.most_bytes
        return capacity


class Slot:
    """One slot's sessions, open on this worker.

    Args:
        broker: Returns the broker's address; called before each connection.
        settings: Those of the worker: the group, how many slots it has, how long the broker keeps sessions.
        number: The slot.
        offer: Takes messages; see `ClientMode.offer`.
        capacities: What sessions hold.
        supervisor: Runs the connections.
        gate: Has to be set before a connection is opened.
        ordered_from: Time of the loop before which ORDERED events are not called.
    """

    def __init__(
        self,
        broker: Callable[[], Address],
        settings: WorkerSettings,
        number: int,
        offer: Offer,
        capacities: Capacities,
        supervisor: Supervisor,
        gate: asyncio.Event,
        ordered_from: float,
    ) -> None:
        self.number = number
        self.is_leaving = False
        """Whether it is handed over, or was taken by another worker."""
        self._broker = broker
        self._settings = settings
        self._offer = offer
        self._capacities = capacities
        self._supervisor = supervisor
        self._gate = gate
        self._ordered_from = ordered_from
        self._intakes: dict[str, Intake] = {}
        self._changing = asyncio.Lock()
        self._used = self._closed = False

    @property
    def intakes(self) -> Collection[Intake]:
        """Return the sessions."""
        return self._intakes.values()

    @property
    def is_tried(self) -> bool:
        """Return whether each session has connected, or has failed to connect, once."""
        return self._used and all(intake.client.tried.is_set() for intake in self.intakes)

    @property
    def troubles(self) -> list[str]:
        """Return which sessions are not connected, and why."""
        return [trouble for intake in self.intakes if (trouble := intake.client.trouble) is not None]

    @property
    def held(self) -> int:
        """Return how many messages have come and not ended."""
        return sum(intake.held for intake in self.intakes)

    async def use(self, wanted: Plan) -> None:
        """Open or change the sessions for a set of routes; each connects by itself, now or later.

        New filters are subscribed before old ones are given up. The session of a route that is gone keeps what was not
        acknowledged for as long as sessions are kept.
        """
        async with self._changing:
            if self._closed:
                return
            self._used = True
            changed = {
                name: intake.prepare(wanted.sessions[name].feeds if name in wanted.sessions else (), wanted.events)
                for name, intake in self._intakes.items()
            }
            for name, session in sorted(wanted.sessions.items()):
                capacity = self._capacities.of(name, session)
                if name in self._intakes:
                    continue
                settings = self._settings
                client = ClientSession(
                    client_id(settings.group, self.number, name), settings.session_expiry, session.most
                )  # fmt: skip
                intake = self._intakes[name] = Intake(
                    self._broker, client, self._offer, self.number, settings.slots, capacity,
                    gate=self._gate, keeps_unserved=lambda: self._capacities.keeps_unserved,
                )  # fmt: skip
                intake.ordered_from = self._ordered_from
                intake.prepare(session.feeds, wanted.events)
                intake.client.running = self._supervisor.keep(client.client_id, intake.client.run)
            await asyncio.gather(*(self._change(name, gone, wanted) for name, gone in changed.items()))

    async def _change(self, name: str, gone: list[str], wanted: Plan) -> None:
        """Subscribe an open session's filters of now, unsubscribe those that are `gone`, close it if its route is."""
        try:
            await self._intakes[name].subscribe(gone)
        except BrokerError as error:  # the next connection subscribes
            log.warning("%s: not all routes receive messages: %s", self._intakes[name].client.client_id, error)
        if name not in wanted.sessions:
            await self._intakes.pop(name).client.close()

    def drop(self, *, shared: bool) -> None:
        """Take no more messages, and drop those without a call; with `shared` also messages for several events."""
        for intake in self.intakes:
            intake.pause()
            intake.drop(shared=shared)

    async def ended(self, seconds: float) -> bool:
        """Wait until all messages that have come have ended; return False if some have not after `seconds`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self.held:
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(_LOOK_SECONDS)
        return True

    async def close(self) -> None:
        """Disconnect all sessions, which the broker keeps."""
        async with self._changing:
            self._closed = True
            await asyncio.gather(*(intake.client.close() for intake in self.intakes))
            self._intakes.clear()

"""The slots that are open on a worker: the sessions that each needs, opened, changed, handed over and closed.

`member` opens and leaves slots as the leases say; `mqtt.intake` takes the messages of one session.

A slot has one session for all realtime routes, whose messages are acknowledged on arrival, and one for each other
route. So a server that is away fills the connection of its own route only, and the broker keeps what the route has no
room for. The name of a shared subscription has the route in it: two sessions with one filter and one name would each
get half of the messages.
"""

import asyncio
import logging
import math
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from amqtt_rest_bridge.engine.client_mode import ClientMode
from amqtt_rest_bridge.group.commands import FIRST_SLOT, MqttCommands
from amqtt_rest_bridge.group.leases import Leases
from amqtt_rest_bridge.group.sessions import MemberSession
from amqtt_rest_bridge.lot.model import EventName, OverloadPolicy, Route
from amqtt_rest_bridge.mqtt.intake import Capacity, Feed, Intake, Offer
from amqtt_rest_bridge.mqtt.values import Broker, BrokerError, ClientSession
from amqtt_rest_bridge.settings import WorkerSettings
from amqtt_rest_bridge.supervised_tasks import Supervisor
from amqtt_rest_bridge.times import LineLimit, lease_time
from amqtt_rest_bridge.topics import schedule_topic

log = logging.getLogger(__name__)

REALTIME: Final = ""
"""The name of the session that all realtime routes share. Other sessions have the names of their routes."""
_MOST_RECEIVED: Final = 65_535
_MOST_HELD: Final = 1024  # messages of a route on a worker: enough for its places, few enough to repeat after a crash
_LOOK_SECONDS: Final = 0.02  # between two looks at whether all calls have ended
_SLACK_SECONDS: Final = 1.0  # beyond REQUEST_TIMEOUT, until a request has ended and its result is published
_LOG_SECONDS: Final = 1.0  # between lines of a slot that is lost, or adopted


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """What a session subscribes, and how many messages and bytes of payloads it may hold."""

    feeds: tuple[Feed, ...]
    most: int
    most_bytes: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The sessions that every slot of a group has, by name, and all client events.

    `longest_timeout` is the longest REQUEST_TIMEOUT of a route, `longest_ordered_timeout` of one with ORDERED events.
    """

    sessions: Mapping[str, SessionPlan]
    events: frozenset[EventName]
    longest_timeout: float
    longest_ordered_timeout: float


def plan_sessions(routes: Iterable[Route], group: str) -> Plan:
    """Return the sessions that a set of routes needs.

    The session of a route holds OVERLOAD_CAPACITY messages and OVERLOAD_BYTES bytes at most. The rest of a backlog
    waits at the broker, even for a balanced route: on a worker only realtime routes refuse messages.
    """
    sessions: dict[str, SessionPlan] = {}
    realtime: list[Route] = []
    longest_timeout = longest_ordered_timeout = 0.0
    for route in routes:
        if not route.client_events:
            continue
        config = route.route_config
        longest_timeout = max(longest_timeout, route.config.request_timeout)
        if any(event.is_in_order for event in route.client_events):
            longest_ordered_timeout = max(longest_ordered_timeout, route.config.request_timeout)
        if config.overload_policy is OverloadPolicy.REALTIME:
            realtime.append(route)
            continue
        if feeds := _feeds([route], f"{group}:{route.name}"):
            most = max(1, min(config.overload_capacity, _MOST_HELD))
            sessions[route.name] = SessionPlan(feeds, most, config.overload_bytes)
    if feeds := _feeds(realtime, group, is_realtime=True):
        sessions[REALTIME] = SessionPlan(feeds, _MOST_RECEIVED, math.inf)
    events = frozenset(event for one in sessions.values() for feed in one.feeds for event in feed.events)
    return Plan(sessions, events, longest_timeout, longest_ordered_timeout)


def _feeds(routes: Iterable[Route], share: str, *, is_realtime: bool = False) -> tuple[Feed, ...]:
    """Return the subscriptions of a session; events with the same SOURCE_TOPIC share one."""
    events: dict[tuple[str, bool], set[EventName]] = {}
    for route in routes:
        for event in route.client_events:
            if event.source_topic != schedule_topic(route.name, event.name):  # an event with EVERY listens to no topic
                events.setdefault((event.source_topic, event.is_in_order), set()).add((route.name, event.name))
    return tuple(
        Feed(topic if ordered else f"$share/{share}/{topic}", frozenset(names), ordered, is_realtime)
        for (topic, ordered), names in events.items()
    )


def client_id(group: str, slot: int, session: str) -> str:
    """Return the client id of a slot's session: `<group>-<slot>:<route>`, `<group>-<slot>` that of realtime routes."""
    return f"{group}-{slot}" + (f":{session}" if session != REALTIME else "")


class Capacities:
    """How much the sessions of each route may hold together, over all slots of this worker.

    Args:
        queue_bytes: How much the sessions of all routes may hold.
    """

    def __init__(self, queue_bytes: int) -> None:
        self.keeps_unserved = False
        """Whether messages without an event here are held, since another worker of the group may have their event."""
        self._all = Capacity(most_bytes=queue_bytes)
        self._by_name: dict[str, Capacity] = {}

    def capacity_for(self, name: str, session: SessionPlan) -> Capacity:
        """Return the capacity that the sessions of a route share, and give it the bounds of their present plan."""
        capacity = self._by_name.setdefault(name, Capacity(within=self._all))
        capacity.most, capacity.most_bytes = session.most, session.most_bytes
        return capacity


class Slot:
    """A slot that is open on this worker: its sessions.

    Args:
        broker: Where to connect.
        settings: Those of the worker: the group, how many slots it has, how long the broker keeps sessions.
        number: The slot.
        offer: Takes messages; see `ClientMode.offer`.
        capacities: How much the sessions may hold.
        supervisor: Runs the connections.
        gate: Has to be set before a connection is opened.
        ordered_from: Time of the loop before which ORDERED events are not called.
    """

    def __init__(
        self,
        broker: Broker,
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
        """Whether it is being handed over, or was taken by another worker."""
        self._broker = broker
        self._settings = settings
        self._offer = offer
        self._capacities = capacities
        self._supervisor = supervisor
        self._gate = gate
        self._ordered_from = ordered_from
        self._intakes: dict[str, Intake] = {}
        self._changing = asyncio.Lock()
        self._is_used = self._is_closed = False

    @property
    def intakes(self) -> Collection[Intake]:
        """Return the sessions."""
        return self._intakes.values()

    @property
    def has_tried_to_connect(self) -> bool:
        """Return whether each session has connected, or has failed to connect, once."""
        return self._is_used and all(intake.client.tried.is_set() for intake in self.intakes)

    @property
    def troubles(self) -> list[str]:
        """Return which sessions are not connected, and why."""
        return [trouble for intake in self.intakes if (trouble := intake.client.trouble) is not None]

    @property
    def held(self) -> int:
        """Return how many messages have calls that have not all ended."""
        return sum(intake.held for intake in self.intakes)

    async def use(self, wanted: Plan) -> None:
        """Open and change sessions, so that they are those of the plan. Each connects by itself, now or later.

        New filters are subscribed before old ones are unsubscribed. If a route is gone, the broker keeps its session,
        with the messages that were not acknowledged, for as long as it keeps sessions.
        """
        async with self._changing:
            if self._is_closed:
                return
            self._is_used = True
            gone_filters = {
                name: intake.prepare(wanted.sessions[name].feeds if name in wanted.sessions else (), wanted.events)
                for name, intake in self._intakes.items()
            }
            for name, session in sorted(wanted.sessions.items()):
                capacity = self._capacities.capacity_for(name, session)
                if name not in self._intakes:
                    intake = self._intakes[name] = self._new_session(name, session.most, capacity)
                    intake.prepare(session.feeds, wanted.events)
                    intake.client.running = self._supervisor.keep_running(intake.client_id, intake.client.run)
            await asyncio.gather(*(self._change_session(name, gone, wanted) for name, gone in gone_filters.items()))

    def _new_session(self, name: str, receive_maximum: int, capacity: Capacity) -> Intake:
        """Return a session of the slot, which is not connected yet."""
        settings = self._settings
        client = ClientSession(client_id(settings.group, self.number, name), settings.session_expiry, receive_maximum)
        intake = Intake(
            self._broker, client, self._offer, self.number, settings.slots, capacity,
            gate=self._gate, keeps_unserved=lambda: self._capacities.keeps_unserved,
        )  # fmt: skip
        intake.ordered_from = self._ordered_from
        return intake

    async def _change_session(self, name: str, gone: list[str], wanted: Plan) -> None:
        """Subscribe what an open session lacks, unsubscribe the `gone` filters, and close it if its route is gone."""
        try:
            await self._intakes[name].subscribe(gone)
        except BrokerError as error:  # the next connection subscribes
            log.warning("%s: not all routes receive messages: %s", self._intakes[name].client.client_id, error)
        if name not in wanted.sessions:
            await self._intakes.pop(name).client.close()

    def drop(self, *, may_repeat_calls: bool) -> None:
        """Take no more messages, and drop the messages whose calls have not begun; see `Intake.drop`."""
        for intake in self.intakes:
            intake.pause()
            intake.drop(may_repeat_calls=may_repeat_calls)

    async def wait_until_ended(self, seconds: float) -> bool:
        """Wait until the calls of all messages have ended; return False if some have not after `seconds`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self.held:
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(_LOOK_SECONDS)
        return True

    async def close(self) -> None:
        """Disconnect all sessions. The broker keeps them."""
        async with self._changing:
            self._is_closed = True
            await asyncio.gather(*(intake.client.close() for intake in self.intakes))
            self._intakes.clear()


class OpenSlots:
    """The slots that are open on this worker. A slot that is being left counts until its sessions are closed.

    Args:
        settings: Those of the worker.
        broker: Where to connect.
        leases: Grant the slots that are handed over.
        own_session: Publishes the grants.
        calls: Runs the calls of messages.
        supervisor: Runs the connections.
        changed: Set after each change.
    """

    def __init__(
        self, settings: WorkerSettings, broker: Broker, leases: Leases, own_session: MemberSession,
        calls: ClientMode, supervisor: Supervisor, changed: asyncio.Event,
    ) -> None:  # fmt: skip
        self.by_number: dict[int, Slot] = {}
        self.plan = plan_sessions((), settings.group)
        """The sessions that the present routes need."""
        self.commands: MqttCommands | None = None
        """Takes commands while the first slot is open."""
        self.may_connect = asyncio.Event()
        """Set while sessions may connect, because this worker receives the notices of its group."""
        self.capacities = Capacities(int(settings.queue_bytes))
        self.closed_counts = Counter[str]()
        """The numbers of `redelivered` messages and `reconnects`, of sessions that were closed."""
        self._settings = settings
        self._broker = broker
        self._leases = leases
        self._own_session = own_session
        self._calls = calls
        self._supervisor = supervisor
        self._changed = changed
        self._log_limits = defaultdict[str, LineLimit](lambda: LineLimit(_LOG_SECONDS))  # leases may be forged

    @property
    def served(self) -> list[Slot]:
        """Return the slots that are not being left."""
        return [slot for slot in self.by_number.values() if not slot.is_leaving]

    @property
    def intakes(self) -> list[Intake]:
        """Return the sessions of all slots."""
        return [intake for slot in self.by_number.values() for intake in slot.intakes]

    def open(self, number: int) -> None:
        """Open the sessions of a slot. ORDERED events wait as long as requests of a holder that crashed may run."""
        lease, group = self._leases.by_slot.get(number), self._settings.group
        has_crashed = lease is not None and lease.waits
        seconds = self.plan.longest_ordered_timeout if has_crashed else 0.0
        wait = f"; ORDERED events wait for {seconds:.0f} s, as long as its requests may run" if seconds else ""
        if not has_crashed:
            log.info("slot %d of group %s is taken here", number, group)
        elif self._log_limits[f"adopted {number}"].count():
            log.warning("slot %d of group %s has lost its worker and is taken here%s", number, group, wait)
        slot = self.by_number[number] = Slot(
            self._broker, self._settings, number, self._calls.offer, self.capacities, self._supervisor,
            self.may_connect, asyncio.get_running_loop().time() + seconds,
        )  # fmt: skip
        self._supervisor.run_to_end(f"slot {number}", partial(self._connect, slot))
        if self.commands is not None and number == FIRST_SLOT:
            self.commands.begin()

    async def _connect(self, slot: Slot) -> None:
        """Open the sessions of a slot, and wait until each has tried to connect."""
        await slot.use(self.plan)
        for intake in list(slot.intakes):
            await intake.client.tried.wait()
        self._changed.set()

    def lose(self, slot: Slot) -> None:
        """Leave a slot that another worker has taken."""
        if self._log_limits[f"lost {slot.number}"].count():
            log.warning("slot %d of group %s was taken by another worker", slot.number, self._settings.group)
        self.leave(slot, hands_over=False)

    def leave(self, slot: Slot, *, hands_over: bool) -> None:
        """Leave a slot: hand it over, or close it at once because another worker has taken it or will take it."""
        slot.is_leaving = True
        slot.drop(may_repeat_calls=not hands_over)
        self._calls.drop_calls()
        leave = self._hand_over if hands_over else self._close
        self._supervisor.run_to_end(f"leaving slot {slot.number}", partial(leave, slot))

    async def _hand_over(self, slot: Slot) -> None:
        """Leave a slot once its running requests have ended, and all calls of messages with several calls.

        If this takes longer than the longest REQUEST_TIMEOUT, all messages are dropped. The next holder then repeats
        some calls: those that have ended, of a message with others that have not. A stop of the worker waits for 1.5 s.
        """
        if not await slot.wait_until_ended(self.plan.longest_timeout + _SLACK_SECONDS):
            slot.drop(may_repeat_calls=True)
            self._calls.drop_calls()
        await self.close_and_grant(slot)

    async def close_and_grant(self, slot: Slot) -> None:
        """Close the sessions of a slot. Then publish the lease of the next holder, which connects when it comes."""
        is_drained = not slot.held
        await self._close(slot)
        notice = self._leases.grant(slot.number, lease_time(), time.time(), waits=not is_drained)
        if notice is not None:
            self._own_session.publish(notice)
        self._changed.set()

    async def _close(self, slot: Slot) -> None:
        """Close the sessions of a slot on this worker; the broker keeps them for the next holder."""
        if self.commands is not None and slot.number == FIRST_SLOT:
            await self.commands.end()
        for intake in slot.intakes:
            self.closed_counts["redelivered"] += intake.redelivered
            self.closed_counts["reconnects"] += intake.client.reconnects
        await slot.close()
        self.by_number.pop(slot.number, None)
        self._changed.set()

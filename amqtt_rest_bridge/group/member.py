"""A worker in its group: it follows the leases, opens the slots that it holds and leaves those that it has lost.

`bridge.Program` calls a `Member` as its place: at the start and after a reload, and to stop. In between `follow` runs
as a task: twice a second, and after each notice, `leases` says what to do, and `OpenSlots` opens a slot, leaves it or
hands it over. The sessions at the broker:

| connection | client id | subscribes | session |
|---|---|---|---|
| slot: one a route | `<group>-<slot>:<route>` | `$share/<group>:<route>/<filter>`, or `<filter>` (ORDERED) | kept |
| ... one for realtime routes | `<group>-<slot>` | `$share/<group>/<filter>`, or `<filter>` (ORDERED) | kept |
| commands (slot 0, `coreflux`) | `<group>-commands` | the commands | kept for `2 * adopt_seconds` |
| own session | `<group>-<worker>` | notices of the group, read events, replies | ends with it |
"""

import asyncio
import logging
import math
import re
import secrets
import socket
import time
from collections import Counter
from collections.abc import Iterable
from typing import Final

from amqtt_rest_bridge.admin.figures import GroupNumbers
from amqtt_rest_bridge.engine.client_mode import ClientMode
from amqtt_rest_bridge.group.commands import MqttCommands, group_session
from amqtt_rest_bridge.group.leases import Leases, Notice, worker_status_topic
from amqtt_rest_bridge.group.overview import Warnings, event_name, every
from amqtt_rest_bridge.group.sessions import MemberSession, Watches
from amqtt_rest_bridge.group.slots import OpenSlots, plan
from amqtt_rest_bridge.lot.model import EventName, Publication, Route
from amqtt_rest_bridge.lot.route_set import route_set_hash
from amqtt_rest_bridge.mqtt.publisher import MqttPublisher
from amqtt_rest_bridge.mqtt.values import Broker, BrokerError
from amqtt_rest_bridge.settings import WorkerSettings
from amqtt_rest_bridge.supervised_tasks import Supervisor
from amqtt_rest_bridge.system import own_version
from amqtt_rest_bridge.times import lease_time, woken
from amqtt_rest_bridge.tools.commands.execution import RunsRoutes
from amqtt_rest_bridge.topics import loggable

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.5  # how often leases are looked at
_SETTLE_SECONDS: Final = 10.0  # a start waits so long at most for slots from other workers
_DRAIN_SECONDS: Final = 1.5  # a stop waits so long for running requests; then it leaves the slots without any
_UNCONNECTED_PART: Final = 2 / 3
"""Of `adopt_seconds`: for so long a worker without a connection keeps its slots. Its last notice is at most a third old
when the connection is lost, so no other worker takes them before."""
_LONGEST_HOST: Final = 40


class Member:
    """A worker's place in its group.

    Args:
        settings: Those of the worker, checked.
        broker: Where to connect.
        publisher: Publishes notices.
        calls: Runs the calls of messages.
        watches: Takes the messages of read events and replies.
        supervisor: Runs the tasks of the worker.
    """

    def __init__(
        self, settings: WorkerSettings, broker: Broker, publisher: MqttPublisher, calls: ClientMode,
        watches: Watches, supervisor: Supervisor,
    ) -> None:  # fmt: skip
        self.leases = Leases(
            settings.group, settings.slots, worker_id(), prefers=settings.slot, adopt_seconds=settings.adopt_seconds,
            version=own_version(), clock=time.time(),
        )  # fmt: skip
        """Who holds the slots, as this worker sees it."""
        self.view = self.leases.view(0.0)
        """The workers that live."""
        self.settled = asyncio.Event()
        """Set once this worker serves the slots of its share."""
        self._settings = settings
        self._broker = broker
        self._publisher = publisher
        self._calls = calls
        self._supervisor = supervisor
        self._wake = asyncio.Event()
        self.own = MemberSession(broker, settings.group, self.leases, publisher, watches, self._wake)
        """The connection that publishes."""
        self._slots = OpenSlots(settings, broker, self.leases, self.own, calls, supervisor, self._wake)
        self._routes: tuple[Route, ...] = ()
        self._lost_at: float | None = None  # since when no lease can be renewed; infinite once the slots are left
        self._limits = 1, -math.inf  # given to `share_limits` last
        self._warnings = Warnings(settings.group, settings.slots)
        self._is_stopping = False

    # Called by the program.

    @property
    def slots(self) -> list[bool]:
        """Return for each slot whether it is served here; False while it is handed over."""
        served = {slot.number for slot in self._slots.served}
        return [number in served for number in range(self._settings.slots)]

    @property
    def group_numbers(self) -> GroupNumbers:
        """Return what the admin port shows of the group, with the number of workers for each hash of a route set."""
        intakes, closed = self._slots.intakes, self._slots.closed_counts
        clients = (self.own.client, *(intake.client for intake in intakes))
        return GroupNumbers(
            self.slots,
            unacknowledged=sum(intake.held for intake in intakes),
            redelivered=closed["redelivered"] + sum(intake.redelivered for intake in intakes),
            reconnects=closed["reconnects"] + sum(client.reconnects for client in clients),
            lease_changes=self.leases.changes,
            route_sets=dict(Counter(loggable(presence.routes) for presence in self.view.workers.values())),
        )

    @property
    def troubles(self) -> list[str]:
        """Return which connections are missing, and why."""
        lost = self.own.client.trouble
        return ([] if lost is None else [lost]) + [why for slot in self._slots.served for why in slot.troubles]

    def leads(self, event: EventName) -> bool:
        """Return whether this worker runs an event with EVERY."""
        return self.view.leader(event_name(*event)) == self.view.worker

    def status_topic(self, route: str) -> str:
        """Return the topic of the status of a route."""
        return worker_status_topic(self._settings.group, self.leases.worker, route)

    def announce(self, publication: Publication) -> bool:
        """Publish a status; without a connection it is dropped, since the next one comes soon."""
        if self._publisher.is_connected:
            self._publisher.announce(publication, seconds=self._settings.session_expiry)
        return self._publisher.is_connected

    def status_published(self, route: str, payload: bytes) -> None:
        """Publish the status of a route also for Coreflux's tools, while this worker takes their commands."""
        if self._slots.commands is not None:
            self._slots.commands.status_published(route, payload)

    async def watch_unmatched(self, *, wanted: bool) -> None:
        """Do nothing: a worker receives only messages that match its subscriptions."""

    async def connect(self, program: RunsRoutes) -> None:
        """Connect for the first time; with `coreflux` find out whether the broker allows what commands need.

        Raises:
            BrokerError: The broker cannot be reached, or lacks or forbids what a worker needs.
        """
        await self.own.client.open()
        if self._settings.coreflux is not None:
            session = group_session(self._settings)
            commands = self._slots.commands = MqttCommands(
                self._settings.coreflux, session, self._broker, self._publisher, program, self._slots.may_connect
            )
            await commands.check()  # Mosquitto 2.0.11 ends a connection soon after it refused a publication

    async def begin(self) -> None:
        """Subscribe the topics of read events and replies, and follow the leases from now on."""
        await self.own.subscribe()
        self._supervisor.keep("own session", self.own.client.run)
        self._supervisor.keep("slots", self.follow)

    async def catch_up(self) -> None:
        """Return at once: what this worker does not take yet goes to other workers, or waits in the slots' sessions."""

    async def settle(self) -> None:
        """Wait until this worker serves the slots of its share, for ten seconds at most."""
        await woken(self.settled, _SETTLE_SECONDS)

    def use_routes(self, routes: Iterable[Route]) -> None:
        """Use these routes, once `begin` or `subscribe` is called."""
        self._routes = routes = tuple(routes)
        if self._slots.commands is not None:
            self._slots.commands.routes_changed()
        self._slots.plan = plan(routes, self._settings.group)
        self.leases.workers.use_routes(route_set_hash(routes), every(routes))
        self._wake.set()

    async def subscribe(self) -> None:
        """Subscribe the topics that the present routes need."""
        try:
            await self.own.subscribe()
        except BrokerError as error:  # when the connection is back all is subscribed
            log.error("not all routes receive messages: %s", error)  # noqa: TRY400
        await asyncio.gather(*(slot.use(self._slots.plan) for slot in self._slots.served))

    async def follow(self) -> None:
        """Follow the leases until cancelled: publish notices, open and leave slots."""
        while True:
            now = lease_time()
            self._note_connection(now)
            for intent in [] if self._is_stopping else self.leases.intents(now, time.time()):
                if isinstance(intent, Notice):
                    self.own.publish(intent)
                elif (slot := self._slots.by_number.get(intent.slot)) is not None and not slot.is_leaving:
                    log.info("slot %d of group %s is handed over", intent.slot, self._settings.group)
                    self._slots.leave(slot, hands_over=True)
            if not self._is_stopping:
                self._follow_leases(now)
            # No other worker takes a slot of this one before `ordered_until`.
            if self._limits != (limits := (len(self.view.workers), self.leases.workers.ordered_until)):
                self._limits = limits
                self._calls.share_limits(*limits)
            await woken(self._wake, _LOOK_SECONDS)

    async def stop_taking(self) -> None:
        """Take no more messages, and leave the slots whose calls end within 1.5 s.

        Messages whose calls have not ended are not acknowledged: the broker keeps them for the next holder.
        """
        self._is_stopping = True
        if self.own.client.was_open:  # else no other worker knows of this one
            self.own.publish(self.leases.stop(time.time()))
        slots, commands = list(self._slots.by_number.values()), self._slots.commands
        for slot in slots:
            slot.drop(include_shared=False)
        self._calls.drop_calls()
        ending = [] if commands is None else [asyncio.ensure_future(commands.end())]
        drained = await asyncio.gather(*(slot.wait_until_ended(_DRAIN_SECONDS) for slot in slots))
        await asyncio.gather(*ending)  # from here on no command changes routes
        early = [slot for slot, is_drained in zip(slots, drained, strict=True) if is_drained]
        await asyncio.gather(*(self._slots.close_and_grant(slot) for slot in early))

    async def leave(self) -> None:
        """Leave all slots."""
        await asyncio.gather(*(self._slots.close_and_grant(slot) for slot in list(self._slots.by_number.values())))

    async def close(self) -> None:
        """Remove the presence of this worker and the statuses of its routes, and disconnect."""
        for route in self._routes:
            self.announce(Publication(self.status_topic(route.name), b"", retain=True))
        if self.own.client.was_open:
            self.own.publish(self.leases.farewell())
            await self._publisher.settled(1)
        await self.own.client.close()

    # Following the leases.

    def _note_connection(self, now: float) -> None:
        """Allow the slots' sessions to connect while this worker hears the group; leave its slots if it is cut off.

        While this worker is cut off, another one may take its slots, and begins their ORDERED events once the requests
        that run here must have ended. So no further request may begin here. A connection that is open but carries
        nothing counts as cut off; the slots' sessions must not connect meanwhile, as that would take the slots back.
        """
        is_heard = self.leases.workers.is_heard(now)
        if self.leases.workers.is_connected and is_heard:
            self._slots.may_connect.set()
            self._lost_at = None
            return
        self._slots.may_connect.clear()
        # Otherwise other workers would still hear this one, and leave it slots that it does not serve.
        if self.leases.workers.is_cut_off(now) and (connection := self.own.client.connection) is not None:
            connection.abort("the notices of this worker do not come back")
        if self._lost_at is None:
            self._lost_at = now
        if not is_heard or now - self._lost_at >= self._settings.adopt_seconds * _UNCONNECTED_PART:
            self._lost_at = math.inf
            if served := self._slots.served:
                log.warning("group %s does not hear this worker: its slots are left to others", self._settings.group)
            for slot in served:
                self._slots.leave(slot, hands_over=False)

    def _follow_leases(self, now: float) -> None:
        """Leave the slots that another worker has taken, open those that are held, and look at the group.

        While route sets differ, messages without an event here are kept. `follow` shares RATE_LIMIT again if the number
        of workers has changed.
        """
        held, slots = self.leases.held, self._slots
        for slot in slots.served:
            if slot.number not in held:
                slots.lose(slot)
        if slots.may_connect.is_set():
            for number in sorted(held - slots.by_number.keys()):
                slots.open(number)
            view, self.view = self.view, self.leases.view(now)
            self._warnings.look(self.view, self.leases.surplus_slots, now)
            if view != self.view:
                if len(self.view.route_sets) > 1:
                    self._slots.capacities.keeps_unserved = True
                elif self._slots.capacities.keeps_unserved:
                    self._supervisor.finish("unserved messages", self._end_unserved)
                workers = len(self.view.workers)
                if workers != len(view.workers) and any(route.route_config.rate_limit for route in self._routes):
                    log.info("each RATE_LIMIT is shared by %d worker%s", workers, "" if workers == 1 else "s")
            if not self.leases.lacks_share(now) and all(slot.is_tried for slot in slots.served):
                self.settled.set()

    async def _end_unserved(self) -> None:
        """Subscribe by the present routes, then serve or acknowledge messages that waited while route sets differed."""
        await self.subscribe()
        self._slots.capacities.keeps_unserved = len(self.view.route_sets) > 1
        for intake in self._slots.intakes:
            intake.offer_unserved()


def worker_id() -> str:
    """Return an id for a worker: the host's name, as far as a topic may hold it, and eight random digits."""
    host = re.sub(r"[^A-Za-z0-9_.-]+", "-", socket.gethostname())[:_LONGEST_HOST]
    return f"{host}-{secrets.token_hex(4)}"

"""A worker in its group: it follows the leases, opens the slots that it holds and leaves those that it has lost.

`bridge.Program` calls a `Member` at the start, after a reload, and to stop. In between `follow` runs as a task: twice a
second, and after each notice, `leases` says what to do, and `OpenSlots` opens a slot, leaves it or hands it over. The
sessions at the broker:

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
from amqtt_rest_bridge.group.leases import GroupView, Leases, Notice, worker_status_topic
from amqtt_rest_bridge.group.overview import Warnings, event_name, scheduled_events
from amqtt_rest_bridge.group.sessions import MemberSession, Watches
from amqtt_rest_bridge.group.slots import OpenSlots, plan_sessions
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
"""For this part of `adopt_seconds` a worker without a connection keeps its slots. It publishes its presence at every
third of `adopt_seconds`, so other workers wait for two thirds at least before they take the slots."""
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
        """The group as it was last seen: the workers that live."""
        self.settled = asyncio.Event()
        """Set once this worker has all slots of its share."""
        self._settings = settings
        self._broker = broker
        self._publisher = publisher
        self._calls = calls
        self._supervisor = supervisor
        self._wake = asyncio.Event()
        self.own_session = MemberSession(broker, settings.group, self.leases, publisher, watches, self._wake)
        """The session that publishes, and subscribes what is not of a slot."""
        self._slots = OpenSlots(settings, broker, self.leases, self.own_session, calls, supervisor, self._wake)
        self._routes: tuple[Route, ...] = ()
        self._lost_at: float | None = None  # since when this worker is cut off; infinite once it has left its slots
        self._shared_limits = 1, -math.inf  # the last arguments of `share_limits`
        self._warnings = Warnings(settings.group, settings.slots)
        self._is_stopping = False

    # Called by the program.

    @property
    def slots(self) -> list[bool]:
        """Return for each slot of the group whether it is served here; False while it is handed over."""
        served = {slot.number for slot in self._slots.served}
        return [number in served for number in range(self._settings.slots)]

    @property
    def group_numbers(self) -> GroupNumbers:
        """Return what the admin port shows of the group, with the number of workers for each hash of a route set."""
        intakes, closed = self._slots.intakes, self._slots.closed_counts
        clients = (self.own_session.client, *(intake.client for intake in intakes))
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
        lost = self.own_session.client.trouble
        return ([] if lost is None else [lost]) + [why for slot in self._slots.served for why in slot.troubles]

    def leads(self, event: EventName) -> bool:
        """Return whether this worker runs an event with EVERY."""
        return self.view.leader(event_name(*event)) == self.view.worker

    def status_topic(self, route: str) -> str:
        """Return the topic of the status of a route."""
        return worker_status_topic(self._settings.group, self.leases.worker, route)

    def announce(self, publication: Publication) -> bool:
        """Publish a status and return True. Without a connection drop it: the next status comes soon."""
        if self._publisher.is_connected:
            self._publisher.announce(publication, seconds=self._settings.session_expiry)
        return self._publisher.is_connected

    def status_published(self, route: str, payload: bytes) -> None:
        """Publish the status of a route for Coreflux's tools too, while this worker takes their commands."""
        if self._slots.commands is not None:
            self._slots.commands.status_published(route, payload)

    async def watch_unmatched(self, *, wanted: bool) -> None:
        """Do nothing: a worker receives only messages that match its subscriptions."""

    async def connect(self, program: RunsRoutes) -> None:
        """Connect for the first time; with `coreflux` find out whether the broker allows what commands need.

        Raises:
            BrokerError: The broker cannot be reached, or lacks or forbids what a worker needs.
        """
        await self.own_session.client.open()
        if self._settings.coreflux is not None:
            session = group_session(self._settings)
            commands = self._slots.commands = MqttCommands(
                self._settings.coreflux, session, self._broker, self._publisher, program, self._slots.may_connect
            )
            await commands.check()  # Mosquitto 2.0.11 ends a connection soon after it refused a publication

    async def begin(self) -> None:
        """Subscribe the topics of read events and replies, and follow the leases from now on."""
        await self.own_session.subscribe()
        self._supervisor.keep_running("own session", self.own_session.client.run)
        self._supervisor.keep_running("slots", self.follow)

    async def catch_up(self) -> None:
        """Return at once: messages that this worker does not take wait in the sessions, or go to other workers."""

    async def settle(self) -> None:
        """Wait until this worker serves the slots of its share, for ten seconds at most."""
        await woken(self.settled, _SETTLE_SECONDS)

    def use_routes(self, routes: Iterable[Route]) -> None:
        """Set the routes. Their topics are subscribed when `begin` or `subscribe` is called."""
        self._routes = routes = tuple(routes)
        if self._slots.commands is not None:
            self._slots.commands.routes_changed()
        self._slots.plan = plan_sessions(routes, self._settings.group)
        self.leases.workers.use_routes(route_set_hash(routes), scheduled_events(routes))
        self._wake.set()

    async def subscribe(self) -> None:
        """Subscribe the topics that the present routes need."""
        try:
            await self.own_session.subscribe()
        except BrokerError as error:  # when the connection is back all is subscribed
            log.error("not all routes receive messages: %s", error)  # noqa: TRY400
        await asyncio.gather(*(slot.use(self._slots.plan) for slot in self._slots.served))

    async def follow(self) -> None:
        """Follow the leases until cancelled: publish notices, open and leave slots."""
        while True:
            now = lease_time()
            self._check_connection(now)
            for intent in [] if self._is_stopping else self.leases.intents(now, time.time()):
                if isinstance(intent, Notice):
                    self.own_session.publish(intent)
                elif (slot := self._slots.by_number.get(intent.slot)) is not None and not slot.is_leaving:
                    log.info("slot %d of group %s is handed over", intent.slot, self._settings.group)
                    self._slots.leave(slot, hands_over=True)
            if not self._is_stopping:
                self._follow_leases(now)
            # Each worker has its part of a RATE_LIMIT. ORDERED calls begin only while no other worker takes the slots.
            if self._shared_limits != (limits := (len(self.view.workers), self.leases.workers.safe_until)):
                self._shared_limits = limits
                self._calls.share_limits(*limits)
            await woken(self._wake, _LOOK_SECONDS)

    async def stop_taking(self) -> None:
        """Take no more messages, and leave the slots whose calls end within 1.5 s.

        Messages whose calls have not ended are not acknowledged: the broker keeps them for the next holder.
        """
        self._is_stopping = True
        if self.own_session.client.was_open:  # else no other worker knows of this one
            self.own_session.publish(self.leases.stop(time.time()))
        slots, commands = list(self._slots.by_number.values()), self._slots.commands
        for slot in slots:
            slot.drop(may_repeat_calls=False)
        self._calls.drop_calls()
        ending = [] if commands is None else [asyncio.ensure_future(commands.end())]
        drained = await asyncio.gather(*(slot.wait_until_ended(_DRAIN_SECONDS) for slot in slots))
        await asyncio.gather(*ending)  # from here on no command changes routes
        ended = [slot for slot, is_drained in zip(slots, drained, strict=True) if is_drained]
        await asyncio.gather(*(self._slots.close_and_grant(slot) for slot in ended))

    async def leave(self) -> None:
        """Leave all slots that are still open."""
        await asyncio.gather(*(self._slots.close_and_grant(slot) for slot in list(self._slots.by_number.values())))

    async def close(self) -> None:
        """Remove the presence of this worker and the statuses of its routes, and disconnect."""
        for route in self._routes:
            self.announce(Publication(self.status_topic(route.name), b"", retain=True))
        if self.own_session.client.was_open:
            self.own_session.publish(self.leases.farewell())
            await self._publisher.settled(1)
        await self.own_session.client.close()

    # Following the leases.

    def _check_connection(self, now: float) -> None:
        """Allow the slots to connect while this worker receives its own notices; leave its slots if it does not.

        1. The notices come back: the sessions may connect.
        2. There is no connection, or nothing comes on it: the sessions must not connect, since another worker may have
           taken the slots, and connecting would take them back.
        3. This has lasted too long: another worker may take the slots now, and begins their ORDERED events when
           requests of this worker must have ended. So the slots are left, and no further request begins here.
        """
        is_heard = self.leases.workers.is_heard(now)
        if self.leases.workers.is_connected and is_heard:
            self._slots.may_connect.set()
            self._lost_at = None
            return
        self._slots.may_connect.clear()
        # On a connection that only sends, others would still receive notices, and leave slots to this worker.
        if self.leases.workers.is_cut_off(now) and (connection := self.own_session.client.connection) is not None:
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
        """Leave the slots that another worker has taken, open the held ones that are not open, and compare the workers.

        Nothing is opened while the sessions may not connect.
        """
        held, slots = self.leases.held, self._slots
        for slot in slots.served:
            if slot.number not in held:
                slots.lose(slot)
        if not slots.may_connect.is_set():
            return
        for number in sorted(held - slots.by_number.keys()):
            slots.open(number)
        before, self.view = self.view, self.leases.view(now)
        self._warnings.check(self.view, self.leases.surplus_slots, now)
        if before != self.view:
            self._note_changed_workers(before)
        if not self.leases.lacks_share(now) and all(slot.has_tried_to_connect for slot in slots.served):
            self.settled.set()

    def _note_changed_workers(self, before: GroupView) -> None:
        """Hold messages without an event here while route sets differ; log that more or fewer share RATE_LIMIT."""
        if len(self.view.route_sets) > 1:
            self._slots.capacities.keeps_unserved = True
        elif self._slots.capacities.keeps_unserved:
            self._supervisor.run_to_end("unserved messages", self._end_unserved)
        workers = len(self.view.workers)
        if workers != len(before.workers) and any(route.route_config.rate_limit for route in self._routes):
            log.info("each RATE_LIMIT is shared by %d worker%s", workers, "" if workers == 1 else "s")

    async def _end_unserved(self) -> None:
        """Subscribe for the present routes, then serve or acknowledge the messages that were held meanwhile."""
        await self.subscribe()
        self._slots.capacities.keeps_unserved = len(self.view.route_sets) > 1
        for intake in self._slots.intakes:
            intake.offer_unserved()


def worker_id() -> str:
    """Return an id for a worker: the name of the host, with - for what a topic cannot hold, and eight random digits."""
    host = re.sub(r"[^A-Za-z0-9_.-]+", "-", socket.gethostname())[:_LONGEST_HOST]
    return f"{host}-{secrets.token_hex(4)}"

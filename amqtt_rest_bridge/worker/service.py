"""A worker: its parts put together, started, watched and stopped. The event loop only.

| connection | client id | subscribes | session |
|---|---|---|---|
| slot: one a route | `<group>-<slot>:<route>` | `$share/<group>:<route>/<filter>`, or `<filter>` (ORDERED) | kept |
| ... one for realtime routes | `<group>-<slot>` | `$share/<group>/<filter>`, or `<filter>` (ORDERED) | kept |
| commands (slot 0, `coreflux`) | `<group>-commands` | the commands | kept for `2 * adopt_seconds` |
| clean session | `<group>-<worker>` | records of the group, read events, replies | ends with it |
"""

import asyncio
import logging
import math
import re
import secrets
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Final

from amqtt_rest_bridge.errors import BridgeError
from amqtt_rest_bridge.link.admin_frames import GroupNumbers
from amqtt_rest_bridge.model import Publication
from amqtt_rest_bridge.mqtt.values import Address, BrokerError
from amqtt_rest_bridge.processes.route_service import BridgeCode, RouteService
from amqtt_rest_bridge.processes.supervisor import Signals
from amqtt_rest_bridge.route_set import route_set_hash
from amqtt_rest_bridge.settings import WorkerSettings
from amqtt_rest_bridge.system import own_version
from amqtt_rest_bridge.times import LineLimit, lease_time, woken
from amqtt_rest_bridge.topics import loggable
from amqtt_rest_bridge.worker.clean_session import BrokerPublisher, CleanSession
from amqtt_rest_bridge.worker.commands import FIRST_SLOT, GroupCommands
from amqtt_rest_bridge.worker.group import Warnings, event_name, every
from amqtt_rest_bridge.worker.intake import Intake
from amqtt_rest_bridge.worker.leases import Leases, PublishRecord
from amqtt_rest_bridge.worker.records import worker_status_topic
from amqtt_rest_bridge.worker.slots import Capacities, Plan, Slot, plan

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.5  # how often leases are looked at
_SETTLE_SECONDS: Final = 10.0  # a start waits no longer for slots that are handed over
_DRAIN_SECONDS: Final = 1.5  # for running requests before slots that have none are left; the others get more
_SLACK_SECONDS: Final = 1.0  # beyond REQUEST_TIMEOUT, until a request has ended and its result is published
_LEASE_LEFT: Final = 2 / 3  # of `adopt_seconds` after the last renewal, at least
_LOG_SECONDS: Final = 1.0  # between lines of a slot that is lost, or adopted
_LONGEST_HOST: Final = 40


class WorkerFailedError(BridgeError):
    """The worker ended without a signal; the message says why."""


async def serve(
    settings: WorkerSettings,
    broker: Callable[[], Address],
    code: BridgeCode,
    signals: Signals,
    on_ready: Callable[[], None],
) -> None:
    """Run a worker until a signal.

    Raises:
        BridgeError: It cannot start, or it ended without a signal; nothing is left running.
    """
    signals.attach(asyncio.get_running_loop())
    worker = Worker(settings, broker, code)
    signalled = asyncio.ensure_future(signals.wait())
    starting = asyncio.ensure_future(worker.start())
    try:
        await asyncio.wait([starting, signalled], return_when=asyncio.FIRST_COMPLETED)
        if not signalled.done():
            await starting
            log.info(
                "ready: %s, with %d of %d slots of group %s, takes messages from %s",
                worker.leases.worker, worker.slots, settings.slots, settings.group, broker().shown,
            )  # fmt: skip
            on_ready()
            failing = asyncio.ensure_future(worker.supervisor.broken())
            await asyncio.wait([signalled, failing], return_when=asyncio.FIRST_COMPLETED)
            failing.cancel()
            if not signalled.done():
                raise WorkerFailedError(failing.result())
        log.info("%s: shutting down", "stopped" if signals.received is None else signals.received.name)
    finally:
        signalled.cancel()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        if signals.received is None:
            signals.begin_shutdown()
        await worker.stop()


class Worker:
    """The routes of a configuration beside a broker, in a group of workers.

    Args:
        settings: Those of the worker, checked.
        broker: Returns the broker's address, with the password as it is by then; called before each connection.
        code: What bridge processes run.

    Raises:
        BridgeError: What cannot work: route files, a port that is taken.
    """

    def __init__(self, settings: WorkerSettings, broker: Callable[[], Address], code: BridgeCode) -> None:
        self._settings = settings
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self._slots: dict[int, Slot] = {}
        self._leaving: dict[int, Slot] = {}  # they are handed over, or were taken by another worker
        self._look = asyncio.Event()
        self._connected = asyncio.Event()  # and all records have come
        self._settled = asyncio.Event()
        self._lost_at: float | None = None  # since when no lease can be renewed
        self._sharing = 1  # workers that share each RATE_LIMIT ...
        self._ordered_until = -math.inf  # ... and until when ORDERED events are called, as the bridge processes know
        self._warnings = Warnings(settings.group, settings.slots)
        self._changes = defaultdict[tuple[str, int], LineLimit](lambda: LineLimit(_LOG_SECONDS))  # leases may be forged
        self._stopping = False
        self._was_connected = False  # so that others may know of this worker
        self._ended = Counter[str]()  # of sessions that were closed, for the counters below
        self._publisher = BrokerPublisher(settings.session_expiry)
        self.leases = Leases(
            settings.group, settings.slots, worker_id(), prefers=settings.slot, adopt_seconds=settings.adopt_seconds,
            version=own_version(), clock=time.time(),
        )  # fmt: skip
        """Who holds the slots, as this worker sees it."""
        self._view = self.leases.view(0.0)
        self._service = service = RouteService(
            settings, code, self._publisher, self._loop, on_reload=self._routes_replaced,
            topic=partial(worker_status_topic, settings.group, self.leases.worker),
            leads=lambda event: self._view.leader(event_name(*event)) == self._view.worker,
            troubles=self._troubles, group=self._numbers,
        )  # fmt: skip
        self.supervisor = service.supervisor
        """Runs the tasks of the worker."""
        self._capacities = Capacities(service.dispatcher.is_full)
        self._clean_session = CleanSession(
            broker, settings.group, self.leases, self._publisher, service.dispatcher, self._look.set
        )
        self._commands = None
        if settings.coreflux is not None:
            self._commands = GroupCommands(
                settings.coreflux, settings, broker, self._publisher, service, self._connected.wait
            )
            service.reporter.mirror = self._commands.status_published

    @property
    def slots(self) -> int:
        """Return how many slots are served here, without those that are handed over."""
        return len(self._slots)

    async def start(self) -> None:
        """Connect, start the bridge processes, and take messages; raises `BridgeError`.

        Returns once the slots that are this worker's share have been opened, or after ten seconds: a holder may take
        longer to hand one over.
        """
        await self._clean_session.client.open()  # first: a broker that cannot be used costs no process
        if self._commands is not None:  # Mosquitto 2.0.11 closes a connection soon after it has refused a publication
            await self._commands.check()
        self._was_connected = True
        await asyncio.to_thread(self._service.start)
        self._service.attach()
        self._service.begin()
        self._use_routes()
        await self._clean_session.subscribe()
        self.supervisor.keep("clean session", self._clean_session.client.run)
        self.supervisor.keep("slots", self._watch)
        await woken(self._settled, _SETTLE_SECONDS)

    async def stop(self) -> None:
        """Take no more messages, let running requests finish, publish their results, and leave the slots to others.

        What has not ended is not acknowledged: the broker keeps it for the next holder of the slot.
        """
        self._stopping = True
        if self._was_connected:
            self._publish(self.leases.stop(time.time()))
        slots = {**self._slots, **self._leaving}
        for slot in slots.values():
            slot.drop(shared=False)
        self._service.pool.withdraw()
        ending = [] if self._commands is None else [asyncio.ensure_future(self._commands.end())]
        drained = await asyncio.gather(*(slot.ended(_DRAIN_SECONDS) for slot in slots.values()))
        await asyncio.gather(*ending)  # no command may change routes from here on
        early = [slot for slot, is_drained in zip(slots.values(), drained, strict=True) if is_drained]
        await asyncio.gather(*(self._leave(slot) for slot in early))
        await self._service.drain()
        await asyncio.gather(*(self._leave(slot) for slot in slots.values() if slot not in early))
        await self._service.close()
        for name in self._service.statistics:
            self._service.reporter.remove(name)
        if self._was_connected:
            self._publish(self.leases.farewell())
        await self._publisher.settled(1)
        await self._clean_session.client.close()

    def _plan(self) -> Plan:
        routes = self._service.by_name.values()
        return plan(routes, self._settings.group, int(self._settings.queue_bytes))

    def _use_routes(self) -> None:
        routes = list(self._service.by_name.values())
        self._clean_session.prepare(routes)
        self.leases.use_routes(route_set_hash(routes), every(routes))

    def _routes_replaced(self) -> None:
        self._use_routes()
        if self._commands is not None:
            self._commands.routes_changed()
        self._look.set()
        self.supervisor.finish("subscriptions", self._subscribe)

    async def _subscribe(self) -> None:
        """Subscribe what the routes need now."""
        try:
            await self._clean_session.subscribe()
        except BrokerError as error:  # when the connection is back all is subscribed
            log.error("not all routes receive messages: %s", error)  # noqa: TRY400
        await asyncio.gather(*(slot.use(self._plan()) for slot in list(self._slots.values())))

    def _intakes(self) -> Iterator[Intake]:
        return (intake for slot in (*self._slots.values(), *self._leaving.values()) for intake in slot.intakes)

    def _troubles(self) -> list[str]:
        lost = self._clean_session.client.trouble
        return ([] if lost is None else [lost]) + [why for slot in self._slots.values() for why in slot.troubles]

    def _publish(self, record: PublishRecord) -> None:
        """Publish a record. A presence expires by the broker's clock, so that a reader needs none to tell who lives."""
        seconds = math.ceil(self._settings.adopt_seconds) if record.topic.endswith("/presence") else 0
        self._publisher.put_record(Publication(record.topic, record.payload, retain=True), expires=seconds)

    async def _watch(self) -> None:
        """Follow the leases: publish records, open and leave slots, until cancelled."""
        while True:
            now = lease_time()
            self._note_connection(now)
            for intent in [] if self._stopping else self.leases.intents(now, time.time()):
                if isinstance(intent, PublishRecord):
                    self._publish(intent)
                elif intent.slot in self._slots:
                    log.info("slot %d of group %s is handed over", intent.slot, self._settings.group)
                    self._begin_leaving(intent.slot, self._hand_over)
            if not self._stopping:
                self._follow_leases(now)
            if self._ordered_until != self.leases.ordered_until:  # before it no other worker takes the slots held here
                self._ordered_until = self.leases.ordered_until
                self._service.pool.in_group(self._sharing, self._ordered_until)
            await woken(self._look, _LOOK_SECONDS)

    def _note_connection(self, now: float) -> None:
        """Open the gate of the slots' sessions while leases are known; drop what a lease that ran out no longer covers.

        While this worker is cut off another one may take its slots, and begins ORDERED events when requests that run
        here must have ended: so none may begin here any more. A connection that is open and carries nothing cuts it off
        too, and its sessions must not take the slots back.
        """
        is_heard = self.leases.is_heard(now)
        if self.leases.is_connected and is_heard:
            self._connected.set()
            self._lost_at = None
            return
        self._connected.clear()
        # While others hear a worker that hears nothing, they leave it slots that no worker serves.
        if self.leases.is_deaf(now) and (connection := self._clean_session.client.connection) is not None:
            connection.abort("the records of this worker do not come back")
        if self._lost_at is None:
            self._lost_at = now
        if not is_heard or now - self._lost_at >= self._settings.adopt_seconds * _LEASE_LEFT:
            self._lost_at = math.inf
            if self._slots:
                log.warning("group %s does not hear this worker: its slots are left to others", self._settings.group)
            for number in list(self._slots):
                self._begin_leaving(number, self._abandon)

    def _follow_leases(self, now: float) -> None:
        held = self.leases.held
        for number in sorted(set(self._slots) - held):
            if self._changes["lost", number].count():
                log.warning("slot %d of group %s was taken by another worker", number, self._settings.group)
            self._begin_leaving(number, self._abandon)
        if self._connected.is_set():
            for number in sorted(held - set(self._slots) - set(self._leaving)):
                self._open(number)
            view, self._view = self._view, self.leases.view(now)
            self._warnings.look(self._view, self.leases.beyond, now)
            if view != self._view:
                self._group_changed()
            if not self.leases.share_comes(now) and all(slot.is_tried for slot in self._slots.values()):
                self._settled.set()

    def _group_changed(self) -> None:
        """Leave each other worker its part of RATE_LIMIT: the broker sends them alike."""
        if len(self._view.route_sets) > 1:
            self._capacities.keeps_unserved = True
        elif self._capacities.keeps_unserved:
            self.supervisor.finish("unserved messages", self._end_unserved)
        workers = len(self._view.workers)
        if workers != self._sharing:
            self._sharing, self._ordered_until = workers, -math.inf
            if any(route.route_config.rate_limit for route in self._service.by_name.values()):
                log.info("each RATE_LIMIT is shared by %d worker%s", workers, "" if workers == 1 else "s")

    async def _end_unserved(self) -> None:
        """Serve what has waited while route sets differed, or acknowledge it, once the sessions have these routes."""
        await self._subscribe()
        self._capacities.keeps_unserved = len(self._view.route_sets) > 1
        for intake in self._intakes():
            intake.look_again()

    def _numbers(self) -> GroupNumbers:
        """Return what the admin port shows of the group."""
        intakes = list(self._intakes())
        clients = (self._clean_session.client, *(intake.client for intake in intakes))
        return GroupNumbers(
            [slot in self._slots for slot in range(self._settings.slots)],
            unacknowledged=sum(intake.held for intake in intakes),
            redelivered=self._ended["redelivered"] + sum(intake.redelivered for intake in intakes),
            reconnects=self._ended["reconnects"] + sum(client.reconnects for client in clients),
            lease_changes=self.leases.changes,
            route_sets=Counter(loggable(presence.routes) for presence in self._view.workers.values()),
        )

    def _open(self, number: int) -> None:
        lease, wanted, group = self.leases.records.get(number), self._plan(), self._settings.group
        waits = wanted.ordered_seconds if lease is not None and lease.waits else 0.0
        more = f"; ORDERED events wait for {waits:.0f} s, as long as its requests may run" if waits else ""
        if lease is not None and lease.waits:
            if self._changes["adopted", number].count():
                log.warning("slot %d of group %s has lost its worker and is taken here%s", number, group, more)
        else:
            log.info("slot %d of group %s is taken here", number, group)
        slot = self._slots[number] = Slot(
            self._broker, self._settings, number, self._service.dispatcher.offer, self._capacities,
            self._connected.wait, self._loop.time() + waits,
        )  # fmt: skip
        self.supervisor.finish(f"slot {number}", partial(self._use_and_look, slot, wanted))
        if self._commands is not None and number == FIRST_SLOT:
            self._commands.begin()

    async def _use_and_look(self, slot: Slot, wanted: Plan) -> None:
        await slot.use(wanted)
        for intake in list(slot.intakes):
            await intake.client.tried.wait()
        self._look.set()

    def _begin_leaving(self, number: int, leave: Callable[[Slot], Coroutine[None, None, None]]) -> None:
        slot = self._leaving[number] = self._slots.pop(number)
        slot.drop(shared=leave == self._abandon)  # then another worker has them
        self._service.pool.withdraw()
        self.supervisor.finish(f"leaving slot {number}", partial(leave, slot))

    async def _hand_over(self, slot: Slot) -> None:
        """Leave a slot once the requests that run have ended, and the calls of messages of which some may have.

        Decision: those of several events go on as long as a request may run, then they are dropped too, and events that
        were called are called again; so they are after a stop, which lets them go on for 1.5 s and runs no more then.
        """
        if not await slot.ended(self._plan().seconds + _SLACK_SECONDS):
            slot.drop(shared=True)
            self._service.pool.withdraw()
            await slot.ended(self._ordered_until - lease_time())  # what a bridge process that hangs may still begin
        await self._leave(slot)

    async def _leave(self, slot: Slot) -> None:
        """Disconnect, and name the next holder: only then it connects."""
        is_drained = not slot.held
        await self._abandon(slot)
        record = self.leases.grant(slot.number, lease_time(), time.time(), waits=not is_drained)
        if record is not None:
            self._publish(record)
        self._look.set()

    async def _abandon(self, slot: Slot) -> None:
        """Disconnect."""
        if self._commands is not None and slot.number == FIRST_SLOT:
            await self._commands.end()
        for intake in slot.intakes:
            self._ended["redelivered"] += intake.redelivered
            self._ended["reconnects"] += intake.client.reconnects
        await slot.close()
        self._slots.pop(slot.number, None)
        self._leaving.pop(slot.number, None)
        self._look.set()


def worker_id() -> str:
    """Return an id for a worker: the host's name, as far as a topic may hold it, and eight random digits."""
    host = re.sub(r"[^A-Za-z0-9_.-]+", "-", socket.gethostname())[:_LONGEST_HOST]
    return f"{host}-{secrets.token_hex(4)}"

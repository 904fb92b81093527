"""A worker: its parts put together, started, watched and stopped. The event loop only; `run` is the main thread's.

| connection | client id | subscribes | session |
|---|---|---|---|
| main | `<group>-<slot>` | `$share/<group>/<filter>`; ORDERED events: `<filter>` | kept |
| one a lossless route | `<group>-<slot>:<route>` | `$share/<group>:<route>/<filter>`; ORDERED: `<filter>` | kept |
| clean session | `<group>-<slot>/<random>` | records of slots, read events, replies | ends with it |
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from amqtt_rest_bridge.errors import BridgeError
from amqtt_rest_bridge.model import Publication
from amqtt_rest_bridge.mqtt.packets import Will
from amqtt_rest_bridge.mqtt.values import Address, BrokerError
from amqtt_rest_bridge.processes.reload import load_first
from amqtt_rest_bridge.processes.route_service import BridgeCode, ListeningSockets, RouteService, assemble
from amqtt_rest_bridge.processes.supervisor import Signals, loop_factory
from amqtt_rest_bridge.route_set import server_ports
from amqtt_rest_bridge.settings import WorkerSettings
from amqtt_rest_bridge.worker.clean_session import BrokerPublisher, CleanSession
from amqtt_rest_bridge.worker.membership import Membership, status_topic
from amqtt_rest_bridge.worker.slots import Plan, Slot, plan

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.5  # how often slots are looked at
_DRAIN_SECONDS: Final = 1.5  # for messages that wait for a worker thread at the end; the running ones get more


class WorkerFailedError(BridgeError):
    """The worker ended without a signal; the message says why."""


def run(
    settings: WorkerSettings, address: Address, code: BridgeCode, signals: Signals, on_ready: Callable[[], None]
) -> None:
    """Run a worker until a signal; blocks.

    Raises:
        BridgeError: It cannot start, or it ended without a signal; nothing is left running.
    """
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(settings, address, code, signals, on_ready))


async def _serve(
    settings: WorkerSettings, address: Address, code: BridgeCode, signals: Signals, on_ready: Callable[[], None]
) -> None:
    signals.attach(asyncio.get_running_loop())
    worker = Worker(settings, address, code)
    signalled = asyncio.ensure_future(signals.wait())
    starting = asyncio.ensure_future(worker.start())
    try:
        await asyncio.wait([starting, signalled], return_when=asyncio.FIRST_COMPLETED)
        if not signalled.done():
            await starting
            log.info("ready: slot %d of group %s takes messages from %s", settings.slot, settings.group, address.shown)
            on_ready()
            failing = asyncio.ensure_future(worker.failed())
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
    """The routes of a configuration beside a broker, as one slot of a group.

    Raises:
        BridgeError: What cannot work: route files, a port that is taken.
    """

    def __init__(self, settings: WorkerSettings, address: Address, code: BridgeCode) -> None:
        self._settings = settings
        self._address = address
        self._own: Slot | None = None
        self._adopted: dict[int, Slot] = {}
        self._failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._look = asyncio.Event()
        self._due = 0.0  # when the record is published again
        self._sharing = 1  # workers that share each RATE_LIMIT
        self._stopping = False
        loaded = load_first(settings, code.check_routes)
        sockets = ListeningSockets(settings.server_host, shared=True)
        sockets.open(server_ports(loaded.routes))
        self._publisher = BrokerPublisher()
        self._membership = Membership(settings.group, settings.slot, settings.slots, settings.adopt_seconds)
        topic = partial(status_topic, settings.group, settings.slot)
        self._parts = assemble(
            settings, code, self._publisher, asyncio.get_running_loop(), topic=topic,
            leads=lambda: not self._membership.has_lower(), troubles=self._troubles,
        )  # fmt: skip
        self._clean_session = CleanSession(
            address, settings.group, settings.slot, self._publisher, self._parts.dispatcher, self._membership,
            self._take_record,
        )  # fmt: skip
        self._service = RouteService(
            settings, code, self._parts, loaded, sockets, on_reload=self._routes_replaced, redelivered=True
        )

    @property
    def server_ports(self) -> dict[int, int]:
        """Return the bound port for each configured SERVER_PORT."""
        return self._service.server_ports

    async def start(self) -> None:
        """Connect, start the bridge processes, and take messages; raises `BridgeError`."""
        await self._clean_session.client.open()  # first: a broker that cannot be used costs no process
        await asyncio.to_thread(self._service.start)
        self._service.attach()
        self._service.begin()
        self._clean_session.prepare(numbered.route for numbered in self._service.routes)
        await self._clean_session.subscribe()
        will = Will(self._membership.topic, self._membership.record(online=False))
        self._own = self._slot(self._settings.slot, will)
        await self._own.use(self._plan())
        self._parts.supervisor.keep("clean session", self._clean_session.client.run)
        self._parts.supervisor.keep("slots", self._watch)

    async def failed(self) -> str:
        """Wait until the worker cannot go on, and return why."""
        broken = asyncio.ensure_future(self._parts.supervisor.broken())
        await asyncio.wait([self._failed, broken], return_when=asyncio.FIRST_COMPLETED)
        broken.cancel()
        return self._failed.result() if self._failed.done() else broken.result()

    async def stop(self) -> None:
        """Take no more messages, let running requests finish, publish their results, and disconnect.

        What has not ended is not acknowledged: the broker keeps it for this slot, or sends it to others.
        """
        self._stopping = True
        slots = [slot for slot in (self._own, *self._adopted.values()) if slot is not None]
        with contextlib.suppress(BrokerError):
            # Decision: the lowest slot that has a worker stays subscribed, so that the broker keeps for it what is
            # published while no worker runs; all of them may be stopped together.
            if self._own is not None and self._membership.has_lower():
                await self._own.unsubscribe()
        for slot in slots:
            slot.pause()
        deadline = asyncio.get_running_loop().time() + _DRAIN_SECONDS
        while any(slot.held for slot in slots) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        await self._service.drain()
        if self._own is not None and not self._failed.done():
            self._publish_record(online=False)
            await self._publisher.settled(1)
        await self._service.close()
        for slot in slots:
            await slot.close()
        await self._clean_session.client.close()

    def _slot(self, number: int, will: Will | None, on_down: Callable[[], None] = lambda: None) -> Slot:
        dispatcher = self._parts.dispatcher
        return Slot(
            self._address, self._settings, number, dispatcher.offer, dispatcher.is_full, will=will, on_down=on_down
        )

    def _plan(self) -> Plan:
        routes = (numbered.route for numbered in self._service.routes)
        return plan(routes, self._settings.group, int(self._settings.queue_bytes))

    def _routes_replaced(self) -> None:
        self._clean_session.prepare(numbered.route for numbered in self._service.routes)
        self._parts.supervisor.finish("subscriptions", self._subscribe)

    async def _subscribe(self) -> None:
        """Subscribe what the routes need now."""
        try:
            await self._clean_session.subscribe()
            for slot in (self._own, *self._adopted.values()):
                if slot is not None:
                    await slot.use(self._plan())
        except BrokerError as error:  # when the connection is back all is subscribed
            log.error("not all routes receive messages: %s", error)  # noqa: TRY400

    def _take_record(self, outcome: str | None) -> None:
        if outcome == "taken" and not self._failed.done():
            self._failed.set_result(
                f"another worker has slot {self._settings.slot} of group {self._settings.group} now: this one ends"
            )
        elif outcome == "repeat":
            self._due = 0.0
        self._share_rates()
        self._look.set()

    def _share_rates(self) -> None:
        """Leave each other worker its part of RATE_LIMIT: the broker sends them alike."""
        workers = self._membership.workers
        if workers != self._sharing and not self._stopping:
            self._sharing = workers
            self._parts.pool.share_rates(workers)
            if any(numbered.route.route_config.rate_limit for numbered in self._service.routes):
                log.info("each RATE_LIMIT is shared by %d worker%s", workers, "" if workers == 1 else "s")

    def _troubles(self) -> list[str]:
        lost = self._clean_session.client.trouble
        return ([] if lost is None else [lost]) + ([] if self._own is None else self._own.troubles)

    def _publish_record(self, *, online: bool) -> None:
        self._publisher.put(Publication(self._membership.topic, self._membership.record(online=online), retain=True), 0)

    async def _watch(self) -> None:
        """Publish this slot's record, and adopt slots that have no worker, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            own = self._own
            if own is None or not own.is_connected or self._clean_session.client.connection is None:
                self._due = 0.0  # so that the record follows the connection at once
            elif loop.time() >= self._due and not self._stopping:
                self._publish_record(online=True)
                self._due = loop.time() + self._membership.beat_seconds
            self._share_rates()
            await self._adopt_and_hand_back()
            # Not `wait_for`, which before Python 3.12 drops a cancellation that comes together with the event: the
            # record that a worker publishes last comes back to it, and in 2 of 80 stops it did not end.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._look.wait()
            self._look.clear()

    async def _adopt_and_hand_back(self) -> None:
        wanted = self._membership.to_adopt() if self._clean_session.client.connection is not None else []
        for number in [number for number in self._adopted if number not in wanted]:
            await self._adopted.pop(number).close()
            log.info("slot %d of group %s is handed back", number, self._settings.group)
        for number in wanted:
            if number not in self._adopted and not self._stopping:
                await self._adopt(number)

    async def _adopt(self, number: int) -> None:
        slot = self._slot(number, None, partial(self._adopted_lost, number))
        try:
            await slot.use(self._plan())
        except BrokerError as error:
            log.warning("slot %d of group %s is away and cannot be adopted: %s", number, self._settings.group, error)
            self._membership.connection_lost(number)
            await slot.close()
            return
        log.warning("slot %d of group %s is away: its messages are taken here", number, self._settings.group)
        self._adopted[number] = slot

    def _adopted_lost(self, number: int) -> None:
        """Release a slot whose session another worker has taken, its own most likely."""
        self._membership.connection_lost(number)
        self._look.set()

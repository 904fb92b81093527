"""The sessions of a slot: one for all routes that may drop messages, and one for each lossless route. The event loop.

A lossless route has a connection of its own, so that a server that is away fills that connection only. Its share is
named after the route too: two sessions that subscribed one filter under one share would each get half of its messages.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from amqtt_rest_bridge.model import OverloadPolicy, Route
from amqtt_rest_bridge.mqtt.packets import Will
from amqtt_rest_bridge.mqtt.values import Address, Session
from amqtt_rest_bridge.processes.supervisor import Supervisor
from amqtt_rest_bridge.routing.calls import EventName
from amqtt_rest_bridge.settings import WorkerSettings
from amqtt_rest_bridge.topics import schedule_topic
from amqtt_rest_bridge.worker.intake import Feed, Intake, Offer

MAIN: Final = ""
"""The name of the session that is not a lossless route's."""
_MOST_RECEIVED: Final = 65_535
_MOST_LOSSLESS: Final = 1024  # messages of a lossless route that a worker holds: enough for 64 workers, few to repeat


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """What a session subscribes, and how many messages, and bytes of payloads, it holds at most."""

    feeds: tuple[Feed, ...]
    receive_maximum: int
    most_bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The sessions of every slot of a group, by name, and all client events."""

    sessions: Mapping[str, SessionPlan]
    events: frozenset[EventName]


def plan(routes: Iterable[Route], group: str, queue_bytes: int) -> Plan:
    """Return which sessions a set of routes needs.

    The session of a lossless route holds OVERLOAD_BYTES. What its routes cannot queue the main one has refused: it
    holds that until the failures have been published, `queue_bytes` of it at most beside what is queued.
    """
    sessions: dict[str, SessionPlan] = {}
    others: list[Route] = []
    for route in routes:
        if route.route_config.overload_policy is not OverloadPolicy.LOSSLESS or not route.client_events:
            others.append(route)
            continue
        config = route.route_config
        most = max(1, min(config.overload_capacity, _MOST_LOSSLESS))
        sessions[route.name] = SessionPlan(_feeds([route], f"{group}:{route.name}"), most, config.overload_bytes)
    sessions[MAIN] = SessionPlan(_feeds(others, group), _MOST_RECEIVED, 2 * queue_bytes)
    events = frozenset(event for one in sessions.values() for feed in one.feeds for event in feed.events)
    return Plan(sessions, events)


def _feeds(routes: Iterable[Route], share: str) -> tuple[Feed, ...]:
    events: dict[tuple[str, bool], set[EventName]] = {}
    waiting: set[str] = set()  # topic filters whose messages are not acknowledged on arrival
    for route in routes:
        for event in route.client_events:
            if event.source_topic == schedule_topic(route.name, event.name):  # it listens to no topic
                continue
            events.setdefault((event.source_topic, event.ordered), set()).add((route.name, event.name))
            if route.route_config.overload_policy is not OverloadPolicy.REALTIME:
                waiting.add(event.source_topic)
    return tuple(
        Feed(topic if ordered else f"$share/{share}/{topic}", frozenset(names), ordered, topic not in waiting)
        for (topic, ordered), names in events.items()
    )


def client_id(group: str, slot: int, session: str) -> str:
    """Return the client id of a slot's session: `<group>-<slot>`, and for a lossless route `<group>-<slot>:<route>`."""
    return f"{group}-{slot}" + (f":{session}" if session != MAIN else "")


class Slot:
    """One slot's sessions, open on this worker.

    Args:
        address: The broker.
        settings: Those of the worker: the group, how many slots it has, how long the broker keeps sessions.
        number: The slot.
        offer: Takes messages; see `Dispatcher.offer`.
        is_full: Returns whether the queues of all routes together are full.
        will: Of the main session; None for a slot that is adopted.
        on_down: Called when that one has lost its connection.
    """

    def __init__(
        self,
        address: Address,
        settings: WorkerSettings,
        number: int,
        offer: Offer,
        is_full: Callable[[], bool],
        *,
        will: Will | None = None,
        on_down: Callable[[], None] = lambda: None,
    ) -> None:
        self.number = number
        self._address = address
        self._settings = settings
        self._offer = offer
        self._is_full = is_full
        self._will = will
        self._on_down = on_down
        self._intakes: dict[str, Intake] = {}
        self._supervisors: dict[str, Supervisor] = {}
        self._changing = asyncio.Lock()

    @property
    def is_connected(self) -> bool:
        """Return whether the main session is connected."""
        main = self._intakes.get(MAIN)
        return main is not None and main.client.connection is not None

    @property
    def troubles(self) -> list[str]:
        """Return which sessions are not connected, and why."""
        return [trouble for intake in self._intakes.values() if (trouble := intake.client.trouble) is not None]

    @property
    def held(self) -> int:
        """Return how many messages have come and are not acknowledged."""
        return sum(intake.held for intake in self._intakes.values())

    async def use(self, wanted: Plan) -> None:
        """Open or change the sessions for a set of routes; raises `BrokerError` when one cannot be opened.

        New filters are subscribed before old ones are given up. The session of a lossless route that is gone keeps what
        was not acknowledged for as long as sessions are kept.
        """
        async with self._changing:
            gone = {
                name: intake.prepare(session.feeds, wanted.events, session.most_bytes)
                for name, intake in self._intakes.items()
                if (session := wanted.sessions.get(name, _NOTHING))
            }
            for name, session in sorted(wanted.sessions.items()):  # the main one first: it takes the slot over
                if name not in self._intakes:
                    await self._open(name, session, wanted.events)
                else:
                    await self._intakes[name].subscribe(())
            for name, feeds in gone.items():
                await self._intakes[name].subscribe(feeds)
                if name not in wanted.sessions:
                    await self._close(name)

    async def unsubscribe(self) -> None:
        """Leave what is published from now on to other slots, but for this slot's share of topics."""
        for intake in self._intakes.values():
            await intake.unsubscribe_shared()

    def pause(self) -> None:
        """Take no more messages; acknowledgements are sent all the same."""
        for intake in self._intakes.values():
            intake.pause()

    async def close(self) -> None:
        """Disconnect all sessions, which the broker keeps."""
        async with self._changing:
            for name in list(self._intakes):
                await self._close(name)

    async def _open(self, name: str, wanted: SessionPlan, events: frozenset[EventName]) -> None:
        session = Session(
            client_id(self._settings.group, self.number, name), self._settings.session_expiry, wanted.receive_maximum,
            self._will if name == MAIN else None,
        )  # fmt: skip
        on_down = self._on_down if name == MAIN else lambda: None
        is_full = (lambda: False) if name == MAIN else self._is_full  # which refuses what has no room
        intake = Intake(
            self._address, session, self._offer, self.number, self._settings.slots, on_down, is_full=is_full
        )
        intake.prepare(wanted.feeds, events, wanted.most_bytes)
        await intake.client.open()
        supervisor = Supervisor(lambda _: None)
        supervisor.keep(session.client_id, intake.client.run)
        self._intakes[name], self._supervisors[name] = intake, supervisor

    async def _close(self, name: str) -> None:
        await self._supervisors.pop(name).stop()
        await self._intakes.pop(name).client.close()


_NOTHING: Final = SessionPlan((), 0, 0)

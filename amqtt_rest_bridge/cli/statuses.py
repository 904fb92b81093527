"""The statuses of routes as a broker reports them, for `rest-bridge status`. Main thread, own loop."""

import asyncio
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from amqtt_rest_bridge.cli.broker_client import Subscriber, connected
from amqtt_rest_bridge.mqtt.packets import Publish
from amqtt_rest_bridge.mqtt.values import Address
from amqtt_rest_bridge.routing.status import reload_topic, status_topic
from amqtt_rest_bridge.times import rfc3339

RELOAD_TOPIC: Final = reload_topic()
TOPIC_FILTER: Final = status_topic("+")
_QUIET_SECONDS: Final = 0.3  # after which no more retained messages are on their way
_REFRESH_SECONDS: Final = 1.0  # the table is drawn this often when nothing changes, for its clock ...
_PAUSE_SECONDS: Final = 0.2  # ... and at most this often when much does
_GROUP_TOPIC: Final = re.compile(r"bridge/[^/]+/(\d{1,4})/")
_AWAY_AFTER: Final = 3  # intervals of the status without one
_USUAL_SECONDS: Final = 30.0  # between two statuses

Status = dict[str, Any]
AWAY: Final = "away"
"""The health of the routes of a worker that is away."""


@dataclass(frozen=True, slots=True)
class Overview:
    """What a broker reports: the status of each route, and its last reload if that failed (time, errors, message)."""

    statuses: list[Status]
    reload_failure: dict[str, Any] | None = None


def parse_status(payload: bytes) -> Status | None:
    """Parse a status payload; None when it is not one: anything may be published on these topics."""
    status = _parse(payload)
    return status if status is not None and isinstance(status.get("name"), str) else None


def _parse(payload: bytes) -> dict[str, Any] | None:
    try:
        members = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    return members if isinstance(members, dict) else None


def snapshot(address: Address, seconds: float | None = None, topic_filter: str = TOPIC_FILTER) -> Overview:
    """Return the status of every route, and the failed reload, that the broker has retained; blocks.

    Args:
        address: The broker.
        seconds: How long to listen; None: until what is retained has come.
        topic_filter: The topics of the statuses; with a `+` for the slot, each status has the member `slot`.

    Raises:
        BrokerUnavailableError: It cannot be reached, refuses us, or closes the connection.
    """

    async def ask() -> Overview:
        async with connected(address, _filters(topic_filter)) as subscriber:
            feed = _Feed(subscriber)
            if seconds is None:
                await feed.receive_retained()
            else:
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    await feed.receive(end - time.monotonic())
            return feed.overview

    return asyncio.run(ask())


def follow(
    address: Address,
    seconds: float | None,
    show: Callable[[Overview], None],
    topic_filter: str = TOPIC_FILTER,
) -> None:
    """Call `show` with the status of all routes at each change and every second; blocks.

    Args:
        address: The broker.
        seconds: When to end; None: when interrupted.
        show: Called on the event loop's thread.
        topic_filter: As in `snapshot`.

    Raises:
        BrokerUnavailableError: As `snapshot`.
        KeyboardInterrupt: Ctrl-C.
    """
    end = None if seconds is None else time.monotonic() + seconds

    async def ask() -> None:
        async with connected(address, _filters(topic_filter)) as subscriber:
            feed = _Feed(subscriber)
            await feed.receive_retained()
            while True:
                show(feed.overview)
                left = _REFRESH_SECONDS if end is None else min(_REFRESH_SECONDS, end - time.monotonic())
                if left <= 0:
                    return
                if await feed.receive(left):
                    settled = time.monotonic() + _PAUSE_SECONDS
                    while await feed.receive(settled - time.monotonic()):
                        pass

    asyncio.run(ask())


class _Feed:
    """A connected client and the statuses it has received."""

    def __init__(self, subscriber: Subscriber) -> None:
        self._subscriber = subscriber
        self._statuses: dict[str, Status] = {}
        self._heard: dict[str, float] = {}  # when a status came that was not retained, by topic (Unix time)
        self._gone: dict[int, float | None] = {}  # slots whose record says so; since when, if that was seen
        self._reload_failure: dict[str, Any] | None = None

    @property
    def overview(self) -> Overview:
        now = time.time()
        return Overview([self._judged(topic, now) for topic in self._statuses], self._reload_failure)

    def _judged(self, topic: str, now: float) -> Status:
        """Return a status; one of a worker that is away with health `away`, and since when."""
        status = self._statuses[topic]
        slot = status.get("slot")
        if slot is None:
            return status
        last = max(self._heard.get(topic, 0.0), _timestamp(status.get("timestamp")) or 0.0)
        interval = status.get("status_seconds")
        seconds = interval if isinstance(interval, int | float) and interval > 0 else _USUAL_SECONDS
        silent = now - last > _AWAY_AFTER * seconds
        if slot not in self._gone and not silent:
            return status
        return status | {"health": AWAY, "away_since": rfc3339(self._gone.get(slot) or last)}

    async def receive_retained(self) -> None:
        """Receive until nothing retained has come for a while, however many messages are published meanwhile."""
        quiet = time.monotonic() + _QUIET_SECONDS
        while (left := quiet - time.monotonic()) > 0 and (message := await self._next(left)):
            if message.retain:
                quiet = time.monotonic() + _QUIET_SECONDS

    async def receive(self, seconds: float) -> bool:
        """Wait for one message; False when none came in time."""
        return await self._next(seconds) is not None

    async def _next(self, seconds: float) -> Publish | None:
        message = await self._subscriber.receive(seconds)
        if message is not None:
            self._update(message.topic, message.payload, retained=message.retain)
        return message

    def _update(self, topic: str, payload: bytes, *, retained: bool) -> None:
        if topic == RELOAD_TOPIC:
            self._reload_failure = _parse(payload)
            return
        found = _GROUP_TOPIC.match(topic)
        slot = None if found is None else int(found[1])
        if slot is not None and topic.endswith("/online"):
            record = _parse(payload)
            if record is None or record.get("online"):
                self._gone.pop(slot, None)
            else:
                self._gone.setdefault(slot, None if retained else time.time())
            return
        status = parse_status(payload)
        if status is not None:
            self._statuses[topic] = status | ({} if slot is None else {"slot": slot})
            if not retained:
                self._heard[topic] = time.time()
        elif not payload:  # the route is gone
            self._statuses.pop(topic, None)


def _timestamp(text: Any) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError):
        return None


def _filters(topic_filter: str) -> list[str]:
    """Return what is subscribed: workers do not retain a reload that failed, but records of who is there."""
    if topic_filter == TOPIC_FILTER:
        return [topic_filter, RELOAD_TOPIC]
    group = topic_filter.split("/")[1]
    return [topic_filter, f"bridge/{group}/+/online"]

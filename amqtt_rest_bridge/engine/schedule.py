"""EVERY: events that run at an interval, beside or without messages."""

import logging
import math
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Final

from amqtt_rest_bridge.engine.needs import Cancels, Clock, Delivery
from amqtt_rest_bridge.lot.model import EventName, Message, Route
from amqtt_rest_bridge.topics import schedule_topic

log = logging.getLogger(__name__)

# The first run comes at random within a minute, or within the interval if that is shorter, so that brokers
# that are started together do not ask a server at the same moment, and a day's interval does not delay it by a day.
_LONGEST_FIRST_DELAY: Final = 60.0

RunEvent = Callable[[EventName, Message, Delivery], object]
"""`ClientMode.run_event`."""


@dataclass(slots=True, eq=False)
class OwnDelivery:
    """The `Delivery` of a message that comes from no source, such as one for EVERY; `holds` counts its open calls."""

    is_dropped: ClassVar[bool] = False
    is_bounded: ClassVar[bool] = False
    has_key: ClassVar[bool] = False
    holds: int = field(default=0, init=False)

    def hold(self) -> None:
        """Count one call or publication more."""
        self.holds += 1

    def release(self) -> None:
        """Count one less."""
        self.holds -= 1

    def abandon(self) -> None:
        """Count one less: nothing delivers the message again."""
        self.release()

    def key(self, _: EventName) -> str:
        """Return a new Idempotency-Key."""
        return str(uuid.uuid4())

    def mark(self, _: EventName) -> str:
        """Return nothing: no source delivers the message again."""
        return ""


@dataclass(slots=True, eq=False)
class _Entry(OwnDelivery):
    """An event of the schedule and, as a `Delivery`, its run."""

    interval: float
    due: float  # monotonic time


class Schedule:
    """Run events when they are due; never twice at once.

    Args:
        run: Runs an event.
        leads: Returns whether this process runs an event now, where several share the routes.
        clock: Counts the intervals.
        chance: Returns a number from 0 to 1.
    """

    def __init__(
        self, run: RunEvent, leads: Callable[[EventName], bool], clock: Clock, chance: Callable[[], float]
    ) -> None:
        self._run = run
        self._leads = leads
        self._clock = clock
        self._chance = chance
        self._entries: dict[EventName, _Entry] = {}
        self._timer: Cancels | None = None

    def use(self, routes: Iterable[Route]) -> None:
        """Use other routes; an event that keeps its name and interval keeps the time of its next run."""
        before, self._entries, now = self._entries, {}, self._clock.monotonic()
        for route in routes:
            for event in route.client_events:
                if event.every is None:
                    continue
                name, interval = (route.name, event.name), float(event.every)
                entry = before.get(name)
                if entry is None:
                    entry = _Entry(interval, now + self._chance() * min(interval, _LONGEST_FIRST_DELAY))
                elif entry.interval != interval:
                    entry.due = max(now, entry.due - entry.interval + interval)  # counted from the last run
                    entry.interval = interval
                self._entries[name] = entry
        self._set_timer()

    def stop(self) -> None:
        """Run nothing more."""
        self._entries = {}
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._entries:
            due = min(entry.due for entry in self._entries.values())
            self._timer = self._clock.later(max(0.0, due - self._clock.monotonic()), self._run_due)

    def _run_due(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        for name, entry in list(self._entries.items()):
            if entry.due <= now:
                entry.due += entry.interval * (math.floor((now - entry.due) / entry.interval) + 1)
                if not self._leads(name):
                    continue
                if entry.holds:
                    log.info("route %s, event %s: not run again, as its last run has not ended", *name)
                    continue
                entry.hold()  # until the call has its own
                self._run(name, Message(schedule_topic(*name), b"", self._clock.time()), entry)
                entry.release()
        self._set_timer()

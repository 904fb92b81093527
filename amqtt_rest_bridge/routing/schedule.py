"""Events that run at an interval (EVERY), beside or without messages. The broker's loop alone.

The schedule is kept beside the dispatcher, not in a bridge process: so an event runs once however many bridge processes
there are, and one that dies or is replaced changes nothing about when. Where several brokers or workers share the
routes, `leads` tells which of them runs an event.
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from amqtt_rest_bridge.model import EventName, Message, NumberedRoute
from amqtt_rest_bridge.routing.calls import LocalDelivery, RunEvent
from amqtt_rest_bridge.times import woken
from amqtt_rest_bridge.topics import schedule_topic

log = logging.getLogger(__name__)

# Decision: the first run comes at random within a minute, or within the interval if that is shorter, so that brokers
# that are started together do not ask a server at the same moment, and a day's interval does not delay it by a day.
_LONGEST_FIRST_DELAY: Final = 60.0
_CHANCE: Final = random.SystemRandom().random  # not the shared generator, which tests that embed a broker may seed


@dataclass(slots=True, eq=False)
class _Entry(LocalDelivery):
    """An event of the schedule and, as a `Delivery`, its run."""

    interval: float
    due: float  # monotonic time


class Schedule:
    """Run events when they are due.

    Args:
        run: Runs an event.
        leads: Returns whether this process runs an event now, where several share the routes.
        monotonic: The clock of the intervals, in seconds.
        clock: Unix seconds, for the messages.
        chance: Returns a number from 0 to 1.
    """

    def __init__(
        self,
        run: RunEvent,
        leads: Callable[[EventName], bool] = lambda _: True,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
        chance: Callable[[], float] = _CHANCE,
    ) -> None:
        self._run = run
        self._leads = leads
        self._monotonic = monotonic
        self._clock = clock
        self._chance = chance
        self._entries: dict[EventName, _Entry] = {}
        self._changed = asyncio.Event()

    def replace(self, routes: Sequence[NumberedRoute]) -> None:
        """Use other routes; an event that keeps its name and interval keeps the time of its next run."""
        before, self._entries = self._entries, {}
        for route in (numbered.route for numbered in routes):
            for event in route.client_events:
                if event.every is not None:
                    name = (route.name, event.name)
                    self._entries[name] = self._entry(before.get(name), float(event.every))
        self._changed.set()

    def _entry(self, known: _Entry | None, interval: float) -> _Entry:
        now = self._monotonic()
        if known is None:
            return _Entry(interval, now + self._chance() * min(interval, _LONGEST_FIRST_DELAY))
        if known.interval != interval:
            known.due = max(now, known.due - known.interval + interval)  # counted from the last run
            known.interval = interval
        return known

    async def run(self) -> None:
        """Run what is due until cancelled."""
        while True:
            await woken(self._changed, self.run_due())

    def run_due(self) -> float | None:
        """Run what is due now; return the seconds until the next run, None when there is none."""
        now = self._monotonic()
        for name, entry in list(self._entries.items()):
            if entry.due <= now:
                entry.due += entry.interval * (math.floor((now - entry.due) / entry.interval) + 1)
                if self._leads(name):
                    self._begin(name, entry)
        return min((entry.due - now for entry in self._entries.values()), default=None)

    def _begin(self, name: EventName, entry: _Entry) -> None:
        if entry.holds:
            log.info("route %s, event %s: not run again, as its last run has not ended", *name)
            return
        entry.hold()  # until the call has its own
        self._run(name, Message(schedule_topic(*name), b"", self._clock()), entry)
        entry.release()

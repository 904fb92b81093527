"""The I/O loop of one port: waits for sockets that are ready and calls their channels. Runs on the port's thread.

It takes the place of waitress's own loop, which checks every channel at every turn for reading and writing:
with 1,000 idle connections that costs more than a millisecond a turn. Here a channel is checked after it did something,
and waiting costs the same for one connection and for thousands. Work that may come for thousands of connections at
once, the next pieces of their streams, is done a little a turn: whatever else is to be done waits for that little.
"""

import heapq
import itertools
import logging
import selectors
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

log = logging.getLogger(__name__)

_DEAD_TIMERS: Final = 64  # cancelled ones that are kept without a look whether they are most
_PATIENT: Final = 16  # pieces of patient work a turn: 0.2 ms where each sends something


class Timer:
    """An action that is due at a time (monotonic), unless it is cancelled before."""

    __slots__ = ("_loop", "action", "at")

    def __init__(self, loop: "ChannelLoop", at: float, action: Callable[[], None]) -> None:
        self._loop = loop
        self.at = at
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """Never run the action; on the loop's thread."""
        if self.action is not None:
            self.action = None
            self._loop.forget_timer()


class ChannelLoop(dict[int, Any]):
    """The loop, and the map of descriptors to channels in which waitress's channels register themselves.

    A channel is a waitress dispatcher or a `ServerConnection`: `readable` and `writable` return what it waits for,
    `handle_read_event`, `handle_write_event` and `handle_close` act on it; `accepting` is true for a listening socket.
    """

    def __init__(self) -> None:
        super().__init__()
        self._selector = selectors.DefaultSelector()
        self._interest: dict[int, int] = {}
        self._ready: deque[Callable[[], None]] = deque()
        self._patient: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._timer_numbers = itertools.count()
        self._cancelled = 0  # of the timers in the list
        self._running = True
        self.after_turn: Callable[[], None] | None = None
        """Called after each turn, before `run` waits."""
        self.waits = False
        """Whether `run` waits for sockets, or is about to, so that another thread has to wake it."""

    def __setitem__(self, descriptor: int, channel: Any) -> None:
        super().__setitem__(descriptor, channel)
        self._interest[descriptor] = selectors.EVENT_READ
        self._selector.register(descriptor, selectors.EVENT_READ, channel)

    def __delitem__(self, descriptor: int) -> None:
        super().__delitem__(descriptor)
        if self._interest.pop(descriptor):
            self._selector.unregister(descriptor)

    def soon(self, work: Callable[[], None]) -> None:
        """Run `work` on the loop's thread before it waits again; from another thread, wake the loop after it."""
        self._ready.append(work)

    def patiently(self, work: Callable[[], None]) -> None:
        """Run `work` likewise, but a little of it a turn: what thousands have at once delays nothing else."""
        self._patient.append(work)

    def later(self, seconds: float, action: Callable[[], None]) -> Timer:
        """Run `action` once, `seconds` from now, unless the timer is cancelled before; on the loop's thread."""
        timer = Timer(self, time.monotonic() + seconds, action)
        heapq.heappush(self._timers, (timer.at, next(self._timer_numbers), timer))
        return timer

    def forget_timer(self) -> None:
        """Count a cancelled timer, and drop them all when they are most of what is kept."""
        self._cancelled += 1
        if self._cancelled > _DEAD_TIMERS and 2 * self._cancelled > len(self._timers):
            self._timers = [entry for entry in self._timers if entry[2].action is not None]
            heapq.heapify(self._timers)
            self._cancelled = 0

    def stop(self) -> None:
        """End `run` after the current turn; on the loop's thread."""
        self._running = False

    def run(self, on_tick: Callable[[], None], tick_seconds: float) -> None:
        """Run the loop until `stop`; `on_tick` is called about every `tick_seconds`.

        What work leaves to be done soon waits for another channel's turn, so a caller that sends many requests in one
        piece gets one answer at a time.
        """
        next_tick = time.monotonic() + tick_seconds
        select, ready, patient = self._selector.select, self._ready, self._patient
        while self._running:
            self.waits = True  # before it looks for work: what comes later wakes it
            pause = 0.0 if ready or patient else tick_seconds
            if self._timers:
                pause = min(pause, max(0.0, self._timers[0][0] - time.monotonic()))
            happened = select(pause)
            self.waits = False
            for key, events in happened:
                channel = key.data
                if channel is self.get(key.fd):  # not closed by what happened since
                    self._serve(channel, events)
                self._do_first(ready, len(ready))
                self.refresh(key.fd)
            self._do_first(ready, len(ready))
            self._do_first(patient, _PATIENT)
            now = time.monotonic()
            if self._timers:
                self._run_due(now)
            if now >= next_tick:
                next_tick = now + tick_seconds
                self._do(on_tick)
            if self.after_turn is not None:
                self._do(self.after_turn)

    def refresh(self, descriptor: int | None) -> None:
        """Register again what a channel waits for; on the loop's thread, for an open or just closed descriptor."""
        if descriptor is None:
            return
        channel = self.get(descriptor)
        if channel is None:
            return
        wanted = selectors.EVENT_READ if channel.readable() else 0
        if channel.writable() and not channel.accepting:
            wanted |= selectors.EVENT_WRITE
        current = self._interest[descriptor]
        if wanted == current:
            return
        self._interest[descriptor] = wanted
        if not current:
            self._selector.register(descriptor, wanted, channel)
        elif not wanted:
            self._selector.unregister(descriptor)
        else:
            self._selector.modify(descriptor, wanted, channel)

    def close(self) -> None:
        """Close the loop's own descriptor, after `run` has ended."""
        self._selector.close()

    def _run_due(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if timer.action is None:
                self._cancelled -= 1
            else:
                action, timer.action = timer.action, None
                self._do(action)

    def _serve(self, channel: Any, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                channel.handle_read_event()
            if events & selectors.EVENT_WRITE:
                channel.handle_write_event()
        except OSError as error:
            log.debug("A connection broke: %s", error)
            channel.handle_close()
        except Exception:
            log.exception("A connection is closed because serving it failed")
            channel.handle_close()

    def _do_first(self, works: deque[Callable[[], None]], most: int) -> None:
        for _ in range(min(most, len(works))):
            self._do(works.popleft())

    @staticmethod
    def _do(work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            log.exception("Work on the port's thread failed")

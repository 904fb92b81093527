"""Whose turn it is: the places of a route, and the calls that wait for one in their order."""

from collections import deque
from collections.abc import Callable

from amqtt_rest_bridge.engine.admission import Admission
from amqtt_rest_bridge.engine.needs import Clock
from amqtt_rest_bridge.engine.stages import Call
from amqtt_rest_bridge.engine.stages.order import OrderLease
from amqtt_rest_bridge.engine.stages.rate_limit import Pace


class Turns:
    """Begin calls while there are places: with RATE_LIMIT at its pace, of ORDERED events while the lease lasts.

    Args:
        admission: Of the route; has the number of places, and of those that are taken.
        lease: Of the worker, for calls of ORDERED events.
        clock: For the pace.
        begin: Begins a call, which has a place then.
    """

    def __init__(self, admission: Admission, lease: OrderLease, clock: Clock, begin: Callable[[Call], None]) -> None:
        self.pace: Pace | None = None
        """That of RATE_LIMIT; it stays when a reload takes the limit away, without a distance."""
        self._admission = admission
        self._lease = lease
        self._clock = clock
        self._begin = begin
        self.workers = 1
        """That share the limit, this one included."""
        self._seconds = 0.0
        self._waiting: deque[Call] = deque()

    def use(self, rate_limit: float | None) -> None:
        """Keep another distance between requests, in seconds; None: no distance."""
        if self.pace is None and rate_limit is not None:
            self.pace = Pace(self._clock, self._go_on)
        if self.pace is not None:
            self.pace.change(rate_limit or 0.0, self.workers)
        self._seconds = rate_limit or 0.0

    def share(self, workers: int) -> None:
        """Share the pace with other workers, each of which has its part of the limit."""
        self.workers = workers
        if self.pace is not None:
            self.pace.change(self._seconds, workers)

    def wait(self, call: Call) -> None:
        """Queue a call behind the others."""
        self._waiting.append(call)
        self._go_on()

    def leave(self, call: Call) -> None:
        """Free the place of a call, which `take` gives to the next one."""
        call.has_place = False
        self._admission.in_flight -= 1
        if self.pace is not None:
            self.pace.left(call)

    def take(self) -> Call | None:
        """Return the next call, with a place; None if no call waits or may begin, or no place is free."""
        admission, waiting = self._admission, self._waiting
        while waiting and admission.in_flight < admission.places:
            call = waiting[0]
            if call.has_ended:
                waiting.popleft()
            elif call.line is not None and not self._lease.lasts:
                self._lease.hold(waiting.popleft())
            elif self.pace is not None and not self.pace.begin(call):
                break  # it goes on by itself when there is a turn
            else:
                waiting.popleft()
                call.has_place = True
                admission.in_flight += 1
                return call
        return None

    @property
    def is_due(self) -> bool:
        """Return whether RATE_LIMIT lets a request leave now."""
        return self.pace is None or self.pace.seconds_left <= 0

    def clear(self) -> None:
        """Forget those that wait."""
        self._waiting.clear()

    def _go_on(self) -> None:
        while (call := self.take()) is not None:
            self._begin(call)

"""The messages of balanced routes that wait for room (OVERLOAD_TIMEOUT). The broker's loop alone.

One holds no worker and no place of its route: at most OVERLOAD_CAPACITY messages of a route wait beside those that are
queued and in flight. They go in the order in which they came.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from amqtt_rest_bridge.model import OverloadPolicy
from amqtt_rest_bridge.routing.calls import Call
from amqtt_rest_bridge.routing.outcomes import Later

AT_ONCE: Final = 100
"""Messages that are refused in one iteration of the loop."""


class OverloadQueue:
    """Messages by route.

    Args:
        refuse: Called for a message whose time is over.
        monotonic: The clock, in seconds.
        later: Sets a timer.
    """

    def __init__(self, refuse: Callable[[Call], None], monotonic: Callable[[], float], later: Later) -> None:
        self._refuse = refuse
        self._monotonic = monotonic
        self._later = later
        self._queues: dict[str, deque[Call]] = {}

    def accept(self, call: Call) -> bool:
        """Queue a message; return False where its route does not wait, or its queue is full."""
        statistics = call.listening.statistics
        admission = statistics.admission
        if admission.policy is not OverloadPolicy.BALANCED or not admission.timeout:
            return False
        queue = self._queues.get(statistics.name)
        # Decision: as many messages, and bytes, may wait as the route has room for, so that waiting is bounded too.
        if queue is not None and not admission.may_wait(len(queue), len(call.message.payload)):
            return False
        now = self._monotonic()
        if call.since is None:
            call.since = now
        if queue is None:
            queue = self._queues[statistics.name] = deque()
            left = call.since + admission.timeout - now  # of one that has waited before a reload, less than all
            self._watch(max(0.0, left), statistics.name, queue)
        queue.append(call)
        admission.wait_outside(1, len(call.message.payload))
        return True

    def first(self, route: str) -> Call:
        """Return the message of a route that has waited longest."""
        return self._queues[route][0]

    def next(self, route: str) -> Call:
        """Remove and return the message of a route that has waited longest."""
        queue = self._queues[route]
        call = queue.popleft()
        call.listening.statistics.admission.wait_outside(-1, len(call.message.payload))
        if not queue:
            del self._queues[route]
        return call

    def empty(self) -> Iterator[Call]:
        """Remove and return all messages, the oldest of each route first."""
        for route in list(self._queues):
            while route in self._queues:
                yield self.next(route)

    def _watch(self, seconds: float, route: str, queue: deque[Call]) -> None:
        self._later(seconds, lambda: self._expire(route, queue))

    def _expire(self, route: str, queue: deque[Call]) -> None:
        for _ in range(AT_ONCE):
            if self._queues.get(route) is not queue:  # it was emptied, and perhaps filled again, with its own timer
                return
            left = (queue[0].since or 0.0) + queue[0].listening.statistics.admission.timeout - self._monotonic()
            if left > 0:
                self._watch(left, route, queue)
                return
            self._refuse(self.next(route))
        self._watch(0, route, queue)

"""Whether a route has room for one more message, by what it holds; the messages that wait for room. Pure."""

from collections import deque
from collections.abc import Callable
from typing import Final

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.engine.needs import Clock
from amqtt_rest_bridge.engine.stages import Call
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.lot.model import OverloadPolicy, RouteConfig
from amqtt_rest_bridge.sizes import size_text

AT_ONCE: Final = 100
"""Messages that are refused in one iteration of the loop."""


class QueueBytes:
    """The payloads that all routes together have queued and in flight, in bytes, and the setting queue_bytes."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    @property
    def is_full(self) -> bool:
        """Return whether no more may be queued."""
        return self.held >= self.limit


class Admission:
    """What a route holds, what it may hold, and whether one more message has room.

    Decision: a route that has nothing queued and nothing in flight takes one message, however large it is and however
    full the queues of other routes are. So no route is silenced by another one, and the bounds in bytes can be
    exceeded by one message of each route.

    Args:
        config: The bounds.
        places: Requests that the route may have in flight (the setting `workers`).
        queue: Counts the payloads of all routes.
    """

    __slots__ = (
        *("admitted", "capacity", "held_bytes", "in_flight", "most_bytes", "outside", "outside_bytes"),
        *("outstanding", "places", "policy", "timeout", "_queue"),
    )

    def __init__(self, config: RouteConfig, places: int, queue: QueueBytes) -> None:
        self.places = places
        self._queue = queue
        self.admitted = 0  # so far
        self.outstanding = 0  # admitted and not ended
        self.in_flight = 0  # of those: that have a place
        self.held_bytes = 0  # of their payloads
        self.outside = 0  # not admitted yet: they wait for room, and a new one goes behind them
        self.outside_bytes = 0
        self.update(config)

    def update(self, config: RouteConfig) -> None:
        """Apply what a reload changed."""
        self.capacity = config.overload_capacity
        self.most_bytes = config.overload_bytes
        self.policy = config.overload_policy
        self.timeout = config.overload_timeout / 1000

    def admit(self, size: int) -> CallError | None:
        """Hold one more message of `size` bytes, or return the reason why not."""
        if self.outside:  # those go first
            return self.full(size)
        if self.policy is OverloadPolicy.REALTIME and self.in_flight >= self.places:
            busy = f"all {self.places} workers are busy and OVERLOAD_POLICY is realtime"
            return catalogue.NO_FREE_WORKER.error(f"the route is overloaded: {busy}")
        if self.outstanding and not (self.outstanding < self.capacity and self._fit(self.held_bytes, size)):
            return self.full(size)
        self.take(size)
        return None

    def full(self, size: int) -> CallError:
        """Return why a message of `size` bytes has no room."""
        if self.outstanding >= self.capacity or self.outside >= self.capacity:
            used_up = f"its OVERLOAD_CAPACITY of {self.capacity} messages is used up"
            return catalogue.ROUTE_FULL.error(f"the route is overloaded: {used_up}")
        row, whose, bound = catalogue.ROUTE_BYTES_FULL, "route", f"OVERLOAD_BYTES of {size_text(self.most_bytes)}"
        if self.held_bytes + size <= self.most_bytes and self._queue.held + size > self._queue.limit:
            row, whose, bound = catalogue.QUEUE_BYTES_FULL, "bridge", f"queue_bytes of {size_text(self._queue.limit)}"
        # The bytes of a route hold those that wait too, which go first.
        return row.error(f"the {whose} is overloaded: its {bound} have no room for a payload of {size_text(size)}")

    def take(self, size: int) -> None:
        """Hold a message of `size` bytes whatever room there is: its source bounds them."""
        self.admitted += 1
        self.outstanding += 1
        self.held_bytes += size
        self._queue.held += size

    def release(self, size: int) -> None:
        """Note that an admitted call has ended."""
        self.outstanding -= 1
        self.held_bytes -= size
        self._queue.held -= size

    def may_wait(self, size: int) -> bool:
        """Return whether one more message of `size` bytes may wait for room.

        Decision: as many messages, and bytes, may wait as the route has room for, so that waiting is bounded too.
        """
        return self.outside == 0 or (self.outside < self.capacity and self._fit(self.outside_bytes, size))

    def wait_outside(self, change: int, size: int) -> None:
        """Note that a message begins (+1) or ceases (-1) to wait for room."""
        self.outside += change
        self.outside_bytes += change * size
        self._queue.held += change * size

    def has_room(self, size: int) -> bool:
        """Return whether a message of `size` bytes that waits for room, and counts in `queue`, can be queued."""
        return not self.outstanding or (
            self.outstanding < self.capacity and self._fit(self.held_bytes, size, counted=True)
        )

    def _fit(self, held: int, size: int, *, counted: bool = False) -> bool:
        """Return whether `size` bytes fit beside those `held`; `counted`: they are in `queue` already."""
        return held + size <= self.most_bytes and (counted or self._queue.held + size <= self._queue.limit)

    @property
    def queued(self) -> int:
        """Return how many messages wait: for a place, for their next attempt, or for room."""
        return self.outstanding - self.in_flight + self.outside

    @property
    def bytes(self) -> int:
        """Return the bytes of the payloads that wait or are in flight."""
        return self.held_bytes + self.outside_bytes


class Outside:
    """The messages of a balanced route that wait for room (OVERLOAD_TIMEOUT), in the order in which they came.

    They hold no place. Room that frees is theirs before a new message's.

    Args:
        admission: Of the route.
        admit: Called for a message that has room now, and is admitted.
        refuse: Called for one whose time is over.
        clock: Counts the time.
    """

    def __init__(
        self,
        admission: Admission,
        admit: Callable[[Call], None],
        refuse: Callable[[Call, CallError], None],
        clock: Clock,
    ) -> None:
        self._admission = admission
        self._admit = admit
        self._refuse = refuse
        self._clock = clock
        self._waiting: deque[Call] = deque()
        self._is_watched = False

    def accept(self, call: Call) -> bool:
        """Queue a message; return False where its route does not wait, or too many do."""
        admission = self._admission
        if admission.policy is not OverloadPolicy.BALANCED or not admission.timeout:
            return False
        if not admission.may_wait(call.size):
            return False
        if call.since is None:
            call.since = self._clock.monotonic()
        self._waiting.append(call)
        admission.wait_outside(1, call.size)
        self._watch()
        return True

    def look(self) -> None:
        """Admit what has room now."""
        admission = self._admission
        while self._waiting and admission.has_room(self._waiting[0].size):
            call = self._next()
            admission.take(call.size)
            self._admit(call)

    def empty(self) -> list[Call]:
        """Remove and return all."""
        return self.remove(lambda _: True)

    def remove(self, is_one: Callable[[Call], bool]) -> list[Call]:
        """Remove and return those for which `is_one` is true."""
        removed = [call for call in self._waiting if is_one(call)]
        self._waiting = deque(call for call in self._waiting if not is_one(call))
        for call in removed:
            self._admission.wait_outside(-1, call.size)
        return removed

    def _next(self) -> Call:
        call = self._waiting.popleft()
        self._admission.wait_outside(-1, call.size)
        return call

    def _watch(self) -> None:
        if self._waiting and not self._is_watched:
            self._is_watched = True
            left = (self._waiting[0].since or 0.0) + self._admission.timeout - self._clock.monotonic()
            self._clock.later(max(0.0, left), self._expire)

    def _expire(self) -> None:
        self._is_watched = False
        now = self._clock.monotonic()
        for _ in range(AT_ONCE):
            if not self._waiting or (self._waiting[0].since or 0.0) + self._admission.timeout > now:
                break
            call = self._next()
            self._refuse(call, self._admission.full(call.size))
        self._watch()

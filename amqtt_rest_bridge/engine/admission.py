"""Whether a route has room for one more message, by what it holds. Pure."""

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.lot.model import OverloadPolicy, RouteConfig
from amqtt_rest_bridge.sizes import size_text


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
            return self.why_full(size)
        if self.policy is OverloadPolicy.REALTIME and self.in_flight >= self.places:
            busy = f"all {self.places} workers are busy and OVERLOAD_POLICY is realtime"
            return catalogue.NO_FREE_WORKER.error(f"the route is overloaded: {busy}")
        if self.outstanding and not (self.outstanding < self.capacity and self._fit(self.held_bytes, size)):
            return self.why_full(size)
        self.hold(size)
        return None

    def why_full(self, size: int) -> CallError:
        """Return why a message of `size` bytes has no room."""
        if self.outstanding >= self.capacity or self.outside >= self.capacity:
            used_up = f"its OVERLOAD_CAPACITY of {self.capacity} messages is used up"
            return catalogue.ROUTE_FULL.error(f"the route is overloaded: {used_up}")
        row, whose, bound = catalogue.ROUTE_BYTES_FULL, "route", f"OVERLOAD_BYTES of {size_text(self.most_bytes)}"
        if self.held_bytes + size <= self.most_bytes and self._queue.held + size > self._queue.limit:
            row, whose, bound = catalogue.QUEUE_BYTES_FULL, "bridge", f"queue_bytes of {size_text(self._queue.limit)}"
        # The bytes of a route hold those that wait too, which go first.
        return row.error(f"the {whose} is overloaded: its {bound} have no room for a payload of {size_text(size)}")

    def hold(self, size: int) -> None:
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

    def count_outside(self, change: int, size: int) -> None:
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

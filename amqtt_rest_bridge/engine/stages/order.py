"""ORDERED, and ON_CHANGE: calls of one topic run one after the other, in their order of arrival."""

import math
from collections import deque

from amqtt_rest_bridge.engine.event import Batch, Call
from amqtt_rest_bridge.engine.needs import Clock


class Order:
    """The lines of a route. In each line one call may run, and the others wait behind it."""

    def __init__(self) -> None:
        self._behind: dict[str, deque[Call]] = {}  # by line

    def enter(self, call: Call) -> bool:
        """Put a call into its line; return whether it may run now. If not, a later `leave` returns it.

        The batches of an event share one line; other calls have a line for each topic.
        """
        call.line = line = f"{call.event.event.name}\0{'' if isinstance(call, Batch) else call.message.topic}"
        behind = self._behind.get(line)
        if behind is None:
            self._behind[line] = deque()
            return True
        behind.append(call)
        call.is_behind = True
        return False

    def precede(self, call: Call) -> None:
        """Put a call first among those that wait in its line, next after the one that may run."""
        self._behind[call.line or ""].appendleft(call)
        call.is_behind = True

    def leave(self, line: str) -> Call | None:
        """Remove the call that may run from its line; return the next one, None if the line is empty."""
        behind = self._behind[line]
        while behind:
            following = behind.popleft()
            if not following.has_ended:
                following.is_behind = False
                return following
        del self._behind[line]
        return None


class OrderLease:
    """The time until which calls of lines may begin: until then no other worker can take this worker's slots.

    Args:
        clock: Its monotonic time counts.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until = math.inf
        self._held: list[Call] = []

    @property
    def lasts(self) -> bool:
        """Return whether calls of lines may begin."""
        return self._until == math.inf or self._clock.monotonic() < self._until

    def hold(self, call: Call) -> None:
        """Keep a call until the lease is renewed."""
        self._held.append(call)

    def renew(self, until: float) -> None:
        """Extend or end the lease, and put the calls that have waited for it back into their queues."""
        self._until = until
        held, self._held = self._held, []
        for call in held:
            call.resume(call)

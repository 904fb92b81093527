"""OVERLOAD_TIMEOUT: messages of a balanced route that wait for room, in the order in which they came.

They hold no place. Room that becomes free goes to them first, then to new messages.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from amqtt_rest_bridge.engine.event import Call
from amqtt_rest_bridge.engine.needs import Clock
from amqtt_rest_bridge.engine.statistics import Admission
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.lot.model import OverloadPolicy

REFUSED_AT_ONCE: Final = 100
"""Messages that are refused in one iteration of the loop, at most."""


class RoomQueue:
    """The messages of a route that wait for room.

    Args:
        admission: Of the route.
        clock: Counts the time.
        refuse: Called for one whose time is over.
    """

    def __init__(self, admission: Admission, clock: Clock, refuse: Callable[[Call, CallError], None]) -> None:
        self._admission = admission
        self._clock = clock
        self._refuse = refuse
        self._waiting: deque[Call] = deque()
        self._has_timer = False

    def add(self, call: Call) -> bool:
        """Queue a message; return False if its route does not wait, or too many messages wait."""
        admission = self._admission
        if admission.policy is not OverloadPolicy.BALANCED or not (admission.timeout and admission.may_wait(call.size)):
            return False
        if call.waiting_since is None:
            call.waiting_since = self._clock.monotonic()
        self._waiting.append(call)
        admission.count_awaiting_room(1, call.size)
        self._set_timer()
        return True

    def admitted(self) -> Iterator[Call]:
        """Admit the messages that have room now, one after the other; yield each."""
        admission = self._admission
        while self._waiting and admission.has_room(self._waiting[0].size):
            call = self._remove_first()
            admission.hold(call.size)
            yield call

    def remove(self, is_one: Callable[[Call], bool] = lambda _: True) -> list[Call]:
        """Remove and return the messages for which `is_one` is true, all of them by default."""
        removed = [call for call in self._waiting if is_one(call)]
        self._waiting = deque(call for call in self._waiting if not is_one(call))
        for call in removed:
            self._admission.count_awaiting_room(-1, call.size)
        return removed

    def _remove_first(self) -> Call:
        call = self._waiting.popleft()
        self._admission.count_awaiting_room(-1, call.size)
        return call

    def _seconds_left(self) -> float:
        """Return the seconds that the first message may still wait."""
        return (self._waiting[0].waiting_since or 0.0) + self._admission.timeout - self._clock.monotonic()

    def _set_timer(self) -> None:
        if self._waiting and not self._has_timer:
            self._has_timer = True
            self._clock.later(max(0.0, self._seconds_left()), self._refuse_late)

    def _refuse_late(self) -> None:
        self._has_timer = False
        for _ in range(REFUSED_AT_ONCE):
            if not self._waiting or self._seconds_left() > 0:
                break
            call = self._remove_first()
            self._refuse(call, self._admission.why_full(call.size))
        self._set_timer()

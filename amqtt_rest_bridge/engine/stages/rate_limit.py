"""RATE_LIMIT: the server sees no more requests of a route than so many in a time.

Every request takes a turn: the first of an attempt, and those that follow it (redirects, credentials sent again). The
next turn comes so many seconds after the request of the last one has left, however long that has waited for an access
token or a processor, so that requests do not gather and leave together.

Decision: evenly spaced instead of in bursts, so that the server sees no more than the limit in any window of time.
"""

from asyncio import Future, get_running_loop
from collections import deque
from collections.abc import Callable

from amqtt_rest_bridge.engine.needs import Cancels, Clock
from amqtt_rest_bridge.engine.stages import Call


class Pace:
    """The turns of a route.

    Args:
        clock: Its monotonic time counts.
        on_turn: Called when a call may `begin`.
    """

    def __init__(self, clock: Clock, on_turn: Callable[[], None]) -> None:
        self._clock = clock
        self._on_turn = on_turn
        self._seconds = 0.0
        self._last = -float("inf")
        self._given: Call | None = None  # has begun, and its first request has not left
        self._waiting: deque[Future[None]] = deque()  # for requests that follow another one, which go first
        self._timer: Cancels | None = None

    def change(self, seconds: float, workers: int) -> None:
        """Keep another distance between requests, shared with other workers: each has its part of the limit."""
        self._seconds = workers * seconds
        self._set_timer()

    def begin(self, call: Call) -> bool:
        """Return whether it is the turn of a call; if not, `on_turn` is called when there is a turn."""
        if self._given is not None or self._waiting:
            return False
        if self.seconds_left > 0:
            self._set_timer()
            return False
        self._given = call
        return True

    async def take_turn(self, call: Call) -> None:
        """Return when the next request of a call may leave, which it does then."""
        if self._given is call:
            self._given = None
        else:
            began, turn = self._clock.monotonic(), get_running_loop().create_future()
            self._waiting.append(turn)
            self._set_timer()
            await turn
            call.paused += self._clock.monotonic() - began
        self._last = self._clock.monotonic()
        self._set_timer()

    def left(self, call: Call) -> None:
        """Note that a call has no place any more; a turn in which nothing was sent is another call's at once."""
        if self._given is call:
            self._given = None
            self._set_timer()

    @property
    def seconds_left(self) -> float:
        """Return the seconds until the next turn; 0 and less: it has come."""
        return self._last + self._seconds - self._clock.monotonic()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._clock.later(max(0.0, self.seconds_left), self._turn)

    def _turn(self) -> None:
        self._timer = None
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # its attempt was cancelled
                self._last = self._clock.monotonic()
                turn.set_result(None)
                return
        if self._given is None:
            self._on_turn()

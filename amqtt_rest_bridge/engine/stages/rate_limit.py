"""RATE_LIMIT: the server sees no more requests of a route than so many in a time.

Every request takes a turn: the first of an attempt, and those that follow it (redirects, credentials sent again). The
next turn comes a fixed time after the last request has left. This holds even if that request has left late, since it
waited for an access token or for the processor: delayed requests do not leave together.

Requests are spaced evenly and not sent in bursts, so that the server sees no more than the limit in any window of time.
"""

from asyncio import Future, get_running_loop
from collections import deque
from collections.abc import Callable

from amqtt_rest_bridge.engine.event import Call
from amqtt_rest_bridge.engine.needs import Cancels, Clock


class Pace:
    """The turns of a route.

    Args:
        clock: Its monotonic time counts.
        on_turn: Called when there is a turn.
        workers: Workers that share the limit, including this one.
    """

    def __init__(self, clock: Clock, on_turn: Callable[[], None], workers: int = 1) -> None:
        self._clock = clock
        self._on_turn = on_turn
        self._workers = workers
        self._seconds = 0.0  # between requests of all workers together
        self._last_sent = -float("inf")  # when the last request left
        self._holder: Call | None = None  # has the turn: its first request has not left yet
        self._waiting: deque[Future[None]] = deque()  # redirects and repeated logins, which go before new calls
        self._timer: Cancels | None = None

    def change(self, seconds: float) -> None:
        """Change the seconds between requests of all workers together."""
        self._seconds = seconds
        self._set_timer()

    def share(self, workers: int) -> None:
        """Share the limit among so many workers: each waits so many times as long."""
        self._workers = workers
        self._set_timer()

    def give_turn(self, call: Call) -> bool:
        """Return whether a call gets the turn now; if not, `on_turn` is called once there is one."""
        if self._holder is not None or self._waiting:
            return False
        if self.seconds_left > 0:
            self._set_timer()
            return False
        self._holder = call
        return True

    async def wait_for_turn(self, call: Call) -> None:
        """Wait until the next request of a call may leave; the caller sends it at once."""
        if self._holder is call:
            self._holder = None
        else:
            began, turn = self._clock.monotonic(), get_running_loop().create_future()
            self._waiting.append(turn)
            self._set_timer()
            await turn
            call.attempts.paused += self._clock.monotonic() - began
        self._last_sent = self._clock.monotonic()
        self._set_timer()

    def return_turn(self, call: Call) -> None:
        """Note that a call has no place any more. A turn that it did not use goes to another call at once."""
        if self._holder is call:
            self._holder = None
            self._set_timer()

    @property
    def seconds_left(self) -> float:
        """Return the seconds until the next turn, 0 or less if it has come."""
        return self._last_sent + self._seconds * self._workers - self._clock.monotonic()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._clock.later(max(0.0, self.seconds_left), self._give_next_turn)

    def _give_next_turn(self) -> None:
        self._timer = None
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # its attempt was cancelled
                self._last_sent = self._clock.monotonic()
                turn.set_result(None)
                return
        if self._holder is None:
            self._on_turn()

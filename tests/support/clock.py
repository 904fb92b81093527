"""Time that passes when a test says so."""

from collections.abc import Callable


class Clock:
    """A clock, called for the time in seconds, with timers."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self._timers: list[tuple[float, Callable[[], None]]] = []

    def __call__(self) -> float:
        return self.now

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Start a timer."""
        self._timers.append((self.now + seconds, call))

    def advance(self, seconds: float) -> None:
        """Advance the time and run the timers that are due."""
        self.now += seconds
        while self.fire():
            pass

    def fire(self) -> bool:
        """Run the first timer that is due; return whether there was one."""
        due = [timer for timer in self._timers if timer[0] <= self.now]
        if due:
            self._timers.remove(due[0])
            due[0][1]()
        return bool(due)

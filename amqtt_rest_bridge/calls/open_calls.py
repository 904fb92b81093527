"""When calls go on: behind earlier ones of their line, in turn, and once their payloads are here. Pure, no locks.

`OpenCalls` is about all calls of a bridge process, whichever definition of a route they belong to, `Turns` about one
route with a RATE_LIMIT. A driver with threads holds a lock while it uses them.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from amqtt_rest_bridge.calls.call import CallState, OpenCall
from amqtt_rest_bridge.model import Message

MOST_BYTES: Final = 8 << 20
"""Bytes of payloads that are kept while their calls wait."""

T = TypeVar("T")


class OpenCalls:
    """Which calls may go on, and which of those that wait keep their payloads.

    Calls of one line run one at a time, in order of arrival. The broker process holds every payload until its call has
    ended, so the payloads of calls that wait are kept up to a bound, and the others let go: they are sent again when
    they are due. Bounded by what the broker process admits.

    Args:
        most_bytes: Of payloads that are kept.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lines: dict[tuple[str, str, str], deque[OpenCall]] = {}  # those behind the one that may run
        self._kept = 0  # bytes
        self._waiting: dict[int, Callable[[], None]] = {}  # what gives a call that waits back, by number
        self.withdrawn: frozenset[int] = frozenset()
        """Numbers of calls that begin nothing more."""
        self.due: dict[int, OpenCall] = {}
        """Calls that go on once their payloads have come again, by number."""

    def enter(self, call: OpenCall) -> bool:
        """Return whether a call that has arrived may start; if not, `end` returns it."""
        if call.line is not None:
            behind = self._lines.get(call.line)
            if behind is not None:
                behind.append(call)
                call.state = CallState.BEHIND
                return False
            self._lines[call.line] = deque()
        return True

    def precede(self, call: OpenCall) -> None:
        """Put a call before all that are behind the one that may run, of whose line it is."""
        if call.line is not None:
            self._lines[call.line].appendleft(call)
            call.state = CallState.BEHIND

    def end(self, call: OpenCall) -> OpenCall | None:
        """End a call, wherever it is; return the one that may start now."""
        self._release(call)
        call.state = CallState.ENDED
        if call.line is None:
            return None
        behind = self._lines[call.line]
        if not behind:
            del self._lines[call.line]
            return None
        first = behind.popleft()
        first.state = CallState.READY
        return first

    def wait(self, call: OpenCall, give_back: Callable[[], None] = lambda: None) -> bool:
        """Note that a call waits for its turn or its next try; return whether it has its payload then.

        The payload is let go where too many are kept, unless the try has begun. `give_back` is what `withdraw` returns.
        """
        call.state = CallState.WAITING
        if call.exchange is None:
            self._waiting[call.id] = give_back
        size = len(call.message.payload)
        if self._kept + size <= self._most_bytes:
            self._kept += size
            call.kept = size
        elif call.exchange is None:
            call.let_go()
        return not call.lacks_payload

    def resume(self, call: OpenCall) -> bool:
        """Return whether a call that has waited goes on; if not, `arrived` returns it once its payload has come."""
        self._waiting.pop(call.id, None)
        self._release(call)
        if call.lacks_payload:
            call.state = CallState.DUE
            self.due[call.id] = call
            return False
        call.state = CallState.READY
        return True

    def arrived(self, number: int, message: Message) -> OpenCall | None:
        """Return the call whose payload has come again, and which goes on; None for the message of a new call."""
        call = self.due.pop(number, None)
        if call is not None:
            call.message, call.has_payload, call.state = message, True, CallState.READY
        return call

    def withdraw(self, numbers: Iterable[int]) -> list[Callable[[], None]]:
        """Set the calls that begin nothing more; return what gives back those of them that wait."""
        self.withdrawn = frozenset(numbers)
        return [self._waiting.pop(number) for number in self.withdrawn & self._waiting.keys()]

    def take_back(self, call: OpenCall) -> Callable[[], None]:
        """Return what gives a call back that waits for its next try: nothing where it was withdrawn."""
        return self._waiting.pop(call.id, lambda: None)

    def was_withdrawn(self, call: OpenCall) -> bool:
        """Return whether a call that waited was withdrawn: it was given back, and does not go on."""
        return call.exchange is None and call.id not in self._waiting

    def _release(self, call: OpenCall) -> None:
        self._kept -= call.kept
        call.kept = 0


class Turns(Generic[T]):
    """RATE_LIMIT: one turn at a time, in order of arrival. A turn ends with `sent`, or with `declined`.

    The next one is due so many seconds after the request was sent, not after its turn was given: however long a call
    waits then for a free worker, for a processor or for an access token, requests do not gather and leave together.

    Decision: evenly spaced instead of in bursts, so that the server sees no more than the limit in any window of time.
    """

    def __init__(self) -> None:
        self._waiting: deque[T] = deque()  # bounded by what the broker admits
        self._given = False  # a turn that has not ended
        self._last = -float("inf")
        self.seconds = 0.0
        """From one request to the next; 0: as soon as there is one."""
        self.workers = 1
        """That share the limit: each has its part of it."""

    @property
    def due(self) -> float | None:
        """Return the time of the next turn; None while none can be given."""
        return None if self._given or not self._waiting else self._last + self.workers * self.seconds

    def enter(self, item: T, *, first: bool = False) -> bool:
        """Queue an item, with `first` before all others; return whether it is the only one."""
        if first:
            self._waiting.appendleft(item)
        else:
            self._waiting.append(item)
        return len(self._waiting) == 1

    def give(self) -> T | None:
        """Return the item whose turn begins now."""
        if self._given or not self._waiting:
            return None
        self._given = True
        return self._waiting.popleft()

    def sent(self, now: float) -> None:
        """End a turn: its request is sent."""
        self._last, self._given = now, False

    def declined(self) -> None:
        """End a turn that sends nothing: it is another item's at once."""
        self._given = False

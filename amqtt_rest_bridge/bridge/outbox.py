"""What is sent from the bridge process to the broker: results and publications, at the broker's pace.

Publications cost credits (see `frames.credits_for`), which the broker returns as it publishes, so that a fast server
or many callers never fill the broker's memory. Everything leaves in order. Any thread may call.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from amqtt_rest_bridge.link.bridge_end import BridgeEnd
from amqtt_rest_bridge.link.frames import INITIAL_CREDITS, CallResult, Publish, Results, ToBroker, credits_for
from amqtt_rest_bridge.model import Publication

_BATCH = 32  # results that may wait for company
_COMPANY_SECONDS = 0.002  # ... and for how long
_MOST_RESULT_BYTES = 8 << 20  # of results that wait for credits; a worker that has one more waits until some have left


class Entry:
    """A result, a publication or another frame in the queue."""

    __slots__ = ("_outbox", "confirmed", "cost", "item", "outcome", "sent", "size", "wake")

    def __init__(
        self, outbox: "Outbox", item: CallResult | Publication | ToBroker, cost: int, *, confirmed: bool = False
    ) -> None:
        self.item = item
        self.cost = cost
        self.size = 0  # bytes of a result
        self.confirmed = confirmed  # whether its outcome is what `Confirmed` says
        self.sent = False
        self.outcome: bool | None = None
        self.wake: Callable[[], None] | None = None  # called when it is sent late, and when its outcome comes later
        self._outbox = outbox

    def withdraw(self) -> bool:
        """Remove it from the queue; return False when it is not in it (any more)."""
        return self._outbox.withdraw(self)


class Outbox:
    """The queue to the broker, bounded by what the broker admitted and by the requests that wait in `enqueue`.

    A server that answers faster than the broker publishes stops the workers: 10,000 messages of a few bytes may have
    answers of gigabytes.
    """

    def __init__(self, link: BridgeEnd) -> None:
        self._link = link
        self._lock = threading.Lock()
        self._entries: deque[Entry] = deque()
        self._result_bytes = 0  # in them
        self._has_room = threading.Condition(self._lock)
        self._closed = False
        self._credits = INITIAL_CREDITS
        self._since = 0.0  # when the oldest entry was put in
        self._numbers = 0  # of publications whose outcome is confirmed, so far
        self._unconfirmed: dict[int, Entry] = {}

    @property
    def waiting(self) -> bool:
        """Return whether anything has not left yet."""
        return bool(self._entries)

    def done(self, result: CallResult, *, at_once: bool) -> None:
        """Send the result of a call; with `at_once` it leaves at once, else soon. Blocks while too many wait."""
        payload = b"" if result.publication is None else result.publication.payload
        cost = 0 if result.publication is None else credits_for(payload)
        with self._lock:
            while self._result_bytes > _MOST_RESULT_BYTES and payload and not self._closed:
                self._has_room.wait()
            self._result_bytes += len(payload)
            now = time.monotonic()
            if not self._entries:
                self._since = now
            entry = Entry(self, result, cost)
            entry.size = len(payload)
            self._entries.append(entry)
            if at_once or len(self._entries) >= _BATCH or now - self._since > _COMPANY_SECONDS:
                self._flush()

    def publish(self, publication: Publication) -> bool:
        """Send a publication of server mode; return False when there is no room for it now."""
        entry = Entry(self, publication, credits_for(publication.payload))
        with self._lock:
            self._entries.append(entry)
            self._flush()
            if not entry.sent:
                self._entries.remove(entry)
            return entry.sent

    def enqueue(self, publication: Publication, wake: Callable[[], None], *, confirmed: bool) -> Entry:
        """Send a publication as soon as there is room; `wake` is called, under the lock, if that is later.

        With `confirmed` its outcome is known, and `wake` called, once the broker has acknowledged it.
        """
        entry = Entry(self, publication, credits_for(publication.payload), confirmed=confirmed)
        with self._lock:
            self._entries.append(entry)
            self._flush()
            entry.wake = wake
        return entry

    def withdraw(self, entry: Entry) -> bool:
        """Remove an entry from the queue; return False when it is not in it (any more)."""
        with self._lock:
            if entry.sent or entry not in self._entries:
                return False
            self._entries.remove(entry)
            return True

    def confirm(self, numbers: Iterable[int], *, published: bool) -> None:
        """Take the broker's word on publications."""
        with self._lock:
            for number in numbers:
                entry = self._unconfirmed.pop(number)
                entry.outcome = published
                if entry.wake is not None:
                    entry.wake()

    def send(self, frame: ToBroker) -> None:
        """Send a frame that costs nothing, after all that came before it.

        The broker process relies on that order: the next call of an ORDERED event waits for its turn, or its next try,
        after the one before has ended.
        """
        with self._lock:
            self._entries.append(Entry(self, frame, 0))
            self._flush()

    def credit(self, count: int) -> None:
        """Add credits that the broker has returned."""
        with self._lock:
            self._credits += count
            self._flush()
            self._has_room.notify_all()

    def close(self) -> None:
        """Stop to hold workers up: nothing leaves any more."""
        with self._lock:
            self._closed = True
            self._has_room.notify_all()

    def flush(self) -> None:
        """Send what is ready to leave."""
        if self._entries:
            with self._lock:
                self._flush()

    def _flush(self) -> None:
        entries = self._entries
        frames: list[ToBroker] = []
        late: list[Callable[[], None]] = []
        while entries and (self._credits > 0 or not entries[0].cost):
            entry = entries.popleft()
            self._credits -= entry.cost
            self._result_bytes -= entry.size
            entry.sent = True
            if entry.wake is not None:
                late.append(entry.wake)
            self._add(frames, entry)
        if frames:
            self._link.send(*frames)
        for wake in late:
            wake()

    def _add(self, frames: list[ToBroker], entry: Entry) -> None:
        """Add an entry to frames that leave together: to the last of them where that is of its kind."""
        last = frames[-1] if frames else None
        if isinstance(entry.item, CallResult):
            if isinstance(last, Results):
                last.results.append(entry.item)
            else:
                frames.append(Results([entry.item]))
        elif isinstance(entry.item, Publication):
            first = self._number(entry)
            if isinstance(last, Publish) and bool(last.first) == bool(first):
                last.publications.append(entry.item)
            else:
                frames.append(Publish([entry.item], first))
        else:
            frames.append(entry.item)

    def _number(self, entry: Entry) -> int:
        """Return the number by which a publication is confirmed; 0 when it is not, and its outcome is known."""
        if not entry.confirmed:
            entry.outcome = True
            return 0
        self._numbers += 1
        self._unconfirmed[self._numbers] = entry
        return self._numbers

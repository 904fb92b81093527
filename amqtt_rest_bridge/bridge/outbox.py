"""What is sent from the bridge process to the broker: results and publications, at the broker's pace.

Publications cost credits (see `frames.credits_for`), which the broker returns as it publishes, so that a fast server
or many callers never fill the broker's memory. Everything leaves in order. Any thread may call.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

from amqtt_rest_bridge.link.bridge_end import BridgeEnd
from amqtt_rest_bridge.link.frames import INITIAL_CREDITS, CallResult, Publish, Results, ToBroker, credits_for
from amqtt_rest_bridge.model import Publication

_BATCH = 32  # results that may wait for company
_COMPANY_SECONDS = 0.002  # ... and for how long


class Entry:
    """A result or a publication in the queue."""

    __slots__ = ("_outbox", "cost", "item", "sent", "wake")

    def __init__(self, outbox: "Outbox", item: CallResult | Publication, cost: int) -> None:
        self.item = item
        self.cost = cost
        self.sent = False
        self.wake: Callable[[], None] | None = None  # called when it is sent late
        self._outbox = outbox

    def withdraw(self) -> bool:
        """Remove it from the queue; return False when it is not in it (any more)."""
        return self._outbox.withdraw(self)


class Outbox:
    """The queue to the broker, bounded by what the broker admitted and by the requests that wait in `enqueue`."""

    def __init__(self, link: BridgeEnd) -> None:
        self._link = link
        self._lock = threading.Lock()
        self._entries: deque[Entry] = deque()
        self._credits = INITIAL_CREDITS
        self._since = 0.0  # when the oldest entry was put in

    @property
    def waiting(self) -> bool:
        """Return whether anything has not left yet."""
        return bool(self._entries)

    def done(self, result: CallResult, *, at_once: bool) -> None:
        """Send the result of a call; with `at_once` it leaves at once, else soon."""
        cost = 0 if result.publication is None else credits_for(result.publication.payload)
        with self._lock:
            now = time.monotonic()
            if not self._entries:
                self._since = now
            self._entries.append(Entry(self, result, cost))
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

    def enqueue(self, publication: Publication, wake: Callable[[], None]) -> Entry:
        """Send a publication as soon as there is room; `wake` is called, under the lock, if that is later."""
        entry = Entry(self, publication, credits_for(publication.payload))
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

    def send(self, frame: ToBroker) -> None:
        """Send a frame that costs nothing, after what is ready to leave."""
        with self._lock:
            self._flush()
            self._link.send(frame)

    def credit(self, count: int) -> None:
        """Add credits that the broker has returned."""
        with self._lock:
            self._credits += count
            self._flush()

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
            entry.sent = True
            last = frames[-1] if frames else None
            if isinstance(entry.item, CallResult):
                if isinstance(last, Results):
                    last.results.append(entry.item)
                else:
                    frames.append(Results([entry.item]))
                continue
            if entry.wake is not None:
                late.append(entry.wake)
            if isinstance(last, Publish):
                last.publications.append(entry.item)
            else:
                frames.append(Publish([entry.item]))
        if frames:
            self._link.send(*frames)
        for wake in late:
            wake()

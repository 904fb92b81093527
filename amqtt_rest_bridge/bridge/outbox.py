"""What goes from the bridge process to the broker: results and publications, at the broker's pace.

Publications cost credits (see `frames.credits_for`), which the broker returns as it publishes, so that a fast server
or many callers never fill the broker's memory. Everything leaves in order. Any thread may call.
"""

import threading
import time
from collections import deque

from amqtt_rest_bridge.link.bridge_end import BridgeEnd
from amqtt_rest_bridge.link.frames import INITIAL_CREDITS, CallResult, Publish, Results, ToBroker, credits_for
from amqtt_rest_bridge.model import Publication

_BATCH = 32  # results that may wait for company
_COMPANY_SECONDS = 0.002  # ... and for how long


class _Entry:
    """A result or a publication in the queue; a thread may wait until it is `sent`."""

    __slots__ = ("cost", "item", "sent")

    def __init__(self, item: CallResult | Publication, cost: int) -> None:
        self.item = item
        self.cost = cost
        self.sent = False


class Outbox:
    """The queue to the broker, bounded by what the broker admitted and by the threads that wait in `publish`."""

    def __init__(self, link: BridgeEnd) -> None:
        self._link = link
        self._changed = threading.Condition()
        self._entries: deque[_Entry] = deque()
        self._credits = INITIAL_CREDITS
        self._since = 0.0  # when the oldest entry was put in

    @property
    def waiting(self) -> bool:
        """Return whether anything has not left yet."""
        return bool(self._entries)

    def done(self, result: CallResult, *, hurry: bool) -> None:
        """Send the result of a call; with `hurry` it leaves at once, else soon."""
        cost = 0 if result.publication is None else credits_for(result.publication.payload)
        with self._changed:
            now = time.monotonic()
            if not self._entries:
                self._since = now
            self._entries.append(_Entry(result, cost))
            if hurry or len(self._entries) >= _BATCH or now - self._since > _COMPANY_SECONDS:
                self._flush()

    def publish(self, publication: Publication, timeout: float) -> bool:
        """Send a publication of server mode; return False when it could not leave within `timeout` seconds."""
        entry = _Entry(publication, credits_for(publication.payload))
        with self._changed:
            self._entries.append(entry)
            self._flush()
            if not entry.sent and not self._changed.wait_for(lambda: entry.sent, timeout):
                self._entries.remove(entry)
            return entry.sent

    def send(self, frame: ToBroker) -> None:
        """Send a frame that costs nothing, after what is ready to leave."""
        with self._changed:
            self._flush()
            self._link.send(frame)

    def credit(self, count: int) -> None:
        """Add credits that the broker has returned."""
        with self._changed:
            self._credits += count
            self._flush()

    def flush(self) -> None:
        """Send what is ready to leave."""
        if self._entries:
            with self._changed:
                self._flush()

    def _flush(self) -> None:
        entries = self._entries
        frames: list[ToBroker] = []
        publications = False
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
            publications = True
            if isinstance(last, Publish):
                last.publications.append(entry.item)
            else:
                frames.append(Publish([entry.item]))
        if frames:
            self._link.send(*frames)
        if publications:
            self._changed.notify_all()

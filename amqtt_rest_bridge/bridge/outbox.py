"""What goes from the bridge process to the broker: results and publications, at the broker's pace.

Publications cost credits (see `link.credits_for`), which the broker gives back as it publishes, so that a fast server
or many callers never fill the broker's memory. Everything leaves in order. Any thread may call.
"""

import threading
import time
from collections import deque
from typing import Any

from amqtt_rest_bridge.link import INITIAL_CREDITS, BridgeEnd, Frame, Op, credits_for

_BATCH = 32  # results that may wait for company
_COMPANY_SECONDS = 0.002  # ... and for how long


class _Entry:
    """One DONE or PUBLISH item on its way; `sent` is told to the thread that waits for it."""

    __slots__ = ("cost", "item", "op", "sent")

    def __init__(self, op: int, item: tuple[Any, ...], cost: int) -> None:
        self.op = op
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
        """Say whether anything has not left yet."""
        return bool(self._entries)

    def done(self, item: tuple[Any, ...], *, hurry: bool) -> None:
        """Hand in a call's result, an item of a DONE frame; with `hurry` it leaves at once, else soon."""
        cost = sum(credits_for(publication[1]) for publication in item[5])
        with self._changed:
            now = time.monotonic()
            if not self._entries:
                self._since = now
            self._entries.append(_Entry(Op.DONE, item, cost))
            if hurry or len(self._entries) >= _BATCH or now - self._since > _COMPANY_SECONDS:
                self._flush()

    def publish(self, item: tuple[str, str, bytes, bool], timeout: float) -> bool:
        """Send a publication, an item of a PUBLISH frame; False when it could not leave within `timeout` seconds."""
        entry = _Entry(Op.PUBLISH, item, credits_for(item[2]))
        with self._changed:
            self._entries.append(entry)
            self._flush()
            if not entry.sent and not self._changed.wait_for(lambda: entry.sent, timeout):
                self._entries.remove(entry)
            return entry.sent

    def send(self, frame: Frame) -> None:
        """Send a frame that costs nothing, after what is ready to leave."""
        with self._changed:
            self._flush()
            self._link.send(frame)

    def credit(self, count: int) -> None:
        """Take back credits that the broker returned."""
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
        frames: list[Frame] = []
        publications = 0
        while entries and (self._credits > 0 or not entries[0].cost):
            entry = entries.popleft()
            self._credits -= entry.cost
            entry.sent = True
            publications += entry.op == Op.PUBLISH
            if frames and frames[-1][0] == entry.op:
                frames[-1][1].append(entry.item)
            else:
                frames.append((entry.op, [entry.item]))
        if frames:
            self._link.send(*frames)
        if publications:
            self._changed.notify_all()

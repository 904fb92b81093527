"""Payloads of calls that wait for their next try or their turn. Any thread may call.

The broker process holds every payload until its call has ended. So the bridge process keeps those of calls that wait up
to a bound, for all routes together, and lets the others go: the broker process sends them again when they are due.
"""

import threading
from collections.abc import Callable
from typing import Final

from amqtt_rest_bridge.link.frames import DispatchedCall
from amqtt_rest_bridge.model import Message

MOST_BYTES: Final = 8 << 20
"""Bytes of payloads that are kept."""


class WaitingPayloads:
    """Count those that are kept, and pass on those that come again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept = 0  # bytes
        self.expected: dict[int, Callable[[Message], None]] = {}
        """What continues the calls whose messages will come again, by the call's number."""

    def keep(self, size: int) -> bool:
        """Return whether a payload may be kept, until `release`."""
        with self._lock:
            if self._kept + size > MOST_BYTES:
                return False
            self._kept += size
            return True

    def release(self, size: int) -> None:
        """Note that a payload that was kept is needed again."""
        with self._lock:
            self._kept -= size

    def expect(self, call: int, resume: Callable[[Message], None]) -> None:
        """Call `resume` once the message of a call has come again; before the broker process is asked for it."""
        self.expected[call] = resume

    def arrived(self, dispatched: DispatchedCall) -> bool:
        """Return whether this is the message of a call that waited, which now goes on."""
        resume = self.expected.pop(dispatched.id, None)
        if resume is None:
            return False
        resume(dispatched.message)
        return True

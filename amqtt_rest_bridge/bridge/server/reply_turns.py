"""Turns for requests that share a reply topic without `{request_id}`: one after the other, in order of arrival.

Called by threads that may wait (see `server_mode`); holds nothing for topics that nobody waits for.
"""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class ReplyTurns:
    """Queues of waiting threads, one for each reply topic in use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[str, deque[threading.Event]] = {}

    @contextmanager
    def turn(self, topic: str, seconds: float) -> Iterator[None]:
        """Hold the turn of a topic; blocks up to `seconds` for it, then raises `TimeoutError`."""
        ticket = threading.Event()
        with self._lock:
            queue = self._queues.setdefault(topic, deque())
            queue.append(ticket)
            if queue[0] is ticket:
                ticket.set()
        try:
            if not ticket.wait(seconds):
                raise TimeoutError(topic)
            yield
        finally:
            self._leave(topic, ticket)

    def _leave(self, topic: str, ticket: threading.Event) -> None:
        with self._lock:
            queue = self._queues[topic]
            queue.remove(ticket)
            if queue:
                queue[0].set()
            else:
                del self._queues[topic]

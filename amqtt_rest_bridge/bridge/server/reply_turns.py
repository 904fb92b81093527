"""Turns for requests that share a reply topic without `{request_id}`: one after the other, in order of arrival.

Called on the threads of all ports; holds nothing for topics on which no request waits.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Turn:
    """One request's place in the queue of its reply topic; `is_on` once all before it have left."""

    __slots__ = ("_queue", "wake")

    def __init__(self, queue: "deque[Turn]", wake: Callable[[], None]) -> None:
        self._queue = queue
        self.wake = wake

    @property
    def is_on(self) -> bool:
        """Return whether it is this request's turn."""
        return self._queue[0] is self


class ReplyTurns:
    """Queues of waiting requests, one for each reply topic in use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[str, deque[Turn]] = {}

    @contextmanager
    def turn(self, topic: str, wake: Callable[[], None]) -> Iterator[Turn]:
        """Enter a topic's queue; `wake` is called when those before have left, on any thread."""
        with self._lock:
            queue = self._queues.setdefault(topic, deque())
            turn = Turn(queue, wake)
            queue.append(turn)
        try:
            yield turn
        finally:
            self._leave(topic, turn)

    def _leave(self, topic: str, turn: Turn) -> None:
        with self._lock:
            queue = self._queues[topic]
            was_on = turn.is_on
            queue.remove(turn)
            if not queue:
                del self._queues[topic]
            elif was_on:
                queue[0].wake()

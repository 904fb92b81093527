"""Messages that server mode waits for: the latest payloads of read events, and replies. Any thread may use it."""

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from amqtt_rest_bridge.bridge.payloads import TopicPayload


class Inbound:
    """What was seen on the topics of read events, and who waits for a reply on which topic."""

    def __init__(self) -> None:
        self._latest: dict[str, TopicPayload | None] = {}  # by watched filter
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[Waiting]] = {}

    def watch(self, filters: Iterable[str]) -> None:
        """Keep the latest payload of these topic filters from now on, and of no others."""
        self._latest = {topic_filter: self._latest.get(topic_filter) for topic_filter in filters}

    def changed(self, topic_filter: str, payload: bytes) -> None:
        """Take the latest payload of a filter; of one that is not watched any more it is dropped."""
        if topic_filter in self._latest:
            self._latest[topic_filter] = TopicPayload(payload)

    def seen(self, topic: str, payload: bytes) -> None:
        """Take a message that may be a reply."""
        with self._lock:
            for waiting in self._waiting.get(topic, ()):
                waiting.give(payload)

    def latest(self, topic_filter: str) -> TopicPayload | None:
        """Return the latest payload seen on a watched filter, None before there is one."""
        return self._latest.get(topic_filter)

    @contextmanager
    def expect(self, topic: str) -> "Iterator[Waiting]":
        """Stand waiting for messages on a topic."""
        waiting = Waiting()
        with self._lock:
            self._waiting.setdefault(topic, deque()).append(waiting)
        try:
            yield waiting
        finally:
            with self._lock:
                self._waiting[topic].remove(waiting)
                if not self._waiting[topic]:
                    del self._waiting[topic]

    def dismiss(self) -> None:
        """Let everybody who waits go without a reply."""
        with self._lock:
            for waitings in self._waiting.values():
                for waiting in waitings:
                    waiting.dismiss()


class Waiting:
    """One request that waits for its reply."""

    __slots__ = ("_arrived", "_payload", "dismissed")

    def __init__(self) -> None:
        self.dismissed = False
        self._arrived = threading.Event()
        self._payload: bytes | None = None

    def give(self, payload: bytes) -> None:
        """Hand over a message; only the first counts."""
        if not self._arrived.is_set():
            self._payload = payload
            self._arrived.set()

    def dismiss(self) -> None:
        """Stop waiting without a message."""
        self.dismissed = self._payload is None
        self._arrived.set()

    def wait(self, seconds: float) -> bytes | None:
        """Block up to `seconds` for the first message; None when none came."""
        self._arrived.wait(seconds)
        return self._payload

"""Messages that server mode waits for: the latest payloads of read events, and replies. Any thread may use it."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from amqtt_rest_bridge.bridge.payloads import TopicPayload


class Inbound:
    """What was seen on the topics of read events, and which requests wait for a reply on which topic."""

    def __init__(self) -> None:
        self._latest: dict[str, TopicPayload | None] = {}  # by watched filter
        self._watches = False  # what comes before the first routes, after a restart, is theirs
        self._lock = threading.Lock()
        self._awaited: dict[str, list[AwaitedReply]] = {}

    def watch(self, filters: Iterable[str]) -> None:
        """Store the latest payload of these topic filters from now on, and of no others."""
        self._latest = {topic_filter: self._latest.get(topic_filter) for topic_filter in filters}
        self._watches = True

    def changed(self, topic_filter: str, payload: bytes) -> None:
        """Store the latest payload of a filter; drop that of one that is not watched any more."""
        if topic_filter in self._latest or not self._watches:
            self._latest[topic_filter] = TopicPayload(payload)

    def seen(self, topic: str, payload: bytes) -> None:
        """Pass a message that may be a reply to the requests that wait for it."""
        with self._lock:
            for reply in self._awaited.get(topic, ()):
                reply.arrive(payload)

    def latest(self, topic_filter: str) -> TopicPayload | None:
        """Return the latest payload seen on a watched filter, None before there is one."""
        return self._latest.get(topic_filter)

    @contextmanager
    def expect(self, topic: str, wake: Callable[[], None]) -> "Iterator[AwaitedReply]":
        """Wait for messages on a topic; see `BrokerPort.expect`."""
        reply = AwaitedReply(wake)
        with self._lock:
            self._awaited.setdefault(topic, []).append(reply)
        try:
            yield reply
        finally:
            with self._lock:
                self._awaited[topic].remove(reply)
                if not self._awaited[topic]:
                    del self._awaited[topic]

    def dismiss(self) -> None:
        """End the waiting of every request, without a reply."""
        with self._lock:
            for replies in self._awaited.values():
                for reply in replies:
                    reply.dismiss()


class AwaitedReply:
    """One request that waits for its reply; under the lock of `Inbound`, but for reading."""

    __slots__ = ("_wake", "dismissed", "payload")

    def __init__(self, wake: Callable[[], None]) -> None:
        self.payload: bytes | None = None
        self.dismissed = False
        self._wake = wake

    def arrive(self, payload: bytes) -> None:
        """Store a message; only the first counts."""
        if self.payload is None and not self.dismissed:
            self.payload = payload
            self._wake()

    def dismiss(self) -> None:
        """End the waiting without a message."""
        if self.payload is None:
            self.dismissed = True
            self._wake()

"""How requests of server mode reach the broker: publish, wait for a reply, read the latest payload of a topic.

The broker itself is in the other process, behind the link.

Nothing here blocks. What takes time (room at the broker, a reply) calls `wake` once it has come: on any thread,
possibly before the method that was given it returns, and `wake` must not block either. Any thread may call.
"""

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Final, Protocol

from amqtt_rest_bridge.bridge.server.answers import Answers
from amqtt_rest_bridge.errors import BridgeError
from amqtt_rest_bridge.link.bridge_end import Entry
from amqtt_rest_bridge.model import Publication
from amqtt_rest_bridge.records.bridge_records import BridgeRecords

Wake = Callable[[], None]

_JSON_STARTS: Final = frozenset(b'{["-0123456789tfn')
_JSON_SPACE: Final = b" \t\r\n"


class ShuttingDownError(BridgeError):
    """The bridge is closing; nothing has been published."""


class SendsPublications(Protocol):
    """The way of publications to the broker; see `link.bridge_end.BridgeEnd`."""

    def publish(self, publication: Publication) -> bool:
        """Send a publication; return False when there is no room for it now."""
        ...

    def enqueue(self, publication: Publication, wake: Wake, *, confirmed: bool) -> Entry:
        """Send a publication as soon as there is room."""
        ...

    def withdraw(self, entry: Entry) -> bool:
        """Remove one that waits; return False when it does not (any more)."""
        ...


class AwaitedReply:
    """One request that waits for its reply; under the lock of `BrokerAccess`, but for reading."""

    __slots__ = ("_wake", "dismissed", "payload")

    def __init__(self, wake: Wake) -> None:
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


class TopicPayload:
    """A message's payload for any number of answers; its headers are computed once, for the first one."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload

    @cached_property
    def content_type(self) -> str:
        """Return the media type; see `content_type_of`."""
        return content_type_of(self.payload)

    @cached_property
    def entity_tag(self) -> str:
        """Return the entity tag; see `entity_tag_of`."""
        return entity_tag_of(self.payload)


def content_type_of(payload: bytes) -> str:
    """Return a payload's media type by its content: JSON (RFC 8259), else UTF-8 text, else octets."""
    start = payload.lstrip(_JSON_SPACE)[:1]
    try:
        if start and start[0] in _JSON_STARTS:
            json.loads(payload.decode(), parse_constant=_refuse_constant)
            return "application/json"
    except UnicodeDecodeError:
        return "application/octet-stream"
    except (ValueError, RecursionError):
        pass
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return "application/octet-stream"
    return "application/octet-stream" if "\0" in text else "text/plain; charset=utf-8"


def entity_tag_of(payload: bytes) -> str:
    """Return a strong entity tag (RFC 9110 section 8.8.3): the same for the same bytes in every process."""
    return f'"{hashlib.blake2b(payload, digest_size=16).hexdigest()}"'


def is_not_modified(if_none_match: str | None, entity_tag: str) -> bool:
    """Return whether the caller has this entity already (If-None-Match, weak comparison, RFC 9110 section 13.1.2)."""
    if not if_none_match:
        return False
    given = [item.strip().removeprefix("W/") for item in if_none_match.split(",")]
    return entity_tag in given or given == ["*"]


def _refuse_constant(_name: str) -> None:
    """Refuse NaN and Infinity, which Python reads and JSON does not have."""
    raise ValueError


class BrokerAccess:
    """Publish, and wait for messages: the latest payloads of read events, and replies.

    `answers` counts what requests were answered with. `records` is where they are recorded for the admin port, None
    without one; the same while the bridge runs. With `confirms` the broker acknowledges publications.
    """

    def __init__(self, link: SendsPublications) -> None:
        self.answers = Answers()
        self.records: BridgeRecords | None = None
        self.confirms = False
        self.closing = False
        self._link = link
        self._latest: dict[str, TopicPayload | None] = {}  # by watched filter
        self._watches = False  # what comes before the first routes, after a restart, is theirs
        self._lock = threading.Lock()
        self.awaited: dict[str, list[AwaitedReply]] = {}
        """The requests that wait for a reply, by its topic; changed under the lock."""

    def publish(self, publication: Publication) -> bool:
        """Send a publication if there is room; once this returns true the broker has it, even if this process dies.

        False too where the broker's acknowledgement has to be waited for, see `enqueue`.

        Raises `ShuttingDownError` when the bridge closes.
        """
        if self.closing:
            raise ShuttingDownError("the bridge is shutting down")
        return not self.confirms and self._link.publish(publication)

    def enqueue(self, publication: Publication, wake: Wake) -> Entry:
        """Send a publication as soon as there is room, in order of arrival.

        `wake` is called once it was sent late, and once its outcome is known later.

        Raises `ShuttingDownError` when the bridge closes.
        """
        if self.closing:
            raise ShuttingDownError("the bridge is shutting down")
        return self._link.enqueue(publication, wake, confirmed=self.confirms)

    def withdraw(self, queued: Entry) -> bool:
        """Take back a publication that waits for room; return False when it was sent, or taken back before."""
        return self._link.withdraw(queued)

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
            for reply in self.awaited.get(topic, ()):
                reply.arrive(payload)

    def latest(self, topic_filter: str) -> TopicPayload | None:
        """Return the latest payload seen on a watched filter, None before there is one."""
        return self._latest.get(topic_filter)

    @contextmanager
    def expect(self, topic: str, wake: Wake) -> Iterator[AwaitedReply]:
        """Wait for the first message on `topic` from entering on, until leaving; it or a dismissal calls `wake`."""
        reply = AwaitedReply(wake)
        with self._lock:
            self.awaited.setdefault(topic, []).append(reply)
        try:
            yield reply
        finally:
            with self._lock:
                self.awaited[topic].remove(reply)
                if not self.awaited[topic]:
                    del self.awaited[topic]

    def dismiss(self) -> None:
        """End the waiting of every request, without a reply."""
        with self._lock:
            for replies in self.awaited.values():
                for reply in replies:
                    reply.dismiss()

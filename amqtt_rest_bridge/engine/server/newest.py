"""The newest message of each topic that the filter of a read event matches, bounded in number and bytes."""

import hashlib
import itertools
import json
from collections import OrderedDict, deque
from functools import cached_property
from itertools import takewhile
from typing import Final

from amqtt_rest_bridge.http.event_stream import event_of

MOST_TOPICS: Final = 10_000
MOST_BYTES: Final = 16 << 20  # of topics and payloads; the newest message is always kept
MOST_RECENT: Final = 64
"""Messages that are kept although newer ones of their topics have come, up to `RECENT_BYTES`."""
RECENT_BYTES: Final = 32 << 10

_SERIES: Final = itertools.count(1)
_JSON_STARTS: Final = frozenset(b'{["-0123456789tfn')
_JSON_SPACE: Final = b" \t\r\n"


class TopicPayload:
    """A message's payload for any number of answers; what they need of it is made once, for the first one.

    `number` is that of the change of its `Newest` with which it came.
    """

    def __init__(self, payload: bytes, number: int = 0) -> None:
        self.payload = payload
        self.number = number

    def __len__(self) -> int:
        return len(self.payload)

    @cached_property
    def json(self) -> str:
        """Return the payload as JSON: as it is where it is JSON, else as a string."""
        text = self.payload.decode(errors="replace")
        return text if self.content_type == "application/json" else json.dumps(text, ensure_ascii=False)

    @cached_property
    def event(self) -> bytes:
        """Return the payload as a server-sent event, whose id is the same for the same bytes."""
        return event_of(self.payload.decode(errors="replace"), self.entity_tag.strip('"'))

    @cached_property
    def content_type(self) -> str:
        """Return the media type; see `content_type_of`."""
        return content_type_of(self.payload)

    @cached_property
    def entity_tag(self) -> str:
        """Return a strong entity tag (RFC 9110 section 8.8.3): the same for the same bytes in every process."""
        return f'"{hashlib.blake2b(self.payload, digest_size=16).hexdigest()}"'


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


def _refuse_constant(_name: str) -> None:
    """Refuse NaN and Infinity, which Python reads and JSON does not have."""
    raise ValueError


class Newest:
    """The newest messages of one filter.

    `topics` holds them by topic, in the order in which they came. With too many the oldest empty one goes, else the
    oldest; `is_complete` is false once that was not an empty one. `number` counts the changes, `series` tells those of
    one object from others'.
    """

    def __init__(self, topic_filter: str) -> None:
        self.topic_filter: Final = topic_filter
        # The oldest of a dict is found behind all that were removed before it: with 10,000 a message took 35 us.
        self.topics: OrderedDict[str, TopicPayload] = OrderedDict()
        self.is_complete = True
        self.number = 0
        self.series: Final = next(_SERIES)
        self._bytes = 0
        self._empty: OrderedDict[str, None] = OrderedDict()  # topics that were removed, in order
        self._recent: deque[tuple[str, TopicPayload]] = deque()
        self._recent_bytes = 0
        self._has_forgotten = False  # recent ones

    def put(self, topic: str, payload: bytes) -> None:
        """Keep a message."""
        self.number += 1
        self._remove(topic)
        kept = self.topics[topic] = TopicPayload(payload, self.number)
        self._bytes += len(topic) + len(payload)
        if not payload:
            self._empty[topic] = None
        self._recent.append((topic, kept))
        self._recent_bytes += len(topic) + len(payload)
        while len(self._recent) > MOST_RECENT or (self._recent_bytes > RECENT_BYTES and len(self._recent) > 1):
            old, forgotten = self._recent.popleft()
            self._recent_bytes -= len(old) + len(forgotten)
            self._has_forgotten = True
        while len(self.topics) > MOST_TOPICS or (self._bytes > MOST_BYTES and len(self.topics) > 1):
            self.is_complete = not self._remove(next(iter(self._empty or self.topics))) and self.is_complete

    def since(self, number: int) -> list[tuple[str, TopicPayload]]:
        """Return what came after the change of a number, with topics.

        These are all messages, in order; where some are not kept any more, the newest of each topic.
        """
        recent = [*takewhile(lambda one: one[1].number > number, reversed(self._recent))]
        if len(recent) == len(self._recent) and self._has_forgotten:
            recent = [*takewhile(lambda one: one[1].number > number, reversed(self.topics.items()))]
        return recent[::-1]

    def _remove(self, topic: str) -> int:
        """Return how large the payload was that is removed."""
        removed = self.topics.pop(topic, None)
        if removed is None:
            return 0
        self._bytes -= len(topic) + len(removed)
        self._empty.pop(topic, None)
        return len(removed)

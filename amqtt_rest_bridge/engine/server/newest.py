"""The newest messages of topics, and the payload of a message in the forms that answers need."""

import hashlib
import itertools
import json
from collections import OrderedDict, deque
from functools import cached_property
from itertools import takewhile
from typing import Final

from amqtt_rest_bridge.http.event_stream import event_of
from amqtt_rest_bridge.http.exchange import Headers, Response

MOST_TOPICS: Final = 10_000
MOST_BYTES: Final = 16 << 20  # of topics and payloads; the newest message is always kept
MOST_RECENT: Final = 64
"""Messages that are kept although newer ones of their topics have come, up to `RECENT_BYTES`."""
RECENT_BYTES: Final = 32 << 10
_SERIES: Final = itertools.count(1)
_JSON_STARTS: Final = frozenset(b'{["-0123456789tfn')
_JSON_SPACE: Final = b" \t\r\n"
_NO_SNIFFING: Final = ("X-Content-Type-Options", "nosniff")


class TopicPayload:
    """The payload of a message, in the forms that answers need; each form is made once for all answers.

    `number` is the number of its message, see `NewestMessages`.
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


def payload_answer(payload: TopicPayload, headers: Headers = ()) -> Response:
    """Return the answer that has a payload."""
    # Any client may have published the payload: a browser must not take text for a page.
    own = (("Content-Type", payload.content_type), _NO_SNIFFING)
    return Response("200 OK", (*headers, *own), payload.payload)


class NewestMessages:
    """The newest messages of one filter.

    `topics` holds them by topic, in order of arrival. If there are too many, the oldest empty one is dropped. Without
    an empty one the oldest one is dropped, which makes `is_complete` false. `number` counts the messages; `series`
    distinguishes the numbers of this object from those of others.
    """

    def __init__(self, topic_filter: str) -> None:
        self.topic_filter: Final = topic_filter
        # Not a dict, whose first entry is found only behind all entries that were removed before it.
        self.topics: OrderedDict[str, TopicPayload] = OrderedDict()
        self.is_complete = True
        self.number = 0
        self.series: Final = next(_SERIES)
        self._bytes = 0
        self._empty: OrderedDict[str, None] = OrderedDict()  # topics that were removed, in order
        self._recent: deque[tuple[str, TopicPayload]] = deque()
        self._recent_bytes = 0
        self._has_forgotten = False  # whether any recent message was dropped

    def put(self, topic: str, payload: bytes) -> None:
        """Keep a message; drop the oldest ones beyond the bounds."""
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
        """Return the messages after that with a number, with their topics, in order.

        If some of them are not kept any more, these are the newest messages of each topic.
        """
        recent = [*takewhile(lambda one: one[1].number > number, reversed(self._recent))]
        if len(recent) == len(self._recent) and self._has_forgotten:
            recent = [*takewhile(lambda one: one[1].number > number, reversed(self.topics.items()))]
        return recent[::-1]

    def _remove(self, topic: str) -> int:
        """Forget the message of a topic; return the size of its payload, 0 without one."""
        removed = self.topics.pop(topic, None)
        if removed is None:
            return 0
        self._bytes -= len(topic) + len(removed)
        self._empty.pop(topic, None)
        return len(removed)

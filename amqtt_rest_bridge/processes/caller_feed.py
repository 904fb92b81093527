"""What the callers of one bridge process wait for: replies, newest messages of read events, the broker's word.

All travel on the link beside everything else, and the bridge process may be slow to read. A read event needs nothing
but the newest message: while the one before has not left, a newer one takes the place of what waits, so a message of
40 MB delays those of read events alone. Every reply is needed: each leaves at once, up to a bound. The broker's loop.
"""

import asyncio
from collections import deque
from typing import Final

from amqtt_rest_bridge.engine.trace_context import trace_of
from amqtt_rest_bridge.link.broker_end import FRAME_BYTES, BrokerEnd
from amqtt_rest_bridge.link.frames import MOST_REPLY_BYTES, Confirmed, Latest, ReadMessage, Replies, TopicMessage
from amqtt_rest_bridge.link.newest import AGAIN, COMPLETE, INCOMPLETE, MARKS, MOST_TOPICS, Newest
from amqtt_rest_bridge.model import Message

_MOST_LATEST_BYTES: Final = 1 << 20  # of the newest messages on their way, and one message more
_LATEST_SECONDS: Final = 0.002  # from one frame of newest messages to the next


class _Underway:
    """Bytes of one kind that wait on the link."""

    def __init__(self, link: BrokerEnd) -> None:
        self._link = link
        self._frames: deque[tuple[int, int]] = deque()  # the place of each frame's end on the link, and its size
        self._size = 0

    def add(self, size: int) -> None:
        """Note a frame that is about to be queued."""
        self._frames.append((self._link.sent + self._link.backlog + size, size))
        self._size += size

    @property
    def size(self) -> int:
        """Return how many bytes have not left."""
        while self._frames and self._frames[0][0] <= self._link.sent:
            self._size -= self._frames.popleft()[1]
        return self._size


class CallerFeed:
    """Send them over a link."""

    def __init__(self, loop: asyncio.AbstractEventLoop, link: BrokerEnd) -> None:
        self._loop = loop
        self._link = link
        self._gathered = 0  # bytes of replies that the link gathers
        self._replies_underway = _Underway(link)
        self._newest: dict[tuple[Newest[bytes], str], None] = {}  # topics whose newest messages have not been sent
        self._most_newest = 2 * MOST_TOPICS
        self._newest_underway = _Underway(link)
        self._newest_sent = 0.0  # when, by the loop's clock
        self._ended: list[tuple[int, bool]] = []  # publications of this iteration of the loop, and whether it has them

    def reply(self, message: Message) -> bool:
        """Send a message that requests may wait for; False, and nothing is sent, when too much is on its way."""
        if self._gathered + self._replies_underway.size > MOST_REPLY_BYTES:
            return False
        size = len(message.payload)
        correlation = None if message.properties is None else message.properties.correlation
        self._gathered += size
        item = TopicMessage(message.topic, message.payload, correlation, trace_of(message.user))
        self._link.gather(self._replies, [item], size)
        return True

    def newest(self, newest: Newest[bytes], topic: str) -> None:
        """Send the newest message on a topic of read events, as soon as the one before has left."""
        if not self._newest:
            self._loop.call_at(self._newest_sent + _LATEST_SECONDS, self.send_newest)
        self._newest[newest, topic] = None
        if len(self._newest) > self._most_newest:  # most of them have been dropped since
            self._newest = {key: None for key in self._newest if key[1] in key[0].topics or key[1] in MARKS}
            self._most_newest = 2 * (MOST_TOPICS + len(self._newest))

    def all_newest(self, newest: Newest[bytes]) -> None:
        """Send all newest messages of a filter that had too many, and that they are complete."""
        self._newest = {key: None for key in self._newest if key[0] is not newest}
        for topic in (AGAIN, *newest.topics, COMPLETE):
            self.newest(newest, topic)

    def confirm(self, number: int, published: bool) -> None:
        """Send whether the broker has a publication, with others of this iteration of the loop.

        Not later: a caller waits for it, and of those who ask again at once each would wait for all the others.
        """
        if not self._ended:
            self._loop.call_soon(self._send_confirmed)
        self._ended.append((number, published))

    def _send_confirmed(self) -> None:
        ended, self._ended = self._ended, []
        published = [number for number, is_published in ended if is_published]
        self._link.send(Confirmed(published, [number for number, is_published in ended if not is_published]))

    def send_newest(self) -> None:
        """Send what waits and has room."""
        while self._newest and self._newest_underway.size < _MOST_LATEST_BYTES:
            items, size = [], 0
            while self._newest and size < FRAME_BYTES:
                newest, topic = key = next(iter(self._newest))
                del self._newest[key]
                if topic == COMPLETE and not newest.is_complete:  # some have been dropped meanwhile
                    topic = INCOMPLETE
                payload = newest.topics.get(topic, b"")  # which removes it
                items.append(ReadMessage(newest.topic_filter, topic, payload))
                size += len(topic) + len(payload)
            self._newest_sent = self._loop.time()
            self._newest_underway.add(size)
            self._link.send(Latest(items))

    def _replies(self, replies: list[TopicMessage]) -> Replies:
        self._replies_underway.add(self._gathered)
        self._gathered = 0
        return Replies(replies)
